"""A call without a record while a recorded one of its name lies unused: new code, or branches still on their way.

Low risk runs and says so. Above, it is held until no answer has been handed out for a while; if the record still lies
unused then, a person is asked, or DriftError raised where the agent wants that. Should a branch come to the record
after all, the question is taken back and the call runs. A record counts wherever it was made, since a harmless call
around it may have been made with another input, renamed or dropped.

The call of an agent is as dangerous as what the child of an unused one has done: a child that has not ended is waited
for, since it may yet come to something dangerous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from perdure import ambient, recalled
from perdure.errors import Drift
from perdure.model.event import EventKind
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Wait, WaitKind
from perdure.policy.risk import Risk
from perdure.runtime import live
from perdure.runtime.asking import TakenBack
from perdure.runtime.call import Call
from perdure.runtime.until import Until, set_over
from perdure.store import messages, payloads, questions, steps, task_lists, tasks
from perdure.store.database import Transaction
from perdure.trace import scope_of, scope_under

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

_LOOK_AGAIN_MS: Final = 10_000
_FOUND = TakenBack("the code has come to its record after all")


async def hold(attempt: Attempt, call: Call, *, parent: str, key: str, body: bytes) -> None:
    """Return once the call may run. Raises Drift, or the stand-in of Denied or Expired."""
    journal = attempt.journal
    lies_unused = partial(_unused, attempt, call, key, parent)
    is_told = False
    while unused := lies_unused():
        changed = journal.next_answer()
        signs, child = await _look_into(attempt, call, unused)
        if not signs and child is None:
            scope = scope_under(parent)  # Of what was made elsewhere nothing is told.
            if made_here := [step for step in unused if scope_of(step.key or "") == scope]:
                await _tell(attempt, call, made_here)
            return
        if not await _settled(attempt, lies_unused):
            return
        signs, child = await _look_into(attempt, call, lies_unused())
        if signs:
            why = await _why(attempt, signs, key)
            if attempt.definition.drift == "error":
                raise attempt.remember(Drift(why), -1, call.risk)
            step = journal.step(call, key=key, body=body, token=journal.token_for(None))
            if await _ask(attempt, call, step, {sign.key for sign in signs}, lies_unused, why=why):
                return
        elif child is not None:
            if not is_told:
                await _tell(attempt, call, unused, waits_for=child)
            is_told = True
            await _until_changed(attempt, child, key, changed)


def _unused(attempt: Attempt, call: Call, key: str, parent: str) -> list[Step]:
    journal = attempt.journal
    return journal.records.unused_like(
        call.name, key=key, parent=parent, is_dangerous=call.may_be_dangerous, open_keys=journal.open_keys
    )


async def _settled(attempt: Attempt, lies_unused: Callable[[], list[Step]]) -> bool:
    """Wait until no answer has been handed out for a while. Whether something lies unused all the same."""
    journal = attempt.journal
    answered = -1
    while answered != journal.answered:
        answered = journal.answered
        await attempt.host.pause(attempt.host.settings.drift_settle_ms / 1000)
        for _ in range(3):
            await asyncio.sleep(0)  # A loop that was busy all the while lets the other branches go on first.
        if not lies_unused():
            return False
    return True


async def _look_into(attempt: Attempt, call: Call, unused: list[Step]) -> tuple[list[Step], str | None]:
    """Which of these records speak against the call, and a child of one that has not ended, and may yet do so."""
    if call.is_dangerous or call.agent_risk is not Risk.LOW:
        return unused, None
    if call.kind is not StepKind.CHILD:
        return [], None
    return await attempt.journal.read(_look_into_children, unused, attempt.journal.harmless)


def _look_into_children(tx: Transaction, unused: list[Step], harmless: set[str]) -> tuple[list[Step], str | None]:
    signs, child = [], None
    for step in unused:
        child_id = step.child_task_id
        if step.risk != Risk.LOW:
            signs.append(step)
        elif child_id is not None and child_id not in harmless:
            danger = task_lists.danger(tx, child_id)
            if danger.forbids_another or (danger.is_open and _waits_for_mail(tx, child_id)):
                signs.append(step)
            elif danger.is_open:
                child = child or child_id
            else:
                harmless.add(child_id)
    return signs, child


def _waits_for_mail(tx: Transaction, task_id: str) -> bool:
    """Whether a task waits for what perhaps nobody sends, its parent even: it may never end."""
    return any(wait.kind is WaitKind.RECEIVE for wait in tasks.get(tx, task_id).waiting_for)


async def _until_changed(attempt: Attempt, child: str, key: str, changed: asyncio.Future[None]) -> None:
    """Wait until the child has ended, the code has come to another record, or it is time to look again."""
    clock = attempt.journal.store.clock
    until = Until.after(clock, _LOOK_AGAIN_MS)
    wait = Wait(WaitKind.CHILDREN, (child,), key, until.wall_ms)
    with until.timer(clock) as over:
        changed.add_done_callback(partial(set_over, over))
        await attempt.waits.until(wait, or_done=over, inside=ambient.scope(), outside_gather=True)


async def _tell(attempt: Attempt, call: Call, unused: list[Step], *, waits_for: str | None = None) -> None:
    """Say that a call is new beside these records, and for whose end it waits."""
    journal = attempt.journal
    told: dict[str, Any] = {"name": call.name, "unused": [step.step_index for step in unused][:20]}
    if waits_for is not None:
        told["waits_for"] = waits_for
    await journal.write_softly(messages.emit_owned, journal.fence, EventKind.DRIFT, told)


async def _why(attempt: Attempt, signs: list[Step], key: str) -> str:
    journal = attempt.journal
    recorded = ", ".join(f"step {step.step_index}" for step in signs[:5])
    if journal.records.unsure_like(key):
        return f"It equals {recorded}, made beside whatever saved the last checkpoint: this may be the same call again."
    known = "; ".join([await journal.read(_written, step) for step in signs[:3]])
    return f"The code now makes a call that is not on record, while {recorded} lies unused: {known}."


def _written(tx: Transaction, step: Step) -> str:
    """A recorded call as one would write it, with its arguments: what the new call differs from."""
    written = recalled.call(step.name, payloads.plain(tx, step.payload))
    if step.is_in_doubt:
        return f"{written}, which is in doubt and may have happened"
    if step.child_task_id is None:
        return written
    danger = task_lists.danger(tx, step.child_task_id)
    if danger.has_begun:
        return f"{written}, whose task {step.child_task_id} has begun calls above low risk"
    if danger.is_open_below:
        return f"{written}, whose task {step.child_task_id} has left others running"
    return f"{written}, which was task {step.child_task_id}"


async def _ask(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    signs: set[str | None],
    lies_unused: Callable[[], list[Step]],
    *,
    why: str,
) -> bool:
    """Ask a person, for as long as one of these records lies unused. Whether there was a yes."""
    journal = attempt.journal
    loop = asyncio.get_running_loop()
    asking: asyncio.Future[Question] = loop.create_task(live.ask_first(attempt, call, step, why=why))
    try:
        while not asking.done() and any(one.key in signs for one in lies_unused()):
            answered: asyncio.Future[Any] = journal.next_answer()
            await asyncio.wait([asking, answered], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        asking.cancel()
        await asyncio.wait({asking})
        raise
    if asking.done():
        attempt.allowed[step.key] = asking.result().id
        journal.is_another(step.key)  # Not after a no, which a model may answer by calling it again.
        return True
    asking.cancel(_FOUND)
    await asyncio.wait({asking})
    known = await journal.read(questions.live_for_step, attempt.task.id, QuestionKind.CALL, step.key)
    if known is not None:  # A yes that was on its way.
        await journal.write(questions.void, journal.fence, known.id, reason=str(_FOUND))
    await attempt.waits.until_running()  # It may have been set aside meanwhile.
    return False
