"""A call that really runs: its intent on record first where its risk wants that, its outcome before anybody has it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import structs

from perdure import ambient, codec, phrases
from perdure.errors import (
    BudgetExceeded,
    Denied,
    Error,
    Expired,
    NotApplied,
    NotSerializable,
    PerdureError,
    RefusedBySchema,
)
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Usage
from perdure.policy.retry import ErrorClass, RetryPolicy, classify, delay_s, should_retry
from perdure.policy.risk import Risk
from perdure.runtime import raised, stand_ins
from perdure.runtime.asking import ask_person, described
from perdure.runtime.call import Call
from perdure.runtime.running import CancelledInside, CutOff, run_function, usage_of, usage_told
from perdure.states import QuestionStatus
from perdure.store import steps
from perdure.store.last_words import LastWord, WordKind

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

log = logging.getLogger(__name__)

_NOTHING = Usage()


class InDoubt(Exception):
    """The call was cut off, or raised what its author calls ambiguous: nobody knows whether it happened.

    So it ended in the last of so many `tries`.
    """

    def __init__(self, step: steps.NewStep, cause: str, tries: int) -> None:
        super().__init__(cause)
        self.step = step
        self.cause = cause
        self.tries = tries


async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
    """Run a call that has no outcome on record, and put its outcome there."""
    journal = attempt.journal
    begun = record is not None and record.outcome is None
    counts = False
    if attempt.spending.has_limits:
        counts = attempt.spending.limits_number_of(call)
        # The store looks itself where it counts the call; a person is not asked about one that has no room.
        if begun or call.needs_approval or not counts:
            await attempt.spending.look(journal.read, has_children=journal.may_have_children)
    attempt.spending.reserve(call, is_counted=begun)
    is_dangerous = call.risk is not Risk.LOW
    token = journal.token_for(record) if is_dangerous else None
    step = journal.step(call, key=key, body=body, try_number=journal.try_of(record), token=token)
    try:
        approval_id = attempt.allowed.pop(key, None)
        if call.needs_approval and not begun:
            approval_id = (await ask_first(attempt, call, step)).id
        if is_dangerous:
            await attempt.host.until_may_call()
            ambient.refuse_cut_off()  # While a person was asked, say.
    except asyncio.CancelledError:
        if not begun:
            attempt.spending.give_back(call)
        raise
    if is_dangerous:
        # Known before it is written: a branch that is cancelled meanwhile leaves it on record all the same.
        attempt.intents[key] = call, step
        if begun:
            step = structs.replace(step, may_have_happened=True)  # Medium: it runs again, and nobody finds that out.
            await take_over(attempt, step, question_id=None)
        else:
            await _begin(attempt, call, step, question_id=approval_id, counts=counts)
        await until_may_start(attempt, step)
        begun = True
        approval_id = None  # Used up by the intent that it allowed; without one, by the outcome.
    elif counts and not begun:
        await _begin(attempt, call, step, question_id=approval_id, counts=True)
        begun, approval_id = True, None
    return await run_begun(attempt, call, step, begun=begun, question_id=approval_id)


async def _begin(attempt: Attempt, call: Call, step: steps.NewStep, *, question_id: str | None, counts: bool) -> None:
    try:
        await attempt.journal.begin(step, question_id=question_id, counts=counts)
    except asyncio.CancelledError:
        if call.is_dangerous:
            _keep_not_called(attempt, step)  # Its intent may be on record by now.
        raise
    except (BudgetExceeded, RefusedBySchema):
        # Nothing was begun; what the others have used meanwhile is seen from here on.
        attempt.intents.pop(step.key, None)
        attempt.spending.give_back(call)
        await attempt.spending.look(attempt.journal.read)
        raise


async def take_over(attempt: Attempt, step: steps.NewStep, *, question_id: str | None) -> None:
    """This attempt holds from here on a call that another one had begun; the answer that allows it is used up."""
    try:
        await attempt.journal.take_over(step, question_id=question_id)
    except asyncio.CancelledError:
        _keep_not_called(attempt, step)  # It may be this attempt's by now.
        raise
    attempt.host.in_flight.forget(attempt.task.id, step.key)


async def until_may_start(attempt: Attempt, step: steps.NewStep) -> None:
    """The last look before a call whose intent is on record: is the task still ours, and do we live?"""
    try:
        attempt.check()
        await attempt.host.until_may_call()
        attempt.check()
        ambient.refuse_cut_off()
    except asyncio.CancelledError:
        _keep_not_called(attempt, step)
        raise


async def run_begun(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    *,
    begun: bool = True,
    question_id: str | None = None,
    tries: int = 0,
) -> Any:
    """Run the function now; its intent is on record where its risk wants that. The outcome uses up `question_id`.

    It has had so many `tries` already.
    """
    acting = attempt.as_run_here(call)
    attempt.journal.runs_live()
    told = ambient.Scope(attempt, step.key)
    clock = attempt.journal.store.clock
    began_ms = clock.boot_ms()
    call.is_running = True
    try:
        try:
            value = await _with_retries(attempt, acting, step, told, tries)
        except _Cut as cut:
            raise InDoubt(step, str(cut), cut.tries) from cut.__cause__
        except Exception as exc:  # noqa: BLE001  # Whatever a tool raises is its outcome.
            usage = usage_told(told)
            took_ms = clock.boot_ms() - began_ms
            await fail_call(
                attempt, call, step, exc, begun=begun, usage=usage, question_id=question_id, took_ms=took_ms
            )
        took_ms = clock.boot_ms() - began_ms
        usage = usage_told(told) if told.usage else usage_of(value)
        return await complete_call(
            attempt, call, step, value, begun=begun, usage=usage, question_id=question_id, took_ms=took_ms
        )
    finally:
        call.is_running = False


async def complete_call(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    value: Any,
    *,
    begun: bool,
    usage: Usage = _NOTHING,
    question_id: str | None = None,
    is_found_out: bool = False,
    took_ms: int = 0,
) -> Any:
    """Put a result on record and return it as it will come back: live and replay agree.

    `is_found_out`: the call was made before, by this attempt or an earlier one, and only its outcome is told now.
    """
    limit, stored = attempt.host.settings.payload_limit_bytes, b""
    try:
        try:
            stored, read = codec.encode_to_return(value, annotation=call.annotation, limit=limit)
        except NotSerializable as exc:
            raise NotSerializable(f"the result of {call.name} cannot be stored: {exc}", path=exc.path) from exc
        if call.secrets and (masked := codec.mask(stored, call.secrets)) != stored:
            stored, read = masked, partial(codec.decode, masked, annotation=call.annotation)
        result = steps.Result(
            completed=True,
            output=codec.pack(stored),
            usage=usage,
            question_id=question_id,
            is_found_out=is_found_out,
            took_ms=took_ms,
        )
        writing = attempt.journal.complete(step, result, begun=begun)
        after = read()  # While it is on its way to the disk.
        await writing
    except (NotSerializable, RefusedBySchema) as refused:
        # The call was made; on record as one whose result cannot be stored, it is not asked about, nor made again.
        await fail_call(
            attempt,
            call,
            step,
            refused,
            begun=begun,
            usage=usage,
            question_id=question_id,
            is_found_out=is_found_out,
            took_ms=took_ms,
        )
    except asyncio.CancelledError:
        if call.is_dangerous:
            attempt.host.in_flight.keep(_word(attempt, step, WordKind.COMPLETED, stored))
        raise
    attempt.outcome_recorded(step, usage)
    return after


async def fail_call(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    exc: BaseException | None,
    *,
    begun: bool,
    usage: Usage = _NOTHING,
    question_id: str | None = None,
    error: Error | None = None,
    is_found_out: bool = False,
    delivery: int | None = None,
    took_ms: int = 0,
) -> NoReturn:
    """Put an error on record and raise its stand-in. `delivery` is what the call takes all the same."""
    if error is None:
        assert exc is not None
        error = stand_ins.describe(exc, secrets=call.secrets)
    body = stand_ins.to_body(error)
    result = steps.Result(
        completed=False,
        output=codec.pack(body),
        usage=usage,
        question_id=question_id,
        is_found_out=is_found_out,
        delivery=delivery,
        took_ms=took_ms,
    )
    try:
        index = await attempt.journal.complete(step, result, begun=begun)
    except asyncio.CancelledError:
        if call.is_dangerous and begun:
            attempt.host.in_flight.keep(_word(attempt, step, WordKind.FAILED, body))
        raise
    attempt.outcome_recorded(step, usage)
    raise attempt.remember(stand_ins.raise_again(error, tool=call.name, live=exc), index, call.risk)


def _word(attempt: Attempt, step: steps.NewStep, kind: WordKind, body: bytes = b"") -> LastWord:
    return LastWord(attempt.task.id, step.key, attempt.task.attempt, kind, body)


def _keep_not_called(attempt: Attempt, step: steps.NewStep) -> None:
    """This attempt's try did not happen: so the call did not, unless an earlier one may have."""
    if not step.may_have_happened:
        attempt.host.in_flight.keep(_word(attempt, step, WordKind.NOT_CALLED))


