"""Why a task stands where it stands: one clause for lists, a page for `perdure why`.

It reads and decides nothing. What recovery would do is asked of the same function that does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from perdure import phrases, recalled
from perdure.commands import Commands, Way, as_lines
from perdure.deadlines import anybody_lives, too_late
from perdure.errors import Damaged, NotFound
from perdure.model.instance import Instance
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step
from perdure.model.task import Attempt, Mode, Task, Wait, WaitKind, tail
from perdure.people import NOBODY, answers, ended_by, open_questions, settled, wanted
from perdure.returned import returned
from perdure.runtime import zombies
from perdure.runtime.liveness import Judge
from perdure.settings import Settings
from perdure.states import AttemptStatus, InstanceStatus, QuestionStatus, TaskStatus
from perdure.store import effects, instances, questions, recovery, steps, task_lists, tasks
from perdure.store.database import Transaction

_NOBODY_DEAD = Judge()
_SHOWN_RECORDS = 5
_READ_RECORDS = 200
_UNKNOWN = ("in doubt", "nobody knows")
_SHOWN_ATTEMPTS = 10
_DEAD = "is dead"
_ACTS = "the answer is stored and acts once"
_MEANT = Commands()


class _View(NamedTuple):
    """From where one looks at a task: who is known to be dead, the commands that find its database, and which worker
    asks, if any.
    """

    judge: Judge = _NOBODY_DEAD
    commands: Commands = _MEANT
    here: str = ""


def because(
    tx: Transaction,
    task: Task,
    *,
    ids: Collection[str] = (),
    judge: Judge = _NOBODY_DEAD,
    commands: Commands = _MEANT,
    here: str = "",
) -> str:
    """Why a task has not ended, as a clause to follow "because"; for an ended one how it ended.

    `ids` are those shown beside it, so that short forms stay unique. `commands` are those it names. `here` is the
    worker that asks, which a person need not be told the host and process of.
    """
    said = _because(tx, task, ids, _View(judge, commands, here))
    if task.status.is_terminal:
        return said
    late = too_late(tx, task, judge=judge, commands=commands)
    if late and not anybody_lives(tx, judge):
        return late  # Which names a worker to start; nothing else acts any more.
    return "; ".join(filter(None, (late, said, awaits_proof(tx, task, judge=judge))))


def awaits_proof(tx: Transaction, task: Task, *, judge: Judge = _NOBODY_DEAD) -> str:
    """Whose death must be proven before an answer "it did not happen, run it" acts; "" where none waits for that."""
    return "; ".join(f"{_ACTS} {_called(tx, holder)} is proven dead" for _, holder in _unproven(tx, task, judge))


def _because(tx: Transaction, task: Task, ids: Collection[str], view: _View) -> str:
    match task.status:
        case TaskStatus.PENDING:
            return _pending(tx, task, ids, view)
        case TaskStatus.RUNNING:
            return _running(tx, task, view)
        case TaskStatus.WAITING:
            return "; ".join(_waiting(tx, task, wait, ids, view) for wait in task.waiting_for)
        case TaskStatus.IDLE | TaskStatus.SWAPPED:
            return "its session is paused"
        case TaskStatus.INTERRUPTED:
            return _interrupted(tx, task, view)
        case _:
            return _ended(tx, task, view.commands)


def explain(
    tx: Transaction,
    task_id: str,
    *,
    recovery_limit: int = Settings().recovery_limit,
    commands: Commands = _MEANT,
    judge: Judge = _NOBODY_DEAD,
) -> str:
    """Everything that speaks for where a task stands: cause, evidence, rule, what was tried, what moves it on.

    `commands` are those it names. Raises NotFound.
    """
    page = [*_headline(tx, tasks.get(tx, task_id), _View(judge, commands))]
    found = sections(tx, task_id, recovery_limit=recovery_limit, commands=commands, judge=judge)
    for title, lines in found.items():
        page += [title, *(f"  {line}" for line in lines)] if lines else []
    return "\n".join(page)


def sections(
    tx: Transaction,
    task_id: str,
    *,
    recovery_limit: int,
    commands: Commands = _MEANT,
    judge: Judge = _NOBODY_DEAD,
) -> dict[str, list[str]]:
    """The lines of each section of that page, by its title."""
    task = tasks.get(tx, task_id)
    found = {
        "evidence": _evidence(tx, task, _View(judge, commands)),
        "answers": answers(tx, task, commands=commands),
        "rule": _rules(tx, task, recovery_limit),
        "tried": _tried(tx, task),
        "what moves it on": moves(tx, task, commands=commands, judge=judge),
    }
    return {title: _as_far_as_readable(lines) for title, lines in found.items()}


def stays(status: TaskStatus) -> str:
    """That a task which has ended without a result is not taken up again, and what to do instead."""
    word = status.replace("_", " ")
    return f"a {word} task stays {word}: start it anew, with another key or without one"


def needs_worker(tx: Transaction, task: Task, *, judge: Judge = _NOBODY_DEAD, commands: Commands = _MEANT) -> str:
    """Why a task that could go on does not: nobody lives who would. "" where somebody does, or it waits."""
    view = _View(judge, commands)
    match task.status:
        case TaskStatus.PENDING:
            return _no_worker(tx, task, view)
        case TaskStatus.RUNNING | TaskStatus.WAITING if task.execution_id is not None:
            return _no_worker(tx, task, view) if _lost(tx, task, view) else ""
        case TaskStatus.INTERRUPTED if not open_questions(tx, task):
            return _no_worker(tx, task, view)
        case _:
            return ""


def standing(task: Task, reason: str) -> str:
    """Where a task stands, as one sentence; `reason` is what `because` says."""
    if task.status.is_terminal:
        return f"{task.agent} {task.id} {reason}"
    status = "paused" if task.status in (TaskStatus.IDLE, TaskStatus.SWAPPED) else task.status
    return f"{task.agent} {task.id} is {status} because {reason}"


# -- one clause a status --------------------------------------------------------------------


def _pending(tx: Transaction, task: Task, ids: Collection[str], view: _View) -> str:
    if task.available_at > tx.now:
        at = f"in {phrases.duration(task.available_at - tx.now)}, at {phrases.moment(task.available_at, tx.now)}"
        last = _last_attempt(tx, task)
        if last is not None and last.status is AttemptStatus.FAILED:
            error = tasks.read_error(tx, last.error)
            return f"it is tried again {at}, after failure {task.failures}: {phrases.failure(error)}"
        return f"it is to start {at}"
    asked = open_questions(tx, task)
    if asked:
        return _are_open(asked, view.commands)
    nobody = _no_worker(tx, task, view)
    # Handed back while it waited for children: it will wait for them again.
    below = [child for child in task_lists.children(tx, task.id) if child.mode is Mode.FOREGROUND]
    if any(not child.status.is_terminal for child in below):
        return "; ".join(filter(None, (_not_done(below, ids), nobody)))
    return nobody or "it is due: a worker that has its agent takes it as soon as a permit is free"


def _no_worker(tx: Transaction, task: Task, view: _View) -> str:
    """That no live worker can run this task; "" when one can."""
    what = f"no live worker has agent {task.agent}" + (f" in version {task.version}" if task.version else "")
    if any(
        not view.judge.is_out(one, now_ms=tx.now) for one in instances.alive_with_agent(tx, task.agent, task.version)
    ):
        return ""
    known = instances.last_with_agent(tx, task.agent, task.version)
    if known is None:
        return f"{what} (none ever had): start one with {view.commands.worker}"
    host, beat_at = known
    return f"{what} (last seen {phrases.moment(beat_at, tx.now)} on host {host}): start one with {view.commands.worker}"


def _running(tx: Transaction, task: Task, view: _View) -> str:
    last = _last_attempt(tx, task)
    since = "" if last is None else f" since {phrases.moment(last.started_at, tx.now)}"
    number = f" (attempt {task.attempt})" if task.attempt > 1 else ""
    if task.instance_id == view.here:
        return f"it runs here{since}{number}"
    owner = _instance(tx, task.instance_id)
    if owner is None:
        return f"worker {task.instance_id} runs it{since}{number}"
    return _lost(tx, task, view) or f"host {owner.host}, pid {owner.pid} runs it{since}{number}"


def _lost(tx: Transaction, task: Task, view: _View) -> str:
    """That the worker which holds a task is silent or dead, and who takes it over; "" otherwise."""
    owner = _instance(tx, task.instance_id) if task.execution_id is not None else None
    if owner is None or not view.judge.is_out(owner, now_ms=tx.now):
        return ""
    how = _health(tx, owner, view.judge)
    next_one = _no_worker(tx, task, view) or "the next worker takes it over"
    return f"its worker (host {owner.host}, pid {owner.pid}) {how}: {next_one}"


def _instance(tx: Transaction, instance_id: str | None) -> Instance | None:
    try:
        return instances.get(tx, instance_id or "?")
    except NotFound:
        return None


def _waiting(tx: Transaction, task: Task, wait: Wait, ids: Collection[str], view: _View) -> str:
    match wait.kind:
        case WaitKind.CHILDREN:
            return _children(tx, task, wait, ids, view)
        case WaitKind.QUESTION:
            asked = [questions.get(tx, key) for key in wait.keys]
            still = [one for one in asked if one.status is QuestionStatus.OPEN]
            return (
                _are_open(still, view.commands)
                if still
                else f"question {asked[0].id} is answered: {_goes_on(tx, task, view)}"
            )
        case WaitKind.RECEIVE:
            until = "" if wait.until_ms is None else f" (it waits until {phrases.moment(wait.until_ms, tx.now)})"
            return f"nobody has sent {phrases.listed([phrases.shown(key) for key in wait.keys])} yet{until}"
        case WaitKind.TIMER:
            holder = next((key.removeprefix(tasks.DEAD) for key in wait.keys if key.startswith(tasks.DEAD)), None)
            if holder is not None and holder == task.instance_id:
                return "the answer is stored and acts once the call has returned, which still runs in its worker"
            if holder is not None:
                return f"{_ACTS} {_called(tx, holder)} is proven dead"
            assert wait.until_ms is not None, task.id
            left = phrases.duration(wait.until_ms - tx.now)
            return f"it sleeps until {phrases.moment(wait.until_ms, tx.now)} (in {left})"


def _goes_on(tx: Transaction, task: Task, view: _View) -> str:
    """Who goes on with a task for which has happened what it waited for, or why nobody does."""
    if task.execution_id is not None:
        return _lost(tx, task, view) or "its worker goes on with it"
    return _no_worker(tx, task, view) or "a worker takes it up next"


def _children(tx: Transaction, task: Task, wait: Wait, ids: Collection[str], view: _View) -> str:
    found = [tasks.get(tx, key) for key in wait.keys]
    if all(child.status.is_terminal for child in found):
        return f"its children are done: {_goes_on(tx, task, view)}"
    return _not_done(found, ids)


def _not_done(found: Sequence[Task], ids: Collection[str]) -> str:
    still = [child for child in found if not child.status.is_terminal]
    known = sorted({*ids, *(child.id for child in found)})
    names = phrases.listed([f"{child.agent} {tail(child.id, known)}" for child in still], most=3)
    are = "is" if len(still) == 1 else "are"
    return f"{len(still)} of {phrases.count(len(found), 'child', 'children')} {are} not done: {names}"


def _interrupted(tx: Transaction, task: Task, view: _View) -> str:
    asked = [one for one in open_questions(tx, task) if one.kind is QuestionKind.RESUME]
    if asked:
        return _are_open(asked, view.commands)
    last = _last_attempt(tx, task)
    error = None if last is None else tasks.read_error(tx, last.error)
    why = f" ({error.message})" if error is not None and error.message else ""
    return f"its attempt ended without an outcome{why}; the next worker decides whether it goes on"


def _ended(tx: Transaction, task: Task, commands: Commands) -> str:
    assert task.finished_at is not None, task.id
    error = None if task.status is TaskStatus.COMPLETED else tasks.read_error(tx, task.error)
    who = ended_by(tx, task)
    by = f" by {phrases.one_line(who)}" if who else ""
    ended = f"{task.status.replace('_', ' ')}{by} {phrases.duration(tx.now - task.finished_at)} ago"
    if task.status is not TaskStatus.COMPLETED:
        ended += f": {phrases.failure(error)}"
    return "; ".join(filter(None, (ended, left_in_doubt(tx, task, commands=commands))))


def left_in_doubt(tx: Transaction, task: Task, *, commands: Commands = _MEANT) -> str:
    """How many calls a task that has ended left in doubt, and the command that tells more; "" for none."""
    left = effects.left_in_doubt(tx, task)
    return f"{phrases.count(len(left), 'call')} in doubt: {commands.line(f'why {task.id}')}" if left else ""


def _are_open(asked: Sequence[Question], commands: Commands) -> str:
    """That questions are open: the text of the first, and which others there are."""
    first, *others = asked
    whole = f"; all of it: {commands.whole(first.id)[0]}" if phrases.is_cut(first.text) else ""
    to = f"  (to {first.to})" if first.to else ""
    more = f"; so {'is' if len(others) == 1 else 'are'} {phrases.listed([one.id for one in others])}" if others else ""
    return f"question {first.id} is open: {phrases.asked(first.text)}{to}{more}{whole}"


def _called(tx: Transaction, instance_id: str) -> str:
    found = _instance(tx, instance_id)
    if found is None:
        return f"worker {instance_id}"
    return f"the worker on host {found.host}, pid {found.pid}"


# -- the sections of the page ---------------------------------------------------------------


def _as_far_as_readable(lines: Iterator[str]) -> list[str]:
    """The lines; where damage ends them, that is the last one, for it is part of the answer."""
    found: list[str] = []
    try:
        for line in lines:
            found.append(line)  # noqa: PERF402  # What came before the damage is kept.
    except Damaged as damage:
        found.append(f"the rest cannot be read: {damage}")
    return found


def _headline(tx: Transaction, task: Task, view: _View) -> Iterator[str]:
    yield standing(task, because(tx, task, judge=view.judge, commands=view.commands))
    begun = phrases.duration(tx.now - task.created_at)
    parent = "" if task.parent_task_id is None else f", child of {task.parent_task_id}"
    deadline = "" if task.deadline_at is None else f", deadline {phrases.moment(task.deadline_at, tx.now)}"
    yield f"admitted {begun} ago in session {task.session_id}{parent}{deadline}"


def _evidence(tx: Transaction, task: Task, view: _View) -> Iterator[str]:
    for question in open_questions(tx, task):
        yield from _of_question(tx, question, view.commands)
    settled_by = settled(tx, task.id) if task.status.is_terminal else NOBODY
    shown, left_out = _records(tx, task)
    if left_out:
        yield f"{phrases.count(left_out, 'earlier record')}: {view.commands.line(f'show {task.id}')}"
    for step, payload in shown:
        what = recalled.call(step.name or step.event_kind, payload)
        when = phrases.moment(step.timestamp, tx.now)
        began = f"{what} began {when} in attempt {step.attempt}"
        error = phrases.error_of(step)
        how = "" if error is None else f": {phrases.failure(error)}"
        by = settled_by.of(step)
        how += "" if by is None else f", {by}"
        became = of_child(tx, step) or phrases.outcome(step)
        yield f"step {step.step_index}, {step.risk}: {began}: {became}{how}"
        if step.is_in_doubt and (owner := steps.owner(tx, task.id, step.attempt)) is not None:
            held_by = _instance(tx, owner.instance_id)
            health = "is not on record" if held_by is None else _health(tx, held_by, view.judge)
            yield f"  held by {_called(tx, owner.instance_id)}, which {health}"


def _records(tx: Transaction, task: Task) -> tuple[list[tuple[Step, Any]], int]:
    """The last calls, before them those of which nobody knows what they did, and how many records are left out."""
    first = max(0, task.step_count - _READ_RECORDS)
    read = steps.listing(tx, task.id, after=first - 1, limit=_READ_RECORDS)
    calls = [one for one in read if not one[0].is_note]  # What answers no call is in nobody's way here.
    unknown = [one for one in calls[:-_SHOWN_RECORDS] if phrases.outcome(one[0]) in _UNKNOWN]
    shown = [*unknown[-_SHOWN_RECORDS:], *calls[-_SHOWN_RECORDS:]]
    return shown, first + len(calls) - len(shown)


def of_child(tx: Transaction, step: Step) -> str:
    """How the child stands that a record began and whose outcome its parent has not taken yet; "" otherwise."""
    if step.child_task_id is None or step.outcome is not None:
        return ""
    return f"child {tasks.get(tx, step.child_task_id).status.replace('_', ' ')}"


def _health(tx: Transaction, instance: Instance, judge: Judge) -> str:
    if instance.status is InstanceStatus.STOPPED or judge.is_dead(instance):
        return _DEAD
    if judge.is_out(instance, now_ms=tx.now):
        return f"has been silent for {phrases.duration(tx.now - instance.heartbeat_at)}"
    return "lives"


def _of_question(tx: Transaction, question: Question, commands: Commands) -> Iterator[str]:
    to = f" to {question.to}" if question.to else ""
    age = phrases.duration(tx.now - question.created_at)
    ends = "never expires"
    if question.expires_at is not None:
        ends = f"expires in {phrases.duration(question.expires_at - tx.now)}"
    yield f"{question.id}, asked{to} {age} ago, {ends}: {phrases.asked(question.text)}"
    if phrases.is_cut(question.text):
        yield f"  all of it: {commands.whole(question.id)[0]}"
    said = questions.evidence(tx, question)
    for name in ("cause", "reconcile", "why"):
        if isinstance(said, dict) and said.get(name) and str(said[name]) not in question.text:
            yield f"  {name}: {phrases.one_line(str(said[name]))}"
    if wants := wanted(said):
        yield f"  {wants}"


def _rules(tx: Transaction, task: Task, recovery_limit: int) -> Iterator[str]:
    past = recovery.decisions(tx, task.id)
    if len(past) > 1:
        earlier = [f"{one.verdict} {phrases.moment(one.at, tx.now)}" for one in reversed(past[1:])]
        yield f"{phrases.count(len(earlier), 'earlier decision')}: {phrases.listed(earlier)}"
    for decision in past[:1]:
        yield f"{decision.verdict} (rule {decision.rule}), decided {phrases.moment(decision.at, tx.now)}"
        yield from (f"  {reason}" for reason in decision.reasons)
    is_decided = any(one.kind is QuestionKind.RESUME for one in open_questions(tx, task))
    if task.status is TaskStatus.INTERRUPTED and not is_decided:
        would = recovery.examine(tx, task.id, recovery_limit=recovery_limit)
        yield f"not decided yet; a worker would now decide {would.verdict} (rule {would.rule})"
        yield from (f"  {reason}" for reason in would.reasons)


def _tried(tx: Transaction, task: Task) -> Iterator[str]:
    found = task_lists.attempts(tx, task.id)
    if len(found) > _SHOWN_ATTEMPTS:
        yield phrases.count(len(found) - _SHOWN_ATTEMPTS, "earlier attempt")
    for one in found[-_SHOWN_ATTEMPTS:]:
        begun = phrases.moment(one.started_at, tx.now)
        ended = "not ended" if one.ended_at is None else f"{one.status} {phrases.moment(one.ended_at, tx.now)}"
        error = tasks.read_error(tx, one.error)
        why = "" if error is None else f": {phrases.failure(error)}"
        yield f"attempt {one.number} from {begun}, {ended}, {_called(tx, one.instance_id)}{why}"


def moves(tx: Transaction, task: Task, *, commands: Commands = _MEANT, judge: Judge = _NOBODY_DEAD) -> Iterator[str]:
    """The commands that move a task on, each with what it does; of one that has ended, those that settle its calls."""
    if not task.status.is_terminal:
        yield from as_lines(_moves(tx, task, _View(judge, commands)))
        return
    left = effects.left_in_doubt(tx, task)
    for index, name, _ in left:
        ways = settling(tx, steps.at_index(tx, task.id, index), commands)
        yield from as_lines((command, f"{name}: {meaning}") for command, meaning in ways)
    if task.status is not TaskStatus.COMPLETED and task.parent_task_id is None:
        yield stays(task.status)


def settling(tx: Transaction, step: Step, commands: Commands) -> tuple[Way, ...]:
    """The commands that settle a call which an ended task left in doubt, with what its tool may have returned."""
    returns = returned({**questions.evidence_of_step(tx, step), "tool": step.name})
    return commands.settle(step.task_id, step.step_index, returns=returns)


def settling_cancelled(tx: Transaction, question: Question, commands: Commands) -> tuple[Way, ...]:
    """The commands that settle the call whose question the end of its task has cancelled, while it is in doubt."""
    if question.status is not QuestionStatus.CANCELLED or question.kind is not QuestionKind.STEP_IN_DOUBT:
        return ()
    task = tasks.get(tx, question.task_id)
    left = effects.left_in_doubt(tx, task) if task.status.is_terminal else []
    found = [index for index, _, key in left if key == question.step_key]
    return settling(tx, steps.at_index(tx, task.id, found[-1]), commands) if found else ()


def _moves(tx: Transaction, task: Task, view: _View) -> Iterator[Way]:
    commands = view.commands
    is_late = bool(too_late(tx, task, judge=view.judge, commands=commands))
    asked = [] if is_late else open_questions(tx, task)
    for question in asked:
        returns = returned(questions.evidence(tx, question))
        yield from commands.answer(question.id, question.kind, returns=returns)
    if task.status is TaskStatus.INTERRUPTED and not asked and not is_late:
        yield commands.line(f"resume {task.id}"), "decide now, without waiting for a worker"
    for child in task_lists.children(tx, task.id):
        if child.mode is Mode.FOREGROUND and not child.status.is_terminal:
            yield commands.line(f"why {child.id}"), "what this child waits for"
    if task.status is TaskStatus.WAITING:
        for wait in task.waiting_for:
            if wait.kind is WaitKind.TIMER and any(key.startswith(tasks.DEAD) for key in wait.keys):
                held = questions.live_for_step(tx, task.id, QuestionKind.STEP_IN_DOUBT, wait.step_key)
                yield from [] if held is None else [commands.anyway(held.id)]
    yield from (commands.anyway(question.id) for question, _ in _unproven(tx, task, view.judge))
    if is_late:
        yield commands.worker, "a worker ends it, for its deadline has passed"
    elif needs_worker(tx, task, judge=view.judge):
        too = "; so does the line that began it, once more" if task.parent_task_id is None else ""
        yield commands.worker, f"a worker that has agent {task.agent} goes on with it{too}"
    yield commands.line(f"cancel {task.id}"), "end it and everything below it"


def _unproven(tx: Transaction, task: Task, judge: Judge) -> list[tuple[Question, str]]:
    """Answers "it did not happen, run it" that nobody acts on before a worker is proven dead, and which worker."""
    held = zombies.held_up(tx, task)
    return [(question, holder.id) for question, holder in held if _health(tx, holder, judge) != _DEAD]


def _last_attempt(tx: Transaction, task: Task) -> Attempt | None:
    found = task_lists.attempts(tx, task.id)
    return found[-1] if found else None
