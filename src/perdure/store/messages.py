"""A task's transcript, its checkpoints, and what others send to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure import codec
from perdure.errors import NotFound, Refused
from perdure.model.delivery import Delivery
from perdure.model.event import EventKind
from perdure.model.message import Message, NewMessage
from perdure.model.task import Fence, Task, WaitKind
from perdure.states import TaskStatus
from perdure.store import events, payloads
from perdure.store import tasks as task_ops
from perdure.store.database import Row, Transaction
from perdure.store.queries import load
from perdure.store.sessions import check_id, check_text
from perdure.store.steps import STEP_KEY_BYTES

Q = load("messages")
T = load("tasks")


def append(tx: Transaction, fence: Fence, message: NewMessage, *, step_key: str) -> int:
    """Append a message, found again by `step_key`: the second call with one key returns the first's seq."""
    check_id(step_key, "step_key", limit=STEP_KEY_BYTES)
    known = tx.one(Q.by_key, id=fence.task_id, step_key=step_key)
    if known is not None:
        return int(known[0])
    row = tx.one(T.next_message, id=fence.task_id, execution_id=fence.execution_id, generation=fence.generation)
    if row is None:
        task_ops.raise_unproven(tx, fence, "message")
    n, count, step_count = row
    insert(tx, n, message, seq=count - 1, step_key=step_key, at_step=step_count)
    return int(count - 1)


def insert(tx: Transaction, task: int, message: NewMessage, *, seq: int, step_key: str | None, at_step: int) -> None:
    """One message under a number that the caller took."""
    names = ((message.role, "role"), (message.tool_call_id, "tool_call_id"), (message.tool_name, "tool_name"))
    for text, field in names:
        check_text(text, field)
    # A model's reasoning is a payload, not a column of text: it may hold what such a column cannot.
    reasoning = None if message.reasoning is None else codec.pack(codec.encode(message.reasoning))
    tx.run(
        Q.insert,
        task=task,
        seq=seq,
        role=message.role,
        content=payloads.keep(tx, codec.pack(message.content)),
        reasoning=None if reasoning is None else payloads.keep(tx, reasoning),
        tool_call_id=message.tool_call_id,
        tool_name=message.tool_name,
        tool_calls=None if message.tool_calls is None else payloads.keep(tx, codec.pack(message.tool_calls)),
        step_key=step_key,
        at_step=at_step,
        created_at=tx.now if message.created_at_ms is None else message.created_at_ms,
    )


def listing(tx: Transaction, task_id: str, *, after: int = -1, limit: int = 10_000) -> list[Message]:
    """Messages with seq > `after`, in order."""
    return [_message(tx, row) for row in tx.all(Q.list, id=task_id, after=after, limit=limit)]


def _message(tx: Transaction, row: Row) -> Message:
    content, reasoning, calls = (payloads.plain(tx, row[place]) for place in (3, 4, 7))
    return Message(*(*row[:3], content, reasoning, *row[5:7], calls, *row[8:]))


# -- checkpoints ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state that an agent saved. `state` is the canonical JSON."""

    number: int
    step_key: str
    at_step: int
    last_tool_call_id: str | None
    state: bytes
    created_at: int


def save_checkpoint(
    tx: Transaction,
    fence: Fence,
    state: codec.Packed,
    *,
    step_key: str,
    open_keys: Sequence[str] = (),
    unsure: Sequence[str] = (),
    sure: Sequence[str] = (),
    at_step: int | None = None,
) -> int:
    """Save an agent's state, found again by `step_key`. Returns the checkpoint's number. Raises LeaseLost.

    `open_keys` are calls and messages of which the state cannot tell, as of a branch that goes on; of those calls
    that are `unsure`, nobody knows for as long as no later checkpoint is `sure` of them. Nor does it know of steps
    from `at_step` on, where others have recorded some meanwhile.
    """
    check_id(step_key, "step_key", limit=STEP_KEY_BYTES)
    known = tx.one(Q.checkpoint_by_key, id=fence.task_id, step_key=step_key)
    if known is not None:
        return int(known[0])
    row = tx.one(T.next_checkpoint, id=fence.task_id, execution_id=fence.execution_id, generation=fence.generation)
    if row is None:
        task_ops.raise_unproven(tx, fence, "checkpoint")
    n, seq, number, step_count, message_count, tool_call_id = row
    at_step = step_count if at_step is None else min(at_step, step_count)
    tx.run(
        Q.insert_checkpoint,
        task=n,
        number=number,
        step_key=step_key,
        at_step=at_step,
        at_message=message_count,
        last_tool_call_id=tool_call_id,
        open_keys=payloads.small(tx, list(open_keys)) if open_keys else None,
        unsure_keys=payloads.small(tx, [list(unsure), list(sure)]) if unsure or sure else None,
        payload=payloads.keep(tx, state),
    )
    events.emit(tx, n, seq, EventKind.CHECKPOINT_CREATED, {"number": number, "at_step": at_step})
    return int(number)


