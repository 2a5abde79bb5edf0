"""Which answer of a world fits a question, and giving it as a person would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.client import Question
from perdure.definitions import Tool, ToolDefinition, definition_of
from perdure.errors import BadInput
from perdure.model.question import NOT_HAPPENED, QuestionKind
from perdure.runtime.doubts import Verdict, happened, not_happened
from perdure.testing.ledger import Fate, Ledger

_BY = "world"
_OFTEN_ENOUGH = 10  # It never ends: said by an open question, rather than by going on for ever.
_OF_A_CALL: Final = ("approve", "deny", True, False)


class Nobody:
    """The answer that nobody gives: the question runs into its expiry."""


NOBODY: Final = Nobody()
Answer = Literal["approve", "deny"] | bool | str | Verdict[Any] | Nobody


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a world, by a tool's name or by words of the question."""

    by_tool: Mapping[str, Answer]
    by_words: Sequence[tuple[str, Answer]]

    @classmethod
    def of(cls, answers: Mapping[Tool[..., Any] | str, Answer]) -> Answers:
        """Read what a test wrote. Raises BadInput for a key that is no tool or words, and an answer no call takes."""
        by_tool: dict[str, Answer] = {}
        by_words: list[tuple[str, Answer]] = []
        for key, answer in answers.items():
            if isinstance(key, str):
                by_words.append((key.casefold(), answer))
                continue
            name = tool_of(key, "answers").name
            if not isinstance(answer, Verdict | Nobody) and answer not in _OF_A_CALL:
                wanted = "'approve' or 'deny', a Verdict for a call in doubt, or NOBODY"
                said = f"answers: {answer!r} is no answer about a call of {name}; give {wanted}"
                raise BadInput(said, field="answers")
            by_tool[name] = answer
        by_words.sort(key=lambda one: -len(one[0]))
        return cls(by_tool, by_words)

    def find(self, question: Question) -> Answer | None:
        """The answer to a question: that of its tool, else of the longest words in it, if it can be one at all."""
        text = question.text.casefold()
        found = [answer for words, answer in self.by_words if words in text]
        if question.tool is not None and question.tool in self.by_tool:
            found.insert(0, self.by_tool[question.tool])
        return next((one for one in found if _fits(question, one)), None)


def tool_of(tool: object, field: str) -> ToolDefinition:
    """What perdure knows of a tool. Raises BadInput for anything else."""
    definition = definition_of(tool)
    if isinstance(tool, str):
        raise BadInput(f"{field}: give the decorated function itself, not its name {tool!r}", field=field)
    if not isinstance(definition, ToolDefinition):
        raise BadInput(f"{field}: {tool!r} is no tool; decorate it with @perdure.tool", field=field)
    return definition


async def give(question: Question, answer: Answer | None, ledger: Ledger) -> bool:
    """Answer a question; what no answer fits is answered from the ledger where it can be. False when it cannot."""
    place = question.task_id, question.row.step_key
    if isinstance(answer, Nobody) or ledger.answered[place] >= _OFTEN_ENOUGH:
        return False
    ledger.answered[place] += question.row.kind in (QuestionKind.STEP_IN_DOUBT, QuestionKind.ASK)
    match question.row.kind:
        case QuestionKind.STEP_IN_DOUBT:
            verdict = answer if isinstance(answer, Verdict) else _witnessed(place, ledger)
            if verdict.kind == NOT_HAPPENED:
                ledger.allowed_again[place] += 1
            await question.resolve(verdict, by=_BY)
        case QuestionKind.RESUME if answer is None:
            await question.approve(by=_BY)
        case QuestionKind.RESUME | QuestionKind.CALL if answer in ("approve", True):
            await question.approve(by=_BY)
        case QuestionKind.RESUME | QuestionKind.CALL if answer in ("deny", False):
            await question.deny("", by=_BY)
        case QuestionKind.ASK if answer is not None:
            await question.answer(answer, by=_BY)
        case _:
            return False
    return True


def _fits(question: Question, answer: Answer) -> bool:
    if isinstance(answer, Nobody):
        return True
    match question.row.kind:
        case QuestionKind.STEP_IN_DOUBT:
            return isinstance(answer, Verdict)
        case QuestionKind.RESUME | QuestionKind.CALL:
            return answer in _OF_A_CALL
        case QuestionKind.ASK:
            return not isinstance(answer, Verdict)


def _witnessed(place: tuple[str, str], ledger: Ledger) -> Verdict[Any]:
    effect = ledger.last_at(place)
    return happened(effect.result) if effect is not None and effect.fate is Fate.RETURNED else not_happened()
