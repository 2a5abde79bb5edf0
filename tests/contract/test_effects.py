"""Calls that may have changed the world: listed, running or in doubt, and what was last said of each."""

from __future__ import annotations

import pytest

from perdure.model.question import QuestionKind
from perdure.store import effects, ends, last_words, questions, recovery, steps
from perdure.store.last_words import LastWord, WordKind
from tests.world import RECOVERY_LIMIT, World, done, new_step, packed


def test_effects_lists_every_call_that_may_have_changed_the_world(world: World) -> None:
    claim = world.start()
    world.record(claim, "read")
    world.begin(claim, "pay", risk="high", payload=packed({"amount": 5}))
    world.record(claim, "mail", risk="medium")

    found = world.store.read(effects.listing)

    assert [(one.step.key, one.agent, one.is_running) for one in found] == [
        ("pay", "writer", True),
        ("mail", "writer", False),
    ]
    assert found[0].arguments == {"amount": 5}


def test_what_was_found_out_about_a_call_stays_with_its_attempt(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    world.begin(claim, "mail", risk="high")
    world.interrupt(claim)
    world.recover(claim.task.id)
    again = world.claim(claim.task.id)

    world.end_step(again, "pay", done(is_found_out=True), risk="high")
    world.end_step(again, "mail", risk="high")

    assert [(one.step.key, one.step.attempt) for one in world.store.read(effects.listing)] == [("pay", 1), ("mail", 2)]


def test_a_call_without_an_outcome_is_running_until_its_attempt_ends_or_somebody_is_asked(world: World) -> None:
    running, asked, dead = world.start(), world.start(), world.start()
    for claim in (running, asked, dead):
        world.begin(claim, "pay", risk="high")
    world.ask(running, QuestionKind.STEP_IN_DOUBT, step_key="another call")
    world.ask(asked, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.interrupt(dead)

    found = world.store.read(effects.open_list)

    assert [(one.step.task_id, one.is_running) for one in found] == [
        (running.task.id, True),
        (asked.task.id, False),
        (dead.task.id, False),
    ]


def test_a_call_that_did_not_happen_and_that_nobody_waits_for_is_no_longer_in_doubt(world: World) -> None:
    claim = world.start()
    index = world.begin(claim, "pay", risk="high").step_index
    asked = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.store.call(questions.answer, asked.id, by="ada", value=packed({"verdict": "not_happened", "result": None}))
    pay = new_step("pay", risk="high")

    left = world.store.call(steps.leave_undone, claim.fence, pay, question_id=asked.id)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert (left, step.is_open, step.is_in_doubt, step.is_undone) == (index, True, False, True)
    assert world.store.read(questions.get, asked.id).spent_at == world.clock.now_ms()
    assert world.store.read(effects.open_list) == []
    assert world.store.read(effects.left_in_doubt, claim.task) == []
    assert [one.is_running for one in world.store.read(effects.listing)] == [False]

    world.store.call(steps.begin_again, claim.fence, "pay", 0, question_id=None)

    again = world.store.read(steps.by_key, claim.task.id, "pay")
    assert again is not None
    assert (again.is_in_doubt, again.is_undone) == (True, False)
    assert [one.is_running for one in world.store.read(effects.open_list)] == [True]


def test_a_call_known_not_to_have_happened_is_not_asked_about_in_place_of_a_declared_risk(world: World) -> None:
    claim = world.start(risk="high")
    world.begin(claim, "pay", risk="high")
    world.store.call(steps.leave_undone, claim.fence, new_step("pay", risk="high"), question_id=None)
    world.interrupt(claim)

    decision = world.store.read(recovery.examine, claim.task.id, recovery_limit=RECOVERY_LIMIT)

    assert (decision.rule, decision.evidence["in_doubt"]) == ("declared_risk", [])


def test_a_limit_counts_only_the_effects_without_an_outcome(world: World) -> None:
    claim = world.start()
    world.record(claim, "mail", risk="medium")
    world.begin(claim, "look", risk="low")
    for key in ("pay", "ship"):
        world.clock.advance(1)
        world.begin(claim, key, risk="high")

    (first,) = world.store.read(effects.open_list, limit=1)
    (second,) = world.store.read(effects.open_list, after=first.place, limit=1)

    assert (first.step.key, second.step.key) == ("pay", "ship")
    assert world.store.read(effects.open_list, after=second.place) == []
    assert world.store.read(effects.open_list, since_ms=second.step.timestamp) == [second]


def test_a_last_word_is_told_of_a_call_that_has_no_outcome_alone(world: World) -> None:
    claim = world.start()
    for key in ("pay", "mail"):
        world.begin(claim, key, risk="high")
    world.end_step(claim, "mail", risk="high")
    words = [LastWord(claim.task.id, key, 1, WordKind.COMPLETED, b'"r"') for key in ("pay", "mail")]

    world.store.call(last_words.tell, words)

    assert world.kinds(claim.task.id).count("call_ended_late") == 1
    assert world.store.read(last_words.last, claim.task.id, "pay", 1) == words[0]
    assert world.store.read(last_words.last, claim.task.id, "mail", 1) is None


def test_a_last_word_says_nothing_of_a_call_that_was_run_again_after_it(world: World) -> None:
    claim = world.start()
    for key in ("pay", "mail"):
        world.begin(claim, key, risk="high")
    words = [LastWord(claim.task.id, key, 1) for key in ("mail", "pay")]
    world.store.call(last_words.tell, words)

    world.store.call(steps.begin_again, claim.fence, "pay", 0, question_id=None)

    assert world.store.read(last_words.last, claim.task.id, "pay", 1) is None
    assert world.store.read(last_words.last, claim.task.id, "mail", 1) == words[0]
    later = words[1]._replace(kind=WordKind.COMPLETED, body=b'"r"')
    world.store.call(last_words.tell, [later])
    assert world.store.read(last_words.last, claim.task.id, "pay", 1) == later


def test_a_word_is_wanted_of_a_call_that_is_in_doubt_or_whose_task_has_ended(world: World) -> None:
    over, in_doubt, known, run_again = (world.start() for _ in range(4))
    for one in (over, in_doubt, run_again):
        world.begin(one, "pay", risk="high")
    world.store.call(ends.cancel, over.task.id)
    world.record(known, "pay", risk="high")
    words = [LastWord(one.task.id, "pay", 1, WordKind.CUT_OFF) for one in (over, in_doubt, known)]
    words.append(LastWord(run_again.task.id, "pay", 0, WordKind.CUT_OFF))  # of an earlier attempt than holds it now
    words.append(LastWord(in_doubt.task.id, "other", 1))  # its intent is not on record, or not yet
    words.append(LastWord("purged", "pay", 1))

    found = world.store.read(last_words.wanted, words)

    assert found == [words[0], words[1], words[-1]]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(WordKind.COMPLETED, "completed"), (WordKind.NOT_CALLED, "failed"), (WordKind.CUT_OFF, None)],
)
def test_a_last_word_settles_the_call_of_a_task_that_has_ended(
    world: World, kind: WordKind, outcome: str | None
) -> None:
    claim, going_on = world.start(), world.start()
    for one in (claim, going_on):
        world.begin(one, "pay", risk="high")
    words = [LastWord(one.task.id, "pay", 1, kind, b'"r"') for one in (claim, going_on)]
    world.store.call(ends.cancel, claim.task.id)

    world.store.call(last_words.tell, words)

    settled, open_one = (world.store.read(steps.by_key, one.task.id, "pay") for one in (claim, going_on))
    assert settled is not None
    assert open_one is not None
    assert (settled.outcome, open_one.outcome) == (outcome, None)
    assert world.kinds(claim.task.id).count("call_ended_late") == 1


def test_a_last_word_against_what_was_said_of_the_call_is_evidence(world: World) -> None:
    claim = world.start()
    for key in ("pay", "mail"):
        world.begin(claim, key, risk="high")
    world.store.call(ends.cancel, claim.task.id)
    no = steps.Result(completed=False, output=packed("no"))
    world.store.call(ends.settle_call, claim.task.id, 1, no, by="ana")
    world.store.call(ends.settle_call, claim.task.id, 2, done("r"), by="ana")
    words = [LastWord(claim.task.id, key, 1, WordKind.COMPLETED, b'"r"') for key in ("pay", "mail")]

    world.store.call(last_words.tell, words)

    step = world.store.read(steps.by_key, claim.task.id, "pay")
    assert step is not None
    assert step.outcome == "failed"
    assert [one.payload["key"] for one in world.feed(claim.task.id) if one.kind == "call_ended_late"] == ["pay"]
