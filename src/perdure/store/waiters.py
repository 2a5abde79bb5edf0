"""Who waits for a database, a thread or an event loop, and how the answer gets there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

from msgspec import Struct

from perdure.store.database import Answer
from perdure.store.letterbox import Letterbox, open_letterbox

T = TypeVar("T")

# One for a loop and the whole process, for it may wait for several databases. A box goes with its loop; a loop without
# one is told in asyncio's own way.
_letterboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Letterbox[Answer]] | None] = WeakKeyDictionary()


class ThreadWaiter(Generic[T]):
    """Waits in the calling thread."""

    __slots__ = ("_done", "_error", "_result", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def deliver(self, result: Any, error: BaseException | None) -> None:
        if not self._done.is_set():
            self._result, self._error = result, error
            self._done.set()

    def wait(self) -> T:
        """The answer, once it is there."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[no-any-return]  # deliver carries what the unit returned


class LoopWaiter(Struct, Generic[T], eq=False):
    """Waits on an event loop. Cancelling the waiting task cancels nothing in the database."""

    loop: asyncio.AbstractEventLoop | None
    future: asyncio.Future[T]
    box: ref[Letterbox[Answer]] | None  # of the loop, if it has one

    @classmethod
    def here(cls) -> LoopWaiter[T]:
        """One for the running loop."""
        loop = asyncio.get_running_loop()
        try:
            box = _letterboxes[loop]
        except KeyError:
            opened = open_letterbox(loop, _deliver)
            box = _letterboxes[loop] = None if opened is None else ref(opened)
        return cls(loop, loop.create_future(), box)

    def deliver(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        elif isinstance(error, StopIteration):  # Which a future refuses.
            self.future.set_exception(RuntimeError(f"a unit raised {error!r}"))
        else:
            self.future.set_exception(error)


def deliver_all(answers: Sequence[Answer]) -> None:
    """Hand every answer to its waiter, waking each event loop once. Never raises."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        loop = answer[0].loop
        if loop is None:
            _deliver(answer)
        elif len(answers) == 1:
            _send(loop, answers)
        else:
            by_loop.setdefault(loop, []).append(answer)
    for loop, batch in by_loop.items():
        _send(loop, batch)


def _send(loop: asyncio.AbstractEventLoop, batch: Sequence[Answer]) -> None:
    waiter = batch[0][0]
    known = waiter.box if type(waiter) is LoopWaiter else None
    if known is None:
        _send_plainly(loop, batch)
    elif (box := known()) is not None:  # Otherwise the loop is closed: nobody waits there any more.
        box.put(batch)


def _send_plainly(loop: asyncio.AbstractEventLoop, batch: Sequence[Answer]) -> None:
    def send_each() -> None:
        for answer in batch:
            loop.call_soon(_deliver, answer)

    try:
        loop.call_soon_threadsafe(send_each)
    except RuntimeError:  # The loop is closed; what was committed stays.
        return


def _deliver(answer: Answer) -> None:
    waiter, result, error = answer
    waiter.deliver(result, error)
