"""Imports: a recorded run becomes a task that has ended, with its transcript and its calls as they were recorded.

A run is known by (format, source id) and each record by its source id, so that a file read twice adds nothing and a
longer copy of a log adds only its rest. What was stored is never changed, but for a message that was half-written
when its file was copied, and for the file's word on how the run stands.

Calls are stored as low risk: they ran elsewhere, and nobody runs them again. A part of a reply is remembered by a
note, whose name is the part's source id. Locks: session, then the task's row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from perdure import codec
from perdure.errors import Error, InvariantError
from perdure.importers import CallEntry, Entry, Format, Json, MessageEntry, MessagePart, RecordedRun, ResultEntry, Role
from perdure.importers.recorded import ToolCall
from perdure.model.message import NewMessage
from perdure.model.step import Note, NoteKind, StepKind
from perdure.model.task import Task
from perdure.states import TASK, TaskStatus
from perdure.store import admission, events, messages, payloads, sessions, steps, tasks
from perdure.store.database import Transaction
from perdure.store.queries import load
from perdure.store.sessions import check_id, check_text
from perdure.store.steps import STEP_KEY_BYTES

Q = load("imports")
S = load("steps")
T = load("tasks")

SCOPE = "import"
ERROR_TYPE = "RecordedError"
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_TOKENS_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Added:
    """What one call has added to a run. `is_whole`: nothing of the recording is left to be added."""

    task_id: str
    is_new: bool
    messages: int
    calls: int
    results: int
    is_whole: bool
    stays: str = ""  # the task's status, where the recording now says otherwise


def add(tx: Transaction, format: Format, run: RecordedRun, *, limit: int = 1000) -> Added:
    """Add what is not stored yet, at most `limit` entries of it; call again until `is_whole`. Parents come first.

    Raises BadInput (NotSerializable among them) for a run that holds what cannot be stored; nothing is written then.
    """
    session_id = check_id(f"{format}:{run.session}", "session")
    key = check_id(f"{format}:{run.source_id}", "key")
    check_id(run.agent, "agent")
    check_text(run.model, "model")
    sessions.ensure(tx, session_id)
    sessions.lock(tx, session_id)
    row = tx.one(T.by_key, root_session_id=session_id, caller_scope_id=SCOPE, idempotency_key=key)
    parent = _parent(tx, session_id, format, run)
    if row is None:
        task = _insert(tx, session_id, key, run, parent)
    else:
        locked = tx.one(T.lock, id=row[1])
        assert locked is not None, row[1]
        task = tasks.task_from_row(locked)
    stored = _Stored.load(tx, task)
    rest = run.entries_after(stored.known_of(run))
    writer = _Writer(tx, task, stored, {part: entry for entry in run.entries for part in _parts(entry)})
    # An older copy of a log has nothing to add, and its word on how the run stands is older too.
    is_older = not rest and stored.has_more_than(run)
    if row is None or rest or (_has_changed(task, run) and not is_older):
        events.emit(tx, task.n, writer.next_seq(), TASK.event("import"), {"source": run.source_id})
        for entry in rest[:limit]:
            writer.append(entry)
        _extend(tx, task, run, writer)
    if parent is not None and run.parent_call_source_id is not None:
        tx.run(Q.link_child, task=parent.n, key=run.parent_call_source_id, child_task_id=task.id)
    return Added(
        task.id,
        row is None,
        writer.messages,
        writer.calls,
        writer.results,
        is_whole=len(rest) <= limit,
        stays="" if is_older or task.status == run.status.value else task.status,
    )


def in_order(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs with parents before their children, as `add` wants them."""
    left = {run.source_id: run for run in runs}
    ordered: list[RecordedRun] = []
    for run in runs:
        chain: list[RecordedRun] = []
        one: RecordedRun | None = run
        while one is not None and left.pop(one.source_id, None) is not None:
            chain.append(one)
            one = left.get(one.parent_source_id or "")
        ordered += reversed(chain)
    return ordered


