"""Whether what somebody says or sends is of the type that was asked for, before it counts.

Looked at twice: where it is said, as far as the type is known there, and by the attempt that takes it, which knows.
"""

from __future__ import annotations

import ast
import datetime as dt
import decimal
import enum
import json
import pathlib
import types
import typing
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast, get_args, get_origin

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
_MADE_OF_CHARS: Final = 100  # More would not fit on a line.
_FAULTS_TOLD: Final = 3
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
    if members := codec.members_of(annotation):
        return " | ".join(type_word(one) for one in members)
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


def person_may_say(value: Any, annotation: Any) -> bool:
    """Whether what a person says is what the annotation wants, with nothing in it for which that has no place.

    Raises NotSerializable.
    """
    return program_may_give(value, annotation) and not codec.strangers(value, annotation)


def program_may_give(value: Any, annotation: Any) -> bool:
    """Whether a value is, or as it comes back from the store can be made, what the annotation wants.

    It may hold more, as what a program gives often does. Raises NotSerializable.
    """
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


def made_of(annotation: Any) -> str:
    """What an enum or the fields of a class may be: `red or blue`, `{"n": int}`; "" where that is too long for a line.

    Also where there may be None instead.
    """
    either = [one for one in codec.members_of(annotation) or (annotation,) if one is not types.NoneType]
    wanted = either[0] if len(either) == 1 else None
    if isinstance(wanted, enum.EnumMeta):
        values = [one.value for one in cast("type[enum.Enum]", wanted)]
        if any(type(one) not in (str, int) for one in values):
            return ""
        words = [one if type(one) is str and one.isidentifier() else json.dumps(one) for one in values]
        text = " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
    elif (shape := codec.shape_of(wanted)) is not None:
        text = f"{{{', '.join(f'{json.dumps(name)}: {type_word(shape.fields[name])}' for name in shape.names)}}}"
    else:
        return ""
    return text if len(text) <= _MADE_OF_CHARS else ""


def persons_misfit(value: Any, wants: str, annotation: Any = codec.ANY, *, secrets: Collection[str] = ()) -> str:
    """What a person is told whose value is not of the type of this name, and why as far as the type is known here."""
    known = type_named(wants) if annotation is codec.ANY else annotation
    return _told_against(value, wants, why_person_may_not(value, known, secrets=secrets) or _hint(known), secrets)


def programs_misfit(value: Any, annotation: Any, *, secrets: Collection[str] = ()) -> str:
    """What a program is told whose value cannot be made what the annotation wants, and why."""
    why = why_program_may_not(value, annotation, secrets=secrets) or _hint(annotation)
    return _told_against(value, type_word(annotation), why, secrets)


def _told_against(value: Any, wants: str, why: str, secrets: Collection[str]) -> str:
    return f"{told(wants)}, not {phrases.shown(value, secrets=secrets)}" + (why and f": {why}")


def why_person_may_not(value: Any, annotation: Any, *, secrets: Collection[str] = ()) -> str:
    """Why `person_may_say` says no, on one line, masked; "" where nothing is known of it."""
    return _one_line([*codec.strangers(value, annotation), *_faults(value, annotation, "", secrets)], secrets)


def why_program_may_not(value: Any, annotation: Any, *, secrets: Collection[str] = ()) -> str:
    """Why `program_may_give` says no, on one line, masked; "" where nothing is known of it."""
    return _one_line(_faults(value, annotation, "", secrets), secrets)


def _one_line(found: Sequence[str], secrets: Collection[str]) -> str:
    return phrases.one_line(codec.mask_text("; ".join(found[:_FAULTS_TOLD]), secrets))


def _faults(value: Any, annotation: Any, at: str, secrets: Collection[str]) -> list[str]:
    """What is wrong with plain data, but for fields that are too many; `at` is the way to it."""
    if codec.can_be(value, annotation):
        return []
    annotation, whole = codec.narrowed(value, annotation), annotation
    before = f"{at}: " if at else ""
    found: list[str] = []
    shape = codec.shape_of(annotation) if type(value) is dict else None
    if not codec.needs_pydantic(annotation):  # Which is laxer than what is asked here, and says it itself.
        if shape is not None and (missing := [one for one in shape.names if one in shape.required - value.keys()]):
            found.append(f"{before}{phrases.listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        for step, part, inner in codec.parts(value, annotation):
            found += _faults(part, inner, at + step if at else step.removeprefix("."), secrets)
    if found:
        return found
    # What is written around a union may tell its members apart.
    said = "" if codec.members_of(annotation) else codec.converter_says(value, annotation)
    said = said or codec.converter_says(value, whole)
    if shape is not None or (said and codec.needs_pydantic(annotation)):
        return [before + said] if said else []
    hint = _hint(annotation) or (said if type(value) in (dict, list) else "")
    if not at:
        return [hint] if hint else []
    return [f"{at}: {phrases.shown(value, secrets=secrets)} is no {type_word(annotation)}" + (hint and f": {hint}")]


def _hint(annotation: Any) -> str:
    """How to write what is wanted; of a union each member; "" where nothing is to be said."""
    if members := codec.members_of(annotation):
        return ", or ".join(dict.fromkeys(filter(None, map(_hint, members))))
    if written := made_of(annotation):
        return f"give {written}"
    return _HINTS.get(type_word(annotation), "")


def check_type(annotation: Any, field: str) -> None:
    """Refuse a type that is only named. Raises BadInput."""
    if isinstance(annotation, str):
        raise BadInput(f"{field} must be a type, not the text {annotation!r}: write {field}={annotation}", field=field)


def check_answer(value: Any, wants: str, *, question_id: str) -> None:
    """Refuse an answer that is not what the agent asked for. Raises BadInput. Classes of the agent's own pass here."""
    if not person_may_say(value, type_named(wants)):
        raise BadInput(f"{question_id} wants {persons_misfit(value, wants)}", field="answer")


def check_result(value: Any, evidence: Mapping[str, Any], *, question_id: str) -> None:
    """Refuse a result that the tool cannot have returned, by its type on record and by the tool itself if it is here.

    Raises BadInput, for None ResultWanted. What is on record of a type is its name alone: classes of the author's own
    pass by that.
    """
    known = judges(evidence)
    if any(person_may_say(value, one) for _, one in known):
        return
    tool, (word, _) = evidence.get("tool"), known[0]
    if value is None:
        raise ResultWanted(f"{question_id}: {tool} returns {word}")
    why = next(filter(None, (why_person_may_not(value, one) for _, one in known)), "")
    refused = f"{question_id}: {tool} returns {word}, which {phrases.shown(value)} is not"
    raise BadInput(refused + (why and f": {why}"), field="result")


def judges(evidence: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a tool returns, in words and as a type: as itself says if it is here, else by its type on record.

    On record is the word, which says more than the type that is made of it: `list[Receipt]`, where Receipt is anything.
    """
    tool, word = evidence.get("tool"), str(evidence.get("returns", "any"))
    here = [returns(one.fn) for one in tools_named(tool)] if isinstance(tool, str) else []
    return [(type_word(one), one) for one in here] or [(word, type_named(word))]