def checkpoints(tx: Transaction, task_id: str, *, limit: int = 1) -> list[Checkpoint]:
    """A task's checkpoints, newest first."""
    rows = tx.all(Q.checkpoints, id=task_id, limit=limit)
    return [Checkpoint(*(*row[:4], payloads.body(tx, row[4]), row[5])) for row in rows]


class ResumePoint(NamedTuple):
    """Where an agent goes on from a checkpoint: its state, and what had been made and told up to it."""

    state: bytes
    at_step: int
    told: frozenset[str]  # keys of messages and checkpoints
    open_keys: frozenset[str]  # of calls and messages of which the state does not know
    unsure_keys: frozenset[str]  # of calls of which nobody knows whether it tells of them


def resume_point(tx: Transaction, task_id: str, number: int) -> ResumePoint | None:
    """The point of a task's checkpoint, or None when it has none of this number."""
    row = tx.one(Q.resume_point, id=task_id, number=number)
    if row is None:
        return None
    at_step, at_message, open_keys, state = row
    unsure: set[str] = set()
    for (keys,) in tx.all(Q.unsure_before, id=task_id, number=number):
        added, settled = payloads.plain(tx, keys)
        unsure = (unsure - {*settled}) | {*added}
    still_open = frozenset(payloads.plain(tx, open_keys) or ())
    told = frozenset(key for (key,) in tx.all(Q.told_before, id=task_id, number=number, at_message=at_message))
    return ResumePoint(payloads.body(tx, state), at_step, told - still_open, still_open, frozenset(unsure))


# -- deliveries -----------------------------------------------------------------------------


def send(
    tx: Transaction, task_id: str, *, name: str, key: str | None, payload: codec.Packed, unread_limit: int
) -> Delivery:
    """Feed a task's `receive(name)`, also before it asks; wakes it in the same commit.

    Idempotent by (task, name, key): a duplicate returns the first. Raises NotFound, and Refused when the task has
    ended or already has `unread_limit` unread.
    """
    check_id(name, "name")
    key = tx.new_token() if key is None else check_id(key, "key")
    row = tx.one(T.lock, id=check_id(task_id, "task"))
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    # Looked for under the task's lock: of two calls with one key the second then finds the first.
    known = tx.one(Q.delivery_by_key, id=task_id, name=name, key=key)
    if known is not None:
        return Delivery(*(*known[:4], payloads.body(tx, known[4]), *known[5:]))
    task = task_ops.task_from_row(row)
    if task.status.is_terminal:
        raise Refused(f"task {task_id} is {task.status}: nothing can be sent to it any more")
    unread = tx.one(Q.count_unread, task=task.n)
    if unread is not None and unread[0] >= unread_limit:
        raise Refused(f"task {task_id} has {unread[0]} unread deliveries", limits=(f"unread {unread_limit}",))
    delivery_id = tx.new_id()
    blob = payloads.keep(tx, payload)
    tx.run(
        Q.insert_delivery,
        delivery_id=delivery_id,
        task=task.n,
        name=name,
        key=key,
        payload=blob,
    )
    _wake_receiver(tx, task, name)
    tx.hint()
    return Delivery(delivery_id, task_id, name, key, payloads.body(tx, blob), tx.now, None)


@dataclass(frozen=True, slots=True)
class Unread:
    """The oldest delivery of a name that no step has taken."""

    n: int
    payload: bytes


def oldest_unread(tx: Transaction, task_id: str, name: str) -> Unread | None:
    """What the next `receive(name)` takes, or None."""
    row = tx.one(Q.oldest_unread, id=task_id, name=name)
    return None if row is None else Unread(row[0], payloads.body(tx, row[2]))


def emit_owned(tx: Transaction, fence: Fence, kind: str, payload: Any) -> int:
    """Write a skeleton event as the task's owner. Returns its seq. Raises LeaseLost."""
    row = tx.one(T.next_owned_seq, id=fence.task_id, execution_id=fence.execution_id, generation=fence.generation)
    if row is None:
        task_ops.raise_unproven(tx, fence, "event")
    n, seq, _count = row
    events.emit(tx, n, seq, kind, payload if isinstance(payload, dict) else {"value": payload})
    return int(seq)


def _wake_receiver(tx: Transaction, task: Task, name: str) -> None:
    if task.status is not TaskStatus.WAITING or task.execution_id is not None:
        return
    if any(wait.kind is WaitKind.RECEIVE and name in wait.keys for wait in task.waiting_for):
        task_ops.wake(tx, task.id)
