"""What a step was called with, kept as evidence: never refused, the same in every process, free of secrets.

Evidence is compared and shown, and never needed to come back as it was. So where `encode` refuses, this writes a
mark that says what stood there; it never calls a user's `repr`, and no address, id or order of a set enters it.
"""

from __future__ import annotations

import base64
import hashlib
import math
import types
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from perdure.codec import modules
from perdure.codec.encoding import is_plain, sort_plain
from perdure.codec.stack import with_room
from perdure.codec.table import (
    DEFAULT_LIMIT,
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    TAG,
    Plain,
    is_a,
    name_class,
    state_of,
    to_json,
    write_scalar,
)

OPAQUE: Final = to_json({TAG: "opaque"})[:-1]  # how the mark of a value begins of which only the class is kept

_MASK: Final = "[secret]"
_SHOWN_CHARS: Final = 1000
# A part below this is never cut: its mark would be about as large.
_SMALLEST_CUT_BYTES: Final = 512


def evidence(value: object, *, secrets: Collection[str] = (), limit: int = DEFAULT_LIMIT) -> bytes:
    """The value as canonical JSON of at most `limit` bytes; never raises for an odd value.

    An object is its fields, without what it holds beside them, such as caches and private attributes. What has no
    encoding is kept by the name of its class; lone surrogates, numbers that are not JSON, parts that
    are too big or too deep are marked. The exact text of every secret is masked before anything else.
    """
    hidden: Sequence[str] = ()
    if secrets:
        hidden = sorted({secret for secret in secrets if secret}, key=lambda secret: (-len(secret), secret))
    try:
        # The short way for plain JSON without a secret in it.
        if is_plain(value, limit):
            body = to_json(value)
            # JSON escapes character by character, so a secret in a text is the same run of bytes in the body.
            if len(body) <= limit and not (hidden and any(to_json(secret)[1:-1] in body for secret in hidden)):
                return body
    except (UnicodeEncodeError, RecursionError):
        pass  # Taken piece by piece below.
    try:
        return with_room(lambda: _take(value, hidden, limit))
    except RecursionError:
        return to_json({TAG: "cut", "v": "nested too deep for any stack"})


def mask(body: bytes, secrets: Collection[str]) -> bytes:
    """Canonical JSON of an encoded value with the exact text of every secret masked, in bytes too."""
    hidden = sorted({secret for secret in secrets if secret}, key=lambda secret: (-len(secret), secret))
    return to_json(with_room(lambda: _masked(msgspec.json.decode(body), hidden)))


def mask_text(text: str, secrets: Collection[str]) -> str:
    """Text with the exact text of every secret masked."""
    return _mask(text, sorted({secret for secret in secrets if secret}, key=lambda secret: (-len(secret), secret)))


def mask_bytes(content: bytes, secrets: Collection[str]) -> bytes:
    """Bytes with the exact text of every secret, in UTF-8, masked."""
    return _mask_bytes(content, [secret for secret in secrets if secret]) if secrets else content


def _masked(value: Plain, hidden: Sequence[str]) -> Plain:
    match value:
        case str():
            return _mask(value, hidden)
        case list():
            return [_masked(part, hidden) for part in value]
        case dict() if value.get(TAG) == "bytes" and isinstance(value.get("v"), str):
            kept = base64.b64decode(str(value["v"]))
            return value | {"v": base64.b64encode(_mask_bytes(kept, hidden)).decode("ascii")}
        case dict():
            return {
                _mask(key, hidden): part if key == TAG or (key == "class" and TAG in value) else _masked(part, hidden)
                for key, part in value.items()
            }
        case _:
            return value


def _take(value: object, hidden: Sequence[str], limit: int) -> bytes:
    kept = _Evidence(hidden, limit).lower(value, 0, exact=False)
    body = to_json(kept)
    return body if len(body) <= limit else to_json(_cut(kept, limit))


