"""An agent that goes on from its last checkpoint: what it did before is done, and what it does next is new."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
import perdure.sync
from tests.theatre import Theatre


async def test_a_call_equal_to_one_before_the_checkpoint_is_made_anew(house: Theatre) -> None:
    sent: list[str] = []
    stop_after = [1, 2]

    @perdure.tool
    async def send(text: str) -> str:
        sent.append(text)
        return text

    @perdure.tool(risk="low")
    async def poll(url: str) -> int:  # Equal calls tell each other apart by their number alone.
        return len(sent)

    @perdure.agent
    async def host() -> list[int]:
        state: dict[str, Any] = await perdure.last_checkpoint() or {"i": 0, "seen": []}
        for i in range(state["i"], 4):
            await send("ping")
            state["seen"].append(await poll("u"))
            await perdure.message("assistant", "pinged")
            await perdure.event("round", {"of": "pings"})
            await perdure.checkpoint({"i": i + 1, "seen": state["seen"]})
            if stop_after and i == stop_after[0]:
                stop_after.pop(0)
                await asyncio.sleep(1e6)
        return list(state["seen"])

    task = await house.client.start(host)
    await house.crash_at(task, 2, 3, agents=[host])

    assert await task.result() == [1, 2, 3, 4]
    assert sent == ["ping"] * 4
    assert len(await task.messages()) == 4
    assert house.kinds(task).count("round") == 4


async def test_what_came_after_the_checkpoint_is_still_answered_by_its_record(house: Theatre) -> None:
    sent: list[str] = []

    @perdure.tool
    async def send(text: str) -> int:
        sent.append(text)
        return len(sent)

    @perdure.agent
    async def host() -> list[int]:
        done: list[int] = await perdure.last_checkpoint() or []
        if not done:
            done = [await send("ping")]
            await perdure.checkpoint(done)
        done = [*done, await send("ping")]
        if len(house.actors) < 3:
            await asyncio.sleep(1e6)
        return [*done, await send("ping")]

    task = await house.client.start(host)
    for _ in range(2):
        actor = await house.hire(host)
        await house.until(lambda: len(sent) == 2)
        await asyncio.sleep(1)
        house.kill(actor)
    await house.hire(host)

    assert await task.result() == [1, 2, 3]
    assert sent == ["ping"] * 3


async def test_a_state_equal_to_an_earlier_one_is_a_checkpoint_of_its_own(house: Theatre) -> None:
    begun: list[Any] = []

    @perdure.agent
    async def host() -> str:
        begun.append(await perdure.last_checkpoint())
        if len(begun) == 1:
            await perdure.checkpoint("A")
            await perdure.checkpoint("B")
            await asyncio.sleep(1e6)
        if len(begun) == 2:
            await perdure.checkpoint("A")
            await asyncio.sleep(1e6)
        return str(begun[-1])

    task = await house.client.start(host)
    await house.crash_at(task, 2, 3, agents=[host])

    assert await task.result() == "A"
    assert begun == [None, "B", "A"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("verb", ["checkpoint", "last_checkpoint"])
async def test_a_checkpoint_inside_a_tool_is_refused_before_anything_is_written(
    house: Theatre, verb: str, is_async: bool
) -> None:
    tries: list[str] = []
    arguments = [{"i": 1}] if verb == "checkpoint" else []

    @perdure.tool(risk="low", name="crawl")
    async def on_the_loop() -> None:
        tries.append(verb)
        await getattr(perdure, verb)(*arguments)

    @perdure.tool(risk="low", name="crawl")
    def in_a_thread() -> None:
        tries.append(verb)
        getattr(perdure.sync, verb)(*arguments)

    @perdure.agent
    async def host() -> str:
        await perdure.checkpoint("mine")
        with pytest.raises(perdure.BadInput, match=rf"^{verb} was called inside a tool.*in the agent's own code") as no:
            await perdure.call(on_the_loop if is_async else in_a_thread)
        return str(no.value)

    actor = await house.hire(host)
    task = await house.client.start(host)
    said = await task.result()
    await house.dismiss(actor)

    assert "the calls that it makes are recorded each on its own" in said
    assert tries == [verb]
    assert house.row(task).checkpoint == 1


# -- calls that are open at a checkpoint ------------------------------------------------------


@pytest.mark.parametrize("budget", [None, perdure.Budget(tool_calls=50)])
@pytest.mark.parametrize("kind", ["child", "tool", "tool in a tool"])
async def test_a_call_open_at_a_checkpoint_is_found_again_however_late_its_branch_comes_to_it(
    house: Theatre, kind: str, budget: perdure.Budget | None
) -> None:
    paid: list[str] = []
    kids: list[str] = []

    @perdure.tool
    async def pay(what: str) -> str:
        paid.append(what)
        return f"paid {what}"

    @perdure.agent
    async def kid() -> str:
        kids.append("kid")
        receipt = await pay("rent")
        await asyncio.sleep(30)
        return receipt

    @perdure.tool(risk="low")
    async def work(depth: int) -> str:
        if depth:
            return await work(depth - 1)
        receipt = await pay("rent")
        await asyncio.sleep(30)
        return receipt

    async def rounds(first: int) -> None:
        for number in range(first, 10):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)

    async def other(first: int) -> str:
        await asyncio.sleep(1.5 if first else 0)
        match kind:
            case "child":
                return await kid()
            case "tool":
                return await work(0)
            case _:
                return await work(1)

    @perdure.agent(budget=budget)
    async def host() -> list[str | None]:
        first: int = await perdure.last_checkpoint() or 0
        return list(await perdure.gather(rounds(first), other(first)))

    task = await house.client.start(host)
    # The second time before the other branch has made its call again.
    await house.crash_at(task, 3, 4, agents=[host, kid])

    assert await task.result() == [None, "paid rent"]
    assert paid == ["rent"]
    assert len(house.children(task)) == (kind == "child")


async def test_of_equal_calls_only_the_one_that_was_open_is_found_again(house: Theatre) -> None:
    runs: list[int] = []

    @perdure.tool
    async def act(what: str) -> int:
        number = len(runs)
        runs.append(number)
        if number == 0:
            await asyncio.sleep(1e6)
        return number

    @perdure.agent
    async def host() -> list[int]:
        done: list[int] = await perdure.last_checkpoint() or []
        held = asyncio.create_task(act("the same"))
        await asyncio.sleep(1)
        if not done:
            done = [await act("the same"), await act("the same")]
            await perdure.checkpoint(done)
            await act("the same")
            await asyncio.sleep(1e6)
        done.append(await act("the same"))
        return [await held, *done, await act("the same")]

    task = await house.client.start(host)
    actor = await house.hire(host)
    await house.until(lambda: len(runs) == 4)
    await asyncio.sleep(1)
    house.kill(actor)
    await house.hire(host)
    await (await house.question()).resolve(perdure.happened(100), by="ana")

    assert await task.result() == [100, 1, 2, 3, 4]
    assert len(runs) == 5


async def test_a_call_that_was_left_before_the_checkpoint_is_not_taken_for_a_later_one(house: Theatre) -> None:
    began: list[float] = []

    @perdure.agent
    async def host() -> str:
        if await perdure.last_checkpoint() is None:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await perdure.sleep(5)
            await perdure.checkpoint("waited")
            await asyncio.sleep(1e6)
        began.append(house.loop.time())
        await perdure.sleep(5)
        began.append(house.loop.time())
        return "done"

    task = await house.client.start(host)
    await house.crash_at(task, 1, agents=[host], after_s=60)

    assert await task.result() == "done"
    assert began[1] - began[0] == pytest.approx(5)
