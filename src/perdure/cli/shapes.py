"""What stored rows look like as plain JSON, for `--json`: full ids, times in milliseconds UTC, values without tags."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from perdure import codec
from perdure.errors import Error
from perdure.model.message import Message
from perdure.model.question import Question
from perdure.model.step import Step
from perdure.model.task import Attempt, Task
from perdure.people import Settled

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def plain(value: object) -> Json:
    """Any value as plain JSON; what has no encoding becomes a mark."""
    return plain_body(codec.evidence(value))


def plain_body(body: bytes | None) -> Json:
    """Canonical JSON without the tags that keep its types."""
    return None if body is None else _untag(json.loads(body))


def task_shape(task: Task, because: str = "") -> dict[str, Json]:
    """A task's row."""
    return {
        "id": task.id,
        "agent": task.agent,
        "status": task.status.value,
        "because": because,
        "session": task.session_id,
        "parent": task.parent_task_id,
        "key": task.idempotency_key,
        "origin": task.origin,
        "risk": task.risk,
        "risk_seen": task.risk_seen,
        "attempt": task.attempt,
        "failures": task.failures,
        "recoveries": task.recoveries,
        "steps": task.step_count,
        "messages": task.message_count,
        "model_calls": task.iterations,
        "tool_calls": task.tool_calls,
        "prompt_tokens": task.prompt_tokens,
        "completion_tokens": task.completion_tokens,
        "cost": task.cost,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
        "deadline_at": task.deadline_at,
    }


def question_shape(
    question: Question, evidence: object, *, answer: object = None, cancelled_by: str = ""
) -> dict[str, Json]:
    """A question's row with what it rests on."""
    return {
        "id": question.id,
        "kind": question.kind.value,
        "task": question.task_id,
        "agent": question.agent,
        "to": question.to,
        "text": question.text,
        "status": question.status.value,
        "evidence": plain(evidence),
        "answer": plain(answer),
        "answered_by": question.answered_by,
        "cancelled_by": cancelled_by or None,
        "reason": question.reason,
        "created_at": question.created_at,
        "expires_at": question.expires_at,
        "answered_at": question.answered_at,
    }


def step_shape(step: Step, given: Any, settled: Settled | None = None) -> dict[str, Json]:
    """A record of a trace, with its input and outcome, and who settled it, where somebody did."""
    return {
        "task": step.task_id,
        "step": step.step_index,
        "kind": step.event_kind,
        "name": step.name,
        "risk": step.risk,
        "input": plain(given),
        "outcome": step.outcome,
        "output": plain_body(step.output),
        "settled_by": None if settled is None else settled.by,
        "settled_because": None if settled is None else settled.because,
        "attempt": step.attempt,
        "child": step.child_task_id,
        "tool_call_id": step.tool_call_id,
        "prompt_tokens": step.prompt_tokens,
        "completion_tokens": step.completion_tokens,
        "began_at": step.timestamp,
        "ended_at": step.ended_at,
    }


def message_shape(message: Message) -> dict[str, Json]:
    """A line of a transcript."""
    return {
        "seq": message.seq,
        "role": message.role,
        "content": plain(message.content),
        "reasoning": message.reasoning,
        "tool_call_id": message.tool_call_id,
        "tool_name": message.tool_name,
        "tool_calls": plain(message.tool_calls),
        "at_step": message.at_step,
        "created_at": message.created_at,
    }


def error_shape(error: Error | None) -> dict[str, Json]:
    """How something failed, and where in the code."""
    return {"error": None if error is None else str(error), "error_at": None if error is None else error.place or None}


def end_shape(error: Error | None, by: str) -> dict[str, Json]:
    """How a task failed, and who ended it and why, where somebody did."""
    because = error.message if error is not None and by else None
    return {**error_shape(error), "ended_by": by or None, "ended_because": because}


def attempt_shape(attempt: Attempt, error: Error | None) -> dict[str, Json]:
    """One execution."""
    return {
        "number": attempt.number,
        "status": attempt.status.value,
        "instance": attempt.instance_id,
        **error_shape(error),
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
    }


def _untag(value: Any) -> Json:
    match value:
        case {codec.TAG: _, "v": inner}:
            return _untag(inner)
        case dict():
            return {key: _untag(part) for key, part in value.items()}
        case list():
            return [_untag(part) for part in value]
        case _:
            return value  # type: ignore[no-any-return]  # parsed JSON
