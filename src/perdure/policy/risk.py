"""How bad it is to run something twice, and what that alone says about resuming.

Exists so that the four words have one order and one door: a word that is not known is an error, never low.
Does not decide what recovery does with a task; that is recovery.py, which looks at more than the declared risk.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.errors import BadInput


class Risk(StrEnum):
    """How bad it is to run this twice. Compares by severity: `Risk.LOW < Risk.CRITICAL`."""

    LOW = "low"  # reads, or computes: running it again harms nobody
    MEDIUM = "medium"  # writes, and is idempotent under its token
    HIGH = "high"  # writes, and a second run would be a second effect
    CRITICAL = "critical"  # as high, and a person agrees before each call

    @property
    def rank(self) -> int:
        """0 for low up to 3 for critical."""
        return _RANKS[self]

    @classmethod
    def parse(cls, text: str) -> Risk:
        """The risk with exactly this word. Raises BadInput for any other, so that a typing error never means low."""
        try:
            return cls(text)
        except ValueError:
            words = ", ".join(cls)
            raise BadInput(f"risk: {text!r} is not a risk; write one of {words}", field="risk") from None

    # A StrEnum is a str, and text sorts "critical" before "high" before "low": without these four,
    # max() and < would pick the wrong risk without a word.
    def __lt__(self, other: str) -> bool:
        return self.rank < Risk.parse(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Risk.parse(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Risk.parse(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Risk.parse(other).rank


_RANKS: Final = {risk: rank for rank, risk in enumerate(Risk)}


def highest(*risks: Risk) -> Risk:
    """The most severe of these risks. Raises BadInput when there are none: nothing known is not the same as low."""
    if not risks:
        raise BadInput("risks: there is no highest of none; pass at least one risk", field="risks")
    return max(map(Risk.parse, risks), key=_RANKS.__getitem__)


def should_auto_resume(risk: Risk) -> bool:
    """True for low alone: this risk by itself lets work go on after a restart without asking."""
    return Risk.parse(risk) is Risk.LOW


def needs_resume_confirmation(risk: Risk) -> bool:
    """True for every risk but low: this risk by itself calls for a person's yes after a restart."""
    return not should_auto_resume(risk)
