"""What goes on beside a checkpoint: found again, taken for known, or asked about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from tests.theatre import Theatre


@pytest.mark.parametrize("saver", ["a branch", "the agent"])
async def test_what_a_branch_that_goes_on_has_called_is_found_again(house: Theatre, saver: str) -> None:
    paid: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    async def rounds(first: int) -> None:
        for number in range(first, 6):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)

    async def other() -> list[str]:
        receipts = [await pay("rent"), await pay("rent")]
        await asyncio.sleep(3.5)  # More to do with the receipts.
        return receipts

    @perdure.agent
    async def host() -> list[str]:
        first: int = await perdure.last_checkpoint() or 0
        if saver == "a branch":
            _, receipts = await asyncio.gather(rounds(first), other())
            return receipts
        beside = asyncio.create_task(other())
        await rounds(first)
        return await beside

    task = await house.client.start(host)
    await house.crash_at(task, 2, 3, agents=[host])  # The second time after what the first restart has found again.

    assert await task.result() == ["paid rent", "paid rent"]
    assert paid == ["rent", "rent"]
    assert house.kinds(task).count("question_opened") == 0


@pytest.mark.parametrize("payer", ["a branch", "the agent", "inside a tool"])
async def test_a_call_equal_to_one_of_which_the_state_may_not_tell_is_asked_about(house: Theatre, payer: str) -> None:
    paid: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    @perdure.tool(risk="low")
    async def order(what: str) -> str:
        return await pay(what)

    async def saving() -> None:
        first: int = await perdure.last_checkpoint() or 0
        for number in range(first, 6):
            await asyncio.gather(pay("a stamp"), asyncio.sleep(1))  # Of these the state tells.
            await perdure.checkpoint(number + 1)

    async def paying() -> str:
        await asyncio.sleep(0.5)
        return await (order("rent") if payer == "inside a tool" else pay("rent"))

    @perdure.agent
    async def host() -> list[Any]:
        if payer == "the agent":
            beside = asyncio.create_task(saving())
            paid_by_itself = await paying()
            await beside
            return [paid_by_itself, None]
        return list(await asyncio.gather(paying(), saving()))

    task = await house.client.start(host)
    await house.crash_at(task, 3, agents=[host])
    question = await house.question()
    assert 'may pay(what="rent") run? It equals step' in question.text
    assert paid.count("rent") == 1
    await question.approve(by="ana")

    assert await task.result() == ["paid rent", None]
    assert sorted(paid) == [*["a stamp"] * 6, "rent", "rent"]
    assert house.kinds(task).count("question_opened") == 1


async def test_a_no_to_such_a_call_does_not_let_the_next_one_run(house: Theatre) -> None:
    paid: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    async def saving() -> None:
        for number in range(await perdure.last_checkpoint() or 0, 6):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)

    async def paying() -> str:
        await asyncio.sleep(0.5)
        try:
            return await pay("rent")
        except perdure.Denied:
            return await pay("rent")  # A model tries what it was denied once more.

    @perdure.agent
    async def host() -> str:
        receipt, _ = await asyncio.gather(paying(), saving())
        return receipt

    task = await house.client.start(host)
    await house.crash_at(task, 2, agents=[host])
    first = await house.question()
    await first.deny("that is paid", by="ana")
    again = await house.until_asked(lambda one: one.id != first.id)
    assert paid == ["rent"]
    await again.approve(by="ana")

    assert await task.result() == "paid rent"
    assert paid == ["rent", "rent"]


@pytest.mark.parametrize("fan_out", ["gather", "in a branch"])
async def test_rounds_that_call_the_same_in_branches_are_not_asked_about(house: Theatre, fan_out: str) -> None:
    paid: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return what

    @perdure.agent
    async def host() -> None:
        async def rounds() -> None:
            for number in range(await perdure.last_checkpoint() or 0, 4):
                await asyncio.gather(pay("a"), pay("b"), asyncio.sleep(1))
                await perdure.checkpoint(number + 1)

        await (rounds() if fan_out == "gather" else asyncio.gather(rounds()))

    task = await house.client.start(host)
    await house.crash_at(task, 1, 3, agents=[host])

    await task.result()
    assert sorted(paid) == ["a"] * 4 + ["b"] * 4
    assert house.kinds(task).count("question_opened") == 0


async def test_branches_that_save_one_state_are_asked_about_nothing_that_a_later_save_covers(house: Theatre) -> None:
    told: list[str] = []

    @perdure.tool
    async def tell(text: str) -> None:
        told.append(text)

    @perdure.agent
    async def host() -> None:
        state: dict[str, int] = await perdure.last_checkpoint() or {"a": 0, "b": 0}

        async def branch(name: str, round_s: float) -> None:
            while state[name] < 8:
                await tell(f"{name} is alive")
                await asyncio.sleep(0.2)
                state[name] += 1
                await perdure.checkpoint(state)
                await asyncio.sleep(round_s)

        await asyncio.gather(branch("a", 1), branch("b", 1.3))

    task = await house.client.start(host)
    await house.crash_at(task, 3, 6, 9, agents=[host], after_s=0.5)

    await task.result()
    assert sorted(told) == ["a is alive"] * 8 + ["b is alive"] * 8
    assert house.kinds(task).count("question_opened") == 0


async def test_harmless_calls_of_a_branch_that_goes_on_are_found_again_too(house: Theatre) -> None:
    written: list[int] = []
    sent: list[str] = []

    @perdure.tool
    async def send(text: str) -> str:
        sent.append(text)
        return text

    async def write() -> str:
        written.append(1)
        return f"draft {len(written)}"

    @perdure.agent
    async def host() -> list[Any]:
        async def writing() -> str:
            text = await send(await perdure.model(write))
            await asyncio.sleep(5)
            return text

        beside = asyncio.create_task(writing())
        for number in range(await perdure.last_checkpoint() or 0, 3):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)
        return [await beside]

    task = await house.client.start(host)
    await house.crash_at(task, 2, agents=[host])

    assert await task.result() == ["draft 1"]
    assert sent == ["draft 1"]
    assert written == [1]


async def test_a_call_recorded_after_a_checkpoint_is_found_again_after_the_next_restart_too(house: Theatre) -> None:
    paid: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    @perdure.agent
    async def host() -> str:
        run = len(house.actors)
        first: int = await perdure.last_checkpoint() or 0

        async def other() -> str:
            await asyncio.sleep(3 if run == 2 else 0.5)  # The second run saves before it comes to the call.
            return await pay("rent")

        beside = asyncio.create_task(other())
        await asyncio.sleep(1 if first else 0)
        await perdure.checkpoint(first + 1)
        if run < 3:
            await asyncio.sleep(1e6)
        return await beside

    task = await house.client.start(host)
    await house.crash_at(task, 1, 2, agents=[host], after_s=1)

    assert await task.result() == "paid rent"
    assert paid == ["rent"]


async def test_a_second_look_at_the_checkpoint_makes_no_call_an_open_one(house: Theatre) -> None:
    made: list[int] = []

    @perdure.tool(risk="low")
    async def fetch(url: str) -> int:
        made.append(len(made) + 1)
        await asyncio.sleep(10)
        return made[-1]

    @perdure.agent
    async def host() -> list[int]:
        seen: list[int] | None = await perdure.last_checkpoint()
        if seen is None:
            seen, held = [], asyncio.create_task(fetch("u"))
            await asyncio.sleep(1)
            await perdure.checkpoint(seen)
            await held
            await asyncio.sleep(1e6)
        if not seen:
            seen = [await fetch("u")]
            await perdure.last_checkpoint()
            await perdure.checkpoint(seen)
            await asyncio.sleep(1e6)
        return [*seen, await fetch("u")]

    task = await house.client.start(host)
    await house.crash_at(task, 1, 2, agents=[host], after_s=60)

    assert await task.result() == [1, 2]
