"""Stored text is data: it comes back as a loaded class or the annotated type, and never runs anything."""

from __future__ import annotations

import datetime as dt
import pathlib
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from perdure.codec import decode, encode, roundtrip
from perdure.errors import Damaged, NotSerializable
from tests import nasty
from tests.samples import Boxed, Level, Loud, Model, Record, Row, Span, Trip, made_trip

# -- reading --------------------------------------------------------------------------------


def test_planted_tags_stay_data_and_nothing_runs(tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "marker"
    command = f"touch {marker}"
    planted = [
        b'{"$perdure":"object","class":"os:system","v":{"command":"%s"}}',
        b'{"$perdure":"object","class":"subprocess:Popen","v":{"args":["sh","-c","%s"]}}',
        b'{"$perdure":"enum","class":"os:system","name":"%s","v":"%s"}',
        b'{"$perdure":"pickle","v":"%s"}',
        b'{"py/reduce":[{"py/function":"os.system"},{"py/tuple":["%s"]}]}',
        b'{"lc":1,"type":"constructor","id":["os","system"],"kwargs":{"command":"%s"}}',
    ]

    read = [decode(body.replace(b"%s", command.encode())) for body in planted]

    assert read[0] == {"command": command}
    assert read[2] == command
    assert all(type(value) in (dict, str) for value in read)
    assert not marker.exists()


def test_a_recorded_class_is_never_imported() -> None:
    name = "tests.never_imported_by_the_codec"
    body = b'{"$perdure":"object","class":"%s:Thing","v":{"x":1}}' % name.encode()

    after = decode(body)

    assert after == {"x": 1}
    assert name not in sys.modules


@pytest.mark.parametrize(
    "body",
    [
        b'{"$perdure":"uuid","v":"no uuid"}',
        b'{"$perdure":"uuid"}',
        b'{"$perdure":"timedelta","v":[true,1,1]}',
        b'{"$perdure":"timedelta","v":[9223372036854775807,0,0]}',
        b'{"$perdure":"decimal","v":"a"}',
        b'{"$perdure":"bytes","v":"*"}',
        b'{"$perdure":"set","v":[[1]]}',
        b'{"$perdure":"set","v":{}}',
        b'{"$perdure":"dict","v":[]}',
        b'{"$perdure":"object","class":1}',
        b'{"$perdure":"from the future","v":1}',
        b'{"$perdure":1,"v":1}',
        b'{"$perdure":["set"],"v":[1]}',
    ],
)
def test_a_tag_that_does_not_fit_is_plain_data(body: bytes) -> None:
    after = decode(body)

    assert after == msgspec.json.decode(body)


def test_a_flag_or_member_that_is_gone_gives_its_value() -> None:
    gone = b'[{"$perdure":"enum","class":"tests.samples:%s","name":"GONE","v":64}]'

    assert decode(gone % b"Level") == [64]
    assert decode(gone % b"Access") == [64]


def test_a_class_that_gained_a_field_takes_the_default_and_one_that_lost_a_field_drops_it() -> None:
    body = encode(Span((1, 2), "n")).replace(b'"name":"n"', b'"gone":1')

    assert decode(body) == Span((1, 2), "")


def test_a_class_that_gained_a_field_without_default_gives_plain_data() -> None:
    body = encode(Span((1, 2), "n")).replace(b'"ends"', b'"other"')

    assert decode(body) == {"other": (1, 2), "name": "n"}


def test_text_from_the_store_cannot_set_what_python_itself_reads() -> None:
    body = encode(made_trip()).replace(b'"lucky":7', b'"__class__":7,"lucky":8')

    after = decode(body)

    assert isinstance(after, Trip)
    assert after.lucky == 8


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"nan", b"[" * 5000 + b"]" * 5000, b'{"a":1}x'])
def test_bytes_that_are_no_json_are_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="is no JSON text"):
        decode(body)


def test_a_memoryview_is_read_like_bytes() -> None:
    assert decode(memoryview(b'{"a":[1]}')) == {"a": [1]}


