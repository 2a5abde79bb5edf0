"""Who may own a task: one owner at a time, the lowest rank that is due, only agents the worker has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from perdure.model.task import Claim, Lane
from perdure.policy.lanes import PRIORITY_STEP_MS, rank_ms
from perdure.store import Store, admission, tasks
from perdure.store.instances import Registration
from tests.contract.conftest import OpenSecond
from tests.world import BOOM, World, new_task, timer

TASKS = 200
THREADS = 4
HOUR_MS = 3_600_000


def test_every_way_back_to_pending_gives_the_rank_that_admission_gives_and_outlives_a_clock_set_back(
    world: World,
) -> None:
    def rank_fits(task_id: str) -> bool:
        task = world.task(task_id)
        return task.status == "pending" and task.rank == rank_ms(
            task.available_at or world.clock.now_ms(), task.priority
        )

    def wake(claim: Claim) -> None:
        world.set_aside(claim, *timer(world.clock.now_ms() + 10))
        world.clock.advance(10)
        world.store.call(tasks.wake, claim.task.id)

    def recover(claim: Claim) -> None:
        world.interrupt(claim)
        world.recover(claim.task.id)

    def retry(claim: Claim) -> None:
        world.store.call(tasks.retry, claim.fence, available_at=world.clock.now_ms() + 10, error=BOOM)

    ways: dict[str, Callable[[Claim], object]] = {
        "release": lambda one: world.store.call(tasks.release, one.fence, reason="stopping"),
        "retry": retry,
        "suspend": lambda one: world.set_aside(one, *timer(world.clock.now_ms())),
        "wake": wake,
        "recover": recover,
        "retry at once": lambda one: world.store.call(
            tasks.retry, one.fence, available_at=world.clock.now_ms(), error=BOOM
        ),
    }
    task = world.admit(priority=3)
    world.clock.jump(-HOUR_MS)
    claim = world.claim(task.id)
    for way, go in ways.items():
        go(claim)

        assert rank_fits(claim.task.id), way
        if way == "retry":
            world.clock.advance(10)
        else:
            world.clock.jump(-HOUR_MS)
        claim = world.claim(claim.task.id)


def test_a_claim_owns_the_task_under_a_new_execution_id(world: World) -> None:
    task = world.admit()

    (claim,) = world.claim_any()

    owned = world.task(task.id)
    assert (owned.status, owned.execution_id, owned.instance_id) == ("running", claim.execution_id, world.worker.id)
    assert (owned.generation, owned.attempt, owned.started_at) == (world.worker.generation, 1, world.clock.now_ms())
    assert claim.task == owned
    assert world.claim_any() == []


def test_a_claim_hands_over_what_the_task_was_asked_to_do(world: World) -> None:
    world.admit(work={"question": "why"}, tags={"team": "red"}, metadata={"n": [1]})

    (claim,) = world.claim_any()

    assert claim.input.prompt == b'{"question":"why"}'
    assert (claim.input.tags, claim.input.metadata, claim.input.context) == ({"team": "red"}, {"n": [1]}, None)


def test_a_claim_writes_the_first_record_of_the_trace(world: World) -> None:
    task = world.admit()

    world.claim(task.id)

    assert [(event.seq, event.kind) for event in world.feed(task.id)] == [
        (1, "task_admitted"),
        (2, "task_started"),
        (3, "turn_started"),
    ]
    assert world.task(task.id).step_count == 1


def test_attempts_are_numbered_from_one(world: World) -> None:
    task = world.admit()

    for _ in range(3):
        world.store.call(tasks.release, world.claim(task.id).fence, reason="test")
    world.claim(task.id)

    assert [(one.number, one.status) for one in world.attempts(task.id)] == [
        (1, "suspended"),
        (2, "suspended"),
        (3, "suspended"),
        (4, "running"),
    ]


def test_a_lane_gives_only_its_own_tasks(world: World) -> None:
    main = world.admit(lane=Lane.MAIN)
    background = world.admit(lane=Lane.SUBAGENT)

    assert [claim.task.id for claim in world.claim_any(lane=Lane.MAIN)] == [main.id]
    assert [claim.task.id for claim in world.claim_any(lane=Lane.SUBAGENT)] == [background.id]


def test_the_oldest_task_goes_first_and_priority_makes_one_older(world: World) -> None:
    old = world.admit()
    world.clock.advance(PRIORITY_STEP_MS - 1)
    young = world.admit()
    urgent = world.admit(priority=1)
    world.clock.advance(1)
    later = world.admit(priority=1)

    claimed = [claim.task.id for claim in world.claim_any()]

    # A point of priority is worth 30 s: `urgent` is 1 ms short of that older than `old`, `later` as old and after it.
    assert claimed == [urgent.id, old.id, later.id, young.id]


def test_a_task_is_not_claimed_before_it_is_due(world: World) -> None:
    task = world.admit(delay_ms=1000)

    world.clock.advance(999)
    assert world.claim_any() == []

    world.clock.advance(1)
    assert [claim.task.id for claim in world.claim_any()] == [task.id]


def test_a_worker_is_given_only_agents_it_has(world: World) -> None:
    other = world.admit(agent="painter")
    ours = world.admit()

    assert [claim.task.id for claim in world.claim_any()] == [ours.id]
    painter = world.new_worker(("painter", ""))
    assert [claim.task.id for claim in world.claim_any(worker=painter)] == [other.id]


@pytest.mark.parametrize(
    ("pinned", "has", "given"),
    [("", "", True), ("", "v2", True), ("v1", "v1", True), ("v1", "v2", False), ("v1", "", False)],
)
def test_a_pinned_version_is_given_only_to_a_worker_that_has_it(
    world: World, pinned: str, has: str, given: bool
) -> None:
    world.admit(version=pinned)
    worker = world.new_worker(("writer", has))

    assert bool(world.claim_any(worker=worker)) is given


def test_a_claim_takes_no_more_than_its_limit(world: World) -> None:
    for _ in range(3):
        world.admit()

    assert len(world.claim_any(limit=2)) == 2
    assert len(world.claim_any(limit=2)) == 1


def test_one_task_is_claimed_by_one_of_two_that_ask_for_it(world: World) -> None:
    task = world.admit()
    second = world.new_worker()
    world.claim(task.id)

    lost = world.store.call(tasks.claim_this, task.id, instance_id=second.id, generation=second.generation)

    assert lost is None


def test_threads_that_race_claim_each_task_once(world: World, request: pytest.FixtureRequest) -> None:
    world.store.call(admission.admit, [new_task(work=number) for number in range(TASKS)])
    stores = [world.store] * THREADS
    if world.store.database.url != "sqlite://":
        # Half of the threads are another process's, as far as the database can tell.
        open_second: OpenSecond = request.getfixturevalue("open_second")
        stores[THREADS // 2 :] = [open_second(world.store)] * (THREADS // 2)
    workers = [world.new_worker() for _ in range(THREADS)]
    claimed: list[list[str]] = [[] for _ in range(THREADS)]
    start = threading.Barrier(THREADS)

    def work(store: Store, worker: Registration, mine: list[str]) -> None:
        start.wait()
        while True:
            found = store.call(
                tasks.claim,
                lane=Lane.SUBAGENT,
                instance=worker.n,
                instance_id=worker.id,
                generation=worker.generation,
                limit=3,
            )
            if not found:
                return
            mine.extend(claim.task.id for claim in found)

    threads = [threading.Thread(target=work, args=args) for args in zip(stores, workers, claimed, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    counts = Counter(task_id for mine in claimed for task_id in mine)
    assert len(counts) == TASKS
    assert set(counts.values()) == {1}
    assert world.rows("SELECT count(*), count(DISTINCT task) FROM attempts") == [(TASKS, TASKS)]
