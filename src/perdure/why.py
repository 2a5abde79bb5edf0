"""Why a task stands where it stands: one clause for lists, a page for `perdure why`.

It reads and decides nothing. What recovery would do is asked of the same function that does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from perdure import phrases
from perdure.errors import Damaged, NotFound
from perdure.model.instance import Instance
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, Question, QuestionKind
from perdure.model.task import Attempt, Mode, Task, Wait, WaitKind, tail
from perdure.runtime import zombies
from perdure.runtime.answers import result_flag, told
from perdure.runtime.liveness import Judge
from perdure.settings import Settings
from perdure.states import AttemptStatus, InstanceStatus, QuestionStatus, TaskStatus
from perdure.store import effects, instances, questions, recovery, steps, task_lists, tasks
from perdure.store.database import Transaction

_NOBODY_DEAD = Judge()
_SHOWN_RECORDS = 5
_SHOWN_ATTEMPTS = 10
_VERDICTS = {HAPPENED: "it happened", NOT_HAPPENED: "it did not happen", GIVE_UP: "nobody knows"}
_DEAD = "is dead"
_ACTS = "the answer is stored and acts once"
_START = "start one with perdure worker"


def because(tx: Transaction, task: Task, *, ids: Collection[str] = (), judge: Judge = _NOBODY_DEAD) -> str:
    """Why a task has not ended, as a clause to follow "because"; for an ended one how it ended.

    `ids` are those shown beside it, so that short forms stay unique.
    """
    said = _because(tx, task, ids, judge)
    return "; ".join(filter(None, (said, "" if task.status.is_terminal else awaits_proof(tx, task, judge=judge))))


def awaits_proof(tx: Transaction, task: Task, *, judge: Judge = _NOBODY_DEAD) -> str:
    """Whose death must be proven before an answer "it did not happen, run it" acts; "" where none waits for that."""
    return "; ".join(f"{_ACTS} {_called(tx, holder)} is proven dead" for _, holder in _unproven(tx, task, judge))


def _because(tx: Transaction, task: Task, ids: Collection[str], judge: Judge) -> str:
    match task.status:
        case TaskStatus.PENDING:
            return _pending(tx, task, ids, judge)
        case TaskStatus.RUNNING:
            return _running(tx, task, judge)
        case TaskStatus.WAITING:
            return "; ".join(_waiting(tx, task, wait, ids, judge) for wait in task.waiting_for)
        case TaskStatus.IDLE | TaskStatus.SWAPPED:
            return "its session is paused"
        case TaskStatus.INTERRUPTED:
            return _interrupted(tx, task)
        case _:
            return _ended(tx, task)


def explain(
    tx: Transaction,
    task_id: str,
    *,
    recovery_limit: int = Settings().recovery_limit,
    flags: str = "",
    judge: Judge = _NOBODY_DEAD,
) -> str:
    """Everything that speaks for where a task stands: cause, evidence, rule, what was tried, what moves it on.

    `flags` are added to the commands it names. Raises NotFound.
    """
    page = [*_headline(tx, tasks.get(tx, task_id), judge)]
    found = sections(tx, task_id, recovery_limit=recovery_limit, flags=flags, judge=judge)
    for title, lines in found.items():
        page += [title, *(f"  {line}" for line in lines)] if lines else []
    return "\n".join(page)


def sections(
    tx: Transaction, task_id: str, *, recovery_limit: int, flags: str = "", judge: Judge = _NOBODY_DEAD
) -> dict[str, list[str]]:
    """The lines of each section of that page, by its title."""
    task = tasks.get(tx, task_id)
    found = {
        "evidence": _evidence(tx, task, judge),
        "answers": answers(tx, task),
        "rule": _rules(tx, task, recovery_limit),
        "tried": _tried(tx, task),
        "what moves it on": moves(tx, task, flags=flags, judge=judge),
    }
    return {title: _as_far_as_readable(lines) for title, lines in found.items()}


def stays(status: TaskStatus) -> str:
    """That a task which has ended without a result is not taken up again, and what to do instead."""
    word = status.replace("_", " ")
    return f"a {word} task stays {word}: start it anew, with another key or without one"


def needs_worker(tx: Transaction, task: Task, *, judge: Judge = _NOBODY_DEAD) -> str:
    """Why a task that could go on does not: nobody lives who would. "" where somebody does, or it waits."""
    match task.status:
        case TaskStatus.PENDING:
            return _no_worker(tx, task, judge)
        case TaskStatus.RUNNING | TaskStatus.WAITING if task.execution_id is not None:
            return _no_worker(tx, task, judge) if _lost(tx, task, judge) else ""
        case TaskStatus.INTERRUPTED if not open_questions(tx, task):
            return _no_worker(tx, task, judge)
        case _:
            return ""


def standing(task: Task, reason: str) -> str:
    """Where a task stands, as one sentence; `reason` is what `because` says."""
    if task.status.is_terminal:
        return f"{task.agent} {task.id} {reason}"
    status = "paused" if task.status in (TaskStatus.IDLE, TaskStatus.SWAPPED) else task.status
    return f"{task.agent} {task.id} is {status} because {reason}"


def people_asked(tx: Transaction, task_id: str, *, most: int = 1000) -> tuple[Question, ...]:
    """The open questions that are all a task and everything below it wait for; none while a machine can go on.

    Raises NotFound.
    """
    found: dict[str, Question] = {}
    todo, seen = [task_id], 0
    while todo and seen < most:
        seen += 1
        task = tasks.get(tx, todo.pop())
        if task.status.is_terminal and task.id != task_id:
            continue
        asked = _asked(tx, task)
        if asked is None:
            return ()
        own, below = asked
        found.update((one.id, one) for one in own)
        todo += below
    return () if todo else tuple(found.values())


def open_questions(tx: Transaction, task: Task) -> list[Question]:
    """A task's open questions, oldest first."""
    return [one for one in reversed(questions.of_task(tx, task.id)) if one.status is QuestionStatus.OPEN]


