"""A step: one recorded unit inside an attempt, found again by its key. A note: a record that answers no call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct

Row = tuple[Any, ...]


class StepKind(StrEnum):
    """What kind of call a step records; stored as `event_kind`."""

    TOOL_CALL = "tool_call"
    MODEL_CALL = "model_call"
    VALUE = "value"
    TIMER = "timer"
    CHILD = "child"
    RECEIVE = "receive"
    ANSWER = "answer"
    SIGNAL = "signal"


class NoteKind(StrEnum):
    """Records between the steps; the store accepts any other text too, this is what perdure writes."""

    TURN_STARTED = "turn_started"
    TURN_STATE_ENTERED = "turn_state_entered"
    TEXT_EMITTED = "text_emitted"
    TOOL_SUMMARY = "tool_summary"
    TURN_COMPLETED = "turn_completed"
    SESSION_COMPLETED = "session_completed"
    PROVIDER_USAGE = "provider_usage"
    VERIFIER_VETO = "verifier_veto"
    REASONING = "reasoning"


class Step(Struct, frozen=True, gc=False):
    """One row of a trace. Notes have no key, risk or outcome."""

    task_id: str
    step_index: int
    event_kind: str
    name: str
    key: str | None
    try_number: int
    risk: str | None
    payload: bytes | None
    outcome: str | None
    output: bytes | None
    attempt: int
    token: str | None
    child_task_id: str | None
    tool_call_id: str | None
    prompt_tokens: int
    completion_tokens: int
    cost: float
    started_seq: int
    ended_seq: int | None
    timestamp: int
    ended_at: int | None
    retried_at: int | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """Read a row selected with the columns of this class, in order."""
        return cls(*row)

    @property
    def is_note(self) -> bool:
        """True for a record that answers no call."""
        return self.key is None

    @property
    def is_open(self) -> bool:
        """True for a step that was begun and has no outcome."""
        return self.key is not None and self.outcome is None

    @property
    def is_in_doubt(self) -> bool:
        """True for an open step whose effect may have happened and may not be repeated without proof."""
        return self.is_open and self.risk != "low" and self.retried_at is None

    @property
    def is_undone(self) -> bool:
        """True for an open step that is known not to have happened: it is made again should the code come to it."""
        return self.is_open and self.retried_at is not None


@dataclass(frozen=True, slots=True)
class Note:
    """A record to be committed together with the live step it belongs to."""

    kind: str
    payload: bytes
    name: str = ""
    timestamp_ms: int | None = None
