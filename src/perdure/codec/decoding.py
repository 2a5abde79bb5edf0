"""Canonical JSON back to values, and the proof that a value survives the trip.

Stored text is data: it may name a class, and is believed only if that class is loaded and of a family in the
table. Whatever else it says stays plain data.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

import msgspec

from perdure.codec.encoding import encode, encode_and_judge, is_plain, refused, show_path, step_into
from perdure.codec.fitting import ANY, conform, fits, open_class
from perdure.codec.stack import with_room
from perdure.codec.table import (
    DEFAULT_LIMIT,
    TAG,
    Family,
    State,
    Unfit,
    build,
    family_of,
    find_class,
    pick_member,
    read_scalar,
    to_json,
)
from perdure.errors import Damaged, NotSerializable

_parse_json: Final = msgspec.json.Decoder().decode
_MARK: Final = to_json(TAG)


def decode(body: bytes | memoryview, *, annotation: object = ANY) -> object:
    """The value that was encoded: as the annotated type if it fits, else as the recorded one, else as plain data.

    Of a recorded class it runs nothing but the constructor of a msgspec struct and the lookup of combined flags; an
    annotation may run validators.
    Raises Damaged if the bytes are no JSON.
    """
    text = bytes(body)
    if _MARK not in text:  # Most values: nothing in it stands for anything else.
        try:
            plain: object = _parse_json(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # Read below with more room, or told what is wrong with it.
        else:
            if annotation is ANY or _fits_plain(plain, annotation):
                return plain
    value = _read(text, with_classes=True)
    if annotation is ANY:
        return value
    return conform(value, annotation, opened=lambda: _read(text, with_classes=False))


def roundtrip(value: object, *, annotation: object = ANY, limit: int = DEFAULT_LIMIT) -> tuple[bytes, object]:
    """The encoded value, and the value as every later reader gets it, tuples as lists. Use the second from here on.

    Raises NotSerializable as `encode` does, and with the path to whatever does not come back equal.
    """
    body, read = encode_to_return(value, annotation=annotation, limit=limit)
    return body, read()


def encode_to_return(
    value: object, *, annotation: object = ANY, limit: int = DEFAULT_LIMIT
) -> tuple[bytes, Callable[[], object]]:
    """The same for a caller who has something to do with the bytes first: how to read them comes as a function.

    Raises all that there is to raise at once.
    """
    try:
        # The short way for plain JSON. Of a commonest annotation its class tells that the value fits; a tuple comes
        # back as a list. No object bears a tag, so that it is read as it was parsed.
        if is_plain(value, limit):
            body = to_json(value)
            if len(body) <= limit:
                if annotation is ANY or (type(value) is not tuple and _is_of_class(value, annotation)):
                    return body, partial(decode, body)
                taken: object = _parse_json(body)
                if fits(taken, annotation):
                    return body, lambda: taken
    except (UnicodeEncodeError, RecursionError):
        pass  # Found again below, where the path to it is known.
    body, all_plain = encode_and_judge(value, limit)
    recorded = _read(body, with_classes=True)
    is_same = all_plain and recorded == value
    after = recorded
    if annotation is not ANY:
        after = conform(recorded, annotation, opened=lambda: _read(body, with_classes=False))
    if not (is_same or _comes_back(body, recorded, limit) or _comes_back(body, after, limit)):
        raise _name_difference(body, encode(recorded, limit=limit))
    return body, lambda: after


def _fits_plain(value: object, annotation: object) -> bool:
    """Whether plain JSON fits an annotation, the commonest of which are asked nothing more than their class."""
    return _is_of_class(value, annotation) or fits(value, annotation)


def _is_of_class(value: object, annotation: object) -> bool:
    """Whether the annotation wants a class alone, whatever is inside, and this is one of it."""
    try:
        return type(annotation) is types.GenericAlias and type(value) is open_class(annotation)
    except TypeError:  # One that cannot be hashed.
        return False


def _read(text: bytes, *, with_classes: bool) -> object:
    try:
        return with_room(lambda: _parse(text, with_classes=with_classes))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"a payload of {len(text)} bytes is no JSON text ({error}); restore it from a backup") from error


def _parse(text: bytes, *, with_classes: bool) -> object:
    raw: object = _parse_json(text)
    return _rebuild(raw, with_classes=with_classes) if _MARK in text else raw


def _rebuild(raw: object, *, with_classes: bool) -> object:
    """Replace the tagged objects by what they stand for, in place."""
    if type(raw) is list:
        for index, part in enumerate(raw):
            raw[index] = _rebuild(part, with_classes=with_classes)
        return raw
    if type(raw) is not dict:
        return raw
    if type(raw.get(TAG)) is not str:
        return _rebuild_members(raw, with_classes=with_classes)
    try:
        return _read_tagged(raw, with_classes=with_classes)
    # The content does not fit its tag: somebody else's data that happens to look like ours.
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, Unfit, msgspec.ValidationError):
        return raw


def _rebuild_members(raw: dict[str, object], *, with_classes: bool) -> dict[str, object]:
    for key, part in raw.items():
        raw[key] = _rebuild(part, with_classes=with_classes)
    return raw


def _read_tagged(raw: Mapping[str, object], *, with_classes: bool) -> object:
    content = raw["v"]
    match raw[TAG]:
        case "object":
            return _read_object(raw, with_classes=with_classes)
        case "enum":
            value = _rebuild(content, with_classes=with_classes)
            cls = find_class(raw["class"]) if with_classes else None
            if cls is None or family_of(cls) is not Family.ENUM:
                return value
            member = pick_member(cls, raw["name"], value)
            return value if member is None else member
        case "dict":
            return _rebuild_members(_expect_dict(content), with_classes=with_classes)
        case "tuple":
            return tuple(_expect_rebuilt_list(content, with_classes=with_classes))
        case "set":
            return set(_expect_rebuilt_list(content, with_classes=with_classes))
        case "frozenset":
            return frozenset(_expect_rebuilt_list(content, with_classes=with_classes))
        case "pairs":
            return _expect_rebuilt_list(content, with_classes=with_classes)
        case "opaque" | "text" | "cut" | "cycle" as mark:
            return {("text with lone surrogates" if mark == "text" else mark): content}
        case tag:
            return read_scalar(cast("str", tag), content)


def _read_object(raw: Mapping[str, object], *, with_classes: bool) -> object:
    known = _rebuild_members(_expect_dict(raw["v"]), with_classes=with_classes)
    cls = find_class(raw["class"]) if with_classes else None
    if cls is None or family_of(cls) is Family.ENUM:
        return known
    beside = raw.get("beside")
    was_set = raw.get("set")
    state = State(
        known,
        None if beside is None else _rebuild_members(_expect_dict(beside), with_classes=with_classes),
        None if was_set is None else cast("list[str]", list(cast("list[object]", was_set))),
    )
    try:
        return build(cls, state)
    except RecursionError:
        raise
    # The class has changed since, or refuses what an older one allowed; the fields are still true.
    except Exception:  # noqa: BLE001
        return known


def _expect_dict(content: object) -> dict[str, object]:
    if type(content) is not dict:
        raise TypeError(TAG)
    return content


def _expect_rebuilt_list(content: object, *, with_classes: bool) -> list[object]:
    if type(content) is not list:
        raise TypeError(TAG)
    return cast("list[object]", _rebuild(content, with_classes=with_classes))


def _comes_back(body: bytes, after: object, limit: int) -> bool:
    """Whether what was read is written as the same text; equal text is equal type and state, whatever == says."""
    try:
        return encode(after, limit=limit) == body
    except NotSerializable:
        return False


def _name_difference(before: bytes, after: bytes) -> NotSerializable:
    trail: list[str] = []
    what = _first_difference(_parse_json(before), _parse_json(after), trail)
    return refused(what, show_path(trail[::-1]))


def _first_difference(before: object, after: object, trail: list[str]) -> str:
    """What differs first, with the way to it appended to `trail`, from the outside in."""
    if type(before) is dict and type(after) is dict:
        is_tagged = TAG in before
        if is_tagged and before.get(TAG) == after.get(TAG) and before.get("class") == after.get("class"):
            return _first_difference(before.get("v"), after.get("v"), trail)
        if not is_tagged and TAG not in after and before.keys() == after.keys():
            for key, part in before.items():
                if part != after[key]:
                    trail.append(step_into(key))
                    return _first_difference(part, after[key], trail)
    if type(before) is list and type(after) is list and len(before) == len(after):
        for index, part in enumerate(before):
            if part != after[index]:
                trail.append(f"[{index}]")
                return _first_difference(part, after[index], trail)
    if type(before) is dict and type(before.get("class")) is str:
        return (
            f"the {before[TAG]} of class {before['class']} would not come back as it is: the class must be found "
            "under this name in its module (not inside a function) and keep its fields; "
            "move it, or annotate the function"
        )
    return "the value does not come back equal; store plain data in its place"
