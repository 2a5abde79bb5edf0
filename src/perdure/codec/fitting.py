"""Stored values to the type that a function's annotation promises.

A value that already fits is left alone, so that its own, narrower type survives. Only what does not fit is
converted: strictly by msgspec, and by pydantic where the annotation needs it. What cannot be converted is given
back as it was: an annotation is a promise of the author, not a check of the store.
"""

from __future__ import annotations

import collections.abc as cabc
import functools
import inspect
import pathlib
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.codec.table import is_model

ANY: Final[object] = typing.Any

_Known: TypeAlias = dict[tuple[int, int], bool]
"""Whether a part of one value fits a class, by the identities of both."""

_PATHS: Final = (pathlib.Path, pathlib.PurePath, type(pathlib.Path()))
PAIRS: Final = (dict, cabc.Mapping, cabc.MutableMapping)
ROWS: Final = (list, set, frozenset, cabc.Sequence, cabc.MutableSequence, cabc.Collection, cabc.Iterable, cabc.Set)
# How msgspec says where something is wrong.
_PLACED: Final = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


def conform(value: object, annotation: object, *, opened: Callable[[], object]) -> object:
    """The value as the annotated type where it can be one, else as it is. Never raises.

    `opened` gives the same value with plain data in place of objects, for classes that have moved or changed.
    """
    if fits(value, annotation):
        return value
    converters = (_by_msgspec, _by_pydantic) if needs_pydantic(annotation) else (_by_msgspec,)
    for convert in converters:
        for with_objects in (True, False):
            try:
                return convert(value if with_objects else opened(), annotation)
            # A validator may raise anything, and so may an annotation that is no type at all; the value then
            # stays what was recorded, which is what the promise above says.
            except Exception:  # noqa: BLE001, S112
                continue
    return value


def converter_says(value: object, annotation: object) -> str:
    """What keeps plain data from becoming the annotated type, and where, as its converter or its class says it.

    "" where nothing does.
    """
    try:
        (_by_pydantic if needs_pydantic(annotation) else _by_msgspec)(value, annotation)
    # As above: a validator may raise anything.
    except Exception as error:  # noqa: BLE001
        return _said_by(error)
    return ""


def needs_pydantic(annotation: object) -> bool:
    """Whether a pydantic model stands anywhere in the annotation, also in the fields of other classes."""
    return _needs_pydantic(annotation, set())


def _said_by(error: Exception) -> str:
    """The words of a converter, or of what a validator has raised, after the way to the part that they are about."""
    if "pydantic" in sys.modules:
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
            text = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            return f"{path.removeprefix('.')}: {text}" if path else text
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # What they have raised may refuse to be written, too.
        text = ""
    if isinstance(error, msgspec.ValidationError) and (found := _PLACED.fullmatch(text)):
        return f"{found[2]}: {found[1]}" if found[2] else found[1]
    return text or type(error).__name__


@functools.lru_cache(maxsize=1024)
def hints_of(cls: type) -> cabc.Mapping[str, Any]:
    """What the fields of a class want: each time the same objects. May raise anything, which is not remembered."""
    return typing.get_type_hints(cls)


@functools.lru_cache(maxsize=1024)
def open_class(annotation: types.GenericAlias) -> object:
    """`dict` for dict[str, Any], `list` for list[Any]: plain JSON of that class fits. None for what promises more."""
    origin, inner = annotation.__origin__, annotation.__args__
    if (origin is dict and len(inner) == 2 and inner[0] is str) or (origin is list and len(inner) == 1):
        return origin if _is_open(inner[-1]) else None
    return None


def fits(value: object, annotation: object, known: _Known | None = None) -> bool:
    """Whether the value may stay as it is under this annotation. What cannot be judged fits.

    `known` holds what was found of the parts of the same value.
    """
    # The commonest first: this is asked of every value that a record answers with, and of all that lies in it.
    if type(value) is annotation or _is_open(annotation):
        return True
    if type(annotation) is types.GenericAlias:  # dict[str, int] and its like
        return _fits_parts(value, annotation.__origin__, annotation.__args__, known)
    if isinstance(annotation, str | typing.TypeVar | typing.ForwardRef):
        return True
    if annotation is None:
        return value is None
    if isinstance(annotation, typing.NewType):
        return fits(value, annotation.__supertype__, known)
    if sys.version_info >= (3, 12) and isinstance(annotation, typing.TypeAliasType):
        return fits(value, annotation.__value__, known)
    origin = typing.get_origin(annotation)
    if origin is None:
        return _fits_class(value, annotation, known)
    inner = typing.get_args(annotation)
    if origin is typing.Annotated:
        return fits(value, inner[0], known)
    if origin is typing.Union or origin is types.UnionType:
        known = {} if known is None else known
        for one in inner:  # noqa: SIM110  # A generator would be another frame on the stack, at each level of a tree.
            if fits(value, one, known):
                return True
        return False
    if origin is typing.Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    return _fits_parts(value, origin, inner, known)


