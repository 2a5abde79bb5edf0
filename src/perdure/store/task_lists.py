"""Lists of tasks: newest first, with a limit and a strict cursor, and lookups by what people type."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import BadInput, NotFound
from perdure.model.page import MOST_ROWS, rows_of
from perdure.model.task import Attempt, Outcome, Task
from perdure.states import TASK, TaskStatus
from perdure.store import payloads, tasks
from perdure.store.database import Transaction
from perdure.store.sessions import check_id, check_text, need_text
from perdure.store.tasks import Q, read_error, task_from_row

_FIRST = (1 << 62, "\U0010ffff")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row a caller has seen; a list goes on strictly before it."""

    created_at: int
    id: str

    def __str__(self) -> str:
        return f"{self.created_at}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor that an earlier page gave. Raises BadInput for anything else."""
        at, dash, task_id = check_id(text, "after", limit=1024).partition("-")
        if not dash or not (at.isascii() and at.isdigit()) or len(at) > 18:
            raise BadInput(f"{text!r} is no cursor; give the `after` of an earlier page", field="after")
        return cls(int(at), check_id(task_id, "after"))


@dataclass(frozen=True, slots=True)
class Danger:
    """Whether a task, or one below it, is one that is not to be run twice."""

    is_declared: bool  # as above low risk
    has_begun: bool  # a call above low risk
    is_open: bool  # the task itself; it may come to one
    is_open_below: bool

    @property
    def forbids_another(self) -> bool:
        """Whether another one is not to run unasked beside it: it is dangerous, or a task below goes on without it."""
        return self.is_declared or self.has_begun or (self.is_open_below and not self.is_open)


def recent(
    tx: Transaction,
    *,
    session_id: str | None = None,
    status: str | None = None,
    open_only: bool = False,
    agent: str | None = None,
    after: Cursor | None = None,
    limit: int = 100,
) -> list[Task]:
    """Tasks newest first by (created_at, id), strictly before `after`. A limit outside 1..200 is clamped."""
    if status is not None and status not in TASK.statuses:
        raise BadInput(f"{status!r} is no status; known are {', '.join(TASK.statuses)}", field="status")
    for text, name in ((session_id, "session"), (agent, "agent")):
        check_text(text, name)
    limit = rows_of(limit)
    # Filters that no index serves are applied here, page by page, so that the cursor stays strict.
    is_filtered = agent is not None or (session_id is not None and bool(status or open_only)) or status in TASK.terminal
    page_rows = MOST_ROWS if is_filtered else limit
    found: list[Task] = []
    created_at, task_id = (after.created_at, after.id) if after else _FIRST
    for _ in range(1000):
        place: dict[str, str | int] = {"created_at": created_at, "id": task_id, "limit": page_rows}
        if session_id is not None:
            rows = tx.all(Q.list_session, root_session_id=session_id, **place)
        elif status in TASK.open:
            rows = tx.all(Q.list_status, status=status, **place)
        elif open_only:
            rows = [row for one in TASK.open for row in tx.all(Q.list_status, status=one, **place)]
        else:
            rows = tx.all(Q.list_all, **place)
        page = sorted(map(task_from_row, rows), key=_age, reverse=True)[:page_rows]
        found += [t for t in page if _fits(t, status=status, open_only=open_only, agent=agent)]
        if len(found) >= limit or len(page) < page_rows:
            break
        created_at, task_id = page[-1].created_at, page[-1].id
    return found[:limit]


def changed_since(
    tx: Transaction, session_id: str, *, revision: int, after_id: str | None = None, limit: int = 100
) -> list[Task]:
    """Tasks under a root session that changed after `revision`, in the order of their changes.

    One change may touch many tasks: to go on in the middle of it, give revision and id of the last task seen.
    """
    last_id = _FIRST[1] if after_id is None else after_id
    rows = tx.all(Q.changed_since, root_session_id=session_id, revision=revision, id=last_id, limit=limit)
    return [task_from_row(row) for row in rows]


def children(tx: Transaction, task_id: str, *, limit: int = 200) -> list[Task]:
    """A task's children, oldest first."""
    return [task_from_row(row) for row in tx.all(Q.children, parent_task_id=task_id, limit=limit)]


