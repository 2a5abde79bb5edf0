"""Recovery: for each interrupted task one decision, stored with its reasons, and acted on in the same transaction.

The decision itself is pure (policy/recovery.py). Acting is a compare-and-set: of two workers one wins, and a second
pass finds nothing. A skip or a park opens a question, so that no task is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from perdure import codec
from perdure.errors import Damaged
from perdure.model.question import QuestionKind
from perdure.model.task import Task
from perdure.policy.recovery import Case, Decision, DoubtfulStep, Rule, Verdict, decide, for_another
from perdure.policy.risk import Risk
from perdure.states import TASK, TaskStatus
from perdure.store import ends, events, payloads, questions, sessions
from perdure.store import tasks as task_ops
from perdure.store.database import Transaction
from perdure.store.queries import as_rows, load
from perdure.store.tasks import read_error, task_from_row

Q = load("recovery")
S = load("steps")
T = load("tasks")
Sets = load("sets")

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was decided for one task, and the question that was opened for it, if any."""

    task: Task
    decision: Decision
    question_id: str | None


class Acted(NamedTuple):
    """A task about which was decided, and what."""

    task_id: str
    root_session_id: str
    agent: str
    step_count: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class PastDecision:
    """A stored decision, for `why`."""

    execution_id: str
    verdict: str
    rule: str
    reasons: tuple[str, ...]
    evidence: Mapping[str, Any]
    at: int


def interrupted(tx: Transaction, *, skip: int = 0, limit: int = 100) -> list[str]:
    """Ids of interrupted tasks that no open question speaks for, oldest first, but the first `skip`."""
    return [row[0] for row in tx.all(T.interrupted, skip=skip, limit=limit)]


def examine(tx: Transaction, task_id: str, *, recovery_limit: int) -> Decision:
    """What recovery would decide for a task now, without acting: the dry run."""
    task = task_ops.get(tx, task_id)
    return decide(_case(tx, task, _look(tx, task), recovery_limit=recovery_limit))


def act(tx: Transaction, task_id: str, *, recovery_limit: int, question_expiry_ms: int) -> Recovered | None:
    """Decide, store the decision, and move the task or open its question. None when there is nothing to do.

    Raises NotFound.
    """
    _, _, status = task_ops.hold_session(tx, task_id)
    if status != TaskStatus.INTERRUPTED:
        return None
    row = tx.one(T.lock, id=task_id)
    assert row is not None, task_id
    task = task_from_row(row)
    seen = _look(tx, task)
    if task.status is not TaskStatus.INTERRUPTED or seen.is_asked:
        return None
    decision = decide(_case(tx, task, seen, recovery_limit=recovery_limit))
    tx.run(Q.insert, **_as_row(tx, task.n, decision, seen.execution_id))
    if decision.verdict is Verdict.TIMED_OUT:
        ends.time_out(tx, task_id)
        return Recovered(task, decision, None)
    revision = sessions.raise_revision(tx, task.root_session_id)
    if decision.verdict is Verdict.AUTO_RESUME:
        task_ops.recover(tx, task, revision=revision, counts=decision.counts)
        return Recovered(task, decision, None)
    assert decision.question is not None, decision
    # What a yes has to know is bound to the question.
    evidence = {**decision.evidence, "verdict": decision.verdict, "counts": decision.counts}
    if decision.verdict is Verdict.SKIP:
        # A yes starts again after what cannot be read: no record from before is used, and what the task had received
        # is given back to it.
        evidence["replay_from"] = task.step_count
    opened = questions.insert(
        tx,
        task,
        questions.NewQuestion(
            QuestionKind.RESUME,
            decision.question.text,
            evidence=codec.pack(codec.evidence(evidence)),
            expires_at_ms=tx.now + question_expiry_ms,
        ),
        revision=revision,
    )
    tx.hint()
    return Recovered(task, decision, opened.id)


