"""Tasks of one worker that complete in the same turn of its loop are completed in one write.

Of the results of many steps that became durable together, many are the last of their tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.errors import PerdureError
from perdure.store import Store, aio, completions
from perdure.store.completions import Completion

_Waiting = tuple[Completion, asyncio.Future[bool]]
_AT_ONCE = 256  # so many in one transaction, behind which others wait


class Completions:
    """Collects what completes. Belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writing: set[asyncio.Task[None]] = set()

    async def complete(self, one: Completion) -> bool:
        """True once the task has completed, durably, together with others; False: it is to complete by itself.

        Cancelled, it may still be completed, as by any write that was under way.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin, loop)
        done: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((one, done))
        return await done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = [(one, done) for one, done in self._waiting if not done.done()]
        self._waiting = []
        if len(waiting) == 1:  # Nothing is saved.
            waiting[0][1].set_result(False)
            return
        for first in range(0, len(waiting), _AT_ONCE):
            task = loop.create_task(self._write(waiting[first : first + _AT_ONCE]))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, waiting: Sequence[_Waiting]) -> None:
        completed: set[str] = set()
        try:
            completed = await aio.call(self._store, completions.complete_all, [one for one, _ in waiting])
        except PerdureError:
            pass  # Each tries by itself, and is told what is wrong.
        finally:
            for one, done in waiting:
                if not done.done():
                    done.set_result(one.fence.execution_id in completed)