def open_foreground_children(tx: Transaction, task_id: str, *, limit: int = 200) -> list[str]:
    """Children that a task must wait for before it may end, oldest first; empty when there is none."""
    return [row[0] for row in tx.all(Q.open_foreground_children, parent_task_id=task_id, limit=limit)]


def attempts(tx: Transaction, task_id: str) -> list[Attempt]:
    """Every execution of a task, oldest first."""
    return [Attempt.from_row(row) for row in tx.all(Q.attempts, id=task_id)]


def newest_open_like(tx: Transaction, *, agent: str, work_digest: str) -> Task | None:
    """The newest open root task of the same agent and arguments, or None."""
    row = tx.one(Q.newest_open_like, agent=check_id(agent, "agent"), work_digest=work_digest)
    return None if row is None else task_from_row(row)


def counts_by_status(tx: Transaction) -> dict[str, int]:
    """How many tasks stand where."""
    return dict(tx.all(Q.counts_by_status))


def next_due(tx: Transaction) -> int | None:
    """When the next pending task that waits for its time becomes due, or None."""
    row = tx.one(Q.next_due)
    return None if row is None else row[0]


def next_moment(tx: Transaction, *, grace_ms: int) -> int | None:
    """When a timer, a retry, a deadline or the end of its grace comes next for any task, or None."""
    row = tx.one(Q.next_moment, grace_ms=grace_ms)
    return None if row is None or row[0] is None or row[0] >= tasks.NEVER_MS else int(row[0])


def overdue(tx: Transaction, *, grace_ms: int, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of tasks past their deadline, but the first `skip`: unowned ones at once, owned ones `grace_ms` later."""
    return [row[0] for row in tx.all(Q.overdue, grace_ms=grace_ms, skip=skip, limit=limit)]


def due_waiters(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of waiting tasks that no attempt holds and whose earliest wait is over, but the first `skip`."""
    return [row[0] for row in tx.all(Q.due_waiters, skip=skip, limit=limit)]


def waiters_from_later(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of tasks that wait for a time and were set aside in what is the future now, but the first `skip`.

    The clock was set back: woken, each counts anew how long it waits.
    """
    return [row[0] for row in tx.all(Q.waiters_from_later, never=tasks.NEVER_MS, skip=skip, limit=limit)]


def starts_from_later(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of pending tasks that wait for their time since what is the future now, but the first `skip`.

    The clock was set back, and `tasks.count_anew` has each wait as long again.
    """
    return [row[0] for row in tx.all(Q.starts_from_later, skip=skip, limit=limit)]


def outcome(tx: Transaction, task_id: str) -> Outcome | None:
    """How a task ended, its result unpacked, or None while it has not. Raises NotFound."""
    row = tx.one(Q.outcome, id=check_id(task_id, "task"))
    if row is None:
        tasks.get(tx, task_id)
        return None
    result = None if row[2] is None else payloads.body(tx, row[2])
    return Outcome(row[0], TaskStatus(row[1]), result, read_error(tx, row[3]))


def danger(tx: Transaction, task_id: str) -> Danger:
    """What a task and those below it have done, as far as they have come."""
    is_declared, has_begun, is_open, is_open_below = map(bool, tx.one(Q.danger, id=task_id) or (False,) * 4)
    return Danger(is_declared, has_begun, is_open, is_open_below)


def find(tx: Transaction, ending: str) -> str:
    """The id of the one task whose id ends so. Raises NotFound, or BadInput when several do."""
    ending = need_text(ending, "task").lstrip("…")
    if not ending:
        raise BadInput("give the id of a task, or its last characters", field="task")
    check_id(ending, "task")
    if tx.one(Q.get, id=ending) is not None:
        return ending
    rows = tx.all(Q.by_ending, ending=ending) or tx.all(Q.by_ending, ending=ending.upper())
    if not rows:
        raise NotFound(f"no task's id ends in {ending}; `perdure ps --all` lists them")
    if len(rows) > 1:
        listed = ", ".join(row[0] for row in rows[:5])
        raise BadInput(f"{len(rows)} tasks end in {ending}: {listed}; give more characters", field="task")
    return str(rows[0][0])


def _age(task: Task) -> tuple[int, str]:
    return task.created_at, task.id


def _fits(task: Task, *, status: str | None, open_only: bool, agent: str | None) -> bool:
    return (
        (status is None or task.status == status)
        and (not open_only or not task.status.is_terminal)
        and (agent is None or task.agent == agent)
    )
