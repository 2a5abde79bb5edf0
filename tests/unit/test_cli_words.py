"""What people type: arguments of agents, instants, and words that become values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

import perdure
from perdure.cli.arguments import read_arguments
from perdure.cli.moments import parse_since
from perdure.cli.opening import _agent_of
from perdure.definitions import AgentDefinition, definition_of
from perdure.errors import BadInput


class Color(StrEnum):
    RED = "red"


@dataclass
class Order:
    id: str
    amount: int
    note: str = ""


@perdure.agent
async def typed(text: str, count: int = 1, *, order: Order | None = None, color: Color = Color.RED) -> None:
    """Takes what it takes."""


@perdure.agent
async def open_(anything: Any, *rest: int, **more: Any) -> None:
    """Takes anything."""


def read(agent: object, *words: str) -> tuple[list[Any], dict[str, Any]]:
    definition = definition_of(agent)
    assert isinstance(definition, AgentDefinition)
    return read_arguments(definition, words)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["hello"], ["hello"]),
        (["42"], ["42"]),
        (["true", "3"], ["true", 3]),
        (['"a=b"'], ["a=b"]),
        (["https://example.org/?a=b"], ["https://example.org/?a=b"]),
        (["a b=c"], ["a b=c"]),
        (["{not json"], ["{not json"]),
    ],
)
def test_words_become_what_the_parameter_wants(words: list[str], given: list[Any]) -> None:
    assert read(typed, *words) == (given, {})


def test_a_name_gives_a_parameter_by_name() -> None:
    given, named = read(typed, "x", "count=7", 'order={"id": "o-7", "amount": 250}', "color=red")

    assert given == ["x"]
    assert named == {"count": 7, "order": Order("o-7", 250), "color": Color.RED}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            '{"id": "o-7", "amount": 5, "Note": "urgent"}',
            "argument order: Order has no field Note: it has id, amount, note",
        ),
        ('{"id": "o-7"}', """argument order must be Order | None; '{"id": "o-7"}' is not: amount is missing"""),
    ],
)
def test_a_field_that_is_too_many_or_missing_is_named(word: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(typed, "x", f"order={word}")

    assert str(refused.value) == said


def test_a_name_that_is_no_parameter_is_refused_with_how_to_pass_it_as_text() -> None:
    with pytest.raises(BadInput) as refused:
        read(typed, "x", "cuont=3")

    assert str(refused.value) == (
        "typed has no parameter cuont: it has color, count, order, text. To pass cuont=3 as text, write '\"cuont=3\"'"
    )


def test_without_annotation_json_is_json_and_all_else_text() -> None:
    assert read(open_, '{"a": [1]}') == ([{"a": [1]}], {})
    assert read(open_, "plain text") == (["plain text"], {})
    assert read(open_, "NaN") == (["NaN"], {})
    assert read(open_, "x", "1", "2", "key=null") == (["x", 1, 2], {"key": None})


@pytest.mark.parametrize("words", [["x", "many"], ["x", "1.5"], ["x", "order=7"], ["x", "color=blue"]])
def test_a_word_that_does_not_fit_is_refused_with_its_parameter(words: list[str]) -> None:
    with pytest.raises(BadInput, match=r"argument (count|order|color) must be") as refused:
        read(typed, *words)

    assert refused.value.field == "arguments"


def test_one_word_too_many_is_refused() -> None:
    with pytest.raises(BadInput, match="typed takes 2 arguments; 'z' is one too many"):
        read(typed, "x", "1", "z")


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["cities=[1,2]"], "argument cities must be list[str]; '[1,2]' is not"),
        (['cities=["A"'], """argument cities must be list[str]; '["A"' is no JSON: Expecting ',' delimiter"""),
        (["n=x"], "argument n must be int | None; 'x' is not"),
        (["[]", "1", "2"], "trip takes 2 arguments; '2' is one too many"),
    ],
)
def test_a_word_is_refused_by_the_type_as_its_author_wrote_it(words: list[str], refused: str) -> None:
    @perdure.agent
    async def trip(cities: list[str], n: int | None = None) -> None:
        """Takes cities."""

    with pytest.raises(BadInput) as told:
        read(trip, *words)

    assert refused in str(told.value)


def test_a_single_argument_is_one() -> None:
    @perdure.agent
    async def one(x: str) -> None:
        """Takes one."""

    with pytest.raises(BadInput, match="one takes 1 argument; 'b' is one too many"):
        read(one, "a", "b")


NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).astimezone()
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("15 min", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("1.5h", timedelta(minutes=90)),
    ],
)
def test_a_length_of_time_is_that_long_ago(text: str, ago: timedelta) -> None:
    assert parse_since(text, now_ms=NOW_MS) == NOW_MS - ago.total_seconds() * 1000


def test_a_time_of_day_is_the_last_one_that_has_been() -> None:
    earlier, later = NOW - timedelta(hours=1), NOW + timedelta(hours=1)

    assert parse_since(f"{earlier:%H:%M}", now_ms=NOW_MS) == earlier.timestamp() * 1000
    assert parse_since(f"{later:%H:%M}", now_ms=NOW_MS) == (later - timedelta(days=1)).timestamp() * 1000


def test_a_date_is_its_beginning_in_local_time_and_a_zone_is_kept() -> None:
    day = datetime(2026, 3, 1).astimezone()

    assert parse_since("2026-03-01", now_ms=NOW_MS) == day.timestamp() * 1000
    assert parse_since("2026-03-01T00:00:00+00:00", now_ms=NOW_MS) == 1772323200000


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "-3h", "3 weeks"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is no instant"):
        parse_since(text, now_ms=NOW_MS)


def test_an_agent_named_without_a_version_is_the_one_declared_last() -> None:
    def of(version: str) -> perdure.Agent[[], None]:
        @perdure.agent(name="lead", version=version)
        async def lead() -> None:
            return None

        return lead

    app = perdure.App("memory:", agents=[of("9"), of("10")])

    assert _agent_of(app, "lead", "here").version == "10"
