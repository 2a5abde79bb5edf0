"""Events: the feed of a task, events of all tasks by time, and pulses."""

from __future__ import annotations

from perdure.store import events
from tests.world import World, packed

MAX = (1 << 63) - 1


def test_the_feed_goes_on_strictly_after_a_number(world: World) -> None:
    claim = world.start()
    for key in "abc":
        world.record(claim, key)
    whole = world.feed(claim.task.id)

    for after in range(len(whole) + 1):
        assert world.store.read(events.feed, claim.task.id, after=after) == whole[after:]
    paged, after = [], 0
    while page := world.store.read(events.feed, claim.task.id, after=after, limit=2):
        paged += page
        after = page[-1].seq
    assert paged == whole


def test_events_of_all_tasks_are_read_by_time_with_a_strict_cursor(world: World) -> None:
    began = world.clock.now_ms()
    for _ in range(3):
        world.start()
        world.clock.advance(10)
    everything = world.store.read(events.between, since_ms=began, until_ms=began + 1000)

    assert [event.kind for _, event in everything] == ["task_admitted", "task_started"] * 3
    middle = world.store.read(events.between, since_ms=began + 10, until_ms=began + 20)
    assert [event for _, event in middle] == [event for _, event in everything[2:4]]
    paged, cursor = [], None
    while page := world.store.read(events.between, since_ms=began, until_ms=began + 1000, cursor=cursor, limit=1):
        paged += page
        cursor = page[-1][0]
    assert paged == everything


def test_pulses_are_of_the_newest_attempt_and_a_repeated_pack_is_dropped(world: World) -> None:
    claim = world.start()
    pack = packed([{"kind": "ai_streaming", "text": "he"}]).blob

    def add(execution_id: str, number: int) -> None:
        world.store.call(
            events.add_pulses, claim.task.id, execution_id=execution_id, after_seq=3, number=number, packed=pack
        )

    add(claim.execution_id, 1)
    add(claim.execution_id, 1)
    add(claim.execution_id, 2)
    add("an earlier one", 1)

    found = world.store.read(events.pulses, claim.task.id, after=0)
    assert [(one.after_seq, list(one.events)) for one in found] == [(3, [{"kind": "ai_streaming", "text": "he"}])] * 2
    assert world.store.read(events.pulses, claim.task.id, after=4) == []
    assert world.task(claim.task.id).event_seq == 3

    world.complete(claim)
    assert world.store.read(events.pulses, claim.task.id, after=0) == found
