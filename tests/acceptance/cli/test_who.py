"""Who ended a task, cancelled a question or settled a call, as the command line shows it afterwards."""

from __future__ import annotations

import re
import shlex

import pytest

import perdure.sync
from perdure.errors import Error
from perdure.model.question import QuestionKind
from perdure.store import questions, steps
from tests.acceptance.cli.conftest import Story
from tests.command_line import Desk, finish, hear
from tests.world import World, packed


def test_who_cancelled_a_task_and_why_is_shown_afterwards(desk: Desk, story: Story) -> None:
    task_id = story.lead.task.id
    desk.run("cancel", task_id, "--because", "no longer needed", "--by", "ana")

    pages = [desk.run(*words).out for words in (("why", task_id), ("show", task_id), ("ps", "--all"))]
    told = [desk.run(command, task_id, "--json").json for command in ("why", "show", "cancel")]

    for page in pages:
        assert re.search(r"\b(cancelled|ended) by ana .+ ago: Cancelled: no longer needed\b", page)
    for one in told:
        assert (one["ended_by"], one["ended_because"]) == ("ana", "no longer needed")
    assert desk.run("show", story.ended.task.id, "--json").json["ended_by"] is None


def test_who_cancelled_a_task_is_told_of_its_children_and_their_questions_too(desk: Desk, story: Story) -> None:
    child = story.child.task.id
    desk.run("cancel", story.lead.task.id, "--because", "no longer needed", "--by", "ana")

    pages = [desk.run(*words).out for words in (("why", child), ("show", child))]
    told = [desk.run(command, child, "--json").json for command in ("why", "show")]

    for page in pages:
        assert re.search(r"\bcancelled by ana .+ ago: Cancelled: its parent ended: no longer needed\b", page)
    for one in told:
        assert (one["ended_by"], one["ended_because"]) == ("ana", "its parent ended: no longer needed")
    assert len(re.findall("ended by ana ", desk.run("ps", "--all").out)) == 2
    assert re.search(r"\n    cancelled, by ana, .+: the task was cancelled\n", desk.run("questions", "--all").out)
    late = desk.run("answer", story.question, "--give-up").out
    assert re.match(r"Q1 was cancelled by ana .+ ago: the task was cancelled; nothing changed\n", late)
    (question,) = desk.run("questions", "--all", "--json").json["questions"]
    assert (question["status"], question["answered_by"], question["cancelled_by"]) == ("cancelled", None, "ana")


def test_a_question_that_was_out_of_use_before_is_not_told_as_cancelled_by_who_ended_its_task(
    desk: Desk, world: World
) -> None:
    claim = world.start()
    question = world.ask(claim, QuestionKind.CALL, text="may it run?")
    world.store.call(questions.void, claim.fence, question.id, reason="other arguments")
    world.clock.advance(1000)
    desk.run("cancel", claim.task.id, "--by", "ana")

    assert re.search(r"^    cancelled, [^,]+: other arguments$", desk.run("questions", "--all").out, re.MULTILINE)


def test_who_cancelled_a_parent_later_is_not_told_of_a_child_that_had_ended_before(desk: Desk, story: Story) -> None:
    desk.run("cancel", story.child.task.id, "--by", "ben")
    desk.run("cancel", story.lead.task.id, "--by", "ana")

    assert desk.run("show", story.child.task.id, "--json").json["ended_by"] == "ben"


def test_a_child_that_goes_with_a_parent_whose_time_is_over_was_ended_by_nobody(desk: Desk, world: World) -> None:
    lead = world.start()
    child = world.spawn(lead)
    world.end(lead.task.id, "time_out")

    shown = desk.run("show", child.id, "--json").json

    assert (shown["status"], shown["ended_by"]) == ("cancelled", None)


def test_a_task_that_code_cancels_says_so(desk: Desk) -> None:
    with perdure.sync.Client(str(desk.db)) as client:
        plain, named = client.start("waiting", name="a"), client.start("waiting", name="b")
        plain.cancel()
        named.cancel("enough", by="ana")

    assert "cancelled by code " in desk.run("why", plain.id).out
    assert "cancelled by ana " in desk.run("why", named.id).out


def test_run_tells_who_cancelled_its_task(desk: Desk) -> None:
    with perdure.sync.Client(str(desk.db)) as client:
        task = client.start("waiting", name="a")
    with desk.begin("run", "waiting", "a", "--json") as process:
        hear(process.stderr, "joins waiting")
        desk.run("cancel", task.id, "--by", "ana", "--because", "enough")
        said = finish(process)
    desk.run("run", "waiting", "b", "--key", "k", "--timeout", "0")
    desk.run("cancel", desk.run("ps", "--json").json["tasks"][0]["id"], "--by", "ana", "--because", "enough")

    assert (said.json["status"], said.json["ended_by"], said.json["ended_because"]) == ("cancelled", "ana", "enough")
    assert "cancelled by ana: Cancelled: enough\n" in desk.run("run", "waiting", "b", "--key", "k").err


