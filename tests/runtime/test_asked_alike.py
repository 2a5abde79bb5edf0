"""Questions that say the same: nothing would tell a replay whose answer is whose, so no two are open at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
import perdure.sync as psync
from perdure.errors import AmbiguousStep, Expired
from tests.theatre import Theatre


async def answered_as_they_come(house: Theatre, answer: str, *, times: int) -> None:
    """Give so many answers, each to the question that is open then."""
    for _ in range(times):
        await (await house.question()).answer(answer, by="ana")


async def in_gather(ask: Callable[[str], Awaitable[str]]) -> list[Any]:
    return list(await perdure.gather(ask("ana"), ask("ben"), return_exceptions=True))


async def in_a_group(ask: Callable[[str], Awaitable[str]]) -> list[Any]:
    async def branch(owner: str) -> Any:
        try:
            return await ask(owner)
        except AmbiguousStep as refused:
            return refused

    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(branch(owner)) for owner in ("ana", "ben")]
    return [one.result() for one in branches]


BRANCHES = [in_gather, in_a_group]


@pytest.mark.parametrize("branches", BRANCHES)
@pytest.mark.parametrize("second", [{}, {"type": bool}, {"expires": 50}])
async def test_a_question_that_says_the_same_as_one_that_is_open_is_refused(
    house: Theatre, branches: Callable[..., Awaitable[list[Any]]], second: dict[str, Any]
) -> None:
    async def release(owner: str) -> str:
        return str(await perdure.ask("release the payment?", to="desk", **({} if owner == "ana" else second)))

    @perdure.agent
    async def shop() -> list[str]:
        return [str(one) for one in await branches(release)]

    await house.hire(shop)
    task = await house.client.start(shop)
    await answered_as_they_come(house, "yes", times=1)

    answer, refused = await task.result(timeout=600)
    assert answer == "yes"
    assert "'release the payment?'" in refused
    assert "into the text" in refused


async def test_the_error_fails_the_task_and_not_by_another_try(house: Theatre) -> None:
    @perdure.agent
    async def shop() -> list[str]:
        return list(await perdure.gather(perdure.ask("release?"), perdure.ask("release?")))

    await house.hire(shop)
    task = await house.client.start(shop)
    await answered_as_they_come(house, "yes", times=1)

    with pytest.raises(perdure.TaskFailed, match="AmbiguousStep"):
        await task.result(timeout=600)
    assert house.row(task).attempt == 1


async def test_so_is_that_of_another_thread(house: Theatre) -> None:
    def release() -> str:
        try:
            return psync.ask("release the payment?")
        except AmbiguousStep:
            return "refused"

    @perdure.agent
    async def shop() -> list[str]:
        return list(await perdure.gather(asyncio.to_thread(release), asyncio.to_thread(release)))

    await house.hire(shop)
    task = await house.client.start(shop)
    await answered_as_they_come(house, "yes", times=1)

    assert sorted(await task.result(timeout=600)) == ["refused", "yes"]


@pytest.mark.parametrize("differs", ["text", "to", "the call around"])
async def test_questions_that_differ_in_what_is_recorded_may_be_open_at_once(house: Theatre, differs: str) -> None:
    @perdure.tool(risk="low")
    async def release(owner: str) -> str:
        return await perdure.ask("release the payment?")

    async def ask(owner: str) -> str:
        match differs:
            case "text":
                return await perdure.ask(f"release the payment of {owner}?")
            case "to":
                return await perdure.ask("release the payment?", to=owner)
            case _:
                return await release(owner)

    @perdure.agent
    async def shop() -> list[str]:
        return list(await perdure.gather(ask("ana"), ask("ben")))

    await house.hire(shop)
    task = await house.client.start(shop)
    await answered_as_they_come(house, "yes", times=2)

    assert await task.result(timeout=600) == ["yes", "yes"]


async def test_one_after_the_other_may_say_the_same_also_after_a_restart(house: Theatre) -> None:
    @perdure.agent
    async def shop() -> list[str]:
        return [await perdure.ask("go on?") for _ in range(3)]

    first = await house.hire(shop)
    task = await house.client.start(shop)
    await answered_as_they_come(house, "one", times=1)
    await house.until(lambda: len(house.steps(task)) == 1)
    await house.question()
    house.kill(first)
    await house.hire(shop)
    await answered_as_they_come(house, "two", times=1)
    await house.until(lambda: len(house.steps(task)) == 2)
    await answered_as_they_come(house, "three", times=1)

    assert await task.result(timeout=600) == ["one", "two", "three"]


async def test_a_branch_that_is_tried_again_asks_again(house: Theatre) -> None:
    async def patiently() -> str:
        while True:
            try:
                async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                    asked = group.create_task(perdure.ask("release the payment?", expires=3600))
                return asked.result()
            except TimeoutError:
                await perdure.sleep(1)

    @perdure.agent
    async def shop() -> str:
        return await patiently()

    await house.hire(shop)
    task = await house.client.start(shop)
    await asyncio.sleep(20)
    await answered_as_they_come(house, "yes", times=1)

    assert await task.result(timeout=600) == "yes"


async def test_a_tool_that_is_tried_again_finds_the_question_that_it_had_asked(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", timeout=5, retries=3)
    async def release() -> str:
        tries.append(1)
        return await perdure.ask("release the payment?")

    @perdure.agent
    async def shop() -> str:
        return await release()

    await house.hire(shop)
    task = await house.client.start(shop)
    await house.until(lambda: len(tries) == 2)
    await answered_as_they_come(house, "yes", times=1)

    assert await task.result(timeout=600) == "yes"


async def test_after_one_that_nobody_answered_it_may_be_asked_again(house: Theatre) -> None:
    @perdure.agent
    async def shop() -> str:
        try:
            return await perdure.ask("release the payment?", expires=10)
        except Expired:
            return await perdure.ask("release the payment?")

    await house.hire(shop)
    task = await house.client.start(shop)
    await asyncio.sleep(30)
    await answered_as_they_come(house, "yes", times=1)

    assert await task.result(timeout=600) == "yes"


async def test_several_branches_may_receive_under_one_name(house: Theatre) -> None:
    @perdure.agent
    async def shop() -> list[Any]:
        return sorted(await perdure.gather(perdure.receive("order"), perdure.receive("order")))

    await house.hire(shop)
    task = await house.client.start(shop)
    for n in (1, 2):
        await house.client.send(task.id, "order", n)

    assert await task.result(timeout=600) == [1, 2]


async def test_a_question_that_its_branch_had_given_up_does_not_stop_another_after_a_restart(house: Theatre) -> None:
    @perdure.agent
    async def shop() -> list[Any]:
        async def given_up() -> str:
            try:
                return await asyncio.wait_for(perdure.ask("is it open?"), 0.5)
            except TimeoutError:
                await perdure.sleep(30)
                return "not told"

        async def later() -> str:
            await perdure.sleep(1)  # Takes no time once it is on record.
            return await perdure.ask("is it open?")

        return list(await asyncio.gather(given_up(), later()))

    first = await house.hire(shop)
    task = await house.client.start(shop)
    await asyncio.sleep(2)
    house.kill(first)
    await house.hire(shop)
    await answered_as_they_come(house, "yes", times=2)

    assert "yes" in await task.result(timeout=600)
