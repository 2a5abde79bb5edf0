"""The closed table of values that have an encoding, beyond plain JSON.

Plain are None, bool, int of 64 bits, finite float, str, list, tuple (as a list) and dict with str keys, each of
exactly that type. Everything else is an object `{"$perdure": tag, "v": content}`:

    tag         value                                   content
    bytes       bytes                                   base64
    datetime    datetime with a zone                    ISO 8601; keeps instant and offset, not the zone's name
    date        date                                    ISO 8601
    time        time, with a fixed offset or none       ISO 8601
    timedelta   timedelta                               [days, seconds, microseconds]
    uuid        uuid.UUID                               text
    decimal     finite Decimal                          text, trailing zeros kept
    path        pathlib.Path                            text
    tuple       a tuple inside a set or an object       its items; elsewhere a tuple is a list
    set         set                                     its items, sorted by their encoding
    frozenset   frozenset                               the same
    dict        a dict that itself has the key $perdure its members, taken literally
    enum        Enum member                             its value; beside it `class` and `name`
    object      dataclass, msgspec.Struct, pydantic     its fields; beside them `class`, and for pydantic
                model, named tuple                      `set` (fields set), and `beside` where it holds
                                                        attributes that are no fields, or private ones

Only the record of a step's input, which must never fail, also holds:

    opaque      anything without encoding               the name of its class
    text        text with lone surrogates               the text with those escaped
    int, float  beyond 64 bits; not finite              hexadecimal; nan, inf, -inf
    pairs       a dict whose keys are not all plain     [[key, value], ...], sorted
    cut, cycle  too big or too deep; contains itself    the beginning; where a hash is known also `size`, `sha256`

A tag that is not in the table, or whose content does not fit, is plain data: somebody else wrote it.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import functools
import pathlib
import sys
import types
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum, Flag, StrEnum
from typing import Final, TypeAlias, TypeGuard, TypeVar, cast

import msgspec

from perdure.codec import modules

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_T = TypeVar("_T")

TAG: Final = "$perdure"
DEFAULT_LIMIT: Final = 16 * 1024 * 1024
# Levels of stored JSON; a tagged value takes two. Every JSON reader, and Python's own stack, copes with 200.
MAX_DEPTH: Final = 200
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

to_json: Final = msgspec.json.Encoder(order="deterministic").encode

_PATH: Final = type(pathlib.Path())  # Its class depends on the system.
# Calling one of these to fill a missing field runs no code of anybody's.
_HARMLESS_FACTORIES: Final = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, BaseException)


class Unfit(Exception):
    """A value without encoding: what is wrong and what to do; `trail` gathers the way to it, inside out."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.trail: list[str] = []


class Family(StrEnum):
    """The kinds of classes whose instances have an encoding."""

    ENUM = "enum"
    STRUCT = "struct"
    MODEL = "pydantic model"
    DATACLASS = "dataclass"
    NAMED_TUPLE = "named tuple"


@dataclass(frozen=True, slots=True)
class State:
    """What an object consists of: fields, and what it holds beside them, such as a pydantic model's private attributes.

    `set` names the fields of a pydantic model that were set, where not all were.
    """

    fields: dict[str, object]
    beside: dict[str, object] | None = None
    set: list[str] | None = None


# -- scalars --------------------------------------------------------------------------------


def write_scalar(value: object) -> tuple[str, Plain] | None:
    """The tag and content of a scalar of the table, or None. Checks nothing: a naive datetime is written too."""
    if type(value) is dt.datetime:
        return "datetime", value.isoformat()
    if type(value) is uuid.UUID:
        return "uuid", str(value)
    if type(value) is decimal.Decimal:
        return "decimal", str(value)
    if type(value) is bytes:
        return "bytes", base64.b64encode(value).decode("ascii")
    if type(value) is dt.date:
        return "date", value.isoformat()
    if type(value) is dt.time:
        return "time", value.isoformat()
    if type(value) is dt.timedelta:
        return "timedelta", [value.days, value.seconds, value.microseconds]
    if type(value) is _PATH:
        return "path", str(value)
    return None


def read_scalar(tag: str, content: object) -> object:
    """The scalar back. Raises ValueError, TypeError or ArithmeticError when the content does not fit the tag."""
    if tag == "timedelta":
        return _read_timedelta(content)
    if type(content) is not str:
        raise TypeError(tag)
    match tag:
        case "datetime":
            return dt.datetime.fromisoformat(content)
        case "uuid":
            return uuid.UUID(content)
        case "decimal":
            return decimal.Decimal(content)
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "date":
            return dt.date.fromisoformat(content)
        case "time":
            return dt.time.fromisoformat(content)
        case "path":
            return pathlib.Path(content)
        case "int":
            return int(content, 16)
        case "float":
            return float(content)
        case _:
            raise ValueError(tag)


