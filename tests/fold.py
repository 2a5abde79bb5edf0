"""A task told again from its events and its trace alone: what the row says must be what the story says.

The reference for the rule that state and story are written together. It knows the machine of states.py and nothing
of how a verb is carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.model.event import Event
from perdure.model.step import Step, StepKind
from perdure.model.task import Task, Usage
from perdure.policy.risk import Risk
from perdure.states import TASK, TaskStatus
from perdure.store import Store, events, tasks, traces

_TARGETS = {t.event: t.target for t in TASK.transitions if t.verb != "import"}
_KEEPS_OWNER = {TASK.event("claim"), TASK.event("wait"), TASK.event("restore")}


@dataclass(frozen=True, slots=True)
class Told:
    """What the story of a task says of it."""

    status: str
    owner: str | None  # the instance that holds it
    attempt: int
    failures: int
    recoveries: int
    error: str | None  # of its end
    risk_seen: str
    usage: Usage
    event_seq: int
    step_count: int


def fold(story: Sequence[Event], trace: Sequence[Step]) -> Told:
    """The task as its events and steps tell it, from the first on."""
    status, owner, error = "", None, None
    attempt = failures = recoveries = 0
    for event in story:
        if event.kind == "tool_call_completed":
            recoveries = 0
        if event.kind not in _TARGETS:
            continue
        status = _TARGETS[event.kind]
        if event.kind == TASK.event("suspend"):
            status = TaskStatus.PENDING if event.payload["due"] else TaskStatus.WAITING
        if event.kind == TASK.event("claim"):
            owner, attempt = event.payload["instance"], event.payload["attempt"]
        elif event.kind not in _KEEPS_OWNER:
            owner = None
        if event.kind == TASK.event("retry"):
            failures += 1
        elif event.kind == TASK.event("recover"):
            recoveries = event.payload["recoveries"]
        if TaskStatus(status).is_terminal:
            error = event.payload.get("error")
    calls = [step for step in trace if not step.is_note]
    return Told(
        status,
        owner,
        attempt,
        failures,
        recoveries,
        error,
        max((Risk.parse(step.risk) for step in calls if step.risk is not None), default=Risk.LOW).value,
        _usage(calls),
        story[-1].seq,
        len(trace),
    )


def row(task: Task, error: str | None) -> Told:
    """The same of the task's row."""
    usage = Usage(task.prompt_tokens, task.completion_tokens, task.cost, task.tool_calls, task.iterations)
    return Told(
        task.status.value,
        task.instance_id,
        task.attempt,
        task.failures,
        task.recoveries,
        error,
        task.risk_seen,
        usage,
        task.event_seq,
        task.step_count,
    )


def assert_story_is_state(store: Store, task_id: str) -> None:
    """The row of a task is what its events and steps tell, and their numbers have no gap."""
    story = store.read(events.feed, task_id, after=0, limit=1_000_000)
    trace = store.read(traces.read, task_id).steps
    task = store.read(tasks.get, task_id)
    error = store.read(tasks.read_error, task.error)

    assert [event.seq for event in story] == list(range(1, len(story) + 1))
    assert fold(story, trace) == row(task, None if error is None else str(error))


def _usage(calls: Sequence[Step]) -> Usage:
    total = Usage()
    for step in calls:
        total = total.plus(
            Usage(
                step.prompt_tokens,
                step.completion_tokens,
                step.cost,
                int(step.event_kind == StepKind.TOOL_CALL),
                int(step.event_kind == StepKind.MODEL_CALL),
            )
        )
    return total