def _fits_parts(value: object, origin: object, inner: tuple[object, ...], known: _Known | None) -> bool:
    if not _is_instance(value, origin):
        return False
    if origin is tuple:
        return _fits_tuple(cast("tuple[object, ...]", value), inner, known)
    if origin in PAIRS and len(inner) == 2:
        pairs = cast("dict[object, object]", value)
        return _all_fit(pairs, inner[0], known) and _all_fit(pairs.values(), inner[1], known)
    if origin in ROWS and len(inner) == 1:
        return _all_fit(cast("list[object]", value), inner[0], known)
    return True


def _all_fit(values: cabc.Iterable[object], annotation: object, known: _Known | None) -> bool:
    if _is_open(annotation):
        return True
    for value in values:  # noqa: SIM110  # A generator for `all` would cost more than what it asks.
        if type(value) is not annotation and not fits(value, annotation, known):
            return False
    return True


def _is_open(annotation: object) -> bool:
    return annotation is typing.Any or annotation is object or annotation is inspect.Parameter.empty


def _fits_class(value: object, annotation: object, known: _Known | None) -> bool:
    # To Python a bool is a number; to whoever wrote `int` it is none.
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if typing.is_typeddict(annotation):
        return _fits_typed_dict(value, cast("type", annotation), {} if known is None else known)
    return _is_instance(value, annotation)


def _fits_typed_dict(value: object, annotation: type, known: _Known) -> bool:
    # Each part is looked at once under each class: of a union, each member looks at all that lies below.
    key = id(value), id(annotation)
    if key not in known:
        known[key] = type(value) is dict and annotation.__required_keys__ <= value.keys()  # type: ignore[attr-defined]  # a TypedDict has it
        try:
            hints = hints_of(annotation)
        except Exception:  # noqa: BLE001  # What it names is evaluated here.
            hints = {}
        for name, part in cast("dict[str, object]", value).items() if known[key] else ():
            if not fits(part, hints.get(name, ANY), known):
                known[key] = False
                break
    return known[key]


def _fits_tuple(value: tuple[object, ...], inner: tuple[object, ...], known: _Known | None) -> bool:
    if len(inner) == 2 and inner[1] is ...:
        return all(fits(part, inner[0], known) for part in value)
    return len(value) == len(inner) and all(fits(part, one, known) for part, one in zip(value, inner, strict=True))


def _is_instance(value: object, cls: object) -> bool:
    try:
        return isinstance(value, cast("type", cls))
    except Exception:  # noqa: BLE001
        # Not a class one can ask, such as a protocol, or one that fails to say: nothing tells that the value is wrong.
        return True


def _by_msgspec(value: object, annotation: object) -> object:
    # Bytes are bytes already; msgspec would take any text for base64.
    return cast("object", msgspec.convert(value, cast("Any", annotation), builtin_types=(bytes,), dec_hook=_by_hand))


def _by_hand(annotation: type, value: object) -> object:
    """What msgspec has no reading of: text as a path. Raises TypeError for anything that is not of the class."""
    if isinstance(value, typing.get_origin(annotation) or annotation):
        return value
    if annotation in _PATHS and isinstance(value, str):
        return pathlib.Path(value)
    raise TypeError(annotation)


def _by_pydantic(value: object, annotation: object) -> object:
    from pydantic import TypeAdapter

    return cast("object", TypeAdapter(cast("Any", annotation)).validate_python(value))


def _needs_pydantic(annotation: object, seen: set[int]) -> bool:
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    if isinstance(annotation, type) and (is_model(annotation) or "__pydantic_validator__" in vars(annotation)):
        return True
    inner: list[object] = list(typing.get_args(annotation))
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        try:
            inner += hints_of(annotation).values()
        except Exception:  # noqa: BLE001  # As above.
            return False
    return any(_needs_pydantic(one, seen) for one in inner)
