"""A page: part of a list, with the cursor to go on after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Page(list[T]):
    """A list with the cursor to go on after it; None at the end."""

    def __init__(self, items: Iterable[T], *, after: str | None) -> None:
        super().__init__(items)
        self.after = after
