"""A small world around a store: workers, tasks and steps in one line each, and every row of every table to compare.

The operations are the real ones; nothing here decides anything that the store should decide. Tests ask for the fixture
`world`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, ParamSpec

from perdure import codec
from perdure.clock import FakeClock
from perdure.errors import Error
from perdure.model.delivery import Delivery
from perdure.model.event import Event
from perdure.model.instance import InstanceType
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Attempt, Claim, Fence, Lane, Task, Usage, Wait, WaitKind
from perdure.store import (
    Store,
    admission,
    ends,
    events,
    instances,
    messages,
    questions,
    recovery,
    steps,
    task_lists,
    tasks,
    traces,
)
from perdure.store.admission import NewTask
from perdure.store.database import Row, Transaction, Value
from perdure.store.instances import Registration
from tests.rows import query

P = ParamSpec("P")
SCHEMA = (files("perdure.store") / "sql" / "schema" / "0001_core.sql").read_text("utf-8")
TABLES = tuple(re.findall(r"^CREATE TABLE (\w+)", SCHEMA, flags=re.MULTILINE))
BOOM = Error("ValueError", "boom", "permanent")
RECOVERY_LIMIT = 3
DAY_MS = 86_400_000


def packed(value: object) -> codec.Packed:
    """A value as the operations take it."""
    return codec.pack(codec.encode(value))


def new_task(agent: str = "writer", *, work: object = "work", **fields: Any) -> NewTask:
    """A task to admit; equal `work` is the same work."""
    body = codec.encode(work)
    return NewTask(agent=agent, prompt=codec.pack(body), work_digest=admission.work_digest(agent, body), **fields)


def new_step(key: str, **fields: Any) -> steps.NewStep:
    """A call to record: a tool call of low risk unless told otherwise."""
    risk = fields.setdefault("risk", "low")
    fields.setdefault("risk_seen", risk)
    if risk != "low":
        fields.setdefault("token", f"token of {key}")
    return steps.NewStep(
        **{"kind": StepKind.TOOL_CALL, "name": "search", "payload": packed({"key": key}), **fields}, key=key
    )


def done(value: object = "ok", **fields: Any) -> steps.Result:
    """An outcome that is a value."""
    return steps.Result(completed=True, output=packed(value), **fields)


def timer(until_ms: int) -> list[Wait]:
    """What a task waits for that sleeps."""
    return [Wait(WaitKind.TIMER, (), until_ms=until_ms)]


@dataclass
class World:
    """Verbs on one store. `worker` is the instance that claims unless another one is named."""

    store: Store
    clock: FakeClock
    _workers: list[Registration] = field(default_factory=list)
    _places: dict[str, steps.Place] = field(default_factory=dict)

    # -- workers ----------------------------------------------------------------------------

    def new_worker(self, *agents: tuple[str, str]) -> Registration:
        """Register an instance that can run these agents: `writer` in any version unless told otherwise."""
        self._workers.append(
            self.store.call(
                instances.register,
                instance_id=f"worker-{len(self._workers)}",
                type=InstanceType.EXECUTOR,
                host="host",
                boot_id="boot",
                pid=1,
                killable=True,
                agents=agents or (("writer", ""),),
            )
        )
        return self._workers[-1]

    @property
    def worker(self) -> Registration:
        """The first worker; registered when it is first asked for."""
        return self._workers[0] if self._workers else self.new_worker()

    def crash(self, worker: Registration) -> list[str]:
        """The worker is silent: end its attempts. Returns the tasks that were interrupted by it."""
        seen = self.store.read(instances.get, worker.id)
        assert self.store.call(instances.mark_crashed, worker.id, heartbeat=seen.heartbeat)
        return self.store.call(instances.interrupt_orphans)

    # -- tasks ------------------------------------------------------------------------------

    def admit(self, new: NewTask | None = None, **fields: Any) -> Task:
        """Admit one root task."""
        (task,) = self.store.call(admission.admit, [new or new_task(**fields)]).tasks
        return task

    def claim(self, task_id: str, *, worker: Registration | None = None) -> Claim:
        """Own this task, which must be due."""
        who = worker or self.worker
        found = self.store.call(tasks.claim_this, task_id, instance_id=who.id, generation=who.generation)
        assert found is not None
        return found

    def claim_any(
        self, *, lane: Lane = Lane.SUBAGENT, limit: int = 100, worker: Registration | None = None
    ) -> list[Claim]:
        """Own whatever is due in a lane, as a worker does."""
        who = worker or self.worker
        return self.store.call(
            tasks.claim, lane=lane, instance=who.n, instance_id=who.id, generation=who.generation, limit=limit
        )

    def start(self, *, worker: Registration | None = None, **fields: Any) -> Claim:
        """Admit and claim one root task."""
        return self.claim(self.admit(**fields).id, worker=worker)

    def spawn(self, parent: Claim, key: str = "child", **fields: Any) -> Task:
        """Admit one child of an owned task."""
        batch = [(new_step(key, kind=StepKind.CHILD, name="child"), new_task(key=key, **fields))]
        (child,) = self.store.call(admission.admit_children, parent.fence, batch).tasks
        return child

    def wait_for(self, claim: Claim, *waits: Wait) -> None:
        """Set an owned task aside in memory."""
        self.store.call(tasks.wait, claim.fence, waits)

    def set_aside(self, claim: Claim, *waits: Wait) -> bool:
        """Set an owned task aside and give up its memory; True when it is due again at once."""
        self.wait_for(claim, *waits)
        return self.store.call(tasks.suspend, claim.fence)

    def complete(self, claim: Claim, value: object = "result") -> None:
        """End an owned task with a value."""
        self.store.call(ends.complete, claim.fence, packed(value), risk_seen="low")

    def fail(self, claim: Claim, error: Error = BOOM) -> None:
        """End an owned task with an error."""
        self.store.call(ends.fail, claim.fence, error)

    def end(self, task_id: str, verb: str) -> bool:
        """Cancel a task or time it out, as anybody may."""
        return self.store.call(ends.cancel if verb == "cancel" else ends.time_out, task_id)

    def interrupt(self, claim: Claim, *, trace_error: str = "") -> None:
        """End an attempt that has no outcome."""
        assert self.store.call(
            tasks.interrupt, claim.task.id, claim.execution_id, reason="gone", trace_error=trace_error
        )

    def send(self, task_id: str, name: str, value: object = 1, *, key: str | None = None) -> Delivery:
        """Feed a task's receive."""
        return self.store.call(messages.send, task_id, name=name, key=key, payload=packed(value), unread_limit=10_000)

    # -- steps ------------------------------------------------------------------------------

    def begin(self, claim: Claim, key: str, **fields: Any) -> steps.Written:
        """Put the intent of a call on record."""
        return self.store.call(steps.begin, claim.fence, new_step(key, **fields), place=self._place(claim))

    def end_step(self, claim: Claim, key: str, result: steps.Result | None = None, **fields: Any) -> steps.Written:
        """Put the outcome of a call that was begun on record."""
        step, place = new_step(key, **fields), self._place(claim)
        return self.store.call(steps.complete, claim.fence, step, result or done(), begun=True, place=place)

    def record(self, claim: Claim, key: str, result: steps.Result | None = None, **fields: Any) -> steps.Written:
        """Record a call at its completion: begun and ended at once, as low risk is."""
        step, place = new_step(key, **fields), self._place(claim)
        return self.store.call(steps.complete, claim.fence, step, result or done(), begun=False, place=place)

    def _place(self, claim: Claim) -> steps.Place:
        """Where the trace ended for this owner, as an attempt keeps it."""
        return self._places.setdefault(claim.fence.execution_id, steps.Place())

    # -- questions and recovery -------------------------------------------------------------

    def ask(self, claim: Claim, kind: QuestionKind = QuestionKind.ASK, **fields: Any) -> Question:
        """Ask a person, as the owner of a task."""
        evidence = fields.pop("evidence", packed({}))
        new = questions.NewQuestion(kind, fields.pop("text", "Which one?"), evidence, **fields)
        return self.store.call(questions.open_question, claim.fence, new)

    def expire(self) -> list[Question]:
        """Close every question whose time is over."""
        due = self.store.read(questions.overdue)
        return [self.store.call(questions.expire_one, question_id) for question_id in due]

    def recover(self, task_id: str) -> recovery.Recovered | None:
        """Decide about an interrupted task and act."""
        return self.store.call(recovery.act, task_id, recovery_limit=RECOVERY_LIMIT, question_expiry_ms=7 * DAY_MS)

    # -- looking ----------------------------------------------------------------------------

    def task(self, task_id: str) -> Task:
        """The task as it is now."""
        return self.store.read(tasks.get, task_id)

    def step(self, task_id: str, key: str) -> Step | None:
        """The last try of a call, looked for in the whole trace."""
        return next((one for one in reversed(self.store.read(traces.read, task_id).steps) if one.key == key), None)

    def attempts(self, task_id: str) -> list[Attempt]:
        """Every execution of a task."""
        return self.store.read(task_lists.attempts, task_id)

    def feed(self, task_id: str) -> list[Event]:
        """Every skeleton event of a task."""
        return self.store.read(events.feed, task_id, after=0, limit=100_000)

    def kinds(self, task_id: str) -> list[str]:
        """What happened to a task, as kinds of events."""
        return [event.kind for event in self.feed(task_id)]

    def rows(self, sql: str, **values: Value) -> list[Row]:
        """Run a query of the test's own."""
        return self.store.read(lambda tx: tx.all(query(sql), **values))

    def execute(self, sql: str, **values: Value) -> int:
        """Run a statement of the test's own: damage, mostly. How many rows it changed."""
        return self.store.call(lambda tx: tx.run(query(sql), **values))

    def multiply(self, table: str, changed: Mapping[str, str], rows: int) -> None:
        """Copy the newest row of a table so often, with other values (`k` counts, `one` is the row) in some columns."""
        columns = columns_of(table)
        values = ", ".join(changed.get(column, f"one.{column}") for column in columns)
        self.execute(
            "WITH RECURSIVE numbers (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM numbers WHERE k < :rows) "
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"SELECT {values} FROM numbers, (SELECT * FROM {table} ORDER BY n DESC LIMIT 1) one",
            rows=rows,
        )

    def dump(self) -> dict[str, list[str]]:
        """Every row of every table, to compare before and after."""

        def read(tx: Transaction) -> dict[str, list[str]]:
            return {table: sorted(map(repr, tx.all(query(f"SELECT * FROM {table}")))) for table in TABLES}

        return self.store.read(read)

    def unchanged_by(self, act: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> object:
        """Run `act`, which must not change a single row; what it returned, or the exception it raised."""
        before = self.dump()
        outcome = outcome_of(act, *args, **kwargs)
        after = self.dump()
        assert after == before
        return outcome


def outcome_of(act: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> object:
    """What `act` returned, or the exception it raised; the caller says which one it wants."""
    try:
        return act(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # It is the outcome.
        return error


def columns_of(table: str) -> list[str]:
    """The columns of a table but its row id, read off the schema."""
    found = re.search(rf"CREATE TABLE {table} \((.*?)^\)", SCHEMA, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return [name for name in re.findall(r"^    (\"?[a-z_]+\"?) \{", found[1], flags=re.MULTILINE) if name != "n"]


def stale(fence: Fence) -> list[Fence]:
    """Fences that prove nothing: another execution, an earlier generation."""
    return [replace(fence, execution_id="someone else's"), replace(fence, generation=fence.generation - 1)]


def usage_of(row: Task | Attempt) -> Usage:
    """What a task or an attempt has consumed."""
    return Usage(row.prompt_tokens, row.completion_tokens, row.cost, row.tool_calls, row.iterations)


def ids(found: Sequence[Task]) -> list[str]:
    """The ids of tasks."""
    return [task.id for task in found]
