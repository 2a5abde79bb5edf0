"""What must always hold in a database, as queries that find where it does not. Reads only; mends nothing.

What a found row means and what to do about it is said in `perdure.doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perdure.errors import Damaged
from perdure.store import payloads, tasks
from perdure.store.database import Row, Transaction
from perdure.store.queries import load

Q = load("doctor")

_ASLEEP_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Broken:
    """Rows that break one invariant: each is an id, and after it what is wrong with it. At most the limit asked for."""

    invariant: str
    rows: tuple[Row, ...]


def broken(tx: Transaction, *, limit: int = 20, sample: int = 200) -> list[Broken]:
    """Every invariant that does not hold; none in a sound database. Reads every task and record: it takes a while."""
    found = [
        Broken(query.name.partition(".")[2], tuple(rows))
        for query in (
            Q.owners,
            Q.attempts,
            Q.orphans,
            Q.ends,
            Q.slots,
            Q.questions,
            Q.children,
            Q.step_gaps,
            Q.seq_gaps,
            Q.message_gaps,
            Q.counters,
            Q.doubled_calls,
            Q.deliveries,
        )
        if (rows := tx.all(query, limit=limit))
    ]
    unwoken = tuple(_unwoken(tx))[:limit]
    unreadable = tuple(_unreadable(tx, sample))[:limit]
    found += [Broken("unwoken", unwoken)] if unwoken else []
    found += [Broken("unreadable", unreadable)] if unreadable else []
    return found


def schema_version(tx: Transaction) -> int:
    """The schema of this database."""
    row = tx.one(Q.schema_version)
    assert row is not None
    return int(row[0])


def _unwoken(tx: Transaction) -> Iterator[Row]:
    """Tasks whose wait is over and whom nobody woke. Times are left out: those are a sweep's to notice."""
    for task_id, waiting_for in tx.all(Q.asleep, limit=_ASLEEP_MAX):
        waits = [replace(wait, until_ms=None) for wait in tasks.read_waits(waiting_for)]
        if any(tasks.has_happened(tx, task_id, wait) for wait in waits):
            yield task_id, ", ".join(wait.kind for wait in waits)


def _unreadable(tx: Transaction, sample: int) -> Iterator[Row]:
    """The newest payloads that cannot be read to the last part."""
    for task_id, index, payload, output in tx.all(Q.newest_payloads, limit=sample):
        yield from _damage(tx, f"{task_id} step {index}", payload, output)
    for task_id, seq, content, tool_calls in tx.all(Q.newest_messages, limit=sample):
        yield from _damage(tx, f"{task_id} message {seq}", content, tool_calls)
    for task_id, result in tx.all(Q.newest_results, limit=sample):
        yield from _damage(tx, f"{task_id} result", result)


def _damage(tx: Transaction, place: str, *blobs: bytes | None) -> Iterator[Row]:
    for blob in blobs:
        try:
            payloads.plain(tx, blob)
        except Damaged as damage:
            yield place, str(damage)
