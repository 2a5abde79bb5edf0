"""Answers on their way from other threads to an event loop.

asyncio's own way, `call_soon_threadsafe`, makes a handle for each call, sends a byte through a pair of sockets, and
reads until an exception says that there is no more. Where the system has them, a counter (eventfd) does it with one
write and one read. A task that goes on after each durable step waits for nothing else but the disk.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Letter = TypeVar("Letter")


class Letterbox(Generic[Letter]):
    """Takes letters from any thread and has the loop `read` them. Lives as long as its loop is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Callable[[Letter], None]) -> None:
        self._letters: deque[Letter] = deque()
        self._read = read
        self._counter = counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # The loop alone holds on to this, until it is closed.
        weakref.finalize(self, _close, counter).atexit = False
        # In a context of its own: that of whoever happens to be the first would live as long as the loop.
        contextvars.Context().run(loop.add_reader, counter, self._empty)

    def put(self, letters: Sequence[Letter]) -> None:
        """Have the loop read these, soon and in this order."""
        self._letters += letters
        self._ring()

    def _empty(self) -> None:
        os.eventfd_read(self._counter)  # First: what comes in from here on rings anew.
        try:
            while self._letters:
                self._read(self._letters.popleft())
        finally:
            if self._letters:  # One that could not be read, and ended this, does not keep the others.
                self._ring()

    def _ring(self) -> None:
        try:
            os.eventfd_write(self._counter, 1)
        except OSError:  # Somebody has closed a file that was not his. This loop is deaf; nobody else has to suffer.
            return


def _close(counter: int) -> None:
    try:
        os.close(counter)
    except OSError:  # Closed already, by somebody whose file it was not.
        return


def open_letterbox(loop: asyncio.AbstractEventLoop, read: Callable[[Letter], None]) -> Letterbox[Letter] | None:
    """One for this loop; None where there are no such counters or readers, or no more files may be open."""
    if not hasattr(os, "eventfd"):
        return None
    try:
        return Letterbox(loop, read)
    except (RuntimeError, OSError):  # By the first a loop says that it watches no files.
        return None
