"""Whether what somebody says or sends is of the type that was asked for, before it counts.

Looked at twice: where it is said, as far as the type is known there, and by the attempt that takes it, which knows.
"""

from __future__ import annotations

import datetime as dt
import decimal
import pathlib
import types
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from perdure import codec, phrases
from perdure.codec.fitting import fits
from perdure.definitions import returns, tools_named
from perdure.errors import BadInput

_JSON: Final = (str, bool, int, float, list, dict)
_AS_TEXT: Final = (dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal, pathlib.Path)
_BY_WORD: Final[Mapping[str, type]] = {
    **{one.__name__: one for one in (*_JSON, *_AS_TEXT, bytes)},
    "None": types.NoneType,
}
# Written as text of their own, which is not to be read as JSON: as a number, 1.50 would lose its last digit.
WRITTEN: Final = frozenset(one.__name__ for one in _AS_TEXT)
_HINTS: Final[Mapping[str, str]] = {
    "bool": "say yes or no",
    "int": "give a number",
    "float": "give a number",
    "Decimal": "give a number",
    "datetime": "give it with its zone, as 2026-01-31T09:00:00+01:00",
    "date": "give it as 2026-01-31",
    "time": "give it as 09:00:00",
    "timedelta": "give it as ISO 8601 has it, PT90S for 90 seconds",
    "UUID": "give its 32 hexadecimal digits",
    "bytes": "only code can give bytes, with Question.answer",
}


def type_word(annotation: Any) -> str:
    """What a type is called in questions; `any` where everything will do."""
    if annotation is codec.ANY:
        return "any"
    if annotation is None:
        return "None"
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return type_word(get_args(annotation)[0])
    if _is_union(origin):
        return " | ".join(type_word(None if one is types.NoneType else one) for one in get_args(annotation))
    # `list[str]` and the like have the name of their origin alone.
    name: str | None = None if origin is not None else getattr(annotation, "__name__", None)
    if name is not None and name in _BY_WORD and annotation is not _BY_WORD[name]:
        return f"{annotation.__module__}.{name}"  # Its author's own, which must not be taken for the one known here.
    return name or str(annotation).replace("typing.", "")


def type_named(word: str) -> Any:
    """The type that `type_word` called so, as far as any process knows it: of a `list[str]`, that it is a list."""
    known = [_BY_WORD.get(part.partition("[")[0]) for part in alternatives(word)]
    if any(one is None for one in known):
        return codec.ANY
    return known[0] if len(known) == 1 else typing.Union[tuple(known)]  # noqa: UP007  # made from a list


def alternatives(word: str) -> Iterator[str]:
    """The members of a union by the name of the whole; what stands in brackets belongs to its member."""
    depth, start = 0, 0
    for place, sign in enumerate(word):
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and depth == 0:
            yield word[start:place].strip()
            start = place + 1
    yield word[start:].strip()


def is_of_type(value: Any, annotation: Any) -> bool:
    """Whether a value is, or as it comes back from the store can be made, what the annotation wants."""
    return is_made(codec.roundtrip(value, annotation=annotation)[1], annotation)


def is_made(value: Any, annotation: Any) -> bool:
    """Whether a value that was read for an annotation has become what it wants."""
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return False  # Nobody can say which moment it is.
    return fits(value, annotation)


def misfit(value: Any, wants: str) -> str:
    """What a value is told that is not of the type of this name."""
    article = "an" if wants[:1] in "aeio" else "a"
    return f"{article} {wants}, not {phrases.shown(value)}" + (f": {_HINTS[wants]}" if wants in _HINTS else "")


def check_answer(value: Any, wants: str, *, question_id: str) -> None:
    """Refuse an answer that is not what the agent asked for. Raises BadInput. Classes of the agent's own pass here."""
    if not is_of_type(value, type_named(wants)):
        raise BadInput(f"{question_id} wants {misfit(value, wants)}", field="answer")


def check_result(value: Any, tool_name: object, *, question_id: str) -> None:
    """Refuse a result that the tool cannot have returned, where this process has the tool. Raises BadInput."""
    tools = [] if not isinstance(tool_name, str) else tools_named(tool_name)
    if tools and not any(is_of_type(value, returns(one.fn)) for one in tools):
        text = f"{tool_name} returns {type_word(returns(tools[0].fn))}, which {phrases.shown(value)} is not"
        raise BadInput(f"{question_id}: {text}", field="result")


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType
