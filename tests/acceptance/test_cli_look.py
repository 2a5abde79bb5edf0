"""`perdure ps`, `why`, `show`, `questions`, `effects`, and the commands that decide, on a database with a story."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import codec
from perdure.clock import FakeClock, SeededIds
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Usage, Wait, WaitKind, tail
from perdure.store import instances, messages, open_store
from tests.command_line import Desk
from tests.world import World, done, packed, timer


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


@pytest.fixture
def world(desk: Desk) -> Iterator[World]:
    """The desk's database, prepared by hand; the clock stands at the present."""
    clock = FakeClock(wall_ms=time.time_ns() // 1_000_000 - 60_000)
    with open_store(str(desk.db), clock=clock, ids=SeededIds(1)) as store:
        yield World(store, clock)


@dataclass
class Story:
    """A lead that waits for a child, which waits for a person; one that nobody can run; one that has ended."""

    lead: Claim
    child: Claim
    question: str
    nightly: str
    ended: Claim


@pytest.fixture
def story(world: World) -> Story:
    lead = world.start()
    children = [world.spawn(lead, f"c{number}") for number in range(2)]
    child = world.claim(children[0].id)
    world.record(child, "look", done(["hit"], usage=Usage(900, 40)), name="search")
    world.begin(child, "pay", name="refund", risk="high", payload=packed({"order": "o-9", "amount": 120}))
    world.store.call(messages.append, child.fence, NewMessage("user", codec.encode("pay \x1b[31mo-9")), step_key="m")
    evidence = {"tool": "refund", "arguments": {"order": "o-9", "amount": 120}, "cause": "it died inside",
                "reconcile": "not listed yet", "started_at": world.clock.now_ms()}  # fmt: skip
    question = world.ask(
        child,
        QuestionKind.STEP_IN_DOUBT,
        text='did refund(order="o-9", amount=120) happen?',
        to="finance",
        step_key="pay",
        evidence=packed(evidence),
    )
    world.set_aside(child, Wait(WaitKind.QUESTION, (question.id,)))
    world.complete(world.claim(children[1].id))
    world.set_aside(lead, Wait(WaitKind.CHILDREN, tuple(one.id for one in children)))
    nightly = world.admit(agent="nightly")
    ended = world.start()
    world.complete(ended, {"answer": 42})
    return Story(lead, child, question.id, nightly.id, ended)


# -- ps -------------------------------------------------------------------------------------


def test_every_open_task_is_listed_with_its_because(desk: Desk, story: Story) -> None:
    said = desk.run("ps")

    head, *rows = said.out.splitlines()
    lines = {line.split()[1]: line for line in rows}
    assert head.split() == ["AGENT", "TASK", "STATUS", "AGE", "WHY"]
    child, lead, nightly = (tail(one) for one in (story.child.task.id, story.lead.task.id, story.nightly))
    assert set(lines) == {child, lead, nightly}
    assert f"because 1 of 2 children is not done: writer {child}" in lines[lead]
    assert 'because question Q1 is open: did refund(order="o-9", amount=120) happen?  (to finance)' in lines[child]
    assert "because no live worker has agent nightly (none ever had)" in lines[nightly]
    assert (said.code, said.err) == (0, "")


def test_columns_are_aligned_and_nothing_is_cut(desk: Desk, story: Story) -> None:
    head, *lines = desk.run("ps").out.splitlines()

    assert {line.index("because") for line in lines} == {head.index("WHY")}
    assert max(map(len, lines)) > 80
    assert not any(line.endswith(("…", "...")) for line in lines)


def test_one_long_name_does_not_push_the_other_rows_aside(desk: Desk, world: World) -> None:
    for agent in ("a", "b", "c", "claude-code:" + "x" * 45):
        world.admit(agent=agent)

    head, *lines = desk.run("ps").out.splitlines()

    assert head.startswith("AGENT  TASK")
    assert sorted(line.index("…") for line in lines) == [7, 7, 7, 59]


def test_ids_are_short_though_a_task_stands_there_twice(desk: Desk, world: World) -> None:
    claim = world.start()
    for number in range(2):
        world.begin(claim, f"pay{number}", name="pay", risk="high")
        world.ask(claim, QuestionKind.ASK, text="which?", step_key=f"ask{number}")

    said = desk.run("effects").out + desk.run("questions").out

    assert said.count(f"writer {tail(claim.task.id)} ") == 4
    assert claim.task.id not in said


def test_filters_narrow_the_list(desk: Desk, story: Story) -> None:
    assert len(desk.run("ps", "--agent", "nightly").out.splitlines()) == 1 + 1
    assert len(desk.run("ps", "--status", "waiting").out.splitlines()) == 1 + 2
    assert len(desk.run("ps", "--status", "completed").out.splitlines()) == 1 + 2
    assert len(desk.run("ps", "--all").out.splitlines()) == 1 + 5
    assert desk.run("ps", "--status", "asleep").code == 2
    assert desk.run("ps", "--agent", "nobody").err == "no open tasks\n"


def test_pages_follow_each_other_without_a_gap(desk: Desk, story: Story) -> None:
    everything = [task["id"] for task in desk.run("ps", "--json").json["tasks"]]
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = desk.run("ps", "--json", "--limit", "1", *after).json
        seen += [task["id"] for task in page["tasks"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]

    assert seen == everything


def test_a_page_says_how_to_go_on(desk: Desk, story: Story) -> None:
    first = desk.run("ps", "--limit", "1")

    assert first.err.startswith("there may be more: --after ")
    cursor = first.err.split()[-1]
    assert desk.run("ps", "--limit", "1", "--after", cursor).out != first.out


# -- why, show ------------------------------------------------------------------------------


def test_why_takes_any_unique_ending(desk: Desk, story: Story) -> None:
    whole = desk.run("why", story.child.task.id)

    assert desk.run("why", tail(story.child.task.id)) == whole
    assert desk.run("why", story.child.task.id[-4:].lower()) == whole
    assert "perdure answer Q1 --happened" in whole.out


def test_why_of_an_unknown_task_says_so(desk: Desk, story: Story) -> None:
    assert desk.run("why", "ZZZZZZ").code == 3
    assert desk.run("why", "ZZZZZZ").err == "perdure: no task's id ends in ZZZZZZ; `perdure ps --all` lists them\n"


def test_why_tells_as_json_what_it_tells_in_lines(desk: Desk, story: Story) -> None:
    told = desk.run("why", story.lead.task.id, "--json").json

    page = desk.run("why", story.lead.task.id).out
    assert list(told["why"]) == ["evidence", "answers", "rule", "tried", "what_moves_it_on"]
    for title, lines in told["why"].items():
        section = "\n".join([title.replace("_", " "), *(f"  {line}" for line in lines)])
        assert not lines or section in page
    assert told["because"].startswith("1 of 2 children")


def test_show_has_header_trace_and_usage(desk: Desk, story: Story) -> None:
    shown = desk.run("show", story.child.task.id).out

    assert shown.startswith(f"writer {story.child.task.id} is waiting because question Q1 is open: ")
    assert "0 model calls, 2 tool calls, 940 tokens" in shown
    assert re.search(r"tool_call +completed +search\(", shown)  # how long a low call took is not known
    assert "STEP  AT        KIND" in shown
    assert "  call       writer(" in shown
    assert "turn_started" not in shown
    assert 'refund(amount=120, order="o-9")' in shown
    assert "in doubt" in shown
    assert "1 message: --messages prints it\n" in shown


def test_show_prints_the_conversation_and_a_terminal_is_safe_from_it(desk: Desk, story: Story) -> None:
    shown = desk.run("show", story.child.task.id, "--messages").out

    assert "\\x1b[31mo-9" in shown
    assert "\x1b" not in shown


def test_show_at_a_step_is_as_it_was(desk: Desk, story: Story) -> None:
    whole = desk.run("show", story.child.task.id, "--json").json
    part = desk.run("show", story.child.task.id, "--step", "1", "--json").json

    assert part["records"] == whole["records"][:2]
    assert (part["last_step"], part["complete"], whole["complete"]) == (1, True, False)
    assert part["transcript"] == []
    assert len(whole["transcript"]) == 1
    assert desk.run("show", story.child.task.id, "--step", "99").code == 2


def test_show_of_an_ended_task_has_its_result(desk: Desk, story: Story) -> None:
    assert desk.run("show", story.ended.task.id, "--json").json["result"] == {"answer": 42}
    assert 'result     {"answer": 42}' in desk.run("show", story.ended.task.id).out


# -- questions, effects ---------------------------------------------------------------------


def test_questions_say_what_they_rest_on(desk: Desk, story: Story) -> None:
    head, line, rests_on, command = desk.run("questions", "--to", "finance").out.splitlines()

    assert head.split() == ["ID", "TASK", "AGE", "QUESTION"]
    assert re.fullmatch(r'Q1  writer …\S+  .* (s|min) +did refund\(order="o-9", amount=120\) happen\?', line)
    assert "it died inside; reconcile: not listed yet" in rests_on
    assert command == "    perdure answer Q1 --happened | --not-happened | --give-up"
    assert desk.run("questions", "--to", "nobody").err == "no open questions\n"
    (told,) = desk.run("questions", "--json").json["questions"]
    assert told["evidence"]["arguments"] == {"order": "o-9", "amount": 120}


def test_effects_name_the_call_its_outcome_and_where_it_ran(desk: Desk, story: Story) -> None:
    head, line = desk.run("effects", "--in-doubt").out.splitlines()

    assert head.split() == ["BEGAN", "RISK", "CALL", "OUTCOME", "TASK", "WHERE"]
    assert 'high  refund(amount=120, order="o-9")  in doubt  writer …' in line
    assert line.endswith("attempt 1, host host, pid 1")
    assert desk.run("effects", "--since", "1s").err == "no calls that may have changed the world\n"
    assert len(desk.run("effects", "--since", "1h", "--json").json["effects"]) == 1
    assert desk.run("effects", "--since", "someday").code == 2


def test_a_call_that_is_being_made_is_not_in_doubt(desk: Desk, world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")

    assert "running" in desk.run("effects").out
    assert desk.run("effects", "--in-doubt").out == ""


@pytest.mark.parametrize("listing", ["ps", "questions", "effects"])
def test_every_list_goes_on_where_a_page_ended(desk: Desk, world: World, listing: str) -> None:
    claim = world.start()
    for number in range(5):
        world.start()
        world.begin(claim, f"pay{number}", name="pay", risk="high")
        world.ask(claim, QuestionKind.ASK, text=f"which {number}?", step_key=f"ask{number}")
    name = {"ps": "tasks"}.get(listing, listing)
    everything = desk.run(listing, "--json").json[name]

    first = desk.run(listing, "--limit", "2")
    seen, after = [], ["--limit", "2"]
    while page := desk.run(listing, "--json", *after).json:
        seen += page[name]
        if page["after"] is None:
            break
        after = ["--limit", "2", "--after", page["after"]]

    assert first.err.startswith("there may be more: --after ")
    assert (len(everything) >= 5, seen) == (True, everything)
    assert desk.run(listing, "--after", "x-y").code == 2


# -- deciding -------------------------------------------------------------------------------


def test_a_second_answer_is_told_the_first(desk: Desk, story: Story) -> None:
    first = desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana")
    second = desk.run("answer", "Q1", "--give-up", "--by", "bob")

    assert first.out == 'Q1 answered by ana: did refund(order="o-9", amount=120) happen?\n'
    assert second.code == 1
    assert second.out.startswith("Q1 was already answered by ana ")
    assert second.out.endswith(" ago; nothing changed\n")
    assert desk.run("ps", "--status", "pending", "--agent", "writer").out != ""


def test_who_answered_what_and_why_is_shown_afterwards(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana", "--because", "it is in the ledger")

    pages = [desk.run(command, story.child.task.id).out for command in ("why", "show")]

    for page in pages:
        assert 'Q1 did refund(order="o-9", amount=120) happen? it happened, by ana, ' in page
        assert ": it is in the ledger\n" in page
    (told,) = desk.run("show", story.child.task.id, "--json").json["questions"]
    assert (told["answer"], told["answered_by"]) == ({"verdict": "happened", "result": "r-88"}, "ana")


def test_each_kind_of_answer_is_told_in_words(desk: Desk, world: World) -> None:
    claim = world.start()
    for kind in (QuestionKind.CALL, QuestionKind.CALL, QuestionKind.ASK, QuestionKind.STEP_IN_DOUBT):
        world.ask(claim, kind, text=f"{kind}?", step_key=f"s{len(world.rows('SELECT n FROM questions'))}")
    desk.run("approve", "Q1", "--by", "ana")
    desk.run("deny", "Q2", "--because", "too dear", "--by", "bob")
    desk.run("answer", "Q3", "blue", "--by", "cleo")
    desk.run("answer", "Q4", "--not-happened", "--anyway", "--by", "dan")

    said = desk.run("why", claim.task.id).out

    assert "Q1 call? approved, by ana, " in said
    assert "Q2 call? denied, by bob, " in said and ": too dear\n" in said
    assert 'Q3 ask? answered "blue", by cleo, ' in said
    assert "Q4 step_in_doubt? it did not happen, to run without proof that its old worker is dead, by dan, " in said


def test_anyway_adds_to_an_answer_that_is_stored(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--not-happened", "--by", "ana")

    added = desk.run("answer", "Q1", "--not-happened", "--anyway", "--by", "bob", "--json")

    assert (added.code, added.json["changed"], added.json["answered_by"]) == (0, True, "ana")


def test_anyway_changes_nothing_where_the_answer_runs_nothing(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana")

    late = desk.run("answer", "Q1", "--not-happened", "--anyway", "--by", "bob")

    assert late.code == 1
    assert late.out.startswith("Q1 was already answered by ana ")
    assert late.out.endswith(" ago; nothing changed\n")


def test_a_call_that_an_ended_task_left_in_doubt_is_settled_by_hand(desk: Desk, story: Story) -> None:
    task_id = story.child.task.id
    (number,) = [one["step"] for one in desk.run("show", task_id, "--json").json["records"] if one["name"] == "refund"]
    early = desk.run("settle", task_id, str(number), "--happened", "--result", '"r-88"', "--by", "ana")
    desk.run("cancel", task_id)

    first = desk.run("settle", task_id, str(number), "--happened", "--result", '"r-88"', "--by", "ana")
    second = desk.run("settle", task_id, str(number), "--not-happened", "--json")

    assert (early.code, "has not ended" in early.err) == (1, True)
    assert (first.code, first.out) == (0, 'refund(amount=120, order="o-9") is completed\n')
    assert (second.code, second.json["changed"], second.json["output"]) == (1, False, "r-88")
    assert desk.run("effects", "--in-doubt").out == ""
    assert desk.run("settle", task_id, str(number)).code == 2


def test_a_late_answer_is_told_why_it_is_late(desk: Desk, world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.CALL, text="may it run?", expires_at_ms=world.clock.now_ms() + 1)
    world.ask(claim, QuestionKind.ASK, text="which?", step_key="s")
    world.clock.advance(10)
    world.expire()
    world.complete(claim)

    expired, cancelled = desk.run("approve", "Q1"), desk.run("answer", "Q2", "blue")

    assert (expired.code, cancelled.code) == (1, 1)
    assert "Q1 expired" in expired.out and "nobody had answered in time; nothing changed" in expired.out
    assert "Q2 was cancelled" in cancelled.out


@pytest.mark.parametrize(
    "words",
    [
        ["answer", "Q1"],
        ["answer", "Q1", "yes"],
        ["answer", "Q1", "--happened", "--give-up"],
        ["answer", "Q1", "--give-up", "--result", "1"],
        ["answer", "Q1", "--happened", "--anyway"],
        ["answer", "Q1", "--happened", "--result", "{no json"],
        ["approve", "Q1"],
        ["deny", "Q1", "--because", "no"],
        ["deny", "Q1"],
        ["deny", "Q1", "--because", " "],
    ],
)
def test_an_answer_of_the_wrong_kind_is_refused(desk: Desk, story: Story, words: list[str]) -> None:
    said = desk.run(*words)

    assert said.code == 2
    assert said.err.startswith("perdure: ")
    assert len(said.err.splitlines()) == 1
    assert len(desk.run("questions", "--json").json["questions"]) == 1


def test_a_question_is_found_in_small_letters_too(desk: Desk, story: Story) -> None:
    assert desk.run("answer", "q1", "--give-up").out.startswith("Q1 answered by ")


def test_a_result_that_is_no_json_says_how_to_write_a_text(desk: Desk, story: Story) -> None:
    said = desk.run("answer", "Q1", "--happened", "--result", "m-1")

    assert said.err.endswith(""". For a text write '"m-1"'\n""")


def test_a_result_must_be_what_the_tool_returns(desk: Desk, world: World) -> None:
    claim = world.start()
    evidence = packed({"tool": "refund", "arguments": {}})
    world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it happen?", evidence=evidence)

    refused = desk.run("answer", "Q1", "--happened", "--result", "5")

    assert refused.code == 2
    assert refused.err == "perdure: --result of refund must be str; '5' is not\n"
    assert desk.run("answer", "Q1", "--happened", "--result", '"r-1"').code == 0


def test_a_tool_that_returns_something_needs_a_result(desk: Desk, world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it?", evidence=packed({"tool": "refund", "arguments": {}}))

    refused = desk.run("answer", "Q1", "--happened")

    assert refused.code == 2
    assert refused.err.startswith("perdure: refund returns str: say what it returned, with --result JSON")
    assert len(desk.run("questions", "--json").json["questions"]) == 1


@pytest.mark.parametrize(
    ("wants", "word", "value"),
    [("bool", "yes", True), ("bool", "no", False), ("int", "7", 7), ("float", "1", 1.0), ("str", "7", "7"),
     ("any", '{"a": 1}', {"a": 1}), ("any", "plain", "plain")],
)  # fmt: skip
def test_an_answer_is_of_the_type_that_was_asked_for(
    desk: Desk, world: World, wants: str, word: str, value: object
) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="what?", evidence=packed({"wants": wants}))

    assert desk.run("answer", "Q1", word, "--json").code == 0

    ((stored,),) = world.rows("SELECT answer FROM questions")
    assert codec.decode(codec.unpack(stored, lambda _: {})) == value


@pytest.mark.parametrize(
    ("wants", "word", "shown"),
    [("bool", "maybe", '"maybe"'), ("int", "1.5", "1.5"), ("int", "true", "True"), ("float", "x", '"x"')],
)
def test_an_answer_of_another_type_is_refused(desk: Desk, world: World, wants: str, word: str, shown: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="what?", evidence=packed({"wants": wants}))

    said = desk.run("answer", "Q1", word)

    assert (said.code, f" {wants}, not {shown}: " in said.err) == (2, True)
    assert said.err.startswith("perdure: Q1 wants an int, " if wants == "int" else "perdure: Q1 wants a ")


def test_cancel_takes_the_children_along_and_says_when_it_was_late(desk: Desk, story: Story) -> None:
    done_ = desk.run("cancel", story.lead.task.id, "--because", "no longer needed", "--by", "ana")
    late = desk.run("cancel", story.lead.task.id)

    assert (done_.code, late.code) == (0, 1)
    assert late.out.startswith(f"writer {story.lead.task.id} cancelled ")
    assert late.out.endswith("Cancelled: no longer needed; nothing changed\n")
    assert desk.run("questions").out == ""
    assert desk.run("show", story.child.task.id, "--json").json["status"] == "cancelled"


def test_resume_says_yes_to_the_open_question(desk: Desk, world: World) -> None:
    claim = world.start(resume="ask")
    world.interrupt(claim)
    world.recover(claim.task.id)

    said = desk.run("resume", claim.task.id, "--by", "ana")

    assert said.code == 0
    assert said.out.startswith(f"approved Q1: writer {claim.task.id} is pending because ")


def test_resume_decides_where_nobody_has_decided_yet(desk: Desk, world: World) -> None:
    free, careful = world.start(), world.start(risk="high")
    world.interrupt(free)
    world.interrupt(careful)

    goes_on, asks = desk.run("resume", free.task.id), desk.run("resume", careful.task.id)

    assert (goes_on.code, asks.code) == (0, 1)
    assert goes_on.out.startswith("decided auto_resume (rule resume): ")
    assert asks.out.startswith("decided pending_confirmation (rule declared_risk): ")
    assert "question Q1 is open" in asks.out


def test_resume_of_a_task_that_is_not_interrupted_says_why_not(desk: Desk, world: World) -> None:
    claim = world.start()
    world.set_aside(claim, *timer(world.clock.now_ms() + 3_600_000))

    said = desk.run("resume", claim.task.id)

    assert said.code == 1
    assert said.out.startswith(f"nothing changed: writer {claim.task.id} is waiting because it sleeps until ")


def test_a_dead_worker_is_named_until_another_looks(desk: Desk, world: World) -> None:
    claim = world.start()
    seen = world.store.read(instances.get, world.worker.id)

    said = desk.run("ps").out

    assert f"because its worker (host {seen.host}, pid {seen.pid}) has been silent for 1 min" in said
    assert tail(claim.task.id) in said
