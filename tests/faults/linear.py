"""Is a concurrent history linearizable: can its operations be put in one order, each between its call and its return,
that explains every answer?

The search of Wing and Gong, with the states already seen left out. Histories of different objects are checked apart.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

NEVER = 1 << 62
_MANY_STATES = 1_000_000


@dataclass(eq=False, slots=True)
class Operation:
    """One call: what was asked, what was answered, and when, in ticks that all threads share."""

    name: str
    object_id: str
    arguments: tuple[Any, ...]
    called: int
    answer: Any = None
    returned: int = NEVER  # no answer came: it may have happened or not

    @property
    def is_open(self) -> bool:
        """Whether no answer came."""
        return self.returned == NEVER


@dataclass
class History:
    """Calls from many threads."""

    operations: list[Operation] = field(default_factory=list)
    _ticks: Iterable[int] = field(default_factory=itertools.count)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def call(self, name: str, object_id: str, *arguments: Any) -> Operation:
        """Note that a call begins."""
        with self._mutex:
            operation = Operation(name, object_id, arguments, next(iter(self._ticks)))
            self.operations.append(operation)
            return operation

    def answer(self, operation: Operation, answer: Any) -> None:
        """Note what it gave."""
        with self._mutex:
            operation.answer, operation.returned = answer, next(iter(self._ticks))


class Model(Protocol):
    """How one object behaves when it is used by one thread."""

    def start(self) -> Hashable:
        """Its first state."""
        ...

    def step(self, state: Any, operation: Operation) -> tuple[Hashable, Any]:
        """The next state, and the answer."""
        ...


def check(history: History, model: Model) -> str | None:
    """None if some order explains every answer, else what cannot be explained."""
    by_object: dict[str, list[Operation]] = {}
    for operation in history.operations:
        by_object.setdefault(operation.object_id, []).append(operation)
    return next((found for operations in by_object.values() if (found := _check_one(operations, model))), None)


def _check_one(operations: list[Operation], model: Model) -> str | None:
    operations = sorted(operations, key=lambda one: one.called)
    everything = sum(1 << place for place, one in enumerate(operations) if not one.is_open)
    todo: list[tuple[int, Hashable]] = [(0, model.start())]
    seen: set[tuple[int, Hashable]] = set()
    furthest = 0
    while todo:
        done, state = todo.pop()
        if done & everything == everything:
            return None
        if (done, state) in seen:
            continue
        seen.add((done, state))
        assert len(seen) < _MANY_STATES, "this history is too long to be checked"
        furthest = max(furthest, done, key=int.bit_count)
        todo += _nexts(operations, done, state, model)
    left = [one for place, one in enumerate(operations) if not furthest >> place & 1]
    return f"after {furthest.bit_count()} of {len(operations)} operations nothing explains {left[:4]}"


def _nexts(operations: list[Operation], done: int, state: Any, model: Model) -> list[tuple[int, Hashable]]:
    left = [(place, one) for place, one in enumerate(operations) if not done >> place & 1]
    earliest = min(one.returned for _, one in left)
    found = []
    for place, one in left:
        if one.called > earliest:
            break
        following, answer = model.step(state, one)
        if one.is_open or answer == one.answer:
            found.append((done | 1 << place, following))
    return found


class Ownership:
    """One task: claimed once, ended once by its owner, and free again when its owner is interrupted."""

    def start(self) -> Hashable:
        return ("pending", None)

    def step(self, state: Any, operation: Operation) -> tuple[Hashable, Any]:
        status, owner = state
        match operation.name:
            case "claim":
                # Which execution id it got is its own to tell: whatever it is, it owns from here on.
                wins = status == "pending"
                if wins != (operation.answer is not None) and not operation.is_open:
                    return state, _NO
                return (("running", operation.answer), operation.answer) if wins else (state, None)
            case "complete":
                is_mine = status == "running" and owner == operation.arguments[0]
                return (("completed", None), True) if is_mine else (state, False)
            case "record":
                return state, status == "running" and owner == operation.arguments[0]
            case "interrupt":
                is_owner = status == "running" and owner == operation.arguments[0]
                return (("pending", None), True) if is_owner else (state, False)
            case "cancel":
                return (("cancelled", None), True) if status in ("pending", "running") else (state, False)
            case name:
                raise AssertionError(name)


class Admission:
    """One idempotency key: the first work that comes under it is the only one."""

    def start(self) -> Hashable:
        return None

    def step(self, state: Any, operation: Operation) -> tuple[Hashable, Any]:
        (work,) = operation.arguments
        if state is None:
            # The new task's id is its own to tell.
            return (work, operation.answer), operation.answer if operation.answer != "conflict" else _NO
        return state, state[1] if state[0] == work else "conflict"


_NO = object()


def run_threads(work: Callable[[int], None], count: int) -> None:
    """Let some threads go at one moment and wait for all. Raises what one of them raised."""
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def go(number: int) -> None:
        try:
            gate.wait()
            work(number)
        except BaseException as failure:  # noqa: BLE001  # Told to the test.
            failures.append(failure)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
