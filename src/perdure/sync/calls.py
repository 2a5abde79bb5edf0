"""What synchronous agents call: the names of `perdure`, blocking. Each hands over to its asynchronous twin.

Outside a task functions and tools are called in the calling thread; inside one, the record decides.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from random import Random
from typing import Any, Literal, Never, ParamSpec, TypeVar, overload
from uuid import UUID

from perdure import ambient, codec
from perdure.definitions import Bound, Duration, ToolCall, call_of
from perdure.errors import BadInput
from perdure.runtime import context, verbs
from perdure.sync.bridge import refuse_on_loop, wait

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")


class ModelVerb:
    """`model(fn, …)`: ask a model. Recorded at low risk, tokens counted where the result carries `.usage`."""

    def __init__(self, verb: verbs.ModelVerb) -> None:
        self._verb = verb

    def options(self, *, key: str) -> ModelVerb:
        """The same verb with a key, which replaces name and input when the record is looked for."""
        return ModelVerb(self._verb.options(key=key))

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, fn: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn`, or return what a record holds."""
        return _record(self._verb, verbs.check_function(fn), fn, args, kwargs, word="model")


class NamedVerb:
    """`read(name, fn, …)` changes nothing and may run again; `step(name, fn, …)` is high risk and may not."""

    def __init__(self, verb: verbs.NamedVerb, word: str) -> None:
        self._verb, self._word = verb, word

    def options(self, *, key: str) -> NamedVerb:
        """The same verb with a key, which replaces name and input when the record is looked for."""
        return NamedVerb(self._verb.options(key=key), self._word)

    @overload
    def __call__(self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, name: Any = None, fn: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn`, or return what a record holds."""
        return _record(self._verb, verbs.check_named(name, fn), fn, args, kwargs, word=self._word)


model = ModelVerb(verbs.model)
read = NamedVerb(verbs.read, "read")
step = NamedVerb(verbs.step, "step")


@overload
def call(tool: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
def call(tool: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
def call(tool: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a tool or an agent of either kind."""
    refuse_on_loop("perdure.call")
    if ambient.scope() is not None:
        return wait(lambda: verbs.call(tool, *args, **kwargs), name="call")
    bound = call_of(tool, args, kwargs)
    if isinstance(bound, ToolCall):
        verbs.refuse_lost(bound.definition.name, bound.definition.risk_of(bound.args, bound.kwargs))
    return _plain(bound.definition.fn, bound.args, bound.kwargs)


@overload
def gather(a1: Bound[R], /, *, return_exceptions: Literal[False] = False) -> list[R]: ...
@overload
def gather(a1: Bound[R], /, *, return_exceptions: bool) -> list[R | BaseException]: ...
@overload
def gather(a1: Bound[T1], a2: Bound[T2], /, *, return_exceptions: Literal[False] = False) -> tuple[T1, T2]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], /, *, return_exceptions: bool
) -> tuple[T1 | BaseException, T2 | BaseException]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], a3: Bound[T3], /, *, return_exceptions: Literal[False] = False
) -> tuple[T1, T2, T3]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], a3: Bound[T3], /, *, return_exceptions: bool
) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], a3: Bound[T3], a4: Bound[T4], /, *, return_exceptions: Literal[False] = False
) -> tuple[T1, T2, T3, T4]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], a3: Bound[T3], a4: Bound[T4], /, *, return_exceptions: bool
) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException]: ...
@overload
def gather(
    a1: Bound[T1],
    a2: Bound[T2],
    a3: Bound[T3],
    a4: Bound[T4],
    a5: Bound[T5],
    /,
    *,
    return_exceptions: Literal[False] = False,
) -> tuple[T1, T2, T3, T4, T5]: ...
@overload
def gather(
    a1: Bound[T1], a2: Bound[T2], a3: Bound[T3], a4: Bound[T4], a5: Bound[T5], /, *, return_exceptions: bool
) -> tuple[T1 | BaseException, T2 | BaseException, T3 | BaseException, T4 | BaseException, T5 | BaseException]: ...
@overload
def gather(
    a1: Bound[R],
    a2: Bound[R],
    a3: Bound[R],
    a4: Bound[R],
    a5: Bound[R],
    a6: Bound[R],
    /,
    *aws: Bound[R],
    return_exceptions: Literal[False] = False,
) -> list[R]: ...
@overload
def gather(
    a1: Bound[R],
    a2: Bound[R],
    a3: Bound[R],
    a4: Bound[R],
    a5: Bound[R],
    a6: Bound[R],
    /,
    *aws: Bound[R],
    return_exceptions: bool,
) -> list[R | BaseException]: ...
@overload
def gather(*, return_exceptions: bool = False) -> list[Never]: ...
def gather(*aws: Bound[Any], return_exceptions: bool = False) -> Any:
    """Run bound calls (`tool.bind(…)`, `agent.bind(…)`) at once, each in a thread that carries the task.

    Waits for all and returns the results in order. If any failed, raises an ExceptionGroup of what failed, after all
    have ended; with `return_exceptions` errors stand among the results. A call that was cancelled has failed by
    CancelledError: then it is a BaseExceptionGroup.
    """
    for one in aws:
        if isinstance(one, list | tuple) and any(isinstance(inner, Bound) for inner in one):
            raise BadInput("gather takes calls one by one, not a list of them: write gather(*calls)", field="aws")
        if not isinstance(one, Bound):
            raise BadInput(f"{one!r} was called already; gather takes calls not made yet: f.bind(…)", field="aws")
    return wait(lambda: verbs.gather(*aws, return_exceptions=return_exceptions), name="gather")


def _record(
    verb: verbs.Verb,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    word: str,
) -> Any:
    refuse_on_loop(f"perdure.{word}")
    if ambient.scope() is not None:
        return wait(lambda: verb.record(name, fn, args, kwargs), name=word)
    verbs.refuse_lost(name, verb.risk)
    return _plain(fn, args, kwargs)


def _plain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call it here; what it awaits gets a loop."""
    result = fn(*args, **kwargs)
    return asyncio.run(_await(result)) if inspect.isawaitable(result) else result


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# -- waiting --------------------------------------------------------------------------------


def sleep(duration: Duration, /) -> None:
    """Wait for `duration` seconds, also across restarts; the permit is given back meanwhile.

    Should the clock be set back, a wait that goes on in another process may take twice as long, never longer.
    """
    wait(lambda: context.sleep(duration), name="sleep")


@overload
def receive(name: str, /, *, timeout: Duration | None = None) -> Any: ...
@overload
def receive(name: str, /, *, type: type[T], timeout: Duration | None = None) -> T: ...
@overload
def receive(name: str, /, *, type: context.TypeForm, timeout: Duration | None = None) -> Any: ...
def receive(name: str, /, *, type: Any = codec.ANY, timeout: Duration | None = None) -> Any:
    """What someone sent to this task under `name`, as `type`, oldest first, also when it came first.

    Raises TimeoutError after `timeout` seconds, NotInTask outside a task, and BadDelivery for what cannot be made
    `type`: that holds what came, and counts as received, so that the next call takes the next one.
    """
    return wait(lambda: context.receive(name, type=type, timeout=timeout), name="receive")


@overload
def ask(question: str, /, *, to: str = "", expires: Duration | None = None) -> str: ...
@overload
def ask(question: str, /, *, type: type[T], to: str = "", expires: Duration | None = None) -> T: ...
@overload
def ask(question: str, /, *, type: context.TypeForm, to: str = "", expires: Duration | None = None) -> Any: ...
def ask(question: str, /, *, type: Any = str, to: str = "", expires: Duration | None = None) -> Any:
    """Ask a person and wait for the answer, as `type`; what cannot be made that is not taken.

    Raises Expired after `expires` seconds, NotInTask outside a task, and AmbiguousStep where another branch waits for
    the answer to the same question to the same people: nothing would tell whose answer is whose.
    """
    return wait(lambda: context.ask(question, type=type, to=to, expires=expires), name="ask")


# -- values that must repeat ----------------------------------------------------------------


def now() -> datetime:
    """The time, the same on every replay. Aware, UTC."""
    return wait(context.now, name="now")


def uuid() -> UUID:
    """A random UUID, the same on every replay."""
    return wait(context.uuid, name="uuid")


def random() -> Random:
    """A source of random numbers with a recorded seed."""
    return wait(context.random, name="random")


# -- telling --------------------------------------------------------------------------------


def message(role: str, content: Any, /) -> None:
    """Add a line to the task's transcript; durable when this returns. Nothing outside a task.

    Raises BadInput for a role other than system, user, assistant or tool.
    """
    wait(lambda: context.message(role, content), name="message")


def checkpoint(state: Any, /) -> None:
    """Save the agent's state (any JSON), for `last_checkpoint` after a restart. Nothing outside a task.

    For the agent's own code: raises BadInput inside a tool or another call.
    """
    wait(lambda: context.checkpoint(state), name="checkpoint")


def last_checkpoint() -> Any:
    """The newest state saved before this attempt, else None.

    The agent goes on from there: what was recorded before is not asked for again, and a call equal to an earlier one is
    a new call. One that was open at the checkpoint, in another branch, is found again when it is made. Raises BadInput
    inside a tool or another call.
    """
    return wait(context.last_checkpoint, name="last_checkpoint")


def event(kind: str, payload: Any = None, /) -> None:
    """Write a skeleton event of your own kind; durable when this returns, written once over all attempts."""
    wait(lambda: context.event(kind, payload), name="event")


def artifact(name: str, data: bytes | str, /, *, media_type: str = "") -> str:
    """Store content, text as UTF-8, and tell of it; returns its SHA-256, by which `read_artifact` finds it.

    Written once over all attempts. Outside a task only the SHA-256. Raises BadInput above `artifact_limit_bytes`.
    """
    return wait(lambda: context.artifact(name, data, media_type=media_type), name="artifact")


def read_artifact(sha256: str, /) -> bytes:
    """The content of an artifact, whichever task stored it. Not recorded, for it is always the same.

    Raises NotFound, and NotInTask outside a task: there ask `Client.artifact`.
    """
    return wait(lambda: context.read_artifact(sha256), name="read_artifact")
