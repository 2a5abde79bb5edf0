"""Streamed events: bounded, packed, flushed, told about when lost, and never in anybody's way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import pytest

from perdure import codec
from perdure.clock import FakeClock
from perdure.errors import CommitUnknown, InvariantError, LeaseLost, StoreBusy
from perdure.model.event import Event, EventKind
from perdure.runtime.pulse import PULSE_LIMIT_BYTES, Dropped, Pack, PulseBuffer, PulseFlusher


def add(buffer: PulseBuffer, text: object, *, task: str = "t", execution: str = "e", after: int = 3) -> None:
    buffer.add(task, execution_id=execution, after_seq=after, kind=EventKind.AI_STREAMING, payload={"text": text})


def events(pack: Pack) -> list[dict[str, Any]]:
    """What the store's readers see, without any part to fetch."""
    value = codec.decode(codec.unpack(pack.packed, lambda _: pytest.fail("a pack needs a part")))
    assert isinstance(value, list)
    return value


def texts(packs: Sequence[Pack]) -> list[object]:
    return [event["payload"]["text"] for pack in packs for event in events(pack)]


# -- the buffer -----------------------------------------------------------------------------


def test_pulses_of_one_place_are_packed_into_one_row() -> None:
    clock = FakeClock(wall_ms=1_000)
    buffer = PulseBuffer(clock=clock)
    add(buffer, "a")
    clock.advance(5)
    add(buffer, "b")

    (pack,) = buffer.take(100)

    assert (pack.task_id, pack.execution_id, pack.after_seq, pack.count) == ("t", "e", 3, 2)
    assert events(pack) == [
        {"at": 1_000, "kind": "ai_streaming", "payload": {"text": "a"}},
        {"at": 1_005, "kind": "ai_streaming", "payload": {"text": "b"}},
    ]
    assert len(buffer) == 0


def test_another_place_attempt_or_task_makes_another_row_with_a_number_of_its_own() -> None:
    buffer = PulseBuffer()
    add(buffer, 1)
    add(buffer, 2, after=4)
    add(buffer, 3, after=4, execution="f")
    add(buffer, 4, task="u")
    first = buffer.take(100)
    add(buffer, 5)

    packs = first + buffer.take(100)

    assert [(pack.task_id, pack.execution_id, pack.after_seq) for pack in packs] == [
        ("t", "e", 3),
        ("t", "e", 4),
        ("t", "f", 4),
        ("u", "e", 3),
        ("t", "e", 3),
    ]
    assert len({pack.number for pack in packs}) == 5
    assert texts(packs) == [1, 2, 3, 4, 5]


def test_a_body_is_the_canonical_json_of_what_it_says() -> None:
    buffer = PulseBuffer(clock=FakeClock())
    add(buffer, 'quotes " and \x00 and \N{SNOWMAN}')

    (pack,) = buffer.take(1)

    assert pack.packed == codec.pack(codec.encode(events(pack))).blob


@pytest.mark.parametrize("size", [1, 250, 3_150, 3_250, 3_750, 100_000])
def test_no_pack_needs_parts_whatever_is_streamed(size: int) -> None:
    buffer = PulseBuffer()
    kind = "\x01" * 200
    noise = Random(7).randbytes(50_000).hex()  # Text that no compression makes small.
    for number in range(100):
        buffer.add("t", execution_id="e", after_seq=1, kind=kind, payload={"n": number, "text": noise[:size]})

    packs = buffer.take(100)

    seen = [event for pack in packs for event in events(pack)]
    assert len(seen) == 100
    assert {event["kind"] for event in seen} == {kind[:100]}
    assert size > PULSE_LIMIT_BYTES or [event["payload"]["n"] for event in seen] == list(range(100))


def test_a_value_without_encoding_is_marked_and_not_raised() -> None:
    buffer = PulseBuffer()

    add(buffer, object())

    (event,) = events(buffer.take(1)[0])
    assert "object" in json.dumps(event["payload"])


def test_a_full_buffer_drops_the_oldest_of_that_task_only() -> None:
    buffer = PulseBuffer(3)
    add(buffer, "other", task="u")
    for number in range(5):
        add(buffer, number, after=10 + number)

    assert len(buffer) == 4
    assert texts(buffer.take(100)) == ["other", 2, 3, 4]
    assert buffer.take_dropped() == (Dropped("t", "e", 2, 10, 11),)
    assert buffer.take_dropped() == ()


