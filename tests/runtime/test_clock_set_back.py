"""A wait that is under way when the wall clock is set back lasts as long as was asked for, twice at most."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.settings import Settings
from tests.theatre import Theatre

AN_HOUR_MS = 3_600_000
FORGETFUL = Settings(sweep_s=0.5, poll_ms=500, waiting_in_memory=0, heartbeat_s=1, lease_s=6)
Waiter = perdure.Agent[[], object]


@perdure.agent
async def sleeper() -> None:
    await perdure.sleep(60)


@perdure.agent
async def receiver() -> str:
    try:
        return str(await perdure.receive("paid", timeout=60))
    except TimeoutError:
        return "late"


@pytest.mark.parametrize("agent", [sleeper, receiver])
async def test_in_one_process_it_lasts_as_long_as_was_asked_for(house: Theatre, agent: Waiter) -> None:
    await house.hire(agent)
    task = await house.client.start(agent)
    await house.until_status(task, "waiting")
    await asyncio.sleep(10)

    house.loop.jump(-AN_HOUR_MS)

    assert await task.result() in (None, "late")
    assert 60 <= house.loop.time() < 65


@pytest.mark.parametrize("after_s", [10, 50])
@pytest.mark.parametrize("back_ms", [30_000, AN_HOUR_MS])
@pytest.mark.parametrize("agent", [sleeper, receiver])
async def test_across_a_crash_it_lasts_twice_as_long_at_most(
    house: Theatre, agent: Waiter, after_s: int, back_ms: int
) -> None:
    first = await house.hire(agent)
    task = await house.client.start(agent)
    await house.until_status(task, "waiting")
    await asyncio.sleep(after_s)
    house.kill(first)

    house.loop.jump(-back_ms)
    await house.hire(agent)

    assert await task.result() in (None, "late")
    assert 60 <= house.loop.time() < 125


@pytest.mark.parametrize("settings", [FORGETFUL])
@pytest.mark.parametrize("back_ms", [30_000, AN_HOUR_MS])
@pytest.mark.parametrize("agent", [sleeper, receiver])
async def test_set_aside_from_memory_it_lasts_twice_as_long_at_most(
    house: Theatre, agent: Waiter, back_ms: int
) -> None:
    await house.hire(agent)
    task = await house.client.start(agent)
    await house.until(lambda: "task_suspended" in house.kinds(task))
    await asyncio.sleep(20)

    house.loop.jump(-back_ms)

    assert await task.result() in (None, "late")
    assert 60 <= house.loop.time() < 125


@pytest.mark.parametrize("settings", [FORGETFUL])
async def test_a_clock_set_back_wakes_nobody_who_waits_for_no_time(house: Theatre) -> None:
    @perdure.agent
    async def host() -> object:
        return await perdure.receive("paid")

    await house.hire(host, sleeper)
    task = await house.client.start(host)
    await house.until(lambda: "task_suspended" in house.kinds(task))

    house.loop.jump(-AN_HOUR_MS)
    await house.run(sleeper)

    assert "task_woken" not in house.kinds(task)
