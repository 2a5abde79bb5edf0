"""Which fields a class has, by the names that JSON gives them, and which of those that somebody wrote it has not.

A converter drops what the class does not know; of what a person has written that is a mistake, not a surplus. A class
that says itself what becomes of other fields is believed. To list the fields of a class runs none of its code but its
annotations. To find which member of a union is meant makes objects of them, and so runs their validators.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.codec.fitting import ANY, PAIRS, ROWS, conform, fits, hints_of
from perdure.codec.table import Family, family_of, is_model, vars_of

_NAMES_TOLD: Final = 10

_Meant: TypeAlias = dict[tuple[int, int], tuple[object, object]]
"""What annotations come to for parts of one value, by the identities of both; the annotation stands first."""

# Each time the same annotations; what it raises is not remembered.
_struct_fields: Final = functools.lru_cache(maxsize=1024)(msgspec.structs.fields)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a class that may be written, by each name they have, and what each wants.

    `names` are those that one would write; `takes_more` where it says itself what becomes of others.
    """

    fields: Mapping[str, object]
    names: tuple[str, ...]
    required: frozenset[str] = frozenset()
    takes_more: bool = False


def can_be(value: object, annotation: object) -> bool:
    """Whether plain data is, or can be made, what the annotation wants; what is dropped on the way is not asked."""
    return fits(conform(value, annotation, opened=lambda: value), annotation)


def strangers(value: object, annotation: object) -> list[str]:
    """A sentence for each field that somebody wrote and its class has not, at any depth.

    Of a union that member counts which the value becomes.
    """
    return _strangers(value, annotation, "", {})


def _strangers(value: object, annotation: object, at: str, meant: _Meant) -> list[str]:
    annotation = _narrowed(value, annotation, meant)
    found: list[str] = []
    shape = shape_of(annotation) if type(value) is dict else None
    if shape is not None and not shape.takes_more:
        before, names = f"{at}: " if at else "", [*shape.names[:_NAMES_TOLD]]
        names += ["…"] if len(shape.names) > _NAMES_TOLD else []
        for name in cast("dict[str, object]", value):
            if name not in shape.fields:
                has = f"it has {', '.join(names) or 'none'}"
                found.append(f"{before}{class_of(annotation).__name__} has no field {name}: {has}")
    for step, part, inner in parts(value, annotation):
        found += _strangers(part, inner, _joined(at, step), meant)
    return found


def parts(value: object, annotation: object) -> Iterator[tuple[str, object, object]]:
    """What lies in plain data: the step to it, the part, and what the annotation wants there."""
    inner = typing.get_args(annotation)
    if type(value) is dict:
        shape = shape_of(annotation)
        of_all = inner[1] if typing.get_origin(annotation) in PAIRS and len(inner) == 2 else None
        for name, part in value.items():
            wanted = shape.fields.get(name) if shape is not None else of_all
            if wanted is not None:
                yield f".{name}", part, wanted
    elif type(value) is list:
        origin = typing.get_origin(annotation)
        if origin is tuple and not (len(inner) == 2 and inner[1] is ...):
            yield from ((f"[{index}]", part, one) for index, (part, one) in enumerate(zip(value, inner, strict=False)))
        elif origin is tuple or (origin in ROWS and len(inner) == 1):
            yield from ((f"[{index}]", part, inner[0]) for index, part in enumerate(value))


def narrowed(value: object, annotation: object) -> object:
    """What an annotation comes to for a value: without its wrapping, and of a union the member that is meant.

    The union itself where that cannot be told.
    """
    return _narrowed(value, annotation, {})


def _narrowed(value: object, annotation: object, meant: _Meant) -> object:
    annotation = unwrapped(annotation)
    members = members_of(annotation)
    if not members:
        return annotation
    # Looked for once: each member of a union asks it of all that lies below.
    key = id(value), id(annotation)
    if key not in meant:
        meant[key] = annotation, _member_meant(value, annotation, members, meant)
    return meant[key][1]


def _member_meant(value: object, annotation: object, members: tuple[object, ...], meant: _Meant) -> object:
    able = [one for one in members if can_be(value, one)]
    # Most often its class tells which it has become.
    made = type(conform(value, annotation, opened=lambda: value))
    able = [one for one in able if class_of(unwrapped(one)) is made] or able
    if able:
        best, fewest = able[0], math.inf
        for one in able if len(able) > 1 else ():
            if (count := len(_strangers(value, one, "", meant))) < fewest:
                best, fewest = one, count
        return _narrowed(value, best, meant)
    told = [one for one in map(unwrapped, members) if one is not None and one is not types.NoneType]
    if type(value) is dict:
        told = [one for one in told if shape_of(one) is not None or typing.get_origin(one) in PAIRS] or told
    return told[0] if len(told) == 1 else annotation


