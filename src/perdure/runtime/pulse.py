"""Streamed events on their way to followers: at once in this process, in packs to the store, dropped when they must be.

Adding one never waits for the disk. What a slow or broken store cannot take is dropped, oldest first, and one durable
event says how much. Nothing here opens a transaction: the worker gives the two writes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from perdure import codec, phrases
from perdure.clock import Clock, SystemClock
from perdure.errors import IllegalTransition, InvariantError, LeaseLost, NotFound, StoreError
from perdure.model.event import Event

log = logging.getLogger(__name__)


class Streamed(NamedTuple):
    """One pulse as followers in this process get it. `number` is never given twice, so that they know it again when
    they find it in the store, where it stands as `n`.
    """

    execution_id: str
    number: int
    event: Event


Follow = Callable[[Streamed], object]

# A pack below 4 KB lies whole in its row; a larger one would be cut into shared parts that nothing ever shares.
PACK_LIMIT_BYTES: Final = 4000
PULSE_LIMIT_BYTES: Final = 3200
_KIND_LIMIT: Final = 100
_MOST_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Pack:
    """Pulses of one attempt that came after one skeleton event, as one row.

    `packed` is the column: an array of objects with at, kind, n and payload. `number` is that of its first pulse, so
    that a repeated write of the same pack is recognised.
    """

    task_id: str
    execution_id: str
    after_seq: int
    number: int
    packed: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Pulses of one attempt that were never stored: how many, and the skeleton events that the lost ones came after."""

    task_id: str
    execution_id: str
    count: int
    first_after_seq: int
    last_after_seq: int

    @property
    def payload(self) -> dict[str, int]:
        """What the skeleton event `pulses_dropped` says."""
        return {"count": self.count, "first_after_seq": self.first_after_seq, "last_after_seq": self.last_after_seq}

    def merge(self, other: Dropped) -> Dropped:
        """Both losses of the same attempt as one."""
        return Dropped(
            self.task_id,
            self.execution_id,
            self.count + other.count,
            min(self.first_after_seq, other.first_after_seq),
            max(self.last_after_seq, other.last_after_seq),
        )