# -- annotations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "annotation", "expected"),
    [
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2], tuple[int, ...], (1, 2)),
        (["a"], set[str], {"a"}),
        ([1], list[int], [1]),
        ([1], Sequence[int], [1]),
        ({"ends": [1, 2]}, Span, Span((1, 2))),
        ([{"ends": [1, 2]}], list[Span], [Span((1, 2))]),
        ([Span((1, 2)), {"ends": [3, 4]}], list[Span], [Span((1, 2)), Span((3, 4))]),
        ({"a": {"ends": [1, 2]}}, dict[str, Span], {"a": Span((1, 2))}),
        ({"ends": [1, 2]}, Span | None, Span((1, 2))),
        (None, Span | None, None),
        ([1, 2], Annotated[tuple[int, int], "note"], (1, 2)),
        ("2026-01-01T00:00:00Z", dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("00000000-0000-0000-0000-000000000001", uuid.UUID, uuid.UUID(int=1)),
        ("blue", Literal["blue", "red"], "blue"),
        (1, Level, Level.LOW),
        ({"longName": "a"}, Record, Record("a")),
        ({"id": 1, "when": "2026-01-01T00:00:00Z"}, Row, {"id": 1, "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}),
        ({"item": 1}, Boxed[int], Boxed(1)),
        # What fits already is left alone, whatever narrower type it has.
        (1, float, 1),
        (True, int, True),
        (Level.LOW, int, Level.LOW),
        (b"ab", bytes, b"ab"),
        ({"a": Span((1, 2))}, dict[str, object], {"a": Span((1, 2))}),
        (5, Any, 5),
        # What does not fit stays as it was recorded.
        (5, str, 5),
        ("YWI=", bytes, "YWI="),
        ({"a": 1}, list[int], {"a": 1}),
        ("green", Literal["blue", "red"], "green"),
        (Span((1, 2)), Record, Span((1, 2))),
        (5, "SomeUnknownName", 5),
        (5, Row, 5),
    ],
    ids=nasty.describe,
)
def test_a_value_takes_its_annotated_type_where_it_fits(stored: object, annotation: object, expected: object) -> None:
    after = decode(encode(stored), annotation=annotation)

    assert after == expected
    assert type(after) is type(expected)


def test_an_annotated_pydantic_model_is_validated_from_plain_data() -> None:
    body = encode({"secret_hash": "x", "byAlias": 3})

    for annotation in (Model, Model | None, Boxed[Model] | Model):
        after = decode(body, annotation=annotation)
        assert isinstance(after, Model)
        assert (after.secret_hash, after.by_alias) == ("hash(x)", 3)


def test_a_recorded_model_is_not_validated_again() -> None:
    after = decode(encode([Model(secret_hash="x")]), annotation=list[Model])

    assert isinstance(after, list)
    assert after[0].secret_hash == "hash(x)"


def test_a_validator_that_raises_leaves_the_recorded_value() -> None:
    assert decode(encode({"x": 1}), annotation=Loud) == {"x": 1}


def test_an_annotation_that_fails_when_it_is_asked_leaves_the_recorded_value() -> None:
    class Refusing(type):
        def __instancecheck__(cls, instance: object) -> bool:
            raise RuntimeError("ask somebody else")

    class Asked(metaclass=Refusing): ...

    assert roundtrip({"a": 1}, annotation=Asked)[1] == {"a": 1}


def test_a_class_inside_a_function_needs_an_annotation_and_then_comes_back() -> None:
    @dataclass
    class Local:
        x: int
        when: dt.datetime = field(default=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))

    with pytest.raises(NotSerializable, match="not inside a function") as refusal:
        roundtrip({"a": Local(1)})
    body, after = roundtrip(Local(1), annotation=Local)

    assert refusal.value.path == "$.a"
    assert after == Local(1)
    assert decode(body, annotation=Local) == Local(1)


@pytest.mark.parametrize(
    "annotation",
    [
        dict[str, Any],
        dict[str, object],
        dict[str, int],
        dict[int, Any],
        list[Any],
        list[dict[str, Any]],
        list[Annotated[Any, []]],  # cannot be hashed
        dict[str, Annotated[int, {}]],
    ],
)
@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {"b": [1, "x"]}}, [], [1, "x"], [{"a": None}], "text", 7])
def test_plain_json_comes_back_the_same_live_and_later_under_any_annotation(value: object, annotation: object) -> None:
    body, live = roundtrip(value, annotation=annotation)

    assert (live, type(live)) == (value, type(value))
    assert decode(body, annotation=annotation) == live


def test_running_code_and_a_later_reader_get_the_same_under_an_annotation() -> None:
    body, live = roundtrip([(1, 2)], annotation=list[tuple[int, int]])

    replayed = decode(body, annotation=list[tuple[int, int]])

    assert live == replayed == [(1, 2)]
