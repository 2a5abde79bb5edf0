"""`perdure ps`, `why`, `show`, `questions`, `effects`, on a database with a story."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from perdure import codec
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.step import Note
from perdure.model.task import Wait, WaitKind, tail
from perdure.store import ends, messages, questions, steps
from tests.acceptance.cli.conftest import Story
from tests.command_line import Desk, shown_commands
from tests.world import World, packed, timer

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
    assert 'refund(order="o-9", amount=120)' in shown
    assert "in doubt" in shown
    assert "1 message: --messages prints it\n" in shown


def test_show_tells_of_a_child_whose_outcome_nobody_has_taken_where_it_stands(desk: Desk, story: Story) -> None:
    shown = desk.run("show", story.lead.task.id).out

    assert re.findall(r" (child \w+)  +", shown) == ["child waiting", "child completed"]


def test_show_and_why_tell_how_a_step_failed(desk: Desk, world: World) -> None:
    claim = world.start()
    error = {"type": "ValueError", "message": "bad 2", "class": "unknown", "attributes": {}, "place": "a.py:7 in act"}
    world.record(claim, "a", steps.Result(completed=False, output=packed(error)), name="act")
    world.record(claim, "b", steps.Result(completed=False, output=packed("no error")), name="act")
    world.fail(claim)

    assert "\n    ValueError: bad 2 (a.py:7 in act)\n" in desk.run("show", claim.task.id).out
    assert ": failed: ValueError: bad 2 (a.py:7 in act)\n" in desk.run("why", claim.task.id).out


def test_records_that_are_no_calls_are_left_out_of_show(desk: Desk, world: World) -> None:
    claim = world.start()
    notes = [Note("turn_state_entered", b"{}"), Note("text_emitted", b"{}")]
    world.store.call(ends.complete, claim.fence, packed(1), notes=notes, risk_seen="low")

    shown = desk.run("show", claim.task.id)

    assert "turn_state_entered" not in shown.out and "text_emitted" not in shown.out
    kinds = [one["kind"] for one in desk.run("show", claim.task.id, "--json").json["records"]]
    assert kinds[-2:] == ["turn_state_entered", "text_emitted"]


def test_an_imported_call_is_shown_with_its_arguments_alone(desk: Desk, world: World) -> None:
    claim = world.start()
    payload = packed({"arguments": {"order": "o-9"}, "batch": "2"})
    world.record(claim, "find", name="find_order", risk="high", payload=payload)

    for words in (["show", claim.task.id], ["why", claim.task.id], ["effects"]):
        assert 'find_order(order="o-9")' in desk.run(*words).out


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


def test_show_prints_values_as_json(desk: Desk, world: World) -> None:
    claim = world.start()
    result = {"notes": [{"by": ["ana", None]}], "ok": True}
    world.record(claim, "act", name="act", payload=packed({"dry": True, "to": None}))
    world.store.call(messages.append, claim.fence, NewMessage("assistant", codec.encode(result)), step_key="m")
    world.complete(claim, result)

    shown = desk.run("show", claim.task.id, "--messages").out

    (line,) = re.findall(r"^  result +(.+)$", shown, re.MULTILINE)
    assert json.loads(line) == result
    assert json.loads(shown.splitlines()[-1]) == result
    assert "act(dry=true, to=null)" in shown


# -- questions, effects ---------------------------------------------------------------------


def test_a_low_call_without_an_outcome_was_cut_off_once_its_task_has_ended(desk: Desk, world: World) -> None:
    claim = world.start()
    world.begin(claim, "search", name="search", risk="low")
    before = desk.run("show", tail(claim.task.id)).out
    world.complete(claim)

    after = desk.run("show", tail(claim.task.id)).out

    assert ("not ended" in before, "cut off" in before) == (True, False)
    assert ("not ended" in after, "cut off" in after) == (False, True)


def test_questions_say_what_they_rest_on(desk: Desk, story: Story) -> None:
    head, line, rests_on, *commands = desk.run("questions", "--to", "finance").out.splitlines()

    assert head.split() == ["ID", "TASK", "AGE", "QUESTION"]
    assert re.fullmatch(r'Q1  writer …\S+  .* (s|min) +did refund\(order="o-9", amount=120\) happen\?', line)
    assert "it died inside; reconcile: not listed yet" in rests_on
    verdicts = ["--happened --result JSON", "--not-happened", "--give-up"]
    assert [line for line in commands if "perdure" in line] == [f"      perdure answer Q1 {one}" for one in verdicts]
    assert desk.run("questions", "--to", "nobody").err == "no open questions\n"
    (told,) = desk.run("questions", "--json").json["questions"]
    assert told["evidence"]["arguments"] == {"order": "o-9", "amount": 120}


def test_a_deadline_to_come_stands_in_the_lists(desk: Desk, world: World) -> None:
    claim = world.start(deadline_at=world.clock.now_ms() + 3_600_000)
    world.ask(claim, QuestionKind.CALL, text="may it run?")

    assert re.search(r"because .+; its deadline is in 59 min, at ", desk.run("ps").out)
    assert re.search(r"^    its task's deadline is in 59 min, at ", desk.run("questions").out, re.MULTILINE)


def test_questions_say_a_reason_once(desk: Desk, world: World) -> None:
    evidence = packed({"tool": "act", "arguments": {}, "why": "The code is new."})
    world.ask(world.start(), QuestionKind.CALL, text="may act() run? The code is new.", evidence=evidence)

    assert desk.run("questions").out.count("The code is new.") == 1


def test_all_questions_say_what_became_of_each(desk: Desk, world: World) -> None:
    claim = world.start()
    for number, kind in enumerate((QuestionKind.CALL, QuestionKind.ASK, QuestionKind.ASK, QuestionKind.CALL), 1):
        world.ask(claim, kind, text=f"which {number}?", step_key=f"ask{number}", to="ana")
    desk.run("deny", "Q1", "--because", "too dear", "--by", "ana")
    desk.run("answer", "Q2", "blue", "--by", "ben")
    world.execute("UPDATE questions SET expires_at = 1 WHERE id = 'Q3'")
    world.store.call(questions.expire_one, "Q3")

    page = desk.run("questions", "--all").out.splitlines()
    told = desk.run("questions", "--all", "--json").json["questions"]

    assert [line.split()[0] for line in page if line.startswith("Q")] == ["Q1", "Q2", "Q3", "Q4"]
    assert re.fullmatch(r"    denied, by ana, .+: too dear", page[2])
    assert re.fullmatch(r'    answered "blue", by ben, .+', page[4])
    assert re.fullmatch(r"    expired, .+: nobody answered in time", page[6])
    assert shown_commands("\n".join(page[8:])) == ["perdure approve Q4", 'perdure deny Q4 --because "…"']
    said = [(one["status"], one["answered_by"], one["answer"]) for one in told]
    assert said == [
        ("denied", "ana", None),
        ("answered", "ben", "blue"),
        ("expired", None, None),
        ("open", None, None),
    ]
    assert [one["answered_at"] is None for one in told] == [False, False, False, True]
    world.complete(claim)
    assert desk.run("questions").err == "no open questions\n"
    assert "cancelled, " in desk.run("questions", "--all", "--to", "ana", "--after", "3").out
    assert desk.run("questions", "--all", "--to", "nobody").err == "no questions\n"


def test_effects_name_the_call_its_outcome_and_where_it_ran(desk: Desk, story: Story) -> None:
    head, line, *_ = desk.run("effects", "--in-doubt").out.splitlines()

    assert head.split() == ["BEGAN", "RISK", "CALL", "OUTCOME", "TASK", "STEP", "WHERE"]
    assert 'high  refund(order="o-9", amount=120)  in doubt  writer …' in line
    assert re.search(r" writer …\S+  \d+ +attempt 1, host host, pid 1$", line)
    assert desk.run("effects", "--since", "1s").err == "no calls that may have changed the world\n"
    assert len(desk.run("effects", "--since", "1h", "--json").json["effects"]) == 1
    assert desk.run("effects", "--since", "someday").code == 2


def test_a_call_that_is_being_made_is_not_in_doubt(desk: Desk, world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")

    assert "running" in desk.run("effects").out
    assert desk.run("effects", "--in-doubt").out == ""


@pytest.mark.parametrize("listing", ["ps", "questions", "questions --all", "effects"])
def test_every_list_goes_on_where_a_page_ended(desk: Desk, world: World, listing: str) -> None:
    claim = world.start()
    for number in range(5):
        world.start()
        world.begin(claim, f"pay{number}", name="pay", risk="high")
        world.ask(claim, QuestionKind.ASK, text=f"which {number}?", step_key=f"ask{number}")
    command = listing.split()
    name = {"ps": "tasks"}.get(command[0], command[0])
    everything = desk.run(*command, "--json").json[name]

    first = desk.run(*command, "--limit", "2")
    seen, after = [], ["--limit", "2"]
    while page := desk.run(*command, "--json", *after).json:
        seen += page[name]
        if page["after"] is None:
            break
        after = ["--limit", "2", "--after", page["after"]]

    assert first.err.startswith("there may be more: --after ")
    assert (len(everything) >= 5, seen) == (True, everything)
    assert desk.run(*command, "--after", "x-y").code == 2


# -- the commands that are shown ------------------------------------------------------------


def test_no_shown_line_runs_two_alternatives_when_it_is_pasted(desk: Desk, story: Story, world: World) -> None:
    """`perdure approve Q4 | perdure deny Q4` would run both, `settle T 1 --happened | …` the first."""
    claim = world.start()
    world.ask(claim, QuestionKind.CALL, text="may it run?")
    left = world.start()
    world.begin(left, "pay", name="pay", risk="high")
    world.fail(left)
    pages = [["questions"], ["ps", "--all"], ["effects", "--in-doubt"], ["doctor"], ["cancel", story.lead.task.id]]
    pages += [["why", task.id] for task in (claim.task, left.task, story.child.task)]

    for words in pages:
        for line in desk.run(*words).out.splitlines():
            assert "|" not in line
            assert line.count("perdure ") <= 1


def test_every_shown_command_names_the_database_that_was_named(desk: Desk, story: Story, world: World) -> None:
    left = world.start()
    world.begin(left, "pay", name="pay", risk="high")
    world.fail(left)
    flag = ["--db", str(desk.db)]
    pages = [["questions"], ["ps", "--all"], ["effects", "--in-doubt"], ["doctor"]]
    pages += [["why", task_id] for task_id in (story.child.task.id, story.nightly, left.task.id)]

    for words in pages:
        said = desk.run(*words, *flag).out
        commands = [line[line.index("perdure ") :] for line in said.splitlines() if re.search("perdure [a-z]", line)]
        assert commands
        assert all(f" --db {desk.db}" in command for command in commands), commands


def test_a_worker_is_named_with_the_app_that_it_must_be_told(
    desk: Desk, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = f"{desk.module}:app"
    known = desk.run("why", story.nightly).out
    monkeypatch.delenv("PERDURE_APP")
    unknown, named = desk.run("why", story.nightly).out, desk.run("why", story.nightly, "--app", app).out

    for said, worker in ((known, "worker"), (unknown, "worker MODULE:APP"), (named, f"worker {app}")):
        assert f"start one with perdure {worker}\n" in said
        assert re.search(rf"^  a worker that has agent nightly .*\n    perdure {worker}$", said, re.MULTILINE)


def test_a_call_that_an_ended_task_left_in_doubt_is_listed_with_what_settles_it(desk: Desk, world: World) -> None:
    claim = world.start()
    step = world.begin(claim, "pay", name="a tool that no code has", risk="high").step_index
    world.fail(claim)

    lines = desk.run("effects", "--in-doubt").out.splitlines()

    settle = f"      perdure settle {claim.task.id} {step}"
    assert lines[2:] == [
        "    it happened, and JSON is what it returned",
        f"{settle} --happened --result JSON",
        "    it happened, if it is a call that returns nothing",
        f"{settle} --happened",
        "    it did not",
        f"{settle} --not-happened",
        "    nobody can find out",
        f"{settle} --give-up",
    ]


def test_what_settles_a_call_fits_its_tool(desk: Desk, world: World) -> None:
    claim = world.start()
    evidence = packed({"tool": "elsewhere", "arguments": {}, "returns": "None"})
    for name in ("send_email", "elsewhere"):
        world.begin(claim, name, name=name, risk="high")
    world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it?", step_key="elsewhere", evidence=evidence)
    world.fail(claim)

    for page in (["effects"], ["why", claim.task.id]):
        shown = re.findall(r"perdure settle \S+ \d+ (--happened.*)", desk.run(*page).out)
        assert shown == ["--happened --result JSON", "--happened"]


def test_a_call_in_doubt_of_an_open_task_is_listed_with_what_decides_about_it(desk: Desk, world: World) -> None:
    undecided, asked = world.start(), world.start()
    for claim in (undecided, asked):
        world.begin(claim, "pay", name="pay", risk="high")
    one = world.ask(asked, QuestionKind.STEP_IN_DOUBT, text="?", step_key="pay", evidence=packed({"returns": "str"}))
    world.set_aside(undecided, *timer(world.clock.now_ms() + 3_600_000))
    world.set_aside(asked, Wait(WaitKind.QUESTION, (one.id,)))

    first, second, _, *decides = desk.run("effects", "--in-doubt").out.splitlines()[2:]

    assert (first, second) == ("    what decides about it", f"      perdure why {undecided.task.id}")
    assert decides == desk.run("questions").out.splitlines()[2:]
    assert decides[1] == "      perdure answer Q1 --happened --result JSON"


def test_what_decides_about_a_call_is_found_behind_any_number_of_later_questions(desk: Desk, world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")
    first = world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it?", step_key="pay")
    for number in range(51):
        later = world.ask(claim, QuestionKind.ASK, text="which?", step_key=f"ask{number}")
        world.store.call(questions.answer, later.id, by="ana", value=packed("blue"))
    world.set_aside(claim, Wait(WaitKind.QUESTION, (first.id,)))

    in_time = [desk.run(*words).out for words in (["effects", "--in-doubt"], ["why", claim.task.id])]
    world.execute(f"UPDATE tasks SET deadline_at = 1 WHERE id = '{claim.task.id}'")
    late = [desk.run(*words).out for words in (["effects", "--in-doubt"], ["why", claim.task.id], ["ps"])]

    assert all("    perdure answer Q1 --give-up\n" in page for page in in_time)
    assert all("whatever is answered" in page for page in late)


@pytest.mark.parametrize("page", ["why", "questions", "effects", "settle", "resume", "answer"])
def test_every_shown_command_can_be_pasted(desk: Desk, story: Story, world: World, page: str) -> None:
    """Its whole line does what stands above it, or is told what to fill in; it is never a usage error."""
    world.ask(world.start(), QuestionKind.CALL, text="may it run?", step_key="call")
    world.ask(world.start(), QuestionKind.ASK, text="how many?", step_key="ask")
    left = world.start()
    world.begin(left, "pay", name="pay", risk="high")
    world.fail(left)
    question = world.ask(ended := world.start(), QuestionKind.STEP_IN_DOUBT, text="did it?", step_key="pay")
    world.begin(ended, "pay", name="pay", risk="high")
    world.store.call(ends.cancel, ended.task.id)
    page_of = {"why": ["why", story.child.task.id], "settle": ["why", left.task.id]}
    page_of |= {"resume": ["resume", story.child.task.id], "answer": ["answer", question.id, "--give-up"]}
    shown = shown_commands(desk.run(*page_of.get(page, [page])).out)

    assert shown
    for command in reversed(shown):
        said = desk.run(*shlex.split(command)[1:])
        assert (
            said.code in (0, 1)
            or "say what it returned" in said.err
            or said.err.endswith(("write '\"JSON\"'\n", "which the agent is told\n", "write '\"VALUE\"'\n"))
        ), command
