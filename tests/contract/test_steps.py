"""The trace: gap-free numbers, an owner proven at each write, outcomes written once, usage counted where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perdure import codec
from perdure.errors import Damaged, LeaseLost, NotFound, Refused, StoreError
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.step import Note, Step, StepKind
from perdure.model.task import Claim, Fence, Usage
from perdure.store import admission, effects, ends, messages, questions, steps, tasks, traces
from tests.world import BOOM, World, done, new_step, new_task, packed, stale, timer, usage_of

MAX = (1 << 63) - 1


def _trace(world: World, claim: Claim) -> tuple[Step, ...]:
    return world.store.read(traces.read, claim.task.id).steps


# -- numbers ---------------------------------------------------------------------------------


def test_steps_notes_and_events_share_one_sequence_without_a_gap(world: World) -> None:
    claim = world.start()
    world.record(claim, "a", done(notes=[Note("text_emitted", b'"x"'), Note("reasoning", b'"y"')]))
    world.begin(claim, "b", risk="high")
    world.store.call(messages.emit_owned, claim.fence, "mine", {"n": 1})
    world.store.call(steps.note, claim.fence, [Note("tool_summary", b"{}")], risk_seen="low")
    world.record(claim, "c", done(event=("told", {"n": 2}), notes=[Note("reasoning", b'"z"')]))
    world.store.call(messages.save_checkpoint, claim.fence, packed({"at": 1}), step_key="save")
    world.end_step(claim, "b", risk="high")
    world.complete(claim)

    feed = world.feed(claim.task.id)
    task = world.task(claim.task.id)
    assert [event.seq for event in feed] == list(range(1, task.event_seq + 1))
    assert [step.step_index for step in _trace(world, claim)] == list(range(task.step_count))
    assert [event.kind for event in feed] == [
        "task_admitted",
        "task_started",
        "turn_started",
        *("tool_call_started", "tool_call_completed", "text_emitted", "reasoning"),
        "tool_call_started",
        "mine",
        "tool_summary",
        *("tool_call_started", "tool_call_completed", "told", "reasoning"),
        "checkpoint_created",
        "tool_call_completed",
        "task_completed",
    ]


def test_a_write_tells_where_it_stands(world: World) -> None:
    claim = world.start()

    assert world.record(claim, "a") == (1, 5)
    assert world.begin(claim, "b", risk="high") == (2, 6)
    assert world.record(claim, "c", done(notes=[Note("reasoning", b'""')])) == (3, 9)
    assert world.end_step(claim, "b", risk="high") == (2, 10)
    assert [(step.key, step.step_index, step.started_seq, step.ended_seq) for step in _trace(world, claim)] == [
        (None, 0, 3, None),
        ("a", 1, 4, 5),
        ("b", 2, 6, 10),
        ("c", 3, 7, 8),
        (None, 4, 9, None),
    ]


def test_a_hint_of_where_the_trace_ends_is_only_a_hint(world: World) -> None:
    claim, other = world.start(), world.start()
    first, behind = steps.Place(), steps.Place()
    world.store.call(steps.complete, claim.fence, new_step("a"), done(), begun=False, place=first)
    world.store.call(steps.complete, other.fence, new_step("a"), done(), begun=False, place=behind)
    world.store.call(messages.emit_owned, claim.fence, "mine", {})

    # Somebody else has written; it is the place of another task; it is ahead of what was rolled back.
    for key, place in (("b", first), ("c", behind), ("d", steps.Place(claim.task.n, 99, 99, 1)), ("e", first)):
        written = world.store.call(steps.complete, claim.fence, new_step(key), done(), begun=False, place=place)
        assert (place.n, place.step_count, place.event_seq) == (claim.task.n, written.step_index + 1, written.last_seq)

    task, trace = world.task(claim.task.id), _trace(world, claim)
    assert [step.key for step in trace] == [None, "a", "b", "c", "d", "e"]
    assert [step.step_index for step in trace] == list(range(task.step_count))
    assert [event.seq for event in world.feed(task.id)] == list(range(1, task.event_seq + 1))
    assert world.task(other.task.id).step_count == 2


def test_a_hint_does_not_let_write_who_has_lost_the_task(world: World) -> None:
    claim, place = world.start(), steps.Place()
    world.store.call(steps.complete, claim.fence, new_step("a"), done(), begun=False, place=place)
    before = world.task(claim.task.id)

    for fence in stale(claim.fence):
        with pytest.raises(LeaseLost):
            world.store.call(steps.complete, fence, new_step("b"), done(), begun=False, place=place)

    assert world.task(claim.task.id) == before


def test_a_note_may_bring_a_time_of_its_own(world: World) -> None:
    claim = world.start()

    world.store.call(steps.note, claim.fence, [Note("reasoning", b'"a"', timestamp_ms=7)], risk_seen="low")

    assert _trace(world, claim)[-1].timestamp == 7


def test_a_trace_with_a_gap_is_damaged_and_says_what_is_missing(world: World) -> None:
    claim = world.start()
    for key in "abc":
        world.record(claim, key)
    world.execute("DELETE FROM steps WHERE key = 'b'")

    with pytest.raises(Damaged, match=r"1 records are missing, \[2\]"):
        _trace(world, claim)
    assert len(world.store.read(traces.read, claim.task.id, from_index=3).steps) == 1
    assert [step.key for step, _ in world.store.read(steps.listing, claim.task.id)] == [None, "a", "c"]


def test_a_sound_trace_that_is_too_long_is_not_called_damaged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = world.start()
    for key in "abc":
        world.record(claim, key)
    monkeypatch.setattr(traces, "MOST_RECORDS", 3)

    with pytest.raises(Refused, match=r"4 records.* more than .* 3 .*none of them is damaged") as refused:
        _trace(world, claim)
    assert refused.value.limits == ("records 3",)
    assert len(world.store.read(traces.read, claim.task.id, from_index=1).steps) == 3


# -- begin and complete ----------------------------------------------------------------------


def test_an_intent_is_on_record_before_the_call_and_its_outcome_after(world: World) -> None:
    claim = world.start()

    world.begin(claim, "pay", risk="high", name="pay", token="t1", tool_call_id="call-1")
    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (step.is_open, step.is_in_doubt, step.risk, step.token, step.outcome) == (True, True, "high", "t1", None)

    world.clock.advance(5)
    world.end_step(claim, "pay", done({"receipt": 1}), risk="high")
    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (step.is_open, step.outcome, step.tool_call_id) == (False, "completed", "call-1")
    assert step.ended_at == step.timestamp + 5
    assert step.output == b'{"receipt":1}'


def test_a_failed_outcome_is_kept_as_what_it_is(world: World) -> None:
    claim = world.start()

    world.record(claim, "a", steps.Result(completed=False, output=packed({"type": "ValueError"})))

    step = world.step(claim.task.id, "a")
    assert step is not None
    assert (step.outcome, step.output) == ("failed", b'{"type":"ValueError"}')


def test_an_outcome_is_written_once(world: World) -> None:
    claim = world.start()
    world.begin(claim, "a", risk="medium")
    world.end_step(claim, "a", done("first"), risk="medium")
    world.begin(claim, "b")
    world.end_step(claim, "b", done("first"))

    for again in (
        world.unchanged_by(world.end_step, claim, "a", done("second"), risk="medium"),
        world.unchanged_by(world.record, claim, "a", done("second"), risk="medium"),
        world.unchanged_by(world.begin, claim, "a", risk="medium"),
        world.unchanged_by(world.end_step, claim, "b", done("second")),
        world.unchanged_by(world.end_step, claim, "never begun", done("second")),
    ):
        assert isinstance(again, StoreError), again


def test_a_dangerous_step_without_a_token_is_refused_by_the_schema(world: World) -> None:
    claim = world.start()

    outcome = world.unchanged_by(world.begin, claim, "pay", risk="high", token=None)

    assert isinstance(outcome, StoreError)


def test_a_step_that_is_tried_again_is_a_row_of_its_own(world: World) -> None:
    claim = world.start()
    index = world.record(claim, "a", steps.Result(completed=False, output=packed("no"))).step_index
    world.store.call(tasks.retry, claim.fence, available_at=world.clock.now_ms(), error=BOOM, rerun_steps=[index])
    again = world.claim(claim.task.id)

    world.record(again, "a", done("yes"), try_number=1)

    tries = [step for step in _trace(world, claim) if step.key == "a"]
    assert [(step.try_number, step.outcome, step.attempt) for step in tries] == [(0, "failed", 1), (1, "completed", 2)]
    assert [step.retried_at is not None for step in tries] == [True, False]


def test_a_call_that_did_not_happen_is_taken_over_and_its_answer_is_used_up(world: World) -> None:
    claim = world.start()
    index = world.begin(claim, "pay", risk="high").step_index
    asked = world.ask(claim, step_key="pay")
    world.store.call(questions.answer, asked.id, by="ada", value=packed({"did": "not happen"}))
    world.interrupt(claim)
    world.recover(claim.task.id)
    again = world.claim(claim.task.id)
    world.clock.advance(10)

    world.store.call(steps.begin_again, again.fence, "pay", 0, question_id=asked.id)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (step.step_index, step.attempt, step.timestamp, step.is_open) == (index, 2, world.clock.now_ms(), True)
    assert world.store.read(questions.get, asked.id).spent_at == world.clock.now_ms()
    assert world.kinds(claim.task.id)[-1] == "call_run_again"


# -- the fence -------------------------------------------------------------------------------


WRITES: dict[str, Callable[[World, Fence], object]] = {
    "begin": lambda world, fence: world.store.call(steps.begin, fence, new_step("new", risk="high")),
    "complete": lambda world, fence: world.store.call(steps.complete, fence, new_step("new"), done(), begun=False),
    "complete begun": lambda world, fence: world.store.call(
        steps.complete, fence, new_step("open", risk="high"), done(notes=[Note("reasoning", b"1")]), begun=True
    ),
    "take a delivery": lambda world, fence: world.store.call(
        steps.complete, fence, new_step("new", kind=StepKind.RECEIVE), done(delivery=1), begun=False
    ),
    "begin again": lambda world, fence: world.store.call(steps.begin_again, fence, "open", 0, question_id=None),
    "leave undone": lambda world, fence: world.store.call(
        steps.leave_undone, fence, new_step("open", risk="high"), question_id=None
    ),
    "note": lambda world, fence: world.store.call(steps.note, fence, [Note("reasoning", b"1")], risk_seen="low"),
    "message": lambda world, fence: world.store.call(messages.append, fence, NewMessage("user", b"1"), step_key="new"),
    "checkpoint": lambda world, fence: world.store.call(messages.save_checkpoint, fence, packed(1), step_key="new"),
    "event": lambda world, fence: world.store.call(messages.emit_owned, fence, "mine", {}),
    "question": lambda world, fence: world.store.call(
        questions.open_question, fence, questions.NewQuestion(QuestionKind.ASK, "?", packed({}))
    ),
    "child": lambda world, fence: world.store.call(
        admission.admit_children, fence, [(new_step("new", kind=StepKind.CHILD), new_task(key="new"))]
    ),
    "wait": lambda world, fence: world.store.call(tasks.wait, fence, timer(1)),
    "release": lambda world, fence: world.store.call(tasks.release, fence, reason=""),
    "retry": lambda world, fence: world.store.call(tasks.retry, fence, available_at=1, error=BOOM),
    "complete task": lambda world, fence: world.store.call(
        ends.complete, fence, packed("late"), notes=[Note("turn_completed", b"{}")], risk_seen="low"
    ),
    "fail task": lambda world, fence: world.store.call(ends.fail, fence, BOOM, notes=[Note("turn_completed", b"{}")]),
}


def _busy_task(world: World) -> Claim:
    claim = world.start()
    world.begin(claim, "open", risk="high")
    world.store.call(messages.send, claim.task.id, name="n", key="k", payload=packed(1), unread_limit=10)
    return claim


def test_who_no_longer_owns_the_task_writes_nothing(world: World) -> None:
    lost = _busy_task(world)
    world.interrupt(lost)
    world.recover(lost.task.id)
    owner = world.claim(lost.task.id)
    cancelled = _busy_task(world)
    world.store.call(ends.cancel, cancelled.task.id)
    fences = [lost.fence, *stale(owner.fence), cancelled.fence]
    before = world.dump()

    for name, write in WRITES.items():
        for fence in fences:
            with pytest.raises(LeaseLost) as refused:
                write(world, fence)
            assert (refused.value.task_id, refused.value.execution_id) == (fence.task_id, fence.execution_id), name
        with pytest.raises(NotFound):
            write(world, replace(owner.fence, task_id="nowhere"))
        assert world.dump() == before, name


def test_the_owner_of_a_waiting_task_may_write(world: World) -> None:
    claim = world.start()
    world.wait_for(claim, *timer(world.clock.now_ms() + 1000))

    world.record(claim, "a")

    assert world.task(claim.task.id).status == "waiting"


# -- what is counted -------------------------------------------------------------------------


def test_usage_is_counted_for_the_task_and_for_each_attempt_alone(world: World) -> None:
    first = world.start()
    used = Usage(prompt_tokens=100, completion_tokens=10, cost=0.5)
    world.record(first, "m1", done(usage=used), kind=StepKind.MODEL_CALL)
    world.record(first, "t1")
    world.interrupt(first)
    world.recover(first.task.id)
    second = world.claim(first.task.id)
    world.record(second, "m2", done(usage=used), kind=StepKind.MODEL_CALL)
    world.begin(second, "t2", risk="high")
    world.end_step(second, "t2", done(usage=Usage(cost=0.25)), risk="high")
    world.record(second, "now", kind=StepKind.VALUE)

    world.fail(second)

    assert usage_of(world.task(first.task.id)) == Usage(200, 20, 1.25, 2, 2)
    assert [usage_of(one) for one in world.attempts(first.task.id)] == [
        Usage(100, 10, 0.5, 1, 1),
        Usage(100, 10, 0.75, 1, 1),
    ]


def test_tokens_stop_at_the_largest_integer(world: World) -> None:
    claim = world.start()

    world.record(claim, "a", done(usage=Usage(prompt_tokens=MAX - 1, completion_tokens=1 << 70)))
    world.record(claim, "b", done(usage=Usage(prompt_tokens=5, completion_tokens=5)))
    world.complete(claim)

    task = world.task(claim.task.id)
    assert (task.prompt_tokens, task.completion_tokens) == (MAX, MAX)


def test_the_risk_seen_only_rises(world: World) -> None:
    claim = world.start()
    seen = []
    for number, risk in enumerate(("low", "medium", "low", "critical", "high", "low")):
        world.record(claim, f"k{number}", risk=risk)
        seen.append(world.task(claim.task.id).risk_seen)
    world.store.call(steps.note, claim.fence, [Note("reasoning", b"1")], risk_seen="low")
    world.store.call(ends.fail, claim.fence, BOOM, notes=[Note("turn_completed", b"{}")])

    assert seen == ["low", "medium", "medium", "critical", "critical", "critical"]
    assert world.task(claim.task.id).risk_seen == "critical"


def test_an_open_step_is_kept_as_what_its_call_is_declared_by_now(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay")
    by_now = new_step("pay", risk="high", token="t1", risk_seen="high", reconcilable=True)
    before = world.task(claim.task.id)

    for fence in stale(claim.fence):
        with pytest.raises(LeaseLost):
            world.store.call(steps.raise_risk, fence, by_now)
    assert world.store.read(effects.open_list) == []
    world.store.call(steps.raise_risk, claim.fence, by_now)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (step.risk, step.token, step.is_in_doubt) == ("high", "t1", True)
    assert [one.step.key for one in world.store.read(effects.open_list)] == ["pay"]
    task = world.task(claim.task.id)
    assert (task.risk_seen, task.event_seq, task.step_count) == ("high", before.event_seq, before.step_count)


def test_a_completed_step_ends_a_row_of_fruitless_recoveries(world: World) -> None:
    claim = world.start()
    for _ in range(2):
        world.interrupt(claim)
        world.recover(claim.task.id)
        claim = world.claim(claim.task.id)
    assert world.task(claim.task.id).recoveries == 2

    world.begin(claim, "a", risk="medium")
    assert world.task(claim.task.id).recoveries == 2

    world.end_step(claim, "a", risk="medium")
    assert world.task(claim.task.id).recoveries == 0


def test_the_last_tool_call_is_remembered(world: World) -> None:
    claim = world.start()
    world.record(claim, "a", tool_call_id="call-1")
    world.record(claim, "b")

    assert world.task(claim.task.id).last_tool_call_id == "call-1"


# -- what a step uses up ---------------------------------------------------------------------


def test_a_delivery_is_taken_by_one_step(world: World) -> None:
    claim = world.start()
    world.store.call(messages.send, claim.task.id, name="n", key="k", payload=packed("x"), unread_limit=10)
    unread = world.store.read(messages.oldest_unread, claim.task.id, "n")
    assert unread is not None
    assert unread.payload == b'"x"'

    world.record(claim, "r1", done(delivery=unread.n), kind=StepKind.RECEIVE)

    assert world.store.read(messages.oldest_unread, claim.task.id, "n") is None
    outcome = world.unchanged_by(world.record, claim, "r2", done(delivery=unread.n), kind=StepKind.RECEIVE)
    assert isinstance(outcome, NotFound)


def test_an_approval_is_used_up_by_the_begin_it_allows(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, QuestionKind.CALL, step_key="pay")
    world.store.call(questions.approve, asked.id, by="ada")
    assert world.store.read(questions.live_for_step, claim.task.id, "call", "pay") is not None

    world.store.call(steps.begin, claim.fence, new_step("pay", risk="critical"), question_id=asked.id)

    assert world.store.read(questions.get, asked.id).spent_at == world.clock.now_ms()
    assert world.store.read(questions.live_for_step, claim.task.id, "call", "pay") is None


def test_an_answer_is_used_up_once(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, QuestionKind.CALL, step_key="pay")
    world.store.call(questions.approve, asked.id, by="ada")
    world.begin(claim, "open", risk="high")
    call, fence = world.store.call, claim.fence
    call(steps.begin, fence, new_step("pay", risk="critical"), question_id=asked.id)

    for again in (
        world.unchanged_by(call, steps.begin, fence, new_step("pay too", risk="critical"), question_id=asked.id),
        world.unchanged_by(world.record, claim, "low", done(question_id=asked.id)),
        world.unchanged_by(world.end_step, claim, "open", done(question_id=asked.id), risk="high"),
        world.unchanged_by(call, steps.begin_again, fence, "open", 0, question_id=asked.id),
        world.unchanged_by(call, steps.begin, fence, new_step("pay too", risk="critical"), question_id="nobody asked"),
    ):
        assert isinstance(again, NotFound), again
        assert "nothing was written" in str(again)


def test_a_call_that_has_its_outcome_is_neither_begun_again_nor_raised(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    world.end_step(claim, "pay", risk="high")
    asked = world.ask(claim, step_key="pay")
    world.store.call(questions.answer, asked.id, by="ada", value=packed("it did not happen"))

    for key in ("pay", "never begun"):
        for again in (
            world.unchanged_by(world.store.call, steps.begin_again, claim.fence, key, 0, question_id=asked.id),
            world.unchanged_by(world.store.call, steps.raise_risk, claim.fence, new_step(key, risk="critical")),
        ):
            assert isinstance(again, LeaseLost), again
            assert again.task_id == claim.task.id


# -- reading back ----------------------------------------------------------------------------


def test_a_call_is_found_by_its_key_while_it_is_open_or_above_low_risk(world: World) -> None:
    claim = world.start()
    world.begin(claim, "open")
    world.begin(claim, "pay", risk="medium")
    world.end_step(claim, "pay", risk="medium")
    world.record(claim, "low")

    found = [world.store.read(steps.by_key, claim.task.id, key) for key in ("open", "pay", "low")]

    assert [None if step is None else step.outcome or "open" for step in found] == ["open", "completed", None]


def test_a_big_output_comes_back_and_is_stored_once(world: World) -> None:
    big = ["a rather long line of text " * 20 for _ in range(500)]
    claim = world.start()

    world.record(claim, "a", done(big))
    parts = world.rows("SELECT count(*) FROM payloads")
    world.record(claim, "b", done(big))

    assert world.rows("SELECT count(*) FROM payloads") == parts
    for key in "ab":
        step = world.step(claim.task.id, key)
        assert step is not None
        assert step.output is not None
        assert codec.decode(step.output) == big


def test_the_owner_of_an_attempt_is_known_after_it(world: World) -> None:
    claim = world.start()
    world.interrupt(claim)

    owner = world.store.read(steps.owner, claim.task.id, 1)

    assert owner is not None
    assert (owner.instance_id, owner.execution_id, owner.host) == (world.worker.id, claim.execution_id, "host")
    assert world.store.read(steps.owner, claim.task.id, 2) is None
