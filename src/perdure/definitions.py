"""`@agent` and `@tool`: plain functions with options, and what a process knows of them. Touches no file.

A decorated function stays a real function: same coroutine flag, signature and docstring, for frameworks inspect
them. Outside a task it simply runs. Inside one it hands itself to the attempt that stands in `ambient`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, ParamSpec, TypeVar, overload

from perdure import ambient
from perdure.callables import (
    Agent,
    AgentCall,
    AgentDecorator,
    AgentDefinition,
    AgentOptions,
    AnyTool,
    Bound,
    CallOptions,
    Duration,
    RiskWord,
    Startable,
    SyncAgent,
    Tool,
    ToolCall,
    ToolDecorator,
    ToolDefinition,
)
from perdure.codec import ANY
from perdure.errors import BadInput, WrongThread
from perdure.policy.budget import Budget
from perdure.policy.lanes import check_priority
from perdure.policy.risk import Risk

P = ParamSpec("P")
R = TypeVar("R")

MARK = "__perdure__"

__all__ = [
    "MARK",
    "Agent",
    "AgentCall",
    "AgentDefinition",
    "AgentOptions",
    "AnyTool",
    "Bound",
    "CallOptions",
    "Duration",
    "RiskWord",
    "Startable",
    "SyncAgent",
    "Tool",
    "ToolCall",
    "ToolDefinition",
    "agent",
    "bind_arguments",
    "call_of",
    "definition_of",
    "hints",
    "instant_ms",
    "is_agent_call",
    "returns",
    "seconds",
    "tool",
    "unbind_arguments",
]


# -- the decorators -------------------------------------------------------------------------


@overload
def agent(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Agent[P, R]: ...
@overload
def agent(fn: Callable[P, R], /) -> SyncAgent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    version: str | None = None,
    risk: RiskWord | None = None,
    resume: Literal["auto", "ask"] = "auto",
    budget: Budget | None = None,
    deadline: Duration | None = None,
    retries: int = 3,
    drift: Literal["ask", "error"] = "ask",
) -> AgentDecorator: ...
def agent(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    risk: RiskWord | None = None,
    resume: Literal["auto", "ask"] = "auto",
    budget: Budget | None = None,
    deadline: Duration | None = None,
    retries: int = 3,
    drift: Literal["ask", "error"] = "ask",
) -> Any:
    """Make a function an agent: called inside a task it is a child task, started by a client a task of its own.

    `version` pins its tasks to workers that have this version. `risk` high or critical, or `resume="ask"`, asks a
    person before a crashed task goes on. `deadline` in seconds from the start. `retries`: further attempts after an
    error that is not final. `drift="error"` raises where new code no longer fits the records, instead of asking.
    """
    if resume not in ("auto", "ask"):
        raise BadInput(f"resume is {resume!r}; give 'auto' or 'ask'", field="resume")
    if drift not in ("ask", "error"):
        raise BadInput(f"drift is {drift!r}; give 'ask' or 'error'", field="drift")

    def decorate(function: Callable[..., Any]) -> Any:
        _check_function(function, "agent")
        return _wrap_agent(
            AgentDefinition(
                name or function.__name__,
                function,
                version or "",
                Risk.parse(risk) if risk else Risk.LOW,
                resume,
                budget or Budget(),
                None if deadline is None else seconds(deadline, "deadline"),
                _count(retries, "retries"),
                drift,
            ),
            AgentOptions(),
        )

    return decorate if fn is None else decorate(fn)


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    risk: RiskWord | Callable[..., RiskWord] = "high",
    idempotent: bool = False,
    approve: bool | Callable[..., bool] = False,
    to: str = "",
    reconcile: Callable[..., Any] | None = None,
    timeout: Duration | None = None,
    retries: int | None = None,
    ambiguous: tuple[type[BaseException], ...] = (),
    name: str | None = None,
    secret: Sequence[str] = (),
) -> ToolDecorator: ...
def tool(
    fn: Any = None,
    /,
    *,
    risk: RiskWord | Callable[..., RiskWord] = "high",
    idempotent: bool = False,
    approve: bool | Callable[..., bool] = False,
    to: str = "",
    reconcile: Callable[..., Any] | None = None,
    timeout: Duration | None = None,
    retries: int | None = None,
    ambiguous: tuple[type[BaseException], ...] = (),
    name: str | None = None,
    secret: Sequence[str] = (),
) -> Any:
    """Make a function a tool: inside a task each call of it is recorded. Undeclared risk is high.

    `risk` may be a function of the arguments. `idempotent=True` promises that one `current().token` has one effect.
    `approve` asks `to` before the call. `reconcile(doubt)` finds out what happened to a call that was cut off.
    `timeout` in seconds; a call from high risk up that it cuts off, or that raises one of `ambiguous`, is in doubt.
    Arguments named in `secret` never reach the store.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        _check_function(function, "tool")
        definition = ToolDefinition(
            name or function.__name__,
            function,
            Risk.parse(risk) if isinstance(risk, str) else risk,
            idempotent,
            approve,
            to,
            reconcile,
            None if timeout is None else seconds(timeout, "timeout"),
            None if retries is None else _count(retries, "retries"),
            tuple(ambiguous),
            (secret,) if isinstance(secret, str) else tuple(secret),
        )
        _check_tool(definition)
        return _wrap_tool(definition, CallOptions())

    return decorate if fn is None else decorate(fn)


