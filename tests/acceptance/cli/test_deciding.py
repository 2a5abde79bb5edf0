"""The commands that decide: answer, approve, deny, settle, cancel, resume, on a database with a story."""

from __future__ import annotations

import re

import pytest

from perdure import codec
from perdure.model.question import QuestionKind
from perdure.model.task import Wait, WaitKind, tail
from perdure.store import instances
from tests.acceptance.cli.conftest import Story
from tests.command_line import Desk
from tests.world import World, packed, timer


def test_a_second_answer_is_told_the_first(desk: Desk, story: Story) -> None:
    first = desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana")
    second = desk.run("answer", "Q1", "--give-up", "--by", "bob")

    assert first.out == 'Q1 answered by ana: did refund(order="o-9", amount=120) happen?\n'
    assert second.code == 1
    assert second.out.startswith("Q1 was already answered by ana ")
    assert second.out.endswith(' ago: it happened and returned "r-88"; nothing changed\n')
    assert desk.run("ps", "--status", "pending", "--agent", "writer").out != ""


def test_who_answered_what_and_why_is_shown_afterwards(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana", "--because", "it is in the ledger")

    pages = [desk.run(command, story.child.task.id).out for command in ("why", "show")]

    for page in pages:
        assert 'Q1 did refund(order="o-9", amount=120) happen? it happened and returned "r-88", by ana, ' in page
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


@pytest.mark.parametrize("wants", ["any", "str"])
def test_a_shown_answer_that_is_pasted_as_it_stands_decides_nothing(desk: Desk, world: World, wants: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="which?", evidence=packed({"wants": wants}))

    pasted = desk.run("answer", "Q1", "VALUE")
    meant = desk.run("answer", "Q1", '"VALUE"', "--json")

    assert pasted.code == 2
    assert pasted.err == (
        "perdure: Q1: VALUE says nothing; write the answer in its place. For the word itself write '\"VALUE\"'\n"
    )
    assert (meant.json["answer"], meant.json["changed"]) == ("VALUE", True)


def test_json_has_what_was_answered_also_for_who_comes_second(desk: Desk, world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.ASK, text="which?", step_key="a")
    world.ask(claim, QuestionKind.CALL, text="may it run?", step_key="b")

    first, second = (desk.run("answer", "Q1", colour, "--by", "ana", "--json") for colour in ("blue", "red"))
    in_words = desk.run("answer", "Q1", "red")
    desk.run("deny", "Q2", "--because", "too dear", "--by", "ben")
    denied = desk.run("approve", "Q2")

    told = [(said.json["answer"], said.json["answered_by"], said.json["changed"]) for said in (first, second)]
    assert told == [("blue", "ana", True), ("blue", "ana", False)]
    assert in_words.out.startswith("Q1 was already answered by ana ")
    assert in_words.out.endswith(' ago: answered "blue"; nothing changed\n')
    assert denied.out.startswith("Q2 was already denied by ben ")
    assert denied.out.endswith(" ago: too dear; nothing changed\n")


def test_an_answer_after_the_deadline_of_its_task_says_that_it_comes_too_late(desk: Desk, world: World) -> None:
    claim = world.start(deadline_at=world.clock.now_ms() + 3000)
    question = world.ask(claim, QuestionKind.ASK, text="which?")
    world.set_aside(claim, Wait(WaitKind.QUESTION, (question.id,)))

    looked = {command[0]: desk.run(*command).out for command in (("ps",), ("why", claim.task.id), ("questions",))}
    answered = desk.run("answer", "Q1", "blue")
    told = desk.run("answer", "Q1", "blue", "--json").json

    for page in looked.values():
        assert re.search(r"its deadline passed .+ ago: it ends as timed out, whatever is answered", page)
        assert "perdure answer" not in page
    assert (answered.code, answered.out.startswith("Q1 answered by ")) == (0, True)
    assert f"the answer is on record, but comes too late for writer {tail(claim.task.id)}: its deadline" in answered.err
    assert "once more" not in answered.err
    assert told["too_late"].startswith("its deadline passed ")


def test_anyway_adds_to_an_answer_that_is_stored(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--not-happened", "--by", "ana")

    added = desk.run("answer", "Q1", "--not-happened", "--anyway", "--by", "bob", "--json")

    assert (added.code, added.json["changed"], added.json["answered_by"]) == (0, True, "ana")


def test_anyway_changes_nothing_where_the_answer_runs_nothing(desk: Desk, story: Story) -> None:
    desk.run("answer", "Q1", "--happened", "--result", '"r-88"', "--by", "ana")

    late = desk.run("answer", "Q1", "--not-happened", "--anyway", "--by", "bob")

    assert late.code == 1
    assert late.out.startswith("Q1 was already answered by ana ")
    assert late.out.endswith(' ago: it happened and returned "r-88"; nothing changed\n')


def test_a_call_that_an_ended_task_left_in_doubt_is_settled_by_hand(desk: Desk, story: Story) -> None:
    task_id = story.child.task.id
    (number,) = [one["step"] for one in desk.run("show", task_id, "--json").json["records"] if one["name"] == "refund"]
    early = desk.run("settle", task_id, str(number), "--happened", "--result", '"r-88"', "--by", "ana")
    cancelled = desk.run("cancel", story.lead.task.id)
    doubt = f"1 call in doubt: perdure why {task_id}\n"
    assert cancelled.out.splitlines(keepends=True)[1:] == [f"writer: {doubt}"]
    assert doubt in desk.run("ps", "--all").out
    assert "perdure effects --in-doubt" in desk.run("doctor").out
    assert f"      perdure settle {task_id} {number} --give-up\n" in desk.run("effects", "--in-doubt").out

    first = desk.run("settle", task_id, str(number), "--happened", "--result", '"r-88"', "--by", "ana")
    second = desk.run("settle", task_id, str(number), "--not-happened", "--json")

    assert (early.code, "has not ended" in early.err) == (1, True)
    assert (first.code, first.out) == (0, 'refund(order="o-9", amount=120) is completed\n')
    assert (second.code, second.json["changed"], second.json["output"]) == (1, False, "r-88")
    assert desk.run("effects", "--in-doubt").out == ""
    assert "in doubt" not in desk.run("doctor").out
    assert desk.run("settle", task_id, str(number)).code == 2


@pytest.mark.parametrize(
    ("verdict", "said"), [("--not-happened", "did not happen"), ("--give-up", "may have happened: nobody knows")]
)
def test_what_was_settled_is_told_in_the_words_of_the_lists(desk: Desk, story: Story, verdict: str, said: str) -> None:
    task_id = story.child.task.id
    (number,) = [one["step"] for one in desk.run("show", task_id, "--json").json["records"] if one["name"] == "refund"]
    desk.run("cancel", task_id)

    settled = desk.run("settle", task_id, str(number), verdict)

    assert settled.out == f'refund(order="o-9", amount=120) {said}\n'


def test_run_it_says_that_it_waits_for_proof(desk: Desk, story: Story) -> None:
    said = desk.run("answer", "Q1", "--not-happened", "--by", "ana")

    assert "acts once the worker on host host, pid 1 is proven dead; --anyway does not wait for that" in said.err
    assert "is proven dead" in desk.run("ps").out


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
        ["deny", "Q1", "--because", "…"],
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
    assert refused.err == "perdure: Q1: refund returns str, which 5 is not\n"
    assert desk.run("answer", "Q1", "--happened", "--result", '"r-1"').code == 0


@pytest.mark.parametrize("given", [[], ["--result", "null"]])
def test_a_tool_that_returns_something_needs_a_result(desk: Desk, world: World, given: list[str]) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it?", evidence=packed({"tool": "refund", "arguments": {}}))

    refused = desk.run("answer", "Q1", "--happened", *given)

    assert refused.code == 2
    assert refused.err == "perdure: Q1: refund returns str: say what it returned, with --result JSON\n"
    assert len(desk.run("questions", "--json").json["questions"]) == 1


@pytest.mark.parametrize(
    "case",
    [
        ("str", [[], ["--result", "5"]], ["--result", '"r-1"'], ["--happened --result JSON"]),
        ("None", [["--result", "5"]], [], ["--happened"]),
        ("int | None", [["--result", '"r-1"']], [], ["--happened --result JSON", "--happened"]),
        ("Receipt", [[]], ["--result", "{}"], ["--happened --result JSON"]),
        ("Receipt | None", [], [], ["--happened --result JSON", "--happened"]),
        ("object", [], [], ["--happened --result JSON", "--happened"]),
        ("list[Receipt]", [[], ["--result", "5"]], ["--result", "[{}]"], ["--happened --result JSON"]),
    ],
)
def test_what_a_tool_returns_is_judged_by_its_type_on_record(
    desk: Desk, world: World, case: tuple[str, list[list[str]], list[str], list[str]]
) -> None:
    returns, wrong, right, offered = case
    claim = world.start()
    evidence = packed({"tool": "elsewhere", "arguments": {}, "returns": returns})
    world.ask(claim, QuestionKind.STEP_IN_DOUBT, text="did it?", evidence=evidence)

    for page in (["questions"], ["why", claim.task.id]):
        shown = re.findall(r"^ +perdure answer Q1 (--happened.*)", desk.run(*page).out, re.MULTILINE)
        assert shown == offered
    for words in wrong:
        refused = desk.run("answer", "Q1", "--happened", *words)
        assert (refused.code, f"perdure: Q1: elsewhere returns {returns}" in refused.err) == (2, True)
    assert desk.run("answer", "Q1", "--happened", *right).code == 0


@pytest.mark.parametrize(
    "case",
    [
        ("Literal['a', 'b']", "c", "a", 'wants one of "a", "b"'),
        ("Literal[1, '2|3']", "2", "2|3", 'wants one of 1, "2|3"'),
        ("list[int]", '["x"]', "[1, 2]", "wants a list[int]"),
        ("dict[str, int] | None", '{"a": "x"}', '{"a": 1}', "wants a dict[str, int] | None"),
        ("Order", None, '{"n": 1}', "wants an Order"),
    ],
)
def test_what_is_wanted_is_shown_and_judged_without_the_code_of_the_agent(
    desk: Desk, world: World, case: tuple[str, str | None, str, str]
) -> None:
    wants, wrong, right, shown = case
    claim = world.start()
    world.ask(claim, QuestionKind.ASK, text="which?", evidence=packed({"wants": wants}))

    assert shown in desk.run("questions").out
    assert shown in desk.run("why", claim.task.id).out
    if wrong is not None:
        refused = desk.run("answer", "Q1", wrong)
        assert (refused.code, f"Q1 {shown}, not " in refused.err) == (2, True)
    assert desk.run("answer", "Q1", right).code == 0


def test_what_a_class_is_made_of_stands_under_the_question(desk: Desk, world: World) -> None:
    claim = world.start()
    evidence = packed({"wants": "Sample | None", "made_of": '{"n": int}'})
    world.ask(claim, QuestionKind.ASK, text="which?", evidence=evidence)

    assert 'wants a Sample | None: {"n": int}\n' in desk.run("questions").out
    assert 'wants a Sample | None: {"n": int}\n' in desk.run("why", claim.task.id).out


def test_for_what_only_code_can_answer_no_command_is_shown(desk: Desk, world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.ASK, text="which?", evidence=packed({"wants": "bytes"}))

    for shown in (desk.run("questions").out, desk.run("why", claim.task.id).out):
        assert 'wants bytes, which only code can give: Question.answer(b"…", by="…")\n' in shown
        assert "perdure answer" not in shown


@pytest.mark.parametrize("option", ["--happened", "--not-happened", "--give-up"])
def test_an_agents_own_question_takes_no_word_on_a_call(desk: Desk, world: World, option: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="how many?", evidence=packed({"wants": "int"}))

    refused = desk.run("answer", "Q1", "250", option)

    assert refused.code == 2
    assert refused.err == f"perdure: {option} is for calls in doubt; Q1 is an agent's own question: give VALUE alone\n"
    assert desk.run("answer", "Q1", "250").code == 0


@pytest.mark.parametrize(
    ("wants", "word", "value"),
    [("bool", "yes", True), ("bool", "no", False), ("int", "7", 7), ("float", "1", 1.0), ("str", "7", "7"),
     ("int", "-5", -5), ("float", "-2.5", -2.5), ("float", "-1e-3", -0.001), ("any", "-0", 0), ("str", "-7.", "-7."),
     ("any", '{"a": 1}', {"a": 1}), ("any", "plain", "plain"), ("any", "yes", "yes"), ("str | None", "null", None),
     ("str | None", "7", "7"), ("bool | None", "yes", True), ("int | None", "7", 7), ("Decimal", "1.50", "1.50"),
     ("Path | None", "7", "7"), ("datetime", "2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z")],
)  # fmt: skip
def test_an_answer_is_of_the_type_that_was_asked_for(
    desk: Desk, world: World, wants: str, word: str, value: object
) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="what?", evidence=packed({"wants": wants}))

    assert desk.run("answer", "Q1", word, "--json").code == 0

    ((stored,),) = world.rows("SELECT answer FROM questions")
    assert codec.decode(codec.unpack(stored, lambda _: {})) == value


@pytest.mark.parametrize("wants", ["any", "list[str]", "Order", "dict[str, int] | None"])
def test_broken_json_in_an_answer_is_called_that(desk: Desk, world: World, wants: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="what?", evidence=packed({"wants": wants}))

    refused = desk.run("answer", "Q1", '["x"')

    assert refused.code == 2
    assert refused.err.startswith("perdure: Q1: '[\"x\"' is no JSON: Expecting ',' delimiter")
    assert refused.err.endswith(""". For a text write '"[\\"x\\""'\n""")
    assert desk.run("answer", "Q1", "null" if "None" in wants else '["x"]').code == 0


@pytest.mark.parametrize("wants", ["str", "str | None"])
def test_where_a_text_is_asked_for_it_may_begin_as_json_does(desk: Desk, world: World, wants: str) -> None:
    world.ask(world.start(), QuestionKind.ASK, text="what?", evidence=packed({"wants": wants}))

    assert desk.run("answer", "Q1", "[sic] yes", "--json").json["answer"] == "[sic] yes"


@pytest.mark.parametrize(
    ("wants", "word", "shown"),
    [("bool", "maybe", '"maybe"'), ("int", "1.5", "1.5"), ("int", "true", "true"), ("float", "x", '"x"'),
     ("datetime", "2026-01-31", '"2026-01-31"'), ("date", "tomorrow", '"tomorrow"')],
)  # fmt: skip
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
