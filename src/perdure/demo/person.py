"""The person of the demo: looks into the ledger and answers what the workers ask.

A call that is in the ledger happened, with the recorded result; one that is not there did not. A task is resumed when
somebody asks. Whatever else is asked gets a no, for the recording knows nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perdure.client import Client, Question
from perdure.demo import scripts
from perdure.demo.ledger import EFFECTS, Effect, Reader
from perdure.errors import StoreBusy
from perdure.model.question import QuestionKind
from perdure.runtime.doubts import happened, not_happened

NAME = "demo"


@dataclass(slots=True)
class Person:
    """Answers open questions, each once."""

    client: Client
    folder: Path
    answered: set[str] = field(default_factory=set)
    _seen: dict[str, Effect] = field(default_factory=dict)
    _reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = Reader(self.folder / EFFECTS)

    def close(self) -> None:
        """Let the ledger go. Safe to repeat."""
        self._reader.close()

    async def answer_all(self) -> list[tuple[Question, str]]:
        """Answer what is open; the questions with what was said, and why. One that cannot be answered now stays."""
        told = []
        for question in await self.client.questions(limit=200):
            if question.id in self.answered:
                continue
            try:
                told.append((question, await self._answer(question)))
            except StoreBusy:
                break  # Somebody keeps the database from being written to: we look again soon.
            self.answered.add(question.id)
        return told

    async def _answer(self, question: Question) -> str:
        match question.row.kind:
            case QuestionKind.STEP_IN_DOUBT:
                effect = self._look_up(str(question.evidence.get("token")))
                if effect is None:
                    await question.resolve(not_happened(), by=NAME, reason="it is not in the ledger")
                    return "it did not, run it: the ledger does not show it"
                script = scripts.fetch(self.folder / "scripts", effect.run)
                call = next(one for one in script.calls if one.id == effect.call)
                await question.resolve(happened(call.content), by=NAME, reason="it is in the ledger")
                return "it happened: the ledger shows it"
            case QuestionKind.RESUME:
                await question.approve(by=NAME)
                return "yes, resume it"
            case QuestionKind.CALL:
                await question.deny("the recording knows nothing of it", by=NAME)
                return "no"
            case QuestionKind.ASK:
                await question.answer(None, by=NAME)
                return "nothing to say"

    def _look_up(self, token: str) -> Effect | None:
        for line in self._reader.news():
            effect = Effect(str(line[0]), str(line[1]), str(line[2]), int(line[3]))
            self._seen[effect.token] = effect
        return self._seen.get(token)
