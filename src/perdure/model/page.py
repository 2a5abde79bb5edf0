"""A page: part of a list, with the cursor to go on after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")
MOST_ROWS: Final = 200


class Page(list[T]):
    """A list with the cursor to go on after it; None at the end."""

    def __init__(self, items: Iterable[T], *, after: str | None) -> None:
        super().__init__(items)
        self.after = after


def rows_of(limit: int) -> int:
    """How many rows a page of this limit holds: a limit outside 1..200 is clamped."""
    return max(1, min(MOST_ROWS, limit))