def definition_of(thing: object) -> AgentDefinition | ToolDefinition | None:
    """What perdure knows of a decorated function, or None."""
    return getattr(thing, MARK, None)


def call_of(thing: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> AgentCall | ToolCall:
    """A decorated function (or one that was bound already) with its arguments. Raises BadInput for anything else."""
    if isinstance(thing, Bound):
        return thing.call
    bind = getattr(thing, "bind", None)
    if definition_of(thing) is None or bind is None:
        raise BadInput(f"{_called(thing)} is neither an agent nor a tool; decorate it", field="agent")
    bound: Bound[Any] = bind(*args, **(kwargs or {}))
    return bound.call


def is_agent_call(awaitable: object) -> bool:
    """Whether this is the coroutine of a decorated agent, not awaited yet."""
    return getattr(awaitable, "cr_code", None) in _AGENT_CODES


def bind_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, so that equal calls look equal however they are written."""
    found = _bind_plainly(fn, args, kwargs)
    if found is not None:
        return found
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and _has_signature(fn):
            raise BadInput(f"{_called(fn)}: {error}", field="arguments") from None
        return {"args": list(args), **kwargs}  # Some C functions tell no signature.
    found = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
    return found


def unbind_arguments(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reverse of `bind_arguments`: what to call the function with."""
    signature = inspect.signature(fn)
    rest = dict(arguments)
    bound = signature.bind_partial()
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in rest:
            value = rest.pop(name)
            bound.arguments[name] = tuple(value) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else value
    return bound.args, {**bound.kwargs, **rest}


def _bind_plainly(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The same for the commonest call: a plain function, and arguments that fit it in order. None for all others.

    Read off the code object, since `inspect.signature` takes 25 us and this 1; not kept by function, for that would
    keep alive whatever a lambda holds.
    """
    if kwargs or type(fn) is not types.FunctionType or fn.__dict__:
        return None  # `__wrapped__` and `__signature__` lie in the dict, and may say something else.
    code, defaults = fn.__code__, fn.__defaults__
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount
    least = code.co_argcount - (0 if defaults is None else len(defaults))
    if takes_more or not least <= len(args) <= code.co_argcount:
        return None
    return dict(zip(code.co_varnames, args, strict=False))  # Arguments are the first of its variables.


@functools.lru_cache(maxsize=4096)
def hints(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's annotations, or none when they cannot be resolved."""
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001  # Names that exist only for type checkers: then the recorded class decides.
        return {}


def returns(fn: Callable[..., Any]) -> Any:
    """What a function says it returns; ANY when it does not say."""
    if type(fn) is types.FunctionType and not fn.__annotations__ and not fn.__dict__:
        return ANY  # Most lambdas: not looked up, since `hints` would keep alive whatever they hold.
    try:
        return hints(fn).get("return", ANY)
    except TypeError:  # Not hashable.
        return ANY


def seconds(duration: Duration, name: str) -> float:
    """A duration as seconds. Raises BadInput for what is none."""
    value: object = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise BadInput(f"{name} is {duration!r}; give seconds, not below 0, or a timedelta", field=name)
    return float(value)


def instant_ms(moment: datetime, name: str) -> int:
    """An aware datetime as milliseconds UTC. Raises BadInput for a naive one."""
    if moment.tzinfo is None:
        raise BadInput(f"{name} is a naive datetime; give it a zone, for example datetime.now(UTC)", field=name)
    return int(moment.astimezone(UTC).timestamp() * 1000)


# -- wrapping -------------------------------------------------------------------------------


def _wrap_agent(definition: AgentDefinition, options: AgentOptions) -> Any:
    fn = definition.fn

    if definition.is_async:

        @functools.wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                return await fn(*args, **kwargs)
            return await scope.runner.call_agent(AgentCall(definition, options, args, kwargs))

        wrapped: Any = call_async
    else:

        @functools.wraps(fn)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                return fn(*args, **kwargs)
            _refuse_on_loop(scope, definition.name)
            return scope.runner.block_on(lambda: scope.runner.call_agent(AgentCall(definition, options, args, kwargs)))

        wrapped = call_sync

    def bind(*args: Any, **kwargs: Any) -> Bound[Any]:
        bind_arguments(fn, args, kwargs)
        return Bound(AgentCall(definition, options, args, kwargs))

    def with_options(
        *,
        key: str | None = None,
        background: bool = False,
        deadline: Duration | datetime | None = None,
        delay: Duration | None = None,
        budget: Budget | None = None,
        priority: int | None = None,
        item: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Any:
        if deadline is not None and not isinstance(deadline, datetime):
            deadline = seconds(deadline, "deadline")
        if isinstance(deadline, datetime):
            instant_ms(deadline, "deadline")
        return _wrap_agent(
            definition,
            replace(
                options,
                key=options.key if key is None else key,
                background=background or options.background,
                deadline=options.deadline if deadline is None else deadline,
                delay_s=options.delay_s if delay is None else seconds(delay, "delay"),
                budget=options.budget if budget is None else budget,
                priority=options.priority if priority is None else check_priority(priority),
                item=options.item if item is None else item,
                tags=options.tags if tags is None else dict(tags),
            ),
        )

    wrapped.bind, wrapped.options = bind, with_options
    setattr(wrapped, MARK, definition)
    return wrapped


# Every wrapper of an asynchronous agent shares the code object that stands in `_wrap_agent`.
_AGENT_CODES = frozenset(
    code for code in _wrap_agent.__code__.co_consts if getattr(code, "co_name", "") == "call_async"
)


def _wrap_tool(definition: ToolDefinition, options: CallOptions) -> Any:
    fn = definition.fn

    if definition.is_async:

        @functools.wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                _refuse_lost(definition, args, kwargs)
                return await fn(*args, **kwargs)
            return await scope.runner.call_tool(ToolCall(definition, options, args, kwargs))

        wrapped: Any = call_async
    else:

        @functools.wraps(fn)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                _refuse_lost(definition, args, kwargs)
                return fn(*args, **kwargs)
            _refuse_on_loop(scope, definition.name)
            return scope.runner.block_on(lambda: scope.runner.call_tool(ToolCall(definition, options, args, kwargs)))

        wrapped = call_sync

    def bind(*args: Any, **kwargs: Any) -> Bound[Any]:
        bind_arguments(fn, args, kwargs)
        return Bound(ToolCall(definition, options, args, kwargs))

    def with_options(*, key: str | None = None, timeout: Duration | None = None, retries: int | None = None) -> Any:
        return _wrap_tool(
            definition,
            CallOptions(
                options.key if key is None else key,
                options.timeout_s if timeout is None else seconds(timeout, "timeout"),
                options.retries if retries is None else _count(retries, "retries"),
            ),
        )

    wrapped.bind, wrapped.options = bind, with_options
    setattr(wrapped, MARK, definition)
    return wrapped


def _refuse_lost(definition: ToolDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if definition.risk_of(args, kwargs) is not Risk.LOW:
        ambient.running_attempts.refuse_lost(definition.name)


def _refuse_on_loop(scope: ambient.Scope, name: str) -> None:
    if scope.runner.is_on_loop:
        raise WrongThread(f"{name} blocks: on the event loop write await perdure.call({name}, …)")


def _check_function(fn: object, what: str) -> None:
    if definition_of(fn) is not None:
        raise BadInput(f"{_called(fn)} is decorated already; decorate the plain function", field="fn")
    if not inspect.isfunction(fn) and not inspect.ismethod(fn):
        raise BadInput(
            f"@{what} decorates functions, not {type(fn).__name__}: frameworks inspect what it gives back", field="fn"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise BadInput(f"{fn.__name__} is a generator; an {what} returns one value", field="fn")


def _check_tool(definition: ToolDefinition) -> None:
    if not isinstance(definition.risk, Risk) and not callable(definition.risk):
        raise BadInput(
            f"risk is {definition.risk!r}; give a word, or a function of the arguments that returns one", field="risk"
        )
    if definition.reconcile is not None and not callable(definition.reconcile):
        raise BadInput(f"reconcile is {definition.reconcile!r}; give a function of the doubt", field="reconcile")
    listed: Sequence[object] = definition.ambiguous
    for error in listed:
        if not isinstance(error, type) or not issubclass(error, BaseException):
            raise BadInput(f"ambiguous holds {error!r}; list classes of exceptions", field="ambiguous")
    if definition.risk is Risk.MEDIUM:
        definition.risk_of((), {})
    if definition.risk is Risk.CRITICAL and definition.reconcile is not None:
        raise BadInput(f"{definition.name} is critical: a person decides, so it takes no reconcile", field="reconcile")
    parameters = inspect.signature(definition.fn).parameters
    for name in definition.secret:
        if name not in parameters:
            raise BadInput(f"{definition.name} has no parameter {name!r} to keep secret", field="secret")


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise BadInput(f"{name} is {value!r}; give a whole number from 0 to 1000", field=name)
    return value


def _has_signature(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn)
    except (TypeError, ValueError):
        return False
    return True


def _called(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__name__))
