"""Commands that look: `ps`, `why`, `questions`, `effects`. They change nothing. `show` is in showing.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from perdure import phrases, recalled, written
from perdure.cli import screen, showing
from perdure.cli.moments import parse_since
from perdure.cli.opening import opened
from perdure.cli.options import After, AppName, Db, Json, Limit, TaskId
from perdure.cli.shapes import end_shape, question_shape, step_shape, task_shape
from perdure.commands import Commands, Way, as_lines
from perdure.deadlines import coming, too_late
from perdure.errors import BadInput, Error
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step
from perdure.model.task import Task, tail
from perdure.people import Settled, SettledCalls, cancelled_by, ended_by, said, settled, wanted
from perdure.returned import returned
from perdure.runtime.liveness import Judge, judge
from perdure.states import QuestionStatus, TaskStatus
from perdure.store import effects as effect_ops
from perdure.store import instances, questions, steps, task_lists, tasks
from perdure.store.database import Transaction
from perdure.why import because, explain, sections, settling, settling_cancelled

_RUNNING: Final = "running"
_PAGE: Final = 100

_Find: TypeAlias = Callable[..., list[Question]]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(ps)
    app.command()(showing.show)
    app.command()(why)
    app.command(name="questions")(questions_)
    app.command()(effects)


def ps(
    *,
    open_only: Annotated[bool, typer.Option("--open/--all", help="Only tasks that have not ended, or all.")] = True,
    status: Annotated[str | None, typer.Option("--status", help="Only tasks of this status.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only tasks of this agent.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only tasks of this session.")] = None,
    limit: Limit = 100,
    after: After = None,
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """List open tasks, each with why it has not ended.

    Newest first; --all lists those that have ended too.
    """
    cursor = None if after is None else task_lists.Cursor.parse(after)
    with opened(db, app) as client:
        rows, now = client.store.read(
            _listed,
            session_id=session,
            status=status,
            open_only=open_only and status is None,
            agent=agent,
            after=cursor,
            limit=limit,
            judge=judge(client.store),
            commands=client.commands,
        )
    following = str(task_lists.Cursor(rows[-1][0].created_at, rows[-1][0].id)) if len(rows) == limit else None
    if as_json:
        screen.put_json({"tasks": [task_shape(task, reason) for task, reason in rows], "after": following})
        return
    ids = [task.id for task, _ in rows]
    screen.put_rows(
        [
            (
                task.agent,
                tail(task.id, ids),
                status_word(task),
                phrases.duration(now - task.created_at),
                reason.replace(status_word(task), "ended", 1)
                if task.status.is_terminal
                else "; its ".join(filter(None, (f"because {reason}", coming(task, now_ms=now)))),
            )
            for task, reason in rows
        ],
        head=("AGENT", "TASK", "STATUS", "AGE", "WHY"),
        styled=2,
    )
    if not rows:
        screen.note("no open tasks" if open_only else "no tasks")
    _put_following(following)


def why(task: TaskId, *, db: Db = None, app: AppName = None, as_json: Json = False) -> None:
    """Tell why a task stands where it stands.

    Cause, evidence, rule, what was tried, and the commands that move it on.
    """
    with opened(db, app) as client:
        task_id = client.store.read(task_lists.find, task)
        limit = client.store.settings.recovery_limit
        lives = judge(client.store)
        shown: dict[str, Any] = {"recovery_limit": limit, "commands": client.commands, "judge": lives}
        if as_json:
            row, reason, error, by = client.store.read(_with_reason, task_id, lives, client.commands)
            found = client.store.read(sections, task_id, **shown)
            why_ = {title.replace(" ", "_"): lines for title, lines in found.items()}
            screen.put_json({**task_shape(row, reason), **end_shape(error, by), "why": why_})
        else:
            screen.put(client.store.read(explain, task_id, **shown))


def questions_(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="Only this one, with all of its text and arguments.")
    ] = None,
    *,
    open_only: Annotated[bool, typer.Option("--open/--all", help="Only questions that wait, or all.")] = True,
    to: Annotated[str | None, typer.Option("--to", help="Only questions to this person or group.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only questions of this session.")] = None,
    limit: Limit = 100,
    after: After = None,
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """List open questions, oldest first, or show all of one.

    Under each one what it rests on, and the commands that answer it. --all lists those too that were answered, have
    expired or were cancelled, and under each what was said, by whom and when.
    """
    (start,) = (0,) if after is None else _place(after, parts=1)
    with opened(db, app) as client:
        find, filters = _finding(question, open_only=open_only, to=to, session_id=session, after=start, limit=limit)
        asked, now = client.store.read(_asked, find, client.commands, judge(client.store), **filters)
    following = str(asked[-1].question.n) if len(asked) == limit else None
    if as_json:
        shapes = [
            question_shape(one.question, one.evidence, answer=one.answer, cancelled_by=one.cancelled_by)
            for one in asked
        ]
        screen.put_json({"questions": shapes, "after": following})
        return
    if question is not None:
        for line in _whole(asked[0], now, client.commands):
            screen.put(line)
        return
    ids = [one.question.task_id for one in asked]
    screen.put_rows(
        [
            (
                one.id,
                f"{one.agent} {tail(one.task_id, ids)}",
                phrases.duration(now - one.created_at),
                phrases.asked(one.text) + (f"  (to {one.to})" if one.to and to is None else ""),
            )
            for one in (each.question for each in asked)
        ],
        head=("ID", "TASK", "AGE", "QUESTION"),
        below=[_below(one, now, client.commands) for one in asked],
    )
    if not asked:
        screen.note("no open questions" if open_only else "no questions")
    _put_following(following)


def effects(
    *,
    since: Annotated[str, typer.Option("--since", help="Such as 02:00, 2026-03-04, 15m, 2h or 7d.")] = "",
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only calls nobody knows the outcome of.")] = False,
    limit: Limit = 100,
    after: After = None,
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """List calls that may have changed the world.

    Oldest first, each with its outcome and where it ran. Calls of low risk are left out. Under one in doubt stand
    the commands that decide about it, and under one that somebody allowed, refused or settled who did.
    """
    at, n = (-1, 0) if after is None else _place(after, parts=2)
    with opened(db, app) as client:
        since_ms = parse_since(since, now_ms=client.store.clock.now_ms()) if since else 0
        found, now = client.store.read(
            _effects,
            since_ms=since_ms,
            in_doubt=in_doubt,
            after=(at, n),
            limit=limit,
            view=_View(judge(client.store), client.commands),
        )
    following = "-".join(map(str, found[-1].effect.place)) if len(found) == limit else None
    if as_json:
        shapes = [
            {**step_shape(step, one.effect.arguments, one.settled), "agent": one.effect.agent, "is": one.outcome}
            for one, step in ((each, each.effect.step) for each in found)
        ]
        screen.put_json({"effects": shapes, "after": following})
        return
    ids = [one.effect.step.task_id for one in found]
    screen.put_rows(
        [
            (
                phrases.moment(one.effect.step.timestamp, now),
                one.effect.step.risk or "",
                recalled.call(one.effect.step.name, one.effect.arguments),
                one.outcome,
                f"{one.effect.agent} {tail(one.effect.step.task_id, ids)}",
                str(one.effect.step.step_index),
                f"attempt {one.effect.step.attempt}{one.where}",
            )
            for one in found
        ],
        head=("BEGAN", "RISK", "CALL", "OUTCOME", "TASK", "STEP", "WHERE"),
        styled=3,
        below=[_below_effect(one) for one in found],
    )
    if not found:
        screen.note("no calls in doubt" if in_doubt else "no calls that may have changed the world")
    _put_following(following)


def status_word(task: Task) -> str:
    """A status as people read it."""
    return "paused" if task.status in (TaskStatus.IDLE, TaskStatus.SWAPPED) else task.status.replace("_", " ")


def _put_following(after: str | None) -> None:
    if after is not None:
        screen.note(f"there may be more: --after {after}")


def _place(text: str, *, parts: int) -> tuple[int, ...]:
    """The numbers of a cursor that an earlier page gave. Raises BadInput for anything else."""
    words = text.split("-")
    if len(words) != parts or not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in words):
        raise BadInput(f"{text!r} is no cursor; give the `after` of an earlier page", field="after")
    return tuple(map(int, words))


# -- reading --------------------------------------------------------------------------------


def _listed(
    tx: Transaction, /, *, judge: Judge, commands: Commands, **filters: Any
) -> tuple[list[tuple[Task, str]], int]:
    found = task_lists.recent(tx, **filters)
    ids = [task.id for task in found]
    return [(task, because(tx, task, ids=ids, judge=judge, commands=commands)) for task in found], tx.now


def _with_reason(
    tx: Transaction, task_id: str, judge: Judge, commands: Commands
) -> tuple[Task, str, Error | None, str]:
    task = tasks.get(tx, task_id)
    reason = because(tx, task, judge=judge, commands=commands)
    return task, reason, tasks.read_error(tx, task.error), ended_by(tx, task)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, what it rests on, and what became of it; `said` is "" while it is open.

    `late` tells that an answer changes nothing any more; "" where it does. `deadline` is when that of its task is.
    `ways` settle a call whose question was cancelled.
    """

    question: Question
    evidence: Any
    answer: object
    cancelled_by: str
    said: str
    late: str
    deadline: str
    ways: Sequence[Way]


