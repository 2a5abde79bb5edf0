"""Calls that may still be inside their function, over all attempts of this process.

A call that timed out, or whose attempt was cancelled, may still be running in its thread: until it has returned,
nobody may run it again.
"""

from __future__ import annotations

import asyncio
from typing import Any


class InFlightCalls:
    """The running calls by task and key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], set[asyncio.Future[Any]]] = {}

    def add(self, task_id: str, key: str, running: asyncio.Future[Any]) -> None:
        """A call has started; it counts until `running` is done."""
        place = (task_id, key)
        self._running.setdefault(place, set()).add(running)

        def returned(done: asyncio.Future[Any]) -> None:
            left = self._running.get(place, set())
            left.discard(done)
            if not left:
                self._running.pop(place, None)
            if not done.cancelled():
                done.exception()  # Looked at here too: its caller may be gone.

        running.add_done_callback(returned)

    def holds(self, task_id: str, key: str) -> bool:
        """Whether the call may still be running."""
        return (task_id, key) in self._running

    def all(self) -> frozenset[asyncio.Future[Any]]:
        """Everything that runs now."""
        return frozenset(future for futures in self._running.values() for future in futures)
