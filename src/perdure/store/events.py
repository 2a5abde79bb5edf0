"""Events: skeleton rows written in the transaction of what they tell, pulses, and the feed over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure import codec
from perdure.model.event import Event
from perdure.store import payloads
from perdure.store.database import Transaction
from perdure.store.queries import as_rows, load

Q = load("events")
T = load("tasks")
Sets = load("sets")
_NOTHING: Mapping[str, Any] = {}
_EMPTY = codec.pack(codec.encode({})).blob


def emit(tx: Transaction, task: int, seq: int, kind: str, payload: Mapping[str, Any] = _NOTHING) -> None:
    """Write one skeleton event under a number that a verb has just taken from the task's row."""
    tx.run(Q.insert, task=task, seq=seq, kind=kind, payload=payloads.small(tx, payload) if payload else _EMPTY)


def emit_to_all(
    tx: Transaction, tasks: Sequence[tuple[int, int]], kind: str, payload: Mapping[str, Any] = _NOTHING
) -> None:
    """Write the same event of many tasks, each (task, seq) under a number that was taken from its row."""
    if tasks:
        packed = payloads.small(tx, payload) if payload else _EMPTY
        tx.run(Sets.insert_events, rows=as_rows(tasks), kind=kind, payload=packed)


def tell(tx: Transaction, task_id: str, kind: str, payload: Mapping[str, Any] = _NOTHING) -> None:
    """Write an event that no owner writes, under the task's next number."""
    row = tx.one(T.next_seq, id=task_id)
    if row is not None:
        emit(tx, row[0], row[1], kind, payload)


def feed(tx: Transaction, task_id: str, *, after: int, limit: int = 500) -> list[Event]:
    """Skeleton events of a task with seq > `after`, in order. A step is told twice: as started and as completed."""
    return [_event(tx, task_id, row) for row in tx.all(Q.feed, id=task_id, after=after, limit=limit)]


def between(
    tx: Transaction, *, since_ms: int, until_ms: int, cursor: tuple[int, int] | None = None, limit: int = 500
) -> list[tuple[tuple[int, int], Event]]:
    """Skeleton events of every task in [since, until), each with the cursor to go on strictly after it."""
    at, n = cursor or (since_ms - 1, 1 << 62)
    rows = tx.all(Q.between, at=at, n=n, until=until_ms, limit=limit)
    return [((row[5], row[0]), Event(row[1], row[2], row[3], _mapping(tx, row[4]), row[5])) for row in rows]


def of_kind(tx: Transaction, task_id: str, kind: str, *, limit: int = 1000) -> list[Mapping[str, Any]]:
    """The payloads of a task's events of a kind, newest first."""
    return [_mapping(tx, payload) for (payload,) in tx.all(Q.of_kind, id=task_id, kind=kind, limit=limit)]


def of_either_kind(
    tx: Transaction, task_id: str, kind: str, other: str, *, limit: int = 1000
) -> list[tuple[str, Mapping[str, Any]]]:
    """Kind and payload of a task's events of two kinds, newest first."""
    rows = tx.all(Q.of_either_kind, id=task_id, kind=kind, other=other, limit=limit)
    return [(told, _mapping(tx, payload)) for told, payload in rows]


def add_pulses(tx: Transaction, task_id: str, *, execution_id: str, after_seq: int, number: int, packed: bytes) -> None:
    """Store a pack of streamed events. Takes no lock on the task; a repeated pack is dropped."""
    tx.run(Q.insert_pulses, id=task_id, execution_id=execution_id, after_seq=after_seq, number=number, events=packed)


class StoredPulses(NamedTuple):
    """A pack of streamed events: its row, and the skeleton event they came after."""

    row: int
    after_seq: int
    events: Sequence[Mapping[str, Any]]
    at: int
    execution_id: str


def pulses(tx: Transaction, task_id: str, *, after: int, after_row: int = 0, limit: int = 100) -> list[StoredPulses]:
    """Packs of the newest attempt that came at or after skeleton event `after`, in the order of their rows."""
    rows = tx.all(Q.pulses, id=task_id, after=after, after_row=after_row, limit=limit)
    return [StoredPulses(row[0], row[1], payloads.plain(tx, row[2]), *row[3:]) for row in rows]


def _event(tx: Transaction, task_id: str, row: tuple[Any, ...]) -> Event:
    seq, kind, blob, at, name, outcome, step_index, event_kind, risk = row
    if step_index < 0:
        return Event(task_id, seq, kind, _mapping(tx, blob), at)
    payload: dict[str, Any] = {"step": step_index, "step_kind": event_kind}
    if name:
        payload["name"] = name
    if risk:
        payload["risk"] = risk
    if outcome:
        payload["outcome"] = outcome
    if blob is not None:
        payload["output" if outcome else "input"] = payloads.plain(tx, blob)
    return Event(task_id, seq, kind, payload, at)


def _mapping(tx: Transaction, blob: bytes) -> Mapping[str, Any]:
    value = payloads.plain(tx, blob)
    return value if isinstance(value, dict) else {"value": value}
