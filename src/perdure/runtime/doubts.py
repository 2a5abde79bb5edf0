"""A call that died between its intent and its outcome: nobody knows whether it happened.

Low and medium risk run again. From high up no machine runs it again by itself: its old holder may have left word of
it, `reconcile` may know, else a person says *it happened, with this result*, *it did not, run it*, or *give up*.
"Run it" acts only once the process that held the call is proven dead (zombies.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from msgspec import structs

from perdure import ambient, codec, phrases
from perdure.errors import Error, NotSerializable, OutcomeUnknown, ToolError
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, UNKNOWN, Question, QuestionKind
from perdure.model.step import Step, StepKind
from perdure.model.task import Usage
from perdure.policy.risk import Risk, highest
from perdure.runtime import answers, live, raised, stand_ins, zombies
from perdure.runtime.asking import ask_person, described
from perdure.runtime.call import Call
from perdure.runtime.journal import unpacked
from perdure.runtime.threads import start_thread
from perdure.states import QuestionStatus
from perdure.store import payloads, questions, steps
from perdure.store.last_words import LastWord, WordKind
from perdure.trace import scope_of

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


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
    """A call whose intent is on record without an outcome."""
    # A call that was dangerous when it was made is no less so because the code has changed since.
    call.risk = highest(call.risk, Risk.parse(record.risk or Risk.HIGH))
    # Nor is one that was harmless then and is declared dangerous now: what may have happened is asked of it, too.
    record = await attempt.journal.raise_risk(record, call, body)
    step = attempt.journal.step(call, key=record.key or "", body=body, try_number=record.try_number, token=record.token)
    if call.risk is Risk.MEDIUM:
        # Declared idempotent: one token has one effect, whoever runs it again.
        return await live.run(attempt, call, key=step.key, body=body, record=record)
    cause = f"attempt {record.attempt} ended between its start and its outcome"
    if record.attempt == attempt.task.attempt:
        cause = "the call around it was cut off between its start and its outcome"
    matter = _Matter(call, step, record.attempt, record.timestamp, cause)
    if record.is_undone:
        return await _settle_undone(attempt, matter)
    if call.key is not None:
        # Name and arguments may have changed since: what is asked about is what was called then.
        matter.was = structs.replace(call, name=record.name, input=await _input_of(attempt, record))
    return await _settle(attempt, matter)


async def _settle_undone(attempt: Attempt, matter: _Matter) -> Any:
    """A call that is known not to have happened, and that no code waited for then."""
    # Where a person had not waited for proof, its holder may have gone on with it.
    dead = await zombies.look(attempt, matter.step.key, matter.held_by)
    if dead is not None and dead.word is not None and dead.word.kind is not WordKind.CUT_OFF:
        return await _act_on_word(attempt, matter, dead.word, None)
    return await _run_again(attempt, matter, None)


async def settle_fresh(attempt: Attempt, call: Call, cut: live.InDoubt) -> Any:
    """A call of this attempt that was cut off or raised an ambiguous error."""
    for _ in range(3):
        await asyncio.sleep(0)  # A coroutine that was cut off ends now, and may say how.
    step = cut.step
    begun = await attempt.journal.read(steps.by_key, attempt.task.id, step.key, step.try_number)
    assert begun is not None, step.key
    matter = _Matter(call, step, attempt.task.attempt, begun.timestamp, cut.cause, error=cut.__cause__, tries=cut.tries)
    return await _settle(attempt, matter)


async def settle_left(attempt: Attempt, call: Call, step: steps.NewStep) -> None:
    """A call of this attempt that its agent left in doubt: what became of it is asked before the task completes."""
    found = await attempt.journal.read(steps.by_key, attempt.task.id, step.key, step.try_number)
    if found is None or found.outcome is not None:
        attempt.intents.pop(step.key, None)
        return
    cause = "the agent went on without waiting for its outcome"
    await _settle_unasked(attempt, _Matter(call, step, found.attempt, found.timestamp, cause, may_run=False))


async def settle_unreached(attempt: Attempt, record: Step) -> None:
    """A call in doubt that the code no longer makes: what became of it is still asked before the task completes."""
    journal = attempt.journal
    call = Call(
        kind=StepKind(record.event_kind),
        name=record.name,
        fn=_never,
        input=await _input_of(attempt, record),
        risk=Risk.parse(record.risk or Risk.HIGH),
    )
    step = journal.step(
        call, key=record.key or "", body=codec.evidence(call.input), try_number=record.try_number, token=record.token
    )
    cause = f"attempt {record.attempt} ended inside it, and the code has gone on without it"
    await _settle_unasked(attempt, _Matter(call, step, record.attempt, record.timestamp, cause, may_run=False))


async def _settle_unasked(attempt: Attempt, matter: _Matter) -> None:
    try:
        await _settle(attempt, matter)
    except ToolError:
        return  # Its error is on record; no code waits for it.


@dataclass(slots=True)
class _Matter:
    """What is to be found out: about which call, who held it, since when, and why nobody knows.

    `may_run` is False when no code waits for the call any more, so that it is not run again either. `error` is what
    this attempt's own try of it raised, the last of so many `tries`. `was` is the call as it was made, where that is
    another.
    """

    call: Call
    step: steps.NewStep
    held_by: int
    started_ms: int
    cause: str
    may_run: bool = True
    error: BaseException | None = None
    tries: int = 0
    was: Call | None = None


async def _settle(attempt: Attempt, matter: _Matter) -> Any:
    call, step, journal = matter.call, matter.step, attempt.journal
    attempt.intents[step.key] = call, step
    while True:
        dead = await zombies.look(attempt, step.key, matter.held_by)
        question = await journal.read(questions.live_for_step, attempt.task.id, QuestionKind.STEP_IN_DOUBT, step.key)
        reconciled = ""  # While there is a question that counts, reconcile has had its word.
        if question is None:
            if dead is not None and dead.word is not None and dead.word.kind is not WordKind.CUT_OFF:
                return await _act_on_word(attempt, matter, dead.word, None)
            said = await _reconcile(attempt, matter)
            if said.kind == HAPPENED:
                return await _record_result(attempt, matter, said.result, None)
            if said.kind == NOT_HAPPENED and dead is not None:
                return await _run_again(attempt, matter, None)
            if said.kind == NOT_HAPPENED:
                # True now; but its holder may go on with it yet. Asked again once it cannot.
                await zombies.until_dead(attempt, step.key, matter.held_by, None)
                continue
            reconciled = said.why
        question, verdict = await _ask(attempt, matter, reconciled=reconciled)
        if verdict.kind == HAPPENED:
            return await _record_result(attempt, matter, verdict.result, question)
        if verdict.kind != NOT_HAPPENED:
            return await _give_up(attempt, matter, question)
        dead = await zombies.until_dead(attempt, step.key, matter.held_by, question)
        if dead.word is not None and dead.word.kind is not WordKind.CUT_OFF:
            return await _act_on_word(attempt, matter, dead.word, question)
        if dead.anyway or question.anyway or dead.came_before(question):
            return await _run_again(attempt, matter, question)
        await journal.write(questions.void, journal.fence, question.id, reason="its holder outlived the answer")
        matter.cause = f"{matter.cause}; whoever held it was still alive when that was answered, and may have gone on"


async def _act_on_word(attempt: Attempt, matter: _Matter, word: LastWord, question: Question | None) -> Any:
    """What the call's holder itself said of it is as good as its outcome on record."""
    match word.kind:
        case WordKind.COMPLETED:
            value = codec.decode(word.body, annotation=matter.call.annotation)
            return await _record_result(attempt, matter, value, question)
        case WordKind.FAILED:
            error = Error.from_json(codec.decode(word.body))
            await _settle_inside(attempt, matter.step)
            return await live.fail_call(
                attempt,
                matter.call,
                matter.step,
                None,
                begun=True,
                question_id=_id(question),
                error=error,
                is_found_out=True,
            )
        case _:
            return await _run_again(attempt, matter, question)


