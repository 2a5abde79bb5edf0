"""Questions: what a person must answer. An answer is bound to what was asked, given once, and spent once.

Locks: session, then the task's row, then the question, last the counter that places an answer. A question about a
call is found again by its step key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perdure import codec
from perdure.errors import BadInput, NotFound
from perdure.model.event import EventKind
from perdure.model.page import rows_of
from perdure.model.question import NOT_HAPPENED, Question, QuestionKind
from perdure.model.step import Step
from perdure.model.task import Fence, Task, WaitKind
from perdure.policy.recovery import Verdict
from perdure.states import QUESTION, QuestionStatus, TaskStatus
from perdure.store import ends, events, order, payloads, sessions
from perdure.store import tasks as task_ops
from perdure.store.database import Transaction
from perdure.store.queries import Query, load
from perdure.store.sessions import check_id, check_text, need_text
from perdure.store.steps import STEP_KEY_BYTES
from perdure.store.tasks import task_from_row

Q = load("questions")
T = load("tasks")
D = load("messages")


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """A question to be opened. The same task, kind and step key have only one open at a time."""

    kind: QuestionKind
    text: str
    evidence: codec.Packed
    step_key: str = ""
    to: str = ""
    digest: str = ""
    expires_at_ms: int | None = None


def open_question(tx: Transaction, fence: Fence, new: NewQuestion) -> Question:
    """Ask, as the owner of the task. A question of this kind and step that is still live is returned instead.

    A yes is bound to the arguments it was given for: one for others (under a key of the caller's) is void.
    Raises LeaseLost.
    """
    task = _lock(tx, fence.task_id)
    known = live_for_step(tx, fence.task_id, new.kind, new.step_key)
    if known is not None and (new.kind is not QuestionKind.CALL or known.digest == new.digest):
        return known
    if task.execution_id != fence.execution_id or task.generation != fence.generation:
        task_ops.raise_unproven(tx, fence, "question")
    revision = sessions.raise_revision(tx, task.root_session_id)
    if known is not None:
        _void(tx, task.id, known, reason="the call has other arguments now", revision=revision)
    return insert(tx, task, new, revision=revision)


def void(tx: Transaction, fence: Fence, question_id: str, *, reason: str) -> None:
    """Take an answer out of use, as the owner of the task: it may no longer be true. Raises LeaseLost."""
    task = _lock(tx, fence.task_id)
    if task.execution_id != fence.execution_id or task.generation != fence.generation:
        task_ops.raise_unproven(tx, fence, "question")
    _void(tx, task.id, get(tx, question_id), reason=reason, revision=sessions.raise_revision(tx, task.root_session_id))


def take_back(tx: Transaction, fence: Fence, question_id: str, *, reason: str) -> None:
    """Cancel a question that is still open, as the owner of the task; an answer stays as it is. Raises LeaseLost."""
    if get(tx, question_id).status is not QuestionStatus.OPEN:
        return
    task = _lock(tx, fence.task_id)
    found = get(tx, question_id)
    if task.execution_id != fence.execution_id or task.generation != fence.generation:
        task_ops.raise_unproven(tx, fence, "question")
    if found.status is QuestionStatus.OPEN:
        _void(tx, task.id, found, reason=reason, revision=sessions.raise_revision(tx, task.root_session_id))


def _void(tx: Transaction, task_id: str, question: Question, *, reason: str, revision: int) -> None:
    if question.status is QuestionStatus.OPEN:
        tx.run(Q.cancel_one, id=question.id, reason=reason, revision=revision)
        _tell(tx, task_id, QUESTION.event("cancel"), {"question": question.id, "reason": reason})
        return
    tx.run(Q.spend, id=question.id)
    _tell(tx, task_id, EventKind.ANSWER_VOIDED, {"question": question.id, "reason": reason})


def insert(tx: Transaction, task: Task, new: NewQuestion, *, revision: int) -> Question:
    """Open a question under a held session; for the verbs of recovery and ends."""
    for text, field in ((new.text, "text"), (new.to, "to"), (new.digest, "digest")):
        check_text(text, field)
    if new.step_key:
        check_id(new.step_key, "step_key", limit=STEP_KEY_BYTES)
    row = tx.one(Q.next_number)
    assert row is not None
    question_id = f"Q{row[0]}"
    tx.run(
        Q.insert,
        id=question_id,
        session_id=task.session_id,
        task=task.n,
        step_key=new.step_key,
        kind=new.kind,
        to=new.to,
        text=new.text,
        evidence=payloads.keep(tx, new.evidence),
        digest=new.digest,
        expires_at=new.expires_at_ms,
        revision=revision,
    )
    _tell(tx, task.id, QUESTION.event("open"), {"question": question_id, "question_kind": new.kind, "text": new.text})
    return get(tx, question_id)


def get(tx: Transaction, question_id: str) -> Question:
    """The question. Raises NotFound."""
    row = tx.one(Q.get, id=check_id(question_id, "question"))
    if row is None:
        raise NotFound(f"there is no question {question_id}")
    return Question.from_row(row)


def evidence(tx: Transaction, question: Question) -> object:
    """What the question rests on, as recorded."""
    return payloads.plain(tx, question.evidence)


def evidence_of_step(tx: Transaction, step: Step) -> dict[str, Any]:
    """What the newest question about a call rests on, whatever became of that; {} when nobody was asked."""
    asked = (one for one in of_task(tx, step.task_id) if one.kind is QuestionKind.STEP_IN_DOUBT)
    newest = next((one for one in asked if one.step_key == step.key), None)
    found = None if newest is None else evidence(tx, newest)
    return found if isinstance(found, dict) else {}


def answer_of(tx: Transaction, question: Question) -> object:
    """What was answered, or None while nothing is."""
    return payloads.plain(tx, question.answer)


def find(tx: Transaction, ending: str) -> str:
    """The id of the one question that is called so or whose id ends so. Raises NotFound or BadInput."""
    ending = need_text(ending, "question").lstrip("…")
    check_id(ending or "?", "question")
    for known in (ending, ending.upper()):
        if tx.one(Q.get, id=known) is not None:
            return known
    found = [row[0] for row in tx.all(Q.by_ending, ending=ending)] if ending else []
    if not found:
        raise NotFound(f"there is no question {ending}; `perdure questions` lists the open ones")
    if len(found) > 1:
        raise BadInput(f"several questions end in {ending}: {', '.join(found[:5])}", field="question")
    return str(found[0])


def live_for_step(tx: Transaction, task_id: str, kind: str, step_key: str) -> Question | None:
    """The question of a call that was asked already and is open, or answered and not spent."""
    row = tx.one(Q.live_for_step, task_id=task_id, kind=kind, step_key=step_key)
    return None if row is None else Question.from_row(row)


def open_list(
    tx: Transaction, *, to: str | None = None, session_id: str | None = None, after: int = 0, limit: int = 100
) -> list[Question]:
    """Open questions, oldest first, after row `after`. A limit outside 1..200 is clamped."""
    return _listed(tx, Q.open_list, to=to, session_id=session_id, after=after, limit=limit)


def listing(
    tx: Transaction, *, to: str | None = None, session_id: str | None = None, after: int = 0, limit: int = 100
) -> list[Question]:
    """The same with those that were answered, have expired or were cancelled."""
    return _listed(tx, Q.list, to=to, session_id=session_id, after=after, limit=limit)


def of_task(tx: Transaction, task_id: str) -> list[Question]:
    """All questions of a task, newest first, whatever became of them."""
    return [Question.from_row(row) for row in tx.all(Q.of_task, task_id=task_id)]


def approve(tx: Transaction, question_id: str, *, by: str) -> Question:
    """Say yes. Answering twice changes nothing and returns the first answer. Raises NotFound, BadInput."""
    return _close(tx, question_id, "approve", by=by)


def deny(tx: Transaction, question_id: str, *, by: str, reason: str) -> Question:
    """Say no, and why."""
    return _close(tx, question_id, "deny", by=by, reason=reason)


def answer(
    tx: Transaction, question_id: str, *, by: str, value: codec.Packed, reason: str = "", anyway: bool = False
) -> Question:
    """Answer an open question of the agent, or say what became of a call.

    `anyway`: run a call that did not happen although its old owner has not been proven dead; it is on record, and
    may be added to that answer until it is used up. Raises BadInput for `anyway` with another answer.
    """
    return _close(tx, question_id, "answer", by=by, value=value, reason=reason, anyway=anyway)


def overdue(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of open questions whose time is over, but the first `skip`."""
    return [row[0] for row in tx.all(Q.expired, skip=skip, limit=limit)]


def expire_one(tx: Transaction, question_id: str) -> Question:
    """Close a question whose time is over: nobody said no. A resume question's task fails with `expired`."""
    return _close(tx, question_id, "expire", by="", reason="nobody answered in time")


def unnotified(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[Question]:
    """Open questions nobody has been told of yet, oldest first, but the first `skip`."""
    return [Question.from_row(row) for row in tx.all(Q.unnotified, skip=skip, limit=limit)]


def mark_notified(tx: Transaction, question_id: str) -> bool:
    """Note that someone was told. True if this call did it."""
    return tx.run(Q.mark_notified, id=question_id) == 1


def _listed(
    tx: Transaction, query: Query, *, to: str | None, session_id: str | None, after: int, limit: int
) -> list[Question]:
    check_text(to, "to")
    check_text(session_id, "session")
    rows = tx.all(query, to=to, session_id=session_id, after=after, limit=rows_of(limit))
    return [Question.from_row(row) for row in rows]


def _close(
    tx: Transaction,
    question_id: str,
    verb: str,
    *,
    by: str,
    value: codec.Packed | None = None,
    reason: str = "",
    anyway: bool = False,
) -> Question:
    check_text(by, "by")
    check_text(reason, "reason")
    found = get(tx, question_id)
    task = _lock(tx, found.task_id)
    found = get(tx, question_id)
    _check_verb(found, verb)
    if anyway and not (value is not None and _says_not_happened(found, _unpacked(value))):
        raise BadInput(
            f'{question_id}: only "it did not happen, run it" can act without proof that its old worker is dead',
            field="anyway",
        )
    if found.status is not QuestionStatus.OPEN:
        return _second_answer(tx, found, anyway=anyway)
    revision = sessions.raise_revision(tx, task.root_session_id)
    tx.run(
        Q.answer,
        id=question_id,
        status=QUESTION.target(verb),
        answer=None if value is None else payloads.keep(tx, value),
        answered_by=by or None,
        reason=reason or None,
        anyway=int(anyway),
        revision=revision,
    )
    _tell(tx, task.id, QUESTION.event(verb), {"question": question_id, "by": by, "reason": reason})
    _move_on(tx, task, found, verb, by=by, reason=reason, revision=revision)
    tx.run(Q.place_answer, id=question_id, order=order.take(tx))
    tx.hint()
    return get(tx, question_id)


def _move_on(
    tx: Transaction, task: Task, question: Question, verb: str, *, by: str, reason: str, revision: int
) -> None:
    """What an answer sets going, in its own commit."""
    if question.kind is QuestionKind.RESUME and task.status is TaskStatus.INTERRUPTED:
        if verb == "approve":
            payload = payloads.plain(tx, question.evidence)
            rests_on = payload if isinstance(payload, dict) else {}
            # After a skip or a park a yes is a new beginning; where a yes was needed anyhow it is one more recovery.
            task_ops.recover(
                tx,
                task,
                revision=revision,
                counts=bool(rests_on.get("counts")),
                from_zero=rests_on.get("verdict") != Verdict.PENDING_CONFIRMATION,
                replay_from=rests_on.get("replay_from"),
            )
            if rests_on.get("replay_from") is not None:
                tx.run(D.give_back_deliveries, task=task.n)
            tx.run(Q.spend, id=question.id)
        elif verb in ("deny", "expire"):
            ends.abandon(tx, task, revision=revision, denied=verb == "deny", by=by, reason=reason)
        return
    waits_for_it = any(w.kind is WaitKind.QUESTION and question.id in w.keys for w in task.waiting_for)
    if task.status is TaskStatus.WAITING and task.execution_id is None and waits_for_it:
        task_ops.wake(tx, task.id)


def is_to_run(tx: Transaction, question: Question) -> bool:
    """Whether "it did not happen, run it" was said, which nobody has acted on, and which is to wait for proof."""
    if question.status is not QuestionStatus.ANSWERED or question.spent_at is not None or question.anyway:
        return False
    return _says_not_happened(question, payloads.plain(tx, question.answer))


def _second_answer(tx: Transaction, found: Question, *, anyway: bool) -> Question:
    """A second answer changes nothing, but may add that a stored "run it" shall act without proof."""
    said = payloads.plain(tx, found.answer) if anyway else None
    if _says_not_happened(found, said) and not found.anyway and found.spent_at is None:
        tx.run(Q.allow_anyway, id=found.id)
        tx.hint()
        return replace(found, anyway=True)
    return found


def _says_not_happened(question: Question, said: object) -> bool:
    if question.kind is not QuestionKind.STEP_IN_DOUBT or not isinstance(said, dict):
        return False
    return said.get("verdict") == NOT_HAPPENED


def _unpacked(value: codec.Packed) -> object:
    return codec.decode(codec.unpack(value.blob, lambda _: dict(value.parts)))


def _check_verb(question: Question, verb: str) -> None:
    yes_or_no = question.kind.is_yes_or_no
    if verb in ("approve", "deny") and not yes_or_no:
        raise BadInput(
            f"{question.id} is a question of kind {question.kind}: it wants an answer, not a yes or no", field="answer"
        )
    if verb == "answer" and yes_or_no:
        raise BadInput(f"{question.id} is a question of kind {question.kind}: approve or deny it", field="answer")


def _lock(tx: Transaction, task_id: str) -> Task:
    task_ops.hold_session(tx, task_id)
    row = tx.one(T.lock, id=task_id)
    assert row is not None, task_id
    return task_from_row(row)


def _tell(tx: Transaction, task_id: str, kind: str, payload: dict[str, object]) -> None:
    row = tx.one(T.next_seq, id=task_id)
    assert row is not None, task_id
    events.emit(tx, row[0], row[1], kind, payload)
