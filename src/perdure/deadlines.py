"""What people are told of a task's deadline: when it will be, and how the task ends once it has passed.

It predicts and ends nothing; that is the sweeper's, in whose order the tasks of a family end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure import phrases
from perdure.commands import Commands
from perdure.model.task import Mode, Task, tail
from perdure.people import open_questions
from perdure.runtime.liveness import Judge
from perdure.settings import Settings
from perdure.store import instances, tasks
from perdure.store.database import Transaction

# As it is unless somebody sets it otherwise. Who looks cannot know what the workers were told.
_GRACE_MS: Final = int(Settings().deadline_grace_s * 1000)


def coming(task: Task, *, now_ms: int) -> str:
    """When the deadline of an open task will be: `deadline is in 40 s, at 11:08:05`; "" without one to come."""
    if task.status.is_terminal or task.deadline_at is None or task.deadline_at <= now_ms:
        return ""
    left = phrases.duration(task.deadline_at - now_ms)
    return f"deadline is in {left}, at {phrases.moment(task.deadline_at, now_ms)}"


def too_late(tx: Transaction, task: Task, *, judge: Judge, commands: Commands) -> str:
    """That the deadline of an open task has passed, and what comes of it; "" otherwise."""
    if task.status.is_terminal or task.deadline_at is None or task.deadline_at > tx.now:
        return ""
    ended = _takes_along(tx, task)
    ends = "it ends as timed out"
    if ended is not None:
        ends = f"it is cancelled with {ended.agent} {tail(ended.id, (task.id,))}, which ends as timed out"
    passed = f"its deadline passed {phrases.duration(tx.now - task.deadline_at)} ago: {ends}"
    answers_too_late = ", whatever is answered" if open_questions(tx, task) else ""
    nobody = "" if anybody_lives(tx, judge) else f", once a worker looks: start one with {commands.worker}"
    return f"{passed}{answers_too_late}{nobody}"


def anybody_lives(tx: Transaction, judge: Judge) -> bool:
    """Whether some worker will look at deadlines."""
    return any(not judge.is_out(one, now_ms=tx.now) for one in instances.alive(tx))


def _takes_along(tx: Transaction, task: Task) -> Task | None:
    """The task whose own end, at its deadline, cancels this one first; None where this one times out by itself."""
    return next((one for one in reversed([*_above(tx, task)]) if _is_ended_before(one, task, now_ms=tx.now)), None)


def _above(tx: Transaction, task: Task) -> Iterator[Task]:
    """Those that wait for a task: its parent, the parent of that, and so on."""
    while task.mode is Mode.FOREGROUND and task.parent_task_id is not None:
        task = tasks.get(tx, task.parent_task_id)
        yield task


def _is_ended_before(one: Task, other: Task, *, now_ms: int) -> bool:
    """Whether the sweeper comes to one overdue task before another: those that an attempt holds have a grace time."""
    if one.status.is_terminal or one.deadline_at is None or one.deadline_at > now_ms:
        return False
    assert other.deadline_at is not None, other.id
    order = [(_has_grace(task, now_ms=now_ms), task.deadline_at, task.n) for task in (one, other)]
    return order[0] < order[1]


def _has_grace(task: Task, *, now_ms: int) -> bool:
    """Whether the attempt that holds an overdue task may still end it in good order, so that the sweeper waits."""
    return task.execution_id is not None and task.deadline_at is not None and task.deadline_at + _GRACE_MS > now_ms
