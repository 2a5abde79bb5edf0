"""A question to a person about one call: may it run, or did it happen. Waits until it is settled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure import codec, phrases
from perdure.model.question import Question, QuestionKind
from perdure.model.task import Wait, WaitKind
from perdure.runtime.call import Call
from perdure.states import QuestionStatus
from perdure.store import questions, steps

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt


async def ask_person(
    attempt: Attempt,
    call: Call,
    step: steps.NewStep,
    kind: QuestionKind,
    *,
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
            codec.mask_text(text, call.secrets),
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


def described(call: Call) -> str:
    """The call as a question names it: the same in every attempt, however its arguments are held there."""
    return phrases.call(call.name, call.input, secrets=call.secrets)
