"""A call that died between its intent and its outcome: nobody knows whether it happened.

Low and medium risk run again. From high up no machine runs it again by itself: `reconcile` may know, else a person
says *it happened, with this result*, *it did not, run it*, or *give up*. "Run it" acts only once the process that
held the call is proven gone, for a process that was only stopped may still wake in the middle of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure import ambient, codec
from perdure.errors import NotApplied, OutcomeUnknown
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Wait, WaitKind
from perdure.policy.risk import Risk
from perdure.runtime import live, stand_ins
from perdure.runtime.call import Call
from perdure.states import InstanceStatus
from perdure.store import payloads, questions, steps

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

HAPPENED, NOT_HAPPENED, UNKNOWN, GIVE_UP = "happened", "not_happened", "unknown", "give_up"
_LOOK_AGAIN_MS = 1000


@dataclass(frozen=True, slots=True)
class Verdict(Generic[R_co]):
    """What became of a call: it happened with this result, it did not, or nobody knows."""

    kind: str
    result: Any = None
    why: str = ""


def happened(result: R) -> Verdict[R]:
    """The call took place and returned this."""
    return Verdict(HAPPENED, result)


def not_happened() -> Verdict[Any]:
    """The call certainly did not take place; it may run."""
    return Verdict(NOT_HAPPENED)


def unknown(why: str = "") -> Verdict[Any]:
    """It cannot be told (yet); a person is asked."""
    return Verdict(UNKNOWN, why=why)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A call in doubt, as `reconcile` gets it. `token` is what the call had in `current().token`."""

    token: str
    args: Mapping[str, Any]
    started_at: datetime
    cause: str


async def settle(attempt: Attempt, call: Call, record: Step, body: bytes) -> Any:
    """A call whose intent an earlier attempt left without an outcome."""
    step = attempt.journal.step(
        call, key=record.key or "", body=body, try_number=record.try_number, token=record.token
    )
    if call.risk is Risk.MEDIUM:
        # Declared idempotent: one token has one effect, whoever runs it again.
        return await live.run(attempt, call, key=step.key, body=body, record=record)
    cause = f"attempt {record.attempt} ended between its start and its outcome"
    return await _settle(attempt, call, step, held_by=record.attempt, started_ms=record.timestamp, cause=cause)


async def settle_fresh(attempt: Attempt, call: Call, step: steps.NewStep, *, cause: str) -> Any:
    """A call of this attempt that was cut off or raised an ambiguous error."""
    started_ms = attempt.journal.store.clock.now_ms()
    return await _settle(
        attempt, call, step, held_by=attempt.task.attempt, started_ms=started_ms, cause=cause
    )


async def settle_unreached(attempt: Attempt, record: Step) -> None:
    """A call in doubt that the code no longer makes: what became of it is still asked before the task completes."""
    journal = attempt.journal
    payload = await journal.read(_recorded_input, record.task_id, record.key or "", record.try_number)
    call = Call(
        kind=StepKind(record.event_kind),
        name=record.name,
        fn=_never,
        input=payload if isinstance(payload, Mapping) else {"input": payload},
        risk=Risk.parse(record.risk or Risk.HIGH),
    )
    step = journal.step(
        call, key=record.key or "", body=codec.evidence(call.input), try_number=record.try_number, token=record.token
    )
    cause = f"attempt {record.attempt} ended inside it, and the code has gone on without it"
    question = await _ask(attempt, call, step, cause=cause, reconciled="", started_ms=record.timestamp)
    verdict = await _read_verdict(attempt, question)
    try:
        if verdict.kind == HAPPENED:
            await live.complete_call(attempt, call, step, verdict.result, begun=True, question_id=question.id)
        elif verdict.kind == NOT_HAPPENED:
            await live.fail_call(
                attempt, call, step, NotApplied("it did not happen"), begun=True, question_id=question.id
            )
        else:
            await _give_up(attempt, call, step, question)
    except Exception:  # noqa: BLE001  # The outcome is on record; no code waits for it.
        return


