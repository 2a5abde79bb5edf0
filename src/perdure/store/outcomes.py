"""The outcomes of calls that are plain in every way, for many tasks at once: the store's most frequent write.

Plain is a call that is recorded with its outcome, and uses up nothing: no question, no delivery, no note. What
`steps.complete` writes for each in two statements is written for all in two.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perdure.model.task import Fence
from perdure.store import steps
from perdure.store.database import Joint, Transaction
from perdure.store.queries import load

Q = load("steps")
T = load("tasks")


class Outcome(Struct, frozen=True, eq=False, gc=False):
    """A call that has ended, its task's owner, and where the task's trace ended before."""

    fence: Fence
    step: steps.NewStep
    result: steps.Result
    place: steps.Place


def is_plain(result: steps.Result, place: steps.Place) -> bool:
    """Whether a call with this result, not yet on record, can be recorded with others."""
    uses_nothing = result.question_id is None and result.delivery is None
    return uses_nothing and place.n != 0 and not result.notes and result.event is None


def _record_one(tx: Transaction, one: Outcome) -> steps.Written:
    return steps.complete(tx, one.fence, one.step, one.result, begun=False, place=one.place)


def _record_all(tx: Transaction, wanted: Sequence[Outcome]) -> list[steps.Written] | None:
    changes, rows, written = [], [], []
    for one in wanted:
        fence, step, result, place = one.fence, one.step, one.result, one.place
        n, seq, index = place.n, place.event_seq, place.step_count
        if not n:
            return None
        steps.check(step)
        change = steps.outcome_change(fence, step, result, begun=False, seqs=2, records=1)
        changes.append({"n": n, "event_seq": seq, "step_count": index, **change})
        rows.append(steps.row_of(tx, n, step, result, attempt=place.attempt, step_index=index, started_seq=seq + 1))
        # Another call of the same task may follow in `wanted`.
        place.event_seq, place.step_count = seq + 2, index + 1
        written.append(steps.Written(index, seq + 2))
    if tx.many(T.record_step_at, changes) != len(changes):
        return None  # Somebody has written to one of the tasks, or owns it now: `complete` finds out.
    tx.many(Q.insert, rows)
    return written


RECORD: Joint[Outcome, steps.Written] = Joint(_record_one, _record_all)