class _Evidence:
    """One pass over one value."""

    __slots__ = ("_hidden", "_on_the_way", "_room")

    def __init__(self, hidden: Sequence[str], limit: int) -> None:
        self._hidden = hidden
        self._room = limit
        self._on_the_way: set[int] = set()

    def lower(self, value: object, depth: int, *, exact: bool) -> Plain:
        """`exact` keeps tuples apart from lists, for the inside of sets and objects."""
        self._room -= 1
        if self._room < 0:
            return {TAG: "cut", "v": "too many values"}
        # An enum member may be an int or a str too, so it comes first.
        found = None if is_a(value, Enum) else self._leaf(value)
        if found is not None:
            return found[0]
        if id(value) in self._on_the_way:
            return {TAG: "cycle", "v": self._name(value)}
        if depth >= MAX_DEPTH:
            return {TAG: "cut", "v": "too deep"}
        self._on_the_way.add(id(value))
        parts = self._parts(value, depth, exact=exact)
        self._on_the_way.discard(id(value))
        return parts

    def _leaf(self, value: object) -> tuple[Plain] | None:
        """A value that holds no others, or None. What derives from a plain type counts as that type."""
        if value is None or type(value) is bool:
            return (value,)
        if is_a(value, str):
            return (self._text(str.__str__(value)),)
        if is_a(value, int):
            number = int.__int__(value)
            return (number if INT_MIN <= number <= INT_MAX else {TAG: "int", "v": hex(number)},)
        if is_a(value, float):
            real = float.__float__(value)
            return (real if math.isfinite(real) else {TAG: "float", "v": float.__repr__(real)},)
        try:
            found = write_scalar(self._mask_bytes(value) if type(value) is bytes else value)
        except RecursionError:
            raise
        # A zone of a user's own may raise anything when it is asked for the offset.
        except Exception:  # noqa: BLE001
            return None
        if found is None:
            return None
        tag, content = found
        return ({TAG: tag, "v": self._text(content) if type(content) is str and tag != "bytes" else content},)

    def _parts(self, value: object, depth: int, *, exact: bool) -> Plain:
        """Whatever holds other values, or nothing that can be kept."""
        if is_a(value, dict):
            return self._dict(list(dict.items(value)), depth, exact=exact)
        if is_a(value, list):
            return self._items(list.copy(value), depth, exact=exact)
        if is_a(value, set):
            return {TAG: "set", "v": sort_plain(self._items(set.copy(value), depth + 1, exact=True))}
        if is_a(value, frozenset):
            return {TAG: "frozenset", "v": sort_plain(self._items(frozenset.copy(value), depth + 1, exact=True))}
        try:
            if is_a(value, Enum):
                name, inner = value._name_, value._value_
                tagged: dict[str, Plain] = {TAG: "enum", "class": name_class(type(value))}
                return tagged | {"name": self._text(str(name)), "v": self.lower(inner, depth + 1, exact=True)}
            state = state_of(value)
        except RecursionError:
            raise
        # A property or a descriptor among the fields may raise anything; the class is still known.
        except Exception:  # noqa: BLE001
            state = None
        if state is not None:
            fields = self._dict(list(state.fields.items()), depth + 1, exact=True)
            return {TAG: "object", "class": name_class(type(value)), "v": fields}
        if is_a(value, tuple):
            items = self._items(list(tuple.__iter__(value)), depth + 1 if exact else depth, exact=exact)
            return {TAG: "tuple", "v": items} if exact else items
        return {TAG: "opaque", "v": self._name(value)}

    def _items(self, values: Iterable[object], depth: int, *, exact: bool) -> list[Plain]:
        lowered: list[Plain] = []
        for part in values:
            lowered.append(self.lower(part, depth + 1, exact=exact))  # A comprehension costs a frame a level.
        return lowered

    def _dict(self, pairs: Sequence[tuple[object, object]], depth: int, *, exact: bool) -> Plain:
        lowered: list[tuple[Plain, Plain]] = []
        for key, part in pairs:
            lowered.append((self.lower(key, depth + 1, exact=True), self.lower(part, depth + 1, exact=exact)))
        plain = {key: part for key, part in lowered if type(key) is str}
        # Keys that are no text, or became equal under the mask, can only be told as pairs.
        if len(plain) < len(pairs) or any(type(key) is not str for key, _ in pairs):
            return {TAG: "pairs", "v": sort_plain([[key, part] for key, part in lowered])}
        return {TAG: "dict", "v": plain} if TAG in plain else plain

    def _text(self, text: str) -> Plain:
        masked = _mask(text, self._hidden)
        if not masked.isascii():
            try:
                masked.encode()
            except UnicodeEncodeError:
                return {TAG: "text", "v": masked.encode("utf-8", "backslashreplace").decode()}
        return masked

    def _mask_bytes(self, value: bytes) -> bytes:
        return _mask_bytes(value, self._hidden)

    def _name(self, value: object) -> Plain:
        if is_a(value, type):
            return self._text(f"class {_dotted(value)}")
        if is_a(value, types.ModuleType):
            name = object.__getattribute__(value, "__dict__").get("__name__")
            return self._text(f"module {modules.recorded_name(name)}")
        # A method is known by its function; what is bound to it is not looked into.
        function = value.__func__ if type(value) is types.MethodType else value
        if type(function) is types.FunctionType or type(function) is types.BuiltinFunctionType:
            module = modules.recorded_name(function.__module__)
            return self._text(f"function {module}.{function.__qualname__}")
        return self._text(_dotted(type(value)))


def _dotted(cls: type) -> str:
    return name_class(cls).replace(":", ".")


def _mask_bytes(value: bytes, hidden: Sequence[str]) -> bytes:
    # Latin-1 gives each byte a character and back, so one way of masking serves text and bytes.
    as_text = [secret.encode("utf-8", "surrogatepass").decode("latin-1") for secret in hidden]
    return _mask(value.decode("latin-1"), as_text).encode("latin-1")


def _mask(text: str, hidden: Sequence[str]) -> str:
    """The text with every occurrence masked; where two overlap, the whole run."""
    spans: list[tuple[int, int]] = []
    for secret in hidden:
        start = text.find(secret)
        while start >= 0:
            spans.append((start, start + len(secret)))
            start = text.find(secret, start + 1)
    if not spans:
        return text
    spans.sort()
    kept: list[str] = []
    seen = masked_to = 0
    for start, end in spans:
        if start >= masked_to:
            kept += [text[seen:start], _MASK]
        masked_to = seen = max(masked_to, end)
    return "".join([*kept, text[seen:]])


def _cut(kept: Plain, allowance: int) -> Plain:
    """The value within `allowance` bytes: what fits stays, a larger part gives way to its beginning and hash."""
    body = to_json(kept)
    if len(body) <= max(allowance, _SMALLEST_CUT_BYTES):
        return kept
    if isinstance(kept, list | dict) and kept:
        share = allowance // len(kept) - _SMALLEST_CUT_BYTES // 4
        if share >= _SMALLEST_CUT_BYTES * 4:
            shorter: Plain
            if isinstance(kept, list):
                shorter = [_cut(part, share) for part in kept]
            else:
                shorter = {key: _cut(part, share - len(key)) for key, part in kept.items()}
            if len(to_json(shorter)) <= allowance:
                return shorter
    shown = kept if isinstance(kept, str) else body.decode()
    hashed = hashlib.sha256(body).hexdigest()
    return {TAG: "cut", "v": shown[: min(_SHOWN_CHARS, allowance // 16)], "size": len(body), "sha256": hashed}