def answers(tx: Transaction, task: Task) -> Iterator[str]:
    """What became of a task's questions, oldest first: what was said, by whom, when and why."""
    for question in reversed(questions.of_task(tx, task.id)):
        if question.status is not QuestionStatus.OPEN:
            yield f"{question.id} {phrases.one_line(question.text)} {said(tx, question)}"


def said(tx: Transaction, question: Question) -> str:
    """What became of a question that is no longer open: what was said, by whom, when and why."""
    answer = questions.answer_of(tx, question)
    match question.status, question.kind:
        case QuestionStatus.ANSWERED, QuestionKind.STEP_IN_DOUBT if isinstance(answer, dict):
            what = _VERDICTS.get(str(answer.get("verdict")), "answered")
            what += ", to run without proof that its old worker is dead" if question.anyway else ""
        case QuestionStatus.ANSWERED, _:
            what = f"answered {phrases.shown(answer)}"
        case _:
            what = str(question.status)
    by = f", by {question.answered_by}" if question.answered_by else ""
    at = "" if question.answered_at is None else f", {phrases.moment(question.answered_at, tx.now)}"
    return f"{what}{by}{at}" + (f": {phrases.one_line(question.reason)}" if question.reason else "")


# -- one clause a status --------------------------------------------------------------------


def _pending(tx: Transaction, task: Task, ids: Collection[str], judge: Judge) -> str:
    if task.available_at > tx.now:
        at = f"in {phrases.duration(task.available_at - tx.now)}, at {phrases.moment(task.available_at, tx.now)}"
        last = _last_attempt(tx, task)
        if last is not None and last.status is AttemptStatus.FAILED:
            error = tasks.read_error(tx, last.error)
            return f"it is tried again {at}, after failure {task.failures}: {phrases.failure(error)}"
        return f"it is to start {at}"
    asked = open_questions(tx, task)
    if asked:
        return _are_open(asked)
    nobody = _no_worker(tx, task, judge)
    # Handed back while it waited for children: it will wait for them again.
    below = [child for child in task_lists.children(tx, task.id) if child.mode is Mode.FOREGROUND]
    if any(not child.status.is_terminal for child in below):
        return "; ".join(filter(None, (_not_done(below, ids), nobody)))
    return nobody or "it is due: a worker that has its agent takes it as soon as a permit is free"


