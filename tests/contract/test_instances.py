"""Instances: each start has a generation of its own, a heartbeat reconciles, and who is gone loses what it held."""

from __future__ import annotations

import threading

import pytest

from perdure.errors import LeaseLost, NotFound, StoreError
from perdure.model.instance import InstanceType
from perdure.store import instances
from tests.world import World


def test_every_start_takes_a_greater_generation(world: World) -> None:
    first, second = world.new_worker(), world.new_worker()

    assert (first.generation, second.generation) == (1, 2)
    assert world.store.read(instances.get, first.id).status == "starting"


def test_starts_at_once_take_generations_of_their_own(world: World) -> None:
    count = 16
    found: list[int] = []
    barrier = threading.Barrier(count)

    def start(number: int) -> None:
        barrier.wait()
        registered = world.store.call(
            instances.register,
            instance_id=f"w{number}",
            type=InstanceType.EXECUTOR,
            host="h",
            boot_id="b",
            pid=number,
            killable=False,
            agents=[("writer", ""), ("writer", "")],
        )
        found.append(registered.generation)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == list(range(1, count + 1))


def test_an_id_is_registered_once(world: World) -> None:
    world.new_worker()
    world._workers.clear()

    assert isinstance(world.unchanged_by(world.new_worker), StoreError)


def test_a_heartbeat_counts_up_and_makes_active(world: World) -> None:
    worker = world.new_worker()
    world.clock.advance(5000)

    beat = world.store.call(instances.beat, worker.id, generation=worker.generation, held=())

    instance = world.store.read(instances.get, worker.id)
    assert (beat.alive, beat.status, beat.owned) == (True, "active", ())
    assert (instance.heartbeat, instance.heartbeat_at, instance.status) == (2, world.clock.now_ms(), "active")


def test_a_heartbeat_learns_what_it_owns_and_loses_what_it_does_not_hold(world: World) -> None:
    worker = world.worker
    held, dropped = world.start(deadline_ms=1000), world.start()

    beat = world.store.call(
        instances.beat, worker.id, generation=worker.generation, held=[held.execution_id, "unknown"]
    )

    assert [(one.task_id, one.execution_id, one.deadline_at) for one in beat.owned] == [
        (held.task.id, held.execution_id, world.clock.now_ms() + 1000)
    ]
    assert world.task(held.task.id).status == "running"
    assert world.task(dropped.task.id).status == "interrupted"
    assert [one.task_id for one in world.store.read(instances.owned, generation=worker.generation)] == [held.task.id]


def test_a_heartbeat_touches_nobody_elses_work(world: World) -> None:
    mine, other = world.new_worker(), world.new_worker()
    claim = world.start(worker=other)

    world.store.call(instances.beat, mine.id, generation=mine.generation, held=())

    assert world.task(claim.task.id).status == "running"


@pytest.mark.parametrize("end", ["crash", "stop"])
def test_who_was_taken_for_dead_learns_it_and_stays_so(world: World, end: str) -> None:
    worker = world.worker
    if end == "crash":
        world.store.call(instances.mark_crashed, worker.id, heartbeat=1)
    else:
        world.store.call(instances.mark_stopped, worker.id)
    claim = world.start()

    beat = world.unchanged_by(
        world.store.call, instances.beat, worker.id, generation=worker.generation, held=[claim.execution_id]
    )

    assert beat == instances.Beat(False, "crashed" if end == "crash" else "stopped", ())


def test_who_has_beaten_since_it_was_looked_at_is_not_taken_for_dead(world: World) -> None:
    worker = world.worker
    seen = world.store.read(instances.get, worker.id).heartbeat
    world.store.call(instances.beat, worker.id, generation=worker.generation, held=())

    assert world.unchanged_by(world.store.call, instances.mark_crashed, worker.id, heartbeat=seen) is False
    assert world.store.call(instances.mark_crashed, worker.id, heartbeat=seen + 1) is True


