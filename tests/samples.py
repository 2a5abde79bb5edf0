"""One class or more of each family that has an encoding, with what makes it hard, and objects of them."""

from __future__ import annotations

import datetime as dt
import enum
import functools
from dataclasses import InitVar, dataclass
from typing import Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic

T = TypeVar("T")


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Planet(enum.Enum):
    EARTH = (5.97, "blue")


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    ends: tuple[int, int]
    name: str = ""


@dataclass
class Trip:
    spans: list[Span]
    left_at: dt.datetime
    any: object = None
    seed: InitVar[int] = 0

    def __post_init__(self, seed: int) -> None:
        self.lucky = seed + 1

    @functools.cached_property
    def length(self) -> int:
        return len(self.spans)


@dataclass
class Boxed(Generic[T]):
    item: T


@dataclass
class Loud:
    """Its constructor must not run when it is read."""

    x: int

    def __post_init__(self) -> None:
        raise RuntimeError("constructed")


@dataclass
class Liar:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # says that it has no hash


class Record(msgspec.Struct, frozen=True, rename="camel"):
    long_name: str
    when: dt.date | msgspec.UnsetType = msgspec.UNSET


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    secret_hash: str
    parts: list[object] = []
    by_alias: int = pydantic.Field(default=1, alias="byAlias")
    _cursor: int = 0

    @pydantic.field_validator("secret_hash")
    @classmethod
    def _hash(cls, value: str) -> str:
        return f"hash({value})"


class Row(TypedDict):
    id: int
    when: dt.datetime


def made_models() -> list[Model]:
    plain = Model(secret_hash="x")
    full = Model.model_validate({"secret_hash": "y", "byAlias": 2, "more": {"a": (1, 2)}, "parts": [{3}, Point(1)]})
    full._cursor = 7
    return [plain, full]


def made_trip() -> Trip:
    return Trip([Span((1, 2), "a")], dt.datetime(2026, 1, 1, tzinfo=dt.UTC), any=Point(1, 2), seed=6)


OBJECTS: list[object] = [
    Level.LOW,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    Planet.EARTH,
    Point(1, 2),
    Span((1, 2)),
    made_trip(),
    Boxed(Boxed({1, 2})),
    Record("n"),
    Record("n", dt.date(2026, 1, 1)),
    [Record("a"), {"b": Span((3, 4))}],
    *made_models(),
]
