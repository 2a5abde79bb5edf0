"""Deadlines and cancellation: the agent is told, has time to end well, and is ended if it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.runtime.attempt import Stop
from perdure.settings import Settings
from perdure.store import ends
from tests.theatre import Theatre

FORGETFUL = Settings(
    sweep_s=0.5,
    poll_ms=500,
    question_expiry_s=120,
    waiting_in_memory=0,
    heartbeat_s=1,
    lease_s=6,
    permits=2,
    main_permits=1,
)
ONE_PERMIT = Settings(sweep_s=0.5, poll_ms=500, permits=1, main_permits=0)
FEW_PERMITS = Settings(sweep_s=0.5, poll_ms=500, permits=2, main_permits=0)


# -- deadlines and cancellation -------------------------------------------------------------


async def test_an_agent_is_told_at_its_deadline_and_has_time_to_end_well(house: Theatre) -> None:
    told: list[float] = []

    @perdure.agent(deadline=60)
    async def host() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            told.append(house.loop.time())
            await asyncio.sleep(2)  # cleaning up, which nothing cuts short
            told.append(house.loop.time())
            raise
        return "never"

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert 60 <= told[0] < 61
    assert told[1] - told[0] >= 2
    assert house.outcome(task) == ("timed_out", "TimedOut")


async def test_a_result_within_the_grace_time_counts(house: Theatre) -> None:
    @perdure.agent(deadline=60)
    async def host() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            return "half of it"
        return "never"

    await house.hire(host)

    assert await house.run(host) == "half of it"


@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_on_its_way_when_the_time_is_over_counts_where_it_comes_first_and_is_told(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    @perdure.agent(retries=0)
    async def host() -> str:
        await asyncio.sleep(1)
        if fails:
            raise ValueError("boom")
        return "fine"

    told: list[tuple[str, str]] = []
    actor = await house.hire(
        host, on_event=lambda what, facts: told.append((facts["status"], facts["error"])) if what == "ended" else None
    )
    task = await house.client.start(host)
    await house.until_status(task, "running")
    (attempt,) = actor.worker.attempts.values()
    write = attempt.journal.write

    async def write_slowly(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation in (ends.complete, ends.fail):
            attempt.stop(Stop.DEADLINE)
            await asyncio.sleep(4)  # Others hold the lock.
        return await write(operation, *args, **kwargs)

    monkeypatch.setattr(attempt.journal, "write", write_slowly)
    await attempt.done.wait()
    await house.dismiss(actor)

    ((status, error),) = told
    assert (status, "boom" in error) == (("failed", True) if fails else ("completed", False))
    assert house.row(task).status == status


async def test_an_end_that_comes_after_the_time_was_called_over_is_told_as_timed_out(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent(deadline=10)
    async def host() -> str:
        await asyncio.sleep(9)
        return "fine"

    told: list[str] = []
    actor = await house.hire(
        host, on_event=lambda what, facts: told.append(facts["status"]) if what == "ended" else None
    )
    task = await house.client.start(host)
    await house.until_status(task, "running")
    (attempt,) = actor.worker.attempts.values()
    write = attempt.journal.write

    async def write_slowly(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation is ends.complete:
            await asyncio.sleep(30)  # Others hold the lock, and one of them sees that its time is over.
        return await write(operation, *args, **kwargs)

    monkeypatch.setattr(attempt.journal, "write", write_slowly)
    await house.hire()
    await house.until_status(task, "timed_out")
    await asyncio.sleep(60)

    assert told == ["timed_out"]


@pytest.mark.parametrize("is_background", [True, False])
async def test_a_result_within_the_grace_time_counts_unless_a_child_is_still_waited_for(
    house: Theatre, is_background: bool
) -> None:
    left: list[asyncio.Task[None]] = []

    @perdure.agent
    async def child(seconds: float) -> None:
        await perdure.sleep(seconds)

    @perdure.agent(deadline=60)
    async def host() -> str:
        await perdure.gather(*(child.options(key=str(number))(0.1) for number in range(200)))
        left.append(asyncio.ensure_future(child.options(background=is_background)(1000)))
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            return "half of it"
        return "never"

    await house.hire(host, child)
    task = await house.client.start(host)
    found = await house.until_status(task, "completed", "timed_out")

    assert found.status == ("completed" if is_background else "timed_out")


@pytest.mark.parametrize("settings", [Settings(sweep_s=0.5, poll_ms=500, payload_limit_bytes=1024)])
async def test_a_result_above_the_limit_does_not_count_within_the_grace_time_either(house: Theatre) -> None:
    @perdure.agent(deadline=60)
    async def host() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            return "x" * 2000
        return "never"

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()


async def test_an_agent_that_will_not_end_is_timed_out_after_the_grace_time(house: Theatre) -> None:
    ended = asyncio.Event()

    @perdure.agent(deadline=60)
    async def host() -> str:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()
    finished = house.loop.time()
    ended.set()
    await asyncio.sleep(10)

    assert 65 <= finished < 70
    assert house.row(task).status == "timed_out"


async def test_a_waiting_task_meets_its_deadline(house: Theatre) -> None:
    @perdure.agent(deadline=60)
    async def host() -> None:
        await perdure.receive("never")

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert house.loop.time() < 70


async def test_a_deadline_that_passed_while_nobody_worked_beats_recovery(house: Theatre) -> None:
    @perdure.agent(deadline=60)
    async def host() -> None:
        await asyncio.sleep(1e6)

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    house.kill(first)
    await asyncio.sleep(100)
    await house.hire(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert len(house.attempts(task)) == 1


async def test_a_childs_deadline_is_not_later_than_its_parents(house: Theatre) -> None:
    @perdure.agent(deadline=1000)
    async def child() -> None:
        await perdure.receive("never")

    @perdure.agent(deadline=60)
    async def host() -> None:
        await child()

    await house.hire(host, child)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert {one.status for one in house.children(task)} <= {"timed_out", "cancelled"}


async def test_a_cancellation_reaches_a_running_agent_long_before_its_heartbeat(house: Theatre) -> None:
    told: list[float] = []

    @perdure.agent
    async def host() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            told.append(house.loop.time())

    await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    before = house.loop.time()
    assert await task.cancel("enough")
    await house.until(lambda: told)

    assert told[0] - before < 1 < house.settings.heartbeat_s
    assert house.outcome(task) == ("cancelled", "Cancelled")
    assert not await task.cancel("again")


async def test_a_cancellation_takes_all_descendants_along_and_their_late_results_change_nothing(
    house: Theatre,
) -> None:
    left: list[str] = []

    @perdure.tool
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            left.append("ran on")
        return "a late result"

    @perdure.agent
    async def grandchild() -> str:
        return await stubborn()

    @perdure.agent
    async def child() -> str:
        return await grandchild()

    @perdure.agent
    async def host() -> str:
        return await child()

    await house.hire(host, child, grandchild)
    task = await house.client.start(host)
    await house.until(lambda: len(house.every_task()) == 3 and house.row(house.every_task()[0].id).step_count > 1)
    await task.cancel("enough")
    with pytest.raises(perdure.TaskCancelled):
        await task.result()
    await house.until(lambda: left)
    await asyncio.sleep(30)

    assert {one.status for one in house.every_task()} == {"cancelled"}
    assert await house.client.questions() == []


async def test_after_a_cancellation_every_call_raises_again_whatever_the_agent_does(house: Theatre) -> None:
    made: list[str] = []
    swallowed: list[int] = []

    @perdure.tool(risk="low")
    async def look() -> None:
        made.append("look")

    @perdure.agent
    async def host() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            for _ in range(3):
                try:
                    await look()
                except asyncio.CancelledError:
                    swallowed.append(1)

    await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    await task.cancel()
    await house.until(lambda: len(swallowed) == 3)

    assert made == []
    assert house.row(task).status == "cancelled"