def resume_plain(tx: Transaction, task_ids: Sequence[str], *, recovery_limit: int) -> list[Acted]:
    """Act on those of some tasks that go on by themselves and are in no way special, all together.

    What is decided and written for each is what `act` would; all others are left to it, in the order given. Most tasks
    of a worker that was killed are such.
    """
    rows = as_rows([(task_id,) for task_id in task_ids])
    # The locks of all, each kind in the order of its ids.
    tx.lock(Sets.lock_sessions, rows=rows)
    found = tx.all(Sets.lock_plain, rows=rows, interrupted=TASK.event("interrupt"), recovery_limit=recovery_limit)
    by_id = {row[0]: _Plain(*row) for row in found}
    locked = [by_id[task_id] for task_id in dict.fromkeys(task_ids) if task_id in by_id]
    told: dict[bytes | None, tuple[Mapping[str, Any], str | None]] = {}
    alike: dict[tuple[object, ...], Decision] = {}
    decided = []
    for one in locked:
        if one.told not in told:
            told[one.told] = _told_at_the_interrupt(tx, one.told)
        was, trace_error = told[one.told]
        if trace_error is not None or not one.is_whole:
            continue
        # Tasks of one agent that came equally far differ in nothing but their ids: what is decided is the same.
        likeness = (*one.seen, one.told)
        if likeness not in alike:
            alike[likeness] = decide(_plain_case(tx, one, was, recovery_limit=recovery_limit))
        if alike[likeness].rule is Rule.RESUME:
            decided.append((one, for_another(alike[likeness], one.id)))
    if decided:
        _resume_all(tx, decided)
    return [Acted(one.id, one.root_session_id, one.agent, one.step_count, decision) for one, decision in decided]


def decisions(tx: Transaction, task_id: str, *, limit: int = 20) -> list[PastDecision]:
    """What was decided for a task so far, newest first."""
    return [
        PastDecision(row[0], row[1], row[2], tuple(json.loads(row[3])), payloads.plain(tx, row[4]), row[5])
        for row in tx.all(Q.of_task, id=task_id, limit=limit)
    ]


class _Seen(NamedTuple):
    """What one look at a task's rows tells."""

    execution_id: str  # of its last attempt
    told: bytes | None  # what the event of its newest interruption says
    is_asked: bool  # a person has been asked whether to resume
    has_doubts: bool
    records: int  # from where a replay begins; the first of them and the last
    first: int | None
    last: int | None


class _Plain(NamedTuple):
    """What one look tells of an interrupted task about which nobody is asked and no call of which is in doubt."""

    id: str
    n: int
    root_session_id: str
    agent: str
    risk: str
    resume: str
    deadline_at: int | None
    recoveries: int
    step_count: int
    event_seq: int
    execution_id: str | None
    told: bytes | None
    records: int
    last: int | None

    @property
    def seen(self) -> tuple[object, ...]:
        """What a decision looks at, of the task's row."""
        return self.agent, self.risk, self.resume, self.deadline_at, self.recoveries, self.records

    @property
    def is_whole(self) -> bool:
        """Whether it has every record; an index is there once, and none is below 0."""
        return 0 < self.records == self.step_count and self.last == self.step_count - 1


def _plain_case(tx: Transaction, one: _Plain, told: Mapping[str, Any], *, recovery_limit: int) -> Case:
    return Case(
        task_id=one.id,
        agent=one.agent,
        now_ms=tx.now,
        deadline_at=one.deadline_at,
        declared_risk=Risk.parse(one.risk),
        resume="ask" if one.resume == "ask" else "auto",
        record_count=one.records,
        recoveries_without_progress=one.recoveries,
        recovery_limit=recovery_limit,
        was_waiting=bool(told.get("was_waiting")),
    )


def _resume_all(tx: Transaction, decided: Sequence[tuple[_Plain, Decision]]) -> None:
    """Store the decisions and make the tasks due again; each raises the revision of its session by one."""
    _store_all(tx, decided)
    revisions = sessions.raise_revisions(tx, [one.root_session_id for one, _ in decided])
    moves = []
    by_recoveries: dict[int, list[tuple[int, int]]] = {}
    for (one, decision), revision in zip(decided, revisions, strict=True):
        recoveries = one.recoveries + (1 if decision.counts else 0)
        moves.append((one.n, recoveries, revision))
        by_recoveries.setdefault(recoveries, []).append((one.n, one.event_seq + 1))
    task_ops.move_all(tx, Sets.recover, moves)
    for recoveries, alike in by_recoveries.items():
        events.emit_to_all(tx, alike, TASK.event("recover"), {"recoveries": recoveries})
    tx.hint()


