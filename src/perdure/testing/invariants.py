"""What must hold in every store at rest, read back as sentences about what does not. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.errors import Damaged
from perdure.model.task import Mode, Task
from perdure.states import AttemptStatus, TaskStatus
from perdure.store import events, questions, task_lists, traces
from perdure.store.database import Transaction

_MANY = 1_000_000


def broken(tx: Transaction) -> list[str]:
    """Every invariant that does not hold, for all tasks."""
    found: list[str] = []
    after = None
    while page := task_lists.recent(tx, after=after, limit=200):
        for task in page:
            found += (f"task {task.id} ({task.agent}, {task.status}): {what}" for what in _of_task(tx, task))
        after = task_lists.Cursor(page[-1].created_at, page[-1].id)
    return found


def _of_task(tx: Transaction, task: Task) -> Iterator[str]:
    try:
        trace = traces.read(tx, task.id).steps
    except Damaged as damage:
        yield str(damage)
        return
    seqs = [event.seq for event in events.feed(tx, task.id, after=0, limit=_MANY)]
    if seqs != list(range(1, task.event_seq + 1)):
        yield f"its events are not numbered 1 to {task.event_seq} without a gap: {_gaps(seqs, task.event_seq)}"
    attempts = task_lists.attempts(tx, task.id)
    open_attempts = [one for one in attempts if one.status is AttemptStatus.RUNNING]
    if (task.execution_id is not None) != bool(open_attempts) or len(open_attempts) > 1:
        yield f"its owner is {task.execution_id}, but {len(open_attempts)} attempts are open"
    if [one.number for one in attempts] != list(range(1, task.attempt + 1)):
        yield f"its attempts are not numbered 1 to {task.attempt}"
    if not task.status.is_terminal:
        return
    if still_open := [one.id for one in questions.of_task(tx, task.id) if one.status == "open"]:
        yield f"it has ended, but its questions {', '.join(still_open)} are open"
    if task.status is TaskStatus.COMPLETED and (doubtful := [one.name for one in trace if one.is_in_doubt]):
        yield f"it has completed, but nobody knows whether {', '.join(doubtful)} happened"
    children = task_lists.children(tx, task.id)
    if waiting := [one.id for one in children if one.mode is Mode.FOREGROUND and not one.status.is_terminal]:
        yield f"it has ended, but its children {', '.join(waiting)} have not"


def _gaps(seqs: list[int], last: int) -> str:
    missing = sorted(set(range(1, last + 1)) - set(seqs))
    return f"missing {missing[:10]}" if missing else f"{len(seqs)} events, {len(set(seqs))} numbers"
