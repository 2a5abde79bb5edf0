"""What attempts read before their agents begin: traces, of tasks that were claimed together in one read for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from perdure.errors import Damaged, StoreError
from perdure.model.task import Claim
from perdure.store import Store, aio, traces
from perdure.store.traces import Trace

log = logging.getLogger(__name__)
_MOST_RECORDS = 100  # in one trace: all attempts wait for the longest
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)


async def read_together(store: Store, claims: Sequence[Claim]) -> Mapping[str, Trace]:
    """Traces by the ids of their tasks. Whichever is missing here is read by its attempt, as if it had been alone."""
    wanted = [
        (one.task.id, one.task.replay_from)
        for one in claims
        if one.task.attempt > 1 and one.task.step_count <= _MOST_RECORDS
    ]
    if len(wanted) <= 1:
        return {}
    try:
        return await aio.read(store, traces.read_all, wanted)
    except StoreError:
        return {}


async def read_again(read: Callable[[], Awaitable[None]], *, task_id: str, until: Callable[[], bool]) -> None:
    """Read what an attempt begins with, again after a database that was away for a moment: that costs no recovery.

    Returns with nothing read when that fails and `until` says so. Raises StoreError when it has failed often, and
    Damaged at once.
    """
    pauses_s = iter(_PAUSES_S)
    while True:
        try:
            return await read()
        except Damaged:
            raise
        except StoreError as failed:
            if until():
                return None
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise
            log.warning("task %s could not be read; trying again in %.1f s: %s", task_id, pause_s, failed)
        await asyncio.sleep(pause_s)
