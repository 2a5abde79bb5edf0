"""What a type is called to whoever answers, and what is refused where it is said."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

import perdure
from perdure import codec
from perdure.commands import Commands, Returns
from perdure.errors import BadInput
from perdure.model.question import QuestionKind
from perdure.returned import returned
from perdure.runtime import answers


class Path:
    """The author's own, beside pathlib's."""


class Colour(enum.Enum):
    RED = "red"


class Tint(enum.Enum):
    RED = "red"
    GREEN = "green"
    BOTH = "a b"


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

    assert not answers.person_may_say(said, annotation)


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
    assert answers.person_may_say(said, annotation)
    assert not answers.person_may_say(wrong, annotation)


def test_a_moment_without_a_zone_is_no_moment() -> None:
    assert not answers.person_may_say("2026-01-31T09:00:00", dt.datetime)
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


def test_of_what_only_code_can_give_no_command_is_offered() -> None:
    offered = returned({"wants": "bytes"})

    assert offered == Returns(by_code=True)
    assert Commands().answer("Q1", QuestionKind.ASK, returns=offered) == ()


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
        with pytest.raises(BadInput) as refused:
            answers.check_result(value, {"tool": tool}, question_id="Q1")
        return str(refused.value)

    assert told({"id": "x", "lines": []}, "answers_order").endswith(' is not: id: "x" is no int: give a number')
    assert told({"id": 1}, "answers_order").endswith(" is not: lines is missing")
    assert told({"id": 1, "lines": [], "l": 1}, "answers_order").endswith("Parcel has no field l: it has id, lines")
    assert "is not: [0].id: Input should be a valid integer" in told([{"id": "x"}], "answers_receipts")
    assert told("x", "answers_order").endswith('which "x" is not: give {"id": int, "lines": list[int]}')
    answers.check_result({}, {"tool": "a tool that no code has"}, question_id="Q1")


# -- fields that a class has not ------------------------------------------------------------


@dataclass
class Sample:
    n: int
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.n <= 0:
            raise ValueError("n must be positive")


@dataclass
class Box:
    samples: list[Sample] = field(default_factory=list)
    by_name: dict[str, Sample | None] = field(default_factory=dict)
    pair: tuple[Sample, int] | None = None


@dataclass(frozen=True)
class Picky:
    n: int

    def __post_init__(self) -> None:
        raise perdure.Refused("no number is good enough")


class Cat(msgspec.Struct, tag=True, rename="camel"):
    of_age: bool = False


class Dog(msgspec.Struct, tag=True):
    name: str = ""


class Model(pydantic.BaseModel):
    n: int = pydantic.Field(default=1, alias="number")
    sample: Sample | None = None


class ByChoice(pydantic.BaseModel):
    n: int = pydantic.Field(default=1, validation_alias=pydantic.AliasChoices(pydantic.AliasPath("c", 0), "a", "b"))


class ByPath(pydantic.BaseModel):
    n: int = pydantic.Field(default=1, validation_alias=pydantic.AliasPath("a", 0))


class ByName(pydantic.BaseModel, validate_by_alias=False):
    n: int = pydantic.Field(default=1, alias="a")


class ByBoth(pydantic.BaseModel, populate_by_name=True):
    n: int = pydantic.Field(default=1, alias="a")


class ByCodeOfItsOwn(pydantic.BaseModel):
    n: int = 1

    def __init__(self, **given: int) -> None:
        super().__init__(n=given["old"])


@dataclass
class Doubled:
    n: int
    twice: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.twice = 2 * self.n


@pydantic.dataclasses.dataclass
class Checked:
    n: int
    twice: int = field(init=False, default=0)


class OpenModel(pydantic.BaseModel, extra="allow"):
    n: int = 1


class OldNames(pydantic.BaseModel):
    n: int = 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def renamed(cls, given: dict[str, int]) -> dict[str, int]:
        return {"n": given["old"]}


class Fish(pydantic.BaseModel):
    kind: Literal["fish"]
    fins: int


class Bird(pydantic.BaseModel):
    kind: Literal["bird"]


class Point(NamedTuple):
    x: int
    y: int


Pet = Annotated[Bird | Fish, pydantic.Field(discriminator="kind")]
Samples = pydantic.RootModel[list[Sample]]
Names = NewType("Names", Sample)


@pytest.mark.parametrize(
    ("annotation", "said", "told"),
    [
        (Sample, {"n": 1, "color": "red"}, "Sample has no field color: it has n, colour"),
        (Sample | None, {"n": 1, "color": "red"}, "Sample has no field color"),
        (Slip, {"number": 1, "scan": "a", "page": 1}, "Slip has no field page: it has number, scan"),
        (Names, {"n": 1, "color": "red"}, "Sample has no field color"),
        (Box, {"samples": [{"n": 1}, {"n": 1, "x": 1}]}, "samples[1]: Sample has no field x"),
        (Box, {"by_name": {"a": {"n": 1, "x": 1}}}, "by_name.a: Sample has no field x"),
        (Box, {"pair": [{"n": 1, "x": 1}, 1]}, "pair[0]: Sample has no field x"),
        (list[Sample | None] | None, [{"n": 1, "x": 1}], "[0]: Sample has no field x"),
        (Cat | Dog, {"type": "Dog", "nam": "Rex"}, "Dog has no field nam: it has name"),
        (Cat, {"type": "Cat", "of_age": True}, "Cat has no field of_age: it has ofAge"),
        (Model, {"n": 1}, "Model has no field n: it has number, sample"),
        (Model, {"sample": {"n": 1, "x": 1}}, "sample: Sample has no field x"),
        (Samples, [{"n": 1, "x": 1}], "[0]: Sample has no field x"),
        (ByChoice, {"n": 5}, "ByChoice has no field n: it has a"),
        (ByPath, {"n": 5}, "ByPath has no field n: it has a"),
        (ByName, {"a": 5}, "ByName has no field a: it has n"),
        (Doubled, {"n": 1, "twice": 9}, "Doubled has no field twice: it has n"),
        (Checked, {"n": 1, "twice": 9}, "Checked has no field twice: it has n"),
    ],
)
def test_a_field_that_the_wanted_class_has_not_is_refused_by_its_name(annotation: Any, said: Any, told: str) -> None:
    assert answers.program_may_give(said, annotation)
    assert not answers.person_may_say(said, annotation)
    assert answers.why_person_may_not(said, annotation).startswith(told)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Sample, {"n": 1, "colour": "red"}),
        (Cat | Dog, {"type": "Dog", "name": "Rex"}),
        (Cat, {"type": "Cat", "ofAge": True}),
        (Model, {"number": 1, "sample": {"n": 1}}),
        (OpenModel, {"n": 1, "more": 2}),
        (OldNames, {"old": 3}),
        (Samples, [{"n": 1}]),
        (dict[str, int], {"n": 1, "x": 2}),
        (Any, {"n": 1}),
        (dict[str, Any] | Sample, {"n": 1, "x": 2}),
        (ByChoice, {"a": 5}),
        (ByChoice, {"b": 5}),
        (ByChoice, {"c": [5]}),
        (ByPath, {"a": [5]}),
        (ByName, {"n": 5}),
        (ByBoth, {"n": 5}),
        (ByBoth, {"a": 5}),
        (ByCodeOfItsOwn, {"old": 5}),
        (Doubled, {"n": 1}),
    ],
)
def test_what_a_class_has_a_place_for_is_taken(annotation: Any, said: Any) -> None:
    assert answers.person_may_say(said, annotation)
    assert answers.why_person_may_not(said, annotation) == ""


@pytest.mark.parametrize(
    ("annotation", "said", "why"),
    [
        (Sample, {"n": 0}, "n must be positive"),
        (Picky, {"n": 0}, "no number is good enough"),
        (Sample, {}, "n is missing"),
        (Slip, {}, "number, scan are missing"),
        (Sample, {"color": "red"}, "Sample has no field color: it has n, colour; n is missing"),
        (Sample, {"n": 1, "colour": "blue"}, 'colour: "blue" is no Colour: give red'),
        (Box, {"samples": [{"n": "x"}]}, 'samples[0].n: "x" is no int: give a number'),
        (Box, {"samples": [{"n": 0}]}, "samples[0]: n must be positive"),
        (Colour, "green", "give red"),
        (Colour | None, "green", "give red"),
        (Sample | None, 7, 'give {"n": int, "colour": Colour}'),
        (dt.datetime | None, "tomorrow", "give it with its zone, as 2026-01-31T09:00:00+01:00"),
        (bool | int, "x", "say yes or no, or give a number"),
        (Point, [1], "Expected `array` of length 2, got 1"),
        (Pet, {"kind": "fish"}, "fish.fins: Field required"),
        (Model, {"number": "x"}, "number: Input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_why_an_answer_is_not_taken_is_told_in_one_line(annotation: Any, said: Any, why: str) -> None:
    assert not answers.person_may_say(said, annotation)
    assert answers.why_person_may_not(said, annotation) == why
    assert answers.persons_misfit(said, "Wanted", annotation).endswith(f": {why}")


class Left(TypedDict):
    number: int
    below: Left | Right | None


class Right(TypedDict):
    number: int
    below: Left | Right | None


@pytest.mark.parametrize(
    ("lowest", "is_taken", "told"),
    [
        ({"number": 1, "below": None}, True, ""),
        ({"number": "x", "below": None}, False, 'give {"number": int, "below": Left | Right | None}'),
        ({"number": 1, "below": None, "x": 1}, False, f"below{'.below' * 59}"),
    ],
)
def test_each_part_of_a_deep_answer_is_looked_at_once_under_each_member_of_a_union(
    lowest: dict[str, Any], is_taken: bool, told: str
) -> None:
    said = lowest
    for _ in range(60):  # Looked at anew for each way that leads to it, the lowest would be so 2**60 times.
        said = {"number": 1, "below": said}

    assert answers.person_may_say(said, Left | Right) is is_taken
    assert answers.why_person_may_not(said, Left | Right)[:50] == told[:50]


def test_what_a_program_gives_is_not_told_wrong_for_what_it_may_hold() -> None:
    given = {"number": "x", "scan": "a", "made_at": "noon"}
    wrong = 'number: "x" is no int: give a number'

    assert answers.why_program_may_not(given, Slip) == wrong
    assert answers.programs_misfit(given, Slip).endswith(f'"scan": "a"}}: {wrong}')
    assert answers.why_person_may_not(given, Slip) == f"Slip has no field made_at: it has number, scan; {wrong}"


def test_a_moment_without_its_zone_is_told_so_where_there_may_be_none() -> None:
    with pytest.raises(BadInput, match=r'wants a datetime \| None, not "2026-12-24T10:00": give it with its zone'):
        answers.check_answer("2026-12-24T10:00", "datetime | None", question_id="Q1")


def test_a_reason_is_masked_before_it_is_cut() -> None:
    said = {"n": 1, "pass-word": "x", "colour": "a" * 40 + "pass-word" * 9}
    told = answers.persons_misfit(said, "Sample", Sample, secrets=("pass-word",))

    assert "no field [secret]" in told
    assert "pass" not in told


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (Tint, 'red, green or "a b"'),
        (Tint | None, 'red, green or "a b"'),
        (Sample, '{"n": int, "colour": Colour}'),
        (Model, '{"number": int, "sample": Sample | None}'),
        (ByChoice, '{"a": int}'),
        (ByPath, '{"a": any}'),
        (ByName, '{"n": int}'),
        (Doubled, '{"n": int}'),
        (Checked, '{"n": int}'),
        (ByCodeOfItsOwn, ""),
        (int, ""),
        (Sample | Slip, ""),
        (dataclasses.make_dataclass("Wide", [f"field_{number}" for number in range(20)]), ""),
    ],
)
def test_what_a_class_is_made_of_is_shown_where_it_fits_on_a_line(annotation: Any, shown: str) -> None:
    assert answers.made_of(annotation) == shown
