"""A call that really runs: its intent on record first where its risk wants that, its outcome before anybody has it."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from perdure import ambient, codec
from perdure.errors import Denied, Error, Expired, NotApplied, NotSerializable, PerdureError
from perdure.model.question import Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Usage, Wait, WaitKind
from perdure.policy.retry import ErrorClass, RetryPolicy, classify, delay_s, should_retry
from perdure.policy.risk import Risk
from perdure.runtime import stand_ins
from perdure.runtime.call import Call
from perdure.runtime.threads import start_thread
from perdure.states import QuestionStatus
from perdure.store import questions, steps

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt


class InDoubt(Exception):
    """The call was cut off, or raised what its author calls ambiguous: nobody knows whether it happened."""

    def __init__(self, step: steps.NewStep, cause: str) -> None:
        super().__init__(cause)
        self.step = step
        self.cause = cause


async def run(attempt: Attempt, call: Call, *, key: str, body: bytes, record: Step | None) -> Any:
    """Run a call that has no outcome on record, and put its outcome there."""
    attempt.check_budget(call)
    journal = attempt.journal
    token = journal.token_for(record) if call.is_dangerous else None
    try_number = 0 if record is None else record.try_number + (record.outcome is not None)
    step = journal.step(call, key=key, body=body, try_number=try_number, token=token)
    begun = record is not None and record.outcome is None
    approval: Question | None = None
    if call.needs_approval and not begun:
        approval = await ask_first(attempt, call, step)
    if call.is_dangerous and not begun:
        await attempt.host.until_may_call()
        allowed = attempt.allowed.pop(key, None) if approval is None else approval.id
        await journal.begin(step, question_id=allowed)
        begun = True
        attempt.check()
        await attempt.host.until_may_call()
    return await run_begun(attempt, call, step, begun=begun)


async def run_begun(attempt: Attempt, call: Call, step: steps.NewStep, *, begun: bool = True) -> Any:
    """Run the function now; its intent is on record where its risk wants that."""
    scope = ambient.Scope(attempt, step.key, step.token or "")
    try:
        value = await _with_retries(attempt, call, scope)
    except _Cut as cut:
        raise InDoubt(step, str(cut)) from cut.__cause__
    except Exception as exc:  # noqa: BLE001  # Whatever a tool raises is its outcome.
        return await fail_call(attempt, call, step, exc, begun=begun, usage=_usage(scope, None))
    return await complete_call(attempt, call, step, value, begun=begun, usage=_usage(scope, value))


async def complete_call(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    value: Any,
    *,
    begun: bool,
    usage: Usage | None = None,
    question_id: str | None = None,
) -> Any:
    """Put a result on record and return it as it will come back: live and replay agree."""
    limit = attempt.host.settings.payload_limit_bytes
    try:
        stored, value = codec.roundtrip(value, annotation=call.annotation, limit=limit)
    except NotSerializable as exc:
        return await fail_call(attempt, call, step, exc, begun=begun, usage=usage)
    if call.secrets and (masked := stand_ins.mask(stored, call.secrets)) != stored:
        stored, value = masked, codec.decode(masked, annotation=call.annotation)
    result = steps.Result(
        completed=True, output=codec.pack(stored), usage=usage or Usage(), question_id=question_id
    )
    await attempt.journal.complete(step, result, begun=begun)
    attempt.spent(call, usage)
    return value


async def fail_call(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    exc: BaseException,
    *,
    begun: bool,
    usage: Usage | None = None,
    question_id: str | None = None,
    error: Error | None = None,
) -> Any:
    """Put an error on record and raise its stand-in."""
    error = error or stand_ins.describe(exc, secrets=call.secrets)
    output = codec.pack(codec.evidence(stand_ins.to_json(error)))
    result = steps.Result(completed=False, output=output, usage=usage or Usage(), question_id=question_id)
    index = await attempt.journal.complete(step, result, begun=begun)
    attempt.spent(call, usage)
    raise attempt.remember(stand_ins.raise_again(error, tool=call.name, live=exc), index, call.risk)


async def _with_retries(attempt: Attempt, call: Call, scope: ambient.Scope) -> Any:
    """Run the function; again for errors that another try may mend, as far as its risk allows."""
    settings = attempt.host.settings
    retries = settings.call_retries if call.retries is None else call.retries
    for number in range(retries + 1):
        try:
            return await _run(attempt, call, scope)
        except TimeoutError as exc:
            if call.risk >= Risk.HIGH and isinstance(exc, _CutOff):
                raise _Cut(f"cut off after its timeout of {call.timeout_s:g} s") from exc
            failed: Exception = exc
        except Exception as exc:
            # A medium call is declared idempotent: it may simply be tried again.
            if call.risk >= Risk.HIGH and isinstance(exc, call.ambiguous):
                raise _Cut(f"{stand_ins.class_name(exc)}: {stand_ins.text_of(exc)}") from exc
            failed = exc
        # From high up an exception is the outcome, unless the tool says that nothing happened.
        may_repeat = call.risk < Risk.HIGH or isinstance(failed, NotApplied)
        policy = RetryPolicy(retries=retries)
        kind = ErrorClass.RETRIABLE if isinstance(failed, NotApplied) else classify(failed)
        if not may_repeat or call.kind is StepKind.VALUE or not should_retry(policy, kind, number):
            raise failed
        await attempt.host.pause(delay_s(policy, number, attempt.host.random))
        attempt.check()
    raise AssertionError("the last try raises")


class _Cut(Exception):
    """The function did not end in a way that says whether it happened."""


class _CutOff(TimeoutError):
    """Perdure's own timeout, as distinct from one that the tool raised."""


