"""Looks for the attempts of a worker: has happened what they wait for, is their time over, are they still theirs.

A hint says when to look; the poll interval and the next moment anybody waits for stand behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from perdure.model.task import Wait
from perdure.runtime.attempt import Attempt, Stop
from perdure.store import Store, aio, instances, tasks
from perdure.store.database import Transaction

_AT_MOST_EVERY_S: Final = 0.005
_OWNED_AT_MOST_EVERY_S: Final = 0.05


class Lookout:
    """One loop for all attempts of a worker."""

    def __init__(
        self,
        store: Store,
        attempts: Callable[[], Collection[Attempt]],
        generation: Callable[[], int],
        *,
        seen: Callable[[], None],
    ) -> None:
        self._seen = seen
        self._store = store
        self._attempts = attempts
        self._generation = generation
        self._wanted = asyncio.Event()
        self._owned_is_stale = False
        self._owned_seen = 0.0

    def soon(self) -> None:
        """Look soon whether what attempts wait for has happened."""
        self._wanted.set()

    def hinted(self) -> None:
        """Somebody has written something: it may have been a cancellation too."""
        self._owned_is_stale = True
        self._wanted.set()

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes in the turn of the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_s()):
                    await self._wanted.wait()
            self._wanted.clear()
            self.mind_deadlines()
            self._seen()
            await self._look_at_waits()
            await self._look_at_owned()
            await asyncio.sleep(_AT_MOST_EVERY_S)

    def mind_deadlines(self) -> None:
        """Tell attempts whose time is over; they have the grace time to end in good order."""
        now = self._store.clock.now_ms()
        for attempt in list(self._attempts()):
            if attempt.task.deadline_at is not None and attempt.task.deadline_at <= now:
                attempt.stop(Stop.DEADLINE)

    def _next_s(self) -> float:
        if self._owned_is_stale:
            return _OWNED_AT_MOST_EVERY_S
        now = self._store.clock.now_ms()
        next_ms = now + int(self._store.settings.poll_ms)
        for attempt in self._attempts():
            for wait, _ in attempt.waits.pending():
                if wait.until_ms is not None:
                    next_ms = min(next_ms, wait.until_ms)
            if attempt.task.deadline_at is not None and attempt.stopping is None:
                next_ms = min(next_ms, attempt.task.deadline_at)
        return max(0.001, (next_ms - now) / 1000)

    async def _look_at_waits(self) -> None:
        waiting = [
            (attempt.task.id, wait, futures)
            for attempt in self._attempts()
            for wait, futures in attempt.waits.pending()
        ]
        if not waiting:
            return
        happened = await aio.read(self._store, _which_happened, [(task_id, wait) for task_id, wait, _ in waiting])
        for place in happened:
            for future in waiting[place][2]:
                if not future.done():
                    future.set_result(None)

    async def _look_at_owned(self) -> None:
        """A cancelled task is told to its owner by its next heartbeat; here sooner."""
        now = asyncio.get_running_loop().time()
        if not self._owned_is_stale or now < self._owned_seen + _OWNED_AT_MOST_EVERY_S:
            return
        self._owned_is_stale, self._owned_seen = False, now
        held = [one for one in self._attempts() if not one.has_lost]
        if not held:
            return
        owned = await aio.read(self._store, instances.owned, generation=self._generation())
        mine = {one.execution_id for one in owned}
        for attempt in held:
            if attempt.journal.fence.execution_id not in mine and not attempt.done.is_set():
                attempt.stop(Stop.LOST)


def _which_happened(tx: Transaction, waiting: Sequence[tuple[str, Wait]]) -> list[int]:
    return [place for place, (task_id, wait) in enumerate(waiting) if tasks.has_happened(tx, task_id, wait)]
