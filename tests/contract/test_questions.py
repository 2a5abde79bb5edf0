"""Questions: asked once, answered once, spent once; an answer sets its task going in the same commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from perdure import codec
from perdure.errors import BadInput, LeaseLost, NotFound
from perdure.model.question import Question, QuestionKind
from perdure.model.step import StepKind
from perdure.model.task import Wait, WaitKind
from perdure.store import admission, effects, instances, payloads, questions, sessions, steps, task_lists, traces
from tests.world import World, new_step, new_task, packed

RUN_IT = {"verdict": "not_happened", "result": None}


def _answered(world: World, question: Question) -> object:
    settled = world.store.read(questions.get, question.id)
    return None if settled.answer is None else world.store.read(payloads.plain, settled.answer)


def test_questions_are_named_in_the_order_they_are_asked(world: World) -> None:
    claim, other = world.start(), world.start()

    asked = [world.ask(claim, step_key="a"), world.ask(other, step_key="a"), world.ask(claim, step_key="b")]

    assert [one.id for one in asked] == ["Q1", "Q2", "Q3"]
    assert [one.id for one in world.store.read(questions.open_list)] == ["Q1", "Q2", "Q3"]


def test_a_question_comes_back_as_it_was_asked(world: World) -> None:
    claim = world.start(session_id="chat")

    asked = world.ask(
        claim,
        QuestionKind.CALL,
        text="Pay?",
        step_key="pay",
        to="finance",
        digest="d",
        expires_at_ms=7,
        evidence=packed({"amount": 5}),
    )

    assert (asked.text, asked.to, asked.step_key, asked.digest, asked.expires_at) == ("Pay?", "finance", "pay", "d", 7)
    assert (asked.agent, asked.task_id, asked.session_id) == ("writer", claim.task.id, "chat")
    assert (asked.kind, asked.status, asked.created_at) == (QuestionKind.CALL, "open", world.clock.now_ms())
    assert world.store.read(questions.evidence, asked) == {"amount": 5}
    assert world.feed(claim.task.id)[-1].payload == {"question": "Q1", "question_kind": "call", "text": "Pay?"}


def test_one_task_kind_and_step_have_one_open_question(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, step_key="a")

    assert world.unchanged_by(world.ask, claim, step_key="a", text="Again?") == asked
    assert world.ask(claim, step_key="b").id == "Q2"
    assert world.ask(claim, QuestionKind.CALL, step_key="a").id == "Q3"
    assert world.ask(world.start(), step_key="a").id == "Q4"


def test_an_answer_that_is_not_spent_is_found_instead_of_asking_again(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, step_key="a")
    world.store.call(questions.answer, asked.id, by="ada", value=packed("blue"))

    again = world.ask(claim, step_key="a")

    assert (again.id, again.status) == (asked.id, "answered")


def test_the_first_answer_counts(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim)
    first = world.store.call(questions.answer, asked.id, by="ada", value=packed("blue"), reason="it suits")
    world.clock.advance(10)

    again = world.unchanged_by(world.store.call, questions.answer, asked.id, by="bob", value=packed("red"))

    assert again == first
    assert (first.answered_by, first.reason, _answered(world, asked)) == ("ada", "it suits", "blue")


def test_only_an_open_question_is_taken_back_and_only_by_the_owner_of_its_task(world: World) -> None:
    claim = world.start()
    left, answered = world.ask(claim, step_key="a"), world.ask(claim, step_key="b")
    world.store.call(questions.answer, answered.id, by="ada", value=packed("blue"))

    stranger = replace(claim.fence, execution_id="another")
    with pytest.raises(LeaseLost):
        world.store.call(questions.take_back, stranger, left.id, reason="no")
    world.store.call(questions.take_back, claim.fence, left.id, reason="nobody waits")
    world.unchanged_by(world.store.call, questions.take_back, claim.fence, answered.id, reason="nobody waits")

    became = [world.store.read(questions.get, one.id) for one in (left, answered)]
    assert [(one.status, one.reason) for one in became] == [("cancelled", "nobody waits"), ("answered", None)]
    assert world.ask(claim, step_key="a").id not in (left.id, answered.id)


def test_of_yes_and_no_the_first_counts(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, QuestionKind.CALL)
    world.store.call(questions.deny, asked.id, by="ada", reason="too risky")

    again = world.unchanged_by(world.store.call, questions.approve, asked.id, by="bob")

    assert isinstance(again, Question)
    assert (again.status, again.answered_by, again.reason) == ("denied", "ada", "too risky")


@pytest.mark.parametrize("kind", QuestionKind)
def test_each_kind_takes_its_own_sort_of_answer(world: World, kind: QuestionKind) -> None:
    asked = world.ask(world.start(), kind)
    call = world.store.call

    if kind.is_yes_or_no:
        refused = world.unchanged_by(call, questions.answer, asked.id, by="ada", value=packed(1))
        settled = call(questions.approve, asked.id, by="ada")
        assert settled.status == "approved"
    else:
        refused = world.unchanged_by(call, questions.approve, asked.id, by="ada")
        settled = call(questions.answer, asked.id, by="ada", value=packed(1))
        assert settled.status == "answered"
    assert isinstance(refused, BadInput)
    assert refused.field == "answer"


def test_a_question_expires_at_its_time_and_not_before(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, expires_at_ms=world.clock.now_ms() + 1000)
    world.ask(claim, step_key="for ever")

    world.clock.advance(999)
    assert world.expire() == []

    world.clock.advance(1)
    assert [one.id for one in world.expire()] == [asked.id]
    settled = world.store.read(questions.get, asked.id)
    assert (settled.status, settled.answered_by, settled.reason) == ("expired", None, "nobody answered in time")
    assert world.expire() == []


def test_an_answer_wakes_the_task_that_was_set_aside_for_it(world: World) -> None:
    claim = world.start()
    asked, other = world.ask(claim, step_key="a"), world.ask(claim, step_key="b")
    world.set_aside(claim, Wait(WaitKind.QUESTION, (asked.id,)))

    world.store.call(questions.answer, other.id, by="ada", value=packed(1))
    assert world.task(claim.task.id).status == "waiting"

    world.store.call(questions.answer, asked.id, by="ada", value=packed(1))
    assert world.task(claim.task.id).status == "pending"
    assert world.kinds(claim.task.id)[-2:] == ["question_answered", "task_woken"]


@pytest.mark.parametrize("kind", [QuestionKind.ASK, QuestionKind.CALL])
def test_so_does_its_expiry(world: World, kind: QuestionKind) -> None:
    claim = world.start()
    asked = world.ask(claim, kind, expires_at_ms=world.clock.now_ms())
    world.set_aside(claim, Wait(WaitKind.QUESTION, (asked.id, "Q9"), until_ms=world.clock.now_ms() + 10_000))
    world.store.call(lambda tx: tx.run(questions.Q.mark_notified, id=asked.id))

    world.expire()

    assert world.task(claim.task.id).status == "pending"


def test_a_task_that_waits_in_memory_is_left_to_its_owner(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (asked.id,)))

    world.store.call(questions.answer, asked.id, by="ada", value=packed(1))

    task = world.task(claim.task.id)
    assert (task.status, task.execution_id) == ("waiting", claim.execution_id)


def test_a_second_answer_may_only_add_that_the_first_shall_act_anyway(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.store.call(questions.answer, asked.id, by="ada", value=packed(RUN_IT))

    again = world.store.call(questions.answer, asked.id, by="bob", value=packed(RUN_IT), anyway=True)

    assert (again.anyway, again.answered_by, _answered(world, asked)) == (True, "ada", RUN_IT)
    assert world.store.read(questions.get, asked.id) == again
    # Once the answer has been used up, nothing is added to it any more.
    world.execute("UPDATE questions SET anyway = 0, spent_at = 1")
    late = world.unchanged_by(world.store.call, questions.answer, asked.id, by="bob", value=packed(RUN_IT), anyway=True)
    assert isinstance(late, Question)
    assert late.anyway is False


@pytest.mark.parametrize("verdict", ["happened", "give_up"])
def test_anyway_adds_nothing_to_an_answer_that_runs_nothing(world: World, verdict: str) -> None:
    asked = world.ask(world.start(), QuestionKind.STEP_IN_DOUBT, step_key="pay")
    first = world.store.call(questions.answer, asked.id, by="ada", value=packed({"verdict": verdict, "result": "r"}))

    again = world.unchanged_by(
        world.store.call, questions.answer, asked.id, by="bob", value=packed(RUN_IT), anyway=True
    )

    assert again == first


@pytest.mark.parametrize("kind", [QuestionKind.STEP_IN_DOUBT, QuestionKind.ASK])
def test_anyway_goes_with_run_it_alone(world: World, kind: QuestionKind) -> None:
    asked = world.ask(world.start(), kind, step_key="pay")
    value = {"verdict": "happened", "result": "r"} if kind is QuestionKind.STEP_IN_DOUBT else RUN_IT

    refused = world.unchanged_by(
        world.store.call, questions.answer, asked.id, by="bob", value=packed(value), anyway=True
    )

    assert isinstance(refused, BadInput)
    assert refused.field == "anyway"


def test_an_answer_may_be_big_and_may_hold_anything(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim)
    value = {"text": ["\x00 line " * 50] * 300}

    world.store.call(questions.answer, asked.id, by="ada", value=codec.pack(codec.encode(value)))

    assert _answered(world, asked) == value


def test_open_questions_are_listed_by_who_is_asked_and_by_session(world: World) -> None:
    one, other = world.start(session_id="one"), world.start(session_id="other")
    world.ask(one, to="ada", step_key="1")
    world.ask(one, to="bob", step_key="2")
    world.ask(other, to="ada", step_key="3")
    settled = world.ask(other, to="ada", step_key="4")
    world.store.call(questions.answer, settled.id, by="ada", value=packed(1))

    def listed(**filters: str) -> list[str]:
        return [question.id for question in world.store.read(questions.open_list, **filters)]  # type: ignore[arg-type]  # to and session_id are text

    assert listed() == ["Q1", "Q2", "Q3"]
    assert listed(to="ada") == ["Q1", "Q3"]
    assert listed(session_id="one") == ["Q1", "Q2"]
    assert listed(to="ada", session_id="one") == ["Q1"]
    assert listed(to="nobody") == []


def test_open_questions_are_paged_strictly(world: World) -> None:
    claim = world.start()
    for number in range(5):
        world.ask(claim, step_key=str(number))

    first = world.store.read(questions.open_list, limit=2)
    rest = world.store.read(questions.open_list, after=first[-1].n, limit=10)

    assert [one.id for one in (*first, *rest)] == ["Q1", "Q2", "Q3", "Q4", "Q5"]
    assert len(world.store.read(questions.open_list, limit=0)) == 1  # a limit outside 1..200 is clamped


def test_a_tasks_questions_are_listed_newest_first_whatever_became_of_them(world: World) -> None:
    claim = world.start()
    for number in range(60):  # More than a page of a list.
        world.ask(claim, step_key=str(number))
    world.complete(claim)

    found = world.store.read(questions.of_task, claim.task.id)

    assert [(one.id, one.status) for one in found] == [(f"Q{n}", "cancelled") for n in range(60, 0, -1)]


def test_somebody_is_told_of_a_question_once(world: World) -> None:
    asked = world.ask(world.start())
    assert [one.id for one in world.store.read(questions.unnotified)] == [asked.id]

    assert world.store.call(questions.mark_notified, asked.id) is True
    assert world.store.call(questions.mark_notified, asked.id) is False
    assert world.store.read(questions.unnotified) == []


def test_a_question_is_found_by_its_name_or_its_ending(world: World) -> None:
    claim = world.start()
    for number in range(11):
        world.ask(claim, step_key=str(number))

    assert world.store.read(questions.find, "Q1") == "Q1"
    assert world.store.read(questions.find, "11") == "Q11"
    with pytest.raises(BadInput):
        world.store.read(questions.find, "1")
    for nothing in ("Q99", ""):
        with pytest.raises(NotFound):
            world.store.read(questions.find, nothing)


def test_every_change_of_a_question_raises_the_revision_of_its_session(world: World) -> None:
    claim = world.start(session_id="chat")
    before = world.store.read(sessions.get, "chat").revision

    asked = world.ask(claim)
    world.store.call(questions.answer, asked.id, by="ada", value=packed(1))

    assert world.store.read(sessions.get, "chat").revision == before + 2
    assert world.rows("SELECT revision FROM questions") == [(before + 2,)]
    assert world.store.read(task_lists.changed_since, "chat", revision=before) == []


def test_a_call_that_nobody_allowed_is_no_effect(world: World) -> None:
    claim = world.start()
    for key in ("no", "yes", "late"):
        world.ask(claim, QuestionKind.CALL, step_key=key, expires_at_ms=1 if key == "late" else None)
    world.store.call(questions.deny, "Q1", by="ana", reason="no")
    world.store.call(questions.approve, "Q2", by="ana")
    world.expire()
    for key, question_id in (("no", "Q1"), ("yes", "Q2"), ("late", "Q3")):
        failed = steps.Result(completed=False, output=packed("failed"), question_id=question_id)
        world.record(claim, key, failed, risk="high")

    assert [one.step.key for one in world.store.read(effects.listing)] == ["yes"]


@pytest.mark.parametrize("refused", [0, 1])
def test_a_try_that_ran_is_an_effect_whatever_was_said_to_another_try_of_the_call(world: World, refused: int) -> None:
    claim = world.start()
    for number in (0, 1):
        world.clock.advance(1000)
        asked = world.ask(claim, QuestionKind.CALL, step_key="pay")
        call: dict[str, Any] = {"risk": "medium", "try_number": number}
        failed = steps.Result(completed=False, output=packed("failed"))
        if number == refused:
            world.store.call(questions.deny, asked.id, by="ana", reason="no")
            world.record(claim, "pay", structs.replace(failed, question_id=asked.id), **call)
        else:
            world.store.call(questions.approve, asked.id, by="ana")
            world.store.call(steps.begin, claim.fence, new_step("pay", **call), question_id=asked.id)
            world.clock.advance(1000)
            world.end_step(claim, "pay", failed, **call)

    assert [one.step.try_number for one in world.store.read(effects.listing)] == [1 - refused]


@pytest.mark.parametrize("dies_first", [True, False])
def test_whether_a_worker_was_dead_when_it_was_answered_is_told_by_no_clock(world: World, dies_first: bool) -> None:
    old = world.new_worker(("lead", ""))
    claim = world.start(worker=old)
    world.begin(claim, "pay", risk="high")
    doubt = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")

    def die() -> None:
        assert world.store.call(instances.mark_stopped, old.id)

    def answer() -> None:
        world.store.call(questions.answer, doubt.id, by="ana", value=packed({"verdict": "not_happened"}))

    for act in (die, answer) if dies_first else (answer, die):
        act()
        world.clock.jump(-3_600_000)

    owner = world.store.read(steps.owner, claim.task.id, 1)
    placed = world.store.read(questions.get, doubt.id).answered_order
    assert owner is not None
    assert owner.stopped_order is not None
    assert placed is not None
    assert (owner.stopped_order < placed) == dies_first


def test_the_yes_to_a_child_is_used_up_where_it_is_admitted_and_once(world: World) -> None:
    parent = world.start()
    asked = world.ask(parent, QuestionKind.CALL, step_key="one")

    def child(key: str) -> admission.Admission:
        batch = [(new_step(key, kind=StepKind.CHILD), new_task(key=key))]
        return world.store.call(admission.admit_children, parent.fence, batch, question_id=asked.id)

    (index,) = child("one").step_indexes

    assert world.store.read(questions.get, asked.id).spent_at is not None
    with pytest.raises(NotFound, match="used up by another step"):
        child("two")
    (step,) = (one for one in world.store.read(traces.read, parent.task.id).steps if one.key is not None)
    assert (step.key, step.step_index) == ("one", index)