def test_a_question_that_ended_with_its_task_names_what_settles_its_call(desk: Desk, story: Story) -> None:
    desk.run("cancel", story.lead.task.id)

    late = desk.run("answer", story.question, "--give-up").out.splitlines()
    listed = desk.run("questions", "--all").out.splitlines()

    assert late[0].endswith("the task was cancelled; nothing changed")
    assert late[1] == "what settles its call"
    ways = [line.strip() for line in late[2:]]
    assert ways == [line.strip() for line in listed[3:]]
    assert all(line.startswith(f"perdure settle {story.child.task.id} ") for line in ways[1::2]) and ways
    desk.run(*shlex.split(ways[-1])[1:])
    assert len(desk.run("answer", story.question, "--give-up").out.splitlines()) == 1
    assert "perdure settle" not in desk.run("questions", "--all").out


@pytest.mark.parametrize("kind", ["shop.Blocked", "perdure.errors.Denied"])
def test_what_an_agent_s_error_says_of_somebody_is_not_told_as_who_ended_the_task(
    desk: Desk, world: World, kind: str
) -> None:
    claim = world.start()
    world.fail(claim, Error(kind, "no way through", "permanent", {"by": "proxy-7"}))

    pages = [desk.run(*words).out for words in (("why", claim.task.id), ("show", claim.task.id), ("ps", "--all"))]
    told = [desk.run(command, claim.task.id, "--json").json for command in ("why", "show")]

    for page in pages:
        assert "failed" in page and "by proxy-7" not in page
    for one in told:
        assert (one["ended_by"], one["ended_because"]) == (None, None)


def test_who_decided_not_to_resume_a_task_is_shown_afterwards(desk: Desk, world: World) -> None:
    claim = world.start(resume="ask")
    world.interrupt(claim)
    world.recover(claim.task.id)
    desk.run("deny", "Q1", "--because", "too late", "--by", "ana")

    assert re.search(r"\bfailed by ana .+ ago: ", desk.run("why", claim.task.id).out)
    assert desk.run("show", claim.task.id, "--json").json["ended_by"] == "ana"


def test_who_settled_a_call_and_why_is_shown_afterwards(desk: Desk, world: World) -> None:
    claim = world.start()
    step = world.begin(claim, "pay", name="paid_out", risk="high").step_index
    world.fail(claim)
    before = desk.run("effects", "--json").json["effects"]
    desk.run("settle", claim.task.id, str(step), "--happened", "--by", "ana", "--because", "it is in the ledger")

    pages = [desk.run(*words).out for words in (("why", claim.task.id), ("show", claim.task.id), ("effects",))]
    records = [desk.run("show", claim.task.id, "--json").json["records"][step]]
    records += desk.run("effects", "--json").json["effects"]
    records.append(desk.run("settle", claim.task.id, str(step), "--give-up", "--json").json)
    again = desk.run("settle", claim.task.id, str(step), "--give-up").out

    for page in pages:
        assert "settled by ana: it is in the ledger\n" in page
    for record in records:
        assert (record["settled_by"], record["settled_because"]) == ("ana", "it is in the ledger")
    assert again.endswith(" is completed, settled by ana: it is in the ledger; nothing changed\n")
    assert (before[0]["settled_by"], before[0]["settled_because"]) == (None, None)


def test_who_settled_a_call_is_told_of_that_try_alone(desk: Desk, world: World) -> None:
    claim = world.start()
    for number in (0, 1):
        world.begin(claim, "pay", name="paid_out", risk="high", try_number=number)
        if number == 0:
            world.end_step(claim, "pay", steps.Result(completed=False, output=packed("no")), risk="high")
    world.fail(claim)
    desk.run("settle", claim.task.id, "2", "--happened", "--by", "ana")

    shown = desk.run("show", claim.task.id, "--json").json["records"]
    effects = desk.run("effects", "--json").json["effects"]

    assert [one["settled_by"] for one in shown if one["name"] == "paid_out"] == [None, "ana"]
    assert sorted((one["step"], one["settled_by"]) for one in effects) == [(1, None), (2, "ana")]
    for words in (("show", claim.task.id), ("why", claim.task.id), ("effects",)):
        assert desk.run(*words).out.count("settled by ana") == 1
