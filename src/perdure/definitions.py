"""`@agent` and `@tool`: plain functions with options, and what a process knows of them. Touches no file.

A decorated function stays a real function: same coroutine flag, signature and docstring, for frameworks inspect
them. Outside a task it simply runs, unrecorded (of an agent that is logged once). Inside one it hands itself to the
attempt that stands in `ambient`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypeVar, overload
from weakref import WeakValueDictionary

from perdure import ambient
from perdure.arguments import (
    bind_arguments,
    called,
    check_takes_arguments_of,
    hints,
    instant_ms,
    returns,
    seconds,
    unbind_arguments,
)
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
from perdure.errors import BadInput, WrongThread
from perdure.policy.budget import Budget
from perdure.policy.lanes import check_priority
from perdure.policy.risk import Risk

log = logging.getLogger(__name__)
_told_unrecorded: set[str] = set()
# Every tool and agent there is, oldest first, for as long as somebody has it.
_tools: WeakValueDictionary[int, ToolDefinition] = WeakValueDictionary()
_agents: WeakValueDictionary[int, AgentDefinition] = WeakValueDictionary()

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
    "functions_named",
    "hints",
    "instant_ms",
    "is_agent_call",
    "returns",
    "seconds",
    "tool",
    "tools_named",
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
    _check_name(name)
    _check_text(version, "version")
    _check_budget(budget)

    def decorate(function: Callable[..., Any]) -> Any:
        _check_function(function, "agent")
        definition = AgentDefinition(
            name or function.__name__,
            function,
            version or "",
            Risk.LOW if risk is None else Risk.parse(risk),
            resume,
            budget or Budget(),
            None if deadline is None else seconds(deadline, "deadline"),
            _count(retries, "retries"),
            drift,
        )
        _agents[id(definition)] = definition
        return _wrap_agent(definition, AgentOptions())

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
    `approve`: ask before the call, always or where a function of the arguments says so. `to` is asked that, and what
    became of a call in doubt. `reconcile(doubt)` finds out what happened to a call that was cut off.
    `timeout` in seconds; a call from high risk up that it cuts off, or that raises one of `ambiguous`, is in doubt.
    Arguments named in `secret` never reach the store: their text is masked in all that is called or told inside, too.
    """

    _check_name(name)

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
            _several(ambiguous, "ambiguous", "classes of exceptions"),
            (secret,) if isinstance(secret, str) else _several(secret, "secret", "names of parameters"),
        )
        _check_tool(definition)
        _tools[id(definition)] = definition
        return _wrap_tool(definition, CallOptions())

    return decorate if fn is None else decorate(fn)


def definition_of(thing: object) -> AgentDefinition | ToolDefinition | None:
    """What perdure knows of a decorated function, or None."""
    return getattr(thing, MARK, None)


def tools_named(name: str) -> list[ToolDefinition]:
    """The tools of this name in this process: an agent may call any of them."""
    found = [known() for known in _tools.valuerefs()]
    return [one for one in found if one is not None and one.name == name]


def functions_named(name: str) -> list[Callable[..., Any]]:
    """The functions of this process that a record of this name may be a call of, tools first, newest first."""
    agents = [known() for known in _agents.valuerefs()]
    named = [one for one in agents if one is not None and one.name == name]
    return [one.fn for one in reversed(tools_named(name))] + [one.fn for one in reversed(named)]


