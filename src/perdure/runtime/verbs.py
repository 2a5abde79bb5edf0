"""Calls that agent code makes: `model`, `read` and `step` for functions nobody decorated, `call` and `gather`.

Outside a task they just run. What is recorded of a call, and whether it runs at all, is decided in `calls`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from perdure import ambient, codec, definitions
from perdure.definitions import AgentCall, Bound, ToolCall, call_of
from perdure.errors import BadInput
from perdure.model.step import StepKind
from perdure.policy.risk import Risk
from perdure.runtime import calls
from perdure.runtime.branches import Branch
from perdure.runtime.call import from_function, name_of
from perdure.runtime.threads import run_plainly
from perdure.runtime.waits import gather_group
from perdure.store.sessions import need_text
from perdure.trace import ROOT

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

P = ParamSpec("P")
R = TypeVar("R")


def here() -> Attempt | None:
    """The attempt around the running code, or None outside a task."""
    scope = ambient.scope()
    return None if scope is None else cast("Attempt", scope.runner)


def enter_branch() -> Branch | None:
    """The branch whose code this is, or the agent's own task, known from here on as what begins others.

    None outside the agent's own code, and where no asyncio task runs it.
    """
    scope = ambient.scope()
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No loop runs in this thread.
        return None
    if scope is None or scope.parent_key != ROOT or task is None:
        return None
    branches = cast("Attempt", scope.runner).journal.branches
    return branches.enter(None if ambient.branch(scope, task) is None else task)


def refuse_lost(name: str, risk: Risk) -> None:
    """Refuse a dangerous call that may belong to an attempt which cannot be known. Raises NoTaskContext."""
    if risk is not Risk.LOW:
        ambient.running_attempts.refuse_lost(name)


# -- functions that nobody decorated --------------------------------------------------------


class Verb:
    """A way to call a function that nobody decorated: what kind of step it is, how bad a second run, and the key."""

    def __init__(self, kind: StepKind, risk: Risk, *, key: str | None = None) -> None:
        self.kind, self.risk, self.key = kind, risk, key

    async def record(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call `fn`, or return what a record holds; outside a task only call it."""
        scope = ambient.current.get()
        if scope is None:
            refuse_lost(name, self.risk)
            return await run_plainly(fn, args, kwargs)
        attempt: Attempt = scope.runner  # type: ignore[assignment]  # the runtime puts in nothing else
        if isinstance(definitions.definition_of(fn), definitions.ToolDefinition):
            # A decorated tool knows its risk better than the verb does.
            tool = cast("definitions.AnyTool", fn) if self.key is None else cast("Any", fn).options(key=self.key)
            return await _perform(attempt, call_of(tool, args, kwargs))
        if scope.secrets:
            name = codec.mask_text(name, scope.secrets)
        described = from_function(self.kind, fn, args, kwargs, name=name, risk=self.risk, key=self.key)
        return await calls.perform(attempt, described)


