"""An event: one line of what happened to a task. Skeleton events are durable; pulses are streamed and may be lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class EventKind(StrEnum):
    """Kinds that are not the event of a verb (those stand in states.py)."""

    TOOL_CALL_STARTED = "tool_call_started"
    TOOL_CALL_COMPLETED = "tool_call_completed"
    ARTIFACT_CREATED = "artifact_created"
    CHECKPOINT_CREATED = "checkpoint_created"
    PULSES_DROPPED = "pulses_dropped"
    DRIFT = "drift"
    CALL_RUN_AGAIN = "call_run_again"
    CALL_ENDED_LATE = "call_ended_late"
    CALL_SETTLED = "call_settled"
    ANSWER_VOIDED = "answer_voided"
    AI_STREAMING = "ai_streaming"
    PROGRESS = "progress"
    LOG = "log"
    TOKEN_USAGE = "token_usage"


PULSE_KINDS = frozenset({EventKind.AI_STREAMING, EventKind.PROGRESS, EventKind.LOG, EventKind.TOKEN_USAGE})


@dataclass(frozen=True, slots=True)
class Event:
    """One event as followers see it. A pulse's `seq` is that of the skeleton event it came after.

    `kind` is a plain text wherever the event comes from, such as "ai_streaming" with payload["text"], or
    "task_completed".
    """

    task_id: str
    seq: int
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    at: int = 0
    is_structural: bool = True

    TYPE_TASK_STARTED = "task_started"
    TYPE_TOOL_CALL_STARTED = "tool_call_started"
    TYPE_TOOL_CALL_COMPLETED = "tool_call_completed"
    TYPE_ARTIFACT_CREATED = "artifact_created"
    TYPE_TASK_COMPLETED = "task_completed"
    TYPE_TASK_FAILED = "task_failed"
    TYPE_AI_STREAMING = "ai_streaming"

    @classmethod
    def structural(cls, task_id: str, seq: int, kind: str, payload: Mapping[str, Any], at: int = 0) -> Self:
        """A skeleton event: durable before the call that wrote it returned."""
        return cls(task_id, seq, str(kind), payload, at, True)

    @classmethod
    def pulse(cls, task_id: str, after_seq: int, kind: str, payload: Mapping[str, Any], at: int = 0) -> Self:
        """A streamed event: batched, and dropped when it must be."""
        return cls(task_id, after_seq, str(kind), payload, at, False)

    def sse(self) -> str:
        """The event as one server-sent event; pulses carry no id, so a reconnect starts after the last durable one."""
        data = json.dumps({"task": self.task_id, **self.payload}, ensure_ascii=False, default=str)
        head = f"id: {self.seq}\n" if self.is_structural else ""
        return f"{head}event: {self.kind}\ndata: {data}\n\n"
