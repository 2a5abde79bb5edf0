"""Commands that decide: `approve`, `deny`, `answer`, `settle`, `cancel`, `resume`.

An answer counts once. Who comes second is told what was answered, by whom and when; nothing is changed.
"""

from __future__ import annotations

import datetime as dt
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from perdure import codec, config, phrases, recalled
from perdure.cli import opening, screen
from perdure.cli.arguments import JSON_BEGINS
from perdure.cli.opening import opened
from perdure.cli.options import AppName, By, Db, Json, QuestionId, TaskId, who
from perdure.cli.shapes import end_shape, question_shape, step_shape, task_shape
from perdure.client import Client
from perdure.commands import VALUE, Commands, as_lines
from perdure.deadlines import too_late
from perdure.errors import BadInput
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, Question, QuestionKind
from perdure.model.task import Task, tail
from perdure.people import answer as answer_in_words
from perdure.people import cancelled_by, ended_by, open_questions, settled
from perdure.returned import require_result
from perdure.runtime import answers
from perdure.runtime.doubts import Verdict
from perdure.runtime.liveness import judge
from perdure.runtime.settling import as_outcome
from perdure.states import QuestionStatus, TaskStatus
from perdure.store import ends, questions, recovery, steps, task_lists, tasks
from perdure.store.database import Transaction
from perdure.why import awaits_proof, left_in_doubt, moves, needs_worker, settling_cancelled, standing
from perdure.why import because as reason_of

_TASKS_TOLD = 20
_OUTCOMES = {"did not happen": "did not happen", "nobody knows": "may have happened: nobody knows"}
_WORDS = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}

Because = Annotated[str, typer.Option("--because", help="The reason; the agent is told.")]
SettledBecause = Annotated[str, typer.Option("--because", help="How it was found out; it goes on record.")]

