"""The commands that people are shown. Each is whole, so that it does when it is pasted what stands above it, but for
words to fill in first: `VALUE`, the JSON of `--result JSON`, the `…` of `--because "…"` and, where no app is known,
`MODULE:APP`. As they stand, they are refused and nothing is decided. What may be left out is a line of its own.

Each stands alone on its line, below what it does: not every shell takes what follows a `#` as a remark, zsh at its
prompt does not. Alternatives joined by `|` would be a pipe, in which the shell runs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from perdure.model.question import QuestionKind

Way = tuple[str, str]
"""A command, and what it does."""

VALUE: Final = "VALUE"

_QUOTED: Final = re.compile("`perdure ([^`]+)`")


@dataclass(frozen=True, slots=True)
class Returns:
    """What a call that happened may have returned: something, which `told` describes where it is known, or nothing.

    `by_code` where only code can say it, and no command.
    """

    something: bool = True
    nothing: bool = True
    told: str = ""
    by_code: bool = False


# How "it happened" may go on, as words of its command.
NO_RESULT: Final = ""
RESULT: Final = " --result JSON"
ANYTHING: Final = Returns()
"""Where nobody knows what the call returns."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Builds the commands that are shown.

    `flags` name the database where that is needed; `app` is what a worker must be told, "" where it knows the app.
    """

    flags: str = ""
    app: str = "MODULE:APP"

    def line(self, words: str) -> str:
        """A command of these words."""
        return f"perdure {words}{self.flags}"

    def made_whole(self, text: str) -> str:
        """A message of one who does not know these flags, each command in it with them."""
        return _QUOTED.sub(lambda found: f"`{self.line(found[1])}`", text)

    @property
    def worker(self) -> str:
        """The command that starts a worker."""
        return self.line(f"worker {self.app}" if self.app else "worker")

    def answer(self, question_id: str, kind: str, *, returns: Returns = ANYTHING) -> tuple[Way, ...]:
        """Each command that answers a question; `returns` tells of the call that it may be about."""
        yes = self.line(f"approve {question_id}")
        no = self.line(f'deny {question_id} --because "…"')
        match kind:
            case QuestionKind.STEP_IN_DOUBT:
                runs = "it did not; it runs, once its old worker is proven dead"
                unknown = "nobody knows; the agent gets OutcomeUnknown"
                return self._verdicts(f"answer {question_id}", returns, not_happened=runs, give_up=unknown)
            case QuestionKind.ASK if returns.by_code:
                return ()
            case QuestionKind.ASK:
                return ((self.line(f"answer {question_id} {VALUE}"), "the agent gets the value"),)
            case QuestionKind.CALL:
                return ((yes, "the call runs"), (no, "the agent gets Denied, with the reason"))
            case _:
                return ((yes, "the task goes on"), (no, "the task fails"))

    def whole(self, question_id: str) -> Way:
        """The command that shows a question of which only a part was shown."""
        return self.line(f"questions {question_id}"), "all of the question"

    def anyway(self, question_id: str) -> Way:
        """The command that runs a call again without proof that its old worker is dead."""
        return self.line(f"answer {question_id} --not-happened --anyway"), "run it without that proof"

    def settle(self, task_id: str, step: int, *, returns: Returns = ANYTHING) -> tuple[Way, ...]:
        """Each command that says what became of a call which an ended task left in doubt."""
        unknown = "nobody can find out"
        return self._verdicts(f"settle {task_id} {step}", returns, not_happened="it did not", give_up=unknown)

    def _verdicts(self, words: str, returns: Returns, *, not_happened: str, give_up: str) -> tuple[Way, ...]:
        told = f": {returns.told}" if returns.told else ""
        something = self.line(f"{words} --happened{RESULT}"), f"it happened, and JSON is what it returned{told}"
        nothing = "it happened"
        if returns.something:  # What is pasted must not say that it returned nothing where nobody knows that it may.
            nothing += " and returned nothing" if returns.told else ", if it is a call that returns nothing"
        return (
            *([something] if returns.something else []),
            *([(self.line(f"{words} --happened{NO_RESULT}"), nothing)] if returns.nothing else []),
            (self.line(f"{words} --not-happened"), not_happened),
            (self.line(f"{words} --give-up"), give_up),
        )


def as_lines(ways: Iterable[Way]) -> list[str]:
    """What each command does, and under it, further in, the command, so that the whole line can be pasted."""
    return [line for command, meaning in ways for line in (meaning, f"  {command}")]
