"""The buffer of streamed events: bounded, packed, and never in anybody's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from perdure import codec
from perdure.clock import FakeClock
from perdure.model.event import Event, EventKind
from perdure.runtime.pulse import PULSE_LIMIT_BYTES, Dropped, Pack, PulseBuffer, Streamed


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
        {"at": 1_000, "kind": "ai_streaming", "n": 0, "payload": {"text": "a"}},
        {"at": 1_005, "kind": "ai_streaming", "n": 1, "payload": {"text": "b"}},
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


def test_who_comes_to_follow_is_told_first_what_is_not_known_to_be_stored() -> None:
    buffer = PulseBuffer()
    add(buffer, "stored")
    buffer.take(100)
    buffer.stored()
    add(buffer, "taken")
    buffer.take(100)
    add(buffer, "waiting")
    add(buffer, "of another", task="u")
    heard: list[Streamed] = []

    buffer.subscribe("t", heard.append)
    add(buffer, "new")

    assert [one.event.payload["text"] for one in heard] == ["taken", "waiting", "new"]
    assert [one.number for one in heard] == sorted(one.number for one in heard)


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
    seen: list[Streamed] = []
    stop = buffer.subscribe("t", seen.append)

    add(buffer, "a")
    add(buffer, "b", task="u")
    stop()
    stop()
    add(buffer, "c")

    assert seen == [Streamed("e", 0, Event.pulse("t", 3, "ai_streaming", {"text": "a"}, 5))]


def test_a_follower_also_gets_what_the_store_will_not() -> None:
    buffer = PulseBuffer(1)
    seen: list[Streamed] = []
    buffer.subscribe("t", seen.append)

    add(buffer, "x" * 100_000)
    add(buffer, "b")

    assert [one.event.payload["text"] for one in seen] == ["x" * 100_000, "b"]


def test_a_follower_that_raises_harms_neither_the_agent_nor_the_others() -> None:
    buffer = PulseBuffer()
    seen: list[Streamed] = []
    calls: list[Streamed] = []

    def broken(streamed: Streamed) -> None:
        calls.append(streamed)
        raise ValueError("my queue is full")

    buffer.subscribe("t", broken)
    buffer.subscribe("t", seen.append)

    add(buffer, "a")
    add(buffer, "b")

    assert len(calls) == 1
    assert len(seen) == 2
    assert len(buffer) == 2