async def _record_result(attempt: Attempt, matter: _Matter, value: Any, question: Question | None) -> Any:
    await _settle_inside(attempt, matter.step)
    return await live.complete_call(
        attempt, matter.call, matter.step, value, begun=True, question_id=_id(question), is_found_out=True
    )


async def _run_again(attempt: Attempt, matter: _Matter, question: Question | None) -> Any:
    """Run a call that did not happen, if any code waits for it: this attempt holds it then. The answer is used up."""
    call, step = matter.call, matter.step
    if not matter.may_run:
        await _leave_undone(attempt, step, question)
        return None
    tries = 0
    if matter.error is None:
        _run_failed_anew(attempt, step.key)
    else:
        tries = await _until_again(attempt, matter, matter.error, is_asked=question is not None)
    await attempt.host.until_may_call()
    await live.take_over(attempt, step, question_id=_id(question))
    matter.held_by = attempt.task.attempt
    await live.until_may_start(attempt, step)
    return await live.run_begun(attempt, call, step, tries=tries)


async def _leave_undone(attempt: Attempt, step: steps.NewStep, question: Question | None) -> None:
    """Keep that a call did not happen which no code waits for: a later attempt that comes to it makes it, unasked.

    That may be so although this agent has returned: until its task has completed, it may have to run again.
    """
    journal = attempt.journal
    leave = journal.write(steps.leave_undone, journal.fence, step, question_id=_id(question))
    index = await journal.followed(step.key, leave)
    journal.records.run_anew(index, now_ms=journal.store.clock.now_ms())
    attempt.outcome_recorded(step, Usage())


