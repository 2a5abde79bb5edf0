"""Tasks that complete at the same moment, together: for each what `ends.complete` would write, for a fifth of the work.

Only what is plain in every way is done here: the owner proves the fence, nobody is above or below the task, no question
of it is open, no call of it is in doubt, and its result needs no part of its own. Whatever is left over the caller ends
by itself, and learns there what is in the way.

Locks: sessions, then tasks, each in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perdure import codec
from perdure.model.step import Note
from perdure.model.task import Fence
from perdure.states import ATTEMPT, TASK
from perdure.store import events, payloads, sessions, steps
from perdure.store.database import Row, Transaction
from perdure.store.queries import as_rows, load
from perdure.store.tasks import move_all

Sets = load("sets")


class Completion(Struct, frozen=True):
    """The end of one task: the proof of its owner, the result, and the one note that its trace closes with."""

    fence: Fence
    result: codec.Packed
    note: Note
    risk_seen: str


def complete_all(tx: Transaction, wanted: Sequence[Completion]) -> set[str]:
    """Complete those that are plain; their execution ids. Nothing of the others is changed."""
    results = {one.fence.task_id: payloads.as_text(one.result) for one in wanted}
    steps.check_notes([one.note for one in wanted])
    by_id = {one.fence.task_id: one for one in wanted if results[one.fence.task_id] is not None}
    owners = [(one.fence.task_id, one.fence.execution_id, one.fence.generation) for one in by_id.values()]
    rows = as_rows(owners)
    tx.lock(Sets.lock_sessions, rows=rows)
    found = tx.all(Sets.lock_alone, rows=rows)
    if not found:
        return set()
    revisions = sessions.raise_revisions(tx, [row[2] for row in found])
    ends = [(by_id[row[0]], row, revision) for row, revision in zip(found, revisions, strict=True)]
    moves = [(row[1], revision, one.risk_seen, results[row[0]]) for one, row, revision in ends]
    move_all(tx, Sets.complete, moves)
    _insert_notes(tx, [(one.note, row) for one, row, _ in ends])
    ended = as_rows([(row[1],) for row in found])
    tx.run(Sets.end_attempts, rows=ended, status=ATTEMPT.target("complete"), error=None)
    events.emit_to_all(tx, [(row[1], row[3] + 2) for row in found], TASK.event("complete"))
    tx.hint()
    return {one.fence.execution_id for one, _, _ in ends}


def _insert_notes(tx: Transaction, told: Sequence[tuple[Note, Row]]) -> None:
    """The last record of each task, those that say the same in one statement."""
    alike: dict[Note, list[tuple[int, int, int, int]]] = {}
    for note, row in told:
        _, n, _, seq, step_count, attempt = row
        alike.setdefault(note, []).append((n, step_count, seq + 1, attempt))
    for note, places in alike.items():
        tx.run(
            Sets.insert_notes,
            rows=as_rows(places),
            event_kind=note.kind,
            name=note.name,
            payload=payloads.keep(tx, codec.pack(note.payload)),
            timestamp=tx.now if note.timestamp_ms is None else note.timestamp_ms,
        )
