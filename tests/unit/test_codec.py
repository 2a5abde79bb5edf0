"""Every value comes back as what it was, or is refused before it is written, with the path to it."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import os
import pathlib
import subprocess
import sys
import uuid
import zoneinfo

import pytest

from perdure.codec import DEFAULT_LIMIT, MAX_DEPTH, decode, digest, encode, roundtrip
from perdure.errors import NotSerializable
from tests import nasty
from tests.samples import OBJECTS, Boxed, Liar, Loud, Model, Point, Span, Trip, made_models, made_trip

# -- plain JSON -----------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(nasty.JSON_VALUES)), ids=[*map(nasty.describe, nasty.JSON_VALUES)])
def test_a_json_value_comes_back_as_it_was(index: int) -> None:
    value = nasty.JSON_VALUES[index]

    body, after = roundtrip(value)

    assert after == value
    assert after == decode(body)
    assert type(after) is type(value)


def test_minus_zero_and_the_types_of_one_are_kept() -> None:
    _, after = roundtrip([-0.0, 1, 1.0, True])

    assert ascii(after) == "[-0.0, 1, 1.0, True]"


def test_the_text_is_canonical() -> None:
    body = encode({"b": 1, "a": {"z": "\u00e9\x00", "y": None}})

    assert body == '{"a":{"y":null,"z":"\u00e9\\u0000"},"b":1}'.encode()


def test_tuples_count_as_lists_and_running_code_gets_the_list() -> None:
    _, after = roundtrip({"a": (1, (2,))})

    assert after == {"a": [1, [2]]}


def test_a_list_that_occurs_twice_is_no_cycle() -> None:
    shared = [1]

    _, after = roundtrip([shared, shared, {"a": shared, "b": {1}}])

    assert after == [[1], [1], {"a": [1], "b": {1}}]


# -- values that JSON lacks -----------------------------------------------------------------


@pytest.mark.parametrize("value", nasty.ENCODABLE, ids=nasty.describe)
def test_a_value_of_the_table_comes_back_with_its_type(value: object) -> None:
    body, after = roundtrip([value])

    assert after == [value]
    assert isinstance(after, list)
    assert type(after[0]) is type(value)
    assert encode(after) == body


@pytest.mark.parametrize("value", OBJECTS, ids=nasty.describe)
def test_an_object_comes_back_as_its_class(value: object) -> None:
    _, after = roundtrip({"k": value})

    assert after == {"k": value}
    assert isinstance(after, dict)
    assert type(after["k"]) is type(value)


def test_a_tuple_inside_an_object_stays_a_tuple() -> None:
    _, after = roundtrip(Span((1, 2)))

    assert isinstance(after, Span)
    assert type(after.ends) is tuple
    assert hash(after) == hash(Span((1, 2)))


def test_what_a_dataclass_holds_beside_its_fields_comes_back_and_a_cache_fills_itself_again() -> None:
    trip = made_trip()
    assert trip.length == 1

    body, after = roundtrip(trip)

    assert isinstance(after, Trip)
    assert after.lucky == 7
    assert after.length == 1
    assert b"length" not in body


def test_a_pydantic_model_keeps_extras_private_attributes_and_the_fields_that_were_set() -> None:
    _, after = roundtrip(made_models())

    assert isinstance(after, list)
    plain, full = after
    assert plain.model_fields_set == {"secret_hash"}
    assert plain.secret_hash == "hash(x)"
    assert (full._cursor, full.model_extra, full.parts) == (7, {"more": {"a": (1, 2)}}, [{3}, Point(1)])


def test_a_datetime_keeps_its_instant_and_offset() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    value = dt.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=1)

    _, after = roundtrip(value)

    assert isinstance(after, dt.datetime)
    assert after.isoformat() == "2026-10-25T02:30:00+01:00"


def test_a_constructor_does_not_run_when_an_object_is_read() -> None:
    loud = object.__new__(Loud)
    loud.x = 1

    _, after = roundtrip(loud)

    assert isinstance(after, Loud)
    assert after.x == 1


def test_a_class_that_calls_all_equal_is_still_compared_by_its_state() -> None:
    def local() -> Liar:
        class Liar2(Liar):
            pass

        return Liar2(1)

    with pytest.raises(NotSerializable) as refusal:
        roundtrip({"a": [local()]})

    assert refusal.value.path == "$.a[0]"


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(nasty.REFUSED)), ids=[*map(nasty.describe, nasty.REFUSED)])
def test_a_value_that_would_not_come_back_is_refused(index: int) -> None:
    with pytest.raises(NotSerializable) as refusal:
        encode(nasty.REFUSED[index])

    assert refusal.value.path.startswith("$")
    assert ";" in str(refusal.value), "the message says what to do"


def test_a_nan_is_refused_with_its_path() -> None:
    with pytest.raises(NotSerializable, match="nan is no JSON number") as refusal:
        roundtrip({"a": 1, "b": [0, float("nan")]})

    assert refusal.value.path == "$.b[1]"


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"a": [0, {"b c": 1j}]}, '$.a[1]["b c"]', "complex"),
        ({"a": {1: 2}}, "$.a", "the key 1 is an int"),
        ({"a": "x\ud83d"}, "$.a", "U\\+D83D at character 1"),
        ([{"a\ud83d": 1}], "$[0]", "a key holds the lone surrogate"),
        (Boxed([Boxed(object())]), "$.item[0].item", "object has no encoding"),
        (Model(secret_hash="x", parts=[1j]), "$.parts[0]", "complex"),
        ([2**63], "$[0]", "wider than 64 bits"),
        ({"t": dt.datetime(2026, 1, 1)}, "$.t", "no zone"),  # noqa: DTZ001  # on purpose
        ({"d": decimal.Decimal("Infinity")}, "$.d", "not finite"),
        ({"b": bytearray(b"x")}, "$.b", r"pass bytes\(value\)"),
        ({"s": nasty.Spoken("x")}, "$.s", r"come back as a str; pass str\(value\)"),
        ([pathlib.Path("\udce4.txt")], "$[0]", "the path holds the lone surrogate"),
        ([nasty.SilentRepr()], "$[0]", "SilentRepr has no encoding"),
        ({"t": dt.datetime(2026, 1, 1, tzinfo=nasty.BrokenZone())}, "$.t", "writing the datetime raised RuntimeError"),
        ({"t": dt.time(1, tzinfo=nasty.BrokenZone())}, "$.t", "writing the time raised RuntimeError"),
        ([object.__new__(uuid.UUID)], "$[0]", "writing the UUID raised AttributeError"),
    ],
    ids=nasty.describe,
)
def test_a_refusal_names_the_path_and_the_reason(value: object, path: str, message: str) -> None:
    with pytest.raises(NotSerializable, match=message) as refusal:
        encode(value)

    assert refusal.value.path == path
    assert str(refusal.value).startswith(f"{path}: ")


def test_whatever_a_value_raises_while_it_is_written_is_a_refusal() -> None:
    with pytest.raises(NotSerializable, match="raised RuntimeError"):
        encode({nasty.FalseText("x"): 1})


def test_depth_is_limited_and_the_limit_itself_is_stored() -> None:
    deepest = nasty.nested_lists(MAX_DEPTH)

    _, after = roundtrip(deepest)

    assert after == deepest
    with pytest.raises(NotSerializable, match="more than 200 deep"):
        encode([deepest])


def test_size_is_limited_and_the_message_names_both() -> None:
    assert len(encode("a" * 98, limit=100)) == 100

    with pytest.raises(NotSerializable, match="takes 101 bytes of JSON and the limit is 100"):
        encode("a" * 99, limit=100)
    with pytest.raises(NotSerializable, match=str(DEFAULT_LIMIT)):
        roundtrip("a" * DEFAULT_LIMIT)


def test_a_small_object_that_stands_for_a_huge_text_is_refused_at_once() -> None:
    with pytest.raises(NotSerializable, match="limit"):
        encode(nasty.shared_lists(150), limit=10_000)
    with pytest.raises(NotSerializable, match="limit"):
        encode([nasty.shared_lists(150), {1}], limit=10_000)


def test_deep_code_reads_what_shallow_code_wrote() -> None:
    body = encode(nasty.nested_lists(MAX_DEPTH - 2)), encode(_nested_boxes(90))

    def dive(levels: int) -> tuple[object, ...]:
        return dive(levels - 1) if levels else (*map(decode, body), roundtrip(_nested_boxes(90))[1])

    depth = len(inspect.stack())
    after = dive(sys.getrecursionlimit() - depth - 60)

    assert after == (nasty.nested_lists(MAX_DEPTH - 2), _nested_boxes(90), _nested_boxes(90))


def _nested_boxes(levels: int) -> object:
    value: object = {1}
    for _ in range(levels):
        value = Boxed(value)
    return value


# -- names ----------------------------------------------------------------------------------


def test_a_digest_is_thirty_two_hexadecimal_digits_of_the_bytes() -> None:
    assert digest(b"{}") == "44136fa355b3678a1146ad16f7e8649e"


def test_the_encoding_is_the_same_in_every_process() -> None:
    program = (
        "from perdure.codec import digest, encode, evidence\n"
        "words = {'alpha', 'beta', 'gamma', 'delta', 'epsilon', ('a', 1), ('b', 2)}\n"
        "value = {'words': words, 'more': [frozenset(words)]}\n"
        "odd = [value, object(), {1: words, None: 2}, print, {object}, 'x\\ud83d']\n"
        "print(digest(encode(value)), digest(evidence(odd, secrets=['alpha'])))\n"
    )

    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(printed) == 1
