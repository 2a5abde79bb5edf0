"""The traces of tasks that were claimed together, for their attempts to replay, in one read instead of one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.errors import StoreError
from perdure.model.task import Claim
from perdure.store import Store, aio, traces
from perdure.store.traces import Trace

_MOST_RECORDS = 100  # in one trace: all attempts wait for the longest


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
