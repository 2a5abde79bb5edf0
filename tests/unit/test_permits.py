"""The permits of a worker, when those who wait for one give up at the very moment they would get it."""

from __future__ import annotations

import asyncio

import pytest

from perdure.model.task import Lane
from perdure.runtime.permits import PermitQueue


async def waiting(permits: PermitQueue) -> asyncio.Task[None]:
    """Somebody who waits for a permit."""
    task = asyncio.ensure_future(permits.take(Lane.SUBAGENT))
    await asyncio.sleep(0)
    return task


async def test_a_permit_that_is_given_back_goes_to_who_has_waited_longest() -> None:
    permits = PermitQueue(1, 0)
    await permits.take(Lane.SUBAGENT)
    first, second = await waiting(permits), await waiting(permits)

    permits.give(Lane.SUBAGENT)
    await asyncio.sleep(0)

    assert (first.done(), second.done()) == (True, False)
    second.cancel()


async def test_who_gave_up_before_the_permit_came_does_not_take_it_along() -> None:
    permits = PermitQueue(1, 0)
    await permits.take(Lane.SUBAGENT)
    gone, second = await waiting(permits), await waiting(permits)

    gone.cancel()
    permits.give(Lane.SUBAGENT)  # Before the cancelled one has had its turn.
    await asyncio.wait({gone, second}, timeout=1)

    assert gone.cancelled()
    assert second.done()
    permits.give(Lane.SUBAGENT)
    assert permits.reserve(Lane.SUBAGENT, 5) == 1


async def test_who_gives_up_in_the_turn_of_the_permit_hands_it_on() -> None:
    permits = PermitQueue(1, 0)
    await permits.take(Lane.SUBAGENT)
    gone, second = await waiting(permits), await waiting(permits)

    permits.give(Lane.SUBAGENT)
    gone.cancel()
    await asyncio.wait({gone, second}, timeout=1)

    with pytest.raises(asyncio.CancelledError):
        await gone
    assert second.done()
    permits.give(Lane.SUBAGENT)
    assert permits.reserve(Lane.SUBAGENT, 5) == 1


async def test_who_gives_up_while_nothing_is_free_leaves_the_queue() -> None:
    permits = PermitQueue(1, 0)
    await permits.take(Lane.SUBAGENT)
    gone = await waiting(permits)

    gone.cancel()
    await asyncio.wait({gone}, timeout=1)
    permits.give(Lane.SUBAGENT)

    assert permits.reserve(Lane.SUBAGENT, 5) == 1
