"""What agent code sees: `perdure.model`, `read`, `step`, `call`, `gather`, `sleep`, `ask` and the rest.

Outside a task the calls just run, the tellers do nothing, and what needs a task raises NotInTask.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid as _uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from perdure import ambient, codec, definitions
from perdure.ambient import carry
from perdure.definitions import AgentCall, Bound, CallOptions, Duration, ToolCall, call_of, seconds
from perdure.errors import BadInput
from perdure.model.event import EventKind
from perdure.model.message import NewMessage
from perdure.model.step import StepKind
from perdure.policy.budget import Budget
from perdure.policy.risk import Risk
from perdure.runtime import calls, durable
from perdure.runtime.call import Call, from_function, name_of
from perdure.runtime.waits import gather_group
from perdure.store import messages, payloads, steps
from perdure.store.database import Transaction

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")



def _attempt(what: str) -> Attempt:
    return cast("Attempt", ambient.require(what).runner)


def _here() -> Attempt | None:
    scope = ambient.scope()
    return None if scope is None else cast("Attempt", scope.runner)


# -- calls without a declaration ------------------------------------------------------------


class Recorded:
    """`model`, `read` or `step`: a verb for a call that nobody declared as a tool."""

    def __init__(self, kind: StepKind, risk: Risk, *, named: bool, key: str | None = None) -> None:
        self._kind, self._risk, self._named, self._key = kind, risk, named, key

    def options(self, *, key: str) -> Recorded:
        """The same verb with a key, which replaces name and input when the record is looked for."""
        return Recorded(self._kind, self._risk, named=self._named, key=key)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, fn, args = self._take(args)
        attempt = _here()
        if attempt is None:
            if self._risk is not Risk.LOW:
                ambient.running_attempts.refuse_lost(name)
            return await _plain(fn, args, kwargs)
        declared = definitions.definition_of(fn)
        if isinstance(declared, definitions.ToolDefinition):
            return await call(fn, *args, **kwargs)
        described = from_function(self._kind, fn, args, kwargs, name=name, risk=self._risk, key=self._key)
        return await calls.perform(attempt, described)

    def _take(self, args: tuple[Any, ...]) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
        if self._named:
            if len(args) < 2 or not isinstance(args[0], str) or not callable(args[1]):
                raise BadInput("give a name, then a function, then its arguments", field="name")
            return args[0], args[1], args[2:]
        if not args or not callable(args[0]):
            raise BadInput("give a function, then its arguments", field="fn")
        return name_of(args[0]), args[0], args[1:]


model = Recorded(StepKind.MODEL_CALL, Risk.LOW, named=False)
read = Recorded(StepKind.TOOL_CALL, Risk.LOW, named=True)
step = Recorded(StepKind.TOOL_CALL, Risk.HIGH, named=True)


async def call(tool: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a tool or an agent of either kind: a synchronous tool runs in a thread. The way to call it on the loop."""
    bound = call_of(tool, args, kwargs)
    attempt = _here()
    if attempt is None:
        if isinstance(bound, ToolCall) and bound.definition.risk_of(args, kwargs) is not Risk.LOW:
            ambient.running_attempts.refuse_lost(bound.definition.name)
        return await _plain(bound.definition.fn, bound.args, bound.kwargs)
    if isinstance(bound, AgentCall):
        return await attempt.call_agent(bound)
    return await attempt.call_tool(bound)


async def gather(*aws: Awaitable[Any] | Bound[Any], return_exceptions: bool = False) -> list[Any]:
    """Run everything at once, wait for all, and return the results in order.

    If any failed, raises an ExceptionGroup of what failed, after all have ended; with `return_exceptions` errors
    stand among the results.
    """
    group = object()
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Future[Any]] = []
    for awaitable in aws:
        one = _start(awaitable) if isinstance(awaitable, Bound) else awaitable
        context = contextvars.copy_context()
        # Only children awaited directly wait as one: any other branch goes on when its own child has ended.
        context.run(gather_group.set, group if definitions.is_agent_call(one) else None)
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
    if any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if errors and not return_exceptions:
        raise BaseExceptionGroup(f"{len(errors)} of {len(tasks)} failed", errors)
    return [task.exception() or task.result() for task in tasks]