def _read_timedelta(content: object) -> dt.timedelta:
    if not isinstance(content, list) or [type(number) for number in content] != [int, int, int]:
        raise TypeError("timedelta")
    return dt.timedelta(*cast("list[int]", content))


# -- classes --------------------------------------------------------------------------------


def name_class(cls: type) -> str:
    """`module:Outer.Inner`, always encodable. Asks `type` itself, since a metaclass may lie or raise."""
    module = type.__getattribute__(cls, "__module__")
    qualname = type.__getattribute__(cls, "__qualname__")
    where = modules.recorded_name(module) if type(module) is str else "?"
    name = f"{where}:{qualname if type(qualname) is str else '?'}"
    return name.encode("utf-8", "backslashreplace").decode()


def find_class(name: object) -> type | None:
    """The class of this name, if its module is loaded and it belongs to a family; else None.

    Looks into the namespaces themselves: a plain `getattr` on a module may import, on a class may run code.
    """
    if type(name) is not str:
        return None
    module_name, _, qualname = name.partition(":")
    found: object = modules.loaded(module_name)
    for part in qualname.split("."):
        if isinstance(found, type):
            space = type.__getattribute__(found, "__dict__")
        elif isinstance(found, types.ModuleType):
            space = object.__getattribute__(found, "__dict__")
        else:
            return None
        found = space.get(part)
    if isinstance(found, type) and family_of(found) is not None:
        return found
    return None


def is_a(value: object, cls: type[_T]) -> TypeGuard[_T]:
    """Whether the object is really of the class; `isinstance` believes, and runs, the object's own `__class__`."""
    return issubclass(type(value), cls)


def family_of(cls: type) -> Family | None:
    """The family of a class, or None when its instances have no encoding as objects."""
    line = cls.__mro__
    if Enum in line:
        return Family.ENUM
    if msgspec.Struct in line:
        return Family.STRUCT
    if is_model(cls):
        return Family.MODEL
    if tuple in line:
        names = getattr(cls, "_fields", None)
        is_named = type(names) is tuple and all(type(name) is str for name in names)
        return Family.NAMED_TUPLE if is_named else None
    # What a dataclass inherits from a container lies outside its fields and would be lost.
    if any("__dataclass_fields__" in vars(base) for base in line) and not any(base in _CONTAINERS for base in line):
        return Family.DATACLASS
    return None


def is_model(cls: type) -> bool:
    """Whether the class is a pydantic model. If pydantic is not loaded nothing can be one."""
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and getattr(pydantic, "BaseModel", None) in cls.__mro__


def state_of(value: object) -> State | None:
    """What an object of a family consists of, or None. A field that was never set is left out.

    Enum members are no objects here. A property among the fields may raise what it likes.
    """
    cls = type(value)
    match family_of(cls):
        case Family.DATACLASS:
            names = tuple(field.name for field in fields(cast("type[_AnyDataclass]", cls)))
            return State(_read_fields(value, names), _read_beside(value, names))
        case Family.STRUCT:
            names = cast("type[msgspec.Struct]", cls).__struct_fields__
            read = _read_fields(value, names)
            known = {name: part for name, part in read.items() if part is not msgspec.UNSET}
            return State(known, _read_beside(value, names))
        case Family.NAMED_TUPLE:
            names = cast("tuple[str, ...]", vars_of(cls, "_fields"))
            return State(dict(zip(names, tuple.__iter__(cast("tuple[object, ...]", value)), strict=True)))
        case Family.MODEL:
            return _read_model(value)
        case Family.ENUM | None:
            return None


def build(cls: type, state: State) -> object:
    """An object of the class with these fields. Raises Unfit when a field is missing and has no plain default.

    No `__init__` and no validator runs: the object gets back the state it had. A msgspec struct cannot be made
    without its constructor. Fields that the class no longer has are dropped.
    """
    match family_of(cls):
        case Family.DATACLASS:
            return _set_beside(_build_dataclass(cls, state.fields), state.beside)
        case Family.STRUCT:
            struct = cast("type[msgspec.Struct]", cls)
            known = {name: state.fields[name] for name in struct.__struct_fields__ if name in state.fields}
            return _set_beside(struct(**known), state.beside)
        case Family.NAMED_TUPLE:
            names = cast("tuple[str, ...]", vars_of(cls, "_fields"))
            known = {**cast("Mapping[str, object]", vars_of(cls, "_field_defaults")), **state.fields}
            return tuple.__new__(cast("type[tuple[object, ...]]", cls), [_pick(known, name) for name in names])
        case Family.MODEL:
            return _build_model(cls, state)
        case Family.ENUM | None:
            raise Unfit(f"{name_class(cls)} holds no fields")


