"""Who saves a checkpoint, and what that one knows of: through a wrapper, in a thread, or cut off while it saves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import perdure
import perdure.sync as blocking
from perdure.errors import StoreBusy
from perdure.store import messages
from tests.theatre import Theatre

Save = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]

WRAPPERS: dict[str, Save] = {
    "awaited": lambda saving: saving,
    "wait_for": lambda saving: asyncio.wait_for(saving, 30),
    "shield": asyncio.shield,
    "create_task": asyncio.create_task,
    "gather": lambda saving: asyncio.gather(saving, asyncio.sleep(0)),
    "perdure.gather": perdure.gather,
}


class Shop:
    """A tool of either kind that pays, and what was paid."""

    def __init__(self) -> None:
        self.paid: list[str] = []

        @perdure.tool
        async def pay(what: str) -> str:
            self.paid.append(what)
            return f"{what} {len(self.paid)}"

        @perdure.tool
        def pay_in_thread(what: str) -> str:
            self.paid.append(what)
            return f"{what} {len(self.paid)}"

        self.pay, self.pay_in_thread = pay, pay_in_thread


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("is_gathered", [False, True])
@pytest.mark.parametrize("is_branch", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_who_saves_through_a_wrapper_knows_what_it_has_called(
    house: Theatre, shop: Shop, wrapper: str, is_branch: bool, is_gathered: bool
) -> None:
    @perdure.agent
    async def host() -> list[str]:
        receipts: list[str] = await perdure.last_checkpoint() or []

        async def rounds() -> None:
            await shop.pay("a deposit")
            while len(receipts) < 6:
                paid = shop.pay("rent")
                receipts.append((await asyncio.gather(paid))[0] if is_gathered else await paid)
                await WRAPPERS[wrapper](perdure.checkpoint(receipts))
                await asyncio.sleep(1)

        await (asyncio.gather(rounds()) if is_branch else rounds())
        return receipts

    task = await house.client.start(host)
    await house.crash_at(task, 3, agents=[host])

    receipts = await task.result()
    assert shop.paid.count("rent") == len({*receipts}) == 6
    assert house.kinds(task).count("question_opened") == 0


@pytest.mark.parametrize("wrapper", WRAPPERS)
async def test_a_branch_that_has_called_nothing_and_saves_through_a_wrapper_is_not_the_agent(
    house: Theatre, shop: Shop, wrapper: str
) -> None:
    @perdure.agent
    async def host() -> list[Any]:
        first: int = await perdure.last_checkpoint() or 0

        async def paying() -> str:
            await asyncio.sleep(0.5)
            return await shop.pay("rent")

        async def saving() -> None:
            for number in range(first, 4):
                await asyncio.sleep(1)
                await WRAPPERS[wrapper](perdure.checkpoint(number + 1))

        return list(await asyncio.gather(paying(), saving()))

    task = await house.client.start(host)
    await house.crash_at(task, 3, agents=[host])
    await (await house.question()).approve(by="ana")

    assert await task.result() == ["rent 2", None]


async def test_what_was_begun_by_a_branch_that_goes_on_is_not_known_to_whoever_began_that(
    house: Theatre, shop: Shop
) -> None:
    async def inner() -> str:
        await shop.pay("a deposit")
        return (await asyncio.gather(shop.pay("rent")))[0]

    async def middle() -> str:
        receipt = await inner()
        await asyncio.sleep(20)
        return receipt

    async def saving(first: int) -> str:
        await perdure.uuid()  # A branch is known once it has called something.
        beside = asyncio.create_task(middle())
        for number in range(first, 4):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)
        return await beside

    @perdure.agent
    async def host() -> str:
        return (await asyncio.gather(saving(await perdure.last_checkpoint() or 0)))[0]

    task = await house.client.start(host)
    await house.crash_at(task, 2, agents=[host])

    assert await task.result() == "rent 2"
    assert shop.paid == ["a deposit", "rent"]
    assert house.kinds(task).count("question_opened") == 0


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "perdure.gather"])
async def test_what_a_branch_that_saves_has_others_call_may_stand_in_the_state_that_it_shares(
    house: Theatre, shop: Shop, wrapper: str
) -> None:
    @perdure.agent
    async def host() -> dict[str, list[str]]:
        state: dict[str, list[str]] = await perdure.last_checkpoint() or {"a": [], "b": []}

        async def rounds(name: str, pause_s: float) -> None:
            while len(state[name]) < 3:
                await perdure.checkpoint(state)
                paid: Any = await WRAPPERS[wrapper](shop.pay(f"rent {name}"))
                state[name].append(paid[0] if wrapper == "gather" else paid)
                await asyncio.sleep(pause_s)

        await asyncio.gather(rounds("a", 1), rounds("b", 1.7))
        return state

    task = await house.client.start(host)
    await house.crash_at(task, 4, agents=[host])
    while not house.row(task).finished_at:
        await asyncio.sleep(1)
        for question in await house.client.questions():
            await question.approve(by="ana")

    receipts = await task.result()
    assert len({*receipts["a"]}) == len({*receipts["b"]}) == 3


@pytest.mark.parametrize("how", ["to_thread", "an executor", "a thread of a synchronous agent"])
async def test_what_a_thread_that_goes_on_has_called_is_asked_about(house: Theatre, shop: Shop, how: str) -> None:
    def beside() -> str:
        receipt = shop.pay_in_thread("rent")
        blocking.sleep(20)
        return receipt

    @perdure.agent(name="host")
    async def host() -> str:
        first: int = await perdure.last_checkpoint() or 0
        loop = asyncio.get_running_loop()
        in_executor = how == "an executor"
        going_on: asyncio.Future[str] = (
            loop.run_in_executor(None, perdure.carry(beside))
            if in_executor
            else asyncio.ensure_future(asyncio.to_thread(beside))
        )
        for number in range(first, 4):
            await perdure.sleep(1)
            await perdure.checkpoint(number + 1)
        return await going_on

    @blocking.agent(name="host")
    def synchronous() -> str:
        receipts: list[str] = []
        work = perdure.carry(lambda: receipts.append(beside()))
        first: int = blocking.last_checkpoint() or 0
        threading.Thread(target=_until_cancelled(work), daemon=True).start()
        for number in range(first, 4):
            blocking.sleep(1)
            blocking.checkpoint(number + 1)
        while not receipts:
            blocking.sleep(1)
        return receipts[0]

    agent: Any = synchronous if how.startswith("a thread") else host
    task = await house.client.start(agent)
    await house.crash_at(task, 2, agents=[agent])
    question = await house.question()
    assert "made beside whatever saved the last checkpoint" in question.text
    assert shop.paid == ["rent"]
    await question.approve(by="ana")

    assert await task.result() == "rent 2"
    assert house.kinds(task).count("question_opened") == 1


async def test_rounds_in_a_thread_that_saves_are_known_to_it(house: Theatre, shop: Shop) -> None:
    def rounds() -> list[str]:
        receipts: list[str] = blocking.last_checkpoint() or []
        while len(receipts) < 6:
            receipts.append(shop.pay_in_thread("rent"))
            blocking.checkpoint(receipts)
            blocking.sleep(1)
        return receipts

    @perdure.agent
    async def host() -> list[str]:
        return await asyncio.to_thread(rounds)

    task = await house.client.start(host)
    await house.crash_at(task, 3, agents=[host])

    assert await task.result() == [f"rent {number}" for number in range(1, 7)]
    assert house.kinds(task).count("question_opened") == 0


async def test_what_a_state_that_could_not_be_saved_was_to_tell_of_the_next_one_tells_of(
    house: Theatre, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> list[Any]:
        first: int = await perdure.last_checkpoint() or 0

        async def saving() -> None:
            await asyncio.sleep(0.5)
            if first == 0:
                line = house.actors[-1].line
                real = line.write
                monkeypatch.setattr(line, "write", _is_busy)  # Another process holds the lock.
                try:
                    async with asyncio.timeout(0.2):
                        await perdure.checkpoint("never")
                except TimeoutError:
                    monkeypatch.setattr(line, "write", real)
            for number in range(first, 4):
                await perdure.checkpoint(number + 1)
                await asyncio.sleep(1)

        async def paying() -> str:
            await asyncio.sleep(0.1)
            return await shop.pay("rent")

        return list(await asyncio.gather(paying(), saving()))

    task = await house.client.start(host)
    await house.crash_at(task, 2, agents=[host])
    await (await house.question()).approve(by="ana")

    assert await task.result() == ["rent 2", None]


async def test_a_state_tells_of_what_was_open_when_it_was_given_though_another_is_saved_first(
    house: Theatre, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.tool
    async def slow_pay(what: str) -> str:
        await asyncio.sleep(0.01)
        return await shop.pay(what)

    @perdure.agent
    async def host() -> str:
        paying = asyncio.create_task(slow_pay("rent"))
        await asyncio.sleep(0.005)
        if await perdure.last_checkpoint() is None:
            line = house.actors[-1].line
            real = line.write
            monkeypatch.setattr(line, "write", _is_busy)
            asyncio.get_running_loop().call_later(0.03, monkeypatch.setattr, line, "write", real)
            first = asyncio.create_task(_saving("of a branch"))
            await asyncio.sleep(0)
            await perdure.checkpoint("of the agent")
            await first
            await asyncio.sleep(5)
        return await paying

    task = await house.client.start(host)
    await house.crash_at(task, 2, agents=[host], after_s=1)

    assert await task.result() == "rent 1"
    point = house.store.read(messages.resume_point, task.id, 2)
    assert point is not None
    assert point.state == b'"of the agent"'


async def test_a_message_of_a_branch_that_goes_on_is_added_once(house: Theatre) -> None:
    @perdure.agent
    async def host() -> None:
        async def telling() -> None:
            await perdure.message("user", "hello")
            await asyncio.sleep(4.5)

        first: int = await perdure.last_checkpoint() or 0
        beside = asyncio.create_task(telling())
        for number in range(first, 4):
            await asyncio.sleep(1)
            await perdure.checkpoint(number + 1)
        await beside
        await perdure.checkpoint("told")
        await perdure.message("user", "hello")

    task = await house.client.start(host)
    await house.crash_at(task, 2, 3, agents=[host])

    await task.result()
    assert [one.content for one in house.store.read(messages.listing, task.id)] == ["hello", "hello"]


async def _saving(state: str) -> None:
    await perdure.checkpoint(state)


def _until_cancelled(work: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001  # The attempt around it is over.
            return

    return run


def _is_busy(_unit: object, waiter: Any) -> None:
    asyncio.get_running_loop().call_soon(waiter.deliver, None, StoreBusy("held by 7", holder_pid=7))