def _finding(question: str | None, *, open_only: bool, **filters: Any) -> tuple[_Find, dict[str, Any]]:
    if question is None:
        return questions.open_list if open_only else questions.listing, filters
    return (lambda tx: [questions.get(tx, questions.find(tx, question))]), {}


def _asked(
    tx: Transaction, find: _Find, commands: Commands, judge: Judge, /, **filters: Any
) -> tuple[list[_Asked], int]:
    return [_as_asked(tx, one, tasks.get(tx, one.task_id), commands, judge) for one in find(tx, **filters)], tx.now


def _as_asked(tx: Transaction, question: Question, task: Task, commands: Commands, judge: Judge) -> _Asked:
    return _Asked(
        question,
        questions.evidence(tx, question),
        questions.answer_of(tx, question),
        cancelled_by(tx, question),
        "" if question.status is QuestionStatus.OPEN else said(tx, question),
        too_late(tx, task, judge=judge, commands=commands),
        coming(task, now_ms=tx.now),
        settling_cancelled(tx, question, commands),
    )


def _below(asked: _Asked, now: int, commands: Commands, *, is_whole: bool = False) -> list[str]:
    """What stands under a question: what it rests on, and the commands that answer it or what was said."""
    question = asked.question
    if asked.said:
        return [asked.said, *as_lines(asked.ways)]
    until = f"its task's {asked.deadline}" if asked.deadline else ""
    details = "; ".join(filter(None, (_details(question, asked.evidence, now), until)))
    if asked.late:
        return [*([details] if details else []), asked.late]
    whole = [commands.whole(question.id)] if phrases.is_cut(question.text) and not is_whole else []
    ways = [*whole, *commands.answer(question.id, question.kind, returns=returned(asked.evidence))]
    return [*([details] if details else []), *as_lines(ways)]


