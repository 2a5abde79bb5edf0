"""A call was cut off, its task goes on elsewhere, and its worker lives: that it has ended is told all the same."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.settings import Settings
from tests.theatre import Theatre

# What waits leaves memory at once, and one other task is all that a worker has a permit for.
BUSY = Settings(
    sweep_s=0.5, poll_ms=500, heartbeat_s=1, lease_s=6, permits=1, main_permits=0, waiting_in_memory=0, call_retries=0
)
FOR_EVER_S = 1e6


@pytest.fixture
def settings() -> Settings:
    return BUSY


@pytest.mark.parametrize("lingers_s", [0, 60])
async def test_a_call_that_ended_in_a_worker_that_lives_is_settled_without_its_death(
    house: Theatre, lingers_s: float
) -> None:
    runs: list[str] = []

    @perdure.tool(timeout=1)
    async def act() -> str:
        runs.append("run")
        if len(runs) == 1:
            try:
                await asyncio.sleep(FOR_EVER_S)
            except asyncio.CancelledError:
                if not lingers_s:
                    raise
                await asyncio.sleep(lingers_s)  # as a thread does, which nobody can cut
        return f"run {len(runs)}"

    @perdure.agent
    async def host() -> str:
        return await act()

    @perdure.agent
    async def busy() -> None:
        with pytest.raises(TimeoutError):
            await perdure.read("work", asyncio.wait_for, asyncio.sleep(FOR_EVER_S), 900)

    first = await house.hire(host, busy)
    task = await house.client.start(host)
    doubt = await house.question()
    await house.until(lambda: not first.worker.attempts)
    await house.client.start(busy)
    await house.until(lambda: first.worker.attempts)
    second = await house.hire(host)
    before = house.loop.time()
    await doubt.resolve(perdure.not_happened(), by="ana")
    await house.until_status(task, "running", "waiting", "completed")
    await asyncio.sleep(20)
    soon = list(runs)
    result = await task.result()

    assert not first.running.done()
    assert house.loop.time() - before < lingers_s + 25
    if lingers_s:
        assert (result, soon, runs) == ("run 1", ["run"], ["run"])  # its own word, and no second run
    else:
        assert (result, soon) == ("run 2", ["run", "run"])
    assert house.attempts(task)[-1].instance_id == second.worker.instance_id
    assert first.worker.in_flight.words() == []