async def _until_again(attempt: Attempt, matter: _Matter, error: BaseException, *, is_asked: bool) -> int:
    """How many of its tries a call has had that is made again: by a person's word it has all of them once more.

    By the word of `reconcile` it is made again as after any error that may pass, and no sooner. Raises the stand-in of
    its error when it has had all its tries: that nothing happened is known.
    """
    call = matter.call
    if is_asked:
        live.run_inside_anew(attempt, error)
        return 0
    retries = live.retries_of(attempt, call)
    if matter.tries > retries:
        await _settle_inside(attempt, matter.step)
        await live.fail_call(attempt, call, matter.step, error, begun=True)
    await live.until_again(attempt, call, error, matter.tries - 1, retries)
    return matter.tries


def _run_failed_anew(attempt: Attempt, key: str) -> None:
    """Calls inside one of an earlier attempt no longer answer by their errors, one of which may be why nobody knows."""
    journal = attempt.journal
    for step in journal.records.failed_inside(key):
        error = Error.from_json(unpacked(step, codec.ANY))
        is_final = stand_ins.is_final(stand_ins.raise_again(error, tool=step.name))
        if Risk.parse(step.risk or Risk.HIGH) < Risk.HIGH and not is_final:
            journal.records.run_anew(step.step_index, now_ms=journal.store.clock.now_ms())


async def _give_up(attempt: Attempt, matter: _Matter, question: Question) -> NoReturn:
    call = matter.call
    await _settle_inside(attempt, matter.step)
    gave_up = stand_ins.outcome_unknown(call.name, question.reason or "")
    await live.fail_call(attempt, call, matter.step, gave_up, begun=True, question_id=question.id, is_found_out=True)


async def _settle_inside(attempt: Attempt, step: steps.NewStep) -> None:
    """Calls in doubt inside a call that is settled and will not run again: nothing asks for them any more.

    What a person has said of one by then is its outcome.
    """
    journal = attempt.journal
    for inner in list(journal.records.in_doubt_under(step.key)):
        if journal.is_running(inner.key or ""):
            continue  # It comes to its own outcome yet.
        call = Call(kind=StepKind(inner.event_kind), name=inner.name, fn=_never, risk=Risk.parse(inner.risk or "high"))
        made = journal.step(call, key=inner.key or "", body=b"{}", try_number=inner.try_number, token=inner.token)
        question = await journal.read(questions.live_for_step, attempt.task.id, QuestionKind.STEP_IN_DOUBT, made.key)
        said: Verdict[Any] = Verdict(UNKNOWN)
        used = None
        if question is not None and question.status is QuestionStatus.ANSWERED:
            said, used = await _read_verdict(attempt, question), question.id
        if said.kind == HAPPENED:
            await live.complete_call(attempt, call, made, said.result, begun=True, question_id=used, is_found_out=True)
            continue
        if said.kind == NOT_HAPPENED:
            await _leave_undone(attempt, made, question)
            continue
        error = OutcomeUnknown(f"the call around {inner.name} was settled without it", tool=inner.name)
        try:
            await live.fail_call(attempt, call, made, error, begun=True, question_id=used, is_found_out=True)
        except ToolError:
            continue
    scopes = journal.records.scopes_under(step.key)
    for asked in await journal.read(_asked_inside, attempt.task.id, scopes):
        if asked.step_key not in journal.open_keys:
            await journal.write(questions.void, journal.fence, asked.id, reason="the call around it was settled")


async def _ask(attempt: Attempt, matter: _Matter, *, reconciled: str) -> tuple[Question, Verdict[Any]]:
    """What a person says. A result that the tool cannot have returned is not taken: the question is asked again."""
    call, step, journal = matter.was or matter.call, matter.step, attempt.journal
    text = asked = f"did {described(call)} happen?"
    while True:
        extra = {
            "returns": answers.type_word(call.annotation),
            "cause": matter.cause + _said_of_inside(attempt, step),
            "started_at": matter.started_ms,
            "reconcile": reconciled,
            "token": step.token or "",
        }
        question = await ask_person(attempt, call, step, QuestionKind.STEP_IN_DOUBT, text=text, extra=extra)
        verdict = await _read_verdict(attempt, question)
        if verdict.kind != HAPPENED or not (why := _misfit(call, verdict, of_person=True)):
            return question, verdict
        await journal.write(questions.void, journal.fence, question.id, reason=why)
        text = f"{asked} ({question.id} was answered, but {why})"


