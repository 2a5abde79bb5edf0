"""The words for people: durations, calls, counts, and what is safe on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

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


def test_a_long_value_is_cut_and_a_tagged_one_shown_plain() -> None:
    assert phrases.shown("x" * 100, limit=10) == '"' + "x" * 8 + "…"
    assert phrases.shown({"$perdure": "uuid", "v": "abc"}) == '"abc"'
    assert phrases.shown(object()) == "object"


def test_a_value_of_a_hostile_class_is_shown_without_running_its_code() -> None:
    class Hostile(int):
        def __repr__(self) -> str:
            raise AssertionError("its code ran")

    class Sly(dict[str, int]):
        def items(self) -> object:  # type: ignore[override]  # what it gives back must not matter
            raise AssertionError("its code ran")

    assert phrases.shown(Hostile(7)) == "7"
    assert phrases.shown(Sly()) == "Sly"


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
