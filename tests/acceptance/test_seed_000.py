"""The first system's resilience module, promise by promise: state that survives restarts, traces, tiers, safe SQL."""

from __future__ import annotations

from perdure.client import Client
from perdure.clock import FakeClock
from perdure.model.question import QuestionKind
from perdure.model.task import Lane, Usage
from perdure.policy.risk import Risk
from perdure.states import SessionStatus, TaskStatus
from perdure.store import Store, events, messages, task_lists, traces
from tests.contract.conftest import OpenSecond
from tests.nasty import FILTER_KEYS, TEXTS
from tests.world import World, done, ids, packed


def test_every_status_of_a_task_is_known() -> None:
    words = {"pending", "running", "completed", "failed", "interrupted", "idle", "swapped"}

    assert words <= {status.value for status in TaskStatus}


def test_every_status_of_a_session_is_known() -> None:
    assert {"active", "idle", "swapped"} <= {status.value for status in SessionStatus}


def test_a_task_carries_what_recovery_needs(world: World) -> None:
    # Settled differently: risk_level is called risk, checkpoint_data lies in checkpoints, of which the task names the
    # newest, and sequential or parallel is how a task runs its children. The lane says who waits for it.
    claim = world.start(risk="critical", lane=Lane.MAIN, execution="sequential")
    world.store.call(messages.save_checkpoint, claim.fence, packed({"page": 3}), step_key="save")

    task = world.task(claim.task.id)
    assert (task.risk, task.lane, task.execution, task.checkpoint) == ("critical", "main", "sequential", 1)
    (checkpoint,) = world.store.read(messages.checkpoints, task.id)
    assert checkpoint.state == b'{"page":3}'
    assert (task.task_id, task.trace_id) == (task.id, task.id)


async def test_the_data_of_a_checkpoint_is_seen_from_outside(world: World) -> None:
    claim = world.start()
    async with Client(store=world.store) as client:
        before = await client.task(claim.task.id).checkpoint_data()
        world.store.call(messages.save_checkpoint, claim.fence, packed({"page": 3}), step_key="save")
        after = await client.task(claim.task.id).checkpoint_data()

    assert (before, after) == (None, {"page": 3})


def test_there_are_four_risks() -> None:
    assert list(Risk) == ["low", "medium", "high", "critical"]


def test_all_state_survives_a_restart(world: World, open_second: OpenSecond) -> None:
    claim = world.start()
    world.record(claim, "a", done(usage=Usage(1, 2, 0.5)))
    world.ask(claim, QuestionKind.ASK)
    before = world.dump()
    second = open_second(world.store)
    world.store.close()

    reopened = World(second, world.clock)

    assert reopened.dump() == before
    reopened.record(claim, "b")  # the same execution goes on


def test_a_trace_holds_the_ordered_steps_of_one_task(world: World) -> None:
    one, other = world.start(), world.start()
    for key in ("a", "b"):
        world.record(one, key)
        world.record(other, f"other {key}")

    trace = world.store.read(traces.read, one.task.id)

    assert [step.key for step in trace.steps] == [None, "a", "b"]
    assert {step.task_id for step in trace.steps} == {one.task.id}


def test_tasks_are_looked_up_by_status(world: World) -> None:
    claim = world.start()
    waiting = world.admit()

    assert ids(world.store.read(task_lists.recent, status="running")) == [claim.task.id]
    assert ids(world.store.read(task_lists.recent, status="pending")) == [waiting.id]


def test_events_are_looked_up_by_time(world: World, clock: FakeClock) -> None:
    world.admit()
    clock.advance(1000)
    late = world.admit()

    found = world.store.read(events.between, since_ms=clock.now_ms(), until_ms=clock.now_ms() + 1)

    assert [event.task_id for _, event in found] == [late.id]


def test_the_schema_is_versioned(world: World) -> None:
    ((version, checksum, applied_at),) = world.rows("SELECT version, checksum, applied_at FROM schema_versions")

    assert (version, len(checksum)) == (1, 64)
    assert applied_at > 0


def test_a_count_that_overflows_stays_at_the_largest_integer(world: World) -> None:
    claim = world.start()

    world.record(claim, "a", done(usage=Usage(prompt_tokens=1 << 64)))
    world.record(claim, "b", done(usage=Usage(prompt_tokens=1 << 64)))

    assert world.task(claim.task.id).prompt_tokens == (1 << 63) - 1


def test_no_value_is_ever_read_as_sql(store: Store, world: World) -> None:
    for nasty in (*(text for text in TEXTS if 0 < len(text) < 100 and "\x00" not in text), *FILTER_KEYS[:7]):
        task = world.admit(key=nasty or None, tags={nasty: nasty}, metadata={nasty: nasty}, work=nasty)
        assert ids(store.read(task_lists.recent, agent=nasty)) == []
        assert store.read(task_lists.recent, session_id=nasty) == []
        assert world.task(task.id) == task

    assert len(world.dump()["tasks"]) >= 20