def test_losses_are_counted_for_each_attempt_and_merge_with_those_put_back() -> None:
    buffer = PulseBuffer(1)
    for after, execution in [(1, "e"), (2, "e"), (5, "f"), (6, "f")]:
        add(buffer, after, execution=execution, after=after)
    told = buffer.take_dropped()
    buffer.put_back(told)
    add(buffer, 7, execution="f", after=7)

    assert told == (Dropped("t", "e", 2, 1, 2), Dropped("t", "f", 1, 5, 5))
    assert buffer.take_dropped() == (Dropped("t", "e", 2, 1, 2), Dropped("t", "f", 2, 5, 6))


def test_a_loss_says_count_and_range() -> None:
    assert Dropped("t", "e", 2, 10, 11).payload == {"count": 2, "first_after_seq": 10, "last_after_seq": 11}


def test_a_task_that_floods_does_not_keep_the_others_waiting() -> None:
    buffer = PulseBuffer()
    for number in range(10):
        add(buffer, number, task="flood")
    add(buffer, "quiet", task="quiet")

    taken = [texts(buffer.take(4)) for _ in range(3)]

    assert taken == [[0, 1, 2, 3], ["quiet", 4, 5, 6], [7, 8, 9]]


def test_the_listener_is_rung_for_the_first_pulse_and_for_a_batch_and_not_by_a_full_buffer() -> None:
    buffer = PulseBuffer(3)
    rung_at: list[int] = []
    stop = buffer.listen(lambda: rung_at.append(len(buffer)), at=3)

    for number in range(10):
        add(buffer, number)
    stop()
    buffer.take(10)
    add(buffer, 0)

    assert rung_at == [1, 3]


def test_many_threads_lose_and_double_nothing() -> None:
    buffer = PulseBuffer(10_000)
    seen: list[object] = []

    def stream(thread: int) -> None:
        for number in range(500):
            add(buffer, [thread, number], task=f"t{thread % 2}")

    threads = [threading.Thread(target=stream, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.extend(texts(buffer.take(50)))
    seen.extend(texts(buffer.take(10_000)))

    assert len(buffer) == 0
    for name in range(4):
        own = [text for text in seen if isinstance(text, list) and text[0] == name]
        assert own == [[name, number] for number in range(500)]


# -- followers in the process ---------------------------------------------------------------


def test_a_follower_gets_each_pulse_of_its_task_at_once() -> None:
    buffer = PulseBuffer(clock=FakeClock(wall_ms=5))
    seen: list[Event] = []
    stop = buffer.subscribe("t", seen.append)

    add(buffer, "a")
    add(buffer, "b", task="u")
    stop()
    stop()
    add(buffer, "c")

    assert seen == [Event.pulse("t", 3, "ai_streaming", {"text": "a"}, 5)]


def test_a_follower_also_gets_what_the_store_will_not() -> None:
    buffer = PulseBuffer(1)
    seen: list[Event] = []
    buffer.subscribe("t", seen.append)

    add(buffer, "x" * 100_000)
    add(buffer, "b")

    assert [event.payload["text"] for event in seen] == ["x" * 100_000, "b"]


def test_a_follower_that_raises_harms_neither_the_agent_nor_the_others() -> None:
    buffer = PulseBuffer()
    seen: list[Event] = []
    calls: list[Event] = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise ValueError("my queue is full")

    buffer.subscribe("t", broken)
    buffer.subscribe("t", seen.append)

    add(buffer, "a")
    add(buffer, "b")

    assert len(calls) == 1
    assert len(seen) == 2
    assert len(buffer) == 2


# -- the flusher ----------------------------------------------------------------------------


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

    assert texts(rig.hands.written) == [0, 1, 2]
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
    assert texts(rig.hands.written) == [0, 1]


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

    assert texts(rig.hands.written) == [0, 1, 2]


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
    assert texts(rig.hands.written) == [0, 1, 2, 3]


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
    assert texts(rig.hands.written) == [0, 1, 2, *range(990, 1_000)]
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
    assert texts(rig.hands.written) == [0, 1]
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
    assert texts(rig.hands.written) == [0, 1, 2]


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