def _store_all(tx: Transaction, decided: Sequence[tuple[_Plain, Decision]]) -> None:
    alike: dict[tuple[str, str, str], list[tuple[int, str, str]]] = {}
    for one, decision in decided:
        execution_id, evidence = one.execution_id or "", payloads.as_text(_evidence(decision))
        if evidence is None:  # An agent with a name of thousands of letters.
            tx.run(Q.insert, **_as_row(tx, one.n, decision, execution_id))
            continue
        said = decision.verdict, decision.rule, _as_text(decision.reasons)
        alike.setdefault(said, []).append((one.n, execution_id, evidence))
    for (verdict, rule, reasons), rows in alike.items():
        tx.run(Sets.insert_decisions, rows=as_rows(rows), verdict=verdict, rule=rule, reasons=reasons)


def _look(tx: Transaction, task: Task) -> _Seen:
    # Records before `replay_from` are used no more: a person has said to start after them.
    row = tx.one(Q.look, task=task.n, interrupted=TASK.event("interrupt"), from_index=task.replay_from)
    assert row is not None, task.id
    return _Seen(row[0] or "", row[1], bool(row[2]), bool(row[3]), *row[4:])


def _as_row(tx: Transaction, task: int, decision: Decision, execution_id: str) -> dict[str, Any]:
    """A decision as it is stored."""
    return {
        "task": task,
        "execution_id": execution_id,
        "verdict": decision.verdict,
        "rule": decision.rule,
        "reasons": _as_text(decision.reasons),
        "evidence": payloads.keep(tx, _evidence(decision)),
    }


def _evidence(decision: Decision) -> codec.Packed:
    return codec.pack(codec.evidence(dict(decision.evidence)))


@lru_cache(maxsize=64)
def _as_text(reasons: tuple[str, ...]) -> str:
    """Kept, for many tasks have the same."""
    return json.dumps(reasons)


def _case(tx: Transaction, task: Task, seen: _Seen, *, recovery_limit: int) -> Case:
    """Everything the decision looks at, from one snapshot."""
    told, trace_error = _told_at_the_interrupt(tx, seen.told)
    records, wanted = seen.records, task.step_count - task.replay_from
    is_whole = seen.first == task.replay_from and seen.last == task.step_count - 1 and records == wanted
    if trace_error is None and records and not is_whole:
        trace_error = f"it holds {records} of {wanted} records; some are missing or doubled"
    doubtful = tx.all(S.in_doubt, task=task.n, from_index=task.replay_from) if seen.has_doubts else []
    return Case(
        task_id=task.id,
        agent=task.agent,
        now_ms=tx.now,
        deadline_at=task.deadline_at,
        declared_risk=Risk.parse(task.risk),
        resume="ask" if task.resume == "ask" else "auto",
        trace_error=trace_error,
        record_count=records,
        recoveries_without_progress=task.recoveries,
        recovery_limit=recovery_limit,
        in_doubt=tuple(
            DoubtfulStep(step_index=row[0], name=row[1], key=row[2], risk=Risk.parse(row[3]), reconcilable=bool(row[4]))
            for row in doubtful
        ),
        was_waiting=bool(told.get("was_waiting")),
        crash_history=_crash_history(tx, task) if task.recoveries >= recovery_limit else (),
        last_steps=tuple(_describe(row) for row in tx.all(S.last, task=task.n, limit=_SHOWN)),
        recorded_calls=tuple(f"step {row[0]}: {row[1]}" for row in tx.all(S.dangerous_done, task=task.n, limit=50))
        if trace_error is not None
        else (),
    )


def _told_at_the_interrupt(tx: Transaction, payload: bytes | None) -> tuple[Mapping[str, Any], str | None]:
    """What the newest interruption said, and what is wrong with the trace. One damaged row must not stop a pass."""
    try:
        told = payloads.plain(tx, payload) or {}
    except Damaged as error:
        return {}, f"the event of its interruption cannot be read: {error}"
    return told, told.get("trace_error") or None


def _crash_history(tx: Transaction, task: Task) -> tuple[str, ...]:
    rows = tx.all(Q.crash_history, task=task.n, limit=10)
    return tuple(
        f"attempt {number} on {instance} ended {status}: {read_error(tx, error) or 'no error was recorded'}"
        for number, status, instance, _at, error in rows
    )


def _describe(row: tuple[Any, ...]) -> str:
    index, kind, name, outcome = row
    what = f"{kind} {name}" if name else kind
    return f"step {index}: {what}" + (f" ({outcome})" if outcome else "")