def _no_worker(tx: Transaction, task: Task, judge: Judge) -> str:
    """That no live worker can run this task; "" when one can."""
    what = f"no live worker has agent {task.agent}" + (f" in version {task.version}" if task.version else "")
    if any(not _is_out(tx, one, judge) for one in instances.alive_with_agent(tx, task.agent, task.version)):
        return ""
    known = instances.last_with_agent(tx, task.agent, task.version)
    if known is None:
        return f"{what} (none ever had): {_START}"
    host, beat_at = known
    return f"{what} (last seen {phrases.moment(beat_at, tx.now)} on host {host}): {_START}"


def _running(tx: Transaction, task: Task, judge: Judge) -> str:
    last = _last_attempt(tx, task)
    since = "" if last is None else f" since {phrases.moment(last.started_at, tx.now)}"
    number = f" (attempt {task.attempt})" if task.attempt > 1 else ""
    owner = _instance(tx, task.instance_id)
    if owner is None:
        return f"worker {task.instance_id} runs it{since}{number}"
    return _lost(tx, task, judge) or f"host {owner.host}, pid {owner.pid} runs it{since}{number}"


def _lost(tx: Transaction, task: Task, judge: Judge) -> str:
    """That the worker which holds a task is silent or dead, and who takes it over; "" otherwise."""
    owner = _instance(tx, task.instance_id) if task.execution_id is not None else None
    if owner is None or not _is_out(tx, owner, judge):
        return ""
    how = _health(tx, owner, judge)
    next_one = _no_worker(tx, task, judge) or "the next worker takes it over"
    return f"its worker (host {owner.host}, pid {owner.pid}) {how}: {next_one}"


def _is_out(tx: Transaction, instance: Instance, judge: Judge) -> bool:
    """Whether a worker is silent or dead."""
    has_ended = instance.status in (InstanceStatus.CRASHED, InstanceStatus.STOPPED)
    return has_ended or judge.is_silent(instance, now_ms=tx.now) or judge.is_dead(instance)


def _instance(tx: Transaction, instance_id: str | None) -> Instance | None:
    try:
        return instances.get(tx, instance_id or "?")
    except NotFound:
        return None


def _waiting(tx: Transaction, task: Task, wait: Wait, ids: Collection[str], judge: Judge) -> str:
    match wait.kind:
        case WaitKind.CHILDREN:
            return _children(tx, task, wait, ids, judge)
        case WaitKind.QUESTION:
            asked = [questions.get(tx, key) for key in wait.keys]
            still = [one for one in asked if one.status is QuestionStatus.OPEN]
            return _are_open(still) if still else f"question {asked[0].id} is answered: {_goes_on(tx, task, judge)}"
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


def _goes_on(tx: Transaction, task: Task, judge: Judge) -> str:
    """Who goes on with a task for which has happened what it waited for, or why nobody does."""
    if task.execution_id is not None:
        return _lost(tx, task, judge) or "its worker goes on with it"
    return _no_worker(tx, task, judge) or "a worker takes it up next"


def _children(tx: Transaction, task: Task, wait: Wait, ids: Collection[str], judge: Judge) -> str:
    found = [tasks.get(tx, key) for key in wait.keys]
    if all(child.status.is_terminal for child in found):
        return f"its children are done: {_goes_on(tx, task, judge)}"
    return _not_done(found, ids)


def _not_done(found: Sequence[Task], ids: Collection[str]) -> str:
    still = [child for child in found if not child.status.is_terminal]
    known = sorted({*ids, *(child.id for child in found)})
    names = phrases.listed([f"{child.agent} {tail(child.id, known)}" for child in still], most=3)
    are = "is" if len(still) == 1 else "are"
    return f"{len(still)} of {phrases.count(len(found), 'child', 'children')} {are} not done: {names}"