# -- the task -------------------------------------------------------------------------------


def _parent(tx: Transaction, session_id: str, format: Format, run: RecordedRun) -> Task | None:
    if run.parent_source_id is None:
        return None
    key = f"{format}:{run.parent_source_id}"
    row = tx.one(T.by_key, root_session_id=session_id, caller_scope_id=SCOPE, idempotency_key=key)
    return None if row is None else tasks.task_from_row(row)


def _insert(tx: Transaction, session_id: str, key: str, run: RecordedRun, parent: Task | None) -> Task:
    task_id = tx.new_id()
    created_at = tx.now if run.started_at_ms is None else max(0, run.started_at_ms)
    prompt = codec.encode({"prompt": run.prompt})
    row = tx.one(
        Q.insert,
        id=task_id,
        session_id=session_id,
        root_task_id=task_id if parent is None else parent.root_task_id,
        parent_task_id=None if parent is None else parent.id,
        caller_agent_id="ROOT" if parent is None else parent.agent,
        scope=SCOPE,
        key=key,
        work_digest=admission.work_digest(run.agent, prompt),
        agent=run.agent,
        model_id=run.model,
        depth=1 if parent is None else parent.child_depth,
        status=_status(run),
        created_at=created_at,
        finished_at=_finished_at(tx, run, created_at),
        revision=sessions.raise_revision(tx, session_id),
        **_keep_both(tx, _outcome(run, _status(run))),
    )
    assert row is not None
    tx.run(
        T.insert_input,
        task=row[0],
        prompt=payloads.keep(tx, codec.pack(prompt)),
        context=None,
        budget="{}",
        tags="{}",
        metadata=_metadata(run.metadata),
    )
    return tasks.get(tx, task_id)


def _status(run: RecordedRun) -> TaskStatus:
    status = TaskStatus(run.status)
    if all(move.target != status for move in TASK.transitions if move.verb == "import"):
        raise InvariantError(f"a run cannot be imported as {status}")
    return status


class _Outcome(NamedTuple):
    """How a run ended, as two columns."""

    result: codec.Packed | None
    error: codec.Packed | None


def _outcome(run: RecordedRun, status: TaskStatus) -> _Outcome:
    """What the recording says of a run's end. The task's own status decides: it never changes again."""
    if status is not TaskStatus.FAILED:
        return _Outcome(codec.pack(codec.encode(run.result)), None)
    error = Error(ERROR_TYPE, run.error or "", "permanent").to_json()
    result = None if run.result is None else codec.pack(codec.encode(run.result))
    return _Outcome(result, codec.pack(codec.evidence(error)))


def _keep_both(tx: Transaction, outcome: _Outcome) -> dict[str, bytes | None]:
    return {
        "result": None if outcome.result is None else payloads.keep(tx, outcome.result),
        "error": None if outcome.error is None else payloads.keep(tx, outcome.error),
    }


def _finished_at(tx: Transaction, run: RecordedRun, created_at: int) -> int:
    if run.ended_at_ms is not None:
        return max(0, run.ended_at_ms)
    times = [entry.at_ms for entry in run.entries if entry.at_ms is not None]
    return max([*times, created_at]) if times or run.started_at_ms is not None else tx.now


def _has_changed(task: Task, run: RecordedRun) -> bool:
    """Whether the recording now says something else of the run's end than what is stored."""
    wanted = _outcome(run, task.status)
    stored = (task.result, task.error)
    if stored != tuple(None if one is None else one.blob for one in wanted) or task.model_id != run.model:
        return True
    return run.ended_at_ms is not None and task.finished_at != max(0, run.ended_at_ms)


