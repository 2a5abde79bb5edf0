"""Values to canonical JSON, strictly: what would not come back equal is refused with the path to it.

Plain JSON is checked level by level in C and handed to msgspec as it is; all else is first rewritten by the
table. No `repr`, `str` or `==` of a user's object is ever called.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from math import isfinite
from typing import Final

from perdure.codec.stack import with_room
from perdure.codec.table import (
    DEFAULT_LIMIT,
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    TAG,
    Plain,
    Unfit,
    is_a,
    name_class,
    state_of,
    to_json,
    write_scalar,
)
from perdure.errors import NotSerializable

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_SHOWN_STEPS: Final = 24


def encode(value: object, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """The value as canonical JSON: equal values give equal bytes, in every process.

    Raises NotSerializable with the path, and what to do, for values outside the table, lone surrogates, numbers
    that are not finite or wider than 64 bits, keys that are not text, cycles, more than MAX_DEPTH levels and
    more than `limit` bytes.
    """
    return encode_and_judge(value, limit)[0]


def refused(message: str, path: str) -> NotSerializable:
    """A refusal whose message begins with the path, so that it is read where a long one is cut."""
    return NotSerializable(message if path == "$" else f"{path}: {message}", path=path)


def encode_and_judge(value: object, limit: int) -> tuple[bytes, bool]:
    """The same, and whether the value is plain JSON throughout."""
    try:
        return with_room(lambda: _encode(value, limit))
    except RecursionError:
        raise NotSerializable("nested too deep for any stack; store it flatter, or parts of it on their own") from None


def is_plain(value: object, room: int) -> bool:
    """Whether msgspec writes exactly this value back and forth; text is not looked into, at most `room` values are.

    The hottest loop of the codec: written flat, since a call for each value would double its cost.
    """
    level: list[list[object] | tuple[object, ...] | dict[object, object]] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        below: list[list[object] | tuple[object, ...] | dict[object, object]] = []
        for node in level:
            parts: Iterable[object] = node
            if type(node) is dict:
                for key in node:
                    if type(key) is not str:
                        return False
                if TAG in node:
                    return False
                parts = node.values()
            # The same container a thousand times over is a small object and a huge text.
            room -= len(node)
            if room < 0:
                return False
            for part in parts:
                kind = type(part)
                if kind is str or part is None or kind is bool:
                    continue
                if type(part) is int:
                    if not INT_MIN <= part <= INT_MAX:
                        return False
                elif type(part) is dict or type(part) is list or type(part) is tuple:
                    below.append(part)
                elif type(part) is float:
                    if not isfinite(part):
                        return False
                else:
                    return False
        if not below:
            return True
        level = below
    return False


def step_into(key: str) -> str:
    """One step of a path, into the member of this name."""
    if key.isidentifier():
        return f".{key}"
    return f"[{to_json(key if len(key) <= 60 else key[:57] + '...').decode()}]"


def show_path(trail: list[str]) -> str:
    """The path from `$`, given inside out; a long one keeps its beginning."""
    steps = trail[::-1]
    if len(steps) > _MAX_SHOWN_STEPS:
        steps = [*steps[:_MAX_SHOWN_STEPS], f"...({len(trail) - _MAX_SHOWN_STEPS} more)"]
    return "$" + "".join(steps)


def _encode(value: object, limit: int) -> tuple[bytes, bool]:
    if is_plain(value, limit):
        try:
            return _within(to_json(value), limit), True
        except UnicodeEncodeError:
            pass  # Found again below, where the path to it is known.
    try:
        lowered = _Lowering(limit).lower(value, 0, exact=False)
    except Unfit as reason:
        raise refused(reason.message, show_path(reason.trail)) from None
    except RecursionError:
        raise
    except Exception as error:  # What a key's or a member's class of a user's own does here may raise anything.
        raise NotSerializable(f"reading the value raised {type(error).__name__}") from error
    return _within(to_json(lowered), limit), False


class _Lowering:
    """One pass over one value: what may still be written, and what lies on the way to here."""

    __slots__ = ("_limit", "_on_the_way", "_room")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._room = limit
        self._on_the_way: set[int] = set()

    def lower(self, value: object, depth: int, *, exact: bool) -> Plain:
        """`exact` keeps tuples apart from lists, for the inside of sets and objects."""
        self._room -= 1
        if self._room < 0:
            raise Unfit(_too_large(f"more than {self._limit}", self._limit))
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            return self._text(value, "the text")
        if type(value) is int:
            if INT_MIN <= value <= INT_MAX:
                return value
            raise Unfit("the integer is wider than 64 bits; pass it as text or Decimal")
        if type(value) is float:
            if isfinite(value):
                return value
            raise Unfit(f"{value} is no JSON number; pass None, text, or leave it out")
        if type(value) is dict:
            return self._dict(value, depth, exact=exact)
        if type(value) is list:
            return self._items(value, depth, exact=exact)
        if type(value) is tuple:
            items = self._items(value, depth + 1 if exact else depth, exact=exact)
            return {TAG: "tuple", "v": items} if exact else items
        if type(value) is set or type(value) is frozenset:
            return self._set(value, depth)
        found = _scalar(value)
        if found is not None:
            tag, content = found
            return {TAG: tag, "v": self._text(content, "the path") if type(content) is str else content}
        if is_a(value, Enum):
            return self._member(value, depth)
        return self._object(value, depth)

    def _enter(self, value: object, depth: int) -> None:
        if id(value) in self._on_the_way:
            raise Unfit("the value contains itself; store an id or a name in its place")
        if depth >= MAX_DEPTH:
            raise Unfit(f"nested more than {MAX_DEPTH} deep; store it flatter, or parts of it on their own")
        self._on_the_way.add(id(value))

    def _leave(self, value: object) -> None:
        self._on_the_way.discard(id(value))

    def _dict(self, value: dict[object, object], depth: int, *, exact: bool) -> Plain:
        if TAG in value:
            return {TAG: "dict", "v": self._members(value, depth + 1, exact=exact)}
        return self._members(value, depth, exact=exact)

    def _members(
        self, value: Mapping[str, object] | dict[object, object], depth: int, *, exact: bool
    ) -> dict[str, Plain]:
        self._enter(value, depth)
        lowered: dict[str, Plain] = {}
        for key, part in list(value.items()):
            if type(key) is not str:
                raise Unfit(_wrong_key(key))
            self._text(key, "a key")
            try:
                lowered[key] = self.lower(part, depth + 1, exact=exact)
            except Unfit as reason:
                reason.trail.append(step_into(key))
                raise
        self._leave(value)
        return lowered

    def _items(self, value: Collection[object], depth: int, *, exact: bool) -> list[Plain]:
        self._enter(value, depth)
        lowered: list[Plain] = []
        for index, part in enumerate(value):
            try:
                lowered.append(self.lower(part, depth + 1, exact=exact))
            except Unfit as reason:
                reason.trail.append(f"[{index}]")
                raise
        self._leave(value)
        return lowered

    def _set(self, value: set[object] | frozenset[object], depth: int) -> Plain:
        self._enter(value, depth)
        # The order in a set is that of addresses and seeds, so it gives no index to name in a path.
        lowered = [self.lower(part, depth + 2, exact=True) for part in list(value)]
        self._leave(value)
        return {TAG: "set" if type(value) is set else "frozenset", "v": sort_plain(lowered)}

    def _member(self, value: Enum, depth: int) -> Plain:
        content = self.lower(value._value_, depth + 1, exact=True)
        return {TAG: "enum", "class": name_class(type(value)), "name": value._name_, "v": content}

    def _object(self, value: object, depth: int) -> Plain:
        try:
            state = state_of(value)
        except RecursionError:
            raise
        except Exception as error:
            raise Unfit(f"reading the fields of {name_class(type(value))} raised {type(error).__name__}") from error
        if state is None:
            raise Unfit(_no_encoding(value))
        self._enter(value, depth)
        tagged: dict[str, Plain] = {TAG: "object", "class": name_class(type(value))}
        tagged["v"] = self._members(state.fields, depth + 1, exact=True)
        if state.beside is not None:
            tagged["beside"] = self._members(state.beside, depth + 1, exact=True)
        if state.set is not None:
            tagged["set"] = [*state.set]
        self._leave(value)
        return tagged

    def _text(self, text: str, what: str) -> str:
        self._room -= len(text)
        if not text.isascii():
            broken = _SURROGATE.search(text)
            if broken is not None:
                raise Unfit(
                    f"{what} holds the lone surrogate U+{ord(broken[0]):04X} at character {broken.start()}, which no "
                    "UTF-8 text can; mend it with text.encode('utf-8', 'replace').decode()"
                )
        return text


def sort_plain(values: list[Plain]) -> list[Plain]:
    """Values in the order of their encoding, which is the same in every process."""
    return sorted(values, key=to_json)


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise NotSerializable(_too_large(len(body), limit))
    return body


def _too_large(size_bytes: int | str, limit: int) -> str:
    return (
        f"the value takes {size_bytes} bytes of JSON and the limit is {limit}; keep it outside, "
        "for example as an artifact, and pass its reference"
    )


def _scalar(value: object) -> tuple[str, Plain] | None:
    """A scalar of the table as it is written, or None. Raises Unfit for one that would not come back equal."""
    try:
        found = write_scalar(value)
        if found is not None:
            _check_scalar(value)
    except (Unfit, RecursionError):
        raise
    except Exception as error:  # A zone of a user's own may raise anything when it is asked for the offset.
        what = f"the {type(value).__name__} raised {type(error).__name__}"
        raise Unfit(f"writing {what}; pass text in its place") from error
    return found


def _check_scalar(value: object) -> None:
    """Refuse the scalars of the table that would not come back equal."""
    if type(value) is dt.datetime and value.utcoffset() is None:
        raise Unfit("the datetime has no zone, so it names no instant; use datetime.now(timezone.utc) or astimezone()")
    if type(value) is dt.time and value.tzinfo is not None and value.utcoffset() is None:
        raise Unfit("the time's zone has no fixed offset; pass a datetime, or the time and the zone's name")
    if type(value) is decimal.Decimal and not value.is_finite():
        raise Unfit("the Decimal is not finite; pass None, text, or leave it out")


def _wrong_key(key: object) -> str:
    kind = type(key)
    shown = f" {key}" if kind is int or kind is float or kind is bool else ""
    fix = "use the member's value" if is_a(key, Enum) else "use str(key), or a list of pairs"
    return f"the key{shown} is {_article(kind)}, and keys must be text; {fix}"


def _no_encoding(value: object) -> str:
    kind = type(value)
    if is_a(value, type):
        return f"the class {name_class(value)} has no encoding; pass its name, or an object of it"
    if kind is bytearray or kind is memoryview:
        return f"{_article(kind)} has no encoding; pass bytes(value)"
    for base in (dict, list, str, int, float, tuple, set, frozenset, bytes):
        if issubclass(kind, base):
            return f"{_article(kind)} would come back as a {base.__name__}; pass {base.__name__}(value)"
    for exact in (dt.datetime, dt.date, decimal.Decimal):
        if issubclass(kind, exact):
            return f"{_article(kind)} would come back as a {exact.__name__}; make it one before it is stored"
    return (
        f"{_article(kind)} has no encoding; pass JSON values, a dataclass or the like, or pick out of it what is needed"
    )


def _article(kind: type) -> str:
    name = name_class(kind).removeprefix("builtins:")
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
