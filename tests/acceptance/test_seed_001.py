"""The second system's core types and decisions, under its own names."""

from __future__ import annotations

import pytest

from perdure.model.event import PULSE_KINDS, Event
from perdure.model.step import Note
from perdure.model.task import Lane, Mode
from perdure.policy.recovery import Verdict
from perdure.policy.risk import Risk, needs_resume_confirmation, should_auto_resume
from perdure.states import TASK, TaskStatus
from perdure.store import events, messages, steps, task_lists, traces
from tests.world import World, done, new_task, packed

# -- events ----------------------------------------------------------------------------------


def test_the_kinds_of_events_have_their_words() -> None:
    assert Event.TYPE_TASK_STARTED == "task_started"
    assert Event.TYPE_TOOL_CALL_STARTED == "tool_call_started"
    assert Event.TYPE_TOOL_CALL_COMPLETED == "tool_call_completed"
    assert Event.TYPE_ARTIFACT_CREATED == "artifact_created"
    assert Event.TYPE_TASK_COMPLETED == "task_completed"
    assert Event.TYPE_TASK_FAILED == "task_failed"
    assert Event.TYPE_AI_STREAMING == "ai_streaming"


def test_structural_and_pulse_events_are_told_apart() -> None:
    structural = Event.structural("t", 1, Event.TYPE_TASK_STARTED, {})
    pulse = Event.pulse("t", 1, Event.TYPE_AI_STREAMING, {"text": "he"})

    assert structural.is_structural
    assert not pulse.is_structural
    assert Event.TYPE_AI_STREAMING in PULSE_KINDS
    assert Event.TYPE_TASK_STARTED not in PULSE_KINDS


def test_structural_events_are_stored_in_the_order_of_their_seq(world: World) -> None:
    claim = world.start()
    world.record(claim, "a")
    world.store.call(messages.emit_owned, claim.fence, Event.TYPE_ARTIFACT_CREATED, {"name": "report"})
    world.complete(claim)

    feed = world.feed(claim.task.id)

    assert all(event.is_structural and event.task_id == claim.task.id for event in feed)
    assert [event.seq for event in feed] == list(range(1, len(feed) + 1))
    kinds = [event.kind for event in feed]
    for kind in (
        Event.TYPE_TASK_STARTED,
        Event.TYPE_TOOL_CALL_STARTED,
        Event.TYPE_TOOL_CALL_COMPLETED,
        Event.TYPE_ARTIFACT_CREATED,
        Event.TYPE_TASK_COMPLETED,
    ):
        assert kinds.count(kind) == 1
    failed = world.start()
    world.fail(failed)
    assert world.kinds(failed.task.id)[-1] == Event.TYPE_TASK_FAILED


def test_pulses_can_be_dropped_without_affecting_the_task(world: World) -> None:
    claim = world.start()
    pack = packed([{"text": "he"}]).blob
    world.store.call(
        events.add_pulses, claim.task.id, execution_id=claim.execution_id, after_seq=3, number=1, packed=pack
    )
    before = world.task(claim.task.id), world.feed(claim.task.id)

    world.execute("DELETE FROM pulses")

    assert (world.task(claim.task.id), world.feed(claim.task.id)) == before
    world.complete(claim)


# -- tasks -----------------------------------------------------------------------------------


def test_a_new_task_is_pending_and_in_the_subagent_lane(world: World) -> None:
    task = world.admit()

    assert (task.status, task.lane) == (TaskStatus.PENDING, Lane.SUBAGENT)
    assert (task.started_at, task.finished_at, task.parent_task_id, task.last_tool_call_id) == (None,) * 4
    # Settled differently: a task without a parent has depth 1, and created_at is integer milliseconds.
    assert (task.depth, task.created_at, task.updated_at) == (1, world.clock.now_ms(), world.clock.now_ms())


def test_with_lane_changes_the_lane_alone() -> None:
    new = new_task()

    main = new.with_lane(Lane.MAIN)

    assert (main.lane, new.lane) == (Lane.MAIN, Lane.SUBAGENT)
    assert main.with_lane(Lane.SUBAGENT) == new


def test_with_parent_task_hangs_it_below_its_parent(world: World) -> None:
    now = world.clock.now_ms()
    parent = world.admit(lane=Lane.MAIN, deadline_ms=1000)

    child = new_task(deadline_at=now + 5000).with_parent_task(parent)
    apart = new_task(mode=Mode.BACKGROUND).with_parent_task(parent)

    assert (child.lane, child.deadline_at) == (Lane.MAIN, now + 1000)
    assert (apart.lane, apart.deadline_at) == (Lane.SUBAGENT, now + 1000)


