"""How a task ended is told to whoever listens to its worker, however long the write of its end takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.runtime.attempt import Stop
from perdure.store.database import Unit, Waiter
from tests.theatre import Theatre


@pytest.mark.parametrize("late_s", [0.01, 3])
@pytest.mark.parametrize("reason", [Stop.LOST, Stop.RELEASE, Stop.INTERRUPT, Stop.DEADLINE])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_end_is_told_though_the_attempt_is_stopped_while_it_is_written(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, reason: Stop, fails: bool, late_s: float
) -> None:
    @perdure.agent(retries=0)
    async def host() -> str:
        await asyncio.sleep(1)
        if fails:
            raise ValueError("boom")
        return "done"

    told: list[tuple[str, str]] = []
    actor = await house.hire(host, on_event=lambda what, facts: told.append((what, facts.get("status", ""))))
    task = await house.client.start(host)
    await house.until_status(task, "running")
    (attempt,) = actor.worker.attempts.values()
    write = attempt.journal.write

    async def write_and_be_looked_at(*args: Any, **kwargs: Any) -> None:
        await write(*args, **kwargs)
        attempt.stop(reason)  # As the look at what is owned says when it comes before the writer's own news.
        await asyncio.sleep(late_s)

    monkeypatch.setattr(attempt.journal, "write", write_and_be_looked_at)
    status = "failed" if fails else "completed"
    await house.until_status(task, status)
    await house.dismiss(actor)

    assert told == [("started", ""), ("ended", status)]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("tasks_at_once", [1, 2])
async def test_an_end_is_told_once_though_the_disk_takes_seconds_to_make_it_durable(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, tasks_at_once: int, stops: bool
) -> None:
    @perdure.agent(retries=0)
    async def host() -> None:
        await ended.wait()

    ended = asyncio.Event()
    told: list[tuple[str, str]] = []
    actor = await house.hire(host, on_event=lambda what, facts: told.append((what, facts["task"])))
    handles = await house.client.start_all(host.bind() for _ in range(tasks_at_once))
    await house.until(lambda: len(actor.worker.attempts) == tasks_at_once)
    write = actor.line.write

    def write_slowly(unit: Unit[Any], waiter: Waiter) -> None:
        write(unit, _AnsweredLate(waiter, house.loop))  # All others see at once what is written.

    monkeypatch.setattr(actor.line, "write", write_slowly)
    ended.set()
    await house.until(lambda: all(house.row(one).status == "completed" for one in handles))
    began = house.loop.time()
    attempts = list(actor.worker.attempts.values())
    if stops:
        actor.worker.stop()
    await asyncio.gather(*(one.done.wait() for one in attempts))

    assert house.loop.time() - began < 2
    assert house.wrong() == []
    await house.dismiss(actor)
    assert [one for what, one in told if what == "ended"] == [one.id for one in handles]


async def test_an_end_that_cannot_be_written_does_not_keep_a_stopped_attempt(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> None:
        await asyncio.sleep(1)

    actor = await house.hire(host)
    await house.until_status(await house.client.start(host), "running")
    (attempt,) = actor.worker.attempts.values()
    writing = asyncio.Event()

    async def write(*_: Any, **__: Any) -> None:
        writing.set()
        await asyncio.sleep(1000)

    monkeypatch.setattr(attempt.journal, "write", write)
    await writing.wait()
    before = house.loop.time()
    attempt.stop(Stop.LOST)
    await attempt.done.wait()

    assert house.loop.time() - before < 5


class _AnsweredLate:
    """Who waits for a write, and hears of it seconds after everybody else."""

    def __init__(self, waiter: Waiter, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = waiter.loop
        self._waiter = waiter
        self._later = loop

    def deliver(self, result: Any, error: BaseException | None) -> None:
        self._later.call_later(3, self._waiter.deliver, result, error)
