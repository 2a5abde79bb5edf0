"""A question to a person, and whoever waits for the answer.

A question that nobody waits for any more, while its attempt goes on, is taken back: or a person would say yes, and
nothing happen. One about a call in doubt stays, for that is found out about in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure import ambient, codec, phrases
from perdure.model.question import Question, QuestionKind
from perdure.model.task import Wait, WaitKind
from perdure.runtime.call import Call
from perdure.runtime.running import heard
from perdure.states import QuestionStatus
from perdure.store import questions, steps

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt
    from perdure.runtime.journal import Journal


async def ask_person(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    kind: QuestionKind,
    *,
    text: str,
    extra: Mapping[str, Any],
) -> Question:
    """Ask about one call, may it run or did it happen, and wait until that is settled."""
    journal, settings = attempt.journal, attempt.host.settings
    digest = codec.digest(codec.evidence(call.input, secrets=call.secrets))
    evidence = {"tool": call.name, "arguments": dict(call.input), "risk": call.risk, **extra}
    expires = None
    if kind is QuestionKind.CALL:
        expires = journal.store.clock.now_ms() + int(settings.question_expiry_s * 1000)
    new = questions.NewQuestion(
        kind,
        codec.mask_text(text, call.secrets),
        step_key=step.key,
        to=call.to,
        evidence=codec.pack(codec.evidence(evidence, secrets=call.secrets)),
        digest=digest,
        expires_at_ms=expires,
    )
    return await until_settled(attempt, new)


async def until_settled(attempt: Attempt, new: questions.NewQuestion) -> Question:
    """Open a question (or find the one that is open) and wait until it is settled."""
    journal = attempt.journal
    inside = None if new.kind is QuestionKind.STEP_IN_DOUBT else ambient.scope()
    opening = asyncio.ensure_future(journal.write(questions.open_question, journal.fence, new))
    opening.add_done_callback(heard)  # Also once nobody waits for it.
    try:
        question = await asyncio.shield(opening)
        attempt.host.tell(question)
        while question.status is QuestionStatus.OPEN:
            await attempt.waits.until(Wait(WaitKind.QUESTION, (question.id,), new.step_key), inside=inside)
            question = await journal.read(questions.get, question.id)
        return question
    except asyncio.CancelledError as cut:
        if attempt.is_to_end or attempt.is_ending:
            opening.cancel()  # The next attempt finds the question again.
        elif new.kind is not QuestionKind.STEP_IN_DOUBT:
            why = cut.args[0] if cut.args and isinstance(cut.args[0], TakenBack) else _NOBODY_WAITS
            attempt.waits.go_on()
            await journal.followed(new.step_key, _take_back(journal, opening, why))
        raise


class TakenBack(str):
    """Why a question is taken back, as the message of the cancellation that ends whoever waits for its answer."""

    __slots__ = ()


_NOBODY_WAITS = TakenBack("whoever asked does not wait any more")


async def _take_back(journal: Journal, opening: asyncio.Future[Question], why: TakenBack) -> None:
    question = await opening  # It may have been on its way only.
    await journal.write(questions.take_back, journal.fence, question.id, reason=str(why))


def described(call: Call) -> str:
    """The call as a question names it: the same in every attempt, however its arguments are held there."""
    return phrases.call(call.name, call.input, secrets=call.secrets)
