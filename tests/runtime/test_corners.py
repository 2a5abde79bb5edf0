"""Whatever settings are accepted together, they keep what each of them promises."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.settings import Settings
from perdure.store import instances
from tests.theatre import Theatre

# The least and the most of each, and looks that fall between the beats in ever other places.
WORKERS = [
    Settings(heartbeat_s=heartbeat_s, lease_s=lease_s, sweep_s=sweep_s, poll_ms=poll_ms)
    for heartbeat_s, lease_s, sweep_s, poll_ms in [
        (0.05, 0.2, 0.02, 5),
        (0.05, 0.2, 600, 60_000),
        (0.06, 0.2, 0.7, 250),
        (0.5, 1.5, 1, 60_000),
        (0.5, 2, 1, 250),
        (0.66, 2, 1, 250),
        (1, 6, 600, 250),
        (600, 1800, 600, 60_000),
        (600, 3600, 1, 60_000),
    ]
]


def said(settings: Settings) -> str:
    return f"beat {settings.heartbeat_s:g}, lease {settings.lease_s:g}, sweep {settings.sweep_s:g}"


async def pass_leases(house: Theatre, count: float) -> None:
    """In small steps, or the loop would leave out the looks of a worker while nothing happens."""
    for _ in range(int(count * 50)):
        await asyncio.sleep(house.settings.lease_s / 50)


@pytest.mark.parametrize("settings", WORKERS, ids=said)
async def test_a_frozen_worker_is_taken_over_soon_after_its_lease_and_a_healthy_one_never(house: Theatre) -> None:
    begun: list[int] = []
    over = asyncio.Event()

    @perdure.agent
    async def host() -> str:
        begun.append(len(house.actors))
        await over.wait()
        return "ran"

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: begun)
    await house.hire(host)

    await pass_leases(house, 3)
    while_healthy = len(house.attempts(task)), len(house.store.read(instances.alive))
    first.process.hold()
    await pass_leases(house, 0.5)
    after_half_a_lease = len(house.attempts(task))
    await pass_leases(house, 1)
    after_another = len(house.attempts(task))
    over.set()

    assert while_healthy == (1, 2)
    assert after_half_a_lease == 1
    assert after_another == 2
    assert await task.result() == "ran"


SLOW = Settings(heartbeat_s=600, lease_s=1800, sweep_s=600, poll_ms=60_000)


@pytest.mark.parametrize("settings", [SLOW], ids=said)
async def test_who_looks_seldom_is_told_of_a_deadline_when_it_comes(house: Theatre) -> None:
    told: list[float] = []

    @perdure.agent(deadline=5)
    async def host() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            told.append(house.loop.time())
            raise
        return "never"

    await house.hire(host)
    await asyncio.sleep(10)
    began_s = house.loop.time()
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert began_s + 5 <= told[0] < began_s + 6


@pytest.mark.parametrize("settings", [SLOW], ids=said)
async def test_who_looks_seldom_wakes_when_a_time_has_come(house: Theatre) -> None:
    @perdure.agent
    async def host() -> float:
        await perdure.sleep(7)
        return house.loop.time()

    await house.hire(host)
    await asyncio.sleep(10)
    began_s = house.loop.time()

    assert began_s + 7 <= await house.run(host) < began_s + 8


@pytest.mark.parametrize("settings", [Settings(permits=1), Settings(permits=1, main_permits=1)])
async def test_the_only_permit_serves_children_too(house: Theatre) -> None:
    @perdure.agent
    async def child() -> str:
        return "ran"

    @perdure.agent
    async def lead() -> str:
        return await child()

    await house.hire(lead, child)

    assert await house.run(lead) == "ran"