class PulseBuffer:
    """Pulses that wait for the next flush, at most `limit_per_task` of each task. Safe from any thread."""

    def __init__(self, limit_per_task: int = 1000, *, clock: Clock | None = None) -> None:
        self._limit_per_task = limit_per_task
        self._clock: Clock = clock or SystemClock()
        # Held while followers are told, too, so that whoever comes meanwhile misses nothing; they may leave in it.
        self._mutex = threading.RLock()
        self._taken: dict[str, list[_Pulse]] = {}  # taken for the store, and not known to be there
        self._waiting: dict[str, deque[_Pulse]] = {}
        self._count = 0
        self._dropped: dict[tuple[str, str], Dropped] = {}
        self._followers: dict[str, tuple[_Follower, ...]] = {}
        self._ring: Callable[[], None] | None = None
        self._ring_at = 0
        # One count for all attempts: an attempt lives in one process, so its pulses get numbers of their own.
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._count

    def add(self, task_id: str, *, execution_id: str, after_seq: int, kind: str, payload: Mapping[str, object]) -> None:
        """Hand a pulse to the followers in this process and keep it for the store. Never waits for either.

        A full buffer drops the task's oldest pulse and counts it. What has no encoding, or is larger than
        PULSE_LIMIT_BYTES, is stored as a mark that says so; followers here get it whole. Raises nothing.
        """
        at = self._clock.now_ms()
        number = next(self._numbers)
        pulse = _Pulse(execution_id, after_seq, number, _encode(at, kind, number, payload))
        with self._mutex:
            if followers := self._followers.get(task_id, ()):
                streamed = Streamed(execution_id, number, Event.pulse(task_id, after_seq, kind, dict(payload), at))
                for follower in followers:  # Before it can be stored: then no follower finds it there first.
                    self._hand_over(follower, streamed)
            waiting = self._waiting.setdefault(task_id, deque())
            if is_full := len(waiting) >= self._limit_per_task:
                self._drop(task_id, waiting.popleft())
            waiting.append(pulse)
            self._count += 1
            # A full buffer keeps its level, and must not ring for each pulse while the store is down.
            ring = self._ring if self._count in (1, self._ring_at) and not is_full else None
        if ring is not None:
            ring()

    def subscribe(self, task_id: str, callback: Follow) -> Callable[[], None]:
        """Call `callback` with each pulse of a task, at once and in the thread that adds it; returns how to stop.

        It gets first, as they will be stored, those that are not known to be in the store: they come before all others.
        It must return at once and bound what it keeps. One that raises is logged and not called again.
        """
        follower = _Follower(task_id, callback)
        with self._mutex:
            self._followers[task_id] = (*self._followers.get(task_id, ()), follower)
            for pulse in (*self._taken.get(task_id, ()), *self._waiting.get(task_id, ())):
                self._hand_over(follower, _as_streamed(task_id, pulse))
        return lambda: self._forget(follower)

    def take(self, most: int) -> tuple[Pack, ...]:
        """Take out up to `most` pulses, packed, each task's in order. No task makes the others wait for long.

        Until `stored` is called, or more are taken, who comes to follow them is told them from here.
        """
        packs: list[Pack] = []
        with self._mutex:
            self._taken = {}
            while most > 0 and self._waiting:
                task_id = next(iter(self._waiting))
                waiting = self._waiting.pop(task_id)
                taken = [waiting.popleft() for _ in range(min(most, len(waiting)))]
                most -= len(taken)
                self._count -= len(taken)
                self._taken[task_id] = [*self._taken.get(task_id, ()), *taken]
                if waiting:
                    self._waiting[task_id] = waiting  # Behind the others.
                packs.extend(self._pack(task_id, taken))
        return tuple(packs)

    def stored(self) -> None:
        """What was taken is in the store, where followers find it."""
        with self._mutex:
            self._taken = {}

    def take_dropped(self) -> tuple[Dropped, ...]:
        """Take out what was dropped since the last time: one for each attempt."""
        with self._mutex:
            dropped, self._dropped = self._dropped, {}
        return tuple(dropped.values())

    def put_back(self, dropped: Sequence[Dropped]) -> None:
        """Losses that could not be told yet; told with the next ones."""
        with self._mutex:
            for loss in dropped:
                self._count_loss(loss)

    def holds(self, task_id: str) -> bool:
        """Whether pulses of a task wait here."""
        with self._mutex:
            return task_id in self._waiting

    def has_dropped(self) -> bool:
        """Whether a loss waits to be told."""
        return bool(self._dropped)

    def listen(self, ring: Callable[[], None], *, at: int) -> Callable[[], None]:
        """Call `ring` when the first pulse comes in and when `at` of them wait, from any thread; returns how to stop.

        Meant for one listener, the flusher.
        """
        with self._mutex:
            if self._ring is not None:
                raise InvariantError("a flusher listens to this buffer already; one buffer has one flusher")
            self._ring, self._ring_at = ring, at
        return self._stop_ringing

    def _stop_ringing(self) -> None:
        with self._mutex:
            self._ring = None

    def _drop(self, task_id: str, pulse: _Pulse) -> None:
        self._count -= 1
        self._count_loss(Dropped(task_id, pulse.execution_id, 1, pulse.after_seq, pulse.after_seq))

    def _count_loss(self, loss: Dropped) -> None:
        key = (loss.task_id, loss.execution_id)
        known = self._dropped.get(key)
        self._dropped[key] = loss if known is None else known.merge(loss)

    def _pack(self, task_id: str, pulses: Sequence[_Pulse]) -> Iterator[Pack]:
        for (execution_id, after_seq), group in itertools.groupby(pulses, _place):
            for portion in _portions(group):
                packed = codec.pack(b"[" + b",".join([pulse.body for pulse in portion]) + b"]")
                assert not packed.parts, "a pack is small enough to lie whole in its row"
                yield Pack(task_id, execution_id, after_seq, portion[0].number, packed.blob, len(portion))

    def _hand_over(self, follower: _Follower, streamed: Streamed) -> None:
        try:
            follower.callback(streamed)
        except Exception:
            # The agent that streams must not fail for a reader's mistake, nor the other readers.
            log.exception("a follower of pulses raised; it gets no more", extra={"task_id": follower.task_id})
            self._forget(follower)

    def _forget(self, follower: _Follower) -> None:
        with self._mutex:
            left = tuple(one for one in self._followers.get(follower.task_id, ()) if one is not follower)
            if left:
                self._followers[follower.task_id] = left
            else:
                self._followers.pop(follower.task_id, None)


