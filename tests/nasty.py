"""Values and ids that broke real agent systems, as lists and as strategies of hypothesis.

`JSON_VALUES` must come back exactly from every store; `ENCODABLE` comes back by a tag of the codec; `REFUSED` must
be refused with a typed error before anything is written. Nothing here tests anything by itself.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import pathlib
import uuid
from collections import OrderedDict, defaultdict
from typing import Final, NoReturn

from hypothesis import strategies as st

TEXTS: Final = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\x1b[31m",
    "\u2028",
    "\ufeff",
    "\ufffe",
    "e\u0301",
    "\u00e9",
    "\U0001f3f7\ufe0f",
    "\u202eabc",
    "\u00df",
    "\u0130",
    "'; drop table tasks;--",
    "%s %(x)s {0} :id ?",
    "\\u0000",
    "\\",
    '"',
    "</script><img src=x onerror=alert(1)>",
    "=1+1",
    "a" * 1_000_000,
)

# File names that are no UTF-8 and emoji that were cut in two look like this.
SURROGATES: Final = ("\ud83d", "\udc00", "x\ud83d\u2026", "\udce4.txt")

IDS: Final = (
    "a:b",
    "a/b",
    "../../etc/passwd",
    "..",
    ".",
    "con",
    "a\nb",
    " a ",
    "A",
    "a",
    "\u00e9",
    "e\u0301",
    "\u200b",
    "0",
    "-1",
    "null",
    "undefined",
    "%2e%2e%2f",
    "a" * 255,
    "a" * 5000,
    "~",
    "C:\\x",
    "*",
    "a?b#c",
    "id'--",
    "<b>",
)

NUMBERS: Final = (0, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.1, 1e308, -0.0, 5e-324, 1.0, True)
NUMBERS_TOO_BIG: Final = (2**63, -(2**63) - 1, 2**64, 10**400, 10**5000)
NOT_FINITE: Final[tuple[object, ...]] = (math.nan, math.inf, -math.inf, {"a": [math.nan]})

FILTER_KEYS: Final = ("x') OR 1=1 --", "a.b", 'a"b', "a'b", "$.x", "$[0]", "a->>'b'", "x\x00y", "")

INSTANTS: Final = (
    "2026-03-29T02:30:00",
    "2026-10-25T02:30:00+02:00",
    "2026-10-25T02:30:00+01:00",
    "9999-12-31T23:59:59Z",
    "1969-12-31T23:59:59Z",
    "2026-02-30T00:00:00Z",
    "2024-02-29T00:00:00Z",
    "2016-12-31T23:59:60Z",
)

SECRETS: Final = {
    "Authorization": "Bearer sk-test-0123456789abcdef0123456789",
    "api_key": "tvly-0123456789abcdef",
    "password": "hunter2",
    "dsn": "postgresql://u:hunter2@h/db",
    "AWS_SECRET_ACCESS_KEY": "A" * 40,
}


class SilentRepr:
    """An object whose repr fails, and so every message that would show it."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("repr fails")


class BrokenZone(dt.tzinfo):
    """A zone that fails whatever it is asked."""

    def utcoffset(self, when: dt.datetime | None) -> NoReturn:
        raise RuntimeError("no offset")

    def dst(self, when: dt.datetime | None) -> NoReturn:
        raise RuntimeError("no summer")

    def tzname(self, when: dt.datetime | None) -> NoReturn:
        raise RuntimeError("no name")


class FalseText(str):
    """Text that fails when it is compared, with the hash of another."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equal")

    def __hash__(self) -> int:
        return hash("$perdure")


class Impostor:
    """A proxy that is bound to nothing: asking for anything fails, for its class too, and so does isinstance."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError("not bound")


