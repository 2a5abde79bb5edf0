"""What a call in doubt may have returned, as far as its tool or its type on record tells.

Beside `runtime.answers`, which judges what somebody says that it returned: this tells what to offer, before.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final

from perdure import codec
from perdure.commands import ANYTHING, Returns
from perdure.runtime.answers import ResultWanted, alternatives, judges, person_may_say, told

_ANYTHING: Final = ("any", "Any", "object")
_BY_CODE: Final = "bytes"


def returned(evidence: object) -> Returns:
    """What a call may have returned, or what can be answered on a command line, by what the question rests on."""
    if isinstance(evidence, Mapping) and evidence.get("wants") == _BY_CODE:
        return Returns(by_code=True)
    told_of = judges(evidence) if isinstance(evidence, Mapping) else []
    known = [(word, one) for word, one in told_of if word not in _ANYTHING]
    if len(known) < max(1, len(told_of)):
        return ANYTHING
    something = [(word, one) for word, one in known if one is not types.NoneType]
    if not something:
        return Returns(something=False)
    return Returns(nothing=any(_may_be_nothing(word, one) for word, one in known), told=told(something[0][0]))


def require_result(evidence: Mapping[str, Any], *, question_id: str) -> None:
    """Refuse that a call happened without a word of what it returned, where it cannot have returned nothing.

    Raises ResultWanted.
    """
    if not returned(evidence).nothing:
        raise ResultWanted(f"{question_id}: {evidence.get('tool')} returns {judges(evidence)[0][0]}")


def _may_be_nothing(word: str, annotation: Any) -> bool:
    """Whether None is of this type; a class of its author's own, known by name alone, is not taken for that."""
    return person_may_say(None, annotation) and (annotation is not codec.ANY or "None" in alternatives(word))
