"""Steps: the hot path. Each write proves the owner, takes its numbers and inserts, in one transaction.

Low risk: one write, at completion. From medium up: the intent is durable before the call (`begin`), the outcome
after (`complete`). A completed step is never executed again: its result is read from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from msgspec import Struct, structs

from perdure import codec
from perdure.errors import LeaseLost, NotFound
from perdure.model.event import EventKind
from perdure.model.step import Note, Step, StepKind
from perdure.model.task import Fence, Usage
from perdure.store import budgets, events, payloads
from perdure.store import tasks as task_ops
from perdure.store.database import Row, Transaction, Value
from perdure.store.queries import load
from perdure.store.sessions import check_id, check_text

Q = load("steps")
T = load("tasks")
D = load("messages")
K = load("questions")

STEP_KEY_BYTES = 1024  # an index of PostgreSQL holds no longer ones

_NO_USAGE = Usage()
_TOOL_CALL, _MODEL_CALL = StepKind.TOOL_CALL, StepKind.MODEL_CALL
_INT64_MAX = (1 << 63) - 1


class NewStep(Struct, frozen=True, kw_only=True, gc=False):
    """A call that is about to be recorded. `key` and `try_number` are how a replay finds it again."""

    kind: str
    name: str
    key: str
    risk: str
    payload: codec.Packed
    risk_seen: str
    try_number: int = 0
    reconcilable: bool = False
    token: str | None = None
    child_task_id: str | None = None
    tool_call_id: str | None = None
    may_have_happened: bool = False  # of an idempotent call: another attempt, or an earlier try, was inside it


class Result(Struct, frozen=True, kw_only=True):
    """The outcome of a call: `output` is its value, or the error as data when it failed."""

    completed: bool
    output: codec.Packed
    usage: Usage = _NO_USAGE
    notes: Sequence[Note] = ()
    question_id: str | None = None  # the question this outcome uses up
    is_found_out: bool = False  # the call was made before: a person, a look or a last word told how it ended
    delivery: int | None = None  # the delivery this outcome takes
    event: tuple[str, Any] | None = None  # a skeleton event of the agent's own, told with this outcome
    took_ms: int = 0  # by then it had begun so long ago; for a call that is put on record only now


class Written(NamedTuple):
    """Where a step was written: its index in the trace, and the task's last seq after it."""

    step_index: int
    last_seq: int


@dataclass(slots=True)
class Place:
    """Where a task's trace ended when its owner last wrote to it: a hint, which each write checks and moves on.

    The store moves it on in a thread of its own, while the owner may `n` set to 0 at any moment: read it once.
    """

    n: int = 0  # the task's row; 0 while nothing is known
    event_seq: int = 0
    step_count: int = 0
    attempt: int = 0


def outcome_word(result: Result) -> str:
    """How an outcome is called in the record."""
    return "completed" if result.completed else "failed"


def with_child(step: NewStep, task_id: str) -> NewStep:
    """The step that stands for a child task."""
    return structs.replace(step, child_task_id=task_id)


def as_record(
    step: NewStep, result: Result | None, task_id: str, step_index: int, *, attempt: int, began_ms: int
) -> Step:
    """What was just written, as a later replay reads it; but for the numbers of events, and when it ended."""
    usage = result.usage if result is not None else _NO_USAGE
    return Step(
        task_id=task_id,
        step_index=step_index,
        event_kind=step.kind,
        name=step.name,
        key=step.key,
        try_number=step.try_number,
        risk=step.risk,
        payload=step.payload.blob,
        outcome=None if result is None else outcome_word(result),
        output=None if result is None else codec.unpack(result.output.blob, lambda _: dict(result.output.parts)),
        attempt=attempt,
        token=step.token,
        child_task_id=step.child_task_id,
        tool_call_id=step.tool_call_id,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cost=usage.cost,
        started_seq=0,
        ended_seq=None,
        timestamp=began_ms,
        ended_at=None,
        retried_at=None,
    )


