"""The permits of a worker: who may run, by lane. Those who go on after a wait come before new tasks of their lane."""

from __future__ import annotations

import asyncio
from collections import deque

from perdure.model.task import Lane
from perdure.policy.lanes import Permits


class PermitQueue:
    """Counts what runs, and queues what waits to run again. Belongs to one event loop."""

    def __init__(self, total: int, main_only: int) -> None:
        # Of the only one none is kept: other work would wait for ever.
        self._permits = Permits(total, min(main_only, total - 1))
        self._waiting: dict[Lane, deque[asyncio.Future[None]]] = {Lane.MAIN: deque(), Lane.SUBAGENT: deque()}

    def reserve(self, lane: Lane, most: int) -> int:
        """Take permits for new tasks before they are claimed, so that none is given away meanwhile. How many."""
        if self._waiting[lane]:
            return 0
        count = min(most, self._permits.free(lane))
        return count if count > 0 and self._permits.acquire(lane, count) else 0

    async def take(self, lane: Lane) -> None:
        """Win a permit again, in the order of asking."""
        if not self._waiting[lane] and self._permits.acquire(lane):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lane].append(turn)
        try:
            await turn  # Whoever resolves it has acquired the permit for us.
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give(lane)
            elif turn in self._waiting[lane]:
                self._waiting[lane].remove(turn)
            raise

    def give(self, lane: Lane, count: int = 1) -> None:
        """Give permits back, first of all to who waits to run again."""
        self._permits.release(lane, count)
        for waiting_lane, waiting in self._waiting.items():
            while waiting:
                # Cancelled, and its task has not had its turn to leave the queue.
                if waiting[0].cancelled():
                    waiting.popleft()
                elif self._permits.acquire(waiting_lane):
                    waiting.popleft().set_result(None)
                else:
                    break
