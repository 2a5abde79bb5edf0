"""How long an agent is held that is called otherwise than on record: not beyond what it is held for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.runtime import drift
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre


async def test_a_record_that_is_come_to_while_it_is_looked_into_lets_the_call_run(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[int, float] = {}
    is_looking = asyncio.Event()
    look = drift._look_into

    async def look_slowly(*args: Any) -> Any:
        found = await look(*args)
        is_looking.set()
        await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(drift, "_look_into", look_slowly)

    @perdure.agent
    async def cashier(at: int) -> int:
        begun[at] = house.loop.time()
        ledger.reached.set()
        await perdure.sleep(500)
        return at

    @perdure.agent
    async def clerk() -> list[int]:
        if len(house.actors) == 1:
            return [await cashier(1)]

        async def late() -> int:
            await is_looking.wait()
            return await cashier(1)

        return list(await asyncio.gather(cashier(2), late()))

    first = await house.hire(clerk, cashier)
    task = await house.client.start(clerk)
    await kill_inside(house, first, ledger)
    await house.hire(clerk, cashier)

    assert await task.result() == [2, 1]
    assert begun[2] - begun[1] < 60


async def test_beside_a_child_that_waits_for_what_perhaps_never_comes_a_person_is_asked(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.agent
    async def cashier(at: int) -> int:
        ledger.reached.set()
        return at if at == 2 else int(await perdure.receive("never"))

    @perdure.agent
    async def clerk() -> int:
        return await cashier(len(house.actors))

    first = await house.hire(clerk, cashier)
    task = await house.client.start(clerk)
    await kill_inside(house, first, ledger)
    await house.hire(clerk, cashier)
    question = await house.question()
    await question.approve(by="ana")
    await house.until(lambda: len(house.children(task)) == 2)
    await house.client.task(house.children(task)[0].id).cancel()  # Nobody will send it anything.

    assert "lies unused: cashier(at=1)" in question.text
    assert await task.result() == 2


@pytest.mark.parametrize("fallback", ["a tool", "an agent"])
async def test_what_led_to_a_payment_is_not_run_anew(house: Theatre, ledger: Ledger, fallback: str) -> None:
    is_down = True

    @perdure.tool
    async def pay() -> str:
        ledger.note("pay")
        return "paid"

    @perdure.agent
    async def cashier() -> str:
        return await pay()

    @perdure.tool(risk="low", retries=0)
    async def gateway() -> None:
        if is_down:
            raise ConnectionError("down")

    @perdure.tool
    async def charge() -> str:
        ledger.note("charge")
        return "charged"

    @perdure.tool
    async def settle() -> str:
        try:
            await gateway()
        except ConnectionError:
            found = await (pay() if fallback == "a tool" else cashier())
        else:
            found = await charge()
        if len(house.actors) == 1:
            ledger.reached.set()
            await asyncio.sleep(1e6)
        return found

    @perdure.agent
    async def clerk() -> str:
        return await settle()

    first = await house.hire(clerk, cashier)
    task = await house.client.start(clerk)
    await kill_inside(house, first, ledger)
    is_down = False
    await house.hire(clerk, cashier)
    await (await house.question()).resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "paid"
    assert ledger.done == ["pay"]