def _extend(tx: Transaction, task: Task, run: RecordedRun, writer: _Writer) -> None:
    usage = run.metadata.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    changed = tx.run(
        Q.extend,
        n=task.n,
        model_id=run.model,
        finished_at=_finished_at(tx, run, task.created_at),
        event_seq=writer.seq,
        step_count=writer.step_count,
        message_count=writer.message_count,
        tool_calls=task.tool_calls + writer.calls,
        iterations=task.iterations + writer.replies,
        prompt_tokens=_tokens(counts, *_USAGE),
        completion_tokens=_tokens(counts, "output_tokens"),
        last_tool_call_id=writer.last_tool_call_id,
        revision=sessions.raise_revision(tx, task.root_session_id),
        **_keep_both(tx, _outcome(run, task.status)),
    )
    assert changed == 1, task.id
    tx.run(Q.update_metadata, task=task.n, metadata=_metadata(run.metadata))
    tx.hint()


def _metadata(metadata: Mapping[str, Json]) -> str:
    # In ASCII, for PostgreSQL takes no NUL in a text, but takes one that is written as an escape.
    return json.dumps(dict(metadata), sort_keys=True, ensure_ascii=True)


def _tokens(counts: Mapping[str, Json], *names: str) -> int:
    found = [value for name in names if type(value := counts.get(name)) is int and value > 0]
    return min(sum(found), _TOKENS_MAX)


# -- what is stored already -----------------------------------------------------------------


def _parts(entry: Entry) -> tuple[str, ...]:
    return entry.source_ids if isinstance(entry, MessageEntry) else ()


@dataclass(slots=True)
class _Stored:
    """What is stored of one run: its calls, which of them have ended, its messages, and the parts of replies."""

    calls: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    messages: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, tx: Transaction, task: Task) -> _Stored:
        """Read what is stored of a task."""
        found = cls()
        for key, name, outcome in tx.all(Q.records, task=task.n):
            if key is None:
                found.parts.add(name)
            else:
                found.calls.add(key)
                if outcome is not None:
                    found.ended.add(key)
        found.messages = dict(tx.all(Q.messages, task=task.n))
        return found

    def known_of(self, run: RecordedRun) -> frozenset[str]:
        """The source ids of this recording that need not be added. A call ends once, so its end is known by it."""
        ends = [one for one in run.entries if isinstance(one, ResultEntry) and one.call_source_id in self.ended]
        return frozenset((*self.calls, *self.parts, *self.messages, *(one.source_id for one in ends)))

    def has_more_than(self, run: RecordedRun) -> bool:
        """Whether something is stored that this recording does not hold."""
        return not (self.calls | self.parts | self.messages.keys()) <= set(run.source_ids)


# -- entries --------------------------------------------------------------------------------


