"""Calls that may still be inside their function, over all attempts of this process.

A call that timed out, or whose attempt was cancelled, may still be running in its thread: until it has returned,
nobody may run it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class InFlightCalls:
    """Counts running calls by task and key."""

    def __init__(self) -> None:
        self._running: Counter[tuple[str, str]] = Counter()
        self._changed = asyncio.Event()

    def add(self, task_id: str, key: str, running: asyncio.Future[Any]) -> None:
        """A call has started; it counts until `running` is done."""
        place = (task_id, key)
        self._running[place] += 1

        def returned(_done: asyncio.Future[Any]) -> None:
            self._running[place] -= 1
            if self._running[place] <= 0:
                del self._running[place]
            self._changed.set()
            if not _done.cancelled():
                _done.exception()  # Looked at here too: its caller may be gone.

        running.add_done_callback(returned)

    def holds(self, task_id: str, key: str) -> bool:
        """Whether the call may still be running."""
        return self._running[task_id, key] > 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs."""
        return not self._running

    async def until_empty(self, timeout_s: float) -> None:
        """Wait until nothing runs, for at most `timeout_s`."""
        end = asyncio.get_running_loop().time() + timeout_s
        while self._running and (left := end - asyncio.get_running_loop().time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return
