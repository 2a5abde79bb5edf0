"""A call that its caller gives a key: which calls that names, and what is asked about one made with other arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.errors import AmbiguousStep
from tests.held_calls import Ledger
from tests.theatre import Theatre


async def test_a_key_of_two_open_calls_names_no_third_while_one_of_them_is_open(house: Theatre) -> None:
    both, may_end = asyncio.Event(), asyncio.Event()
    made: list[str] = []

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        made.append("look")
        if len(made) == 1:
            await both.wait()
        else:
            both.set()
            await may_end.wait()
        return n

    @perdure.agent
    async def host() -> str:
        async def branch() -> int:
            await asyncio.ensure_future(look.options(key="k")(1))
            return await asyncio.ensure_future(look.options(key="k")(2))

        beside = asyncio.create_task(branch())
        await asyncio.sleep(0)
        other = asyncio.create_task(look.options(key="k")(1))
        try:
            await beside
        except AmbiguousStep as refused:
            return str(refused)
        finally:
            may_end.set()
            await other
        return "taken"

    assert "names another call that is still open" in await house.play(host)
    assert made == ["look", "look"]


async def test_a_key_names_calls_of_one_tool(house: Theatre) -> None:
    @perdure.tool
    async def look() -> str:
        return "seen"

    @perdure.tool
    async def act() -> int:
        return 1

    @perdure.agent
    async def host() -> str:
        await look.options(key="k")()
        try:
            await act.options(key="k")()
        except AmbiguousStep as refused:
            return str(refused)
        return "taken"

    assert "key 'k' names a call of " in await house.play(host)


@pytest.mark.parametrize("asks", ["reconcile", "a person"])
async def test_a_call_in_doubt_is_asked_about_as_it_was_made_whatever_its_key_is_called_with_by_now(
    house: Theatre, ledger: Ledger, asks: str
) -> None:
    asked: list[Any] = []

    def find(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        asked.append(doubt.args["amount"])
        return perdure.happened("paid 10")

    @perdure.tool(risk="high", reconcile=find if asks == "reconcile" else None)
    async def pay(amount: int) -> str:
        ledger.note(f"pay {amount}")
        await asyncio.sleep(1e6)
        return f"paid {amount}"

    @perdure.agent
    async def host() -> str:
        return await pay.options(key="rent")(10 if len(house.actors) == 1 else 12)  # The price has changed since.

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: ledger.done)
    house.kill(first)
    await house.hire(host)
    if asks == "a person":
        question = await house.question()
        asked.append(question.args["amount"])
        await question.resolve(perdure.happened("paid 10"), by="ann")

    assert await task.result() == "paid 10"
    assert (asked, ledger.done) == ([10], ["pay 10"])