class _Writer:
    """Appends entries to one task, taking numbers from where it stands."""

    def __init__(self, tx: Transaction, task: Task, stored: _Stored, whole_of: Mapping[str, Entry]) -> None:
        self._tx = tx
        self._task = task
        self._stored = stored
        self._whole_of = whole_of
        self.seq = task.event_seq
        self.step_count = task.step_count
        self.message_count = task.message_count
        self.last_tool_call_id = task.last_tool_call_id
        self.messages = self.calls = self.results = self.replies = 0

    def next_seq(self) -> int:
        """The next number of the task's one sequence."""
        self.seq += 1
        return self.seq

    def append(self, entry: Entry) -> None:
        """Add one entry."""
        match entry:
            case MessageEntry():
                self._message(entry)
            case CallEntry():
                self._call(entry)
            case ResultEntry():
                self._result(entry)
            case _:
                assert_never(entry)

    def _message(self, entry: MessageEntry) -> None:
        whole = self._whole_of[entry.source_id]
        assert isinstance(whole, MessageEntry), entry.source_id
        content = codec.encode(whole.content)
        calls = codec.encode([_as_json(call) for call in whole.tool_calls]) if whole.tool_calls else None
        # Its first part may be what is new: in an earlier copy that line was damaged.
        places = (self._stored.messages.get(part) for part in whole.source_ids)
        place = next((one for one in places if one is not None), None)
        if place is None:
            place = self.message_count
            new = NewMessage(
                whole.role, content, whole.reasoning, entry.tool_call_id, entry.tool_name, calls, self._at(entry)
            )
            key = check_id(whole.source_id, "source id", limit=STEP_KEY_BYTES)
            messages.insert(self._tx, self._task.n, new, seq=place, step_key=key, at_step=self.step_count)
            self.message_count += 1
            self.messages += 1
            self.replies += whole.role is Role.ASSISTANT
        else:
            reasoning = None if whole.reasoning is None else codec.pack(codec.encode(whole.reasoning))
            self._tx.run(
                Q.update_message,
                task=self._task.n,
                seq=place,
                content=payloads.keep(self._tx, codec.pack(content)),
                reasoning=None if reasoning is None else payloads.keep(self._tx, reasoning),
                tool_calls=None if calls is None else payloads.keep(self._tx, codec.pack(calls)),
            )
        if whole.role is Role.ASSISTANT:
            for part in entry.parts:
                self._note(part, place, self._at(entry))

    def _note(self, part: MessagePart, place: int, at_ms: int) -> None:
        """Remember one part of a reply; what it says stands in the message."""
        if part.content is not None:
            kind = NoteKind.TEXT_EMITTED
        else:
            kind = NoteKind.REASONING if part.reasoning else NoteKind.TURN_STATE_ENTERED
        body = codec.encode({"message": place, "calls": len(part.tool_calls), "reasoning": bool(part.reasoning)})
        note = Note(kind, body, check_id(part.source_id, "source id", limit=STEP_KEY_BYTES), at_ms)
        steps.insert_note(self._tx, self._task.n, note, attempt=0, step_index=self.step_count, seq=self.next_seq())
        self.step_count += 1

    def _call(self, entry: CallEntry) -> None:
        check_text(entry.name, "name")
        check_text(entry.call_id, "tool_call_id")
        self._tx.run(
            S.insert,
            task=self._task.n,
            step_index=self.step_count,
            event_kind=StepKind.TOOL_CALL,
            name=entry.name,
            key=check_id(entry.source_id, "source id", limit=STEP_KEY_BYTES),
            try_number=0,
            risk="low",
            reconcilable=0,
            payload=payloads.keep(
                self._tx, codec.pack(codec.encode({"arguments": entry.arguments, "batch": entry.batch}))
            ),
            outcome=None,
            output=None,
            attempt=0,
            token=None,
            child_task_id=None,
            tool_call_id=entry.call_id,
            prompt_tokens=0,
            completion_tokens=0,
            cost=0.0,
            started_seq=self.next_seq(),
            ended_seq=None,
            timestamp=self._at(entry),
            ended_at=None,
        )
        self.step_count += 1
        self.calls += 1
        self.last_tool_call_id = entry.call_id

    def _result(self, entry: ResultEntry) -> None:
        outcome: Json = entry.result
        if entry.failed:
            outcome = {"type": ERROR_TYPE, "message": entry.error or "", "class": "permanent", "attributes": {}}
        changed = self._tx.run(
            Q.end_call,
            task=self._task.n,
            key=entry.call_source_id,
            outcome="failed" if entry.failed else "completed",
            output=payloads.keep(self._tx, codec.pack(codec.encode(outcome))),
            ended_seq=self.next_seq(),
            ended_at=self._at(entry),
        )
        if changed != 1:
            raise InvariantError(f"the call {entry.call_source_id} that a result ends is not stored, or has ended")
        self.results += 1

    def _at(self, entry: Entry) -> int:
        return self._task.created_at if entry.at_ms is None else max(0, entry.at_ms)


def _as_json(call: ToolCall) -> Json:
    return {"id": call.call_id, "name": call.name, "arguments": call.arguments}
