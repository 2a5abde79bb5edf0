"""Agents, tools and their calls as data, and the types under which callers see decorated functions.

Decides nothing and wraps nothing; that is `definitions`, which hands these names on to the rest of perdure.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from perdure.errors import BadInput
from perdure.policy.budget import Budget
from perdure.policy.risk import Risk

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Duration = float | timedelta
RiskWord = Literal["low", "medium", "high", "critical"]


# -- what is known of a callable ------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class AgentDefinition:
    """An agent: a named function with options."""

    name: str
    fn: Callable[..., Any]
    version: str = ""
    risk: Risk = Risk.LOW
    resume: Literal["auto", "ask"] = "auto"
    budget: Budget = field(default_factory=Budget)
    deadline_s: float | None = None
    retries: int = 3
    drift: Literal["ask", "error"] = "ask"

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; others get a thread of their own."""
        return inspect.iscoroutinefunction(self.fn)

    @property
    def definition_hash(self) -> str:
        """Digest of its code, stored with each task it runs."""
        code = getattr(self.fn, "__code__", None)
        seed = b"" if code is None else code.co_code + repr(code.co_names).encode()
        return hashlib.sha256(seed).hexdigest()[:16]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ToolDefinition:
    """A tool: a function that may change the world, with what its author promises of it."""

    name: str
    fn: Callable[..., Any]
    risk: Risk | Callable[..., str] = Risk.HIGH
    idempotent: bool = False
    approve: bool | Callable[..., bool] = False
    to: str = ""
    reconcile: Callable[..., Any] | None = None
    timeout_s: float | None = None
    retries: int | None = None
    ambiguous: tuple[type[BaseException], ...] = ()
    secret: tuple[str, ...] = ()

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; others run in threads."""
        return inspect.iscoroutinefunction(self.fn)

    def risk_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Risk:
        """The risk of one call. Raises BadInput for an unknown word, and for medium without `idempotent=True`."""
        risk = self.risk if isinstance(self.risk, Risk) else Risk.parse(self.risk(*args, **kwargs))
        if risk is Risk.MEDIUM and not self.idempotent:
            raise BadInput(
                f"{self.name} is medium risk without idempotent=True: say that one token has one effect, or declare "
                "it high",
                field="risk",
            )
        return risk


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What a caller asks of one task."""

    key: str | None = None
    background: bool = False
    deadline: float | datetime | None = None
    delay_s: float = 0.0
    budget: Budget | None = None
    priority: int = 0
    item: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a caller asks of one call."""

    key: str | None = None
    timeout_s: float | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True)
class AgentCall:
    """An agent with its arguments, about to become a task."""

    definition: AgentDefinition
    options: AgentOptions
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool with its arguments, about to run."""

    definition: ToolDefinition
    options: CallOptions
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Bound(Generic[R_co]):
    """An agent or a tool with its arguments, not started yet: `agent.bind(…)`."""

    __slots__ = ("call",)

    def __init__(self, call: AgentCall | ToolCall) -> None:
        self.call = call


# -- types of the decorated functions -------------------------------------------------------


class Tool(Protocol[P, R_co]):
    """A decorated tool: the function itself, with options."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def options(
        self, *, key: str | None = None, timeout: Duration | None = None, retries: int | None = None
    ) -> Tool[P, R_co]:
        """The same tool with a key, a timeout (seconds) or other retries for its next call."""
        ...

    @overload
    def bind(self: Tool[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Bound[R]: ...
    @overload
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R_co]: ...
    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[Any]:
        """The tool with arguments, not called yet: what `gather` takes."""
        ...


AnyTool = Tool[..., Any]


class Agent(Protocol[P, R_co]):
    """A decorated asynchronous agent."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    def options(
        self,
        *,
        key: str | None = None,
        background: bool = False,
        deadline: Duration | datetime | None = None,
        delay: Duration | None = None,
        budget: Budget | None = None,
        priority: int | None = None,
        item: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Agent[P, R_co]:
        """The same agent with options for its next task. Durations in seconds, instants aware."""
        ...

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R_co]:
        """The agent with arguments, not started yet."""
        ...


class SyncAgent(Protocol[P, R_co]):
    """A decorated synchronous agent."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def options(
        self,
        *,
        key: str | None = None,
        background: bool = False,
        deadline: Duration | datetime | None = None,
        delay: Duration | None = None,
        budget: Budget | None = None,
        priority: int | None = None,
        item: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> SyncAgent[P, R_co]:
        """The same agent with options for its next task."""
        ...

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R_co]:
        """The agent with arguments, not started yet."""
        ...


class Startable(Protocol[P, R_co]):
    """Anything that can become a task: an asynchronous or a synchronous agent."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R_co]: ...


class AgentDecorator(Protocol):
    """`@agent(…)` with options."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncAgent[P, R]: ...


class ToolDecorator(Protocol):
    """`@tool(…)` with options."""

    def __call__(self, fn: Callable[P, R], /) -> Tool[P, R]: ...
