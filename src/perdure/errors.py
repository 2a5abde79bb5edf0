"""Every error perdure raises, in one tree.

    PerdureError
    ├── BadInput                  refused before anything was written: names the field
    │   ├── NotSerializable       a value that cannot be stored, with the path to it
    │   ├── KeyConflict           this key already belongs to other work
    │   └── AmbiguousStep         two calls that a replay could not tell apart
    ├── Refused                   a limit or a policy says no, with every violated limit
    │   ├── BudgetExceeded        a budget is used up
    │   └── InboxFull             no free completion slot
    ├── NotFound                  no row with this id
    ├── NotInTask                 works only inside a task
    ├── NoTaskContext             a dangerous tool was called where its task cannot be known
    ├── WrongThread               a blocking call on the event loop, or the reverse
    ├── IllegalTransition         the move is not in states.py
    ├── Drift                     the code no longer makes the calls that were recorded
    ├── BadDelivery               what was sent is not of the type that `receive` wants
    ├── Expired                   nobody answered in time
    ├── Denied                    a person said no
    ├── ToolError                 a tool failed, live or replayed: the same stand-in
    │   └── OutcomeUnknown        someone gave up finding out whether the call happened
    ├── TaskFailed                the awaited task ended without a result
    │   ├── TaskTimedOut
    │   └── TaskCancelled
    └── StoreError                the database could not do it
        ├── StoreBusy             another process holds the writer lock
        ├── StoreFull             no space left
        ├── RefusedBySchema       a value that the tables do not take
        ├── StoreClosed           closed, or closed itself after a failed commit
        ├── CommitUnknown         the commit may or may not have happened
        ├── LeaseLost             this attempt no longer owns its task
        ├── ForkedStore           used in a child after fork
        ├── SchemaTooNew          written by a newer perdure
        ├── Damaged               the file is not what it should be
        └── NetworkFileSystem     the file lies where locks cannot be trusted

    NotApplied                    raised by a tool: nothing happened, running it again is safe
    Suspend, Cancelled            BaseException, only in synchronous agents: let them pass

A message says what happened, what holds now, and what to do; ids are attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class PerdureError(Exception):
    """The root: catch this to catch everything perdure raises on purpose."""


@dataclass(frozen=True, slots=True)
class Error:
    """How something failed, as data: the class name, its text, and retriable, permanent or unknown.

    `place` is where in the code it came up, as `file:line in function`; "" where that is not known. `base` names what
    the class derives from where no module has the class under its name, as those that are made at run time.
    """

    type: str
    message: str
    error_class: str = "unknown"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)
    base: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """The error as it is recorded."""
        return {
            "type": self.type,
            "message": self.message,
            "class": self.error_class,
            "attributes": dict(self.attributes),
            **({"place": self.place} if self.place else {}),
            **({"base": self.base} if self.base else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Error:
        """The reverse of `to_json`."""
        more = value.get("attributes", {}), value.get("place", ""), value.get("base", "")
        return cls(value["type"], value["message"], value["class"], *more)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


# -- refused before a write -----------------------------------------------------------------


class BadInput(PerdureError, ValueError):
    """The input was refused and nothing was written. `field` names what was wrong."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotSerializable(BadInput):
    """A value that would not come back equal from the store. `path` leads to it, from `$`."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message, field=path)
        self.path = path


class KeyConflict(BadInput):
    """The key is taken by other work; the message names the difference."""

    def __init__(self, message: str, *, key: str, existing: Sequence[str] = ()) -> None:
        super().__init__(message, field="key")
        self.key = key
        self.existing = tuple(existing)


class AmbiguousStep(BadInput):
    """A call could not be told from another one after a restart, which could swap their results."""


class Refused(PerdureError):
    """A limit or policy said no. `limits` lists every one that was violated, `chain` the parents."""

    def __init__(self, message: str, *, limits: Sequence[str] = (), chain: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.limits = tuple(limits)
        self.chain = tuple(chain)


class BudgetExceeded(Refused):
    """A budget is used up. Catch it to end in good order; uncaught, the task fails."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message, limits=(limit,))
        self.limit = limit


class InboxFull(Refused):
    """No free completion slot: names capacity, pending and reserved."""


class NotFound(PerdureError, LookupError):
    """There is no such row."""


class NotInTask(PerdureError):
    """Only code that runs inside a task can do this."""


class NoTaskContext(PerdureError):
    """A tool above low risk was called in a thread that lost its task; wrap it with `perdure.carry`."""


