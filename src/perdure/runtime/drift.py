"""A call without a record while a recorded one of its name lies unused: new code, or branches still on their way.

Low risk runs and says so. Above, it is held until no answer has been handed out for a while; if the record still lies
unused then, a person is asked, or DriftError raised where the agent wants that. Should a branch come to the record
after all, the question is taken back and the call runs. A record counts wherever it was made, since a harmless call
around it may have been made with another input, renamed or dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure import recalled
from perdure.errors import Drift
from perdure.model.event import EventKind
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step
from perdure.runtime import live
from perdure.runtime.asking import TakenBack
from perdure.runtime.call import Call
from perdure.store import messages, payloads, questions, steps
from perdure.store.database import Transaction

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

_FOUND = TakenBack("the code has come to its record after all")


async def hold(attempt: Attempt, call: Call, *, parent: str, key: str, body: bytes) -> None:
    """Return once the call may run. Raises Drift, or the stand-in of Denied or Expired."""
    journal = attempt.journal
    unused = _unused(attempt, call, key, parent)
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
        unused = _unused(attempt, call, key, parent)
        if not unused:
            return
    recorded = ", ".join(f"step {step.step_index}" for step in unused[:5])
    known = "; ".join([await journal.read(_written, step) for step in unused[:3]])
    why = f"The code now makes a call that is not on record, while {recorded} lies unused: {known}."
    if journal.records.unsure_like(key):
        why = f"It equals {recorded}, made beside whatever saved the last checkpoint: this may be the same call again."
    if attempt.definition.drift == "error":
        raise attempt.remember(Drift(why), -1, call.risk)
    step = journal.step(call, key=key, body=body, token=journal.token_for(None))
    await _ask(attempt, call, step, parent=parent, why=why)


def _unused(attempt: Attempt, call: Call, key: str, parent: str) -> list[Step]:
    journal = attempt.journal
    return journal.records.unused_like(
        call.name, key=key, parent=parent, is_dangerous=call.is_dangerous, open_keys=journal.open_keys
    )


def _written(tx: Transaction, step: Step) -> str:
    """A recorded call as one would write it, with its arguments: what the new call differs from."""
    doubt = ", which is in doubt and may have happened" if step.is_in_doubt else ""
    return recalled.call(step.name, payloads.plain(tx, step.payload)) + doubt


async def _ask(attempt: Attempt, call: Call, step: steps.NewStep, *, parent: str, why: str) -> None:
    """Ask a person, for as long as the record lies unused."""
    journal = attempt.journal
    loop = asyncio.get_running_loop()
    asking: asyncio.Future[Question] = loop.create_task(live.ask_first(attempt, call, step, why=why))
    try:
        while not asking.done() and _unused(attempt, call, step.key, parent):
            answered: asyncio.Future[Any] = journal.next_answer()
            await asyncio.wait([asking, answered], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        asking.cancel()
        await asyncio.wait({asking})
        raise
    if asking.done():
        attempt.allowed[step.key] = asking.result().id
        journal.is_another(step.key)  # Not after a no, which a model may answer by calling it again.
        return
    asking.cancel(_FOUND)
    await asyncio.wait({asking})
    known = await journal.read(questions.live_for_step, attempt.task.id, QuestionKind.CALL, step.key)
    if known is not None:  # A yes that was on its way.
        await journal.write(questions.void, journal.fence, known.id, reason=str(_FOUND))
    await attempt.waits.until_running()  # It may have been set aside meanwhile.