def test_recursion_depth_is_one_more_than_the_parents(world: World) -> None:
    claim = world.start()
    for depth in (2, 3, 4):
        child = world.spawn(claim, "child")
        assert child.depth == claim.task.child_depth == depth
        claim = world.claim(child.id)


def test_only_running_and_interrupted_are_recoverable() -> None:
    assert {status for status in TaskStatus if status.is_recoverable} == {TaskStatus.RUNNING, TaskStatus.INTERRUPTED}


def test_a_task_says_itself_whether_it_is_recoverable(world: World) -> None:
    claim = world.start()
    assert world.task(claim.task.id).is_recoverable

    world.complete(claim)

    assert not world.task(claim.task.id).is_recoverable


def test_only_low_resumes_by_itself_and_every_other_risk_needs_a_yes() -> None:
    # Settled differently: there are four risks; of two, only high needed a yes.
    assert [should_auto_resume(risk) for risk in Risk] == [True, False, False, False]
    assert [needs_resume_confirmation(risk) for risk in Risk] == [False, True, True, True]


def test_the_drawn_machine_is_part_of_ours() -> None:
    drawn = {
        ("pending", "running"),
        ("running", "interrupted"),
        ("running", "completed"),
        ("running", "failed"),
    }

    assert drawn <= TASK.moves
    assert {"completed", "failed"} <= set(TASK.terminal)
    # Settled differently: what was interrupted can be recovered, so it is not the end of a task.
    assert "interrupted" not in TASK.terminal


def test_main_work_is_claimed_past_any_amount_of_subagent_work(world: World) -> None:
    for _ in range(20):
        world.admit()
    world.clock.advance(60_000)
    main = world.admit(lane=Lane.MAIN)

    assert [claim.task.id for claim in world.claim_any(lane=Lane.MAIN, limit=1)] == [main.id]


# -- traces ----------------------------------------------------------------------------------


def test_steps_are_counted_from_zero_and_carry_a_stable_kind(world: World) -> None:
    claim = world.start()
    world.record(claim, "a")
    world.store.call(steps.note, claim.fence, [Note("reasoning", b'"so"')], risk_seen="low")

    trace = world.store.read(traces.read, claim.task.id).steps

    assert [(step.step_index, step.event_kind) for step in trace] == [
        (0, "turn_started"),
        (1, "tool_call"),
        (2, "reasoning"),
    ]
    assert all(step.timestamp == world.clock.now_ms() for step in trace)


def test_a_record_may_be_stamped_with_another_time(world: World) -> None:
    claim = world.start()

    world.record(claim, "a", done(notes=[Note("text_emitted", b'"x"', timestamp_ms=5)]))

    assert world.store.read(traces.read, claim.task.id).steps[-1].timestamp == 5


# -- the decision ----------------------------------------------------------------------------


def test_without_traces_it_is_skipped(world: World) -> None:
    claim = world.start()
    world.execute("DELETE FROM steps")
    world.interrupt(claim)

    found = world.recover(claim.task.id)

    assert found is not None
    assert found.decision.verdict is Verdict.SKIP
    assert "no execution traces available" in found.decision.reasons[0]


def test_low_risk_resumes_by_itself(world: World) -> None:
    claim = world.start(risk="low")
    world.record(claim, "read the file")
    world.interrupt(claim)

    found = world.recover(claim.task.id)

    assert found is not None
    assert found.decision.verdict is Verdict.AUTO_RESUME
    assert world.task(claim.task.id).status == "pending"


@pytest.mark.parametrize("risk", ["high", "critical"])
def test_high_risk_waits_for_a_persons_approval(world: World, risk: str) -> None:
    # Settled differently: the risk that an agent declares asks; a call's own risk asks only while it is in doubt.
    claim = world.start(risk=risk)
    world.record(claim, "write the file")
    world.interrupt(claim)

    found = world.recover(claim.task.id)

    assert found is not None
    assert (found.decision.verdict, found.question_id) == (Verdict.PENDING_CONFIRMATION, "Q1")
    assert world.task(claim.task.id).status == "interrupted"


def test_a_task_that_is_neither_running_nor_interrupted_is_not_looked_at(world: World) -> None:
    claim = world.start()
    world.complete(claim)

    assert world.recover(claim.task.id) is None
    assert world.recover(world.admit().id) is None
    assert world.store.read(task_lists.recent, status="interrupted") == []