class WrongThread(PerdureError):
    """A blocking call was made on the event loop, or an asynchronous one outside it."""


class IllegalTransition(PerdureError):
    """The verb does not start from the status the row is in; nothing changed."""

    def __init__(self, message: str, *, id: str = "", verb: str = "", status: str = "") -> None:
        super().__init__(message)
        self.id = id
        self.verb = verb
        self.status = status


# -- raised in agents -----------------------------------------------------------------------


class Drift(PerdureError):
    """The code made a call that fits no record while a recorded call of that name lies unused."""


DriftError = Drift


class BadDelivery(PerdureError, ValueError):
    """What was sent is not of the type that `receive` wants. It is taken: `payload` is what came under `name`."""

    def __init__(self, message: str, *, name: str = "", payload: Any = None) -> None:
        super().__init__(message)
        self.name = name
        self.payload = payload


class Expired(PerdureError):
    """The question's time ran out; nobody said no."""


class Denied(PerdureError):
    """A person refused."""

    def __init__(self, reason: str = "", by: str = "") -> None:
        super().__init__(f"denied by {by or 'a person'}" + (f": {reason}" if reason else ""))
        self.reason = reason
        self.by = by


class ToolError(PerdureError):
    """A tool failed. Live and on replay the same stand-in: also caught by `except TheOriginalClass`."""

    def __init__(self, message: str = "", *, tool: str = "", type: str = "") -> None:
        super().__init__(message)
        self.tool = tool
        self.type = type
        self.message = message


class OutcomeUnknown(ToolError):
    """Someone gave up finding out whether the call happened."""


class NotApplied(Exception):
    """Raise it in a tool to say that nothing happened, so that running it again is safe."""


class TaskFailed(PerdureError):
    """The task ended without a result."""

    def __init__(self, task_id: str, error: Error) -> None:
        super().__init__(f"task {task_id} {self._said(error)}" + (f" ({error.place})" if error.place else ""))
        self.task_id = task_id
        self.error = error

    @staticmethod
    def _said(error: Error) -> str:
        return f"failed: {error}"


class TaskTimedOut(TaskFailed):
    """The deadline passed first."""

    @staticmethod
    def _said(error: Error) -> str:
        return f"timed out: {error.message}"


class TaskCancelled(TaskFailed):
    """Someone cancelled the task."""

    @staticmethod
    def _said(error: Error) -> str:
        return "was cancelled" if error.message in ("", "cancelled") else f"was cancelled: {error.message}"


class Suspend(BaseException):
    """A synchronous agent is set aside; it runs again from its records. Let it pass."""


class Cancelled(BaseException):
    """A synchronous agent's task was cancelled, or the call that this code runs in was cut off. Let it pass."""


# -- the store ------------------------------------------------------------------------------


class StoreError(PerdureError):
    """The database could not do it. Ends an attempt by cancellation: agent code catches none but RefusedBySchema."""


class StoreBusy(StoreError):
    """Another process held the writer lock for longer than `busy_s`. Nothing was written."""

    def __init__(self, message: str, *, holder_pid: int | None = None, holder_frozen: bool = False) -> None:
        super().__init__(message)
        self.holder_pid = holder_pid
        self.holder_frozen = holder_frozen


class StoreFull(StoreError):
    """No space is left. Nothing of the transaction was written; goes on once there is space."""


class RefusedBySchema(StoreError):
    """The tables do not take a value; the message is what the database said. Nothing was written.

    The store goes on, so agent code gets this where it made the call; the same write would be refused again.
    """


class StoreClosed(StoreError):
    """The store is closed; open it anew."""


class CommitUnknown(StoreError):
    """The commit failed half-way: it may or may not have happened. Found again by its key after reopening."""


class LeaseLost(StoreError):
    """The fence failed: another attempt owns the task, or it has ended. Stop; nothing was written."""

    def __init__(self, message: str, *, task_id: str = "", execution_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id
        self.execution_id = execution_id


class ForkedStore(StoreError):
    """A store must not be used in a child process after fork, nor a SQLite file that was open then be opened there."""


class SchemaTooNew(StoreError):
    """A newer perdure wrote this database; it was left unchanged."""


class Damaged(StoreError):
    """The database is not what it should be; it was left unchanged."""


class NetworkFileSystem(StoreError):
    """SQLite's locks cannot be trusted on a network file system."""


class InvariantError(PerdureError, AssertionError):
    """Something that must always hold does not. A bug in perdure, or a damaged database."""