async def _settle(
    attempt: Attempt, call: Call, step: steps.NewStep, *, held_by: int, started_ms: int, cause: str
) -> Any:
    journal = attempt.journal
    question = await journal.read(questions.live_for_step, attempt.task.id, QuestionKind.STEP_IN_DOUBT, step.key)
    if question is None:
        said = await _reconcile(attempt, call, step, started_ms=started_ms, cause=cause)
        if said.kind == HAPPENED:
            return await live.complete_call(attempt, call, step, said.result, begun=True)
        if said.kind == NOT_HAPPENED:
            await _until_gone(attempt, step, held_by, None)
            return await _run_again(attempt, call, step, None)
        reconciled = said.why
    else:
        reconciled = ""  # Asked already: reconcile had its word.
    question = await _ask(attempt, call, step, cause=cause, reconciled=reconciled, started_ms=started_ms)
    verdict = await _read_verdict(attempt, question)
    match verdict.kind:
        case str() if verdict.kind == HAPPENED:
            return await live.complete_call(
                attempt, call, step, verdict.result, begun=True, question_id=question.id
            )
        case str() if verdict.kind == NOT_HAPPENED:
            await _until_gone(attempt, step, held_by, question)
            return await _run_again(attempt, call, step, question)
        case _:
            return await _give_up(attempt, call, step, question)


async def _run_again(attempt: Attempt, call: Call, step: steps.NewStep, question: Question | None) -> Any:
    """Run a call that did not happen. From here on this attempt holds it, and the answer is used up."""
    journal = attempt.journal
    await attempt.host.until_may_call()
    await journal.write(
        steps.begin_again,
        journal.fence,
        step.key,
        step.try_number,
        question_id=None if question is None else question.id,
    )
    attempt.check()
    await attempt.host.until_may_call()
    return await live.run_begun(attempt, call, step)


async def _give_up(attempt: Attempt, call: Call, step: steps.NewStep, question: Question) -> Any:
    gave_up = stand_ins.outcome_unknown(call.name, question.reason or "")
    error = stand_ins.describe(gave_up)
    return await live.fail_call(
        attempt, call, step, OutcomeUnknown(str(gave_up), tool=call.name), begun=True, question_id=question.id,
        error=error,
    )


async def _ask(
    attempt: Attempt, call: Call, step: steps.NewStep, *, cause: str, reconciled: str, started_ms: int
) -> Question:
    text = f"did {call.name}({ambient.describe((), call.input)}) happen?"
    extra = {"cause": cause, "started_at": started_ms, "reconcile": reconciled, "token": step.token or ""}
    return await live.ask_person(attempt, call, step, QuestionKind.STEP_IN_DOUBT, text, extra)


async def _read_verdict(attempt: Attempt, question: Question) -> Verdict[Any]:
    value = await attempt.journal.read(_answer, question)
    if not isinstance(value, Mapping):
        return Verdict(GIVE_UP, why=question.reason or "")
    return Verdict(str(value["verdict"]), value.get("result"))


async def _reconcile(
    attempt: Attempt, call: Call, step: steps.NewStep, *, started_ms: int, cause: str
) -> Verdict[Any]:
    """Ask the tool's own `reconcile`, once. A critical call is never settled by a machine."""
    if call.reconcile is None or call.risk is Risk.CRITICAL:
        return Verdict(UNKNOWN)
    doubt = Doubt(step.token or "", dict(call.input), datetime.fromtimestamp(started_ms / 1000, UTC), cause)
    try:
        said = call.reconcile(doubt)
        if inspect.isawaitable(said):
            said = await said
    except Exception as exc:  # noqa: BLE001  # Its error is a word on the question, not the task's end.
        return Verdict(UNKNOWN, why=f"reconcile failed: {stand_ins.class_name(exc)}: {stand_ins.text_of(exc)}")
    if not isinstance(said, Verdict):
        return Verdict(UNKNOWN, why=f"reconcile returned {type(said).__name__}, not a verdict")
    return said


async def _until_gone(attempt: Attempt, step: steps.NewStep, held_by: int, question: Question | None) -> None:
    """Wait until nobody can be inside the call any more, or a person says not to wait."""
    journal = attempt.journal
    while True:
        owner = await journal.read(steps.owner, attempt.task.id, held_by)
        if owner is None or owner.status is None or owner.status == InstanceStatus.STOPPED:
            return
        if owner.instance_id == attempt.host.instance_id and not attempt.host.in_flight.holds(
            attempt.task.id, step.key
        ):
            return
        if question is not None and (await journal.read(questions.get, question.id)).anyway:
            return
        until_ms = journal.store.clock.now_ms() + _LOOK_AGAIN_MS
        await attempt.waits.until(Wait(WaitKind.TIMER, (f"gone:{owner.instance_id}",), step.key, until_ms))


def _answer(tx: Any, question: Question) -> Any:
    return payloads.plain(tx, question.answer)


def _recorded_input(tx: Any, task_id: str, key: str, try_number: int) -> Any:
    found = steps.by_key(tx, task_id, key, try_number)
    return None if found is None or found.payload is None else payloads.plain(tx, found.payload)


async def _never() -> None:
    raise AssertionError("a call that the code no longer makes is not run")