Happened = Annotated[bool, typer.Option("--happened", help="The call in doubt took place.")]
ResultText = Annotated[str | None, typer.Option("--result", metavar="JSON", help="What it returned.")]
GiveUp = Annotated[bool, typer.Option("--give-up", help="Nobody can find out.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(approve)
    app.command()(deny)
    app.command()(answer)
    app.command()(settle)
    app.command()(cancel)
    app.command()(resume)


def approve(
    question: QuestionId,
    *,
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Say yes to a question.

    The call it is about may run then, or the task go on.
    """
    with opened(db, app) as client:
        question_id = client.store.read(questions.find, question)
        _settle(client, question_id, questions.approve, {"by": who(by)}, as_json=as_json)


def deny(
    question: QuestionId,
    *,
    because: Because,
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Say no to a question, and why."""
    if because.strip() in ("", "…"):  # A shown command, pasted as it stands, must not decide.
        raise BadInput("--because says nothing; give the reason, which the agent is told", field="because")
    with opened(db, app) as client:
        question_id = client.store.read(questions.find, question)
        _settle(client, question_id, questions.deny, {"by": who(by), "reason": because}, as_json=as_json)


def answer(
    question: QuestionId,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The answer to an agent's question.")] = None,
    *,
    happened: Happened = False,
    result: ResultText = None,
    not_happened: Annotated[bool, typer.Option("--not-happened", help="It did not; run it.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Run it although its old worker is not proven dead. It is on record.")
    ] = False,
    give_up: GiveUp = False,
    because: Because = "",
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Answer an agent's question, or say what a call did.

    VALUE answers what an agent asked. A call in doubt wants --happened (with --result), --not-happened or --give-up.
    """
    chosen = _chosen(happened=happened, not_happened=not_happened, give_up=give_up, result=result)
    if anyway and not not_happened:
        raise BadInput("--anyway goes with --not-happened", field="anyway")
    with opened(db, app) as client:
        row, evidence = client.store.read(_one, question)
        if row.kind is QuestionKind.STEP_IN_DOUBT:
            if chosen is None or value is not None:
                choice = "--happened, --not-happened or --give-up"
                raise BadInput(f"{row.id} asks what became of a call: give {choice}", field="answer")
            happened_with = _result(result, evidence, app, row.id) if happened else None
            said: Any = {"verdict": chosen, "result": happened_with}
        else:
            if chosen is not None and row.kind is QuestionKind.ASK:
                option = f"--{chosen.replace('_', '-')}"
                asks = f"{option} is for calls in doubt; {row.id} is an agent's own question: give VALUE alone"
                raise BadInput(asks, field="answer")
            if chosen is not None or value is None:
                asks = "wants a VALUE" if row.kind is QuestionKind.ASK else "wants approve or deny"
                raise BadInput(f"{row.id} is a question of kind {row.kind}: it {asks}", field="answer")
            said = _value(row, value, evidence)
        arguments = {"by": who(by), "value": codec.pack(codec.encode(said)), "reason": because, "anyway": anyway}
        _settle(client, row.id, questions.answer, arguments, as_json=as_json)


def settle(
    task: TaskId,
    step: Annotated[int, typer.Argument(metavar="STEP", min=0, help="The number of its record, as `show` has it.")],
    *,
    happened: Happened = False,
    result: ResultText = None,
    not_happened: Annotated[bool, typer.Option("--not-happened", help="It did not.")] = False,
    give_up: GiveUp = False,
    because: SettledBecause = "",
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Say what a call did that an ended task left in doubt.

    `effects --in-doubt` lists such calls. This moves no task; while a task goes on, its question decides.
    """
    chosen = _chosen(happened=happened, not_happened=not_happened, give_up=give_up, result=result)
    if chosen is None:
        raise BadInput("give one of --happened, --not-happened and --give-up", field="answer")
    with opened(db, app) as client:
        task_id = client.store.read(task_lists.find, task)
        record = client.store.read(steps.at_index, task_id, step)
        evidence = {**client.store.read(questions.evidence_of_step, record), "tool": record.name}
        happened_with = _result(result, evidence, app, f"step {step}") if happened else None
        verdict: Verdict[Any] = Verdict(chosen, happened_with)
        outcome = as_outcome(verdict, tool=record.name, reason=because)
        is_done = client.store.call(ends.settle_call, task_id, step, outcome, by=who(by), reason=because)
        record, given = client.store.read(steps.listing, task_id, after=step - 1, limit=1)[0]
        by_whom = client.store.read(settled, task_id).of(record)
    if as_json:
        screen.put_json({**step_shape(record, given, by_whom), "changed": is_done})
    else:
        is_now = _OUTCOMES.get(phrases.outcome(record), f"is {record.outcome}")
        earlier = f"{'' if by_whom is None else f', {by_whom}'}; nothing changed"
        screen.put(f"{recalled.call(record.name, given)} {is_now}{'' if is_done else earlier}")
    if not is_done:
        raise typer.Exit(1)


def cancel(
    task: TaskId,
    *,
    because: Because = "",
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """End a task and everything below it."""
    with opened(db, app) as client:
        task_id = client.store.read(task_lists.find, task)
        is_done = client.store.call(ends.cancel, task_id, reason=because, by=who(by))
        row, reason, _ = client.store.read(_with_reason, client, task_id)
        error, by_whom = client.store.read(tasks.read_error, row.error), client.store.read(ended_by, row)
        doubts = client.store.read(doubts_below, task_id, client.commands)
    if as_json:
        screen.put_json({**task_shape(row, reason), **end_shape(error, by_whom), "changed": is_done})
    elif is_done:
        screen.put(f"cancelled {row.agent} {row.id}")
        for line in doubts:
            screen.put(line)
    else:
        screen.put(f"{standing(row, reason)}; nothing changed")
    if not is_done:
        raise typer.Exit(1)


def resume(
    task: TaskId,
    *,
    by: By = "",
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Let an interrupted task go on, or say why it does not.

    Says yes to its open question, or decides at once where no worker has decided yet.
    """
    with opened(db, app) as client:
        task_id = client.store.read(task_lists.find, task)
        settings = client.store.settings
        said = client.store.call(
            _resume,
            task_id,
            by=who(by),
            recovery_limit=settings.recovery_limit,
            question_expiry_ms=int(settings.question_expiry_s * 1000),
        )
        row, reason, ways = client.store.read(_with_reason, client, task_id)
    goes_on = row.status is TaskStatus.PENDING and bool(said)
    if as_json:
        screen.put_json({**task_shape(row, reason), "changed": bool(said), "said": said})
    else:
        screen.put(f"{said or 'nothing changed'}: {standing(row, reason)}")
        if ways and not goes_on:
            screen.put("\n".join(["what moves it on", *(f"  {one}" for one in ways)]))
    if not goes_on:
        raise typer.Exit(1)


# -- settling -------------------------------------------------------------------------------


def _settle(
    client: Client, question_id: str, operation: Callable[..., Question], arguments: dict[str, Any], *, as_json: bool
) -> None:
    row, evidence, is_ours, now = client.store.call(_settled, question_id, operation, arguments)
    given, said, who_cancelled = client.store.read(_given, row)
    late = client.store.read(_too_late, client, row.task_id)
    ways = client.store.read(settling_cancelled, row, client.commands)
    if as_json:
        shape = question_shape(row, evidence, answer=given, cancelled_by=who_cancelled)
        screen.put_json({**shape, "changed": is_ours, "too_late": late or None})
    elif is_ours:
        screen.put(f"{row.id} {_answered(row)} by {row.answered_by}: {phrases.asked(row.text)}")
    else:
        screen.put(f"{row.id} {_already(row, now, said, who_cancelled)}; nothing changed")
        for line in ["what settles its call", *(f"  {one}" for one in as_lines(ways))] if ways else ():
            screen.put(line)
    if not is_ours:
        raise typer.Exit(1)
    if late:
        screen.note(f"the answer is on record, but comes too late for {row.agent} {tail(row.task_id)}: {late}")
        return
    if unproven := client.store.read(_awaits_proof, client, row):
        screen.note(f"{unproven}; --anyway does not wait for that")
    if nobody := client.store.read(_nobody_goes_on, client, row.task_id):
        screen.note(f"{nobody}, or run the line that began the task once more")


def _given(tx: Transaction, question: Question) -> tuple[object, str, str]:
    """What was answered, and in words, and who cancelled it."""
    return questions.answer_of(tx, question), answer_in_words(tx, question), cancelled_by(tx, question)


def _too_late(tx: Transaction, client: Client, task_id: str) -> str:
    return too_late(tx, tasks.get(tx, task_id), judge=judge(client.store), commands=client.commands)


def _nobody_goes_on(tx: Transaction, client: Client, task_id: str) -> str:
    return needs_worker(tx, tasks.get(tx, task_id), judge=judge(client.store), commands=client.commands)


def _awaits_proof(tx: Transaction, client: Client, question: Question) -> str:
    if question.kind is not QuestionKind.STEP_IN_DOUBT:
        return ""
    return awaits_proof(tx, tasks.get(tx, question.task_id), judge=judge(client.store))


def _settled(
    tx: Transaction, question_id: str, operation: Callable[..., Question], arguments: dict[str, Any]
) -> tuple[Question, object, bool, int]:
    """The question after the answer, what it rests on, and whether this call changed anything."""
    before = questions.get(tx, question_id)
    after = operation(tx, question_id, **arguments)
    # Somebody else may have answered between the two reads: then the answer bears another time or name.
    is_ours = before.status is QuestionStatus.OPEN and after.answered_at == tx.now
    is_ours = is_ours and after.answered_by == arguments["by"]
    return after, questions.evidence(tx, after), is_ours or after.anyway != before.anyway, tx.now


def _answered(row: Question) -> str:
    return "answered" if row.status is QuestionStatus.ANSWERED else str(row.status)


def _already(row: Question, now: int, said: str, who_cancelled: str) -> str:
    when = "" if row.answered_at is None else f" {phrases.duration(now - row.answered_at)} ago"
    match row.status:
        case QuestionStatus.EXPIRED:
            return f"expired{when}: nobody had answered in time"
        case QuestionStatus.CANCELLED:
            who = f" by {phrases.one_line(who_cancelled)}" if who_cancelled else ""
            return f"was cancelled{who}{when}: {row.reason or 'its task ended first'}"
        case _:
            by = f" by {row.answered_by}" if row.answered_by else ""
            what = f": {said}" if row.status is QuestionStatus.ANSWERED else ""
            why = f": {phrases.one_line(row.reason)}" if row.reason else ""
            return f"was already {_answered(row)}{by}{when}{what}{why}"


def _one(tx: Transaction, ending: str) -> tuple[Question, Any]:
    row = questions.get(tx, questions.find(tx, ending))
    return row, questions.evidence(tx, row)


def _with_reason(tx: Transaction, client: Client, task_id: str) -> tuple[Task, str, list[str]]:
    """The task, why it stands where it stands, and what moves it on."""
    task = tasks.get(tx, task_id)
    shown: dict[str, Any] = {"judge": judge(client.store), "commands": client.commands}
    return task, reason_of(tx, task, **shown), list(moves(tx, task, **shown))


def doubts_below(tx: Transaction, task_id: str, commands: Commands) -> list[str]:
    """What a task and those below it left in doubt when they ended."""
    found: list[str] = []
    todo = [task_id]
    while todo and len(found) < _TASKS_TOLD:
        task = tasks.get(tx, todo.pop())
        if task.status.is_terminal and (line := left_in_doubt(tx, task, commands=commands)):
            found.append(f"{task.agent}: {line}")
        todo += [child.id for child in task_lists.children(tx, task.id)]
    return found


def _resume(tx: Transaction, task_id: str, *, by: str, recovery_limit: int, question_expiry_ms: int) -> str:
    """What was done for an interrupted task, or "" when nothing was to be done."""
    task = tasks.get(tx, task_id)
    for question in open_questions(tx, task):
        if question.kind is QuestionKind.RESUME:
            questions.approve(tx, question.id, by=by)
            return f"approved {question.id}"
    done = recovery.act(tx, task_id, recovery_limit=recovery_limit, question_expiry_ms=question_expiry_ms)
    return "" if done is None else f"decided {done.decision.verdict} (rule {done.decision.rule})"


# -- what is said ---------------------------------------------------------------------------


def _chosen(*, happened: bool, not_happened: bool, give_up: bool, result: str | None) -> str | None:
    """The one verdict that was given, or None."""
    verdicts = ((HAPPENED, happened), (NOT_HAPPENED, not_happened), (GIVE_UP, give_up))
    chosen = [kind for kind, is_chosen in verdicts if is_chosen]
    if len(chosen) > 1:
        raise BadInput("give one of --happened, --not-happened and --give-up", field="answer")
    if result is not None and not happened:
        raise BadInput("--result goes with --happened", field="result")
    return chosen[0] if chosen else None


def _result(text: str | None, evidence: Any, app_name: str | None, asked: str) -> Any:
    """The result of a call that happened, checked against what its tool returns as far as that is known."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise _no_json("--result ", text, error, field="result") from None
    if (name := config.app_name(app_name)) is not None:
        opening.load(name)
    known = evidence if isinstance(evidence, dict) else {}
    try:
        if text is None:
            require_result(known, question_id=asked)
        answers.check_result(value, known, question_id=asked)
    except answers.ResultWanted as wanted:
        raise BadInput(f"{wanted.fact}: say what it returned, with --result JSON", field="result") from None
    return value


def _no_json(what: str, text: str | None, error: ValueError, *, field: str) -> BadInput:
    as_text = shlex.quote(json.dumps(text, ensure_ascii=False))
    return BadInput(f"{what}{text!r} is no JSON: {error}. For a text write {as_text}", field=field)


def _value(row: Question, text: str, evidence: Any) -> Any:
    """The answer to an agent's own question, as the type it asked for."""
    as_json = json.dumps(VALUE)
    if text.strip() == VALUE:  # A shown command, pasted as it stands, must not decide.
        how = f"write the answer in its place. For the word itself write {shlex.quote(as_json)}"
        raise BadInput(f"{row.id}: {VALUE} says nothing; {how}", field="answer")
    if text.strip() == as_json:
        text = VALUE
    wants = str(evidence.get("wants", "any")) if isinstance(evidence, dict) else "any"
    annotation = answers.type_named(wants)
    readings = list(_readings(text, set(answers.alternatives(wants))))
    wanted = [one for one in readings if answers.person_may_say(one, annotation)]
    # What begins as JSON is meant as JSON: it is a text only where a text is asked for.
    if (annotation is codec.ANY or not wanted) and (broken := _broken_json(text)):
        raise _no_json(f"{row.id}: ", text, broken, field="answer")
    value = next(iter(wanted), readings[0])
    answers.check_answer(value, wants, question_id=row.id)
    return float(value) if wants == "float" else value


def _broken_json(text: str) -> ValueError | None:
    """What is wrong with a text that begins as a list, an object or a text of JSON does and is none."""
    if text.lstrip()[:1] not in JSON_BEGINS:
        return None
    try:
        json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        return error
    return None


def _readings(text: str, wanted: set[str]) -> Iterator[Any]:
    """What a word may mean to one of these types, the likeliest first."""
    if wanted & answers.WRITTEN:
        yield text
        yield from _without_seconds(text, wanted)
    if "bool" in wanted and (word := _WORDS.get(text.strip().lower())) is not None:
        yield word
    if wanted != {"str"}:
        with suppress(ValueError):
            yield json.loads(text, parse_constant=_no_number)
    yield text


def _without_seconds(text: str, wanted: set[str]) -> Iterator[str]:
    """A moment or a time of day that is told to the minute, as it is written with its seconds."""
    for kind in (dt.datetime, dt.time):
        if kind.__name__ in wanted:
            with suppress(ValueError):
                yield kind.fromisoformat(text.strip()).isoformat()


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
