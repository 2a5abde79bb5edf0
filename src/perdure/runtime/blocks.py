"""Ways for a block of code and a piece of work to end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` beside the block, and cancel it at the block's end."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def cancelled_by(running: asyncio.Task[Any]) -> AsyncIterator[None]:
    """Cancel the block when `running` fails: what it waits for would never come. The failure is raised instead."""
    block = asyncio.current_task()
    assert block is not None
    is_broken = False

    def look(done: asyncio.Task[Any]) -> None:
        nonlocal is_broken
        if not done.cancelled() and done.exception() is not None:
            is_broken = True
            block.cancel()

    running.add_done_callback(look)
    try:
        yield
    except asyncio.CancelledError:
        # Somebody else may have cancelled the block too, and that is for the caller to see.
        if not is_broken or block.uncancel() > 0:
            raise
        await running
    finally:
        running.remove_done_callback(look)


@asynccontextmanager
async def unless(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside the block, and cancel the block when it fails; what it raised is raised then."""
    async with beside(work) as task, cancelled_by(task):
        yield
