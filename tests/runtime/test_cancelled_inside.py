"""Harmless calls that are cancelled: by whoever called them, or from inside, which is a failure like any other."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from tests.theatre import Theatre


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_harmless_call_that_is_cancelled_from_inside_is_tried_again(
    house: Theatre, timeout: float | None
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=2, timeout=timeout)
    async def look() -> int:
        tries.append(1)
        if len(tries) == 1:
            closed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            closed.cancel()  # as a client's session does that was closed
            return await closed
        return len(tries)

    @perdure.agent(retries=0)
    async def host() -> int:
        return await look()

    assert await house.play(host) == 2


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_harmless_call_that_stays_cancelled_from_inside_is_an_error_its_agent_can_catch(
    house: Theatre, timeout: float | None
) -> None:
    @perdure.tool(risk="low", retries=0, timeout=timeout)
    async def look() -> None:
        raise asyncio.CancelledError

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            await look()
        except Exception as error:  # noqa: BLE001  # What it is, is looked at below.
            return str(error)
        return ""

    assert await house.play(host) == "look was cancelled from inside"


@pytest.mark.parametrize("how", ["timeout", "group", "task"])
async def test_whoever_cancels_a_harmless_call_from_outside_has_it_cancelled_and_not_tried_again(
    house: Theatre, how: str
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=2)
    async def look() -> None:
        tries.append(1)
        await asyncio.sleep(1e6)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("bad")

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            if how == "timeout":
                async with asyncio.timeout(1):
                    await look()
            elif how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await look()
            else:
                looking = asyncio.ensure_future(look())
                await asyncio.sleep(1)
                looking.cancel()
                await looking
        except BaseException as error:  # noqa: BLE001  # What it is, is looked at below.
            return type(error).__name__
        return ""

    ends_by = {"timeout": "TimeoutError", "group": "ExceptionGroup", "task": "CancelledError"}
    assert await house.play(host) == ends_by[how]
    assert len(tries) == 1
