"""A store that writes down what it has confirmed, so that the demo can look for it afterwards.

It stands between a process and its database and changes nothing. It watches which rows a durable unit inserts or
ends; when the answer has come back, and only then, each of them becomes a line of the ledger. After any number of
kills every line must have its row: that is what "confirmed" means.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from perdure.demo.ledger import Ledger
from perdure.states import TaskStatus
from perdure.store import Store
from perdure.store.database import Database, Joint, JointUnit, Row, Transaction, Unit, Value, Waiter
from perdure.store.queries import Query

Line = tuple[str | int, ...]


def watched(store: Store, ledger: Ledger) -> Store:
    """The same store, whose durable writes leave a line in the ledger once they are confirmed."""
    database = WatchedDatabase(store.database, ledger)
    return Store(database, clock=store.clock, ids=store.ids, settings=store.settings)


def digest_of(blob: object) -> str:
    """A column's bytes, short."""
    return "" if blob is None else hashlib.sha256(bytes(blob)).hexdigest()[:16]  # type: ignore[call-overload]  # bytes


def _step(values: Mapping[str, Value]) -> Line:
    # Notes have no key: their place in the trace names them.
    place = values["key"] if values.get("key") is not None else values["step_index"]
    outcome = values["outcome"]
    assert isinstance(place, str | int)
    return (
        "step",
        _number(values["task"]),
        place,
        _number(values["try_number"]),
        str(outcome or ""),
        digest_of(values["output"]),
    )


# The rows that a promise hangs on, by the statement that makes or ends them.
_ROWS: Mapping[str, Callable[[Mapping[str, Value]], Line]] = {
    "tasks.insert": lambda v: ("task", str(v["id"])),
    "tasks.finish": lambda v: ("end", str(v["id"]), str(v["status"])),
    "tasks.end_unfenced": lambda v: ("end", str(v["id"]), str(v["status"])),
    "tasks.complete_alone": lambda v: ("end", str(v["id"]), TaskStatus.COMPLETED),
    "steps.insert": _step,
    "steps.end": _step,
    "messages.insert": lambda v: ("message", _number(v["task"]), _number(v["seq"]), digest_of(v["content"])),
    "events.insert": lambda v: ("event", _number(v["task"]), _number(v["seq"]), str(v["kind"])),
    "questions.insert": lambda v: ("question", str(v["id"]), ""),
    "questions.answer": lambda v: ("question", str(v["id"]), str(v["status"])),
}


def _ends(values: Mapping[str, Value]) -> Sequence[Line]:
    return [("end", row[0], TaskStatus.COMPLETED) for row in json.loads(str(values["rows"]))]


# The same of statements about many rows.
_SETS: Mapping[str, Callable[[Mapping[str, Value]], Sequence[Line]]] = {"sets.complete": _ends}


class WatchedDatabase:
    """A database like the one behind it."""

    def __init__(self, inner: Database, ledger: Ledger) -> None:
        self._inner = inner
        self._ledger = ledger
        self._joints: dict[Joint[Any, Any], Joint[Any, Any]] = {}
        self.url = inner.url
        self.dialect = inner.dialect
        self.clock = inner.clock

    def write(self, unit: Unit[Any], waiter: Waiter) -> None:
        """As the database behind it does, and noted once it is confirmed."""
        seen: list[Line] = []
        if isinstance(unit, JointUnit):
            joint = self._joints.setdefault(unit.joint, _seeing(unit.joint))
            self._inner.write(JointUnit(joint, (unit.item, seen)), _Noting(waiter, seen, self._ledger))
            return

        def seeing(tx: Transaction) -> Any:
            seen.clear()  # A unit may be run twice.
            return unit(_Seeing(tx, seen))

        self._inner.write(seeing, _Noting(waiter, seen, self._ledger))

    def write_softly(self, unit: Unit[Any], waiter: Waiter) -> None:
        """As the database behind it does: what power loss may take is not called confirmed."""
        self._inner.write_softly(unit, waiter)

    def read(self, unit: Unit[Any], waiter: Waiter) -> None:
        """As the database behind it does."""
        self._inner.read(unit, waiter)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """As the database behind it does."""
        return self._inner.listen(wake)

    def check_place(self) -> None:
        """As the database behind it does."""
        self._inner.check_place()

    def close(self) -> None:
        """As the database behind it does."""
        self._inner.close()


class _Noting:
    """A waiter that takes note of the answer before it hands it on."""

    __slots__ = ("_ledger", "_seen", "_waiter", "loop")

    def __init__(self, waiter: Waiter, seen: list[Line], ledger: Ledger) -> None:
        self.loop: asyncio.AbstractEventLoop | None = waiter.loop
        self._waiter, self._seen, self._ledger = waiter, seen, ledger

    def deliver(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            for line in self._seen:
                self._ledger.append(*line)
        self._waiter.deliver(result, error)


def _seeing(joint: Joint[Any, Any]) -> Joint[tuple[Any, list[Line]], Any]:
    """A joint operation whose items each bring a list for the row that is written of it."""

    def alone(tx: Transaction, one: tuple[Any, list[Line]], /) -> Any:
        item, seen = one
        seen.clear()  # It may be run twice.
        return joint.alone(_Seeing(tx, seen), item)

    def together(tx: Transaction, every: Sequence[tuple[Any, list[Line]]], /) -> Sequence[Any] | None:
        lines: list[Line] = []
        answers = joint.together(_Seeing(tx, lines), [item for item, _ in every])
        if answers is not None:
            for (_, seen), line in zip(every, lines, strict=True):
                seen[:] = [line]
        return answers

    return Joint(alone, together)


class _Seeing:
    """A transaction that remembers which rows were written in it."""

    __slots__ = ("_seen", "_tx")

    def __init__(self, tx: Transaction, seen: list[Line]) -> None:
        self._tx, self._seen = tx, seen

    @property
    def now(self) -> int:
        return self._tx.now

    def one(self, query: Query, /, **values: Value) -> Row | None:
        row = self._tx.one(query, **values)
        if row is not None:
            self._see(query, values)
        return row

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        return self._tx.all(query, **values)

    def run(self, query: Query, /, **values: Value) -> int:
        changed = self._tx.run(query, **values)
        if changed:
            self._see(query, values)
        return changed

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        def each() -> Iterator[Mapping[str, Value]]:
            for values in rows:
                self._see(query, values)
                yield values

        return self._tx.many(query, each())

    def lock(self, query: Query, /, **values: Value) -> None:
        self._tx.lock(query, **values)

    def new_id(self) -> str:
        return self._tx.new_id()

    def new_token(self) -> str:
        return self._tx.new_token()

    def hint(self) -> None:
        self._tx.hint()

    def _see(self, query: Query, values: Mapping[str, Value]) -> None:
        describe = _ROWS.get(query.name)
        if describe is not None:
            self._seen.append(describe(values))
        elif (describe_all := _SETS.get(query.name)) is not None:
            self._seen += describe_all(values)


def _number(value: Value) -> int:
    assert isinstance(value, int), value
    return value