def _interrupted(tx: Transaction, task: Task) -> str:
    asked = [one for one in open_questions(tx, task) if one.kind is QuestionKind.RESUME]
    if asked:
        return _are_open(asked)
    last = _last_attempt(tx, task)
    error = None if last is None else tasks.read_error(tx, last.error)
    why = f" ({error.message})" if error is not None and error.message else ""
    return f"its attempt ended without an outcome{why}; the next worker decides whether it goes on"


def _ended(tx: Transaction, task: Task) -> str:
    assert task.finished_at is not None, task.id
    ended = f"{task.status.replace('_', ' ')} {phrases.duration(tx.now - task.finished_at)} ago"
    if task.status is not TaskStatus.COMPLETED:
        ended += f": {phrases.failure(tasks.read_error(tx, task.error))}"
    return "; ".join(filter(None, (ended, left_in_doubt(tx, task))))


def left_in_doubt(tx: Transaction, task: Task, *, flags: str = "") -> str:
    """How many calls a task that has ended left in doubt, and the command that settles the first; "" for none."""
    left = effects.left_in_doubt(tx, task)
    if not left:
        return ""
    return f"{phrases.count(len(left), 'call')} in doubt: perdure settle {task.id} {left[0][0]}{flags}"


def _are_open(asked: Sequence[Question]) -> str:
    """That questions are open: the text of the first, and which others there are."""
    first, *others = asked
    to = f"  (to {first.to})" if first.to else ""
    more = f"; so {'is' if len(others) == 1 else 'are'} {phrases.listed([one.id for one in others])}" if others else ""
    return f"question {first.id} is open: {phrases.one_line(first.text)}{to}{more}"


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


def _headline(tx: Transaction, task: Task, judge: Judge) -> Iterator[str]:
    yield standing(task, because(tx, task, judge=judge))
    begun = phrases.duration(tx.now - task.created_at)
    parent = "" if task.parent_task_id is None else f", child of {task.parent_task_id}"
    deadline = "" if task.deadline_at is None else f", deadline {phrases.moment(task.deadline_at, tx.now)}"
    yield f"admitted {begun} ago in session {task.session_id}{parent}{deadline}"


def _evidence(tx: Transaction, task: Task, judge: Judge) -> Iterator[str]:
    for question in open_questions(tx, task):
        yield from _of_question(tx, question)
    first = max(-1, task.step_count - _SHOWN_RECORDS - 1)
    for step, payload in steps.listing(tx, task.id, after=first, limit=_SHOWN_RECORDS):
        if step.is_note:
            continue
        what = phrases.call(step.name or step.event_kind, phrases.arguments_of(payload))
        when = phrases.moment(step.timestamp, tx.now)
        began = f"{what} began {when} in attempt {step.attempt}"
        error = phrases.error_of(step)
        how = "" if error is None else f": {phrases.failure(error)}"
        yield f"step {step.step_index}, {step.risk}: {began}: {phrases.outcome(step)}{how}"
        if step.is_in_doubt and (owner := steps.owner(tx, task.id, step.attempt)) is not None:
            held_by = _instance(tx, owner.instance_id)
            health = "is not on record" if held_by is None else _health(tx, held_by, judge)
            yield f"  held by {_called(tx, owner.instance_id)}, which {health}"


def _health(tx: Transaction, instance: Instance, judge: Judge) -> str:
    if instance.status is InstanceStatus.STOPPED or judge.is_dead(instance):
        return _DEAD
    if _is_out(tx, instance, judge):
        return f"has been silent for {phrases.duration(tx.now - instance.heartbeat_at)}"
    return "lives"


def _of_question(tx: Transaction, question: Question) -> Iterator[str]:
    to = f" to {question.to}" if question.to else ""
    age = phrases.duration(tx.now - question.created_at)
    ends = "never expires"
    if question.expires_at is not None:
        ends = f"expires in {phrases.duration(question.expires_at - tx.now)}"
    yield f"{question.id}, asked{to} {age} ago, {ends}: {phrases.one_line(question.text)}"
    said = questions.evidence(tx, question)
    for name in ("cause", "reconcile", "why"):
        if isinstance(said, dict) and said.get(name) and str(said[name]) not in question.text:
            yield f"  {name}: {phrases.one_line(str(said[name]))}"
    if isinstance(said, dict) and said.get("wants", "any") != "any":
        yield f"  wants {told(str(said['wants']))}"


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


