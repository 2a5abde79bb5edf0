"""The histories of many tasks in one read, for the attempts that are about to replay them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from perdure.errors import Damaged
from perdure.model.step import Step
from perdure.store import payloads
from perdure.store.database import Row, Transaction
from perdure.store.queries import as_rows, load
from perdure.store.steps import Trace

D = load("messages")
S = load("steps")
Sets = load("sets")

_INDEX = itemgetter(1)  # where a record stands in its trace


def read_all(tx: Transaction, wanted: Sequence[tuple[str, int]]) -> dict[str, Trace]:
    """The trace of each task (id, first index), on one snapshot.

    One that is not whole or cannot be read is left out: `steps.trace` says of it what is wrong.
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
