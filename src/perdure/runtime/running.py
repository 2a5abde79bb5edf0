"""The function of a call really runs: on the loop, or in a thread; cut off by its timeout; what it has consumed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure import ambient, codec
from perdure.errors import NotApplied, NotSerializable
from perdure.model.task import MOST_USED, Usage
from perdure.policy.risk import Risk
from perdure.runtime import stand_ins
from perdure.runtime.call import Call
from perdure.runtime.threads import start_thread
from perdure.store.last_words import LastWord, WordKind
from perdure.store.steps import NewStep

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

R = TypeVar("R")

_NOTHING = Usage()


class CutOff(TimeoutError):
    """Perdure's own timeout, as distinct from one that the tool raised."""


class CancelledInside(Exception):
    """The function was cancelled, and not by whoever called it."""


async def run_function(attempt: Attempt, call: Call, step: NewStep, scope: ambient.Scope) -> Any:
    """Run the function once, inside its scope, in the place its kind needs. Raises what it raises, and CutOff."""
    if call.is_async and call.timeout_s is None and call.risk is Risk.LOW:
        scope.runs_in(asyncio.current_task())
        inside = ambient.current.set(scope)
        try:
            return await call.fn(*call.args, **call.kwargs)
        except SystemExit as left:
            raise _exit_called(left) from left
        except asyncio.CancelledError as cut:
            # Whoever wants it to end has cancelled its asyncio task, or refuses the calls that are made inside.
            if is_cancelled() or attempt.is_to_end or scope.is_cut_off:
                raise
            raise _cancelled_inside(call) from cut
        finally:
            ambient.current.reset(inside)
    context = contextvars.copy_context()
    context.run(ambient.enter, scope)
    loop = asyncio.get_running_loop()
    until = None if call.timeout_s is None else loop.time() + call.timeout_s
    running: asyncio.Future[Any]
    if call.is_async:
        running = loop.create_task(contained(call.fn, *call.args, **call.kwargs), context=context)
        scope.runs_in(running)
    else:
        running = start_thread(contained_in_thread(call.fn, *call.args, **call.kwargs), context=context, name=call.name)
    result = await _until_done(attempt, call, step, running, until=until)
    if _hands_on(result):
        following = loop.create_task(contained(lambda: result), context=context)
        scope.runs_in(following)
        result = await _until_done(attempt, call, step, following, until=until)
    return result


async def _until_done(
    attempt: Attempt, call: Call, step: NewStep, running: asyncio.Future[Any], *, until: float | None
) -> Any:
    place = LastWord(attempt.task.id, step.key, attempt.task.attempt)
    in_flight = attempt.host.in_flight
    if call.is_dangerous:
        in_flight.add(place.task_id, place.key, running)
    is_done = False
    try:
        if until is None:
            await until_done(running)
        else:
            await asyncio.wait({running}, timeout=max(0.0, until - asyncio.get_running_loop().time()))
        is_done = running.done()
    finally:
        if not is_done:
            # Whoever called goes away. A thread cannot be cut: it counts as running until it has returned.
            if isinstance(running, asyncio.Task):
                running.cancel()
            running.add_done_callback(_close_result)
            if call.is_dangerous:
                in_flight.leave(place, running, lambda ended: _last_word(call, step, ended))
    if not is_done:
        raise CutOff(f"{call.name} did not return within {call.timeout_s:g} s")
    if running.cancelled():
        raise _cancelled_inside(call)
    return running.result()