def begin(
    tx: Transaction,
    fence: Fence,
    step: NewStep,
    *,
    question_id: str | None = None,
    counts: bool = False,
    place: Place | None = None,
) -> Written:
    """Put the intent of a call on record; once this has returned, the call may run.

    `question_id` is the approval it uses up; `place` makes it faster. With `counts` a budget limits the number of such
    calls: BudgetExceeded where there is no room for one more. Raises LeaseLost, and NotFound when the approval was used
    up by another step.
    """
    check(step)
    if counts:
        budgets.check_call(
            tx,
            fence.task_id,
            tool_calls=int(step.kind == _TOOL_CALL),
            iterations=int(step.kind == _MODEL_CALL),
        )
    change = _call_change(fence, step, begins=True, seqs=1, records=1)
    n, seq, count, attempt = _prove(tx, fence, change, place=place)
    tx.run(Q.insert, **row_of(tx, n, step, None, attempt=attempt, step_index=count - 1, started_seq=seq))
    _spend(tx, question_id)
    return Written(count - 1, seq)


def complete(
    tx: Transaction, fence: Fence, step: NewStep, result: Result, *, begun: bool, place: Place | None = None
) -> Written:
    """Put the outcome of a call on record; a result is handed to the agent only after this.

    `begun` says that the intent is on record already; `place` makes it faster. Notes are numbered after the step.
    Raises LeaseLost, and NotFound when the question or the delivery was used up by another step; nothing is written
    then.
    """
    notes = result.notes
    own_seqs, own_records = (1, 0) if begun else (2, 1)
    told = 0 if result.event is None else 1
    if not begun:
        check(step)
    check_notes(notes)
    seqs, records = own_seqs + told + len(notes), own_records + len(notes)
    change = outcome_change(fence, step, result, begun=begun, seqs=seqs, records=records)
    n, seq, count, attempt = _prove(tx, fence, change, place=place)
    if result.delivery is not None:
        # Taken in the commit that completes the receive: exactly one step gets it. After the proof, although a refusal
        # has then something to roll back: who has lost the task, which happens more often, is refused before anything
        # is written; and whoever sends or gives back locks the task first, too.
        taken = tx.run(D.take_delivery, n=result.delivery, step_key=step.key)
        if taken != 1:
            raise NotFound(f"delivery {result.delivery} was taken by another step; nothing was written")
    first_seq = seq - own_seqs - told - len(notes) + 1
    index = count - own_records - len(notes)
    if begun:
        index = _end(tx, fence, n, step, result, attempt=attempt, ended_seq=first_seq)
    else:
        tx.run(Q.insert, **row_of(tx, n, step, result, attempt=attempt, step_index=index, started_seq=first_seq))
    _spend(tx, result.question_id)
    if result.event is not None:
        kind, payload = result.event
        events.emit(tx, n, first_seq + own_seqs, kind, payload)
    insert_notes(tx, n, notes, attempt=attempt, step_index=count - len(notes), seq=first_seq + own_seqs + told)
    return Written(index, seq)


def begin_again(tx: Transaction, fence: Fence, key: str, try_number: int, *, question_id: str | None) -> None:
    """Take over a call that did not happen: from here on this attempt is the one that runs it.

    The answer that allows it is used up in the same commit, so that a second crash asks again. Raises LeaseLost, also
    when an outcome is on record, and NotFound when the answer was used up by another step; nothing is written then.
    """
    row = tx.one(T.next_owned_seq, id=fence.task_id, execution_id=fence.execution_id, generation=fence.generation)
    if row is None:
        task_ops.raise_unproven(tx, fence, "step")
    n, seq, _count = row
    if tx.run(Q.begin_again, task=n, key=key, try_number=try_number, id=fence.task_id) != 1:
        _refuse_ended(fence, key)
    _spend(tx, question_id)
    events.emit(tx, n, seq, EventKind.CALL_RUN_AGAIN, {"key": key, "question": question_id or ""})