class ModelVerb(Verb):
    """`await model(fn, …)`: ask a model. Recorded at low risk, tokens counted where the result carries `.usage`.

    May run again after a crash in the middle of it. Inside a task raises what `fn` raised, as a stand-in that is the
    same on replay.
    """

    def options(self, *, key: str) -> ModelVerb:
        """The same verb with a key, which replaces name and input when the record is looked for."""
        return ModelVerb(self.kind, self.risk, key=check_key(key))

    @overload
    async def __call__(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, fn: Any = None, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call `fn`, or return what a record holds. A synchronous `fn` runs in a thread."""
        return self.record(check_function(fn), fn, args, kwargs)


class NamedVerb(Verb):
    """`await read(name, fn, …)` changes nothing and may run again; `await step(name, fn, …)` may not.

    Both record the call under `name`. Inside a task they raise what `fn` raised, as a stand-in that is the same on
    replay. A `step` is high risk: cut off by a crash, a person is asked whether it happened.
    """

    def options(self, *, key: str) -> NamedVerb:
        """The same verb with a key, which replaces name and input when the record is looked for."""
        return NamedVerb(self.kind, self.risk, key=check_key(key))

    @overload
    async def __call__(self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def __call__(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, name: Any = None, fn: Any = None, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call `fn`, or return what a record holds. A synchronous `fn` runs in a thread."""
        return self.record(check_named(name, fn), fn, args, kwargs)


model = ModelVerb(StepKind.MODEL_CALL, Risk.LOW)
read = NamedVerb(StepKind.TOOL_CALL, Risk.LOW)
step = NamedVerb(StepKind.TOOL_CALL, Risk.HIGH)


def check_key(key: object) -> str:
    """A key that can be recorded. Raises BadInput."""
    if not isinstance(key, str) or not key:
        raise BadInput(f"key is {key!r}; give a text that names this call", field="key")
    return key


def check_function(fn: object) -> str:
    """The name of a function. Raises BadInput for what is none."""
    if type(fn) is types.FunctionType:
        return fn.__qualname__
    if not callable(fn):
        raise BadInput(f"{fn!r} is no function: give a function, then its arguments", field="fn")
    return name_of(fn)


def check_named(name: object, fn: object) -> str:
    """The name given to a function. Raises BadInput when either is missing."""
    if not isinstance(name, str) or not name:
        raise BadInput(f"name is {name!r}; give a name, then a function, then its arguments", field="name")
    check_function(fn)
    return need_text(name, "name")


# -- tools and agents of either kind --------------------------------------------------------


@overload
async def call(tool: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
async def call(tool: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
async def call(tool: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a tool or an agent of either kind: a synchronous tool runs in a thread. The way to call it on the loop."""
    bound = call_of(tool, args, kwargs)
    attempt = here()
    if attempt is not None:
        return await _perform(attempt, bound)
    if isinstance(bound, ToolCall):
        refuse_lost(bound.definition.name, bound.definition.risk_of(bound.args, bound.kwargs))
    return await run_plainly(bound.definition.fn, bound.args, bound.kwargs)


async def gather(*aws: Awaitable[Any] | Bound[Any], return_exceptions: bool = False) -> list[Any]:
    """Run everything at once, wait for all, and return the results in order.

    If any failed, raises an ExceptionGroup of what failed, after all have ended; with `return_exceptions` errors
    stand among the results. A branch that was cancelled has failed by CancelledError: then it is a BaseExceptionGroup.
    """
    check_calls(aws)
    enter_branch()
    group = object()
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Future[Any]] = []
    for awaitable in aws:
        one = _started(awaitable) if isinstance(awaitable, Bound) else awaitable
        context = contextvars.copy_context()
        # Only children awaited directly wait as one: any other branch goes on when its own child has ended.
        context.run(gather_group.set, group if _is_child(awaitable) else None)
        if asyncio.iscoroutine(one):
            tasks.append(loop.create_task(one, context=context))
        else:
            tasks.append(asyncio.ensure_future(one))
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    if (attempt := here()) is not None and any(task.cancelled() for task in tasks):
        attempt.check()  # What ends the attempt cancels its branches; that is no failure of theirs.
    ends = [(task, _error_of(task)) for task in tasks]
    errors = [error for _, error in ends if error is not None]
    if errors and not return_exceptions:
        raise BaseExceptionGroup(f"{len(errors)} of {len(tasks)} failed", errors)
    return [task.result() if error is None else error for task, error in ends]


def check_calls(aws: Sequence[object]) -> None:
    """Raise BadInput for what `gather` cannot run, before anything has begun."""
    for one in aws:
        if isinstance(one, Bound) or inspect.isawaitable(one):
            continue
        if callable(one):
            name = name_of(one)
            raise BadInput(f"gather takes calls, and {name} is a function: give {name}(…)", field="aws")
        if isinstance(one, Iterable) and not isinstance(one, str):
            what = f"a {type(one).__name__} of them"
            raise BadInput(f"gather takes calls one by one, not {what}: write gather(*calls)", field="aws")
        raise BadInput(f"gather takes calls, and {one!r} is none: give f(…) or f.bind(…)", field="aws")


def _error_of(task: asyncio.Future[Any]) -> BaseException | None:
    try:
        return task.exception()
    except asyncio.CancelledError as cancelled:
        return cancelled


def _is_child(awaitable: object) -> bool:
    if isinstance(awaitable, Bound):
        return isinstance(awaitable.call, AgentCall)
    return definitions.is_agent_call(awaitable)


async def _started(bound: Bound[Any]) -> Any:
    # Not `call(bound)`: the public name takes what was decorated, and this is its only other way in.
    return await call(cast("Callable[..., Any]", bound))


async def _perform(attempt: Attempt, bound: AgentCall | ToolCall) -> Any:
    if isinstance(bound, AgentCall):
        return await attempt.call_agent(bound)
    return await attempt.call_tool(bound)
