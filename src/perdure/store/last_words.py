"""Last words: what a process knows of a call whose attempt had lost its task. They move no task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from perdure import codec
from perdure.model.event import EventKind
from perdure.states import TaskStatus
from perdure.store import ends, events, order, steps
from perdure.store.database import Transaction
from perdure.store.queries import as_rows, load

S = load("steps")
T = load("tasks")
Sets = load("sets")


class WordKind(StrEnum):
    """How a call ended whose attempt had lost its task."""

    NOT_CALLED = "not_called"  # its intent was on record, and the function never started, or says that nothing happened
    CUT_OFF = "cut_off"  # cancelled inside: nobody knows
    COMPLETED = "completed"
    FAILED = "failed"


class LastWord(NamedTuple):
    """What a process says of a call when it gives its tasks up. It moves nothing: whoever goes on may read it.

    `order`: the call had ended by then (order.py); None when that is not known.
    """

    task_id: str
    key: str
    attempt: int
    kind: WordKind = WordKind.NOT_CALLED
    body: bytes = b""  # canonical JSON of the result, or of the error
    order: int | None = None


def wanted(tx: Transaction, words: Sequence[LastWord]) -> list[LastWord]:
    """Those of the words that are not to wait for their process to end.

    Of tasks that nobody goes on with, which have ended or are in the store no more; and of calls that are in doubt, for
    whoever goes on with their task would wait for this process to be dead.
    """
    return [word for word in words if _is_wanted(tx, word)]


def _is_wanted(tx: Transaction, word: LastWord) -> bool:
    place = tx.one(T.place, id=word.task_id)
    if place is None or _is_over(place[3]):
        return True
    newest = tx.one(S.newest_try, id=word.task_id, key=word.key)
    return newest is not None and newest[1] is None and newest[2] == word.attempt


def tell(tx: Transaction, words: Sequence[LastWord]) -> None:
    """Put last words on record as events of their tasks: of calls without an outcome, and of those whose outcome, which
    somebody else has told, the word contradicts.

    In a task that has ended nobody would act on the word, so that it settles its call, too.
    """
    task_ids = sorted({word.task_id for word in words})
    if len(task_ids) > 1:
        tx.lock(Sets.lock_sessions, rows=as_rows([(task_id,) for task_id in task_ids]))
    for task_id in task_ids:
        tx.one(T.lock_status, id=task_id)  # Whether the task has ended does not change meanwhile.
    unplaced = [word for word in words if word.kind is WordKind.CUT_OFF and word.order is None]
    for word in sorted(set(words).difference(unplaced)):
        _tell(tx, word)
    if unplaced:  # Last of all, for until the commit nobody else takes a place.
        place = order.take(tx)
        for word in sorted(unplaced):
            _tell(tx, word._replace(order=place))


def _tell(tx: Transaction, word: LastWord) -> None:
    row = tx.one(S.newest_try, id=word.task_id, key=word.key)
    if row is None:
        return
    step_index, outcome, attempt, status = row
    if outcome is not None and not (attempt == word.attempt and _contradicts(word, outcome)):
        return
    told = {"key": word.key, "attempt": word.attempt, "outcome": word.kind, "body": word.body, "order": word.order}
    events.tell(tx, word.task_id, EventKind.CALL_ENDED_LATE, told)
    if outcome is None and attempt == word.attempt and _is_over(status):
        _settle(tx, word, step_index)


def _is_over(status: str) -> bool:
    return TaskStatus(status).is_terminal


def _contradicts(word: LastWord, outcome: str) -> bool:
    return word.kind is not WordKind.CUT_OFF and (word.kind is WordKind.COMPLETED) != (outcome == "completed")


def _settle(tx: Transaction, word: LastWord, step_index: int) -> None:
    """The holder's own word is as good as the outcome that it could not put on record any more."""
    if word.kind is WordKind.CUT_OFF:
        return
    if word.kind is WordKind.NOT_CALLED:
        result = ends.not_applied()
    else:
        result = steps.Result(completed=word.kind is WordKind.COMPLETED, output=codec.pack(word.body))
    ends.settle_call(tx, word.task_id, step_index, result, by="", reason="whoever ran it has told how it ended")


def last(tx: Transaction, task_id: str, key: str, attempt: int) -> LastWord | None:
    """The last word about a call of one attempt, or None. Once the call has been run again, a word from before says
    nothing of it any more, though the same attempt may hold it.
    """
    for kind, told in events.of_either_kind(tx, task_id, EventKind.CALL_ENDED_LATE, EventKind.CALL_RUN_AGAIN):
        if told.get("key") != key:
            continue
        if kind == EventKind.CALL_RUN_AGAIN:
            return None
        if told.get("attempt") == attempt:
            return LastWord(task_id, key, attempt, WordKind(told["outcome"]), told["body"], told["order"])
    return None
