"""What an exception says of itself: its class, its text, the line it comes from, its traceback. Never fails.

Frames of perdure are left out of what is told: the agent and its tools are what somebody can mend. A tool's error is
told with the text that is on record, for the original may hold a secret.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from perdure.codec import modules

_TEXT_LIMIT: Final = 10_000
_PERDURE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_MOST_LINKS: Final = 10
_MOST_HELD: Final = 5
_MOST_DEEP: Final = 5


def class_name(exc: BaseException) -> str:
    """Module and name of an exception's class."""
    return name_of(type(exc))


def name_of(kind: type[BaseException]) -> str:
    """Module and name of a class."""
    module = modules.recorded_name(kind.__module__)
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def text_of(exc: BaseException) -> str:
    """An exception's text, or its class's name when it has none to give. Every store can hold it.

    That of a group names what it holds.
    """
    try:
        text = (_text_of_group(exc, _MOST_DEEP) if isinstance(exc, BaseExceptionGroup) else str(exc))[:_TEXT_LIMIT]
    except Exception:  # noqa: BLE001  # Its __str__ fails; its name must do.
        return type(exc).__name__
    return _storable(str(text))


def _text_of_group(group: BaseExceptionGroup[BaseException], depth: int) -> str:
    """`2 of 3 failed: ValueError: bad 2; ValueError: bad 3`."""
    if "_perdure_text" in _space(group):  # A stand-in has the text that is on record.
        return str(group)
    held = []
    for one in group.exceptions[:_MOST_HELD]:
        inner = isinstance(one, BaseExceptionGroup) and depth > 0
        text = _text_of_group(one, depth - 1) if inner else text_of(one) if depth > 0 else "…"  # type: ignore[arg-type]  # a group
        held.append(f"{class_name(one)}: {text}" if text else class_name(one))
    more = len(group.exceptions) - len(held)
    return f"{group.message}: {'; '.join(held)}" + (f"; and {more:,} more" if more else "")


def place_of(exc: BaseException) -> str:
    """`file:line in function`, the innermost one that is neither perdure's nor a library's; "" where none is known.

    For a tool's error that is the line in the tool, also when it comes from a record; of a group the first error
    counts.
    """
    try:
        if isinstance(exc, BaseExceptionGroup) and (first := place_of(exc.exceptions[0])):
            return first
        if known := _space(exc).get("_perdure_place"):
            return str(known)
        # Not extract_tb: that reads the source of every file.
        walked = [(frame.f_code, line) for frame, line in traceback.walk_tb(exc.__traceback__)]
    except Exception:  # noqa: BLE001  # A class may have made anything of these names.
        return ""
    frames = [(code, line) for code, line in walked if not _is_ours(code.co_filename)]
    own = [one for one in frames if not one[0].co_filename.startswith((*_LIBRARIES, "<"))] or frames
    if not own:
        return ""
    code, line = own[-1]
    return _storable(f"{_shortened(code.co_filename)}:{line} in {code.co_name}")


def traceback_of(exc: BaseException) -> str:
    """Its traceback, with what it was raised from, on several lines."""
    try:
        return "\n".join(_traceback(exc, _MOST_LINKS))
    except Exception:  # noqa: BLE001  # As above.
        return f"{class_name(exc)}: {text_of(exc)}"


def _traceback(exc: BaseException, most: int) -> Iterator[str]:
    if most == 0:
        yield "…"
        return
    live = exc.__cause__ if "_perdure_text" in _space(exc) else None  # what a stand-in stands for: one error, not two
    before = None if live is not None else exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if before is not None:
        yield from _traceback(before, most - 1)
        yield "\nThis error was raised from it:" if before is exc.__cause__ else "\nWhile it was handled, this came up:"
    frames = [*_frames(exc), *(() if live is None else _frames(live))]
    if frames:
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_list(frames)).rstrip("\n")
    # What a group holds follows, one by one.
    yield f"{class_name(exc)}: {exc.message if isinstance(exc, BaseExceptionGroup) else text_of(exc)}"
    group = exc.exceptions if isinstance(exc, BaseExceptionGroup) else ()
    for number, one in enumerate(group[:_MOST_LINKS], 1):
        yield f"  error {number} of {len(group)}"
        yield from (f"  {line}" for part in _traceback(one, most - 1) for line in part.splitlines())


def _frames(exc: BaseException) -> list[traceback.FrameSummary]:
    return [one for one in traceback.extract_tb(exc.__traceback__) if not _is_ours(one.filename)]


def _space(exc: BaseException) -> dict[str, object]:
    return BaseException.__dict__["__dict__"].__get__(exc)  # type: ignore[no-any-return]  # a descriptor of C


def walk(
    exc: BaseException, behind: Callable[[BaseException], Iterable[BaseException | None]]
) -> Iterator[BaseException]:
    """An exception, what stands behind it, and the members of groups among them, each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [exc]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += behind(one)
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_ours(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_PERDURE)


def _shortened(filename: str) -> str:
    """From the present folder on where the file lies in it, as one would name it there."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # It has been deleted.
        return filename
    return filename.removeprefix(here)