class BadError(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first, self.second = first, second


class Spoken(str):
    """Text that is more than text."""

    __slots__ = ()


class Color(enum.StrEnum):
    RED = "red"


def nested_dicts(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = {"k": value}
    return value


def nested_lists(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


def shared_lists(levels: int) -> object:
    """Two to the power of `levels` values in a few bytes of memory."""
    value: object = 0
    for _ in range(levels):
        value = [value, value]
    return value


def itself() -> dict[str, object]:
    value: dict[str, object] = {}
    value["me"] = value
    return value


# What other serialisers would turn into a call. Here it is data.
PLANTED: Final[tuple[object, ...]] = (
    {"__class__": "os.system", "py/reduce": [1]},
    {"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["true"]}]},
    {"lc": 1, "type": "constructor", "id": ["langchain", "llms"], "kwargs": {}},
    {"__reduce__": ["os.system", "true"]},
    {"$type": "System.Diagnostics.Process"},
)

JSON_VALUES: Final[tuple[object, ...]] = (
    *TEXTS,
    *({"k": text} for text in TEXTS[:-1]),
    *({text: "v"} for text in TEXTS[:-1]),
    *NUMBERS,
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": ""},
    nested_dicts(50),
    nested_lists(50),
    {"a": {"b": {"c": {"d": {"e": "x\x00y"}}}}},
    *PLANTED,
    ["x"] * 10_000,
)

ENCODABLE: Final[tuple[object, ...]] = (
    b"",
    b"\xff\x00",
    dt.datetime(2026, 3, 29, 2, 30, tzinfo=dt.UTC),
    dt.datetime(2026, 10, 25, 2, 30, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=2, seconds=7))),
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.date(2024, 2, 29),
    dt.time(2, 30),
    dt.time(2, 30, tzinfo=dt.UTC),
    dt.timedelta.max,
    dt.timedelta(microseconds=-1),
    uuid.UUID(int=1),
    decimal.Decimal("0.10"),
    decimal.Decimal("1E+999999"),
    decimal.Decimal("-0"),
    pathlib.Path("a/../b"),
    {1, 2},
    frozenset({"a", ("b", 1)}),
    set(),
    Color.RED,
    {"$perdure": "datetime", "v": "2026-03-29T02:30:00+00:00"},
    {"$perdure": None},
    {"$perdure": {"$perdure": "dict", "v": {}}},
)

REFUSED: Final[tuple[object, ...]] = (
    *SURROGATES,
    *({text: 1} for text in SURROGATES),
    *NOT_FINITE,
    *NUMBERS_TOO_BIG,
    object(),
    object,
    len,
    lambda: 0,
    iter(()),
    SilentRepr(),
    Impostor(),
    BadError(1, 2),
    Spoken("text"),
    OrderedDict(a=1),
    defaultdict(list),
    bytearray(b"a"),
    memoryview(b"a"),
    range(3),
    1j,
    dt.datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001  # Without a zone on purpose.
    decimal.Decimal("NaN"),
    decimal.Decimal("-Infinity"),
    {1: "a key that is a number"},
    {None: 1},
    {Color.RED: 1},
    {("a", 2): "a key that is a tuple"},
    [{"a": {"b": {1, object}}}],
    itself(),
    nested_dicts(100_000),
    nested_lists(100_000),
)


def texts() -> st.SearchStrategy[str]:
    """Any text that UTF-8 can carry."""
    return st.text(st.characters(exclude_categories=["Cs"]))


def payload(max_leaves: int = 30) -> st.SearchStrategy[object]:
    """JSON values as far as the standard goes."""
    leaf: st.SearchStrategy[object] = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts()
        | st.sampled_from(TEXTS[:-1])
    )
    keys = texts() | st.just("$perdure")
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=max_leaves)


def typed_payload(max_leaves: int = 20) -> st.SearchStrategy[object]:
    """JSON values among which stand values that JSON lacks."""
    leaf = payload(max_leaves=3) | st.sampled_from(ENCODABLE) | st.decimals(allow_nan=False, allow_infinity=False)
    leaf |= st.binary() | st.uuids() | st.dates() | st.datetimes(timezones=st.just(dt.UTC)) | st.timedeltas()
    return st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(texts(), inner), max_leaves=max_leaves)


def anything(max_leaves: int = 20) -> st.SearchStrategy[object]:
    """Good values and bad ones, mixed at every depth."""
    # Hypothesis shows what it draws from, which some of these do not bear.
    bad = [value for value in REFUSED if type(value) not in (Impostor, SilentRepr, dict, list, int)]
    leaf = payload(max_leaves=3) | st.sampled_from([*ENCODABLE, *bad]) | st.floats() | st.integers()
    hashable = st.text() | st.integers() | st.floats() | st.sampled_from(SURROGATES) | st.sampled_from(list(Color))

    def grow(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        return st.lists(inner) | st.dictionaries(hashable, inner) | st.sets(hashable) | st.tuples(inner, inner)

    return st.recursive(leaf, grow, max_leaves=max_leaves)


def identifiers() -> st.SearchStrategy[str]:
    """Ids that users may give."""
    return st.sampled_from(IDS) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


def describe(value: object) -> str:
    """A short name for a test's parameter, of any value: repr may fail or be a megabyte long."""
    kind = type(value).__name__
    if type(value) in (str, int, float, bool) or value is None:
        shown = ascii(value) if not isinstance(value, int) or abs(value) < 10**30 else "huge"
        return f"{kind}-{shown[:24]}"
    return kind