async def _with_retries(attempt: Attempt, call: Call, step: steps.NewStep, told: ambient.Scope, tries: int) -> Any:
    """Run the function; again for errors that another try may mend, as far as its risk allows."""
    retries = retries_of(attempt, call)
    for number in range(tries, retries + 1):
        # Each try finds the calls made inside it by the same keys: what they have done is not done again.
        attempt.journal.restart(step.key)
        scope = ambient.Scope(
            attempt, step.key, step.token or "", usage=told.usage, secrets=call.secrets, around=ambient.scope()
        )
        try:
            value = await run_function(attempt, call, step, scope)
            scope.has_returned = True
            return value
        except Exception as exc:
            scope.is_over = True
            if call.risk >= Risk.HIGH and (why := _why_in_doubt(attempt, call, exc)):
                raise _Cut(why, number + 1) from exc
            failed = exc
        except BaseException:  # Cut off from outside; a thread of it may run on.
            scope.is_over = True
            raise
        if not _may_repeat(attempt, call, failed, number, retries):
            raise failed
        if _is_unclear(call, failed):
            step = structs.replace(step, may_have_happened=True)
        try:
            await until_again(attempt, call, failed, number, retries)
            if call.is_dangerous:
                await attempt.host.until_may_call()
                attempt.check()
                ambient.refuse_cut_off()
        except asyncio.CancelledError:
            if call.is_dangerous:  # What the last try came to is known, and nobody need be asked.
                _keep_word_of_try(attempt, call, step, failed)
            raise
    raise AssertionError("the last try raises")