def moves(tx: Transaction, task: Task, *, flags: str = "", judge: Judge = _NOBODY_DEAD) -> Iterator[str]:
    """The commands that move a task on, each with what it does."""
    if task.status.is_terminal:
        for index, name, _ in effects.left_in_doubt(tx, task):
            choice = "--happened | --not-happened | --give-up"
            yield f"perdure settle {task.id} {index} {choice}{flags}  say what became of {name}"
        if task.status is not TaskStatus.COMPLETED and task.parent_task_id is None:
            yield stays(task.status)
        return
    ways: list[tuple[str, str]] = []
    for question in open_questions(tx, task):
        result = result_flag(questions.evidence(tx, question))
        ways += phrases.ways_to_answer(question.id, question.kind, flags=flags, result=result)
    if task.status is TaskStatus.INTERRUPTED and not ways:
        ways.append((f"perdure resume {task.id}{flags}", "decide now, without waiting for a worker"))
    for child in task_lists.children(tx, task.id):
        if child.mode is Mode.FOREGROUND and not child.status.is_terminal:
            ways.append((f"perdure why {child.id}{flags}", "what this child waits for"))
    if task.status is TaskStatus.WAITING:
        for wait in task.waiting_for:
            if wait.kind is WaitKind.TIMER and any(key.startswith(tasks.DEAD) for key in wait.keys):
                ways += _run_anyway(tx, task, wait, flags)
    ways += [_anyway(question, flags) for question, _ in _unproven(tx, task, judge)]
    if needs_worker(tx, task, judge=judge):
        ways.append((f"perdure worker MODULE:APP{flags}", f"a worker that has agent {task.agent} goes on with it"))
        if task.parent_task_id is None:
            ways.append((f"perdure run …{flags}", "the line that began it, once more: so does that"))
    ways.append((f"perdure cancel {task.id}{flags}", "end it and everything below it"))
    width = max(len(command) for command, _ in ways)
    yield from (f"{command:<{width}}  {meaning}" for command, meaning in ways)


def _run_anyway(tx: Transaction, task: Task, wait: Wait, flags: str) -> list[tuple[str, str]]:
    asked = questions.live_for_step(tx, task.id, QuestionKind.STEP_IN_DOUBT, wait.step_key)
    if asked is None:
        return []
    return [_anyway(asked, flags)]


def _anyway(asked: Question, flags: str) -> tuple[str, str]:
    return f"perdure answer {asked.id} --not-happened --anyway{flags}", "run it without that proof"


def _unproven(tx: Transaction, task: Task, judge: Judge) -> list[tuple[Question, str]]:
    """Answers "it did not happen, run it" that nobody acts on before a worker is proven dead, and which worker."""
    held = zombies.held_up(tx, task)
    return [(question, holder.id) for question, holder in held if _health(tx, holder, judge) != _DEAD]


def _last_attempt(tx: Transaction, task: Task) -> Attempt | None:
    found = task_lists.attempts(tx, task.id)
    return found[-1] if found else None


# -- whether only people are waited for -----------------------------------------------------


def _asked(tx: Transaction, task: Task) -> tuple[list[Question], list[str]] | None:
    """The open questions of a task and the children it waits for; None when it can go on without a person."""
    if task.status is TaskStatus.INTERRUPTED:
        own = [one for one in open_questions(tx, task) if one.kind is QuestionKind.RESUME]
        return (own, []) if own else None
    if task.status is not TaskStatus.WAITING:
        return None
    asked: list[Question] = []
    below: list[str] = []
    for wait in task.waiting_for:
        if wait.kind not in (WaitKind.CHILDREN, WaitKind.QUESTION) or tasks.has_happened(tx, task.id, wait):
            return None
        if wait.kind is WaitKind.CHILDREN:
            below += wait.keys
        else:
            asked += [questions.get(tx, key) for key in wait.keys]
    return asked, below
