"""Questions that nobody waits for any more: taken back while the attempt goes on, kept for the next one otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.store import questions
from tests.theatre import Theatre

NOBODY_WAITS = "whoever asked does not wait any more"


def became(house: Theatre, task: perdure.TaskHandle[Any]) -> list[tuple[str, str | None]]:
    """What became of each question of a task, the oldest first."""
    asked = house.store.read(questions.of_task, task.id)
    return [(one.status, one.reason) for one in reversed(asked)]


@pytest.mark.parametrize("left", ["by its agent", "by a sibling", "by a timeout around it", "in a thread"])
@pytest.mark.parametrize("kind", ["call", "ask"])
async def test_a_question_whose_call_was_left_is_taken_back_and_asked_anew(
    house: Theatre, kind: str, left: str
) -> None:
    paid: list[int] = []

    @perdure.tool(risk="critical")
    async def pay() -> str:
        paid.append(1)
        return "paid"

    async def asks() -> str:
        return await (pay() if kind == "call" else perdure.ask("May I?"))

    @perdure.tool(risk="low", timeout=5, retries=0)
    async def hurried() -> str:
        return await asks()

    @perdure.tool(risk="low", timeout=5, retries=0)
    async def out_of_reach() -> str:
        return await asyncio.shield(asyncio.ensure_future(asks()))  # As in a thread, which nobody can cancel.

    async def fails() -> None:
        await asyncio.sleep(5)
        raise TimeoutError

    async def is_left() -> None:
        if left == "by its agent":
            async with asyncio.timeout(5):
                await asks()
        elif left == "by a timeout around it":
            await hurried()
        elif left == "in a thread":
            await out_of_reach()
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(asks())
                group.create_task(fails())

    @perdure.agent
    async def host() -> str:
        try:
            await is_left()
        except* TimeoutError:
            pass
        await perdure.receive("mail")
        return await asks()

    await house.hire(host)
    task = await house.client.start(host)
    await house.question()
    await house.until_status(task, "waiting")
    await asyncio.sleep(10)
    then = became(house, task), await house.client.questions()
    await house.client.send(task.id, "mail", "hi")
    again = await house.question()
    await (again.approve(by="ana") if kind == "call" else again.answer("paid", by="ana"))

    assert then == ([("cancelled", NOBODY_WAITS)], [])
    assert await task.result() == "paid"
    assert len(paid) == (kind == "call")


@pytest.mark.parametrize("ends", ["killed", "stopped"])
@pytest.mark.parametrize("kind", ["call", "ask"])
async def test_a_question_stays_open_when_its_attempt_ends(house: Theatre, kind: str, ends: str) -> None:
    @perdure.tool(risk="critical")
    async def pay() -> str:
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await (pay() if kind == "call" else perdure.ask("May I?"))

    task = await house.client.start(host)
    actor = await house.hire(host)
    asked = await house.question()
    await (house.dismiss(actor) if ends == "stopped" else asyncio.sleep(0))
    if ends == "killed":
        house.kill(actor)
    still = became(house, task)
    await (asked.approve(by="ana") if kind == "call" else asked.answer("paid", by="ana"))
    await house.hire(host)

    assert still == [("open", None)]
    assert await task.result() == "paid"
    assert len(became(house, task)) == 1


async def test_a_question_about_a_call_in_doubt_stays_open_when_the_call_is_left(house: Theatre) -> None:
    @perdure.tool(timeout=1)
    async def act() -> str:
        await asyncio.sleep(1e6)
        return "late"

    @perdure.agent
    async def host() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await act()
        await perdure.sleep(60)
        return "done"

    await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    await asyncio.sleep(10)
    still = became(house, task)
    await doubt.resolve(perdure.happened("it did"), by="ana")

    assert still == [("open", None)]
    assert await task.result() == "done"
    assert [(one.outcome, one.name) for one in house.steps(task, "act")] == [("completed", "act")]


async def test_a_question_about_drift_is_taken_back_when_its_call_is_left(house: Theatre) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> str:
        try:
            async with asyncio.timeout(5):
                await act(len(house.actors))
        except TimeoutError:
            await perdure.sleep(60)
            return "done"
        await asyncio.sleep(1e6)
        return "never"

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: made and house.steps(task, "act")[0].outcome)
    house.kill(first)
    await house.hire(host)
    asked = await house.question()

    assert await task.result() == "done"
    assert asked.kind == "call"
    assert became(house, task) == [("cancelled", NOBODY_WAITS)]
    assert made == [1]