def _whole(asked: _Asked, now: int, commands: Commands) -> Iterator[str]:
    """All of a question: every line of its text, every argument of its call, and what stands under it in the list."""
    one = asked.question
    to = f" to {one.to}" if one.to else ""
    yield f"{one.id}, asked{to} {phrases.duration(now - one.created_at)} ago by {one.agent} {one.task_id}"
    yield from (f"  {line}" for line in one.text.splitlines())
    given = asked.evidence.get("arguments") if isinstance(asked.evidence, Mapping) else None
    if isinstance(given, Mapping) and given:
        tool = str(asked.evidence.get("tool"))
        yield f"arguments of {tool}"
        for name, value in recalled.as_declared(tool, given).items():
            yield from (f"  {line}" for line in written.whole(f"{name}: ", value))
    yield from _below(asked, now, commands, is_whole=True)


def _details(question: Question, evidence: Any, now: int) -> str:
    parts = []
    if isinstance(evidence, Mapping):
        if isinstance(evidence.get("started_at"), int):
            parts.append(f"began {phrases.moment(evidence['started_at'], now)}")
        for name in ("cause", "why"):
            if evidence.get(name) and str(evidence[name]) not in question.text:
                parts.append(phrases.one_line(str(evidence[name])))
        if evidence.get("reconcile"):
            parts.append(f"reconcile: {phrases.one_line(str(evidence['reconcile']))}")
        if question.kind is QuestionKind.ASK and (wants := wanted(evidence)):
            parts.append(wants)
    if question.expires_at is not None:
        parts.append(f"expires in {phrases.duration(question.expires_at - now)}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call, what is known of its outcome, where it ran, and who said so.

    `ways` decide about one in doubt; `answers` are what people said to the questions about it.
    """

    effect: effect_ops.Effect
    outcome: str
    where: str
    settled: Settled | None
    ways: Sequence[str] = ()
    answers: Sequence[str] = ()


class _View(NamedTuple):
    """From where one looks at calls: who is known to be dead, and the commands that find the database."""

    judge: Judge
    commands: Commands


def _effects(
    tx: Transaction, /, *, since_ms: int, in_doubt: bool, after: tuple[int, int], limit: int, view: _View
) -> tuple[Sequence[_Seen], int]:
    people = cache(lambda task_id: _people(tx, task_id))  # Once a task, however many calls it made.
    if not in_doubt:
        found = effect_ops.listing(tx, since_ms=since_ms, after=after, limit=limit)
        return [_seen(tx, effect, view, people) for effect in found], tx.now
    seen: list[_Seen] = []
    # A call that runs as far as the rows tell is in doubt too once its process has died. Who lives is known only here:
    # however many such calls come first, the next page is read until this one is full.
    while page := effect_ops.open_list(tx, since_ms=since_ms, after=after, limit=max(limit, _PAGE)):
        known = (_seen(tx, effect, view, people) for effect in page)
        seen += (one for one in known if one.outcome != _RUNNING)
        if len(seen) >= limit or len(page) < max(limit, _PAGE):
            break
        after = page[-1].place
    return seen[:limit], tx.now


class _People(NamedTuple):
    """What people did to the calls of a task: which they settled (None while it goes on), and what they answered."""

    settled: SettledCalls | None
    answers: Mapping[str, Sequence[str]]


def _people(tx: Transaction, task_id: str) -> _People:
    answered: dict[str, list[str]] = {}
    for one in reversed(questions.of_task(tx, task_id)):
        if one.answered_by:
            answered.setdefault(one.step_key, []).append(f"{one.id} {said(tx, one)}")
    return _People(settled(tx, task_id) if tasks.get(tx, task_id).status.is_terminal else None, answered)


def _seen(tx: Transaction, effect: effect_ops.Effect, view: _View, people: Callable[[str], _People]) -> _Seen:
    step = effect.step
    owner = steps.owner(tx, step.task_id, step.attempt)
    where = "" if owner is None or owner.host is None else f", host {owner.host}, pid {owner.pid}"
    if effect.is_running and not _has_died(tx, owner, view.judge):
        return _Seen(effect, _RUNNING, where, None)
    settled_calls, answered = people(step.task_id)
    by = None if settled_calls is None else settled_calls.of(step)
    ways: Sequence[str] = ()
    if step.is_in_doubt:
        ways = _deciding(tx, step, view) if settled_calls is None else as_lines(settling(tx, step, view.commands))
    said_of_it = () if by is not None or ways else answered.get(step.key or "", ())
    return _Seen(effect, phrases.outcome(step), where, by, ways, said_of_it)


def _deciding(tx: Transaction, step: Step, view: _View) -> Sequence[str]:
    """What decides about a call in doubt of a task that goes on: its question, as `questions` shows it, or `why`."""
    task = tasks.get(tx, step.task_id)
    if late := too_late(tx, task, judge=view.judge, commands=view.commands):
        return [late]
    assert step.key is not None, step.task_id
    one = questions.live_for_step(tx, task.id, QuestionKind.STEP_IN_DOUBT, step.key)
    if one is not None and one.status is QuestionStatus.OPEN:
        returns = returned(questions.evidence(tx, one))
        return as_lines(view.commands.answer(one.id, one.kind, returns=returns))
    return as_lines([(view.commands.line(f"why {task.id}"), "what decides about it")])


def _below_effect(seen: _Seen) -> Sequence[str]:
    return [*seen.answers, *seen.ways] if seen.settled is None else [str(seen.settled)]


def _has_died(tx: Transaction, owner: steps.Owner | None, judge: Judge) -> bool:
    return owner is not None and owner.host is not None and judge.is_dead(instances.get(tx, owner.instance_id))
