"""Errors as data, and back as stand-ins: live and on replay agent code catches the same thing.

A stand-in is caught by `except TheOriginalClass` and by `except ToolError`; it has the original's text, arguments and
plain attributes. The original's constructor is never called. On replay the class is found by its name in a loaded
module, or, if it was made at run time, among the living classes; if it is not there, what it derives from stands for
it, and the log says so.
"""

from __future__ import annotations

import builtins
import logging
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from perdure import codec
from perdure.codec import modules
from perdure.errors import (
    Denied,
    Error,
    NotSerializable,
    OutcomeUnknown,
    PerdureError,
    RefusedBySchema,
    StoreError,
    ToolError,
)
from perdure.policy.retry import classify
from perdure.runtime.raised import class_name, name_of, place_of, text_of

log = logging.getLogger(__name__)

_ATTRIBUTE_LIMIT_BYTES: Final = 100_000
_MOST_OF_ONE_NAME: Final = 16
_NOT_FOUND: Final = (
    "%s is not to be found: no loaded module has it, and nobody has made it in this process. Its recorded error is "
    "raised as %s: an `except` that names the class itself does not catch it. Catch that, or make the class known "
    "before agents run."
)
# What the interpreter itself puts there: the object that lacks an attribute may be anything, and hold anything.
_NOT_TOLD: Final = frozenset({"obj", "exceptions", "with_traceback", "name_from"})


def describe(exc: BaseException, *, secrets: tuple[str, ...] = ()) -> Error:
    """An exception as data; never fails, whatever its `str` or attributes do. Secrets are masked."""
    attributes = {}
    for name, value in _attributes(exc):
        try:
            body = codec.encode(value, limit=_ATTRIBUTE_LIMIT_BYTES)
        except NotSerializable:
            if type(value) is not Error:
                continue  # A client, a request: of no use after a restart.
            # How a child failed is kept in any case: its reader counts on it.
            body = codec.encode(replace(value, attributes={}))
        attributes[name] = codec.decode(codec.mask(body, secrets) if secrets else body)
    text = codec.mask_text(text_of(exc), secrets)
    # Sorted as they are stored, so that they come back in the same order.
    name, attributes = class_name(exc), dict(sorted(attributes.items()))
    return Error(name, text, classify(exc).value, attributes, place_of(exc), _base_of(exc, name))


def raise_again(error: Error, *, tool: str, live: BaseException | None = None) -> BaseException:
    """The stand-in for a recorded error. `live` is the original when it was raised in this process."""
    base = _find(error.base)
    stand_in = (
        _joined(_originals(error, live), error, tool)
        or _joined([] if base is None else [base], error, tool)
        or _instance((ToolError,), error, tool)
    )
    if live is not None:
        stand_in.__cause__ = live
    return stand_in


def _joined(originals: Sequence[type[BaseException]], error: Error, tool: str) -> BaseException | None:
    """The stand-in that all these classes catch; None when there can be none."""
    try:
        return _instance(_bases(originals), error, tool)
    # The layouts of two classes of C cannot be joined, or a class has a will of its own about who derives from it.
    except Exception:  # noqa: BLE001
        return None


def _originals(error: Error, live: BaseException | None) -> list[type[BaseException]]:
    """The classes whose `except` has to catch it. Several only of classes made at run time, which share a name."""
    if isinstance(live, Exception) and not _is_stand_in(type(live)):
        return [type(live)]
    found, base = _find(error.type), _find(error.base)
    if base is not None and (living := _living(error.type, base)):
        return living
    # With a base on record, what has the name was another class then, and is one now unless it has that base too.
    if found is not None and base is None:
        return [found]
    if live is None:
        log.warning(_NOT_FOUND, error.type, "ToolError" if base in (None, Exception) else f"ToolError and {error.base}")
    return [] if base is None else [base]


def _bases(originals: Sequence[type[BaseException]]) -> tuple[type[BaseException], ...]:
    others = [one for one in originals if not issubclass(ToolError, one)]
    return tuple(others) if any(issubclass(one, ToolError) for one in others) else (ToolError, *others)


def _instance(bases: tuple[type[BaseException], ...], error: Error, tool: str) -> BaseException:
    name = error.type.rpartition(".")[2] or "ToolError"
    space = {"__module__": error.type.rpartition(".")[0] or "builtins", "__str__": _text}
    kind: Any = type(name, bases, space)
    made: BaseException = kind.__new__(kind)
    given = error.attributes.get("args")
    made.args = tuple(given) if isinstance(given, list) else (error.message,)
    made.__dict__["_perdure_text"] = error.message
    made.__dict__["_perdure_place"] = error.place
    made.__dict__["_perdure_base"] = error.base
    for attribute, value in error.attributes.items():
        if attribute != "args":
            _set(made, attribute, value)
    for attribute, value in (("tool", tool), ("type", error.type), ("message", error.message)):
        if attribute not in error.attributes:
            _set(made, attribute, value)
    if isinstance(made, Denied):
        made.reason = str(error.attributes.get("reason", ""))
        made.by = str(error.attributes.get("by", ""))
    return made