async def _run(attempt: Attempt, call: Call, scope: ambient.Scope) -> Any:
    """Run the function once, inside its scope, in the place its kind needs."""
    if call.is_async and call.timeout_s is None and not call.is_dangerous:
        inside = ambient.enter(scope)
        try:
            return await call.fn(*call.args, **call.kwargs)
        finally:
            ambient.leave(inside)
    context = contextvars.copy_context()
    context.run(ambient.enter, scope)
    running: asyncio.Future[Any]
    if call.is_async:
        running = asyncio.get_running_loop().create_task(call.fn(*call.args, **call.kwargs), context=context)
    else:
        running = start_thread(lambda: call.fn(*call.args, **call.kwargs), context=context, name=call.name)
    attempt.host.in_flight.add(attempt.task.id, scope.parent_key, running)
    result = await _until_done(running, call)
    if inspect.isawaitable(result):  # A function that only hands on a coroutine: a lambda, a partial.
        followed = asyncio.get_running_loop().create_task(_await(result), context=context)
        attempt.host.in_flight.add(attempt.task.id, scope.parent_key, followed)
        result = await _until_done(followed, call)
    return result


async def _until_done(running: asyncio.Future[Any], call: Call) -> Any:
    try:
        done, _ = await asyncio.wait({running}, timeout=call.timeout_s)
    except asyncio.CancelledError:
        running.cancel()
        raise
    if not done:
        running.cancel()
        raise _CutOff(f"{call.name} did not return within {call.timeout_s:g} s")
    if running.cancelled():
        raise asyncio.CancelledError
    return running.result()


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# -- asking first ---------------------------------------------------------------------------


async def ask_first(attempt: Attempt, call: Call, step: steps.NewStep, *, why: str = "") -> Question:
    """A person's yes, as a question bound to these arguments. Raises the stand-in of Denied or Expired."""
    text = f"may {call.name}({ambient.describe((), call.input)}) run?" + (f" {why}" if why else "")
    question = await ask_person(attempt, call, step, QuestionKind.CALL, text, {"why": why} if why else {})
    match question.status:
        case QuestionStatus.APPROVED:
            return question
        case QuestionStatus.DENIED:
            refusal: PerdureError = Denied(question.reason or "", question.answered_by or "")
        case _:
            refusal = Expired(f"nobody answered {question.id} in time: {text}")
    await fail_call(attempt, call, step, refusal, begun=False, question_id=question.id)
    raise AssertionError("fail_call raises")


async def ask_person(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    kind: QuestionKind,
    text: str,
    extra: Mapping[str, Any],
) -> Question:
    """Open a question about a call (or find the one that is open) and wait until it is settled."""
    journal, settings = attempt.journal, attempt.host.settings
    digest = codec.digest(codec.evidence(call.input, secrets=call.secrets))
    evidence = {"tool": call.name, "arguments": dict(call.input), "risk": call.risk, **extra}
    expires = None
    if kind is QuestionKind.CALL:
        expires = journal.store.clock.now_ms() + int(settings.question_expiry_s * 1000)
    question = await journal.write(
        questions.open_question,
        journal.fence,
        questions.NewQuestion(
            kind,
            text,
            step_key=step.key,
            to=call.to,
            evidence=codec.pack(codec.evidence(evidence, secrets=call.secrets)),
            digest=digest,
            expires_at_ms=expires,
        ),
    )
    attempt.host.tell(question)
    while question.status is QuestionStatus.OPEN:
        await attempt.waits.until(Wait(WaitKind.QUESTION, (question.id,), step.key))
        question = await journal.read(questions.get, question.id)
    return question


def _usage(scope: ambient.Scope, value: Any) -> Usage:
    """What a call consumed: as told inside it, else as its result says."""
    told = Usage()
    for one in scope.usage:
        told = told.plus(Usage(int(one["input"]), int(one["output"]), float(one["cost"])))
    return told if scope.usage else usage_of(value)


def usage_of(value: Any) -> Usage:
    """Token counts as model clients give them: `.usage` or `["usage"]`, under either pair of names."""
    usage = value.get("usage") if isinstance(value, Mapping) else getattr(value, "usage", None)
    if usage is None or isinstance(usage, str | int | float):
        return Usage()
    if callable(usage):
        return Usage()

    def read(*names: str) -> int:
        for name in names:
            found = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
            if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
                return min(found, (1 << 63) - 1)
        return 0

    return Usage(read("prompt_tokens", "input_tokens"), read("completion_tokens", "output_tokens"))
