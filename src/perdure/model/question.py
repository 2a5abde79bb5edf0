"""A question: something a person must answer, kept as a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from perdure.states import QuestionStatus

Row = tuple[Any, ...]

# What may be said of a call in doubt.
HAPPENED, NOT_HAPPENED, UNKNOWN, GIVE_UP = "happened", "not_happened", "unknown", "give_up"


class QuestionKind(StrEnum):
    """What is asked: resume this task, did this call happen, may this call run, or the agent's own question."""

    RESUME = "resume"
    STEP_IN_DOUBT = "step_in_doubt"
    CALL = "call"
    ASK = "ask"

    @property
    def is_yes_or_no(self) -> bool:
        """True for kinds that are approved or denied; the others are answered."""
        return self in (QuestionKind.RESUME, QuestionKind.CALL)


@dataclass(frozen=True, slots=True)
class Question:
    """A question's row. `digest` binds an answer to the arguments it was given for.

    `anyway`: a call in doubt that did not happen runs again although its old owner has not been proven dead.
    `answered_order` places the answer among the ends of processes, whatever the clocks say.
    """

    n: int
    id: str
    session_id: str
    task_id: str
    agent: str
    step_key: str
    kind: QuestionKind
    to: str
    text: str
    evidence: bytes
    digest: str
    status: QuestionStatus
    answer: bytes | None
    answered_by: str | None
    reason: str | None
    anyway: bool
    created_at: int
    expires_at: int | None
    answered_at: int | None
    notified_at: int | None
    spent_at: int | None
    answered_order: int | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """Read a row selected with the columns of this class, in order."""
        kind, status, anyway = QuestionKind(row[6]), QuestionStatus(row[11]), bool(row[15])
        return cls(*(*row[:6], kind, *row[7:11], status, *row[12:15], anyway, *row[16:]))