async def until_again(attempt: Attempt, call: Call, failed: BaseException, number: int, retries: int) -> None:
    """Wait as long as the policy wants before the next try. Calls inside whose errors made it fail run anew in it."""
    run_inside_anew(attempt, failed)
    wait_s = delay_s(RetryPolicy(retries=retries), number, attempt.host.random)
    _log_retry(attempt, call, failed, f"try {number + 2} of {retries + 1} in {phrases.duration(wait_s * 1000)}")
    await attempt.host.pause(wait_s)
    attempt.check()
    ambient.refuse_cut_off()  # Left running by a call that was cut off, it begins nothing any more.


def run_inside_anew(attempt: Attempt, failed: BaseException) -> None:
    """Calls inside whose errors made a call fail, and might pass, are no longer answered by these."""
    for index, is_final in attempt.raised(failed):
        if not is_final:
            attempt.journal.records.run_anew(index, now_ms=attempt.journal.store.clock.now_ms())


def retries_of(attempt: Attempt, call: Call) -> int:
    """How often the machine may make a call again by itself."""
    return attempt.host.settings.call_retries if call.retries is None else call.retries


def _log_retry(attempt: Attempt, call: Call, failed: BaseException, again: str) -> None:
    why = phrases.safe(phrases.failure(stand_ins.describe(failed, secrets=call.secrets)))
    ids = {"task": attempt.task.id, "agent": attempt.task.agent, "attempt": attempt.task.attempt, "call": call.name}
    log.warning("%s of task %s failed; %s: %s", call.name, attempt.task.id, again, why, extra=ids)


def _may_repeat(attempt: Attempt, call: Call, failed: Exception, number: int, retries: int) -> bool:
    # The error of a call inside this one has had its tries there already.
    if call.kind is StepKind.VALUE or attempt.knows(failed):
        return False
    # A medium call is declared idempotent: it may simply be tried again, also when nobody knows whether it happened.
    if isinstance(failed, NotApplied) or (_is_unclear(call, failed) and call.risk < Risk.HIGH):
        kind = ErrorClass.RETRIABLE
    elif call.risk < Risk.HIGH:
        kind = classify(failed)
    else:
        return False  # From high up an exception is the outcome, unless the tool says that nothing happened.
    return should_retry(RetryPolicy(retries=retries), kind, number)


def _is_unclear(call: Call, failed: Exception) -> bool:
    """Whether this error leaves open what the call has done."""
    return isinstance(failed, (CutOff, CancelledInside, *call.ambiguous))


def _keep_word_of_try(attempt: Attempt, call: Call, step: steps.NewStep, failed: Exception) -> None:
    if isinstance(failed, NotApplied):
        _keep_not_called(attempt, step)
    elif not _is_unclear(call, failed):
        body = stand_ins.to_body(stand_ins.describe(failed, secrets=call.secrets))
        attempt.host.in_flight.keep(_word(attempt, step, WordKind.FAILED, body))


class _Cut(Exception):
    """The function did not end in a way that says whether it happened, in the last of so many `tries`."""

    def __init__(self, why: str, tries: int) -> None:
        super().__init__(why)
        self.tries = tries


def _why_in_doubt(attempt: Attempt, call: Call, exc: Exception) -> str:
    """Why nobody knows whether a call happened that ended with this error; "" where the error is its outcome."""
    # One of a call inside it was cut off, or cancelled, and not this one.
    is_own = not attempt.knows(exc)
    if is_own and isinstance(exc, CutOff):
        return f"cut off after its timeout of {call.timeout_s:g} s"
    if is_own and isinstance(exc, CancelledInside):
        return str(exc)
    if isinstance(exc, call.ambiguous):
        return f"{raised.class_name(exc)}: {raised.text_of(exc)}"
    return ""


async def ask_first(attempt: Attempt, call: Call, step: steps.NewStep, *, why: str = "") -> Question:
    """A person's yes, as a question bound to these arguments. Raises the stand-in of Denied or Expired."""
    text = f"may {described(call)} run?" + (f" {why}" if why else "")
    question = await ask_person(attempt, call, step, QuestionKind.CALL, text=text, extra={"why": why} if why else {})
    match question.status:
        case QuestionStatus.APPROVED:
            return question
        case QuestionStatus.DENIED:
            refusal: PerdureError = Denied(question.reason or "", question.answered_by or "")
        case _:
            refusal = Expired(f"nobody answered {question.id} in time: {text}")
    return await fail_call(attempt, call, step, refusal, begun=False, question_id=question.id)
