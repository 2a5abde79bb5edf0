"""A page: part of a list, with the cursor to go on after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from perdure.errors import BadInput

T = TypeVar("T")
MOST_ROWS: Final = 200
_INT64_MAX: Final = 2**63 - 1


class Page(list[T]):
    """A list with the cursor to go on after it; None at the end."""

    def __init__(self, items: Iterable[T], *, after: str | None) -> None:
        super().__init__(items)
        self.after = after


def rows_of(limit: int) -> int:
    """How many rows a page of this limit holds: a limit outside 1..200 is clamped. Raises BadInput for no number."""
    if not isinstance(limit, int):
        raise BadInput(f"limit is {limit!r}; give a whole number", field="limit")
    return max(1, min(MOST_ROWS, limit))


def whole(value: object, field: str, *, least: int = 0) -> int:
    """A whole number that a column can hold. Raises BadInput for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT64_MAX:
        raise BadInput(f"{field} is {value!r}; give a whole number from {least} to {_INT64_MAX}", field=field)
    return value


def number_after(text: object, *, start: int) -> int:
    """The number in a page's cursor, `start` without one. Raises BadInput for what no page gave."""
    if text is None:
        return start
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadInput(f"{text!r} is no cursor; give the `after` of an earlier page", field="after")
    return int(text)
