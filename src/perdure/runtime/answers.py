"""Whether what somebody says or sends is of the type that was asked for, before it counts.

Looked at twice: where it is said, as far as the type is known there, and by the attempt that takes it, which knows.
"""

from __future__ import annotations

import ast
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
    **{f"{one.__module__}.{one.__name__}": one for one in _AS_TEXT},
    "None": types.NoneType,
}
_MADE_OF: Final[Mapping[str, int]] = {"list": 1, "dict": 2}
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
    if annotation is None or annotation is types.NoneType:
        return "None"
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return type_word(get_args(annotation)[0])
    if _is_union(origin):
        return " | ".join(type_word(one) for one in get_args(annotation))
    # `list[str]` and the like have the name of their origin alone.
    name: str | None = None if origin is not None else getattr(annotation, "__name__", None)
    if name is not None and name in _BY_WORD and annotation is not _BY_WORD[name]:
        return f"{annotation.__module__}.{name}"  # Its author's own, which must not be taken for the one known here.
    return name or str(annotation).replace("typing.", "")


class ResultWanted(BadInput):
    """A call happened whose tool returns something, and it was not said what. `fact` is that without how to say it."""

    def __init__(self, fact: str) -> None:
        super().__init__(f"{fact}: say what it returned, with --result JSON or happened(…)", field="result")
        self.fact = fact


def type_named(word: str) -> Any:
    """The type that `type_word` called so, as far as any process knows it: a class of its author's own is anything."""
    tree = _parsed(word)
    return codec.ANY if tree is None else _type_of(tree)


def alternatives(word: str) -> Iterator[str]:
    """The members of a union by the name of the whole; what stands in brackets belongs to its member."""
    todo = [_parsed(word)]
    while todo:
        match todo.pop():
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                todo += [right, left]
            case None:
                yield word
            case one:
                yield ast.unparse(one)


def choices(word: str) -> tuple[Any, ...]:
    """All that an answer may be, where the type names each; else ()."""
    annotation = type_named(word)
    return get_args(annotation) if get_origin(annotation) is typing.Literal else ()


def _parsed(word: str) -> ast.expr | None:
    """The name of a type as Python reads it; None for what only its own process can name."""
    try:
        return ast.parse(word, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _type_of(tree: ast.expr) -> Any:
    match tree:
        case ast.Constant(value=None):
            return types.NoneType
        case ast.Name() | ast.Attribute():
            return _BY_WORD.get(ast.unparse(tree), codec.ANY)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            either = _type_of(left), _type_of(right)
            return codec.ANY if codec.ANY in either else typing.Union[either]  # noqa: UP007  # made from two values
        case ast.Subscript(value=ast.Name(id="Literal"), slice=named):
            try:
                return typing.Literal[ast.literal_eval(named)]
            except ValueError:  # A member of an enum of its author's own.
                return codec.ANY
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _MADE_OF:
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            whole = _BY_WORD[name]
            return whole[tuple(map(_type_of, parts))] if len(parts) == _MADE_OF[name] else whole  # type: ignore[index]  # list or dict
        case _:
            return codec.ANY


def is_of_type(value: Any, annotation: Any) -> bool:
    """Whether a value is, or as it comes back from the store can be made, what the annotation wants."""
    return is_made(codec.roundtrip(value, annotation=annotation)[1], annotation)


def is_made(value: Any, annotation: Any) -> bool:
    """Whether a value that was read for an annotation has become what it wants."""
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return False  # Nobody can say which moment it is.
    return fits(value, annotation)


def told(wants: str) -> str:
    """A type as a sentence names it: `an int`, `one of "a", "b"`."""
    if known := choices(wants):
        return f"one of {phrases.listed([phrases.shown(one) for one in known], most=20)}"
    return f"{'an' if wants[:1] in 'aeioAEIO' else 'a'} {wants}"


def misfit(value: Any, wants: str) -> str:
    """What a value is told that is not of the type of this name."""
    return f"{told(wants)}, not {phrases.shown(value)}" + (f": {_HINTS[wants]}" if wants in _HINTS else "")


def check_type(annotation: Any, field: str) -> None:
    """Refuse a type that is only named. Raises BadInput."""
    if isinstance(annotation, str):
        raise BadInput(f"{field} must be a type, not the text {annotation!r}: write {field}={annotation}", field=field)


def check_answer(value: Any, wants: str, *, question_id: str) -> None:
    """Refuse an answer that is not what the agent asked for. Raises BadInput. Classes of the agent's own pass here."""
    if not is_of_type(value, type_named(wants)):
        raise BadInput(f"{question_id} wants {misfit(value, wants)}", field="answer")


def check_result(value: Any, evidence: Mapping[str, Any], *, question_id: str) -> None:
    """Refuse a result that the tool cannot have returned, by its type on record and by the tool itself if it is here.

    Raises BadInput, for None ResultWanted. What is on record of a type is its name alone: classes of the author's own
    pass by that.
    """
    known = judges(evidence)
    if any(is_of_type(value, one) for _, one in known):
        return
    tool, (word, _) = evidence.get("tool"), known[0]
    if value is None:
        raise ResultWanted(f"{question_id}: {tool} returns {word}")
    raise BadInput(f"{question_id}: {tool} returns {word}, which {phrases.shown(value)} is not", field="result")


def judges(evidence: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a tool returns, in words and as a type: as itself says if it is here, else by its type on record.

    On record is the word, which says more than the type that is made of it: `list[Receipt]`, where Receipt is anything.
    """
    tool, word = evidence.get("tool"), str(evidence.get("returns", "any"))
    here = [returns(one.fn) for one in tools_named(tool)] if isinstance(tool, str) else []
    return [(type_word(one), one) for one in here] or [(word, type_named(word))]


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType
