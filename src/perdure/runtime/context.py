"""What agent code sees beside its calls (`verbs`): waiting, values that repeat, telling, and the present task.

Outside a task the calls just run, the tellers do nothing, and what needs a task raises NotInTask.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid as _uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from numbers import Number
from random import Random
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, _SpecialForm, cast, overload

from perdure import ambient, codec
from perdure.ambient import carry
from perdure.definitions import Duration, seconds
from perdure.errors import BadInput, Cancelled
from perdure.model.event import EventKind
from perdure.model.message import ROLES, NewMessage
from perdure.model.step import StepKind
from perdure.model.task import MOST_USED
from perdure.policy.budget import Budget
from perdure.runtime import calls, durable
from perdure.runtime.branches import Branch
from perdure.runtime.call import Call
from perdure.runtime.verbs import call, enter_branch, here, model, read, step
from perdure.store import artifacts, messages, steps
from perdure.store.sessions import check_id, need_text
from perdure.trace import ROOT

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

T = TypeVar("T")
TypeForm: TypeAlias = UnionType | _SpecialForm  # what type checkers see in Literal["a", "b"], which is no `type`


def _attempt(what: str) -> Attempt:
    return cast("Attempt", ambient.require(what).runner)


# -- waiting --------------------------------------------------------------------------------


async def sleep(duration: Duration, /) -> None:
    """Wait for `duration` seconds, also across restarts; the permit is given back meanwhile.

    Should the clock be set back, a wait that goes on in another process may take twice as long, never longer.
    """
    duration_s = seconds(duration, "duration")
    attempt = here()
    if attempt is None:
        await asyncio.sleep(duration_s)
        return
    await durable.sleep(attempt, duration_s)


@overload
async def receive(name: str, /, *, timeout: Duration | None = None) -> Any: ...
@overload
async def receive(name: str, /, *, type: type[T], timeout: Duration | None = None) -> T: ...
@overload
async def receive(name: str, /, *, type: TypeForm, timeout: Duration | None = None) -> Any: ...
async def receive(name: str, /, *, type: Any = codec.ANY, timeout: Duration | None = None) -> Any:
    """What someone sent to this task under `name`, as `type`, oldest first, also when it came first.

    Raises TimeoutError after `timeout` seconds, NotInTask outside a task, and BadDelivery for what cannot be made
    `type`: that holds what came, and counts as received, so that the next call takes the next one. Cancelled in the
    moment in which it takes a delivery, it gives that back.
    """
    attempt = _attempt("receive")
    timeout_s = None if timeout is None else seconds(timeout, "timeout")
    return await durable.receive(attempt, check_id(name, "name"), timeout_s=timeout_s, annotation=type)


@overload
async def ask(question: str, /, *, to: str = "", expires: Duration | None = None) -> str: ...
@overload
async def ask(question: str, /, *, type: type[T], to: str = "", expires: Duration | None = None) -> T: ...
@overload
async def ask(question: str, /, *, type: TypeForm, to: str = "", expires: Duration | None = None) -> Any: ...
async def ask(question: str, /, *, type: Any = str, to: str = "", expires: Duration | None = None) -> Any:
    """Ask a person and wait for the answer, as `type`; what cannot be made that is not taken.

    Raises Expired after `expires` seconds, NotInTask outside a task, and AmbiguousStep where another branch waits for
    the answer to the same question to the same people: nothing would tell whose answer is whose.
    """
    attempt = _attempt("ask")
    expires_s = None if expires is None else seconds(expires, "expires")
    need_text(question, "question")
    return await durable.ask(attempt, question, to=need_text(to, "to"), expires_s=expires_s, annotation=type)


# -- values that must repeat ----------------------------------------------------------------


async def now() -> datetime:
    """The time, the same on every replay. Aware, UTC."""
    attempt = here()
    if attempt is None:
        return datetime.now(UTC)
    clock = attempt.journal.store.clock
    found = await _value(attempt, "now", lambda: datetime.fromtimestamp(clock.now_ms() / 1000, UTC), datetime)
    return cast("datetime", found)


async def uuid() -> _uuid.UUID:
    """A random UUID, the same on every replay."""
    attempt = here()
    if attempt is None:
        return _uuid.uuid4()
    ids = attempt.journal.store.ids
    return cast("_uuid.UUID", await _value(attempt, "uuid", lambda: _uuid.UUID(hex=ids.token(), version=4), _uuid.UUID))


async def random() -> Random:
    """A source of random numbers with a recorded seed."""
    attempt = here()
    if attempt is None:
        return Random()
    ids = attempt.journal.store.ids
    return Random(await _value(attempt, "random", lambda: ids.random().getrandbits(62), int))


async def _value(attempt: Attempt, name: str, make: Callable[[], Any], annotation: Any) -> Any:
    async def made() -> Any:
        return make()

    described = Call(kind=StepKind.VALUE, name=name, fn=made, annotation=annotation, tells_apart=False)
    found = await calls.perform(attempt, described)
    scope = ambient.require(name)
    if (branch := ambient.branch(scope, asyncio.current_task())) is not None:
        # Branches that had the same calls before differ from here on.
        ambient.go_on(scope, branch, str(found).encode())
    return found


# -- telling --------------------------------------------------------------------------------


async def message(role: str, content: Any, /) -> None:
    """Add a line to the task's transcript; durable when this returns. Nothing outside a task.

    Raises BadInput for a role other than system, user, assistant or tool.
    """
    attempt = here()
    if attempt is None:
        return
    await _refuse_ended(attempt)
    if role not in ROLES:
        raise BadInput(f"role is {role!r}; give {', '.join(ROLES[:-1])} or {ROLES[-1]}", field="role")
    body = _encoded(content)
    key = _told_key(attempt, "message", {"role": role, "content": content})
    if ambient.require("message").parent_key == ROOT:
        attempt.journal.told(key, enter_branch())
    if key not in attempt.journal.message_keys:
        await attempt.journal.write(messages.append, attempt.journal.fence, NewMessage(role, body), step_key=key)


def checkpoint(state: Any, /) -> Coroutine[Any, Any, None]:
    """Save the agent's state (any JSON), for `last_checkpoint` after a restart. Nothing outside a task.

    It stands for what the agent has done so far, and for branches that have ended, but not for what runs beside it:
    calls that are open, and those of branches that go on, are found again when they are made again. So save in the
    agent's own task, and await a branch before you save what it has done. States are saved one after the other. Raises
    BadInput inside a tool or another call.
    """
    # Here, and not where it is awaited: wait_for and the like await it in an asyncio task of their own.
    return _save(state, enter_branch())


async def _save(state: Any, saver: Branch | None) -> None:
    attempt = here()
    if attempt is None:
        return
    await _refuse_ended(attempt)
    _refuse_inside_call("checkpoint")
    key = _told_key(attempt, "checkpoint", {"state": state})
    packed = codec.pack(codec.encode(state))
    journal = attempt.journal
    at_step = journal.known_steps
    with journal.beside(saver or enter_branch() or journal.branches.main) as (open_keys, unsure, sure):
        save = partial(messages.save_checkpoint, step_key=key, open_keys=open_keys, unsure=unsure, sure=sure)
        async with journal.in_order:
            await journal.write(save, journal.fence, packed, at_step=at_step)


async def last_checkpoint() -> Any:
    """The newest state saved before this attempt, else None.

    The agent goes on from there: what was recorded before is not asked for again, and a call equal to an earlier one is
    a new call. One of which the state could not tell, made in a branch that went on beside it, is found again: await a
    branch before you save what it has done. Raises BadInput inside a tool or another call.
    """
    attempt = here()
    if attempt is None:
        return None
    await _refuse_ended(attempt)
    _refuse_inside_call("last_checkpoint")
    enter_branch()  # What it begins is known as its own.
    if attempt.task.checkpoint is None:
        return None
    point = await attempt.journal.read(messages.resume_point, attempt.task.id, attempt.task.checkpoint)
    if point is None:
        return None
    attempt.journal.go_on_from(point)
    return codec.decode(point.state)


async def event(kind: str, payload: Any = None, /) -> None:
    """Write a skeleton event of your own kind; durable when this returns, written once over all attempts."""
    if here() is not None:
        kind = codec.mask_text(need_text(kind, "kind"), ambient.secrets())
        await _tell_once("event", kind, {} if payload is None else payload)


async def artifact(name: str, data: bytes | str, /, *, media_type: str = "") -> str:
    """Store content, text as UTF-8, and tell of it; returns its SHA-256, by which `read_artifact` finds it.

    Written once over all attempts. Outside a task only the SHA-256. Raises BadInput above `artifact_limit_bytes`.
    """
    content = codec.mask_bytes(_content(data), ambient.secrets())
    sha256 = hashlib.sha256(content).hexdigest()
    told = {"name": name, "media_type": media_type, "bytes": len(content), "sha256": sha256}
    await _tell_once("artifact", EventKind.ARTIFACT_CREATED, told, content=content)
    return sha256


async def read_artifact(sha256: str, /) -> bytes:
    """The content of an artifact, whichever task stored it. Not recorded, for it is always the same.

    Raises NotFound, and NotInTask outside a task: there ask `Client.artifact`.
    """
    attempt = _attempt("read_artifact")
    await _refuse_ended(attempt)
    return await attempt.journal.read(artifacts.get, sha256)


def stream(text: str, /) -> None:
    """Show partial text to followers at once, as an event `ai_streaming` with payload["text"]; may be lost.

    `perdure run` shows it on a terminal. Silent while records answer; nothing outside a task.
    """
    attempt = here()
    _refuse_cut_off()
    if attempt is not None and attempt.journal.is_live:
        attempt.host.stream(attempt, EventKind.AI_STREAMING, {"text": _masked(text)})


def usage(*, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
    """Say what the call around this consumed, where its result does not. Nothing outside a task."""
    scope = ambient.scope()
    if scope is not None:
        _refuse_cut_off()
        for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens), ("cost", cost)):
            _check_used(value, name)
        scope.usage.append({"input": input_tokens, "output": output_tokens, "cost": cost})


async def _refuse_ended(attempt: Attempt) -> None:
    """Raise CancelledError once the attempt is to end, and inside a call that was cut off: that tells nothing more."""
    if attempt.is_to_end:
        await attempt.turn_away()
    scope = ambient.scope()
    if scope is not None and scope.is_cut_off:
        await attempt.turn_away(ambient.CUT_OFF)


def _refuse_cut_off() -> None:
    """Raise CancelledError inside a call that was cut off, in a thread Cancelled: where nothing is awaited."""
    scope = ambient.scope()
    if scope is not None and scope.is_cut_off:
        raise asyncio.CancelledError(ambient.CUT_OFF) if scope.runner.is_on_loop else Cancelled(ambient.CUT_OFF)


def _refuse_inside_call(what: str) -> None:
    """A checkpoint is the whole task's: one saved for a tool alone would say of all other calls that they are done."""
    if ambient.require(what).parent_key != ROOT:
        raise BadInput(
            f"{what} was called inside a tool or another call, and a checkpoint is its whole task's: what was recorded "
            "before it counts as done, also for other branches. Call it in the agent's own code. Inside a tool none is "
            "needed: the calls that it makes are recorded each on its own.",
            field=what,
        )


