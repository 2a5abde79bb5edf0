"""Values in words: on one line that is as long as it may be, or whole.

A value is written by what is kept of it as evidence: equal evidence gives equal words, in every process, and no code
of a class of somebody's own runs. Where something is left out a mark says so, outside of the quotes of any text, so
that no text can pretend it; long texts give way first, and in their middle, so that what is short stays readable.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from perdure import codec

Raw = object
"""Parsed JSON of evidence, with its tags."""

_DEEPEST: Final = 40  # More levels are no longer read by anybody.
_ONE_LINE_CHARS: Final = 100
_PLAIN_WORDS: Final = ("decimal", "datetime", "date", "time", "uuid", "int", "float")


@dataclass(frozen=True, slots=True)
class _Room:
    """How much is told: characters of a text, members of a whole, levels of wholes."""

    characters: int
    members: int
    levels: int


_WHOLE: Final = _Room(1 << 40, 1 << 40, _DEEPEST)
_ROOMS: Final = (
    _WHOLE, _Room(60, 40, 6), _Room(40, 20, 4), _Room(24, 20, 3), _Room(12, 20, 2), _Room(12, 6, 1),
)  # fmt: skip


class _TooLong(Exception):
    """It does not fit; nobody needs the rest of it."""


def one_line(value: object, *, limit: int, secrets: Collection[str] = ()) -> str:
    """A value on one line of at most `limit` characters, each secret in it masked."""
    raw = _raw(value, secrets)
    return _fitting(limit, lambda writer: writer.value(raw, 0))


def arguments(given: Mapping[str, object], *, limit: int, secrets: Collection[str] = ()) -> str:
    """Arguments by their names on one line of at most `limit` characters, each secret in them masked."""
    raw = {codec.mask_text(name, secrets): _raw(value, secrets) for name, value in given.items()}
    return _fitting(limit, lambda writer: writer.members([(f"{name}=", part) for name, part in raw.items()], 0))


def whole(name: str, value: object) -> list[str]:
    """A named value with nothing left out: on one line where it is short, else a line for each member and each line of
    a text, further in.
    """
    return _lines(name, _raw(value), 0)


def cut_in_middle(text: str, limit: int) -> str:
    """Text cut to `limit` characters, of which the end stays too."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"


def _raw(value: object, secrets: Collection[str] = ()) -> Raw:
    return json.loads(codec.evidence(value, secrets=secrets))


def _fitting(limit: int, write: Callable[[_Writer], str]) -> str:
    text = ""
    for room in _ROOMS:
        is_last = room is _ROOMS[-1]
        writer = _Writer(room, 1 << 40 if is_last else limit)
        with suppress(_TooLong):
            text = write(writer)
            if len(text) <= limit:
                return text
    return cut_in_middle(text, limit)


