"""What is between a claim and the first line of an agent: its records are read, and it may be stopped already."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.errors import StoreError
from perdure.runtime.attempt import Stop
from perdure.runtime.journal import Journal
from perdure.runtime.spending import Spending
from tests.theatre import Theatre


class Reading:
    """What attempts read first, held up or failing. In place of both such reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.failures = 0
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        real = getattr(owner, name)

        async def read(this: Any, *args: Any, **options: Any) -> None:
            self.begun.set()
            await self.go_on.wait()
            if self.failures:
                self.failures -= 1
                raise StoreError("the server has gone away")
            await real(this, *args, **options)

        monkeypatch.setattr(owner, name, read)


@pytest.fixture(params=[(Journal, "load"), (Spending, "look")], ids=["records", "budget"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """The first read of every attempt."""
    return Reading(monkeypatch, *request.param)


def _agent(ran: list[str], *, is_async: bool = True) -> Any:
    if is_async:

        @perdure.agent
        async def host() -> str:
            ran.append("ran")
            return "done"

        return host

    @perdure.agent(name="host")
    def blocking() -> str:
        ran.append("ran")
        return "done"

    return blocking


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("why", "status"),
    [
        (Stop.RELEASE, "pending"),
        (Stop.INTERRUPT, "interrupted"),
        (Stop.DEADLINE, "timed_out"),
        (Stop.LOST, "running"),
    ],
)
async def test_an_agent_that_was_stopped_before_it_began_does_not_begin(
    house: Theatre, reading: Reading, *, is_async: bool, why: Stop, status: str
) -> None:
    ran: list[str] = []
    host = _agent(ran, is_async=is_async)
    reading.go_on.clear()
    actor = await house.hire(host)
    task = await house.client.start(host)
    await reading.begun.wait()
    (attempt,) = actor.worker.attempts.values()
    actor.worker._is_stopping = True  # so that nobody claims it again before it is looked at

    attempt.stop(why)
    reading.go_on.set()
    await attempt.done.wait()

    assert ran == []
    assert house.row(task).status == status


async def test_a_worker_that_stops_hands_back_a_task_whose_agent_has_not_begun(
    house: Theatre, reading: Reading
) -> None:
    ran: list[str] = []
    host = _agent(ran, is_async=False)
    reading.go_on.clear()
    reading.failures = 1
    actor = await house.hire(host)
    task = await house.client.start(host)
    await reading.begun.wait()

    actor.worker.stop()
    house.loop.call_later(0.1, reading.go_on.set)

    assert (await actor.running).handed_back == 1
    assert ran == []
    assert (house.row(task).status, house.row(task).recoveries) == ("pending", 0)


async def test_a_store_that_was_away_while_an_attempt_began_costs_nothing(
    house: Theatre, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.failures = 3
    host = _agent([])
    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "done"
    assert (len(house.attempts(task)), house.row(task).recoveries) == (1, 0)
    assert f"task {task.id} could not be read; trying again in 0.1 s: the server has gone away" in caplog.text


async def test_a_task_that_cannot_be_read_is_let_go_and_recovered(
    house: Theatre, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.failures = 6
    host = _agent([])
    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "done"
    assert (len(house.attempts(task)), house.row(task).recoveries) == (2, 1)
    assert f"task {task.id} is let go, for the store failed: the server has gone away" in caplog.text