def is_cancelled() -> bool:
    """Whether somebody wants the running asyncio task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled_inside(call: Call) -> CancelledInside:
    return CancelledInside(f"{call.name} was cancelled from inside")


async def until_done(running: asyncio.Future[Any]) -> None:
    """Wait until it is done, whatever came of it, and leave it alone when cancelled. Cheaper than `asyncio.wait`."""
    if running.done():
        return
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(_: asyncio.Future[Any]) -> None:
        if not ended.done():
            ended.set_result(None)

    running.add_done_callback(tell)
    try:
        await ended
    finally:
        running.remove_done_callback(tell)


def heard(ended: asyncio.Future[Any]) -> None:
    """Look at what nobody waits for, or asyncio says of its error that it was never retrieved."""
    if not ended.cancelled():
        ended.exception()


def _hands_on(result: object) -> bool:
    """Whether the function has only handed on what is to be awaited, as a lambda or a partial may."""
    # The class is asked, for a result may be a proxy.
    return hasattr(type(result), "__await__")


def _close_result(ended: asyncio.Future[Any]) -> None:
    """Nobody waits for this function any more: a coroutine that it hands on does not run."""
    if not ended.cancelled() and ended.exception() is None and isinstance(result := ended.result(), Coroutine):
        with suppress(Exception):  # It is somebody else's.
            result.close()


def _last_word(call: Call, step: NewStep, ended: asyncio.Future[Any]) -> tuple[WordKind, bytes]:
    """How a call ended that nobody waits for any more."""
    if ended.cancelled():
        return WordKind.CUT_OFF, b""
    exc = ended.exception()
    if exc is None and _hands_on(ended.result()):
        return WordKind.CUT_OFF, b""  # What it hands on was to make the call, and has not run to its end.
    try:
        if exc is None:
            body, _ = codec.encode_to_return(ended.result(), annotation=call.annotation)
            return WordKind.COMPLETED, codec.mask(body, call.secrets)
    except NotSerializable as refused:
        exc = refused
    if isinstance(exc, NotApplied):
        return WordKind.CUT_OFF if step.may_have_happened else WordKind.NOT_CALLED, b""
    if not isinstance(exc, Exception) or isinstance(exc, call.ambiguous):
        return WordKind.CUT_OFF, b""
    return WordKind.FAILED, stand_ins.to_body(stand_ins.describe(exc, secrets=call.secrets))


async def contained(fn: Callable[..., Awaitable[R]], /, *args: Any, **kwargs: Any) -> R:
    """Call it and await it; `sys.exit` in it is an error of the function, and not the end of the worker.

    It is called in here, for a task that is cancelled before its first turn would leave a coroutine unawaited.
    """
    try:
        return await fn(*args, **kwargs)
    except SystemExit as left:
        raise _exit_called(left) from left


def _exit_called(left: SystemExit) -> RuntimeError:
    return RuntimeError(f"sys.exit({left.code!r}) was called")


def contained_in_thread(fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Callable[[], R]:
    """The same for a function that runs in a thread; Ctrl-C is never meant for one of those either."""

    def run() -> R:
        try:
            return fn(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as left:
            raise RuntimeError(f"{type(left).__name__} was raised: {left}") from left

    return run


# -- what a call has consumed ---------------------------------------------------------------


def usage_told(scope: ambient.Scope) -> Usage:
    """What a call consumed, as was told inside it."""
    told = _NOTHING
    for one in scope.usage:
        told = told.plus(Usage(int(one["input"]), int(one["output"]), float(one["cost"])))
    return told


def usage_of(value: Any) -> Usage:
    """Token counts as model clients give them: `.usage` or `["usage"]`, under either pair of names. Never fails."""
    try:
        # A dict at once: to ask the abstract class takes longer.
        is_mapping = type(value) is dict or isinstance(value, Mapping)
        usage = value.get("usage") if is_mapping else getattr(value, "usage", None)
        if usage is None or isinstance(usage, str | int | float) or callable(usage):
            return _NOTHING
        told = usage.get if type(usage) is dict or isinstance(usage, Mapping) else partial(_attribute, usage)
        bought = _count(told("prompt_tokens"), told("input_tokens"))
        return Usage(bought, _count(told("completion_tokens"), told("output_tokens")))
    except Exception:  # noqa: BLE001  # A result's property may raise anything, and says nothing of usage then.
        return _NOTHING


def _attribute(holder: Any, name: str) -> Any:
    return getattr(holder, name, None)


def _count(*told: Any) -> int:
    """The first that is a number of tokens."""
    for found in told:
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return min(found, MOST_USED)
    return 0
