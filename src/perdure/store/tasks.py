"""Tasks: who owns them, verb by verb. Admission is in admission.py, ends are in ends.py, lists in task_lists.py.

Hot verbs (claim, wait, restore, suspend, wake, release, retry, interrupt) touch one task row and prove by
UPDATE … RETURNING: lock, fence and next numbers in one statement. Suspend and interrupt lock and read the row before:
what they write depends on what it waited for. A failed proof is told apart by a second read. Tasks are claimed, and
interrupted after a crash, many in one statement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from perdure.errors import Damaged, Error, IllegalTransition, InvariantError, LeaseLost, NotFound
from perdure.model.instance import Instance
from perdure.model.question import Question
from perdure.model.step import NoteKind
from perdure.model.task import Claim, Fence, Lane, Mode, Task, TaskInput, Wait, WaitKind
from perdure.states import ATTEMPT, TASK, InstanceStatus, QuestionStatus, TaskStatus
from perdure.store import events, payloads
from perdure.store.database import Row, Transaction, Value
from perdure.store.queries import Query, as_rows, load
from perdure.store.sessions import check_id

Q = load("tasks")
S = load("steps")
M = load("messages")
K = load("questions")
Sets = load("sets")

I = load("instances")  # noqa: E741  # the aggregate's letter, as elsewhere

NEVER_MS = 1 << 62  # an instant that does not come
AT_ONCE = 0  # available_at of a pending task that waits for no time: due whatever the clock does later
DEAD = "dead:"  # before an instance's id, in a timer that also ends when that instance is proven dead


class Proof(NamedTuple):
    """What a proven verb returns: the task's row number, the event's seq, and the counters of now."""

    n: int
    event_seq: int
    attempt: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    tool_calls: int
    iterations: int


# -- reading --------------------------------------------------------------------------------


def get(tx: Transaction, task_id: str) -> Task:
    """The task. Raises NotFound."""
    row = tx.one(Q.get, id=check_id(task_id, "task"))
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return task_from_row(row)


def get_input(tx: Transaction, task_id: str) -> TaskInput:
    """What the task was asked to do. Raises NotFound."""
    row = tx.one(Q.get_input, id=task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return _input_from_row(tx, row)


def task_from_row(row: Row) -> Task:
    """A row selected with `{columns}`. An unknown word in it is an error, never a default."""
    mode, lane, status, waits, reserved = row[17], row[18], row[29], row[30], row[46]
    return Task(
        *(
            *row[:17],
            Mode(mode),
            Lane(lane),
            *row[19:29],
            TaskStatus(status),
            read_waits(waits),
            *row[31:46],
            bool(reserved),
            *row[47:],
        )
    )


# -- ownership ------------------------------------------------------------------------------


def claim(tx: Transaction, *, lane: Lane, instance: int, instance_id: str, generation: int, limit: int) -> list[Claim]:
    """Own up to `limit` due tasks of a lane whose agent this instance has: lowest rank first.

    Each gets a new execution id and attempt, and the trace its first record. Nobody else can own them meanwhile.
    One whose input cannot be read is interrupted instead, so that a person is asked and the others go on.
    """
    due = [row[0] for row in tx.all(Sets.due, lane=lane, instance=instance, limit=limit)]
    if not due:
        return []
    # Ids that sort by time: random ones would each lie on a page of their own in the two indexes that hold them.
    owners = [(n, tx.new_id()) for n in due]
    move_all(tx, Sets.claim, owners, instance_id=instance_id, generation=generation)
    return _begin_attempts(tx, due, instance_id)


def claim_this(tx: Transaction, task_id: str, *, instance_id: str, generation: int) -> Claim | None:
    """Own one task that is due, or None when somebody else was first."""
    execution_id = tx.new_id()
    row = tx.one(Q.claim_this, id=task_id, instance_id=instance_id, generation=generation, execution_id=execution_id)
    claims = () if row is None else _begin_attempts(tx, [row[0]], instance_id)
    return claims[0] if claims else None


def wait(tx: Transaction, fence: Fence, waits: Sequence[Wait]) -> None:
    """Set the task aside for what `waits` name; the attempt stays in memory and owns it. Raises LeaseLost."""
    row = tx.one(Q.wait, **_fence(fence), waiting_for=write_waits(waits), available_at=_earliest(waits))
    proof = _owned(tx, fence, "wait", row)
    events.emit(tx, proof.n, proof.event_seq, TASK.event("wait"), {"waiting_for": describe_waits(waits)})


def restore(tx: Transaction, fence: Fence) -> None:
    """Go on running after a wait that was spent in memory. Raises LeaseLost."""
    proof = _owned(tx, fence, "restore", tx.one(Q.restore, **_fence(fence)))
    events.emit(tx, proof.n, proof.event_seq, TASK.event("restore"))


def suspend(tx: Transaction, fence: Fence) -> bool:
    """Give up the memory of a waiting attempt; it will be replayed. True when it is due again at once.

    What it waits for is read again under the lock, so that nothing that happens meanwhile is missed.
    """
    row = tx.one(Q.lock, id=fence.task_id)
    if row is None:
        raise NotFound(f"there is no task {fence.task_id}")
    happened = any(has_happened(tx, fence.task_id, wait) for wait in task_from_row(row).waiting_for)
    query = Q.suspend_to_pending if happened else Q.suspend
    proof = _owned(tx, fence, "suspend", tx.one(query, **_fence(fence)))
    end_attempt(tx, proof, ATTEMPT.target("suspend"))
    events.emit(tx, proof.n, proof.event_seq, TASK.event("suspend"), {"due": happened})
    tx.hint()
    return happened


def wake(tx: Transaction, task_id: str) -> bool:
    """Make a waiting task that no attempt holds due again. True if this call did it."""
    row = tx.one(Q.wake, id=task_id)
    if row is None:
        return False
    proof = Proof(*row)
    events.emit(tx, proof.n, proof.event_seq, TASK.event("wake"))
    tx.hint()
    return True


def count_anew(tx: Transaction, task_id: str) -> bool:
    """Have a pending task that waits for its time since a moment that is yet to come wait as long again, from now on.

    For when the clock was set back. True if this call did it.
    """
    if tx.run(Q.count_anew, id=task_id) == 0:
        return False
    tx.hint()
    return True


def release(tx: Transaction, fence: Fence, *, reason: str) -> None:
    """Hand the task back between two steps; no recovery is counted. Raises LeaseLost."""
    proof = _owned(tx, fence, "release", tx.one(Q.release, **_fence(fence)))
    end_attempt(tx, proof, ATTEMPT.target("release"))
    events.emit(tx, proof.n, proof.event_seq, TASK.event("release"), {"reason": reason})
    tx.hint()


def retry(tx: Transaction, fence: Fence, *, available_at: int, error: Error, rerun_steps: Sequence[int] = ()) -> int:
    """Give the task another attempt later; the steps named run anew then. Returns its failures so far."""
    is_later = available_at > tx.now
    rank_at = available_at if is_later else tx.now
    row = tx.one(Q.retry, **_fence(fence), available_at=available_at if is_later else AT_ONCE, rank_at=rank_at)
    if row is None:
        raise_unproven(tx, fence, "retry")
    proof, failures = Proof(*row[:-1]), row[-1]
    for step_index in rerun_steps:
        tx.run(S.mark_retried, task=proof.n, step_index=step_index)
    end_attempt(tx, proof, ATTEMPT.target("retry"), error)
    payload = {"error": str(error), "error_class": error.error_class, "available_at": available_at}
    events.emit(tx, proof.n, proof.event_seq, TASK.event("retry"), {**payload, "rerun": list(rerun_steps)})
    tx.hint()
    return int(failures)


def interrupt(tx: Transaction, task_id: str, execution_id: str, *, reason: str, trace_error: str = "") -> bool:
    """End an attempt that ended without an outcome; recovery decides. True if this call did it."""
    before = tx.one(Q.lock_status, id=task_id)
    row = None if before is None else tx.one(Q.interrupt, id=task_id, execution_id=execution_id)
    if before is None or row is None:
        return False
    proof = Proof(*row)
    end_attempt(tx, proof, ATTEMPT.target("interrupt"), Error("Interrupted", reason, "retriable"))
    payload: dict[str, Any] = {"reason": reason, "was_waiting": before[0] == TaskStatus.WAITING}
    if trace_error:
        payload["trace_error"] = trace_error
    events.emit(tx, proof.n, proof.event_seq, TASK.event("interrupt"), payload)
    tx.hint()
    return True


def interrupt_all(tx: Transaction, owned: Sequence[tuple[str, str]], *, reason: str) -> list[str]:
    """The same for many attempts (task id, execution id), the tasks locked by their ids. Those this call ended."""
    found = tx.all(Sets.lock_owned, rows=as_rows(owned))
    if not found:
        return []
    going = [(n,) for _, n, _, _ in found]
    move_all(tx, Sets.interrupt, going)
    error = payloads.small(tx, Error("Interrupted", reason, "retriable").to_json())
    tx.run(Sets.end_attempts, rows=as_rows(going), status=ATTEMPT.target("interrupt"), error=error)
    for was_waiting in (False, True):
        alike = [(n, seq + 1) for _, n, status, seq in found if (status == TaskStatus.WAITING) is was_waiting]
        told = {"reason": reason, "was_waiting": was_waiting}
        events.emit_to_all(tx, alike, TASK.event("interrupt"), told)
    tx.hint()
    return [row[0] for row in found]


def recover(
    tx: Transaction, task: Task, *, revision: int, counts: bool, from_zero: bool = False, replay_from: int | None = None
) -> bool:
    """interrupted -> pending, once. The caller holds the session and gives its new revision."""
    recoveries = 0 if from_zero else task.recoveries + (1 if counts else 0)
    row = tx.one(
        Q.recover,
        id=task.id,
        recoveries=recoveries,
        replay_from=task.replay_from if replay_from is None else replay_from,
        revision=revision,
    )
    if row is None:
        return False
    proof = Proof(*row)
    payload = {"recoveries": recoveries, "replay_from": replay_from} if replay_from else {"recoveries": recoveries}
    events.emit(tx, proof.n, proof.event_seq, TASK.event("recover"), payload)
    tx.hint()
    return True


# -- what a task waits for ------------------------------------------------------------------


def has_happened(tx: Transaction, task_id: str, wait: Wait) -> bool:
    """Whether the thing a task waits for is there, or its time is over."""
    if wait.until_ms is not None and wait.until_ms <= tx.now:
        return True
    match wait.kind:
        case WaitKind.CHILDREN:
            return all(tx.one(Q.outcome, id=key) is not None for key in wait.keys)
        case WaitKind.RECEIVE:
            return any(tx.one(M.oldest_unread, id=task_id, name=key) is not None for key in wait.keys)
        case WaitKind.QUESTION:
            rows = [tx.one(K.get, id=key) for key in wait.keys]
            return any(row is not None and Question.from_row(row).status is not QuestionStatus.OPEN for row in rows)
        case WaitKind.TIMER:
            return bool(wait.keys) and _may_go_on(tx, *wait.keys)


def _may_go_on(tx: Transaction, holder: str, question_id: str = "") -> bool:
    """Whether an instance is proven dead, or a person said not to wait for that."""
    row = tx.one(I.get, id=holder.removeprefix(DEAD))
    if row is None or Instance.from_row(row).status is InstanceStatus.STOPPED:
        return True
    asked = tx.one(K.get, id=question_id) if question_id else None
    return asked is not None and Question.from_row(asked).anyway


def write_waits(waits: Sequence[Wait]) -> str:
    """What a task waits for, as text for its column."""
    return json.dumps([[w.kind, list(w.keys), w.step_key, w.until_ms] for w in waits])


def read_waits(text: str) -> tuple[Wait, ...]:
    """The reverse of `write_waits`."""
    if text == "[]":
        return ()
    return tuple(Wait(WaitKind(kind), tuple(keys), key, until) for kind, keys, key, until in json.loads(text))


def describe_waits(waits: Sequence[Wait]) -> list[Mapping[str, Any]]:
    """What a task waits for, as its event tells it."""
    return [{"kind": w.kind, "key": list(w.keys), "until": w.until_ms} for w in waits]


# -- shared with the other verbs ------------------------------------------------------------


def hold_session(tx: Transaction, task_id: str) -> tuple[str, str | None, str]:
    """Lock a task's root session, and only read where the task hangs: (root session, parent, status of then)."""
    row = tx.one(Q.held_place, id=task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return row[0], row[1], row[2]


def move_all(tx: Transaction, query: Query, rows: Sequence[tuple[Any, ...]], **values: Value) -> None:
    """Move one locked task for each of `rows`. Raises InvariantError when one did not stand where it was seen."""
    moved = tx.run(query, rows=as_rows(rows), **values)
    if moved != len(rows):
        raise InvariantError(f"{query.name} moved {moved} tasks instead of {len(rows)}")


def end_attempt(tx: Transaction, proof: Proof, status: str, error: Error | None = None) -> None:
    """End the task's present attempt, with what it alone consumed."""
    tx.run(
        Q.end_attempt,
        task=proof.n,
        number=proof.attempt,
        status=status,
        error=None if error is None else payloads.small(tx, error.to_json()),
        prompt_tokens=proof.prompt_tokens,
        completion_tokens=proof.completion_tokens,
        cost=proof.cost,
        tool_calls=proof.tool_calls,
        iterations=proof.iterations,
    )


def read_error(tx: Transaction, blob: bytes | None) -> Error | None:
    """The error in a column, or None."""
    return None if blob is None else Error.from_json(payloads.plain(tx, blob))


def _fence(fence: Fence) -> dict[str, Any]:
    return {"id": fence.task_id, "execution_id": fence.execution_id, "generation": fence.generation}


def _owned(tx: Transaction, fence: Fence, verb: str, row: Row | None) -> Proof:
    if row is None:
        raise_unproven(tx, fence, verb)
    return Proof(*row)


def raise_unproven(tx: Transaction, fence: Fence, verb: str) -> NoReturn:
    """Say why a fenced verb changed nothing. Raises NotFound, IllegalTransition or LeaseLost."""
    row = tx.one(Q.place, id=fence.task_id)
    if row is None:
        raise NotFound(f"there is no task {fence.task_id}")
    status, owner, generation = row[3], row[4], row[5]
    if owner == fence.execution_id and generation == fence.generation:
        raise IllegalTransition(
            f"task {fence.task_id} is {status}; {verb} does not start from there. Nothing was changed.",
            id=fence.task_id,
            verb=verb,
            status=status,
        )
    raise LeaseLost(
        f"task {fence.task_id} is {status} and no longer owned by execution {fence.execution_id}: "
        f"{verb} was refused and nothing was changed. Stop; whoever owns the task goes on.",
        task_id=fence.task_id,
        execution_id=fence.execution_id,
    )


def _earliest(waits: Sequence[Wait]) -> int:
    return min((w.until_ms for w in waits if w.until_ms is not None), default=NEVER_MS)


def _begin_attempts(tx: Transaction, owned: Sequence[int], instance_id: str) -> list[Claim]:
    """Record the attempts of tasks that were just claimed, and read what there is to do."""
    rows = as_rows([(n,) for n in owned])
    tx.run(Sets.insert_attempts, rows=rows)
    by_n = {row[0]: row for row in tx.all(Q.claimed, rows=rows)}
    tasks = {n: task_from_row(by_n[n][:-6]) for n in owned}
    numbers: dict[int, list[tuple[int, int]]] = {}
    for n, task in tasks.items():
        numbers.setdefault(task.attempt, []).append((n, task.event_seq - 1))
    for number, alike in numbers.items():
        told = {"attempt": number, "instance": instance_id}
        events.emit_to_all(tx, alike, TASK.event("claim"), told)
        first = payloads.small(tx, {"attempt": number})
        tx.run(Sets.insert_first_records, rows=as_rows(alike), event_kind=NoteKind.TURN_STARTED, payload=first)
    claims = []
    for n, task in tasks.items():
        assert task.execution_id is not None, task
        try:
            claims.append(Claim(task, _input_from_row(tx, by_n[n][-6:]), task.execution_id, task.generation))
        except Damaged as damage:
            interrupt(tx, task.id, task.execution_id, reason="its input cannot be read", trace_error=str(damage))
    return claims


def _input_from_row(tx: Transaction, row: Row) -> TaskInput:
    prompt, context, budget, contract, tags, metadata = row
    return TaskInput(
        payloads.body(tx, prompt),
        None if context is None else payloads.body(tx, context),
        budget,
        None if contract is None else payloads.body(tx, contract),
        {} if tags == "{}" else json.loads(tags),
        {} if metadata == "{}" else json.loads(metadata),
    )
