"""The names of `perdure`, blocking, for synchronous agents: `import perdure.sync as perdure`.

    @perdure.tool(risk="low")
    def search(query: str) -> list[str]: ...

    @perdure.agent
    def researcher(topic: str) -> str: ...

    print(perdure.App("agents.db", agents=[researcher]).run(researcher, "owls"))

Nothing here is awaited, and nothing here may be called on an event loop. Inside a task each call waits for its
asynchronous twin on the task's loop; when the task is set aside or cancelled it raises Suspend or Cancelled, which are
no Exceptions: let them pass.
"""

from perdure.ambient import carry
from perdure.client import Page
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
from perdure.model.event import Event
from perdure.model.message import Message
from perdure.model.task import Task
from perdure.policy.budget import Budget
from perdure.policy.risk import Risk
from perdure.runtime.context import Context, current, deps, stream, usage
from perdure.runtime.doubts import Doubt, Verdict, happened, not_happened, unknown
from perdure.settings import Settings
from perdure.sync.calls import (
    artifact,
    ask,
    call,
    checkpoint,
    event,
    gather,
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
    uuid,
)
from perdure.sync.client import App, Client, Question, TaskHandle

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
    return list(__all__)