async def _start(bound: Bound[Any]) -> Any:
    attempt = _here()
    if attempt is None:
        return await _plain(bound.call.definition.fn, bound.call.args, bound.call.kwargs)
    if isinstance(bound.call, AgentCall):
        return await attempt.call_agent(bound.call)
    return await attempt.call_tool(bound.call)


async def _plain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    if asyncio.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    result = await asyncio.to_thread(fn, *args, **kwargs)
    return await result if isinstance(result, Awaitable) else result


# -- waiting --------------------------------------------------------------------------------


async def sleep(duration: Duration, /) -> None:
    """Wait for `duration` seconds, also across restarts; the permit is given back meanwhile."""
    duration_s = seconds(duration, "duration")
    attempt = _here()
    if attempt is None:
        await asyncio.sleep(duration_s)
        return
    await durable.sleep(attempt, duration_s)


async def receive(name: str, /, *, type: Any = codec.ANY, timeout: Duration | None = None) -> Any:
    """What someone sent to this task under `name`, oldest first, also when it came first.

    Raises TimeoutError after `timeout` seconds, NotInTask outside a task.
    """
    attempt = _attempt("receive")
    timeout_s = None if timeout is None else seconds(timeout, "timeout")
    return await durable.receive(attempt, name, timeout_s=timeout_s, annotation=type)


async def ask(question: str, /, *, type: Any = str, to: str = "", expires: Duration | None = None) -> Any:
    """Ask a person and wait for the answer. Raises Expired after `expires` seconds, NotInTask outside a task."""
    attempt = _attempt("ask")
    expires_s = None if expires is None else seconds(expires, "expires")
    return await durable.ask(attempt, question, to=to, expires_s=expires_s, annotation=type)


# -- values that must repeat ----------------------------------------------------------------


async def now() -> datetime:
    """The time, the same on every replay. Aware, UTC."""
    attempt = _here()
    if attempt is None:
        return datetime.now(UTC)
    clock = attempt.journal.store.clock
    found = await _value(attempt, "now", lambda: datetime.fromtimestamp(clock.now_ms() / 1000, UTC), datetime)
    return cast("datetime", found)


async def uuid() -> _uuid.UUID:
    """A random UUID, the same on every replay."""
    attempt = _here()
    if attempt is None:
        return _uuid.uuid4()
    ids = attempt.journal.store.ids
    return cast("_uuid.UUID", await _value(attempt, "uuid", lambda: _uuid.UUID(hex=ids.token(), version=4), _uuid.UUID))


async def random() -> Random:
    """A source of random numbers with a recorded seed."""
    attempt = _here()
    if attempt is None:
        return Random()
    ids = attempt.journal.store.ids
    return Random(await _value(attempt, "random", lambda: ids.random().getrandbits(62), int))


async def _value(attempt: Attempt, name: str, make: Callable[[], Any], annotation: Any) -> Any:
    async def made() -> Any:
        return make()

    described = Call(kind=StepKind.VALUE, name=name, fn=made, annotation=annotation, tells_apart=False)
    return await calls.perform(attempt, described)


# -- telling --------------------------------------------------------------------------------


async def message(role: str, content: Any, /) -> None:
    """Add a line to the task's transcript; durable when this returns. Nothing outside a task."""
    attempt = _here()
    if attempt is None:
        return
    attempt.check()
    body = codec.encode(content)
    key = _told_key(attempt, "message", {"role": role, "content": content})
    if key not in attempt.journal.message_keys:
        new = NewMessage(role, body)
        await attempt.journal.write(messages.append, attempt.journal.fence, new, step_key=key)


async def checkpoint(state: Any, /) -> None:
    """Save the agent's state (any JSON), for `last_checkpoint` after a restart. Nothing outside a task."""
    attempt = _here()
    if attempt is None:
        return
    attempt.check()
    key = _told_key(attempt, "checkpoint", {"state": state})
    packed = codec.pack(codec.encode(state))
    await attempt.journal.write(messages.save_checkpoint, attempt.journal.fence, packed, step_key=key)