class _Writer:
    """One try to write something in so much room; raises _TooLong as soon as it has written more than fits."""

    def __init__(self, room: _Room, limit: int) -> None:
        self._room = room
        self._left = limit

    def value(self, raw: Raw, level: int) -> str:
        match raw:
            case str():
                return self._text(raw)
            case list():
                return f"[{self._inside([('', part) for part in raw], level)}]"
            case dict() if codec.TAG in raw:
                return self._tagged(str(raw[codec.TAG]), raw.get("v"), raw, level)
            case dict():
                return f"{{{self._inside(_by_text(raw), level)}}}"
            case _:
                return self._put(json.dumps(raw))

    def members(self, parts: Sequence[tuple[str, Raw]], level: int) -> str:
        """Parts with what stands before each, and how many more there are."""
        shown = parts[: self._room.members]
        written = [self._put(self._cut(before)) + self.value(part, level) for before, part in shown]
        if len(parts) > len(shown):
            written.append(self._put(f"…{len(parts) - len(shown):,} more…"))
        return ", ".join(written)

    def _inside(self, parts: Sequence[tuple[str, Raw]], level: int) -> str:
        if parts and level >= self._room.levels:
            return self._put("…")
        return self.members(parts, level + 1)

    def _tagged(self, tag: str, content: Raw, raw: Mapping[str, Raw], level: int) -> str:
        cls = _class_of(raw.get("class"))
        match tag, content:
            case "object", dict():
                return f"{self._put(cls)}({self._inside(_by_name(content), level)})"
            case "enum", _ if str(raw.get("name")).isidentifier() and raw.get("name") != "None":
                return self._put(f"{cls}.{raw['name']}")
            case "enum", _:
                return f"{self._put(cls)}({self.value(content, level)})"
            case "dict", dict():
                return f"{{{self._inside(_by_text(content), level)}}}"
            case "pairs", list():
                return f"{{{self._inside(_pairs(content), level)}}}"
            case "set" | "frozenset", list():
                return f"{{{self._inside([('', part) for part in content], level)}}}" if content else "set()"
            case "cut", _:
                size = f" of {raw['size']} bytes" if "size" in raw else ""
                return f"{self.value(content, level)} …cut{size}…"
            case _:
                return self._put(scalar) if (scalar := _scalar(tag, content)) else self.value(content, level)

    def _text(self, text: str) -> str:
        most = self._room.characters
        if len(text) <= most:
            return self._put(json.dumps(text, ensure_ascii=False))
        head, tail = text[: most - most // 3], text[len(text) - most // 3 :]
        left = len(text) - len(head) - len(tail)
        quoted = (json.dumps(part, ensure_ascii=False) for part in (head, tail))
        return self._put(f" …{left:,} more… ".join(quoted))

    def _cut(self, before: str) -> str:
        return cut_in_middle(before, max(self._room.characters, 24))

    def _put(self, piece: str) -> str:
        self._left -= len(piece)
        if self._left < 0:
            raise _TooLong
        return piece


# -- tags -----------------------------------------------------------------------------------


def _scalar(tag: str, content: Raw) -> str:
    """A value that holds no others by its text; "" for one that is written as its content is."""
    if isinstance(content, str):
        match tag:
            case "cycle":
                return "…itself…"
            case "bytes":
                return f"base64 {json.dumps(content)}"
            case "opaque":
                return content if " " in content else content.rpartition(".")[2]
            case _:
                return content if tag in _PLAIN_WORDS else ""
    if tag == "timedelta" and isinstance(content, list):
        return str(dt.timedelta(*content)).replace(",", "")
    return ""


def _class_of(name: Raw) -> str:
    return str(name).rpartition(":")[2].rpartition(".")[2]


def _by_name(fields: Mapping[str, Raw]) -> list[tuple[str, Raw]]:
    return [(f"{name}=", part) for name, part in fields.items()]


def _by_text(members: Mapping[str, Raw]) -> list[tuple[str, Raw]]:
    return [(f"{json.dumps(name, ensure_ascii=False)}: ", part) for name, part in members.items()]


def _pairs(pairs: Iterable[Raw]) -> list[tuple[str, Raw]]:
    return [(f"{_Writer(_WHOLE, 1 << 40).value(key, 0)}: ", part) for key, part in _two(pairs)]


def _two(pairs: Iterable[Raw]) -> list[tuple[Raw, Raw]]:
    return [(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2]


# -- whole ----------------------------------------------------------------------------------


def _lines(name: str, raw: Raw, level: int) -> list[str]:
    flat = f"{name}{_Writer(_WHOLE, 1 << 40).value(raw, level)}"
    if (len(flat) <= _ONE_LINE_CHARS and not _has_lines(raw)) or level >= _DEEPEST:
        return [flat]
    match raw:
        case str():
            return [name.rstrip(), *(f"  | {line}" for line in raw.split("\n"))]
        case list():
            parts = [(f"{number}: ", part) for number, part in enumerate(raw)]
        case {codec.TAG: "object", "class": cls, "v": dict() as fields}:
            name, parts = f"{name}{_class_of(cls)}", [(f"{key}: ", part) for key, part in fields.items()]
        case {codec.TAG: "dict", "v": dict() as members}:
            parts = _by_text(members)
        case {codec.TAG: "pairs", "v": list() as pairs}:
            parts = _pairs(pairs)
        case {codec.TAG: _, "v": inner}:
            return [flat] if isinstance(inner, str) and "\n" not in inner else _lines(name, inner, level + 1)
        case dict():
            parts = _by_text(raw)
        case _:
            return [flat]
    return [name.rstrip(), *(f"  {line}" for before, part in parts for line in _lines(before, part, level + 1))]


def _has_lines(raw: Raw) -> bool:
    match raw:
        case str():
            return "\n" in raw
        case list():
            return any(map(_has_lines, raw))
        case dict():
            return any(map(_has_lines, raw.values()))
        case _:
            return False
