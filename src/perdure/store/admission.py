"""Admission: a batch of tasks becomes rows, all or none, in one transaction that checks every key and limit.

Same key and same work: the existing task. Same key and other work, or only some of a batch known: a conflict that
says what differs. Where a task is returned to its caller it can already be listed.

Locks: session, then the parent's row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from perdure import codec, phrases
from perdure.errors import BadInput, Damaged, KeyConflict, NotFound, Refused
from perdure.model.task import Fence, Lane, Mode, Task
from perdure.policy.budget import Budget, Spent, narrow, spend
from perdure.policy.lanes import check_priority, rank_ms
from perdure.policy.risk import Risk
from perdure.states import TASK
from perdure.store import budgets, events, payloads, sessions, steps
from perdure.store import tasks as task_ops
from perdure.store.budgets import Binding
from perdure.store.database import Transaction
from perdure.store.queries import load
from perdure.store.sessions import check_id, check_text
from perdure.store.tasks import task_from_row

Q = load("tasks")
_LOW = "low"
_NO_LIMITS = Budget()
_RESUMES = ("auto", "ask")
_EXECUTIONS = ("parallel", "sequential")
_LATEST_MS = 1 << 53  # some 285,000 years; sums of two such instants still fit


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be admitted. `work_digest` covers agent, arguments and context: what makes two calls the same work."""

    agent: str
    prompt: codec.Packed
    work_digest: str
    version: str = ""
    definition_hash: str = ""
    context: codec.Packed | None = None
    key: str | None = None
    session_id: str | None = None
    mode: Mode = Mode.FOREGROUND
    lane: Lane = Lane.SUBAGENT
    execution: str = "parallel"
    priority: int = 0
    delay_ms: int = 0
    deadline_at: int | None = None
    deadline_ms: int | None = None
    risk: str = _LOW
    resume: str = "auto"
    budget: Budget = field(default_factory=Budget)
    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    forked_from: str | None = None

    def with_lane(self, lane: Lane) -> NewTask:
        """The same task in another lane."""
        return replace(self, lane=lane)

    def with_parent_task(self, parent: Task) -> NewTask:
        """As a child of `parent`: its deadline not later, its lane the parent's when the parent waits for it."""
        deadline_at = self.deadline_at
        if parent.deadline_at is not None:
            deadline_at = parent.deadline_at if deadline_at is None else min(deadline_at, parent.deadline_at)
        lane = parent.lane if self.mode is Mode.FOREGROUND else self.lane
        return replace(self, deadline_at=deadline_at, lane=lane)


@dataclass(frozen=True, slots=True)
class Admission:
    """The tasks of a batch, in its order; `existing` when an earlier call with the same keys had admitted them."""

    tasks: tuple[Task, ...]
    existing: bool
    step_indexes: tuple[int, ...] = ()  # of the steps that stand for new children


def admit(tx: Transaction, new: Sequence[NewTask]) -> Admission:
    """Admit root tasks, all or none. Raises BadInput, KeyConflict or Refused before anything is written."""
    _check(new)
    ids = [tx.new_id() for _ in new]
    owners = [_session_of(one, task_id) for one, task_id in zip(new, ids, strict=True)]
    for session_id in sorted(set(owners)):
        known = tx.one(sessions.Q.get, id=session_id)
        if known is None:
            sessions.ensure(tx, session_id)
        sessions.lock(tx, session_id)
    found = _known(tx, [(owner, "client", one) for owner, one in zip(owners, new, strict=True)])
    if found is not None:
        return Admission(found, True)
    tasks = []
    for one, task_id, owner in zip(new, ids, owners, strict=True):
        place = _Place(owner, owner, task_id, None, task_id, "ROOT", "client", 1)
        tasks.append(_insert(tx, task_id, one, place))
    tx.hint()
    return Admission(tuple(tasks), False)


def admit_children(
    tx: Transaction,
    fence: Fence,
    new: Sequence[tuple[steps.NewStep, NewTask]],
    *,
    question_id: str | None = None,
) -> Admission:
    """Admit children of a running task, each together with the step that stands for it, all or none.

    A child whose step key is known is the one of the first call: a replay spawns once. `question_id` is the approval
    that the first uses up. Raises LeaseLost, KeyConflict, NotFound when another step has used it up, and Refused or
    BudgetExceeded naming every violated limit and the parent chain.
    """
    _check([one for _, one in new])
    task_ops.hold_session(tx, fence.task_id)
    parent = task_from_row(_locked(tx, fence.task_id))
    if parent.execution_id != fence.execution_id or parent.generation != fence.generation:
        task_ops.raise_unproven(tx, fence, "spawn")
    found = _known(tx, [(parent.root_session_id, parent.id, one) for _, one in new])
    if found is not None:
        return Admission(found, True)
    limits = _child_limits(tx, parent, len(new))
    tasks: list[Task] = []
    indexes: list[int] = []
    for step, one in new:
        task_id = tx.new_id()
        child = one.with_parent_task(parent)
        begun = steps.begin(tx, fence, steps.with_child(step, task_id), question_id=None if tasks else question_id)
        indexes.append(begun.step_index)
        where = _Place(
            parent.session_id,
            parent.root_session_id,
            parent.root_task_id,
            parent.id,
            parent.turn_id,
            parent.agent,
            parent.id,
            parent.child_depth,
        )
        tasks.append(_insert(tx, task_id, replace(child, budget=narrow(limits, one.budget)), where))
    tx.hint()
    return Admission(tuple(tasks), False, tuple(indexes))


