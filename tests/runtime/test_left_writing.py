"""What is still being written when its caller is cancelled: nobody looks what became of it before it is on record.

Another process may hold the file's lock meanwhile, so that a write takes seconds and reads take no time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.store import steps
from perdure.store.database import Unit, Waiter
from perdure.testing.actor import Actor
from tests.held_calls import Ledger
from tests.theatre import Theatre

LATE_S = 2.0


@pytest.fixture
def writes_late(house: Theatre, monkeypatch: pytest.MonkeyPatch) -> Callable[[Actor], None]:
    """From here on each write of a worker begins seconds after it was wanted."""

    def slow_down(actor: Actor) -> None:
        write = actor.line.write

        def write_late(unit: Unit[Any], waiter: Waiter) -> None:
            house.loop.call_later(LATE_S, write, unit, waiter)

        monkeypatch.setattr(actor.line, "write", write_late)

    return slow_down


@pytest.mark.parametrize("when", ["intent", "outcome"])
async def test_a_dangerous_call_cancelled_while_it_is_written_is_known_before_the_task_ends(
    house: Theatre, ledger: Ledger, writes_late: Callable[[Actor], None], when: str
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        if when == "outcome":
            writes_late(actor)
        return n

    @perdure.agent
    async def host() -> str:
        if when == "intent":
            writes_late(actor)
        try:
            async with asyncio.timeout(1):
                await pay(1)
        except TimeoutError:
            return "gave up"
        return "paid"

    actor = await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "gave up"
    assert ledger.done == ([] if when == "intent" else ["pay"])
    (made,) = house.steps(task, "pay")
    assert made.outcome == ("failed" if when == "intent" else "completed")
    assert [one.status for one in house.attempts(task)] == ["completed"]


async def test_a_child_cancelled_while_it_is_admitted_is_waited_for(
    house: Theatre, writes_late: Callable[[Actor], None]
) -> None:
    @perdure.agent
    async def kid() -> str:
        return "done"

    @perdure.agent
    async def host() -> str:
        writes_late(actor)
        try:
            async with asyncio.timeout(1):
                await kid()
        except TimeoutError:
            return "gave up"
        return "had it"

    actor = await house.hire(host, kid)
    task = await house.client.start(host)

    assert await task.result() == "gave up"
    assert [one.status for one in house.children(task)] == ["completed"]
    assert [one.status for one in house.attempts(task)] == ["completed"]


async def test_an_answer_used_up_by_a_call_that_is_cancelled_then_is_not_asked_for_again(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine: list[asyncio.Task[int]] = []
    inside = asyncio.Event()

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        inside.set()
        await asyncio.sleep(1e6)
        return n

    @perdure.agent
    async def host() -> int:
        mine.append(asyncio.create_task(pay(1)))
        try:
            return await mine[-1]
        except asyncio.CancelledError:
            return -1

    first = await house.hire(host)
    task = await house.client.start(host)
    await inside.wait()
    house.kill(first)
    await house.hire(host)
    begin_again = steps.begin_again

    def begin_and_be_cancelled(*args: Any, **kwargs: Any) -> None:
        begin_again(*args, **kwargs)
        mine[-1].cancel()  # While the write is under way.

    monkeypatch.setattr(steps, "begin_again", begin_and_be_cancelled)
    await (await house.question()).resolve(perdure.not_happened(), by="ann")

    assert await task.result() == -1
    assert ledger.done == ["pay"]
    assert [one.outcome for one in house.steps(task, "pay")] == ["failed"]
    assert house.kinds(task).count("question_opened") == 1


@pytest.mark.parametrize("how", ["select", "timeout", "twice"])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_receive_cancelled_while_it_takes_its_mail_gives_it_back(
    house: Theatre, writes_late: Callable[[Actor], None], how: str, is_killed: bool
) -> None:
    told: list[str] = []

    @perdure.agent
    async def host() -> list[Any]:
        first = len(house.actors) == 1
        taking = asyncio.create_task(perdure.receive("mail"))
        # The mail has come, and is being taken now.
        await asyncio.sleep(10 if first else 0)
        if how == "timeout":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await taking
        else:
            taking.cancel()
            if how == "twice":
                await asyncio.sleep(0.1 if first else 0)
                taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking
        assert taking.cancelled()
        got = await perdure.receive("mail")
        told.append(got)
        if is_killed and first:
            await asyncio.sleep(1e6)
        return [got]

    actor = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    writes_late(actor)
    await asyncio.sleep(9)
    await house.client.send(task.id, "mail", "hello")
    if is_killed:
        await house.until(lambda: told)
        house.kill(actor)
        await house.hire(host)

    assert await task.result() == ["hello"]
    assert house.wrong() == []
