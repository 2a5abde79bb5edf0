"""The context that agent code runs in, carried by a context variable: nothing is passed on by hand.

Definitions and public functions talk to whatever stands here; the runtime puts its attempt in.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import ref

from msgspec import Struct, field

from perdure.errors import NoTaskContext, NotInTask

if TYPE_CHECKING:
    from perdure.callables import AgentCall, ToolCall

P = ParamSpec("P")
R = TypeVar("R")

CUT_OFF = "the call around this one has been cut off"


class Runner(Protocol):
    """An attempt, as code inside it sees it."""

    async def call_tool(self, call: ToolCall) -> Any:
        """Record and run a tool."""
        ...

    async def call_agent(self, call: AgentCall) -> Any:
        """Run an agent as a child task and wait for it."""
        ...

    def block_on(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """From a thread of the attempt: run a coroutine on its loop and wait."""
        ...

    @property
    def is_on_loop(self) -> bool:
        """Whether the caller is on the attempt's event loop."""
        ...


class Scope(Struct):
    """Where the running code stands: in which attempt, inside which recorded call."""

    runner: Runner
    parent_key: str = ""
    token: str = ""
    usage: list[Mapping[str, float]] = field(default_factory=list)
    secrets: tuple[str, ...] = ()  # masked in all that is called or told inside, too
    around: Scope | None = None  # of the call that made this one
    is_look: bool = False  # inside reconcile: what is called there is called afresh, and stands on no record
    has_returned: bool = False  # what it left running begins nothing once the attempt ends
    is_over: bool = False  # it was cut off, or is tried again
    main: ref[asyncio.Task[Any]] | None = None  # runs it, one call after the other; None where a thread does
    main_has_called: bool = False  # so that it is noted once that it does

    def runs_in(self, task: asyncio.Task[Any] | None) -> None:
        """What runs it. Held weakly, for the task holds its context and that holds this."""
        self.main = None if task is None else ref(task)

    @property
    def is_cut_off(self) -> bool:
        """Whether this call, or one around it, is over: whatever of it still runs makes no calls any more."""
        scope: Scope | None = self
        while scope is not None and not scope.is_over:
            scope = scope.around
        return scope is not None


current: ContextVar[Scope | None] = ContextVar("perdure_scope", default=None)  # read at once where each call comes by


# What a branch has called so far, that is code of a scope in an asyncio task beside the one that runs it.
_branch: ContextVar[tuple[Scope, bytes] | None] = ContextVar("perdure_branch", default=None)
_FRESH = b"branch"


def branch(scope: Scope, task: asyncio.Task[Any] | None) -> bytes | None:
    """A digest of what the running branch of this scope, that is `task`, has called so far; None outside branches."""
    if scope.main is None or task is scope.main():
        return None
    known = _branch.get()
    return known[1] if known is not None and known[0] is scope else _FRESH


def go_on(scope: Scope, before: bytes, told: bytes) -> None:
    """The running branch has called this, too; so have those that it begins from here on."""
    _branch.set((scope, hashlib.blake2b(before + told, digest_size=8).digest()))


def go_back(scope: Scope, before: bytes) -> None:
    """What the running branch called last was cut off and leaves no record: a replay does not come to it."""
    _branch.set((scope, before))


def scope() -> Scope | None:
    """The present scope, or None outside a task."""
    return current.get()


def secrets() -> tuple[str, ...]:
    """Texts that nothing said by the running code may hold once it is written down."""
    found = current.get()
    return () if found is None else found.secrets


def require(what: str) -> Scope:
    """The present scope. Raises NotInTask naming what needs one."""
    found = current.get()
    if found is None:
        raise NotInTask(f"{what} works only inside a task: call it from an agent that a worker runs")
    return found


def refuse_cut_off() -> None:
    """Raise CancelledError inside a call that was cut off, or inside one around which that happened."""
    found = current.get()
    if found is not None and found.is_cut_off:
        raise asyncio.CancelledError(CUT_OFF)


def enter(new: Scope) -> contextvars.Token[Scope | None]:
    """Make `new` the present scope of this context."""
    return current.set(new)


def carry(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, taking the present task along into a thread that would lose it (an executor, `threading.Thread`)."""
    context = contextvars.copy_context()

    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(fn, *args, **kwargs)

    return carried


class RunningAttempts:
    """How many attempts this process runs: while it runs any, a dangerous tool without a task is refused."""

    def __init__(self) -> None:
        self._count = 0
        self._mutex = threading.Lock()

    def __enter__(self) -> None:
        with self._mutex:
            self._count += 1

    def __exit__(self, *exc: object) -> None:
        with self._mutex:
            self._count -= 1

    def refuse_lost(self, tool: str) -> None:
        """Raise NoTaskContext while attempts run: the call may belong to one of them."""
        if self._count:
            raise NoTaskContext(
                f"{tool} is above low risk and was called without its task while this process runs tasks: the thread "
                f"has lost the context. Hand it on: executor.submit(perdure.carry({tool}), …), or await perdure.call."
            )


# One per process, as a thread that lost its context can find nothing nearer.
running_attempts = RunningAttempts()
