"""JSON as a recorded run may hold it: parsed strictly, and made storable where that loses nothing that matters.

Refused: what is no JSON, a key that stands twice in one object (which value counts is anybody's guess), nesting
deeper than `MAX_DEPTH`. Changed and said: half a surrogate pair (programs that cut text by UTF-16 units write it)
becomes U+FFFD, and a number that no 64-bit type holds becomes its text. It knows nothing of any format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.errors import BadInput
from perdure.importers.recorded import Json

MAX_DEPTH = 128
"""Deep enough for any real record; the store's own limit is 200, and what stores a value wraps it a few times."""

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WILD_NUMBER = re.compile(r"\d{19}|\d[eE]\+?\d{3}")
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1

SURROGATE_REMARK = "half a surrogate pair in a text was replaced by U+FFFD"
NUMBER_REMARK = "a number beyond 64 bits is kept as text"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A value, and what had to be changed in it."""

    value: Json
    remarks: tuple[str, ...] = ()


def parse_json(text: str, *, where: str) -> Parsed:
    """Parse one JSON text; `where` names it in errors.

    Raises:
        BadInput: not JSON, a key twice in one object, or too deep. The message starts with the place.
    """
    # Calling Python for each number is slow, so it is done only for a text that could hold a number too big.
    numbers = _Numbers() if _WILD_NUMBER.search(text) else None
    mended = False
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=numbers.integer if numbers else None,
            parse_float=numbers.real if numbers else None,
        )
        _check_depth(value)
        if _ESCAPED_SURROGATE.search(text):
            as_read, value = value, _mend(value)
            mended = value != as_read
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}" if error.lineno > 1 else where
        raise BadInput(f"{place}, column {error.colno}: not JSON ({error.msg})", field=where) from error
    except _Refusal as error:
        raise BadInput(f"{where}: {error}", field=where) from error
    except RecursionError as error:
        raise BadInput(f"{where}: {_TOO_DEEP}", field=where) from error
    remarks = [SURROGATE_REMARK] if mended else []
    if numbers is not None and numbers.kept_as_text:
        remarks.append(NUMBER_REMARK)
    return Parsed(value, tuple(remarks))


def as_object(value: Json) -> dict[str, Json]:
    """The value when it is an object, else an empty one: for reading fields that may be missing."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    """The value when it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text_in(record: Mapping[str, Json], key: str) -> str | None:
    """The field when it is a text that is not empty, else None."""
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def id_in(record: Mapping[str, Json], key: str) -> str | None:
    """The field when it can serve as an id: text of 1 to 200 characters without NUL."""
    value = text_in(record, key)
    return value if value is not None and len(value) <= 200 and "\0" not in value else None


class _Refusal(Exception):
    """Raised inside the parser's hooks, where the place is not known."""


@dataclass(slots=True)
class _Numbers:
    """Reads numbers one by one and remembers whether one was too big to stay a number."""

    kept_as_text: bool = False

    def integer(self, digits: str) -> int | str:
        # Python refuses to convert thousands of digits, so the length decides before the value does.
        if len(digits) <= 20 and _INT_MIN <= (number := int(digits)) <= _INT_MAX:
            return number
        self.kept_as_text = True
        return digits

    def real(self, digits: str) -> float | str:
        number = float(digits)
        if math.isfinite(number):
            return number
        self.kept_as_text = True
        return digits


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Refusal(f"the key {twice!a} stands twice in one object")
    return found


def _refuse_constant(name: str) -> Json:
    raise _Refusal(f"{name} is not JSON")


def _check_depth(value: Json) -> None:
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent) if isinstance(child, (dict, list))]
        if not level:
            return
    raise _Refusal(_TOO_DEEP)


def _children(value: Json) -> Iterable[Json]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


def _mend(value: Json) -> Json:
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [_mend(item) for item in value]
        case dict():
            return _unique([(_SURROGATE.sub("\ufffd", key), _mend(item)) for key, item in value.items()])
        case _:
            return value
