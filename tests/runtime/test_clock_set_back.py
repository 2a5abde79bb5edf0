"""A wait that is under way when the wall clock is set back lasts as long as was asked for, twice at most.

So does that of a task for its retry, or for its delayed start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import perdure
from perdure.errors import StoreBusy
from perdure.runtime import sweeper
from perdure.settings import Settings
from perdure.store import tasks
from perdure.store.database import Transaction
from tests.theatre import Theatre

AN_HOUR_MS = 3_600_000
FORGETFUL = Settings(sweep_s=0.5, poll_ms=500, waiting_in_memory=0, heartbeat_s=1, lease_s=6)
Waiter = perdure.Agent[[], object]


@perdure.agent
async def sleeper() -> None:
    await perdure.sleep(60)


@perdure.agent
async def quick() -> None: ...


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


@perdure.agent(retries=5)
async def stumbler() -> int:
    if perdure.current().attempt <= 5:
        raise ConnectionError("reset")
    return perdure.current().attempt


async def _until_fifth_retry(house: Theatre, task: perdure.TaskHandle[int]) -> float:
    """Until the longest wait of a retry has begun, of 16 to 20 s; when it had."""
    await house.until(lambda: house.row(task).failures == 5)
    return house.loop.time()


@pytest.mark.parametrize("back_ms", [30_000, AN_HOUR_MS])
@pytest.mark.parametrize("after_s", [1, 12])
async def test_a_retry_comes_after_twice_the_time_at_most(house: Theatre, after_s: int, back_ms: int) -> None:
    await house.hire(stumbler)
    task = await house.client.start(stumbler)
    failed_at = await _until_fifth_retry(house, task)
    await asyncio.sleep(after_s)

    house.loop.jump(-back_ms)

    assert await task.result() == 6
    assert 16 <= house.loop.time() - failed_at < 42


@pytest.mark.parametrize("back_ms", [30_000, AN_HOUR_MS])
@pytest.mark.parametrize("crashes", [False, True])
async def test_a_delayed_start_comes_after_twice_the_time_at_most(house: Theatre, crashes: bool, back_ms: int) -> None:
    first = await house.hire(quick)
    task = await house.client.start(quick.options(delay=60))
    await asyncio.sleep(20)
    if crashes:
        house.kill(first)

    house.loop.jump(-back_ms)
    if crashes:
        await house.hire(quick)

    await task.result()
    assert 60 <= house.loop.time() < 125


async def test_a_delayed_start_is_on_time_though_the_clock_is_set_forward_or_a_little_back(house: Theatre) -> None:
    await house.hire(quick)
    task = await house.client.start(quick.options(delay=60))
    for by_ms in (-700, -700, 20_000):
        await asyncio.sleep(10)
        house.loop.jump(by_ms)

    await task.result()

    assert 40 <= house.loop.time() < 45


async def test_all_who_wait_for_a_time_count_anew_though_the_database_is_busy_and_there_are_many(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_BATCH", 2)
    monkeypatch.setattr(tasks, "count_anew", _busy_at_first(tasks.count_anew, 7))
    await house.hire(quick)
    handles = await house.client.start_all(quick.options(delay=60).bind() for _ in range(5))
    await asyncio.sleep(20)

    house.loop.jump(-AN_HOUR_MS)
    await asyncio.gather(*(one.result() for one in handles))

    assert 60 <= house.loop.time() < 125


def _busy_at_first(act: Callable[..., bool], times: int) -> Callable[..., bool]:
    left = [times]

    def acting(tx: Transaction, task_id: str) -> bool:
        if left[0] > 0:
            left[0] -= 1
            raise StoreBusy("somebody else writes")
        return act(tx, task_id)

    return acting