async def last_checkpoint() -> Any:
    """The newest state saved before this attempt, else None. What was recorded before it then counts as used."""
    attempt = _here()
    if attempt is None or attempt.task.checkpoint is None:
        return None
    for found in await attempt.journal.read(messages.checkpoints, attempt.task.id, limit=1000):
        if found.number == attempt.task.checkpoint:
            attempt.journal.records.use_before(found.at_step)
            return codec.decode(found.state)
    return None


async def event(kind: str, payload: Any = None, /) -> None:
    """Write a skeleton event of your own kind; durable when this returns, written once over all attempts."""
    await _tell_once("event", kind, {} if payload is None else payload)


async def artifact(name: str, data: bytes | str, /, *, media_type: str = "") -> str:
    """Store content and tell of it; returns its SHA-256. Written once over all attempts. Outside a task only that."""
    body = codec.encode(data)
    digest = codec.digest(body)
    told = {"name": name, "media_type": media_type, "bytes": len(data), "digest": digest}
    await _tell_once("artifact", EventKind.ARTIFACT_CREATED, told, content=codec.pack(body))
    return digest


def stream(text: str, /) -> None:
    """Show partial text to followers at once; may be lost. Silent while records answer, nothing outside a task."""
    attempt = _here()
    if attempt is not None and attempt.journal.is_live:
        attempt.host.stream(attempt, EventKind.AI_STREAMING, {"text": text})


def usage(*, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
    """Say what the call around this consumed, where its result does not. Nothing outside a task."""
    scope = ambient.scope()
    if scope is not None:
        for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens), ("cost", cost)):
            if value < 0:
                raise BadInput(f"{name} is {value}; it cannot be negative", field=name)
        scope.usage.append({"input": input_tokens, "output": output_tokens, "cost": cost})


async def _tell_once(name: str, kind: str, payload: Any, *, content: codec.Packed | None = None) -> None:
    attempt = _here()
    if attempt is None:
        return
    described = Call(
        kind=StepKind.VALUE, name=name, fn=_none, input={"kind": kind, "payload": payload}, tells_apart=False
    )

    async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Any) -> None:
        made = attempt.journal.step(call, key=key, body=body)
        told = payload if isinstance(payload, dict) else {"value": payload}
        if content is not None:
            await attempt.journal.write(_keep, content)
        result = steps.Result(completed=True, output=codec.pack(b"null"), event=(kind, told))
        await attempt.journal.complete(made, result, begun=False)

    await calls.perform(attempt, described, run)


def _told_key(attempt: Attempt, name: str, told: dict[str, Any]) -> str:
    described = Call(kind=StepKind.VALUE, name=name, fn=_none, input=told, tells_apart=False)
    parent = ambient.require(name).parent_key
    return attempt.journal.key_of(described, codec.evidence(told), parent=parent)


def _keep(tx: Transaction, content: codec.Packed) -> None:
    payloads.keep(tx, content)


async def _none() -> None:
    return None


# -- the present task -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Context:
    """Where the running code is. `token` is the idempotency token of the call around it."""

    task_id: str
    session_id: str | None
    attempt: int
    token: str
    replaying: bool
    cancelled: bool
    deadline: datetime | None
    budget_left: Budget


def current() -> Context:
    """The present task. Raises NotInTask outside one."""
    scope = ambient.require("current")
    attempt = cast("Attempt", scope.runner)
    deadline = attempt.task.deadline_at
    return Context(
        attempt.task.id,
        attempt.task.session_id,
        attempt.task.attempt,
        scope.token,
        not attempt.journal.is_live,
        attempt.stopping is not None,
        None if deadline is None else datetime.fromtimestamp(deadline / 1000, UTC),
        attempt.budget_left,
    )


def deps(cls: type[T], /) -> T:
    """What the app's lifespan opened for this worker, by class. Raises NotInTask, or NotFound when there is none."""
    return _attempt("deps").host.dep(cls)


__all__ = [
    "CallOptions", "Context", "artifact", "ask", "call", "carry", "checkpoint", "current", "deps", "event", "gather",
    "last_checkpoint", "message", "model", "now", "random", "read", "receive", "sleep", "step", "stream", "usage",
    "uuid",
]