def call_of(thing: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> AgentCall | ToolCall:
    """A decorated function (or one that was bound already) with its arguments. Raises BadInput for anything else."""
    if isinstance(thing, Bound):
        return thing.call
    if inspect.iscoroutine(thing):
        thing.close()  # It is not awaited any more, and Python would warn of that instead.
        name = thing.__name__
        raise BadInput(
            f"{name}(…) is a call already; give the function, then its arguments: run({name}, …)", field="agent"
        )
    bind = getattr(thing, "bind", None)
    if definition_of(thing) is None or bind is None:
        raise BadInput(f"{called(thing)} is neither an agent nor a tool; decorate it", field="agent")
    bound: Bound[Any] = bind(*args, **(kwargs or {}))
    return bound.call


def is_agent_call(awaitable: object) -> bool:
    """Whether this is the coroutine of a decorated agent, not awaited yet."""
    return getattr(awaitable, "cr_code", None) in _AGENT_CODES


# -- wrapping -------------------------------------------------------------------------------


def _wrap_agent(definition: AgentDefinition, options: AgentOptions) -> Any:
    fn = definition.fn

    if definition.is_async:

        @functools.wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                _warn_unrecorded(definition.name)
                return await fn(*args, **kwargs)
            return await scope.runner.call_agent(AgentCall(definition, options, args, kwargs))

        wrapped: Any = call_async
    else:

        @functools.wraps(fn)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            scope = ambient.scope()
            if scope is None:
                _warn_unrecorded(definition.name)
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
        _check_budget(budget)
        if tags is not None and not isinstance(tags, Mapping):
            raise BadInput(f"tags is {tags!r}; give a mapping of names to texts", field="tags")
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

    with_options.__qualname__ = f"{definition.name}.options"  # For Python's own message about an unknown option.
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

    with_options.__qualname__ = f"{definition.name}.options"  # For Python's own message about an unknown option.
    wrapped.bind, wrapped.options = bind, with_options
    setattr(wrapped, MARK, definition)
    return wrapped


def _warn_unrecorded(agent: str) -> None:
    """Say, once a process, that an agent runs as the plain function that it is: right in a test, else a slip."""
    if agent not in _told_unrecorded:
        _told_unrecorded.add(agent)
        text = "agent %s is called outside a task: nothing is recorded, and a crash loses it; app.run(%s, …) records it"
        log.warning(text, agent, agent, extra={"agent": agent})


def _refuse_lost(definition: ToolDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if definition.risk_of(args, kwargs) is not Risk.LOW:
        ambient.running_attempts.refuse_lost(definition.name)


def _refuse_on_loop(scope: ambient.Scope, name: str) -> None:
    if scope.runner.is_on_loop:
        raise WrongThread(f"{name} blocks: on the event loop write await perdure.call({name}, …)")


def _check_function(fn: object, what: str) -> None:
    if definition_of(fn) is not None:
        raise BadInput(f"{called(fn)} is decorated already; decorate the plain function", field="fn")
    if not inspect.isfunction(fn) and not inspect.ismethod(fn):
        named = f"; to name it write @{what}(name={fn!r}) above its def" if isinstance(fn, str) else ""
        wrapped = f"; write one that calls it: @{what} above `async def …`" if callable(fn) else ""
        raise BadInput(f"@{what} decorates functions, and {fn!r} is none{named or wrapped}", field="fn")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise BadInput(f"{fn.__name__} is a generator; an {what} returns one value", field="fn")


def _check_text(value: object, name: str) -> None:
    if value is not None and not isinstance(value, str):
        raise BadInput(f"{name} is {value!r}; give a text", field=name)


def _check_name(name: str | None) -> None:
    _check_text(name, "name")
    if name is not None and not name.strip():
        raise BadInput(f"name is {name!r}; give a word, or leave it out for the name of the function", field="name")


def _check_budget(budget: object) -> None:
    if budget is not None and not isinstance(budget, Budget):
        shape = "as in perdure.Budget(tokens=100_000)"
        raise BadInput(f"budget is {budget!r}; give a perdure.Budget, {shape}", field="budget")


def _several(values: object, name: str, what: str) -> tuple[Any, ...]:
    if not isinstance(values, Sequence | Set) or isinstance(values, str):
        raise BadInput(f"{name} is {values!r}; give a list of {what}", field=name)
    return tuple(values)


def _check_tool(definition: ToolDefinition) -> None:
    _check_rule(definition, "risk", Risk, "a word, or a function of the arguments that returns one")
    _check_rule(definition, "approve", bool, "True, False, or a function of the arguments that returns one")
    if not isinstance(definition.idempotent, bool):
        raise BadInput(f"idempotent is {definition.idempotent!r}; give True or False", field="idempotent")
    if not isinstance(definition.to, str):
        raise BadInput(f"to is {definition.to!r}; give the name of who is asked, or an empty text", field="to")
    if definition.to and definition.risk is Risk.LOW and definition.approve is False:
        never = f"nobody is ever asked about {definition.name}, which is low risk and needs no approval"
        raise BadInput(f"to is {definition.to!r}, and {never}: give approve=True too, or leave it out", field="to")
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


def _check_rule(definition: ToolDefinition, name: str, plain: type, what: str) -> None:
    """Check an option that is a value, or a function of the arguments that tells one."""
    rule: object = getattr(definition, name)
    if isinstance(rule, plain):
        return
    if not callable(rule) or isinstance(rule, type):
        raise BadInput(f"{name} is {rule!r}; give {what}", field=name)
    if inspect.iscoroutinefunction(rule):
        raise BadInput(
            f"{name} is asynchronous; give a plain function: what it says counts before the call", field=name
        )
    check_takes_arguments_of(definition.fn, rule, name)


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise BadInput(f"{name} is {value!r}; give a whole number from 0 to 1000", field=name)
    return value