def work_digest(agent: str, prompt: bytes, *, context: bytes | None = None, item: str | None = None) -> str:
    """What makes two admissions the same work, as 32 hexadecimal digits. Raises BadInput for a bad item."""
    parts = (agent.encode("utf-8", "surrogatepass"), prompt, context or b"", (check_text(item, "item") or "").encode())
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(framed).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a new task hangs."""

    session_id: str
    root_session_id: str
    root_task_id: str
    parent_task_id: str | None
    turn_id: str | None
    caller_agent_id: str
    caller_scope_id: str
    depth: int


def _check(new: Sequence[NewTask]) -> None:
    if not new:
        raise BadInput("a batch needs at least one task", field="tasks")
    keys = [check_id(one.key, "key") for one in new if one.key is not None]
    if len(keys) != len(set(keys)):
        raise BadInput("two tasks of one batch have the same key", field="key")
    for one in new:
        check_id(one.agent, "agent")
        for text, name in ((one.session_id, "session"), (one.forked_from, "forked_from")):
            if text is not None:
                check_id(text, name)
        for text, name in ((one.version, "version"), (one.definition_hash, "definition_hash")):
            check_text(text, name)
        Risk.parse(one.risk)
        check_priority(one.priority)
        for word, name, words in ((one.resume, "resume", _RESUMES), (one.execution, "execution", _EXECUTIONS)):
            if word not in words:
                raise BadInput(f"{name}: {word!r} is not known; write {' or '.join(words)}", field=name)
        for name in ("delay_ms", "deadline_at", "deadline_ms"):
            instant: int | None = getattr(one, name)
            if instant is not None and not 0 <= instant <= _LATEST_MS:
                raise BadInput(f"{name} is {instant}; it must be from 0 to {_LATEST_MS} ms", field=name)
        _as_json(one.tags, "tags")
        _as_json(one.metadata, "metadata")


def _as_json(mapping: Mapping[str, object], name: str) -> str:
    try:
        return json.dumps(dict(mapping), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} must be plain JSON values under text keys: {error}", field=name) from None


def _session_of(one: NewTask, task_id: str) -> str:
    if one.session_id is not None:
        return one.session_id
    if one.key is not None:
        # Derived from the key alone, so that the key is unique in the database.
        return f"run-{hashlib.sha256(one.key.encode()).hexdigest()[:32]}"
    return f"run-{task_id}"


def _known(tx: Transaction, wanted: Sequence[tuple[str, str, NewTask]]) -> tuple[Task, ...] | None:
    """The tasks that were admitted under these keys before, or None when none was."""
    found: list[Task | None] = []
    for session_id, scope, one in wanted:
        row = None
        if one.key is not None:
            row = tx.one(Q.by_key, root_session_id=session_id, caller_scope_id=scope, idempotency_key=one.key)
        found.append(None if row is None else task_from_row(row))
    if not any(found):
        return None
    for (_session, _scope, one), task in zip(wanted, found, strict=True):
        if task is not None:
            _check_same(tx, one, task)
    known = tuple(task for task in found if task is not None)
    if len(known) < len(wanted):
        raise KeyConflict(
            f"{len(known)} of {len(wanted)} keys of this batch are known already; nothing was admitted. "
            "Send the same batch again, or new keys.",
            key=known[0].idempotency_key or "",
            existing=[task.id for task in known],
        )
    return known


def _check_same(tx: Transaction, one: NewTask, task: Task) -> None:
    differences = []
    if one.agent != task.agent:
        differences.append(f"agent {one.agent!r} instead of {task.agent!r}")
    elif one.work_digest != task.work_digest:
        differences.append(_other_work(tx, one, task))
    if one.mode != task.mode:
        differences.append(f"mode {one.mode} instead of {task.mode}")
    if differences:
        raise KeyConflict(
            f"key {one.key!r} already belongs to task {task.id}, which is other work: {'; '.join(differences)}. "
            "Nothing was admitted; use another key.",
            key=one.key or "",
            existing=[task.id],
        )


def _other_work(tx: Transaction, one: NewTask, task: Task) -> str:
    """Which arguments of an agent differ, each value cut short; what is stored of them, here and there, is masked."""
    digests = f"(digest {one.work_digest[:8]} instead of {task.work_digest[:8]})"
    try:
        before = codec.decode(task_ops.get_input(tx, task.id).prompt)
    except Damaged:
        return f"other arguments {digests}"
    after = codec.decode(codec.unpack(one.prompt.blob, lambda _hashes: dict(one.prompt.parts)))
    if type(before) is not dict or type(after) is not dict:
        return f"other arguments {digests}"
    told = []
    for name in dict.fromkeys((*after, *before)):
        if name not in before:
            told.append(f"{name}={phrases.shown(after[name])}, which was not given")
        elif name not in after:
            told.append(f"no {name}, which was {phrases.shown(before[name])}")
        elif codec.evidence(after[name]) != codec.evidence(before[name]):
            told.append(f"{name}={phrases.shown(after[name])} instead of {phrases.shown(before[name])}")
    return f"other arguments: {phrases.listed(told)}" if told else f"another plan item or context {digests}"


def _insert(tx: Transaction, task_id: str, one: NewTask, place: _Place) -> Task:
    starts_at = tx.now + one.delay_ms
    deadline_at = one.deadline_at
    if one.deadline_ms is not None:
        relative = tx.now + one.deadline_ms
        deadline_at = relative if deadline_at is None else min(deadline_at, relative)
    revision = sessions.raise_revision(tx, place.root_session_id)
    row = tx.one(
        Q.insert,
        id=task_id,
        session_id=place.session_id,
        root_session_id=place.root_session_id,
        root_task_id=place.root_task_id,
        parent_task_id=place.parent_task_id,
        turn_id=place.turn_id,
        caller_agent_id=place.caller_agent_id,
        caller_scope_id=place.caller_scope_id,
        idempotency_key=one.key,
        work_digest=one.work_digest,
        agent=one.agent,
        version=one.version,
        definition_hash=one.definition_hash,
        mode=one.mode,
        lane=one.lane,
        execution=one.execution,
        priority=one.priority,
        rank=rank_ms(starts_at, one.priority),
        depth=place.depth,
        risk=one.risk,
        risk_seen=_LOW,
        resume=one.resume,
        available_at=starts_at if one.delay_ms else task_ops.AT_ONCE,
        deadline_at=deadline_at,
        forked_from=one.forked_from,
        origin="run",
        revision=revision,
    )
    assert row is not None
    tx.run(
        Q.insert_input,
        task=row[0],
        prompt=payloads.keep(tx, one.prompt),
        context=None if one.context is None else payloads.keep(tx, one.context),
        budget=json.dumps(one.budget.to_json()),
        tags=_as_json(one.tags, "tags"),
        metadata=_as_json(one.metadata, "metadata"),
    )
    if one.budget != _NO_LIMITS:  # A task below a budget has one of its own.
        tx.run(Q.bind, task=row[0], parent_task_id=place.parent_task_id)
    told = {"agent": one.agent, **({"parent": place.parent_task_id} if place.parent_task_id else {})}
    events.emit(tx, row[0], 1, TASK.event("admit"), told)
    return task_ops.get(tx, task_id)


def _locked(tx: Transaction, task_id: str) -> tuple[object, ...]:
    row = tx.one(Q.lock, id=task_id)
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return row


# -- what a parent allows -------------------------------------------------------------------


def _child_limits(tx: Transaction, parent: Task, count: int) -> Budget:
    """What is left for a child of `parent`, after every limit up the ancestry was checked for `count` more."""
    chain = _chain(tx, parent)
    violated: list[str] = []
    left = _NO_LIMITS
    for one in budgets.binding(tx, parent.id):
        used = one.used.plus(Spent(runs=count))
        violated += _violations(tx, one, used, parent, count)
        left = narrow(left, spend(one.budget, used))
    if violated:
        raise Refused(
            f"no child was started: {'; '.join(violated)} (from {' < '.join(chain)})", limits=violated, chain=chain
        )
    return left


def _chain(tx: Transaction, parent: Task) -> list[str]:
    """The ids of the parent and all above it. Raises Refused for a circle."""
    chain: list[str] = []
    above: str | None = parent.id
    while above is not None:
        if len(chain) > 1000 or above in chain:
            raise Refused("the chain of parents runs in a circle", limits=("cycle",), chain=chain)
        chain.append(above)
        place = tx.one(Q.place, id=above)
        above = None if place is None else place[2]
    return chain


def _violations(tx: Transaction, one: Binding, used: Spent, parent: Task, count: int) -> list[str]:
    """Every ceiling of one budget that `count` more children would break; `used` has them counted in."""
    budget, found = one.budget, []
    if budget.depth is not None and parent.depth + 1 - (one.depth - 1) > budget.depth:
        found.append(f"depth {parent.depth + 1} of {one.depth - 1 + budget.depth} (limit of {one.agent})")
    if budget.concurrent is not None and one.task_id == parent.id:
        row = tx.one(Q.count_open_children, parent_task_id=parent.id)
        assert row is not None
        if row[0] + count > budget.concurrent:
            found.append(f"concurrent {row[0] + count} of {budget.concurrent} (limit of {one.agent})")
    if budget.runs is not None and used.runs > budget.runs:
        found.append(f"runs {used.runs} of {budget.runs} (limit of {one.agent})")
    return found