def _check_used(value: object, field: str) -> None:
    try:
        is_number = isinstance(value, Number) and 0 <= cast("Any", value) <= MOST_USED
    except (TypeError, ArithmeticError):  # A complex number has no order, nor has a Decimal that is none.
        is_number = False
    if not is_number:
        raise BadInput(f"{field} is {value!r}; give a number from 0 to {MOST_USED:.0e}", field=field)


def _content(data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise BadInput("data is text with half a surrogate pair, which UTF-8 cannot hold", field="data") from None
    if isinstance(data, bytes):
        return data
    raise BadInput(f"data is {type(data).__name__}; give bytes or text", field="data")


def _encoded(value: Any) -> bytes:
    body, secrets = codec.encode(value), ambient.secrets()
    return codec.mask(body, secrets) if secrets else body


def _masked(value: Any) -> Any:
    secrets = ambient.secrets()
    return codec.decode(codec.evidence(value, secrets=secrets)) if secrets else value


async def _tell_once(name: str, kind: str, payload: Any, *, content: bytes | None = None) -> None:
    attempt = here()
    if attempt is None:
        return
    payload = _masked(payload)
    if content is not None and len(content) > (limit := attempt.host.settings.artifact_limit_bytes):
        raise BadInput(f"data has {len(content)} bytes; artifact_limit_bytes is {limit}", field="data")
    described = Call(
        kind=StepKind.VALUE, name=name, fn=_none, input={"kind": kind, "payload": payload}, tells_apart=False
    )

    async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: object) -> None:  # noqa: ARG001  # As calls.Run asks.
        made = attempt.journal.step(call, key=key, body=body)
        told = payload if isinstance(payload, dict) else {"value": payload}
        if content is not None:  # Before what tells of it, which its owner alone may write.
            await attempt.journal.write(artifacts.keep, content)
        result = steps.Result(completed=True, output=codec.pack(b"null"), event=(kind, told))
        await attempt.journal.complete(made, result, begun=False)

    await calls.perform(attempt, described, run)


def _told_key(attempt: Attempt, name: str, told: dict[str, Any]) -> str:
    described = Call(kind=StepKind.VALUE, name=name, fn=_none, input=told, tells_apart=False)
    parent = ambient.require(name).parent_key
    body = codec.evidence(told, secrets=ambient.secrets())
    return attempt.journal.key_of(described, body, parent=parent)


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
    "Context",
    "artifact",
    "ask",
    "call",
    "carry",
    "checkpoint",
    "current",
    "deps",
    "event",
    "last_checkpoint",
    "message",
    "model",
    "now",
    "random",
    "read",
    "read_artifact",
    "receive",
    "sleep",
    "step",
    "stream",
    "usage",
    "uuid",
]
