"""Following a task: its skeleton events from the store, in order, and what it streams in the places where it was said.

A task that runs in this process is heard at once; of one elsewhere, streamed events come with the packs that its worker
stores. What is heard here is found in the store a little later, and told once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol

from perdure.model.event import Event
from perdure.runtime.pulse import PulseBuffer, Streamed
from perdure.store import Store, aio, events, tasks

_EVENTS_A_PAGE: Final = 500
_PACKS_A_PAGE: Final = 100
# Heard here and not found in the store yet: packs are written each half second, and dropped beyond a thousand pulses.
_MOST_HEARD: Final = 4096
_ENDLESS: Final = 1 << 63
_Place = tuple[int, int]
_Placed = tuple[_Place, Event]
_END: Final = (_ENDLESS, _ENDLESS)


class Source(Protocol):
    """Where events come from: the client."""

    @property
    def store(self) -> Store:
        """The opened store."""
        ...

    @property
    def pulses(self) -> PulseBuffer | None:
        """What tasks in this process stream, if any run here."""
        ...


class Following:
    """One reader of one task. `next` until `is_over`, then or before that `close`."""

    def __init__(self, source: Source, task_id: str, *, after: int) -> None:
        self.is_over = False
        self._source = source
        self._task_id = task_id
        self._after = self._seen = after
        self._row = 0
        self._held: list[_Placed] = []
        self._live: deque[Streamed] = deque(maxlen=_MOST_HEARD)
        self._told: dict[tuple[str, int], None] = {}
        self._buffer: PulseBuffer | None = None
        self._unsubscribe: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._must_read = True
        self._read_at = self._loop.time()
        self._unlisten = source.store.database.listen(lambda: self._wake(self._hint))

    async def next(self) -> list[Event]:
        """The next events, as soon as there are some; may be none."""
        await self._something_comes()
        if self._must_read:
            return await self._read()
        told = list(self._take_live(until=self._seen))
        if self._live:  # It was said after an event that is still to be read.
            self._must_read = True
        return [one for _, one in told]

    def close(self) -> None:
        """Hear no more. May be called twice."""
        self._unlisten()
        self._unsubscribe()

    # -- what is stored ---------------------------------------------------------------------

    async def _read(self) -> list[Event]:
        """One page of the store, with streamed events in their places."""
        store = self._source.store
        self._subscribe()
        self._must_read, self._read_at = False, self._loop.time()
        heard = list(self._take_live())
        # Read from the end backwards: a task that has ended has said all before, and what it said has its event.
        task = await aio.read(store, tasks.get, self._task_id)
        packs = await aio.read(
            store, events.pulses, self._task_id, after=self._after, after_row=self._row, limit=_PACKS_A_PAGE
        )
        feed = await aio.read(store, events.feed, self._task_id, after=self._seen, limit=_EVENTS_A_PAGE)
        until = _END
        if len(packs) == _PACKS_A_PAGE:  # What was heard after these comes after those of the next page.
            last = packs[-1]
            until = _place(last.after_seq, last.events[-1].get("n", _ENDLESS) if last.events else _ENDLESS)
        if len(feed) == _EVENTS_A_PAGE:
            until = min(until, _place(feed[-1].seq, _ENDLESS))
        told = [(place, one) for one in feed if (place := _place(one.seq)) <= until]
        self._held += [*told, *self._stored(packs), *heard]
        # By their numbers, too: the store may have got pulses that came after those which were heard before.
        self._held.sort(key=lambda placed: placed[0])
        ready = [one for place, one in self._held if place <= until]
        self._held = self._held[len(ready) :]
        self._seen = max([self._seen, *(one.seq for one in ready if one.is_structural)])
        if until < _END:
            self._must_read = True
        elif task.status.is_terminal and self._seen >= task.event_seq:
            self.is_over = True
        return ready

    def _stored(self, packs: list[events.StoredPulses]) -> Iterator[_Placed]:
        for pack in packs:
            self._row = pack.row
            for one in pack.events:
                if self._is_new(pack.execution_id, one.get("n")):
                    payload = one.get("payload", {})
                    event = Event.pulse(self._task_id, pack.after_seq, one["kind"], payload, one.get("at", pack.at))
                    yield _place(pack.after_seq, one.get("n", 0)), event

    # -- what is heard ----------------------------------------------------------------------

    def _subscribe(self) -> None:
        if (buffer := self._source.pulses) is self._buffer:
            return
        self._unsubscribe()
        self._buffer = buffer
        self._unsubscribe = _nothing if buffer is None else buffer.subscribe(self._task_id, self._hear)

    def _hear(self, streamed: Streamed) -> None:
        self._live.append(streamed)
        self._wake(self._woken.set)

    def _take_live(self, *, until: int = _ENDLESS) -> Iterator[_Placed]:
        while self._live and self._live[0].event.seq <= until:
            one = self._live.popleft()
            if one.event.seq >= self._after and self._is_new(one.execution_id, one.number):
                yield _place(one.event.seq, one.number), one.event

    def _is_new(self, execution_id: str, number: int | None) -> bool:
        """Whether a pulse was not told so far; each comes at most twice, from here and from the store."""
        if number is None:
            return True
        if (execution_id, number) in self._told:
            del self._told[execution_id, number]
            return False
        if self._buffer is not None:
            self._told[execution_id, number] = None
            if len(self._told) > _MOST_HEARD:
                del self._told[next(iter(self._told))]
        return True

    # -- waiting ----------------------------------------------------------------------------

    async def _something_comes(self) -> None:
        """Wait for a pulse or a hint, and for the time at which to read anyhow."""
        left_s = self._read_at + self._source.store.settings.poll_ms / 1000 - self._loop.time()
        if left_s <= 0:
            self._must_read = True
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                while not (self._live or self._must_read):
                    self._woken.clear()
                    await self._woken.wait()
                return
        self._must_read = True

    def _hint(self) -> None:
        self._must_read = True
        self._woken.set()

    def _wake(self, how: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody follows any more.
            self._loop.call_soon_threadsafe(how)


def _place(seq: int, number: int = -1) -> _Place:
    """Where an event stands: a pulse after the skeleton event that it came after, by its number."""
    return seq, number


def _nothing() -> None:
    return None
