"""What happens when agent code makes a call: answered from the record, run live, or in doubt.

    recorded with an outcome      -> the recorded result, or the recorded error again
    recorded without one          -> in doubt (doubts.py)
    no record, others lie unused  -> drift (above low risk: held, then asked)
    no record                     -> live (live.py): low risk, one write after; above, intent first
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from perdure import ambient, codec
from perdure.errors import Drift, WrongThread
from perdure.model.event import EventKind
from perdure.model.step import Step
from perdure.runtime import doubts, live, stand_ins
from perdure.runtime.call import Call
from perdure.runtime.journal import unpacked
from perdure.store import messages
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
    attempt.check()
    if not attempt.is_on_loop:
        raise WrongThread(
            f"{call.name} was awaited on a loop that is not its task's: from there write "
            "await asyncio.to_thread(f, …) with f of perdure.sync"
        )
    journal = attempt.journal
    scope = ambient.require(call.name)
    if scope.is_over:
        raise asyncio.CancelledError("the call around this one has been cut off")
    if scope.secrets:
        call.secrets = (*call.secrets, *scope.secrets)
    parent = scope.parent_key
    body = codec.evidence(call.input, secrets=call.secrets)
    key = journal.key_of(call, body, parent=parent)
    await journal.until_settled(key)
    record = journal.records.find(key)
    if record is not None and record.outcome is not None and record.retried_at is None:
        journal.used(key)
        return answer(attempt, call, record)
    # Pairs of calls, and not contexts made of generators: those took a tenth of all the time that a step takes.
    attempt.open_call(call)
    try:
        if parent == ROOT:
            await attempt.until_calls_may_begin()
        journal.open(call, key, body, parent=parent)
        try:
            async with attempt.waits.call():
                if record is None:
                    await _settle_drift(attempt, call, parent=parent, key=key, body=body)
                journal.used(key)
                return await _run_or_settle(attempt, call, run, key=key, body=body, record=record)
        finally:
            journal.close(call, key, parent=parent)
    finally:
        attempt.close_call(call)


async def _run_or_settle(
    attempt: Attempt, call: Call, run: Run, *, key: str, body: bytes, record: Step | None
) -> Any:
    cut: live.InDoubt | None = None
    while True:
        try:
            if cut is not None:
                return await doubts.settle_fresh(attempt, call, cut.step, cause=cut.cause)
            if record is not None and record.is_in_doubt:
                return await doubts.settle(attempt, call, record, body)
            return await run(attempt, call, key=key, body=body, record=record)
        except live.InDoubt as doubt:
            cut = doubt


def answer(attempt: Attempt, call: Call, record: Step) -> Any:
    """The outcome that a record holds, handed out again."""
    attempt.saved.count(record)
    if record.outcome == "completed":
        return unpacked(record, call.annotation)
    error = stand_ins.from_json(unpacked(record, codec.ANY))
    raise attempt.remember(stand_ins.raise_again(error, tool=call.name), record.step_index, call.risk)


async def _settle_drift(attempt: Attempt, call: Call, *, parent: str, key: str, body: bytes) -> None:
    """A call without a record while a recorded one of its name lies unused: new code, or branches still on their way.

    Low risk runs and says so. Above, it is held until no answer has been handed out for a while; if the record still
    lies unused then, a person is asked, or DriftError raised where the agent wants that.
    """
    journal = attempt.journal
    unused = journal.records.unused_of(parent, call.name)
    if not unused:
        return
    if not call.is_dangerous:
        told = {"name": call.name, "unused": [step.step_index for step in unused][:20]}
        await journal.write_softly(messages.emit_owned, journal.fence, EventKind.DRIFT, told)
        return
    answered = -1
    while answered != journal.answered:
        answered = journal.answered
        await attempt.host.pause(attempt.host.settings.drift_settle_ms / 1000)
        for _ in range(3):
            await asyncio.sleep(0)  # A loop that was busy all the while lets the other branches go on first.
        unused = journal.records.unused_of(parent, call.name)
        if not unused:
            return
    recorded = ", ".join(f"step {step.step_index}" for step in unused[:5])
    why = f"The code now makes a call that is not on record, while {recorded} of {call.name} lies unused."
    if attempt.definition.drift == "error":
        raise attempt.remember(Drift(why), -1, call.risk)
    step = journal.step(call, key=key, body=body, token=journal.token_for(None))
    question = await live.ask_first(attempt, call, step, why=why)
    attempt.allowed[key] = question.id
