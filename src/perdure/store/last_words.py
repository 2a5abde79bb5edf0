"""Last words: what a process knows of a call whose attempt had lost its task. They move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from perdure.model.event import EventKind
from perdure.store import events
from perdure.store.database import Transaction
from perdure.store.queries import load

S = load("steps")


class WordKind(StrEnum):
    """How a call ended whose attempt had lost its task."""

    NOT_CALLED = "not_called"  # its intent was on record, and the function never started
    CUT_OFF = "cut_off"  # cancelled inside: nobody knows
    COMPLETED = "completed"
    FAILED = "failed"


class LastWord(NamedTuple):
    """What a process says of a call when it gives its tasks up. It moves nothing: whoever goes on may read it."""

    task_id: str
    key: str
    attempt: int
    kind: WordKind = WordKind.NOT_CALLED
    body: bytes = b""  # canonical JSON of the result, or of the error
    at_ms: int = 0


def tell(tx: Transaction, words: Sequence[LastWord]) -> None:
    """Put last words on record as events of their tasks: of calls that nobody has settled meanwhile.

    The task may have ended. Whether the call took place is worth knowing all the same.
    """
    for word in sorted(words):
        if tx.one(S.without_outcome, id=word.task_id, key=word.key) is None:
            continue
        told = {"key": word.key, "attempt": word.attempt, "outcome": word.kind, "body": word.body, "at": word.at_ms}
        events.tell(tx, word.task_id, EventKind.CALL_ENDED_LATE, told)


def last(tx: Transaction, task_id: str, key: str, attempt: int) -> LastWord | None:
    """The last word about a call of one attempt, or None."""
    for told in events.payloads_of(tx, task_id, EventKind.CALL_ENDED_LATE):
        if (told.get("key"), told.get("attempt")) == (key, attempt):
            return LastWord(task_id, key, attempt, WordKind(told["outcome"]), told["body"], told["at"])
    return None