class Timer(Protocol):
    """What `loop.call_later` gives."""

    def cancel(self) -> object:
        """Do not call any more."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class PulseFlusher:
    """Brings a buffer's pulses to the store: when `batch` of them wait, or `flush_ms` after the first came.

    `write` stores packs, `on_dropped` writes the one skeleton event that tells of an attempt's losses; both raise
    StoreError when they could not. Then the packs are kept as they are and written again after `flush_ms`, and until
    that has worked no others are taken, so that memory stays bounded. Belongs to one event loop.
    """

    def __init__(
        self,
        buffer: PulseBuffer,
        *,
        write: Callable[[Sequence[Pack]], Awaitable[None]],
        on_dropped: Callable[[Dropped], Awaitable[None]],
        batch: int = 50,
        flush_ms: float = 500,
        call_later: CallLater | None = None,
    ) -> None:
        self._buffer = buffer
        self._write = write
        self._on_dropped = on_dropped
        self._batch = batch
        self._flush_s = flush_ms / 1000
        self._call_later = call_later
        self._unwritten: tuple[Pack, ...] = ()
        self._writing = asyncio.Lock()
        self._is_failing = False
        self._is_closing = False
        self._woken = asyncio.Event()
        self._ended: asyncio.Event | None = None

    async def run(self) -> None:
        """Flush until closed. Cancelling it loses nothing: `close` stores what is left.

        Raises what the two writes raise, except StoreError.
        """
        loop = asyncio.get_running_loop()
        stop_listening = self._buffer.listen(lambda: _wake(loop, self._woken), at=self._batch)
        self._ended = asyncio.Event()
        try:
            while not self._is_closing:
                await self._wait_for_work()
                await self._wait_until_due(self._call_later or loop.call_later)
                if not self._is_closing:
                    await self._flush()
        finally:
            stop_listening()
            self._ended.set()

    async def until_stored(self, task_id: str) -> None:
        """Store what a task has streamed so far, unless the store fails: what its owner writes next comes after it."""
        if not self._is_failing and (self._buffer.holds(task_id) or self._unwritten):
            await self._flush()

    async def close(self) -> int:
        """End `run` and store what is there; returns how many pulses could not be stored. May be called twice.

        A store that fails is not asked again. The caller bounds the time of its own writes.
        """
        self._is_closing = True
        self._woken.set()
        if self._ended is not None:
            await self._ended.wait()
        # Agents may go on streaming meanwhile, so the number of rounds is fixed now.
        for _ in range(len(self._buffer) // _MOST_AT_ONCE + 2):
            if not await self._flush():
                break
        left = len(self._buffer) + sum(pack.count for pack in self._unwritten)
        if left:
            log.warning("%s could not be stored", phrases.count(left, "streamed event"))
        return left

    async def _wait_for_work(self) -> None:
        # Between the question and the clearing nothing of this loop runs, and other threads set through the loop.
        while not (self._is_closing or self._unwritten or len(self._buffer) or self._buffer.has_dropped()):
            self._woken.clear()
            await self._woken.wait()

    async def _wait_until_due(self, call_later: CallLater) -> None:
        timer_fired = False

        def fire() -> None:
            nonlocal timer_fired
            timer_fired = True
            self._woken.set()

        timer = call_later(self._flush_s, fire)
        try:
            while not (self._is_closing or timer_fired):
                if len(self._buffer) >= self._batch and not self._is_failing:
                    return
                self._woken.clear()
                await self._woken.wait()
        finally:
            timer.cancel()

    async def _flush(self) -> bool:
        async with self._writing:
            return await self._write_all()

    async def _write_all(self) -> bool:
        if not self._unwritten:
            self._unwritten = self._buffer.take(max(self._batch, _MOST_AT_ONCE))
        try:
            if self._unwritten:
                await self._write(self._unwritten)
                self._unwritten = ()
                self._buffer.stored()
            await self._tell_losses()
        except StoreError as error:
            if not self._is_failing:
                log.warning("streamed events wait for the store: %s", error, extra={"packs": len(self._unwritten)})
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def _tell_losses(self) -> None:
        dropped = self._buffer.take_dropped()
        for index, loss in enumerate(dropped):
            try:
                await self._on_dropped(loss)
            except (LeaseLost, NotFound, IllegalTransition):
                continue  # The attempt is over, and with it its stream: nobody misses these pulses.
            except StoreError:
                self._buffer.put_back(dropped[index:])
                raise


@dataclass(frozen=True, slots=True)
class _Pulse:
    execution_id: str
    after_seq: int
    number: int
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class _Follower:
    task_id: str
    callback: Follow


def _as_streamed(task_id: str, pulse: _Pulse) -> Streamed:
    kept: Any = codec.decode(pulse.body)
    event = Event.pulse(task_id, pulse.after_seq, kept["kind"], kept["payload"], kept["at"])
    return Streamed(pulse.execution_id, pulse.number, event)


def _place(pulse: _Pulse) -> tuple[str, int]:
    return pulse.execution_id, pulse.after_seq


def _encode(at: int, kind: str, number: int, payload: Mapping[str, object]) -> bytes:
    # The payload apart from the rest, so that one that is too big does not take its kind along.
    body = codec.evidence(payload, limit=PULSE_LIMIT_BYTES)
    return b'{"at":%d,"kind":%b,"n":%d,"payload":%b}' % (at, codec.evidence(kind[:_KIND_LIMIT]), number, body)


def _portions(pulses: Iterator[_Pulse]) -> Iterator[list[_Pulse]]:
    """The pulses in runs that fit into one pack."""
    portion: list[_Pulse] = []
    size_bytes = 2
    for pulse in pulses:
        if portion and size_bytes + len(pulse.body) + 1 > PACK_LIMIT_BYTES:
            yield portion
            portion, size_bytes = [], 2
        portion.append(pulse)
        size_bytes += len(pulse.body) + 1
    if portion:
        yield portion


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(woken.set)
    except RuntimeError:
        return  # The loop is closed: nobody flushes any more, and the buffer stays bounded.
