"""The histories of tasks, for the attempts that are about to replay them: one alone, or many in one read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from perdure.errors import Damaged, NotFound, Refused
from perdure.model.step import Step
from perdure.store import payloads
from perdure.store.database import Row, Transaction
from perdure.store.queries import as_rows, load

D = load("messages")
S = load("steps")
Sets = load("sets")
T = load("tasks")

MOST_RECORDS = 1_000_000  # of one task, replayed at once: all of them are held in memory
_INDEX = itemgetter(1)  # where a record stands in its trace


@dataclass(frozen=True, slots=True)
class Trace:
    """A task's history as a replay needs it: outputs unpacked, inputs left as they lie."""

    steps: tuple[Step, ...]
    message_keys: frozenset[str]


def read(tx: Transaction, task_id: str, *, from_index: int = 0) -> Trace:
    """A task's whole history from one range of one index, on one snapshot.

    Raises Damaged when an output cannot be read or a record is missing, and Refused, before any is read, when there are
    more than are replayed at once.
    """
    told = tx.one(T.counts, id=task_id)
    if told is None:
        raise NotFound(f"there is no task {task_id}")
    step_count, message_count = told
    wanted = range(from_index, step_count)
    if len(wanted) > MOST_RECORDS:
        raise Refused(
            f"the trace of task {task_id} has {len(wanted)} records to replay, more than the {MOST_RECORDS} that are "
            f"replayed at once; none of them is damaged. Begun again, the task goes on from its last checkpoint, if it "
            f"has one; work as long as this is better given to child tasks",
            limits=(f"records {MOST_RECORDS}",),
        )
    rows = tx.all(S.trace, id=task_id, from_index=from_index, limit=MOST_RECORDS)
    found = [row[1] for row in rows]
    if found != list(wanted):
        missing = sorted(set(wanted) - set(found))
        raise Damaged(f"the trace of task {task_id} is not whole: {len(missing)} records are missing, {missing[:10]}")
    steps = tuple(_step(tx, row) for row in rows)
    keys = frozenset(row[0] for row in tx.all(D.keys, id=task_id)) if message_count else frozenset[str]()
    return Trace(steps, keys)


def read_all(tx: Transaction, wanted: Sequence[tuple[str, int]]) -> dict[str, Trace]:
    """The trace of each task (id, first index), on one snapshot.

    One that is not whole or cannot be read is left out: `read` says of it what is wrong.
    """
    rows = as_rows(wanted)
    records: dict[str, list[Row]] = {task_id: [] for task_id, _ in wanted}
    for row in tx.all(S.traces, rows=rows):
        records[row[0]].append(row)
    first = dict(wanted)
    found = {}
    for task_id, step_count, message_count in tx.all(Sets.counts, rows=rows):
        history = sorted(records[task_id], key=_INDEX)
        if list(map(_INDEX, history)) != list(range(first[task_id], step_count)):
            continue
        try:
            steps = tuple(_step(tx, row) for row in history)
        except Damaged:
            continue
        keys = frozenset(row[0] for row in tx.all(D.keys, id=task_id)) if message_count else frozenset[str]()
        found[task_id] = Trace(steps, keys)
    return found


def _step(tx: Transaction, row: Row) -> Step:
    output = row[9]
    return Step.from_row(row if output is None else (*row[:9], payloads.body(tx, output), *row[10:]))
