"""What is told of a deadline: when it will be, and how each task of a family ends once it has passed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure import deadlines, why
from perdure.clock import FakeClock, SeededIds
from perdure.commands import Commands
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Mode, Task, Wait, WaitKind, tail
from perdure.runtime.liveness import Judge
from perdure.settings import Settings
from perdure.states import TaskStatus
from perdure.store import MEMORY, ends, open_store, task_lists, tasks
from tests.world import World

PATIENCE_MS = int(Settings().deadline_grace_s * 1000)


@pytest.fixture
def world() -> Iterator[World]:
    clock = FakeClock()
    with open_store(MEMORY, clock=clock, ids=SeededIds(1)) as store:
        yield World(store, clock)


def told(world: World, task: Task) -> str:
    """How the task is said to end, without when the deadline passed and who must look."""
    late: str = world.store.read(deadlines.too_late, world.task(task.id), judge=Judge(), commands=Commands())
    return late.partition(" ago: ")[2].partition(",")[0]


def sweep(world: World) -> None:
    """End what is overdue as a worker does."""
    for task_id in world.store.read(task_lists.overdue, grace_ms=PATIENCE_MS):
        world.store.call(ends.time_out, task_id)


def family(world: World, *, own_ms: int | None = None, mode: Mode = Mode.FOREGROUND) -> tuple[Claim, Task, Task]:
    """A lead whose deadline is in 10 s, its child, and a child of that."""
    lead = world.start(deadline_ms=10_000)
    child = world.claim(world.spawn(lead, "child", mode=mode, deadline_ms=own_ms).id)
    below = world.spawn(child, "below")
    world.set_aside(child, Wait(WaitKind.CHILDREN, (below.id,)))
    return lead, child.task, below


def test_a_child_is_told_to_be_cancelled_with_the_task_that_times_out(world: World) -> None:
    lead, child, below = family(world)
    world.set_aside(lead, Wait(WaitKind.CHILDREN, (child.id,)))

    world.clock.advance(12_000)

    assert told(world, lead.task) == "it ends as timed out"
    assert told(world, child) == told(world, below) == f"it is cancelled with writer {tail(lead.task.id, (below.id,))}"
    sweep(world)
    ended = [world.task(one.id).status for one in (lead.task, child, below)]
    assert ended == [TaskStatus.TIMED_OUT, TaskStatus.CANCELLED, TaskStatus.CANCELLED]


@pytest.mark.parametrize("case", ["earlier", "held", "background"])
def test_a_child_whose_parent_does_not_end_before_it_is_told_to_time_out(world: World, case: str) -> None:
    """Its own deadline is earlier, its parent is held by an attempt with grace time, or nobody waits for it."""
    mode = Mode.BACKGROUND if case == "background" else Mode.FOREGROUND
    lead, child, below = family(world, own_ms=9_000 if case == "earlier" else None, mode=mode)
    if case != "held":
        world.set_aside(lead, Wait(WaitKind.CHILDREN, (child.id,)))

    world.clock.advance(12_000)

    assert told(world, child) == "it ends as timed out"
    assert told(world, below).startswith("it is cancelled with writer ")
    sweep(world)
    assert [world.task(one.id).status for one in (child, below)] == [TaskStatus.TIMED_OUT, TaskStatus.CANCELLED]


def test_once_the_grace_time_of_its_parent_is_over_a_child_is_told_to_be_cancelled_with_it(world: World) -> None:
    """The worker that holds the parent was killed: nobody has used the grace time, and the parent comes first again."""
    lead, child, below = family(world)

    world.clock.advance(10_000 + PATIENCE_MS - 1)
    within = told(world, child)
    world.clock.advance(1)

    assert within == "it ends as timed out"
    assert told(world, lead.task) == "it ends as timed out"
    assert told(world, child) == told(world, below) == f"it is cancelled with writer {tail(lead.task.id, (below.id,))}"
    sweep(world)
    ended = [world.task(one.id).status for one in (lead.task, child, below)]
    assert ended == [TaskStatus.TIMED_OUT, TaskStatus.CANCELLED, TaskStatus.CANCELLED]


def test_a_deadline_to_come_is_told_with_its_time(world: World) -> None:
    task, free = world.admit(deadline_ms=40_000), world.admit()
    now_ms = world.clock.now_ms()

    assert deadlines.coming(task, now_ms=now_ms).startswith("deadline is in 40 s, at ")
    assert [deadlines.coming(one, now_ms=now_ms + 40_000) for one in (task, free)] == ["", ""]


def test_a_worker_to_start_is_named_once_where_nobody_looks(world: World) -> None:
    claim = world.start(deadline_ms=10_000)
    asked = world.ask(claim, QuestionKind.ASK, text="which?")
    world.set_aside(claim, Wait(WaitKind.QUESTION, (asked.id,)))
    alone = world.admit(agent="nightly", deadline_ms=10_000)
    world.clock.advance(60_000)

    for task_id in (claim.task.id, alone.id):
        said = world.store.read(lambda tx, one: why.because(tx, tasks.get(tx, one)), task_id)
        assert said.startswith("its deadline passed 50 s ago: it ends as timed out")
        assert said.count("perdure worker") == 1
