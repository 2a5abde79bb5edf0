"""Errors as data, and back as stand-ins: live and on replay agent code catches the same thing.

A stand-in is caught by `except TheOriginalClass` (when its module is loaded) and by `except ToolError`; it has the
original's text and plain attributes. The original's constructor is never called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from perdure import codec
from perdure.errors import Denied, Error, NotSerializable, OutcomeUnknown, PerdureError, ToolError
from perdure.policy.retry import classify

_TEXT_LIMIT = 10_000


def describe(exc: BaseException, *, secrets: tuple[str, ...] = ()) -> Error:
    """An exception as data; never fails, whatever its `str` or attributes do. Secrets are masked."""
    attributes = {}
    for name, value in list(getattr(exc, "__dict__", {}).items()):
        if not isinstance(name, str) or name.startswith("_"):
            continue
        try:
            attributes[name] = codec.decode(mask(codec.encode(value, limit=_TEXT_LIMIT), secrets))
        except NotSerializable:
            continue  # A client, a request: of no use after a restart.
    return Error(class_name(exc), mask_text(text_of(exc), secrets), classify(exc).value, attributes)


def raise_again(error: Error, *, tool: str, live: BaseException | None = None) -> BaseException:
    """The stand-in for a recorded error. `live` is the original when it was raised in this process."""
    original = type(live) if live is not None else _find(error.type)
    bases: tuple[type[BaseException], ...] = (ToolError,)
    if original is not None and not issubclass(ToolError, original):
        bases = (original,) if issubclass(original, ToolError) else (ToolError, original)
    try:
        stand_in = _instance(bases, error, tool)
    except TypeError:  # The layouts of two C classes cannot be joined.
        stand_in = _instance((ToolError,), error, tool)
    if live is not None:
        stand_in.__cause__ = live
    return stand_in


def _instance(bases: tuple[type[BaseException], ...], error: Error, tool: str) -> BaseException:
    name = error.type.rpartition(".")[2] or "ToolError"
    kind = type(name, bases, {"__module__": error.type.rpartition(".")[0] or __name__, "__str__": _text})
    made: BaseException = kind.__new__(kind)
    made.args = (error.message,)
    for attribute, value in error.attributes.items():
        try:
            setattr(made, attribute, value)
        except (AttributeError, TypeError):
            continue  # A read-only property of the original class.
    for attribute, value in (("tool", tool), ("type", error.type), ("message", error.message)):
        if attribute not in error.attributes:
            setattr(made, attribute, value)
    if isinstance(made, Denied):
        made.reason = str(error.attributes.get("reason", ""))
        made.by = str(error.attributes.get("by", ""))
    return made


def _text(self: BaseException) -> str:
    return str(self.args[0]) if self.args else ""


def outcome_unknown(tool: str, reason: str) -> OutcomeUnknown:
    """What an agent gets when someone gave up finding out about a call."""
    return OutcomeUnknown(f"nobody knows whether {tool} happened" + (f": {reason}" if reason else ""), tool=tool)


def class_name(exc: BaseException) -> str:
    """Module and name of an exception's class."""
    kind = type(exc)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(exc: BaseException) -> str:
    """An exception's text, or its class's name when it has none to give."""
    try:
        return str(exc)[:_TEXT_LIMIT]
    except Exception:  # noqa: BLE001  # Its __str__ fails; its name must do.
        return type(exc).__name__


def mask(body: bytes, secrets: tuple[str, ...]) -> bytes:
    """Canonical JSON with the exact text of every secret replaced."""
    for secret in secrets:
        for form in (secret, secret.replace("\\", "\\\\").replace('"', '\\"')):
            body = body.replace(form.encode("utf-8", "replace"), b"[secret]")
    return body


def mask_text(text: str, secrets: tuple[str, ...]) -> str:
    """Text with every secret replaced."""
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text


def to_json(error: Error) -> Mapping[str, Any]:
    """An error as it is recorded in a step."""
    return {
        "type": error.type,
        "message": error.message,
        "class": error.error_class,
        "attributes": dict(error.attributes),
    }


def from_json(value: Any) -> Error:
    """The reverse of `to_json`."""
    return Error(value["type"], value["message"], value["class"], value.get("attributes", {}))


def _find(name: str) -> type[BaseException] | None:
    """The class by its recorded name, among loaded modules only; nothing is imported for it."""
    module, _, qualname = name.rpartition(".")
    found: Any = sys.modules.get(module or "builtins")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None


def is_final(exc: BaseException) -> bool:
    """Perdure's own errors end a task at once: doing it again would end the same way."""
    return isinstance(exc, PerdureError) and not type(exc).__mro__[0].__module__.startswith("perdure.store")
