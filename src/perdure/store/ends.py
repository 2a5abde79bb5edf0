"""Ends: one transaction proves the right to end, sets the outcome, ends the attempt, cancels open questions, takes
along the children that go with it, wakes a waiting parent, and writes the events. Exactly one writer wins.

Locks: session, then every task row that may change, in one statement ordered by id. Who settles a call of an ended
task locks that task alone.

What a person has said of a call in doubt is recorded with the end, though nobody has acted on it yet; of one that an
ended task left in doubt it can be recorded later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perdure import codec
from perdure.errors import BadInput, Error, InvariantError, NotApplied, NotFound, OutcomeUnknown, Refused
from perdure.model.event import EventKind
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, Question, QuestionKind
from perdure.model.step import Note, Step
from perdure.model.task import Fence, Mode, Task, Wait, WaitKind
from perdure.policy.retry import ErrorClass, classify
from perdure.policy.risk import Risk
from perdure.states import ATTEMPT, QUESTION, TASK, QuestionStatus, TaskStatus
from perdure.store import events, payloads, sessions, steps
from perdure.store import tasks as task_ops
from perdure.store.database import Row, Transaction
from perdure.store.queries import load
from perdure.store.sessions import check_id
from perdure.store.tasks import Proof, end_attempt, task_from_row

Q = load("tasks")
K = load("questions")
S = load("steps")

DEADLINE_EXCEEDED = "deadline exceeded"
# The errors of a task that was not resumed. No class of an agent: those have a module in their names.
NOT_RESUMED = _DENIED, _EXPIRED = ("denied", "expired")
_OUTCOME_UNKNOWN = f"{OutcomeUnknown.__module__}.{OutcomeUnknown.__qualname__}"
_NOT_APPLIED = f"{NotApplied.__module__}.{NotApplied.__qualname__}"


def complete(
    tx: Transaction, fence: Fence, result: codec.Packed, *, notes: Sequence[Note] = (), risk_seen: str
) -> None:
    """End the task with its result. Raises LeaseLost, and InvariantError while a dangerous step is in doubt."""
    steps.check_notes(notes)
    root, parent_id, _ = task_ops.hold_session(tx, check_id(fence.task_id, "task"))
    if parent_id is None and _complete_alone(tx, fence, root, result, _Last(notes, risk_seen)):
        return
    family = _family(tx, fence.task_id, parent_id)
    if not _is_owner(family.me, fence):
        task_ops.raise_unproven(tx, fence, "complete")
    _finish(tx, family, fence, "complete", result=payloads.keep(tx, result), error=None, last=_Last(notes, risk_seen))


def fail(tx: Transaction, fence: Fence, error: Error, *, notes: Sequence[Note] = (), risk_seen: str = "low") -> None:
    """End the task with an error; its open foreground children are cancelled with it. Raises LeaseLost."""
    family = _hold(tx, fence.task_id)
    _finish(tx, family, fence, "fail", result=None, error=error, last=_Last(notes, risk_seen))


def time_out(tx: Transaction, task_id: str, *, fence: Fence | None = None) -> bool:
    """End an overdue task of any status; its open foreground children go with it. True if this call did it."""
    error = Error("TimedOut", DEADLINE_EXCEEDED, "permanent")
    return _end(tx, task_id, "time_out", error, all_children=False, fence=fence)


def cancel(tx: Transaction, task_id: str, *, reason: str = "", by: str = "") -> bool:
    """End a task of any open status and every descendant, leaves first. True if this call did it; durable then."""
    message = reason or "cancelled"
    error = Error("Cancelled", message, "permanent", {"by": by} if by else {})
    return _end(tx, task_id, "cancel", error, all_children=True)


def refuse(tx: Transaction, task_id: str, error: Error) -> bool:
    """Fail a pending task that a budget or a policy refuses. True if this call did it."""
    family = _hold(tx, task_id)
    if family.me.status is not TaskStatus.PENDING:
        return False
    revision = sessions.raise_revision(tx, family.me.root_session_id)
    _end_children(tx, family, revision, all_children=False, reason=f"its parent was refused: {error}")
    return _end_one(tx, family.me, "refuse", error, revision) and _wake_parent(tx, family)


def abandon(tx: Transaction, task: Task, *, revision: int, denied: bool, by: str, reason: str) -> bool:
    """Fail an interrupted task because a person said no or nobody answered. The caller holds the session."""
    family = _hold(tx, task.id)
    if family.me.status is not TaskStatus.INTERRUPTED:
        return False
    message = (f"{by or 'a person'} decided not to resume" if denied else "nobody decided in time") + (
        f": {reason}" if reason and denied else ""
    )
    error = Error(_DENIED if denied else _EXPIRED, message, "permanent", {"by": by} if by else {})
    if not _end_one(tx, family.me, "abandon", error, revision):
        return False
    _end_children(tx, family, revision, all_children=False, reason=message)
    return _wake_parent(tx, family)


def settle_call(
    tx: Transaction, task_id: str, step_index: int, result: steps.Result, *, by: str, reason: str = ""
) -> bool:
    """Record what became of a call that its task left in doubt when it ended. Moves no task.

    True if this call did it, False when the call has its outcome. Raises NotFound, and Refused while the task goes on.
    """
    sessions.check_text(by, "by")
    sessions.check_text(reason, "reason")
    row = tx.one(Q.lock, id=check_id(task_id, "task"))
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    task = task_from_row(row)
    if not task.status.is_terminal:
        raise Refused(f"task {task_id} has not ended: its own question decides; see `perdure why {task_id}`")
    step = steps.at_index(tx, task_id, step_index)
    if step.key is None or step.risk in (None, Risk.LOW):
        raise BadInput(f"record {step_index} of task {task_id} is no call above low risk", field="step")
    if step.outcome is not None:
        return False
    _settle_call(tx, task, step, result, by=by, reason=reason)
    return True


def not_applied() -> steps.Result:
    """The outcome of a call that did not happen, and that nobody makes again."""
    error = NotApplied("it did not happen")
    told = Error(_NOT_APPLIED, str(error), classify(error))
    return steps.Result(completed=False, output=codec.pack(codec.encode(told.to_json())))


def _settle_call(
    tx: Transaction, task: Task, step: Step, result: steps.Result, *, by: str | None, reason: str | None
) -> None:
    _end_call(tx, task, step, result)
    told = {
        "key": step.key,
        "try_number": step.try_number,
        "outcome": steps.outcome_word(result),
        "by": by or "",
        "reason": reason or "",
    }
    events.emit(tx, task.n, _next_seq(tx, task.id), EventKind.CALL_SETTLED, told)


def _end_call(tx: Transaction, task: Task, step: Step, result: steps.Result) -> None:
    ended = tx.one(
        S.end,
        task=task.n,
        key=step.key,
        try_number=step.try_number,
        outcome=steps.outcome_word(result),
        output=payloads.keep(tx, result.output),
        ended_seq=_next_seq(tx, task.id),
        attempt=step.attempt,
        found_out=1,
        prompt_tokens=step.prompt_tokens,
        completion_tokens=step.completion_tokens,
        cost=step.cost,
    )
    assert ended is not None, step.key


def _end_calls(tx: Transaction, task: Task, *, completes: bool = False) -> None:
    """What is known of calls without an outcome becomes their outcome, for the task ends and makes none of them again.

    What a person has said counts, though the agent has not taken it. But for "it did not happen, run it" while that has
    not been acted on: it is true only once the call's old worker is proven dead. Raises InvariantError where a task
    would complete although a call of it is in doubt.
    """
    left = tx.all(S.left_open, task=task.n)
    doubts = [row for row in left if not row[3]]
    if completes and any(index >= task.replay_from for index, *_ in doubts):
        raise InvariantError(f"task {task.id} cannot complete while a call of it is in doubt")
    for index, _, _, is_undone in left:
        if is_undone:
            _end_call(tx, task, steps.at_index(tx, task.id, index), not_applied())
    if not completes:
        _take_answers(tx, task, doubts)


def _take_answers(tx: Transaction, task: Task, doubts: Sequence[Row]) -> None:
    if not doubts:
        return
    answered: dict[str, Question] = {}
    for row in tx.all(K.of_task, task_id=task.id):
        one = Question.from_row(row)
        if one.kind is QuestionKind.STEP_IN_DOUBT and one.status is QuestionStatus.ANSWERED and one.spent_at is None:
            answered.setdefault(one.step_key, one)  # The newest comes first.
    for index, name, key, _ in doubts:
        question = answered.get(key)
        result = None if question is None else _as_said(tx, question, tool=name)
        if question is not None and result is not None:
            step = steps.at_index(tx, task.id, index)
            _settle_call(tx, task, step, result, by=question.answered_by, reason=question.reason)
            tx.run(K.spend, id=question.id)


def _as_said(tx: Transaction, question: Question, *, tool: str) -> steps.Result | None:
    """The outcome that an answer amounts to; None for one that has to be acted on."""
    said = payloads.plain(tx, question.answer)
    verdict = said.get("verdict") if isinstance(said, dict) else GIVE_UP
    if verdict == HAPPENED:
        assert isinstance(said, dict)
        return steps.Result(completed=True, output=codec.pack(codec.encode(said.get("result"))))
    if verdict == NOT_HAPPENED:
        return None
    return steps.Result(
        completed=False, output=codec.pack(codec.encode(_nobody_knows(tool, question.reason).to_json()))
    )


def _nobody_knows(tool: str, reason: str | None) -> Error:
    """The recorded error of a call about which someone gave up finding out."""
    message = f"nobody knows whether {tool} happened" + (f": {reason}" if reason else "")
    return Error(_OUTCOME_UNKNOWN, message, ErrorClass.PERMANENT, {"args": [message], "tool": tool})


# -- the family of an ending task -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Family:
    """The locked rows around a task, and whether it may have open questions and calls in doubt."""

    me: Task
    parent: Task | None
    descendants: tuple[Task, ...]
    has_questions: bool = True
    has_doubts: bool = True


def _hold(tx: Transaction, task_id: str) -> _Family:
    _, parent_id, _ = task_ops.hold_session(tx, check_id(task_id, "task"))
    return _family(tx, task_id, parent_id)


def _family(tx: Transaction, task_id: str, parent_id: str | None) -> _Family:
    if parent_id is None:
        # Most tasks stand alone, and need a third of the statements that a family takes.
        row = tx.one(Q.lock_childless, id=task_id)
        if row is not None:
            return _Family(task_from_row(row[:-2]), None, (), bool(row[-2]), bool(row[-1]))
    rows = [task_from_row(row) for row in tx.all(Q.lock_family, id=task_id, parent_task_id=parent_id)]
    by_id = {task.id: task for task in rows}
    parent = by_id.get(parent_id) if parent_id else None
    others = [task for task in rows if task.id != task_id and task is not parent]
    return _Family(by_id[task_id], parent, tuple(sorted(others, key=lambda task: (-task.depth, task.id))))


class _Last(NamedTuple):
    """What the owner had still to write: notes that no step took, and the risk of all its calls."""

    notes: Sequence[Note]
    risk_seen: str


def _finish(
    tx: Transaction,
    family: _Family,
    fence: Fence,
    verb: str,
    *,
    result: bytes | None,
    error: Error | None,
    last: _Last,
) -> None:
    me = family.me
    steps.check_notes(last.notes)
    if not _is_owner(me, fence) or me.status.is_terminal:
        task_ops.raise_unproven(tx, fence, verb)
    revision = sessions.raise_revision(tx, me.root_session_id)
    if family.has_doubts:
        _end_calls(tx, me, completes=error is None)
    if family.has_questions:
        _cancel_questions(tx, me, revision, _ended_by(verb))
    row = tx.one(
        Q.finish,
        id=me.id,
        execution_id=fence.execution_id,
        generation=fence.generation,
        status=TASK.target(verb),
        result=result,
        error=None if error is None else payloads.small(tx, error.to_json()),
        revision=revision,
        notes=len(last.notes),
        risk_seen=last.risk_seen,
    )
    assert row is not None, me.id
    _tell_of_end(tx, row, verb, error, last)
    if error is not None:
        _end_children(tx, family, revision, all_children=False, reason=f"its parent failed: {error}")
    _wake_parent(tx, family)
    tx.hint()


def _is_owner(task: Task, fence: Fence) -> bool:
    return task.execution_id == fence.execution_id and task.generation == fence.generation


def _complete_alone(tx: Transaction, fence: Fence, root_session_id: str, result: codec.Packed, last: _Last) -> bool:
    """Complete a task that has no family and no question, as most are: for half the statements. The session is held.

    False, and nothing is written, when it is not such a task or not the caller's.
    """
    row = tx.one(
        Q.complete_alone,
        id=fence.task_id,
        execution_id=fence.execution_id,
        generation=fence.generation,
        result=result.blob,
        notes=len(last.notes),
        risk_seen=last.risk_seen,
    )
    if row is None:
        return False
    payloads.keep(tx, result)
    sessions.raise_revision(tx, root_session_id)
    _tell_of_end(tx, row, "complete", None, last)
    tx.hint()
    return True


def _tell_of_end(tx: Transaction, row: Row, verb: str, error: Error | None, last: _Last) -> None:
    """Write the last notes, the end of the attempt and the event; the row proves the right to."""
    proof = Proof(*row[:-1])
    count = len(last.notes)
    steps.insert_notes(
        tx, proof.n, last.notes, attempt=proof.attempt, step_index=row[-1] - count, seq=proof.event_seq - count
    )
    end_attempt(tx, proof, ATTEMPT.target(verb), error)
    events.emit(tx, proof.n, proof.event_seq, TASK.event(verb), {} if error is None else {"error": str(error)})


def _end(
    tx: Transaction, task_id: str, verb: str, error: Error, *, all_children: bool, fence: Fence | None = None
) -> bool:
    family = _hold(tx, task_id)
    me = family.me
    if me.status.is_terminal or (fence is not None and not _is_owner(me, fence)):
        return False
    revision = sessions.raise_revision(tx, me.root_session_id)
    _end_children(tx, family, revision, all_children=all_children, reason=f"its parent ended: {error.message}")
    if not _end_one(tx, me, verb, error, revision):
        raise InvariantError(f"task {me.id} is {me.status} but could not be ended by {verb}")
    return _wake_parent(tx, family)


def _end_one(tx: Transaction, task: Task, verb: str, error: Error, revision: int) -> bool:
    """End a task that is locked and open. What is told of it later is about its calls: how one ended after it."""
    _end_calls(tx, task)
    _cancel_questions(tx, task, revision, _ended_by(verb))
    row = tx.one(
        Q.end_unfenced,
        id=task.id,
        status=TASK.target(verb),
        error=payloads.small(tx, error.to_json()),
        revision=revision,
    )
    if row is None:
        return False
    proof = Proof(*row)
    if task.execution_id is not None:
        end_attempt(tx, proof, ATTEMPT.target(verb), error)
    payload = {"error": str(error), "was": task.status, **error.attributes}
    events.emit(tx, proof.n, proof.event_seq, TASK.event(verb), payload)
    tx.hint()
    return True


def _end_children(tx: Transaction, family: _Family, revision: int, *, all_children: bool, reason: str) -> None:
    """Cancel open descendants, leaves first: all, or foreground ones and theirs, so that background work lives on."""
    going = {family.me.id}
    for task in reversed(family.descendants):  # parents before children
        if all_children or (task.parent_task_id in going and task.mode is Mode.FOREGROUND):
            going.add(task.id)
    for task in family.descendants:
        if task.id in going and not task.status.is_terminal:
            _end_one(tx, task, "cancel", Error("Cancelled", reason, "permanent"), revision)


def _wake_parent(tx: Transaction, family: _Family) -> bool:
    """Make a parent due again whose wait is over now and whom no attempt holds. Always True."""
    parent = family.parent
    if parent is not None and parent.status is TaskStatus.WAITING and parent.execution_id is None:
        waits: Sequence[Wait] = [w for w in parent.waiting_for if w.kind is WaitKind.CHILDREN]
        if any(family.me.id in w.keys and task_ops.has_happened(tx, parent.id, w) for w in waits):
            task_ops.wake(tx, parent.id)
    return True


def _ended_by(verb: str) -> str:
    status = TaskStatus(TASK.target(verb))
    words = {TaskStatus.TIMED_OUT: "timed out", TaskStatus.CANCELLED: "was cancelled"}
    return f"the task {words.get(status, status)}"


def _cancel_questions(tx: Transaction, task: Task, revision: int, reason: str) -> None:
    for _, question_id in sorted(tx.all(K.cancel_open, task=task.n, reason=reason, revision=revision)):
        told = {"question": question_id, "reason": reason}
        events.emit(tx, task.n, _next_seq(tx, task.id), QUESTION.event("cancel"), told)


def _next_seq(tx: Transaction, task_id: str) -> int:
    row = tx.one(Q.next_seq, id=task_id)
    assert row is not None, task_id
    return int(row[1])