def leave_undone(tx: Transaction, fence: Fence, step: NewStep, *, question_id: str | None) -> int:
    """Keep that a call did not happen which no code waits for, and use up the answer that says so. Returns its index.

    Nobody is asked any more: code that comes to it makes it, else that is its outcome when the task ends. Raises as
    `begin_again` does.
    """
    n, *_ = _prove(tx, fence, _change(fence, seqs=0, records=0, risk_seen=step.risk_seen))
    if (row := tx.one(Q.mark_undone, task=n, key=step.key, try_number=step.try_number)) is None:
        _refuse_ended(fence, step.key)
    _spend(tx, question_id)
    return int(row[0])


def raise_risk(tx: Transaction, fence: Fence, step: NewStep) -> None:
    """A step of an earlier attempt without an outcome is declared more dangerous by now, and kept as that.

    It has its token from here on, which stays the same in every attempt. Raises LeaseLost, also when an outcome is on
    record.
    """
    n, *_ = _prove(tx, fence, _change(fence, seqs=0, records=0, risk_seen=step.risk_seen))
    raised = tx.run(
        Q.raise_risk,
        task=n,
        key=step.key,
        try_number=step.try_number,
        risk=step.risk,
        token=step.token,
        reconcilable=int(step.reconcilable),
    )
    if raised != 1:
        _refuse_ended(fence, step.key)


def give_back(tx: Transaction, fence: Fence, step: NewStep, step_index: int, *, delivery: int) -> None:
    """What a receive has taken is unread again, and its record answers no more. Raises LeaseLost."""
    n, *_ = _prove(tx, fence, _change(fence, seqs=0, records=0, risk_seen=step.risk_seen))
    tx.run(Q.mark_retried, task=n, step_index=step_index)
    tx.run(D.give_back_delivery, n=delivery, step_key=step.key)
    tx.hint()


def note(tx: Transaction, fence: Fence, notes: Sequence[Note], *, risk_seen: str) -> None:
    """Append records that answer no call. Raises LeaseLost."""
    if not notes:
        return
    check_notes(notes)
    change = _change(fence, seqs=len(notes), records=len(notes), risk_seen=risk_seen)
    n, seq, count, attempt = _prove(tx, fence, change)
    insert_notes(tx, n, notes, attempt=attempt, step_index=count - len(notes), seq=seq - len(notes) + 1)


def by_key(tx: Transaction, task_id: str, key: str, try_number: int = 0) -> Step | None:
    """One try of a call with its output unpacked, or None. A call of low risk is found only while it is open."""
    row = tx.one(Q.by_key, id=task_id, key=key, try_number=try_number)
    return None if row is None else unpacked(tx, Step.from_row(row))


def listing(tx: Transaction, task_id: str, *, after: int = -1, limit: int = 100) -> list[tuple[Step, Any]]:
    """Records after index `after` with their inputs as recorded, for people to read."""
    rows = tx.all(Q.trace, id=task_id, from_index=after + 1, limit=limit)
    found = [Step.from_row(row) for row in rows]
    return [(unpacked(tx, step), payloads.plain(tx, step.payload)) for step in found]


