"""What happens when agent code makes a call: answered from the record, run live, or in doubt.

recorded with an outcome      -> the recorded result, or the recorded error again
recorded without one          -> in doubt (doubts.py)
no record, others lie unused  -> drift (drift.py)
no record                     -> live (live.py): low risk, one write after; above, intent first
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from perdure import ambient, codec
from perdure.errors import BadInput, Error, WrongThread
from perdure.model.step import Step
from perdure.policy.risk import Risk, highest
from perdure.runtime import doubts, drift, live, stand_ins
from perdure.runtime.call import Call
from perdure.runtime.journal import unpacked
from perdure.runtime.threads import run_plainly
from perdure.trace import ROOT

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt


class Run(Protocol):
    """How a call of one kind is run when no record answers it."""

    async def __call__(self, attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
        """Run it, put its outcome on record, return or raise it."""
        ...


async def perform(attempt: Attempt, call: Call, run: Run = live.run) -> Any:
    """Answer or run one call. Raises what the call raised, as a stand-in that is the same on replay."""
    if attempt.is_to_end:
        await attempt.turn_away()
    if not attempt.is_on_loop:
        raise WrongThread(
            f"{call.name} was awaited on a loop that is not its task's: from there write "
            "await asyncio.to_thread(f, …) with f of perdure.sync"
        )
    journal = attempt.journal
    scope = ambient.current.get() or ambient.require(call.name)
    if scope.is_cut_off:
        await attempt.turn_away(ambient.CUT_OFF)
    if scope.is_look:
        return await _look(call, run)
    parent, task = scope.parent_key, asyncio.current_task()
    branch = ambient.branch(scope, task)
    key, body = _name(attempt, call, scope, task, branch)
    maker = None if branch is None else task
    while journal.is_running(key):
        journal.used(key)  # Its record has been asked for, whatever that comes to.
        await attempt.waits.until_known(parent, journal.until_known(key))
        attempt.check()
        ambient.refuse_cut_off()
    record = journal.records.find(key)
    if record is not None and record.outcome is not None and record.retried_at is None:
        journal.used(key)
        if parent == ROOT:
            journal.note_made(call, key, maker)
        return answer(attempt, call, record)
    # Pairs of calls, and not contexts made of generators: those took a tenth of all the time that a step takes.
    waits = attempt.waits
    attempt.open_call(call, task)
    try:
        if (attempt.is_draining or attempt.is_ending) and (parent == ROOT or scope.has_returned):
            await attempt.hold_call()
        journal.open(call, key, body, scope=scope)
        opened = waits.begin_call(key, parent)
        try:
            if not waits.is_running:
                await waits.until_running()
            if journal.has_history:
                if record is None and journal.records.has_unused_like(
                    call.name, key=key, parent=parent, is_dangerous=call.may_be_dangerous
                ):
                    await drift.hold(attempt, call, parent=parent, key=key, body=body)
                journal.used(key)
            try:
                if record is not None and record.is_open and (record.risk != Risk.LOW or call.is_dangerous):
                    return await doubts.settle(attempt, call, record, body)
                return await run(attempt, call, key=key, body=body, record=record)
            except live.InDoubt as doubt:
                cut = doubt
            return await _settle_cut(attempt, call, cut)
        except asyncio.CancelledError:
            if branch is not None and not call.is_dangerous:
                ambient.go_back(scope, branch)
            raise
        finally:
            waits.end_call(key, opened)
            journal.close(call, key, scope=scope)
            if parent == ROOT:
                journal.note_made(call, key, maker)
    finally:
        attempt.close_call(call)


def _name(
    attempt: Attempt, call: Call, scope: ambient.Scope, task: asyncio.Task[Any] | None, branch: bytes | None
) -> tuple[str, bytes]:
    """The call's key, and its input as it is put on record; its branch has called it from here on."""
    if scope.secrets:
        call.secrets = (*call.secrets, *scope.secrets)
    if call.secrets and call.key is not None:
        call.key = codec.mask_text(call.key, call.secrets)
    parent, journal = scope.parent_key, attempt.journal
    body = codec.evidence(call.input, secrets=call.secrets)
    if branch is not None or scope.main is None or not scope.main_has_called:  # Its main one need be noted once only.
        journal.note_caller(attempt.caller(task), parent)
        scope.main_has_called = scope.main_has_called or branch is None
    key = journal.key_of(call, body, parent=parent, branch=branch)
    if branch is not None:
        ambient.go_on(scope, branch, call.name.encode() + (body if call.key is None else call.key.encode()))
        if parent == ROOT:
            journal.branches.enter(task)
    return key, body


async def _look(call: Call, run: Run) -> Any:
    """Make a call inside reconcile. Raises BadInput for one that does more than look."""
    if call.is_dangerous or run is not live.run:
        raise BadInput(f"{call.name} cannot be called inside reconcile, which only looks", field="reconcile")
    async with asyncio.timeout(call.timeout_s):
        return await run_plainly(call.fn, call.args, call.kwargs)


async def _settle_cut(attempt: Attempt, call: Call, cut: live.InDoubt) -> Any:
    """Settle a call that was cut off in this attempt; run again, it may be cut off again."""
    while True:
        try:
            return await doubts.settle_fresh(attempt, call, cut)
        except live.InDoubt as doubt:
            cut = doubt


def answer(attempt: Attempt, call: Call, record: Step) -> Any:
    """The outcome that a record holds, handed out again."""
    attempt.saved.count(record)
    if record.outcome == "completed":
        return unpacked(record, call.annotation)
    error = Error.from_json(unpacked(record, codec.ANY))
    # What it was declared as when it was made decides whether a machine may make it again.
    risk = call.risk if record.risk is None else highest(call.risk, Risk.parse(record.risk))
    raise attempt.remember(stand_ins.raise_again(error, tool=call.name), record.step_index, risk)
