"""Calls that look alike on record: whether a replay could give one the result of another.

Branches come in another order after a crash, since what is on record takes no time; so do the calls of one task that
acts on whichever branch is ready first. Harm needs two calls that differ in what is not recorded.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from weakref import ref

from perdure import codec, phrases
from perdure.errors import AmbiguousStep
from perdure.model.step import StepKind
from perdure.runtime.call import Call

# What can be compared without running code of a user's.
_PLAIN = (str, bytes, int, float, bool, types.NoneType)
_KEPT = 64  # characters


class _Long(NamedTuple):
    """A long text or bytes, by its hash."""

    kind: type
    hash: int


class _Function(NamedTuple):
    """A function: the same, or made anew from the same code and the same values."""

    fn: ref[types.FunctionType]
    code: types.CodeType
    holds: tuple[object, ...]  # closed over, or defaults


_UNKNOWN = object()  # What cannot be told without keeping it alive, a list, say. It is taken for another each time.


class Alike:
    """Calls with one name and one input, or of one name with one `key=`, inside one call."""

    __slots__ = ("_are_varied", "_what")

    def __init__(self) -> None:
        self._what: tuple[object, ...] | None = None
        self._are_varied = False

    def add(self, call: Call, what: Sequence[object], *, are_shared: bool) -> None:
        """There is another one, which `what` may tell from the others.

        Raises AmbiguousStep where that is not recorded, and calls are made by several asyncio tasks or threads.
        """
        if self._what is None:
            self._what = tuple(map(_weakly, what))
            return
        self._are_varied = self._are_varied or not _is_same(self._what, tuple(what))
        if not (self._are_varied and are_shared):
            return
        how = "its input is another" if what[0] != self._what[0] else "they may differ in what is not recorded"
        raise AmbiguousStep(
            f"{call.name} was called like this before, and {how}. Where several "
            f"branches or threads make calls, a restart could swap the results: give each call what distinguishes it "
            f"as an argument, or a key: .options(key=…)",
            field="key",
        )


def open_already(call: Call) -> AmbiguousStep:
    """The refusal of a call beside an open one that a replay could not tell from it."""
    if call.kind is StepKind.ANSWER:
        asked = codec.mask_text(str(call.input["question"]), call.secrets)
        return AmbiguousStep(
            f"the question {phrases.one_line(asked)!r} is open already: after a restart the answers could be swapped. "
            f"Put what distinguishes the two into the text, or ask one after the other.",
            field="question",
        )
    return AmbiguousStep(
        f"two calls of {call.name} without input are open at once: after a restart their results could be "
        f"swapped. Give each a key: .options(key=…)",
        field="key",
    )


def _weakly(value: object, *, is_held: bool = False) -> object:
    """What tells it from others and does not keep it alive: a text of a megabyte, a client."""
    # Classes are compared as they are: isinstance would ask a user's object, a proxy, say.
    if type(value) is types.FunctionType and not is_held:  # One that it holds may hold it.
        return _Function(ref(value), value.__code__, tuple(_weakly(one, is_held=True) for one in _holds(value)))
    if (type(value) is str or type(value) is bytes) and len(value) > _KEPT:
        return _Long(type(value), hash(value))
    if type(value) in _PLAIN:
        return value
    if type(value) is tuple:
        return tuple(_weakly(one, is_held=is_held) for one in value)
    try:
        return ref(value)
    except TypeError:
        return _UNKNOWN


def _holds(fn: types.FunctionType) -> Iterator[object]:
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for cell in fn.__closure__ or ():
        with suppress(ValueError):  # It is not filled yet.
            yield cell.cell_contents


def _is_same(kept: object, other: object) -> bool:
    """Whether this is what was kept. No `==` of a user's object is called."""
    if type(kept) is ref:
        return other is not None and kept() is other
    if type(kept) is _Long:
        return kept == _weakly(other)
    if type(kept) is _Function:
        if type(other) is not types.FunctionType or kept.code is not other.__code__:
            return False
        return kept.fn() is other or _is_same(kept.holds, tuple(_holds(other)))
    if isinstance(kept, tuple):
        return type(other) is tuple and len(kept) == len(other) and all(map(_is_same, kept, other))
    return type(kept) is type(other) and kept == other
