"""Durable state and recovery for multi-agent systems.

import perdure

@perdure.tool(risk="low")
async def search(query: str) -> list[str]: ...

@perdure.agent
async def researcher(topic: str) -> str: ...

app = perdure.App("agents.db", agents=[researcher])
"""

from perdure.ambient import carry
from perdure.app import App
from perdure.client import Client, Page, Question, TaskHandle
from perdure.definitions import Agent, AnyTool, Bound, Duration, Startable, SyncAgent, Tool, agent, tool
from perdure.errors import (
    AmbiguousStep,
    BadDelivery,
    BadInput,
    BudgetExceeded,
    Cancelled,
    CommitUnknown,
    Denied,
    Drift,
    DriftError,
    Error,
    Expired,
    KeyConflict,
    LeaseLost,
    NotApplied,
    NoTaskContext,
    NotFound,
    NotInTask,
    NotSerializable,
    OutcomeUnknown,
    PerdureError,
    Refused,
    RefusedBySchema,
    StoreError,
    Suspend,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    ToolError,
)
from perdure.gathering import gather
from perdure.model.event import Event
from perdure.model.message import Message
from perdure.model.task import Task
from perdure.policy.budget import Budget
from perdure.policy.risk import Risk
from perdure.runtime.context import (
    Context,
    artifact,
    ask,
    call,
    checkpoint,
    current,
    deps,
    event,
    last_checkpoint,
    message,
    model,
    now,
    random,
    read,
    read_artifact,
    receive,
    sleep,
    step,
    stream,
    usage,
    uuid,
)
from perdure.runtime.doubts import Doubt, Verdict, happened, not_happened, unknown
from perdure.settings import Settings
from perdure.version import __version__ as __version__

__all__ = [
    "Agent",
    "AmbiguousStep",
    "AnyTool",
    "App",
    "BadDelivery",
    "BadInput",
    "Bound",
    "Budget",
    "BudgetExceeded",
    "Cancelled",
    "Client",
    "CommitUnknown",
    "Context",
    "Denied",
    "Doubt",
    "Drift",
    "DriftError",
    "Duration",
    "Error",
    "Event",
    "Expired",
    "KeyConflict",
    "LeaseLost",
    "Message",
    "NoTaskContext",
    "NotApplied",
    "NotFound",
    "NotInTask",
    "NotSerializable",
    "OutcomeUnknown",
    "Page",
    "PerdureError",
    "Question",
    "Refused",
    "RefusedBySchema",
    "Risk",
    "Settings",
    "Startable",
    "StoreError",
    "Suspend",
    "SyncAgent",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskTimedOut",
    "Tool",
    "ToolError",
    "Verdict",
    "agent",
    "artifact",
    "ask",
    "call",
    "carry",
    "checkpoint",
    "current",
    "deps",
    "event",
    "gather",
    "happened",
    "last_checkpoint",
    "message",
    "model",
    "not_happened",
    "now",
    "random",
    "read",
    "read_artifact",
    "receive",
    "sleep",
    "step",
    "stream",
    "tool",
    "unknown",
    "usage",
    "uuid",
]


def __dir__() -> list[str]:
    """The public names alone: the modules below this one are not part of the promise."""
    return [*__all__, "__version__"]
