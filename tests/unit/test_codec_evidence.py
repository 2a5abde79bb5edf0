"""The record of a step's input is written for anything, hides secrets and is the same for equal calls."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pathlib
import sys
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import pytest

from perdure.codec import decode, digest, encode, evidence
from tests import nasty

SECRET = nasty.SECRETS["Authorization"]


@dataclass
class Call:
    url: str
    client: object = None


@dataclass
class Explosive:
    x: int = 0

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Mischief(dict[str, int]):
    def items(self) -> NoReturn:
        raise RuntimeError("items")

    def __iter__(self) -> NoReturn:
        raise RuntimeError("iter")


ODD: tuple[object, ...] = (
    *nasty.REFUSED,
    threading.Lock(),
    dt.datetime(2026, 1, 1, tzinfo=nasty.BrokenZone()),
    Explosive(),
    Mischief(a=1),
    sys,
    "".join,
    nasty.shared_lists(150),
    type("\u00e9", (), {"__module__": 5})(),
    type("Stray", (), {"__module__": "\ud83d"})(),
)


@pytest.mark.parametrize("index", range(len(ODD)), ids=[*map(nasty.describe, ODD)])
def test_nothing_is_refused(index: int) -> None:
    body = evidence({"a": [ODD[index]]}, limit=100_000)

    assert len(body) <= 100_000
    assert msgspec.json.decode(body).keys() == {"a"}
    assert evidence({"a": [ODD[index]]}, limit=100_000) == body


def test_a_value_of_the_table_is_kept_as_encode_writes_it() -> None:
    values = [*nasty.ENCODABLE, Call("u", client=(1, {(2, 3)}))]

    assert evidence(values) == encode(values)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (object(), {"opaque": "builtins.object"}),
        (nasty.SilentRepr(), {"opaque": "tests.nasty.SilentRepr"}),
        (nasty.Impostor(), {"opaque": "tests.nasty.Impostor"}),
        (nasty.SilentRepr, {"opaque": "class tests.nasty.SilentRepr"}),
        (nasty.describe, {"opaque": "function tests.nasty.describe"}),
        (sys, {"opaque": "module sys"}),
        (Call("u", client=object()), Call("u", client={"opaque": "builtins.object"})),
        ("x\ud83d", {"text with lone surrogates": "x\\ud83d"}),
        (10**30, 10**30),
        (math.inf, math.inf),
        ({1: "a", "b": 2}, [["b", 2], [1, "a"]]),
        (nasty.Spoken("t"), "t"),
        (Mischief(a=1), {"a": 1}),
        (nasty.itself(), {"me": {"cycle": "builtins.dict"}}),
    ],
    ids=nasty.describe,
)
def test_what_has_no_encoding_is_kept_by_name_or_marked(value: object, shown: object) -> None:
    assert decode(evidence(value)) == shown


def test_values_that_differ_give_different_evidence() -> None:
    values: list[object] = [
        "x\ud83d",
        "x\\ud83d",
        {"text with lone surrogates": "x\\ud83d"},
        1,
        "1",
        1.0,
        True,
        2**70,
        hex(2**70),
        math.nan,
        "nan",
        None,
        {1: 2},
        {"1": 2},
        [[1, 2]],
        object(),
        object,
        {"opaque": "builtins.object"},
        {"$perdure": "opaque", "v": "builtins.object"},
        b"a",
        "YQ==",
        {1},
        frozenset({1}),
        [1],
        decimal.Decimal(1),
        nasty.Color.RED,
        "red",
        dt.datetime(2026, 1, 1),  # noqa: DTZ001  # on purpose
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    ]

    assert len({digest(evidence(value)) for value in values}) == len(values)


def test_a_secret_is_masked_in_every_place_it_may_hide() -> None:
    value = {
        f"key {SECRET}": [SECRET, f"a {SECRET} b", f"{SECRET}{SECRET}"],
        "typed": [SECRET.encode(), pathlib.Path(SECRET), {SECRET}, (SECRET,), Call(SECRET)],
        "kinds": [nasty.Spoken(SECRET), type(SECRET, (), {})()],
        "broken": SECRET + "\ud83d",
    }

    body = evidence(value, secrets=[SECRET])

    assert SECRET.encode() not in body
    assert SECRET not in str(decode(body))
    assert b"sk-test" not in body
    assert b'"key [secret]":["[secret]","a [secret] b","[secret][secret]"]' in body


def test_secrets_that_need_escaping_overlap_or_contain_each_other_are_masked_whole() -> None:
    secrets = ['a"b\n', "abc", "bcd", "b", "", "x\ud83d", "secret"]

    body = evidence(['1a"b\n2', "abcd!", "x\ud83d", "[secret]", 'a"'], secrets=secrets)

    assert decode(body) == ["1[secret]2", "[secret]!", "[secret]", "[[secret]]", 'a"']


def test_keys_that_become_equal_under_the_mask_are_both_kept() -> None:
    body = evidence({"s1": "a", "s2": "b"}, secrets=["s1", "s2"])

    assert decode(body) == [["[secret]", "a"], ["[secret]", "b"]]


def test_a_long_text_is_cut_with_its_size_and_hash_and_the_rest_stays() -> None:
    first = evidence({"prompt": "a" * 50_000 + "1", "n": 1}, limit=20_000)
    second = evidence({"prompt": "a" * 50_000 + "2", "n": 1}, limit=20_000)

    read = msgspec.json.decode(first)

    assert read["n"] == 1
    assert read["prompt"]["v"] == "a" * len(read["prompt"]["v"])
    assert read["prompt"]["size"] == 50_003
    assert first != second
    assert max(len(first), len(second)) <= 20_000


def test_many_small_values_that_are_too_large_together_are_cut_as_one() -> None:
    body = evidence(list(range(100_000)), limit=20_000)

    assert len(body) <= 20_000
    assert msgspec.json.decode(body)["$perdure"] == "cut"


def test_the_depth_of_the_caller_changes_nothing() -> None:
    value = [object(), nasty.nested_lists(190), nasty.nested_dicts(190)]

    def dive(levels: int) -> bytes:
        return dive(levels - 1) if levels else evidence(value)

    assert dive(500) == evidence(value)
    assert b"too deep" not in evidence(value)


def test_what_lies_too_deep_is_cut() -> None:
    assert b'{"$perdure":"cut","v":"too deep"}' in evidence(nasty.nested_lists(100_000))