def at_index(tx: Transaction, task_id: str, step_index: int) -> Step:
    """One record by its index, its output unpacked. Raises NotFound."""
    for row in tx.all(Q.trace, id=task_id, from_index=step_index, limit=1):
        if row[1] == step_index:
            return unpacked(tx, Step.from_row(row))
    raise NotFound(f"task {task_id} has no record {step_index}; `perdure show {task_id}` lists them")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who held a task in one of its attempts, and what is known of that process. `stopped_order`: see order.py."""

    instance_id: str
    status: str | None
    host: str | None
    pid: int | None
    execution_id: str
    stopped_order: int | None


def owner(tx: Transaction, task_id: str, attempt: int) -> Owner | None:
    """Who ran an attempt, or None when there is no such attempt."""
    row: Row | None = tx.one(Q.owner_instance, id=task_id, number=attempt)
    return None if row is None else Owner(*row)


# -- shared ---------------------------------------------------------------------------------


def check(step: NewStep) -> None:
    """Refuse, before a write, what one of the databases could not hold."""
    if step.tool_call_id is None and step.token is None:
        both = f"{step.key}{step.name}"  # Most have no more to look at, which is seen at once.
        if both.isascii() and "\x00" not in both and 0 < len(step.key) <= STEP_KEY_BYTES:
            return
    check_id(step.key, "key", limit=STEP_KEY_BYTES)
    for text, field in ((step.name, "name"), (step.token, "token"), (step.tool_call_id, "tool_call_id")):
        check_text(text, field)


def outcome_change(
    fence: Fence, step: NewStep, result: Result, *, begun: bool, seqs: int, records: int
) -> dict[str, Value]:
    """What an outcome changes in its task, with the proof of the owner; a call that was begun is counted already."""
    change = _call_change(fence, step, begins=not begun, seqs=seqs, records=records)
    change["progress"] = 1
    usage = result.usage
    if usage is not _NO_USAGE:
        change["prompt_tokens"] = min(usage.prompt_tokens, _INT64_MAX)
        change["completion_tokens"] = min(usage.completion_tokens, _INT64_MAX)
        change["cost"] = usage.cost
    return change


def _call_change(fence: Fence, step: NewStep, *, begins: bool, seqs: int, records: int) -> dict[str, Value]:
    """What a call changes in its task; it is counted where it begins."""
    change = _change(fence, seqs=seqs, records=records, risk_seen=step.risk_seen)
    change["tool_call_id"] = step.tool_call_id
    if begins:
        change["tool_calls"] = int(step.kind == _TOOL_CALL)
        change["iterations"] = int(step.kind == _MODEL_CALL)
    return change


def _change(fence: Fence, *, seqs: int, records: int, risk_seen: str) -> dict[str, Value]:
    return {
        "execution_id": fence.execution_id,
        "generation": fence.generation,
        "seqs": seqs,
        "records": records,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cost": 0.0,
        "tool_calls": 0,
        "iterations": 0,
        "risk_seen": risk_seen,
        "progress": 0,
        "tool_call_id": None,
    }


def _prove(
    tx: Transaction, fence: Fence, change: dict[str, Value], *, place: Place | None = None
) -> tuple[int, int, int, int]:
    """Prove the owner and take numbers: the task's row, its last seq, its records so far, the attempt."""
    known = 0 if place is None else place.n
    if place is not None and known:
        seq, count, seqs, records = place.event_seq, place.step_count, change["seqs"], change["records"]
        assert isinstance(seqs, int) and isinstance(records, int), change
        if tx.run(T.record_step_at, n=known, event_seq=seq, step_count=count, **change) == 1:
            place.event_seq, place.step_count = seq, count = seq + seqs, count + records
            return known, seq, count, place.attempt
    row = tx.one(T.record_step, id=fence.task_id, **change)
    if row is None:
        task_ops.raise_unproven(tx, fence, "step")
    n, seq, count, attempt = row
    if place is not None:
        place.n, place.event_seq, place.step_count, place.attempt = n, seq, count, attempt
    return n, seq, count, attempt


def check_notes(notes: Sequence[Note]) -> None:
    """Refuse, before a write, notes that one of the databases could not hold."""
    for one in notes:
        check_text(one.kind, "kind")
        check_text(one.name, "name")


