"""How an attempt ends, and the one write that says so.

    end           the agent has returned or raised: complete, try again later, or fail
    end_stopped   it was stopped from outside: handed back, set aside, interrupted, timed out, or lost
    set_apart     its records cannot be replayed

Before a task completes, the children it started are joined and every call in doubt is settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure import codec, phrases
from perdure.definitions import returns
from perdure.errors import (
    Damaged,
    Error,
    IllegalTransition,
    InvariantError,
    NotSerializable,
    Refused,
    RefusedBySchema,
)
from perdure.model.step import Note, NoteKind
from perdure.model.task import Task, Wait, WaitKind
from perdure.policy.retry import ErrorClass, RetryPolicy, classify, delay_s, should_retry
from perdure.runtime import doubts, raised, stand_ins
from perdure.states import TaskStatus
from perdure.store import aio, ends, task_lists, tasks
from perdure.store.completions import Completion
from perdure.store.database import Transaction

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

log = logging.getLogger(__name__)
_COMPLETED = Note(NoteKind.TURN_COMPLETED, codec.encode({"outcome": "completed"}))


async def end(attempt: Attempt, value: Any, error: BaseException | None) -> None:
    """Write what became of a task whose agent has ended by itself. Cancelled when the attempt is stopped meanwhile."""
    await attempt.close_calls()
    await attempt.journal.until_written()
    stored = b""
    if error is None:
        try:
            stored = _as_result(attempt, value)
        except NotSerializable as refused:
            name = attempt.definition.name
            error = NotSerializable(f"the result of {name} cannot be stored: {refused}", path=refused.path)
    if error is not None:
        await _fail(attempt, error)
        return
    await _join_children(attempt)
    await _settle_doubts(attempt)
    await _complete(attempt, stored)


def _as_result(attempt: Attempt, value: Any) -> bytes:
    """What the agent returned, as it is stored. Raises NotSerializable."""
    limit = attempt.host.settings.payload_limit_bytes
    stored, _ = codec.encode_to_return(value, annotation=returns(attempt.definition.fn), limit=limit)
    return stored


async def end_stopped(attempt: Attempt, value: Any, error: BaseException | None) -> None:
    """Write why an attempt ended although its agent had not."""
    from perdure.runtime.attempt import Stop

    fence = attempt.journal.fence
    match attempt.stopping:
        case Stop.RELEASE:
            attempt.is_handed_back = await _write(attempt, tasks.release, fence, reason="the worker is stopping")
        case Stop.SUSPEND:
            try:
                await _write(attempt, tasks.suspend, fence)
            except IllegalTransition:  # It had just been restored, for what it waited for has happened.
                reason = "it was set aside while it went on"
                attempt.is_handed_back = await _write(attempt, tasks.release, fence, reason=reason)
        case Stop.INTERRUPT:
            reason = "the worker stopped during a call"
            await _write(attempt, tasks.interrupt, attempt.task.id, fence.execution_id, reason=reason)
        case Stop.DEADLINE:
            await _end_late(attempt, value, error)
        case Stop.LOST if attempt.is_ending:
            await _look_what_came_first(attempt)
        case Stop.LOST | None:
            return


async def set_apart(attempt: Attempt, why: Damaged | Refused) -> None:
    """End an attempt whose records cannot be read or replayed; recovery asks a person."""
    await _write(
        attempt,
        tasks.interrupt,
        attempt.task.id,
        attempt.journal.fence.execution_id,
        reason="its records cannot be replayed",
        trace_error=str(why),
    )


# -- the agent has ended --------------------------------------------------------------------


async def _complete(attempt: Attempt, stored: bytes) -> None:
    journal = attempt.journal
    result = codec.pack(stored)
    try:
        if await _complete_together(attempt, result) or await _write(
            attempt, ends.complete, journal.fence, result, notes=[_COMPLETED], risk_seen=journal.risk_seen
        ):
            attempt.outcome = TaskStatus.COMPLETED, None
    except RefusedBySchema as refused:  # Its result cannot be stored.
        await _fail(attempt, refused)
    except InvariantError as why:
        log.exception("task %s cannot complete; it is looked at again", attempt.task.id)
        await _write(attempt, tasks.interrupt, attempt.task.id, journal.fence.execution_id, reason=str(why))


async def _complete_together(attempt: Attempt, result: codec.Packed) -> bool:
    """Complete the task in one write with others; False when it is none of which that can be done."""
    if attempt.task.parent_task_id is not None:
        return False
    await attempt.host.until_streamed(attempt)
    journal = attempt.journal
    one = Completion(journal.fence, result, _COMPLETED, risk_seen=journal.risk_seen)
    attempt.is_writing_end = True
    try:
        return await attempt.host.complete_together(one)
    finally:
        attempt.is_writing_end = False


async def _fail(attempt: Attempt, exc: BaseException) -> None:
    journal, task = attempt.journal, attempt.task
    error = stand_ins.describe(exc)
    policy = RetryPolicy(retries=attempt.definition.retries)
    if attempt.is_final(exc) or not should_retry(policy, _class_of(exc), task.failures):
        _log_failure(attempt, exc)
        if await _write(attempt, ends.fail, journal.fence, error, risk_seen=journal.risk_seen):
            attempt.outcome = TaskStatus.FAILED, error
        return
    wait_s = delay_s(policy, task.failures, attempt.host.random)
    _log_retry(attempt, error, wait_s)
    await _write(
        attempt,
        tasks.retry,
        journal.fence,
        available_at=journal.store.clock.now_ms() + int(wait_s * 1000),
        error=error,
        rerun_steps=sorted({index for index, is_final in attempt.raised(exc) if not is_final and index >= 0}),
    )


def _class_of(exc: BaseException) -> ErrorClass:
    """Whether another try may help. Nobody has stopped the agent, so a cancellation was its own: that says nothing."""
    if isinstance(exc, asyncio.CancelledError):
        return ErrorClass.UNKNOWN
    if isinstance(exc, BaseExceptionGroup):
        _, failed = exc.split(asyncio.CancelledError)
        return ErrorClass.UNKNOWN if failed is None else classify(failed)
    return classify(exc)


def _log_failure(attempt: Attempt, exc: BaseException) -> None:
    # As text: the exception itself would bring the frames of perdure along, and errors of tools as they were before
    # secrets were masked in them.
    told = phrases.safe(raised.traceback_of(exc))
    log.error("task %s of agent %s failed\n%s", attempt.task.id, attempt.task.agent, told, extra=_ids(attempt))


def _log_retry(attempt: Attempt, error: Error, wait_s: float) -> None:
    log.warning(
        "attempt %d of task %s of agent %s failed; attempt %d begins in %s: %s",
        attempt.task.attempt,
        attempt.task.id,
        attempt.task.agent,
        attempt.task.attempt + 1,
        phrases.duration(wait_s * 1000),
        phrases.safe(phrases.failure(error)),
        extra=_ids(attempt),
    )


async def _join_children(attempt: Attempt) -> None:
    """Wait for children that were started and not awaited: a task does not end before those it waits for."""
    if not attempt.journal.may_have_children:
        return
    while still := await attempt.journal.read(task_lists.open_foreground_children, attempt.task.id):
        async with attempt.waits.call():
            await attempt.waits.until(Wait(WaitKind.CHILDREN, tuple(still)))


async def _settle_doubts(attempt: Attempt) -> None:
    """Find out about every call in doubt: those the agent left, and those on record that it never came to.

    One inside another that is in doubt goes with that one; but where that did not happen, it may still have.
    """
    journal = attempt.journal
    while True:
        left = dict(attempt.intents)
        unreached = {record.key or "": record for record in journal.records.in_doubt() if record.key not in left}
        if not left and not unreached:
            return
        inner = {step.key for key in (*left, *unreached) for step in journal.records.in_doubt_under(key)}
        async with asyncio.TaskGroup() as group:
            for key, (call, step) in left.items():
                if key not in inner:
                    group.create_task(_in_call(attempt, key, partial(doubts.settle_left, attempt, call, step)))
            for key, record in unreached.items():
                if key not in inner:
                    journal.used(key)
                    group.create_task(_in_call(attempt, key, partial(doubts.settle_unreached, attempt, record)))


async def _in_call(attempt: Attempt, key: str, settle: Callable[[], Awaitable[None]]) -> None:
    async with attempt.waits.call(key):
        await settle()


# -- the agent was stopped ------------------------------------------------------------------


async def _end_late(attempt: Attempt, value: Any, error: BaseException | None) -> None:
    """Its deadline is over. An agent that has used the grace time to return in good order still counts."""
    journal = attempt.journal
    left = await journal.read(task_lists.open_foreground_children, attempt.task.id, limit=1)
    is_whole = not (attempt.intents or journal.records.in_doubt() or left)
    if error is None and not attempt.is_ending and is_whole:
        try:
            stored = _as_result(attempt, value)
        except NotSerializable:
            stored = b""
        if stored:
            await _complete(attempt, stored)
            return
    await _write(attempt, ends.time_out, attempt.task.id, fence=journal.fence)
    # An end that was on its way when the time was over may have come first: what is told is what the row says.
    row, failure = await journal.read(_as_it_is, attempt.task.id)
    if row.status.is_terminal and row.attempt == attempt.task.attempt:
        attempt.outcome = row.status, failure


async def _look_what_came_first(attempt: Attempt) -> None:
    """Its own end came too late. A time-out is told here all the same, for nobody else ran the task."""
    row, _ = await aio.read(attempt.journal.store, _as_it_is, attempt.task.id)
    if row.status is TaskStatus.TIMED_OUT and row.attempt == attempt.task.attempt:
        attempt.outcome = row.status, None


def _as_it_is(tx: Transaction, task_id: str) -> tuple[Task, Error | None]:
    row = tasks.get(tx, task_id)
    return row, tasks.read_error(tx, row.error) if row.status is TaskStatus.FAILED else None


def _ids(attempt: Attempt) -> dict[str, object]:
    return {"task": attempt.task.id, "agent": attempt.task.agent, "attempt": attempt.task.attempt}


async def _write(attempt: Attempt, operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bool:
    """Write an end. False, and no error, when the lease is lost by now: somebody else has the task."""
    await attempt.host.until_streamed(attempt)
    attempt.is_writing_end = True
    try:
        await attempt.journal.write(operation, *args, **kwargs)
    except asyncio.CancelledError:  # So it is told, too, that the lease is lost.
        if not attempt.has_lost:
            raise
        return False
    finally:
        attempt.is_writing_end = False
    return True
