"""A block and the work beside it end together, and whose failure it was is told."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime.blocks import beside, cancelled_by


async def forever() -> None:
    await asyncio.Event().wait()


async def break_(began: asyncio.Event) -> None:
    await began.wait()
    raise ValueError("broken")


async def test_work_beside_a_block_is_cancelled_at_its_end() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("work")

    async with beside(work()):
        await asyncio.sleep(0)
        assert ended == []

    assert ended == ["work"]


async def test_a_block_is_cancelled_when_what_it_waits_for_breaks_and_the_failure_is_raised() -> None:
    began = asyncio.Event()
    running = asyncio.get_running_loop().create_task(break_(began))

    async def block() -> None:
        async with cancelled_by(running):
            began.set()
            await forever()

    with pytest.raises(ValueError, match="broken"):
        await block()

    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_a_block_that_ends_by_itself_is_left_alone() -> None:
    running = asyncio.get_running_loop().create_task(forever())

    async with cancelled_by(running):
        await asyncio.sleep(0)

    assert not running.done()
    running.cancel()


async def test_a_cancellation_from_outside_stays_one() -> None:
    inside = asyncio.Event()

    async def block() -> None:
        running = asyncio.get_running_loop().create_task(forever())
        async with cancelled_by(running):
            inside.set()
            await forever()

    task = asyncio.get_running_loop().create_task(block())
    await inside.wait()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
