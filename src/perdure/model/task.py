"""A task: a piece of work given to an agent. An attempt: one execution of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from msgspec import Struct

from perdure.errors import Error
from perdure.states import AttemptStatus, TaskStatus

Row = tuple[Any, ...]


class Mode(StrEnum):
    """Whether the caller waits for the task or is told through its inbox."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


class Lane(StrEnum):
    """Main: a person is waiting. Subagent: background work, which never takes the main permits."""

    MAIN = "main"
    SUBAGENT = "subagent"


class WaitKind(StrEnum):
    """What a waiting task may wait for."""

    CHILDREN = "children"
    RECEIVE = "receive"
    TIMER = "timer"
    QUESTION = "question"


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing a task waits for; any one that happens wakes it.

    `keys` are task ids (children: all must have ended), the name received, or the question's id.
    `until_ms` is when the waiting is over anyhow; `step_key` is the call that waits.
    """

    kind: WaitKind
    keys: tuple[str, ...]
    step_key: str = ""
    until_ms: int | None = None


class Task(Struct, frozen=True):
    """A task's row, without its payloads."""

    # A struct: as a frozen dataclass one of so many fields took 12 us to make, as much as reading its row.

    n: int
    id: str
    session_id: str
    root_session_id: str
    root_task_id: str
    parent_task_id: str | None
    turn_id: str | None
    caller_agent_id: str
    caller_scope_id: str
    idempotency_key: str | None
    work_digest: str
    agent: str
    version: str
    definition_hash: str
    provider_profile: str | None
    provider_name: str | None
    model_id: str | None
    mode: Mode
    lane: Lane
    execution: str
    priority: int
    rank: int
    pause_requested_at: int | None
    depth: int
    plan_item_id: str | None
    signal_delivery: str | None
    risk: str
    risk_seen: str
    resume: str
    status: TaskStatus
    waiting_for: tuple[Wait, ...]
    available_at: int
    deadline_at: int | None
    execution_id: str | None
    instance_id: str | None
    generation: int
    attempt: int
    failures: int
    recoveries: int
    error: bytes | None
    result: bytes | None
    prompt_tokens: int
    completion_tokens: int
    cost: float
    tool_calls: int
    iterations: int
    completion_reserved: bool
    checkpoint: int | None
    last_tool_call_id: str | None
    forked_from: str | None
    origin: str
    event_seq: int
    step_count: int
    message_count: int
    replay_from: int
    revision: int
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.agent} {self.status}>"

    @property
    def task_id(self) -> str:
        """Its id, by the name that other rows call it."""
        return self.id

    @property
    def trace_id(self) -> str:
        """What its trace is found by: a task has one, under its own id."""
        return self.id

    @property
    def is_recoverable(self) -> bool:
        """True while a crash could have left the task as it is."""
        return self.status.is_recoverable

    @property
    def child_depth(self) -> int:
        """The depth of a child of this task."""
        return self.depth + 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a task, from claim to end. Never touched again once it has ended."""

    execution_id: str
    task_id: str
    number: int
    instance_id: str
    generation: int
    status: AttemptStatus
    error: bytes | None
    prompt_tokens: int
    completion_tokens: int
    cost: float
    tool_calls: int
    iterations: int
    started_at: int
    ended_at: int | None

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """Read a row selected with the columns of this class, in order."""
        return cls(*(*row[:5], AttemptStatus(row[5]), *row[6:]))


@dataclass(frozen=True, slots=True)
class TaskInput:
    """What a task was asked to do."""

    prompt: bytes
    context: bytes | None
    budget: str
    signal_contract: bytes | None
    tags: Mapping[str, str]
    metadata: Mapping[str, Any]


MOST_USED: Final = 10**15  # in one report, so that no sum over a task outgrows its column


class Usage(Struct, frozen=True, gc=False):
    """What was consumed: tokens bought, money, calls made, model rounds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    tool_calls: int = 0
    iterations: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cost + other.cost,
            self.tool_calls + other.tool_calls,
            self.iterations + other.iterations,
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed task: who owns it now, and the fence that proves it."""

    task: Task
    input: TaskInput
    execution_id: str
    generation: int

    @property
    def fence(self) -> Fence:
        """The proof that every later write of this attempt carries."""
        return Fence(self.task.id, self.execution_id, self.generation)


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of ownership: a write with a stale one is refused with LeaseLost."""

    task_id: str
    execution_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended, for whoever waits for it."""

    task_id: str
    status: TaskStatus
    result: bytes | None
    error: Error | None


def tail(text: str, ids: Sequence[str] = ()) -> str:
    """The short form of an id on a screen: an ellipsis and its last four characters, more if that is not unique."""
    others = set(ids) - {text}
    for length in range(4, len(text)):
        ending = text[-length:]
        if not any(other.endswith(ending) for other in others):
            return f"…{ending}"
    return text
