"""The words for people: durations, calls, counts, and what is safe on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure import phrases


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 ms"), (12, "12 ms"), (2400, "2.4 s"), (3000, "3 s"), (41_000, "41 s"), (41 * 60_000, "41 min"),
     (5 * 3_600_000, "5 h"), (7 * 86_400_000, "7 d"), (-5, "0 ms")],
)  # fmt: skip
def test_a_duration_is_said_in_the_unit_that_fits(ms: int, said: str) -> None:
    assert phrases.duration(ms) == said


def test_a_moment_of_today_is_a_time_and_another_has_its_date() -> None:
    now = int(datetime(2026, 3, 4, 12, tzinfo=UTC).astimezone().timestamp() * 1000)

    assert phrases.moment(now, now).count(":") == 2
    assert phrases.moment(now - 3 * 86_400_000, now).startswith("2026-03-01 ")
    assert phrases.moment(1 << 62, now) == "never"


def test_a_call_is_written_as_one_would_write_it() -> None:
    written = phrases.call("refund", {"order": "o-9", "amount": 120, "lines": [1, True, None, {"a": "b"}]})

    assert written == 'refund(order="o-9", amount=120, lines=[1, true, null, {"a": "b"}])'
    assert phrases.call("now", {}) == "now()"
    assert phrases.call("now", None) == "now()"


def test_a_long_value_is_cut_where_it_is_seen() -> None:
    assert phrases.shown("x" * 100, limit=10) == '"xxxxxx…x"'
    assert phrases.shown("a" * 50 + "b" * 50) == '"' + "a" * 27 + '" …60 more… "' + "b" * 13 + '"'
    assert phrases.shown(list(range(1000))).endswith(" more…]")
    assert phrases.shown(object()) == "object"


class Colour(Enum):
    RED = "red"


@dataclass
class Pay:
    to: str
    amount: Decimal
    memo: str = ""


class Model(pydantic.BaseModel):
    at: datetime


class Struct(msgspec.Struct):
    colour: Colour


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Pay("eve", Decimal("1.50")), 'Pay(amount=1.50, memo="", to="eve")'),
        ([Struct(Colour.RED)], "[Struct(colour=Colour.RED)]"),
        (Model(at=datetime(2026, 1, 1, tzinfo=UTC)), "Model(at=2026-01-01T00:00:00+00:00)"),
        (UUID(int=3), "00000000-0000-0000-0000-000000000003"),
        ({3, 1}, "{1, 3}"),
        ({1: b"abc"}, '{1: base64 "YWJj"}'),
        (timedelta(days=2), "2 days 0:00:00"),
    ],
)
def test_a_value_beyond_json_is_shown_with_what_it_holds(value: object, said: str) -> None:
    assert phrases.shown(value) == said


def test_a_long_text_of_an_argument_hides_nothing_that_is_short() -> None:
    written = phrases.call("pay", {"memo": "m" * 5000, "p": Pay("eve", Decimal(7), memo="n" * 5000)})

    assert "amount=7" in written
    assert 'to="eve"' in written
    assert len(written) < 300
    assert written.count("more…") == 2


def test_no_data_can_pretend_to_be_a_value_of_another_kind() -> None:
    assert phrases.shown({"$perdure": "uuid", "v": "abc", "n": 1}) == '{"$perdure": "uuid", "n": 1, "v": "abc"}'


def test_arguments_that_are_left_out_are_counted() -> None:
    assert phrases.call("f", {f"a{n}": "x" * 500 for n in range(30)}).endswith(", …24 more…)")


def test_equal_arguments_are_written_alike_in_whatever_order_they_are_held() -> None:
    assert phrases.call("f", {"a": {"x": 1, "y": 2}}) == phrases.call("f", {"a": {"y": 2, "x": 1}})


def test_a_value_of_a_hostile_class_is_shown_without_running_its_code() -> None:
    class Hostile(int):
        def __repr__(self) -> str:
            raise AssertionError("its code ran")

    class Sly(dict[str, int]):
        def items(self) -> object:  # type: ignore[override]  # what it gives back must not matter
            raise AssertionError("its code ran")

    assert phrases.shown(Hostile(7)) == "7"
    assert phrases.shown(Sly(a=1)) == '{"a": 1}'


def test_text_cannot_steer_a_terminal() -> None:
    hostile = "\x1b[31mred\x1b[0m\x07 \x9b2J \u202egnp.exe\r\nnext\ttab"

    shown = phrases.safe(hostile)

    assert shown == "\\x1b[31mred\\x1b[0m\\x07 \\x9b2J \\x202egnp.exe\nnext\ttab"


def test_counts_and_lists_read_well() -> None:
    assert phrases.count(1, "task") == "1 task"
    assert phrases.count(1204, "task") == "1,204 tasks"
    assert phrases.count(3, "child", "children") == "3 children"
    assert phrases.listed(["a", "b"], most=3) == "a, b"
    assert phrases.listed(list("abcde"), most=2) == "a, b and 3 more"