def unwrapped(annotation: object) -> object:
    """An annotation without what is written around it: `Annotated`, a new name, a root model."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif sys.version_info >= (3, 12) and isinstance(annotation, typing.TypeAliasType):
            annotation = annotation.__value__
        elif isinstance(annotation, type) and is_model(annotation) and vars_of(annotation, "__pydantic_root_model__"):
            annotation = cast("Any", annotation).__pydantic_fields__["root"].annotation
        else:
            return annotation


def members_of(annotation: object) -> tuple[object, ...]:
    """The members of a union; none of anything else."""
    origin = typing.get_origin(annotation)
    return typing.get_args(annotation) if origin is typing.Union or origin is types.UnionType else ()


def class_of(annotation: object) -> type:
    """The class that an annotation of a shape names."""
    return cast("type", typing.get_origin(annotation) or annotation)


def shape_of(annotation: object) -> Shape | None:
    """The fields of a dataclass, a struct, a TypedDict or a pydantic model; None where JSON is not read by fields."""
    cls = class_of(annotation)
    if not isinstance(cls, type):
        return None
    if typing.is_typeddict(cls):
        required = cast("frozenset[str]", cls.__required_keys__)  # type: ignore[attr-defined]  # a TypedDict has it
        return _shape(cls, tuple(cls.__annotations__), required)
    match family_of(cls):
        case Family.DATACLASS:
            if "__pydantic_validator__" in vars(cls):
                return _of_pydantic(cls)
            listed = [one for one in dataclasses.fields(cast("Any", cls)) if one.init]
            has_none = (one for one in listed if one.default is one.default_factory is dataclasses.MISSING)
            return _shape(cls, tuple(one.name for one in listed), frozenset(one.name for one in has_none))
        case Family.STRUCT:
            return _of_struct(cast("type[msgspec.Struct]", cls))
        case Family.MODEL:
            return _of_pydantic(cls)
        case _:
            return None


def _shape(cls: type, names: tuple[str, ...], required: frozenset[str]) -> Shape:
    hints = _hints(cls)
    config = getattr(cls, "__pydantic_config__", None) or {}
    return Shape({name: hints.get(name, ANY) for name in names}, names, required, "extra" in config)


def _of_struct(cls: type[msgspec.Struct]) -> Shape | None:
    config = cls.__struct_config__
    if config.array_like:
        return None
    try:
        listed = _struct_fields(cls)
    except (NameError, TypeError):  # A name that is not there, or an annotation that is none.
        return None
    fields: dict[str, object] = {one.encode_name: one.type for one in listed}
    required = frozenset(one.encode_name for one in listed if one.required)
    tag = {} if config.tag_field is None else {config.tag_field: ANY}
    return Shape(fields | tag, tuple(fields), required)


def _of_pydantic(cls: Any) -> Shape | None:
    """The fields by the names that the model reads. One that has code of its own see all before may read any name."""
    decorators = getattr(cls, "__pydantic_decorators__", None)
    if decorators is None or any(one.info.mode != "after" for one in decorators.model_validators.values()):
        return None
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    is_named_later = config.get("alias_generator") and not getattr(cls, "__pydantic_complete__", True)
    if is_named_later or getattr(cls, "__pydantic_custom_init__", False):
        return None
    by_alias, by_name = _read_by(config)
    unwritten = [name for name, one in getattr(cls, "__dataclass_fields__", {}).items() if not one.init]
    fields: dict[str, object] = {}
    names = []
    for name, info in cls.__pydantic_fields__.items():
        if name in unwritten or (info.init is False and hasattr(cls, "__dataclass_fields__")):
            continue
        ways = _ways_to(info.validation_alias) if by_alias else {}
        if by_name or not ways:
            ways.setdefault(name, True)
        for way, is_whole in ways.items():
            fields[way] = info.annotation if is_whole and way not in fields else ANY
        names.append(next(iter(ways)))
    return Shape(fields, tuple(dict.fromkeys(names)), takes_more="extra" in config)


def _read_by(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a model reads fields by their aliases, and whether by their names where they have one."""
    by_alias, by_name = config.get("validate_by_alias") is not False, config.get("validate_by_name")
    if by_name is None and (older := config.get("populate_by_name")) is not None:
        return True, bool(older)
    return by_alias, not by_alias if by_name is None else bool(by_name)


def _ways_to(alias: Any) -> dict[str, bool]:
    """The aliases under which a field is read, and whether it is all that stands there or only a part of it."""
    if alias is None:
        return {}
    ways = [one if type(one) is str else one.path for one in getattr(alias, "choices", [alias])]
    ways.sort(key=lambda one: type(one) is not str)
    return dict((one, True) if type(one) is str else (one[0], len(one) == 1) for one in ways)


def _hints(cls: type) -> Mapping[str, Any]:
    try:
        return hints_of(cls)
    except (NameError, TypeError):  # A name that is not there, or an annotation that is none.
        return {}


def _joined(at: str, step: str) -> str:
    return at + step if at else step.removeprefix(".")