def _set(made: BaseException, attribute: str, value: object) -> None:
    try:
        setattr(made, attribute, value)
    except Exception as refused:  # noqa: BLE001  # A property of the original class, which may do anything.
        why = type(refused).__name__
        log.debug("%s of a recorded %s cannot be set again: %s", attribute, type(made).__name__, why)


def _text(self: BaseException) -> str:
    return str(self.__dict__.get("_perdure_text", ""))


def _attributes(exc: BaseException) -> Iterator[tuple[str, object]]:
    """Arguments, plain attributes, and those that classes of C and slots keep outside of the dict."""
    yield "args", list(BaseException.args.__get__(exc))  # type: ignore[attr-defined]  # a descriptor of C
    space = BaseException.__dict__["__dict__"].__get__(exc)
    names = dict.fromkeys(name for name in space if isinstance(name, str))
    for kind in type(exc).__mro__[:-1]:
        if kind in (BaseException, Exception):
            continue
        fields = (types.MemberDescriptorType, types.GetSetDescriptorType)
        names |= dict.fromkeys(name for name, what in vars(kind).items() if isinstance(what, fields))
    for name in names:
        if name.startswith("_") or name in _NOT_TOLD:
            continue
        try:
            value = space[name] if name in space else getattr(exc, name)
        except AttributeError:  # Not set.
            continue
        except Exception as refused:  # noqa: BLE001  # A slot that is read by code of its own.
            why = type(refused).__name__
            log.debug("%s of %s cannot be read and is not recorded: %s", name, type(exc).__name__, why)
            continue
        if value is not None or name in space:
            yield name, value


def outcome_unknown(tool: str, reason: str) -> OutcomeUnknown:
    """What an agent gets when someone gave up finding out about a call."""
    return OutcomeUnknown(f"nobody knows whether {tool} happened" + (f": {reason}" if reason else ""), tool=tool)


def to_body(error: Error) -> bytes:
    """An error as the output of a step."""
    return codec.encode(error.to_json())


def _find(name: str) -> type[BaseException] | None:
    """The class by its recorded name, among loaded modules only; nothing is imported for it."""
    module, qualname = name, ""
    space: Mapping[str, object] = vars(builtins)
    while module:
        # The longest name of a loaded module is the module; the rest leads to the class, also inside another one.
        loaded = modules.loaded(module)
        if loaded is not None and qualname:
            space = vars(loaded)
            break
        module, _, part = module.rpartition(".")
        qualname = f"{part}.{qualname}" if qualname else part
    found: object = None
    for part in qualname.split("."):
        found = space.get(part)
        space = vars(found) if isinstance(found, type) else {}
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _base_of(exc: BaseException, name: str) -> str:
    """What the class derives from, where it is not the one that a loaded module has under its name; else ""."""
    if _is_stand_in(type(exc)):
        return str(exc.__dict__.get("_perdure_base", ""))
    return "" if _find(name) is type(exc) else _nearest(type(exc))


def _nearest(kind: type[BaseException]) -> str:
    """The first base of a class that a loaded module has under its name."""
    above = [one for one in kind.__mro__[1:] if not issubclass(ToolError, one)]
    return next((name_of(one) for one in above if _find(name_of(one)) is one), "Exception")


def _living(name: str, base: type[BaseException]) -> list[type[BaseException]]:
    """The classes of a name that live in this process, none of the stand-ins.

    At most 16, of those with the same base the latest. A class is left out where one that derives from it is there:
    what derives from the latter is caught as both.
    """
    found: list[type[BaseException]] = []
    seen = {base}
    above = [base]
    while above:
        for kind in type.__subclasses__(above.pop()):
            if kind not in seen and not _is_stand_in(kind):
                seen.add(kind)
                above.append(kind)
                if name_of(kind) == name:
                    found.append(kind)
    # No class can be made with a base and, after it, one that derives from that base.
    passed_by = {one for kind in found for one in kind.__mro__[1:]}
    return [kind for kind in found if kind not in passed_by][-_MOST_OF_ONE_NAME:]


def _is_stand_in(kind: type[BaseException]) -> bool:
    return vars(kind).get("__str__") is _text


def is_final(exc: BaseException) -> bool:
    """Whether doing it again would end the same way: perdure's own errors, save those that stand for a tool's."""
    if isinstance(exc, ToolError):
        own = (Denied, OutcomeUnknown)
        return isinstance(exc, own) or any(
            issubclass(kind, PerdureError) and not issubclass(kind, ToolError) and kind is not PerdureError
            for kind in type(exc).__mro__
        )
    return isinstance(exc, PerdureError) and (not isinstance(exc, StoreError) or isinstance(exc, RefusedBySchema))