def test_stopping_twice_is_the_same_as_once(world: World) -> None:
    worker = world.worker

    assert world.store.call(instances.mark_stopped, worker.id) is True
    assert world.store.read(instances.get, worker.id).stopped_at == world.clock.now_ms()
    assert world.unchanged_by(world.store.call, instances.mark_stopped, worker.id) is False


@pytest.mark.parametrize("stopped", [True, False])
def test_the_attempts_of_who_is_gone_end_and_a_second_pass_finds_none(world: World, stopped: bool) -> None:
    claims = [world.start() for _ in range(3)]
    if stopped:
        world.store.call(instances.mark_stopped, world.worker.id)
        ended = world.store.call(instances.interrupt_orphans)
    else:
        ended = world.crash(world.worker)

    assert sorted(ended) == sorted(claim.task.id for claim in claims)
    assert {world.task(task_id).status for task_id in ended} == {"interrupted"}
    assert world.unchanged_by(world.store.call, instances.interrupt_orphans) == []


def test_orphans_are_ended_in_bounded_passes(world: World) -> None:
    for _ in range(5):
        world.start()
    world.store.call(instances.mark_stopped, world.worker.id)

    passes = [len(world.store.call(instances.interrupt_orphans, limit=2)) for _ in range(4)]

    assert passes == [2, 2, 1, 0]


def test_the_living_the_silent_and_all_are_listed(world: World) -> None:
    alive, silent, stopped = world.new_worker(), world.new_worker(), world.new_worker()
    world.store.call(instances.mark_crashed, silent.id, heartbeat=1)
    world.store.call(instances.mark_stopped, stopped.id)

    assert [one.id for one in world.store.read(instances.alive)] == [alive.id]
    assert [one.id for one in world.store.read(instances.crashed, host="host", boot_id="")] == [silent.id]
    assert [one.id for one in world.store.read(instances.listing)] == [stopped.id, silent.id, alive.id]


def test_the_silent_are_those_of_one_machine_page_by_page(world: World) -> None:
    silent = [world.new_worker() for _ in range(4)]
    for one in silent:
        world.store.call(instances.mark_crashed, one.id, heartbeat=1)
    world.execute("UPDATE instances SET host = 'other', boot_id = 'other' WHERE id = :id", id=silent[0].id)
    world.execute("UPDATE instances SET host = 'renamed' WHERE id = :id", id=silent[1].id)

    here = world.store.read(instances.crashed, host="host", boot_id="boot", limit=2)
    more = world.store.read(instances.crashed, host="host", boot_id="boot", limit=2, skip=2)

    assert [one.id for one in [*here, *more]] == [one.id for one in silent[1:]]


def test_who_could_run_an_agent_last_is_known(world: World) -> None:
    assert world.store.read(instances.last_with_agent, "writer", "") is None
    gone = world.new_worker()
    world.store.call(instances.mark_stopped, gone.id)
    assert world.store.read(instances.last_with_agent, "writer", "") == ("host", world.clock.now_ms())

    here = world.new_worker(("writer", "9"))

    assert [one.id for one in world.store.read(instances.alive_with_agent, "writer", "")] == [here.id]
    assert world.store.read(instances.alive_with_agent, "writer", "10") == []
    assert world.store.read(instances.last_with_agent, "writer", "") == ("host", world.clock.now_ms())
    assert world.store.read(instances.last_with_agent, "writer", "9") == ("host", world.clock.now_ms())
    assert world.store.read(instances.last_with_agent, "writer", "10") is None


def test_an_unknown_instance_is_said_to_be_unknown(world: World) -> None:
    with pytest.raises(NotFound):
        world.store.read(instances.get, "nobody")
    with pytest.raises(NotFound):
        world.store.call(instances.beat, "nobody", generation=1, held=())


def test_expiry_makes_an_owner_takeable_and_not_mute(world: World) -> None:
    claim = world.start()
    world.store.call(instances.mark_crashed, world.worker.id, heartbeat=1)

    world.record(claim, "late but nobody has taken over")

    world.store.call(instances.interrupt_orphans)
    outcome = world.unchanged_by(world.record, claim, "too late")
    assert isinstance(outcome, LeaseLost)
