"""A worker on a virtual loop with all that is its own, and how what is left of workers comes to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.runtime.attempt import Stop
from perdure.runtime.worker import Stopped, Worker
from perdure.testing.line import Line
from perdure.testing.virtual_loop import Process, VirtualLoop

_UNWIND_S = 600.0
_UNWIND_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Actor:
    """A worker, what it runs in, and its way to the database."""

    process: Process
    line: Line
    worker: Worker
    running: asyncio.Task[Stopped]

    def die(self) -> None:
        """Stop it where it stands, for ever, as kill -9 does."""
        self.line.die()
        self.process.hold()


async def unwind(actors: Sequence[Actor]) -> None:
    """Let everything that is left end: what could still write is cut off first, then all of it is cancelled.

    The dead come to life for this, or their coroutines would be torn down wherever Python collects them.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    seen: set[asyncio.Task[Any]] = set()
    for actor in actors:
        actor.line.cut()
    # What unwinds may start something more, though not for long.
    for _ in range(_UNWIND_ROUNDS):
        left = {task for actor in actors for task in actor.process.tasks if not task.done()}
        if not left and not loop.waits_for_threads:
            break
        seen |= left
        for actor in actors:
            for attempt in list(actor.worker.attempts.values()):
                attempt.stop(Stop.LOST)
        for task in left:
            task.cancel()
        for actor in actors:
            actor.process.release(loop)
        if left:
            await asyncio.wait(left, timeout=_UNWIND_S)
        await asyncio.sleep(0.001)  # Time stands still until a thread that works has told the loop something.
    for task in seen:
        if task.done() and not task.cancelled():
            task.exception()  # Looked at, so that nobody complains.
