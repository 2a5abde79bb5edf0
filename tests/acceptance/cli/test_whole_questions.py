"""A question that is too long for a list: all of it can be read, and every shortened view says where."""

from __future__ import annotations

import pytest

from perdure.model.question import QuestionKind
from perdure.model.task import Wait, WaitKind
from tests.command_line import Desk
from tests.world import World, packed

DRAFT = "Dear team,\n" + "we won. " * 400 + "\nKind regards"


@pytest.fixture
def asked(desk: Desk, world: World) -> str:
    """A task that waits for a person who is to read a draft."""
    claim = world.start()
    question = world.ask(claim, QuestionKind.ASK, text=DRAFT, evidence=packed({"wants": "str"}))
    world.set_aside(claim, Wait(WaitKind.QUESTION, (question.id,)))
    return claim.task.id


def test_one_question_is_shown_whole_with_its_lines(desk: Desk, asked: str) -> None:
    shown = desk.run("questions", "q1").out

    assert all(f"  {line}\n" in shown for line in DRAFT.splitlines())
    assert "perdure answer Q1 VALUE" in shown
    assert desk.run("questions", "Q1", "--json").json["questions"][0]["text"] == DRAFT
    assert desk.run("questions", "Q9").code == 3


@pytest.mark.parametrize("view", ["questions", "ps", "why", "show"])
def test_a_view_that_shortens_a_question_says_where_all_of_it_is(desk: Desk, asked: str, view: str) -> None:
    words = [view, asked] if view in ("why", "show") else [view]

    shown = desk.run(*words, "--db", "desk.db").out

    assert "Dear team, we won." in shown
    assert "Kind regards" in shown
    assert "perdure questions Q1 --db desk.db" in shown


def test_arguments_of_a_call_are_shown_whole(desk: Desk, world: World) -> None:
    evidence = {"tool": "send", "arguments": {"to": "a@b", "mail": {"body": DRAFT, "copies": 2}}}
    text = 'may send(mail={…}, to="a@b") run?'
    world.ask(world.start(), QuestionKind.CALL, text=text, evidence=packed(evidence))

    shown = desk.run("questions", "Q1").out

    assert '  to: "a@b"\n' in shown
    assert '  mail:\n    "body":\n      | Dear team,\n      | we won. ' in shown
    assert "      | Kind regards\n" in shown
    assert '    "copies": 2\n' in shown
    assert "all of the question\n      perdure questions Q1" in desk.run("questions").out


def test_a_question_that_ended_is_shown_with_what_was_said(desk: Desk, asked: str) -> None:
    desk.run("answer", "Q1", "send it", "--by", "ana")

    shown = desk.run("questions", "Q1").out

    assert "Kind regards" in shown
    assert 'answered "send it", by ana' in shown
    for view in ("why", "show"):
        assert "  all of it: perdure questions Q1" in desk.run(view, asked).out
