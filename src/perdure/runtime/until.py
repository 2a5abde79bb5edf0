"""How long a wait lasts: until a moment that is on record, and never longer than was asked for.

The moment holds across restarts. Within a process the steady clock counts along, for the wall clock may be set back:
an hour back, and a sleep of a minute would last an hour and a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from perdure.clock import Clock


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a wait, on the wall clock and on this machine's steady one; what comes first counts."""

    wall_ms: int
    steady_ms: int

    @classmethod
    def after(cls, clock: Clock, wait_ms: int) -> Until:
        """So long from now."""
        return cls(clock.now_ms() + wait_ms, clock.boot_ms() + wait_ms)

    @classmethod
    def at(cls, clock: Clock, wall_ms: int) -> Until:
        """A moment that is on record."""
        return cls.after(clock, wall_ms - clock.now_ms())

    def left_ms(self, clock: Clock) -> int:
        """How long it still is; 0 when it is over."""
        return max(0, min(self.wall_ms - clock.now_ms(), self.steady_ms - clock.boot_ms()))

    @contextmanager
    def timer(self, clock: Clock) -> Iterator[asyncio.Future[None]]:
        """Something to wait for, done at the end; for `Waits.until`, which looks at the wall clock itself."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        # A millisecond later, so that whoever looks then finds that it is over.
        handle = loop.call_later((self.left_ms(clock) + 1) / 1000, set_over, over)
        try:
            yield over
        finally:
            handle.cancel()


def set_over(future: asyncio.Future[None], _cause: object = None) -> None:
    """Mark a wait as over, unless it was already."""
    if not future.done():
        future.set_result(None)
