"""Ends: exactly one writer wins, what goes with the task goes in the same commit, and nothing changes it afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure import codec, phrases
from perdure.errors import BadInput, Error, InvariantError, LeaseLost, NotFound, Refused
from perdure.model.question import QuestionKind
from perdure.model.step import Note
from perdure.model.task import Claim, Fence, Mode, Usage, Wait, WaitKind
from perdure.states import TASK, TaskStatus
from perdure.store import Store, effects, ends, questions, steps, task_lists, tasks
from perdure.store.ends import DEADLINE_EXCEEDED
from tests.contract.conftest import OpenSecond
from tests.world import BOOM, World, done, new_step, outcome_of, packed, usage_of

ROUNDS = 200


# -- outcomes --------------------------------------------------------------------------------


def test_a_completed_task_has_its_result_and_no_owner(world: World) -> None:
    claim = world.start()
    world.store.call(
        ends.complete, claim.fence, packed({"answer": 42}), notes=[Note("turn_completed", b"{}")], risk_seen="low"
    )

    task = world.task(claim.task.id)
    assert (task.status, task.execution_id, task.instance_id, task.error) == ("completed", None, None, None)
    assert task.finished_at == world.clock.now_ms()
    outcome = world.store.read(task_lists.outcome, claim.task.id)
    assert outcome is not None
    assert outcome.result == b'{"answer":42}'
    assert world.kinds(claim.task.id)[-2:] == ["turn_completed", "task_completed"]


def test_a_failed_task_keeps_its_error_and_what_it_has_used(world: World) -> None:
    claim = world.start()
    world.record(claim, "m", done(usage=Usage(7, 3, 0.5)))
    error = Error("ValueError", "boom \x00", "permanent", {"code": 5})

    world.fail(claim, error)

    outcome = world.store.read(task_lists.outcome, claim.task.id)
    assert outcome is not None
    assert (outcome.status, outcome.result, outcome.error) == (TaskStatus.FAILED, None, error)
    assert usage_of(world.task(claim.task.id)) == Usage(7, 3, 0.5, 1, 0)
    (attempt,) = world.attempts(claim.task.id)
    assert (attempt.status, usage_of(attempt)) == ("failed", Usage(7, 3, 0.5, 1, 0))


@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("time_out", "timed_out")])
def test_usage_is_kept_when_others_end_the_task(world: World, verb: str, status: str) -> None:
    claim = world.start()
    world.record(claim, "m", done(usage=Usage(7, 3, 0.5)))

    assert world.end(claim.task.id, verb)

    (attempt,) = world.attempts(claim.task.id)
    assert (world.task(claim.task.id).status, attempt.status) == (status, status)
    assert usage_of(world.task(claim.task.id)) == usage_of(attempt) == Usage(7, 3, 0.5, 1, 0)


def test_a_cancelled_task_says_why_and_by_whom(world: World) -> None:
    task = world.admit()

    world.store.call(ends.cancel, task.id, reason="no need", by="ada")

    outcome = world.store.read(task_lists.outcome, task.id)
    assert outcome is not None
    assert outcome.error == Error("Cancelled", "no need", "permanent", {"by": "ada"})
    assert world.feed(task.id)[-1].payload["by"] == "ada"


def test_a_task_that_timed_out_says_deadline_exceeded(world: World) -> None:
    task = world.admit()

    world.store.call(ends.time_out, task.id)

    outcome = world.store.read(task_lists.outcome, task.id)
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.message == DEADLINE_EXCEEDED == "deadline exceeded"


def test_the_owner_may_time_itself_out_and_nobody_else_by_its_fence(world: World) -> None:
    lost = world.start()
    world.interrupt(lost)
    world.recover(lost.task.id)
    owner = world.claim(lost.task.id)

    assert world.unchanged_by(world.store.call, ends.time_out, lost.task.id, fence=lost.fence) is False
    assert world.store.call(ends.time_out, lost.task.id, fence=owner.fence)


def test_overdue_tasks_are_found_at_once_without_an_owner_and_after_the_grace_time_with_one(world: World) -> None:
    pending = world.admit(deadline_ms=1000)
    running = world.start(deadline_ms=1000)
    world.admit()

    def overdue() -> set[str]:
        return set(world.store.read(task_lists.overdue, grace_ms=5000))

    world.clock.advance(999)
    assert overdue() == set()
    world.clock.advance(1)
    assert overdue() == {pending.id}
    world.clock.advance(5000)
    assert overdue() == {pending.id, running.task.id}
    world.complete(running)  # An outcome that is committed before counts.
    assert overdue() == {pending.id}


def test_a_task_is_not_completed_while_a_dangerous_call_is_in_doubt(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="medium")

    assert isinstance(world.unchanged_by(world.complete, claim), InvariantError)

    world.end_step(claim, "pay", risk="medium")
    world.complete(claim)


def test_a_step_in_doubt_stays_on_record_after_the_task_has_ended(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")

    world.fail(claim)

    assert [(one.step.key, one.is_running) for one in world.store.read(effects.open_list)] == [("pay", False)]


def test_what_became_of_a_call_may_be_recorded_after_its_task_has_ended(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    world.record(claim, "look")
    world.fail(claim)
    task = world.task(claim.task.id)

    first = world.store.call(ends.settle_call, task.id, 1, done("r-1"), by="ana", reason="it is in the ledger")
    second = world.unchanged_by(world.store.call, ends.settle_call, task.id, 1, done("r-2"), by="bob")

    assert (first, second) == (True, False)
    step = world.store.read(steps.by_key, task.id, "pay")
    assert step is not None
    assert (step.outcome, codec.decode(step.output or b""), step.attempt) == ("completed", "r-1", 1)
    assert world.store.read(effects.open_list) == []
    told = world.feed(task.id)[-1]
    assert (told.kind, told.payload["by"], told.payload["reason"]) == ("call_settled", "ana", "it is in the ledger")
    after = world.task(task.id)
    assert (after.status, after.finished_at, after.revision) == (task.status, task.finished_at, task.revision)
    assert [event.seq for event in world.feed(task.id)] == list(range(1, after.event_seq + 1))


def fail_it(world: World, claim: Claim) -> None:
    world.fail(claim)


def cancel_it(world: World, claim: Claim) -> None:
    assert world.end(claim.task.id, "cancel")


def let_it_time_out(world: World, claim: Claim) -> None:
    assert world.end(claim.task.id, "time_out")


def cancel_its_parent(world: World, claim: Claim) -> None:
    assert claim.task.parent_task_id is not None
    assert world.end(claim.task.parent_task_id, "cancel")


@pytest.mark.parametrize("end", [fail_it, cancel_it, let_it_time_out, cancel_its_parent])
@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"verdict": "happened", "result": "r-1"}, ("completed", "r-1")),
        ({"verdict": "give_up", "result": None}, ("failed", "nobody knows whether search happened: asked all")),
        ({"verdict": "not_happened", "result": None}, (None, None)),
    ],
)
def test_what_was_said_of_a_call_counts_though_its_task_ends_before_it_is_taken(
    world: World, end: Callable[[World, Claim], None], said: dict[str, Any], outcome: tuple[str | None, str | None]
) -> None:
    claim = world.claim(world.spawn(world.start()).id)
    world.begin(claim, "pay", risk="high")
    asked = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.store.call(questions.answer, asked.id, by="ana", value=packed(said), reason="asked all")

    end(world, claim)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    output = None if step.output is None else codec.decode(step.output)
    assert (step.outcome, output["message"] if isinstance(output, dict) else output) == outcome
    assert (world.store.read(questions.get, asked.id).spent_at is None) is (step.outcome is None)
    assert [event.seq for event in world.feed(claim.task.id)] == list(range(1, world.task(claim.task.id).event_seq + 1))
    settled = [event.payload["by"] for event in world.feed(claim.task.id) if event.kind == "call_settled"]
    assert settled == ([] if step.outcome is None else ["ana"])


def complete_it(world: World, claim: Claim) -> None:
    world.complete(claim)


@pytest.mark.parametrize("end", [complete_it, fail_it, cancel_it, let_it_time_out, cancel_its_parent])
def test_a_call_that_did_not_happen_has_that_as_its_outcome_once_its_task_ends(
    world: World, end: Callable[[World, Claim], None]
) -> None:
    claim = world.claim(world.spawn(world.start()).id)
    world.begin(claim, "pay", risk="high")
    world.store.call(steps.leave_undone, claim.fence, new_step("pay", risk="high"), question_id=None)

    end(world, claim)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (step.outcome, phrases.outcome(step)) == ("failed", "did not happen")
    assert [event.seq for event in world.feed(claim.task.id)] == list(range(1, world.task(claim.task.id).event_seq + 1))


def test_a_task_cannot_complete_while_another_call_of_it_is_in_doubt(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    world.begin(claim, "mail", risk="high")
    world.store.call(steps.leave_undone, claim.fence, new_step("pay", risk="high"), question_id=None)

    refused = world.unchanged_by(world.complete, claim)

    assert isinstance(refused, InvariantError)


def test_only_a_call_above_low_risk_of_an_ended_task_is_settled_by_hand(world: World) -> None:
    claim = world.start()
    world.record(claim, "look")
    world.begin(claim, "pay", risk="high")
    going_on = world.unchanged_by(world.store.call, ends.settle_call, claim.task.id, 2, done(), by="ana")
    world.fail(claim)

    low = world.unchanged_by(world.store.call, ends.settle_call, claim.task.id, 1, done(), by="ana")
    missing = world.unchanged_by(world.store.call, ends.settle_call, claim.task.id, 99, done(), by="ana")
    unknown = world.unchanged_by(world.store.call, ends.settle_call, "nobody", 0, done(), by="ana")

    assert [type(one) for one in (going_on, low, missing, unknown)] == [Refused, BadInput, NotFound, NotFound]


# -- one winner ------------------------------------------------------------------------------


def _endings(claim: Claim) -> list[Callable[[Store], object]]:
    return [
        lambda store: store.call(ends.complete, claim.fence, packed("done"), risk_seen="low"),
        lambda store: store.call(ends.fail, claim.fence, BOOM),
        lambda store: store.call(ends.time_out, claim.task.id),
        lambda store: store.call(ends.cancel, claim.task.id),
    ]


@pytest.mark.slow(timeout_s=120)
def test_of_four_that_end_a_task_at_once_exactly_one_wins(world: World, request: pytest.FixtureRequest) -> None:
    other = world.store
    if world.store.database.url != "sqlite://":
        open_second: OpenSecond = request.getfixturevalue("open_second")
        other = open_second(world.store)
    claims = [world.start() for _ in range(ROUNDS)]
    wins: list[list[int]] = [[] for _ in claims]
    barrier = threading.Barrier(4)

    def race(number: int, store: Store) -> None:
        for claim, won in zip(claims, wins, strict=True):
            barrier.wait()
            try:
                result = _endings(claim)[number](store)
            except LeaseLost:
                continue
            if result in (None, True):  # complete and fail return nothing when they have won
                won.append(number)

    threads = [
        threading.Thread(target=race, args=(number, other if number % 2 else world.store)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(won) for won in wins] == [1] * ROUNDS
    order = ("completed", "failed", "timed_out", "cancelled")
    assert [world.task(claim.task.id).status for claim in claims[:20]] == [order[won[0]] for won in wins[:20]]
    terminal = ", ".join(f"'{TASK.event(verb)}'" for verb in ("complete", "fail", "time_out", "cancel"))
    told = world.rows(f"SELECT count(*), count(DISTINCT task) FROM events WHERE kind IN ({terminal})")
    assert told == [(ROUNDS, ROUNDS)]


def test_a_verb_that_comes_hours_late_changes_nothing(world: World) -> None:
    claims = [world.start() for _ in range(4)]
    for first, claim in enumerate(claims):
        _endings(claim)[first](world.store)
    world.clock.advance(5 * 3_600_000)
    before = world.dump()

    for claim in claims:
        for end in _endings(claim):
            outcome = outcome_of(end, world.store)

            assert outcome is False or isinstance(outcome, LeaseLost)
    assert world.dump() == before


def test_a_second_cancel_does_nothing(world: World) -> None:
    task = world.admit()

    assert world.store.call(ends.cancel, task.id, reason="first") is True
    assert world.unchanged_by(world.store.call, ends.cancel, task.id, reason="second") is False


# -- children --------------------------------------------------------------------------------


def _family(world: World) -> dict[str, str]:
    """A root with a foreground and a background child, which have one of each, too; all of them running."""
    root = world.start(session_id="chat")
    found = {"root": root.task.id}
    for name, mode in (("fore", Mode.FOREGROUND), ("back", Mode.BACKGROUND)):
        child = world.claim(world.spawn(root, name, mode=mode).id)
        found[name] = child.task.id
        for below, below_mode in (("fore", Mode.FOREGROUND), ("back", Mode.BACKGROUND)):
            found[f"{name}.{below}"] = world.spawn(child, below, mode=below_mode).id
    return found


def _ended(world: World, family: dict[str, str]) -> set[str]:
    return {name for name, task_id in family.items() if world.task(task_id).status.is_terminal}


def test_cancel_takes_every_descendant_along_leaves_first(world: World) -> None:
    family = _family(world)

    world.store.call(ends.cancel, family["root"])

    assert _ended(world, family) == set(family)
    order = world.rows(
        "SELECT t.id, t.depth FROM events e JOIN tasks t ON t.n = e.task WHERE e.kind = 'task_cancelled' ORDER BY e.n"
    )
    assert [depth for _, depth in order] == [3, 3, 3, 3, 2, 2, 1]
    assert {world.task(task_id).status for task_id in family.values()} == {TaskStatus.CANCELLED}


def test_cancel_reaches_what_hangs_below_a_finished_child(world: World) -> None:
    root = world.start()
    child = world.claim(world.spawn(root, "a").id)
    grandchild = world.spawn(child, "b", mode=Mode.BACKGROUND)
    world.complete(child)
    assert world.task(grandchild.id).status == "pending"

    world.store.call(ends.cancel, root.task.id)

    assert world.task(grandchild.id).status == "cancelled"
    assert world.task(child.task.id).status == "completed"


@pytest.mark.parametrize("verb", ["fail", "time_out"])
def test_fail_and_time_out_take_along_only_who_was_waited_for(world: World, verb: str) -> None:
    family = _family(world)
    root = world.task(family["root"])
    assert root.execution_id is not None

    if verb == "fail":
        world.store.call(ends.fail, Fence(root.id, root.execution_id, root.generation), BOOM)
    else:
        world.store.call(ends.time_out, root.id)

    assert _ended(world, family) == {"root", "fore", "fore.fore"}
    assert world.task(family["fore"]).status == "cancelled"
    error = world.store.read(tasks.read_error, world.task(family["fore"]).error)
    assert error is not None
    assert "its parent" in error.message


def test_a_refused_task_takes_along_who_it_waited_for_before(world: World) -> None:
    root = world.start()
    child = world.spawn(root, "a")
    world.store.call(tasks.retry, root.fence, available_at=0, error=BOOM)

    assert world.store.call(ends.refuse, root.task.id, BOOM)

    assert (world.task(root.task.id).status, world.task(child.id).status) == ("failed", "cancelled")


def test_interrupting_leaves_children_as_they_are(world: World) -> None:
    family = _family(world)
    root = world.task(family["root"])
    assert root.execution_id is not None

    world.store.call(tasks.interrupt, root.id, root.execution_id, reason="gone")

    assert _ended(world, family) == set()


def test_the_children_of_others_are_not_touched(world: World) -> None:
    mine, other = _family(world), _family(world)

    world.store.call(ends.cancel, mine["fore"])

    assert _ended(world, mine) == {"fore", "fore.fore", "fore.back"}
    assert _ended(world, other) == set()


@pytest.mark.parametrize("verb", ["complete", "fail", "cancel", "time_out", "refuse"])
def test_the_end_of_its_last_child_wakes_a_parent_that_was_set_aside(world: World, verb: str) -> None:
    parent = world.start()
    child = world.spawn(parent, "a")
    assert not world.set_aside(parent, Wait(WaitKind.CHILDREN, (child.id,)))

    if verb == "complete":
        world.complete(world.claim(child.id))
    elif verb == "fail":
        world.fail(world.claim(child.id))
    elif verb == "refuse":
        world.store.call(ends.refuse, child.id, BOOM)
    else:
        world.end(child.id, verb)

    woken = world.task(parent.task.id)
    assert (woken.status, woken.waiting_for, woken.available_at) == ("pending", (), tasks.AT_ONCE)


def test_a_parent_that_waits_for_something_else_is_left_alone(world: World) -> None:
    parent = world.start()
    child = world.spawn(parent, "a")
    world.set_aside(parent, Wait(WaitKind.RECEIVE, ("mail",)))
    before = world.task(parent.task.id)

    world.store.call(ends.cancel, child.id)

    assert world.task(parent.task.id) == before


def test_a_parent_that_waits_in_memory_keeps_its_owner(world: World) -> None:
    parent = world.start()
    child = world.spawn(parent, "a")
    world.wait_for(parent, Wait(WaitKind.CHILDREN, (child.id,)))

    world.store.call(ends.cancel, child.id)

    task = world.task(parent.task.id)
    assert (task.status, task.execution_id) == ("waiting", parent.execution_id)


# -- questions -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", range(4))
def test_open_questions_are_cancelled_with_their_task_and_answered_ones_stay(world: World, end: int) -> None:
    claim = world.start()
    answered = world.ask(claim, step_key="a")
    world.store.call(questions.answer, answered.id, by="ada", value=packed(1))
    open_ones = [world.ask(claim, step_key="b"), world.ask(claim, QuestionKind.CALL, step_key="b")]

    _endings(claim)[end](world.store)

    said = {"completed": "completed", "failed": "failed", "timed_out": "timed out", "cancelled": "was cancelled"}
    task = world.task(claim.task.id)
    ended = said[task.status]
    for one in open_ones:
        settled = world.store.read(questions.get, one.id)
        assert (settled.status, settled.reason) == ("cancelled", f"the task {ended}")
    assert world.store.read(questions.get, answered.id).status == "answered"
    assert world.store.read(questions.open_list) == []
    # The end is the last thing that is told of a task.
    assert world.kinds(claim.task.id)[-3:] == ["question_cancelled"] * 2 + [world.kinds(claim.task.id)[-1]]
    assert world.feed(claim.task.id)[-1].seq == task.event_seq


def test_an_end_raises_the_revision_and_every_task_it_takes_along_carries_it(world: World) -> None:
    family = _family(world)
    before = world.task(family["back.back"]).revision

    world.store.call(ends.cancel, family["root"])

    assert {world.task(task_id).revision for task_id in family.values()} == {before + 1}
    changed = world.store.read(task_lists.changed_since, "chat", revision=before)
    assert {task.id for task in changed} == set(family.values())