def row_of(
    tx: Transaction,
    n: int,
    step: NewStep,
    result: Result | None,
    *,
    attempt: int,
    step_index: int,
    started_seq: int,
) -> dict[str, Value]:
    """A step as its row, the parts of its payloads stored. One with a result takes two numbers, else one."""
    usage = _NO_USAGE if result is None else result.usage
    has_ended = result is not None
    payload, output = step.payload, None if result is None else result.output
    return {
        "task": n,
        "step_index": step_index,
        "event_kind": step.kind,
        "name": step.name,
        "key": step.key,
        "try_number": step.try_number,
        "risk": step.risk,
        "reconcilable": int(step.reconcilable),
        "payload": payloads.keep(tx, payload) if payload.parts else payload.blob,
        "outcome": None if result is None else outcome_word(result),
        "output": None if output is None else payloads.keep(tx, output) if output.parts else output.blob,
        "attempt": attempt,
        "token": step.token,
        "child_task_id": step.child_task_id,
        "tool_call_id": step.tool_call_id,
        "prompt_tokens": min(usage.prompt_tokens, _INT64_MAX),
        "completion_tokens": min(usage.completion_tokens, _INT64_MAX),
        "cost": usage.cost,
        "started_seq": started_seq,
        "ended_seq": started_seq + 1 if has_ended else None,
        "timestamp": tx.now if result is None else tx.now - result.took_ms,
        "ended_at": tx.now if has_ended else None,
    }


def _end(tx: Transaction, fence: Fence, n: int, step: NewStep, result: Result, *, attempt: int, ended_seq: int) -> int:
    """Write the outcome of a step that was begun; its index. Raises LeaseLost when another one is on record."""
    row = tx.one(
        Q.end,
        task=n,
        key=step.key,
        try_number=step.try_number,
        outcome=outcome_word(result),
        output=payloads.keep(tx, result.output),
        ended_seq=ended_seq,
        attempt=attempt,
        found_out=int(result.is_found_out),
        prompt_tokens=min(result.usage.prompt_tokens, _INT64_MAX),
        completion_tokens=min(result.usage.completion_tokens, _INT64_MAX),
        cost=result.usage.cost,
    )
    if row is None:
        _refuse_ended(fence, step.key)
    return int(row[0])


def _refuse_ended(fence: Fence, key: str) -> NoReturn:
    """Say that a step is not open any more."""
    raise LeaseLost(
        f"the outcome of step {key} is on record already; nothing was changed",
        task_id=fence.task_id,
        execution_id=fence.execution_id,
    )


def _spend(tx: Transaction, question_id: str | None) -> None:
    """Use up a question, if there is one: exactly one step gets its answer."""
    if question_id is not None and tx.run(K.spend, id=question_id) != 1:
        raise NotFound(f"question {question_id} was used up by another step; nothing was written")


def insert_note(tx: Transaction, n: int, one: Note, *, attempt: int, step_index: int, seq: int) -> None:
    """One record that answers no call, under numbers that the caller took."""
    tx.run(
        Q.insert,
        task=n,
        step_index=step_index,
        event_kind=one.kind,
        name=one.name,
        key=None,
        try_number=0,
        risk=None,
        reconcilable=0,
        payload=payloads.keep(tx, codec.pack(one.payload)),
        outcome=None,
        output=None,
        attempt=attempt,
        token=None,
        child_task_id=None,
        tool_call_id=None,
        prompt_tokens=0,
        completion_tokens=0,
        cost=0.0,
        started_seq=seq,
        ended_seq=None,
        timestamp=tx.now if one.timestamp_ms is None else one.timestamp_ms,
        ended_at=None,
    )


def insert_notes(tx: Transaction, n: int, notes: Sequence[Note], *, attempt: int, step_index: int, seq: int) -> None:
    """Several of them, one after the other."""
    for offset, one in enumerate(notes):
        insert_note(tx, n, one, attempt=attempt, step_index=step_index + offset, seq=seq + offset)


def unpacked(tx: Transaction, step: Step) -> Step:
    """A step as it was read, its output unpacked."""
    return step if step.output is None else structs.replace(step, output=payloads.body(tx, step.output))