def pick_member(cls: type, name: object, value: object) -> Enum | None:
    """The enum member of this name, or this combination of flags; None when the class has none such."""
    members = cast("type[Enum]", cls).__members__
    if type(name) is str and name in members:
        return members[name]
    try:
        return cls(value) if issubclass(cls, Flag) and type(value) is int else None
    except ValueError:
        return None


def vars_of(cls: type, name: str) -> object:
    """A class attribute as it stands in the class or its bases, without running descriptors."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


# -- how each family is read and made ---------------------------------------------------------


@dataclass
class _AnyDataclass:
    """Stands for all dataclasses where their fields are listed."""


def _read_fields(value: object, names: Sequence[str]) -> dict[str, object]:
    read: dict[str, object] = {}
    for name in names:
        try:
            read[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    return read


def _read_beside(value: object, names: tuple[str, ...]) -> dict[str, object] | None:
    try:
        held: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None  # It has slots only.
    # A cache fills itself again.
    return {
        name: part
        for name, part in list(held.items())
        if name not in names and not is_a(vars_of(type(value), name), functools.cached_property)
    } or None


def _set_beside(made: object, beside: Mapping[str, object] | None) -> object:
    for name, part in (beside or {}).items():
        # Text from the store never reaches what Python itself reads, such as `__class__`.
        if not name.startswith("__"):
            object.__setattr__(made, name, part)
    return made


def _pick(known: Mapping[str, object], name: str) -> object:
    if name not in known:
        raise Unfit(f"the field {name} is missing")
    return known[name]


def _build_dataclass(cls: type, known: Mapping[str, object]) -> object:
    made: object = object.__new__(cls)
    for field in fields(cast("type[_AnyDataclass]", cls)):
        if field.name in known:
            part = known[field.name]
        elif field.default is not MISSING:
            part = field.default
        elif field.default_factory in _HARMLESS_FACTORIES:
            part = cast("type[object]", field.default_factory)()
        else:
            raise Unfit(f"the field {field.name} is missing")
        # A frozen dataclass refuses the ordinary way.
        object.__setattr__(made, field.name, part)
    return made


def _read_model(value: object) -> State:
    from pydantic import BaseModel

    assert isinstance(value, BaseModel)
    held = value.__dict__
    names = type(value).model_fields
    read: dict[str, object] = {name: held[name] for name in names if name in held}
    read |= value.__pydantic_extra__ or {}
    was_set = sorted(value.__pydantic_fields_set__)
    private = value.__pydantic_private__
    return State(read, dict(private) if private else None, None if was_set == sorted(read) else was_set)


def _build_model(cls: type, state: State) -> object:
    from pydantic import BaseModel
    from pydantic_core import PydanticUndefined

    assert issubclass(cls, BaseModel)
    held: dict[str, object] = {}
    for name, info in cls.model_fields.items():
        if name in state.fields:
            held[name] = state.fields[name]
        elif info.default_factory in _HARMLESS_FACTORIES:
            held[name] = cast("type[object]", info.default_factory)()
        elif info.default_factory is None and info.default is not PydanticUndefined:
            held[name] = info.get_default()
        else:
            raise Unfit(f"the field {name} is missing")
    is_open = cls.model_config.get("extra") == "allow"
    extra = {name: part for name, part in state.fields.items() if name not in held} if is_open else None
    private: dict[str, object] | None = None
    if cls.__private_attributes__:
        plain_defaults = {
            name: attribute.get_default()
            for name, attribute in cls.__private_attributes__.items()
            if attribute.default_factory is None and attribute.default is not PydanticUndefined
        }
        private = plain_defaults | (state.beside or {})
    made = object.__new__(cls)
    object.__setattr__(made, "__dict__", held)
    object.__setattr__(made, "__pydantic_extra__", extra)
    object.__setattr__(made, "__pydantic_fields_set__", set(state.fields if state.set is None else state.set))
    object.__setattr__(made, "__pydantic_private__", private)
    return made