def _said_of_inside(attempt: Attempt, step: steps.NewStep) -> str:
    """What is in doubt with it, and asked about by itself only should the call around it run again."""
    inside = dict.fromkeys(one.name for one in attempt.journal.records.in_doubt_under(step.key))
    if not inside:
        return ""
    were, them = ("was", "it") if len(inside) == 1 else ("were", "them")
    return f"; {phrases.listed(inside)} {were} cut off inside it: if this one happened, nobody will ask about {them}"


async def _read_verdict(attempt: Attempt, question: Question) -> Verdict[Any]:
    value = await attempt.journal.read(_answer, question)
    if not isinstance(value, Mapping):
        return Verdict(GIVE_UP, why=question.reason or "")
    return Verdict(str(value["verdict"]), value.get("result"))


def _misfit(call: Call, said: Verdict[Any], *, of_person: bool) -> str:
    """Why this cannot be the call's result as a person or a program says it, or "". Raises NotSerializable."""
    may, why_not = (
        (answers.person_may_say, answers.why_person_may_not)
        if of_person
        else (answers.program_may_give, answers.why_program_may_not)
    )
    if may(said.result, call.annotation):
        return ""
    # Masked before it is cut: what is left of a secret would no longer be known as one.
    shown = phrases.shown(said.result, secrets=call.secrets)
    why = why_not(said.result, call.annotation, secrets=call.secrets)
    returns = f"{call.name} returns {answers.type_word(call.annotation)}, which {shown} is not"
    return returns + (why and f": {why}")


async def _reconcile(attempt: Attempt, matter: _Matter) -> Verdict[Any]:
    """Ask the tool's own `reconcile`. A critical call is never settled by a machine.

    One attempt asks it once, and once more when the call's holder has outlived what was said and left no word of its
    own: what held true while it lived may no longer do so. What is said after its end stands.
    """
    call = matter.call
    if call.reconcile is None or call.risk is Risk.CRITICAL:
        return Verdict(UNKNOWN)
    started_at = datetime.fromtimestamp(matter.started_ms / 1000, UTC)
    doubt = Doubt(matter.step.token or "", dict((matter.was or call).input), started_at, matter.cause)
    try:
        said = await _call_reconcile(attempt, call, matter.step, doubt)
        if not isinstance(said, Verdict):
            return Verdict(UNKNOWN, why=f"reconcile returned {type(said).__name__}, not a verdict")
        # What a program gives may hold more than the type names, as what the tool itself returns may.
        if said.kind == HAPPENED and (why := _misfit(call, said, of_person=False)):
            return Verdict(UNKNOWN, why=f"reconcile says that it happened, but {why}")
    except NotSerializable as refused:
        return Verdict(UNKNOWN, why=f"reconcile says that it happened, but its result cannot be stored: {refused}")
    except Exception as exc:  # noqa: BLE001  # Its error is a word on the question, not the task's end.
        return Verdict(UNKNOWN, why=f"reconcile failed: {raised.class_name(exc)}: {raised.text_of(exc)}")
    return said


async def _call_reconcile(attempt: Attempt, call: Call, step: steps.NewStep, doubt: Doubt) -> Any:
    assert call.reconcile is not None
    context = contextvars.copy_context()
    # None of its calls is answered from the records of the call, which says what was so then.
    scope = ambient.Scope(
        attempt, step.key, step.token or "", secrets=call.secrets, around=ambient.scope(), is_look=True
    )
    context.run(ambient.enter, scope)
    loop = asyncio.get_running_loop()
    ask = call.reconcile
    if inspect.iscoroutinefunction(ask):
        return await loop.create_task(ask(doubt), context=context)
    # It may look into another system, which takes its time; the loop goes on meanwhile.
    said = await start_thread(lambda: ask(doubt), context=context, name=f"reconcile-{call.name}")
    return await said if inspect.isawaitable(said) else said


def _id(question: Question | None) -> str | None:
    return None if question is None else question.id


def _asked_inside(tx: Any, task_id: str, scopes: Collection[str]) -> list[Question]:
    """Open questions of calls inside one that is settled, and will not come to them any more."""
    asked = questions.of_task(tx, task_id)
    return [one for one in asked if one.status is QuestionStatus.OPEN and scope_of(one.step_key) in scopes]


def _answer(tx: Any, question: Question) -> Any:
    return payloads.plain(tx, question.answer)


async def _input_of(attempt: Attempt, record: Step) -> Mapping[str, Any]:
    """The arguments that a call was made with, as they were recorded."""
    found = await attempt.journal.read(_recorded_input, record.task_id, record.key or "", record.try_number)
    return found if isinstance(found, Mapping) else {"input": found}


def _recorded_input(tx: Any, task_id: str, key: str, try_number: int) -> Any:
    found = steps.by_key(tx, task_id, key, try_number)
    return None if found is None or found.payload is None else payloads.plain(tx, found.payload)


async def _never() -> None:
    raise AssertionError("a call that the code no longer makes is not run")
