"""Streamed events reach the store in time, once, and as far as it takes them; what is lost is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from perdure import codec
from perdure.errors import CommitUnknown, InvariantError, LeaseLost, StoreBusy
from perdure.runtime.pulse import Dropped, Pack, PulseBuffer, PulseFlusher


def add(buffer: PulseBuffer, number: int, *, task: str = "t", after: int = 3) -> None:
    buffer.add(task, execution_id="e", after_seq=after, kind="progress", payload={"number": number})


def numbers(packs: Sequence[Pack]) -> list[object]:
    read = (codec.decode(codec.unpack(pack.packed, lambda _: {})) for pack in packs)
    return [event["payload"]["number"] for events in read for event in events]  # type: ignore[attr-defined]  # arrays


class Hands:
    """A store that can fail, and a timer that fires when told; both say what was asked of them."""

    def __init__(self) -> None:
        self.written: list[Pack] = []
        self.tried: list[tuple[Pack, ...]] = []
        self.told: list[Dropped] = []
        self.error: Exception | None = None
        self.telling_error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self._changed = asyncio.Event()

    async def write(self, packs: Sequence[Pack]) -> None:
        self.tried.append(tuple(packs))
        self._changed.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.written.extend(packs)
        self._changed.set()

    async def tell(self, dropped: Dropped) -> None:
        if self.telling_error is not None:
            raise self.telling_error
        self.told.append(dropped)
        self._changed.set()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Hands:
        self.timers.append((delay_s, callback))
        self._changed.set()
        return self

    def cancel(self) -> None:
        self.timers.pop()
        self._changed.set()

    async def fire(self) -> None:
        """Wait until a timer runs, and let its time be over."""
        await self.until(lambda: bool(self.timers))
        self.timers[-1][1]()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), timeout=20)


class Rig:
    """A flusher with a batch of 3 and a buffer of 10 a task, running."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.buffer = PulseBuffer(10)
        self.flusher = PulseFlusher(
            self.buffer,
            write=self.hands.write,
            on_dropped=self.hands.tell,
            batch=3,
            flush_ms=500,
            call_later=self.hands.call_later,
        )
        self.task = asyncio.create_task(self.flusher.run())

    async def settle(self) -> None:
        """Let everything happen that can happen without time or the store moving."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.settle()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_a_full_batch_is_flushed_without_waiting(rig: Rig) -> None:
    for number in range(3):
        add(rig.buffer, number)

    await rig.hands.until(lambda: len(rig.hands.written) == 1)

    assert numbers(rig.hands.written) == [0, 1, 2]
    assert rig.hands.told == []


async def test_fewer_than_a_batch_wait_for_the_timer(rig: Rig) -> None:
    add(rig.buffer, 0)
    add(rig.buffer, 1)
    await rig.settle()
    before = list(rig.hands.tried)
    ((delay_s, _),) = rig.hands.timers

    await rig.hands.fire()
    await rig.hands.until(lambda: bool(rig.hands.written))

    assert before == []
    assert delay_s == 0.5
    assert numbers(rig.hands.written) == [0, 1]


async def test_an_idle_flusher_runs_no_timer(rig: Rig) -> None:
    add(rig.buffer, 0)
    await rig.hands.fire()
    await rig.hands.until(lambda: bool(rig.hands.written))

    await rig.settle()

    assert rig.hands.timers == []


async def test_a_pulse_from_a_thread_wakes_the_flusher(rig: Rig) -> None:
    def stream() -> None:
        for number in range(3):
            add(rig.buffer, number)

    # Makes the loop refuse whatever is not safe to do from another thread.
    asyncio.get_running_loop().set_debug(True)
    await asyncio.to_thread(stream)

    await rig.hands.until(lambda: bool(rig.hands.written))

    assert numbers(rig.hands.written) == [0, 1, 2]


@pytest.mark.parametrize("error", [StoreBusy("busy"), CommitUnknown("perhaps")], ids=["busy", "unknown"])
async def test_a_failed_flush_is_written_again_as_it_was(rig: Rig, error: Exception) -> None:
    rig.hands.error = error
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)
    add(rig.buffer, 3)
    rig.hands.error = None

    await rig.hands.fire()
    await rig.hands.until(lambda: len(rig.hands.tried) == 2)
    await rig.hands.fire()
    await rig.hands.until(lambda: len(rig.hands.written) == 2)

    # The same pack under the same number, so that a store which has it already drops it.
    assert rig.hands.tried[1] == rig.hands.tried[0]
    assert numbers(rig.hands.written) == [0, 1, 2, 3]


async def test_while_the_store_fails_it_is_asked_once_a_period_however_much_comes(rig: Rig) -> None:
    rig.hands.error = StoreBusy("busy")
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)

    for number in range(100):
        add(rig.buffer, number)
        await asyncio.sleep(0)
    await rig.settle()

    assert len(rig.hands.tried) == 1
    assert len(rig.buffer) == 10


async def test_a_write_that_hangs_stalls_no_agent_and_takes_no_memory(rig: Rig) -> None:
    rig.hands.gate = asyncio.Event()
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)

    for number in range(3, 1_000):
        add(rig.buffer, number)
    kept = len(rig.buffer)
    rig.hands.gate.set()
    await rig.hands.until(lambda: len(rig.hands.told) == 1)
    await rig.settle()

    assert kept == 10
    assert numbers(rig.hands.written) == [0, 1, 2, *range(990, 1_000)]
    assert rig.hands.told == [Dropped("t", "e", 987, 3, 3)]


async def test_a_loss_is_told_once_in_a_flush_after_its_pulses(rig: Rig) -> None:
    for number in range(25):
        add(rig.buffer, number, after=number)
    for number in range(12):
        add(rig.buffer, number, task="u")

    await rig.hands.until(lambda: len(rig.hands.told) == 2)
    await rig.settle()

    assert rig.hands.told == [Dropped("t", "e", 15, 0, 14), Dropped("u", "e", 2, 3, 3)]
    assert sum(pack.count for pack in rig.hands.written) == 20
    assert rig.hands.timers == []


async def test_a_loss_that_could_not_be_told_is_told_later_with_the_next(rig: Rig) -> None:
    rig.hands.telling_error = StoreBusy("busy")
    for number in range(12):
        add(rig.buffer, number)
    await rig.hands.until(lambda: bool(rig.hands.written))
    await rig.settle()
    for number in range(11):
        add(rig.buffer, number, after=9)
    rig.hands.telling_error = None

    await rig.hands.fire()
    await rig.hands.until(lambda: bool(rig.hands.told))
    await rig.settle()

    assert rig.hands.told == [Dropped("t", "e", 3, 3, 9)]


async def test_a_loss_that_could_not_be_told_is_told_even_if_nothing_more_is_streamed(rig: Rig) -> None:
    rig.hands.telling_error = StoreBusy("busy")
    for number in range(12):
        add(rig.buffer, number)
    await rig.hands.until(lambda: bool(rig.hands.written))
    await rig.settle()
    rig.hands.telling_error = None

    await rig.hands.fire()
    await rig.hands.until(lambda: bool(rig.hands.told))

    assert rig.hands.told == [Dropped("t", "e", 2, 3, 3)]


async def test_a_loss_of_an_attempt_that_has_ended_is_forgotten(rig: Rig) -> None:
    rig.hands.telling_error = LeaseLost("ended")
    for number in range(12):
        add(rig.buffer, number)
    await rig.hands.until(lambda: bool(rig.hands.written))
    await rig.settle()

    assert not rig.buffer.has_dropped()
    assert rig.hands.timers == []
    assert not rig.task.done()


async def test_closing_stores_what_is_there_and_ends_the_run(rig: Rig) -> None:
    add(rig.buffer, 0)
    add(rig.buffer, 1)

    left = await rig.flusher.close()

    assert left == 0
    assert numbers(rig.hands.written) == [0, 1]
    await asyncio.wait_for(rig.task, timeout=20)
    assert await rig.flusher.close() == 0


async def test_closing_waits_for_the_write_that_is_under_way(rig: Rig) -> None:
    rig.hands.gate = asyncio.Event()
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)

    closing = asyncio.create_task(rig.flusher.close())
    await rig.settle()
    was_done = closing.done()
    rig.hands.gate.set()

    assert await closing == 0
    assert not was_done
    assert len(rig.hands.tried) == 1


async def test_closing_says_how_much_a_broken_store_did_not_take(rig: Rig) -> None:
    rig.hands.error = StoreBusy("busy")
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)
    add(rig.buffer, 3)

    left = await rig.flusher.close()

    assert left == 4
    assert len(rig.hands.tried) == 2


async def test_a_cancelled_run_loses_nothing_that_close_can_still_store(rig: Rig) -> None:
    rig.hands.gate = asyncio.Event()
    for number in range(3):
        add(rig.buffer, number)
    await rig.hands.until(lambda: len(rig.hands.tried) == 1)

    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)
    rig.hands.gate = None
    left = await rig.flusher.close()

    assert left == 0
    assert rig.hands.tried[1] == rig.hands.tried[0]
    assert numbers(rig.hands.written) == [0, 1, 2]


async def test_an_error_that_is_no_store_error_reaches_the_owner(rig: Rig) -> None:
    rig.hands.error = ZeroDivisionError()
    for number in range(3):
        add(rig.buffer, number)

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(rig.task, timeout=20)


async def test_a_buffer_has_one_flusher(rig: Rig) -> None:
    second = PulseFlusher(rig.buffer, write=rig.hands.write, on_dropped=rig.hands.tell)

    with pytest.raises(InvariantError):
        await second.run()
