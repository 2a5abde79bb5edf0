"""What a type is called to whoever answers, and what is refused where it is said."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict

import pydantic
import pytest

import perdure
from perdure import codec
from perdure.commands import Returns
from perdure.errors import BadInput
from perdure.returned import fault, returned
from perdure.runtime import answers


class Path:
    """The author's own, beside pathlib's."""


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    number: int
    invoice: pathlib.Path | None = None


class Slip(TypedDict):
    number: int
    scan: pathlib.Path


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        (codec.ANY, "any"),
        (int, "int"),
        (list, "list"),
        (list[str], "list[str]"),
        (Literal["red", "blue"], "Literal['red', 'blue']"),
        (dict[str, Literal[1]], "dict[str, Literal[1]]"),
        (int | None, "int | None"),
        (type(None), "None"),
        (BadInput, "BadInput"),
        (Annotated[int, "of the year"], "int"),
        (dt.datetime | None, "datetime | None"),
        (Path, "tests.unit.test_answers.Path"),
    ],
)
def test_a_type_is_called_what_its_author_wrote(annotation: Any, word: str) -> None:
    assert answers.type_word(annotation) == word


def test_an_optional_type_says_of_what() -> None:
    assert "str" in answers.type_word(Optional[str])  # noqa: UP045  # as older code writes it


def test_an_answer_is_refused_for_what_its_type_is_made_of() -> None:
    answers.check_answer(["a"], "list[str]", question_id="Q1")
    with pytest.raises(BadInput, match=r"Q1 wants a list\[str\], not 7"):
        answers.check_answer(7, "list[str]", question_id="Q1")


@pytest.mark.parametrize(
    "annotation",
    [int, int | None, Optional[int], Annotated[int, "pages"], Annotated[int | None, "pages"], list[int], Order],  # noqa: UP045
)
def test_yes_is_no_number_wherever_a_number_was_asked_for(annotation: Any) -> None:
    said: Any = {list[int]: [True], Order: {"number": True}}.get(annotation, True)

    assert not answers.is_of_type(said, annotation)


@pytest.mark.parametrize(
    ("annotation", "said", "wrong"),
    [
        (pathlib.Path, "logs/today", 7),
        (pathlib.Path | None, "logs/today", 7),
        (list[pathlib.Path], ["logs/today"], "logs/today"),
        (dt.datetime, "2026-01-31T09:00:00+01:00", "tomorrow"),
        (dt.date, "2026-01-31", "tomorrow"),
        (dt.timedelta, "PT90S", "a while"),
        (uuid.UUID, "5f0e8b9c-6f3d-4c38-9a55-0d1a0e6f7b11", "5f0e"),
        (decimal.Decimal, "1.50", "a lot"),
        (Colour, "red", "green"),
        (Order, {"number": 7, "invoice": "7.pdf"}, {"invoice": "7.pdf"}),
        (Slip, {"number": 7, "scan": "7.pdf"}, {"number": 7}),
    ],
)
def test_an_answer_is_json_and_becomes_what_was_asked_for_where_it_can(annotation: Any, said: Any, wrong: Any) -> None:
    assert answers.is_of_type(said, annotation)
    assert not answers.is_of_type(wrong, annotation)


def test_a_moment_without_a_zone_is_no_moment() -> None:
    assert not answers.is_of_type("2026-01-31T09:00:00", dt.datetime)
    with pytest.raises(BadInput, match=r"Q1 wants a datetime, not \"2026-01-31T09:00:00\": give it with its zone"):
        answers.check_answer("2026-01-31T09:00:00", "datetime", question_id="Q1")


@pytest.mark.parametrize(
    ("wants", "right", "wrong"),
    [
        ("int | None", None, True),
        ("list[str] | None", None, 7),
        ("Path", "logs/today", 7),
        ("Decimal", "1.50", "a lot"),
        ("datetime", "2026-01-31T09:00:00Z", "tomorrow"),
        ("list[int]", [1], ["a"]),
        ("dict[str, list[bool]]", {"a": [True]}, {"a": [1]}),
        ("list[pathlib.Path]", ["a"], [1]),
        ("dict", {"a": 1}, []),
    ],
)
def test_what_any_process_knows_is_refused_where_it_is_said_by_the_name_of_its_type(
    wants: str, right: Any, wrong: Any
) -> None:
    answers.check_answer(right, wants, question_id="Q1")
    with pytest.raises(BadInput, match=r"Q1 wants an? ") as refused:
        answers.check_answer(wrong, wants, question_id="Q1")

    assert wants in str(refused.value)


@pytest.mark.parametrize(
    "annotation",
    [Literal["a", "b|c"], list[int], dict[str, list[bool]], int | None, list[str] | None, dt.date, type(None)],
)
def test_a_type_is_known_again_by_its_name(annotation: Any) -> None:
    assert answers.type_named(answers.type_word(annotation)) == annotation


@pytest.mark.parametrize(
    "wants", ["list[", "Literal[<Colour.RED: 'red'>]", "a.b.<locals>.C", "1 +", "f(x)", "(" * 5000]
)
def test_a_name_that_says_nothing_here_is_anything(wants: str) -> None:
    assert answers.type_named(wants) is codec.ANY
    assert list(answers.alternatives(wants))


@pytest.mark.parametrize("wants", ["Colour", "Colour | None", "tests.unit.test_answers.Path", "any"])
def test_a_class_of_the_agents_own_is_judged_by_the_agent(wants: str) -> None:
    answers.check_answer(7, wants, question_id="Q1")


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("any", Returns()),
        ("None", Returns(something=False)),
        ("int", Returns(nothing=False, told="an int")),
        ("Order", Returns(nothing=False, told="an Order")),
        ("Order | None", Returns(told="an Order | None")),
        ("list[Order]", Returns(nothing=False, told="a list[Order]")),
    ],
)
def test_what_a_call_may_have_returned_is_told_by_its_type_on_record(word: str, offered: Returns) -> None:
    assert returned({"tool": "elsewhere", "returns": word}) == offered
    assert returned(None) == Returns()


@dataclass
class Parcel:
    id: int
    lines: list[int]


class Receipt(pydantic.BaseModel):
    id: int


def test_what_is_not_what_a_tool_returns_is_told_by_its_faulty_part() -> None:
    @perdure.tool(name="answers_order")
    def order() -> Parcel:
        return Parcel(1, [])

    @perdure.tool(name="answers_receipts")
    def receipts() -> list[Receipt]:
        return []

    def told(value: object, tool: str) -> str:
        return fault(value, {"tool": tool})

    assert told({"id": "x"}, "answers_order") == "Expected `int`, got `str` - at `$.id`"
    assert told({"id": 1}, "answers_order") == "Object missing required field `lines`"
    assert told([{"id": "x"}], "answers_receipts").endswith(" - at `$[0].id`")
    assert told("x", "answers_order") == ""
    assert told({}, "a tool that no code has") == ""
