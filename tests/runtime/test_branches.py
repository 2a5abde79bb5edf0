"""Branches that race each other: what tells their calls apart, when nothing that is recorded does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
import perdure.sync as psync
from tests.held_calls import Ledger
from tests.theatre import Theatre


class Account:
    """Something that no record can hold."""

    def __init__(self, ledger: Ledger, owner: str) -> None:
        self._ledger, self._owner = ledger, owner

    def pay(self, amount: int) -> str:
        """Pay into it."""
        return pay(self._ledger, self._owner, amount)


def pay(ledger: Ledger, owner: str, amount: int) -> str:
    """A payment, as the world sees it."""
    ledger.note(f"{owner} {amount}")
    return f"paid {owner}"


async def killed_after_the_first(
    house: Theatre, ledger: Ledger, finish: Callable[[str], Any], *, owners: tuple[str, ...] = ("ben", "ana")
) -> perdure.TaskHandle[list[Any]]:
    """Two branches that look something up and finish; the second one is faster, and only it gets there at first."""

    @perdure.tool(risk="low")
    async def search(owner: str) -> str:
        await asyncio.sleep(2 if owner == owners[0] else 1)
        return owner

    async def branch(owner: str) -> Any:
        await search(owner)
        if len(house.actors) == 1 and owner == owners[0]:
            await asyncio.sleep(1e6)
        return await finish(owner)

    @perdure.agent
    async def host() -> list[Any]:
        return list(await asyncio.gather(*(branch(owner) for owner in owners)))

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: ledger.done)
    await asyncio.sleep(3)
    house.kill(first)
    await house.hire(host)
    return task


@pytest.mark.parametrize("form", ["lambda", "partial"])
async def test_calls_without_input_are_told_apart_by_what_their_branches_had_called_before(
    house: Theatre, ledger: Ledger, form: str
) -> None:
    async def finish(owner: str) -> str:
        fn = functools.partial(pay, ledger, owner, 5) if form == "partial" else lambda: pay(ledger, owner, 5)
        return await perdure.read("pay", fn)

    task = await killed_after_the_first(house, ledger, finish)

    assert await task.result() == ["paid ben", "paid ana"]
    assert ledger.done == ["ana 5", "ben 5"]


@pytest.mark.parametrize("value", [perdure.uuid, perdure.now, perdure.random])
async def test_a_branch_gets_its_own_values_again(house: Theatre, ledger: Ledger, value: Callable[[], Any]) -> None:
    @perdure.tool(risk="high")
    async def book(owner: str, token: str) -> str:
        ledger.note(owner)
        return f"{owner} {token}"

    async def finish(owner: str) -> bool:
        token = await value()
        again = await value()
        said = await book(owner, str(token if value is not perdure.random else token.random()))
        return said.startswith(owner) and again is not None

    task = await killed_after_the_first(house, ledger, finish)

    assert await task.result() == [True, True]
    assert ledger.done == ["ana", "ben"]
    assert house.kinds(task).count("question_opened") == 0


@pytest.mark.parametrize("value", [perdure.uuid, perdure.now])
async def test_the_agents_own_values_are_not_those_of_a_branch_that_has_called_nothing(
    house: Theatre, ledger: Ledger, value: Callable[[], Any]
) -> None:
    @perdure.tool(risk="high")
    async def book(owner: str, token: str) -> str:
        ledger.note(owner)
        return owner

    async def booked(owner: str, wait_s: float) -> str:
        await asyncio.sleep(wait_s)
        return await book(owner, str(await value()))

    @perdure.agent
    async def host() -> list[str]:
        is_first = len(house.actors) == 1
        beside = asyncio.create_task(booked("ben", 1 if is_first else 9))
        own = await booked("ana", 2 if is_first else 0)
        if is_first:
            await asyncio.sleep(1e6)
        return [own, await beside]

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: len(ledger.done) == 2)
    await asyncio.sleep(1)
    house.kill(first)
    await house.hire(host)

    assert await task.result() == ["ana", "ben"]
    assert ledger.done == ["ben", "ana"]
    assert house.kinds(task).count("question_opened") == 0


async def test_a_branch_gets_its_own_values_again_after_a_read_that_was_tried_twice(
    house: Theatre, ledger: Ledger
) -> None:
    reads: list[int] = []

    async def read() -> int:
        reads.append(1)
        await asyncio.sleep(10 if len(reads) == 1 else 0)
        return 1

    @perdure.tool(risk="high")
    async def book(token: str) -> str:
        ledger.note(token)
        return token

    async def branch() -> str:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await perdure.read("stock", read)
                    break
        booked = await book(str(await perdure.uuid()))
        if len(house.actors) == 1:
            await asyncio.sleep(1e6)
        return booked

    @perdure.agent
    async def host() -> list[str]:
        return list(await asyncio.gather(branch()))

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: ledger.done)
    await asyncio.sleep(1)
    house.kill(first)
    await house.hire(host)

    assert await task.result() == ledger.done
    assert house.kinds(task).count("question_opened") == 0


WAYS = ["bound", "lambda", "partial", "opaque", "within", "secret", "key", "same key", "closure", "nested", "default"]


def pays_by(differs: str, ledger: Ledger) -> Callable[[str], Awaitable[str]]:
    """Pays somebody, which is not to be seen in what is recorded of the call."""

    @perdure.tool(risk="high", secret=["card"])
    async def charge(card: str, amount: int) -> str:
        return pay(ledger, card, amount)

    @perdure.tool(risk="high")
    async def pay_into(account: object, amount: int) -> str:
        found = account[0] if isinstance(account, list) else account
        return found.pay(amount) if isinstance(found, Account) else pay(ledger, str(found), amount)

    def nested(owner: str) -> Any:
        @perdure.tool(risk="high")
        async def pay_to_owner(amount: int) -> str:
            return pay(ledger, owner, amount)

        return pay_to_owner

    async def finish(owner: str) -> str:
        match differs:
            case "bound":
                return await perdure.step("pay", Account(ledger, owner).pay, 5)
            case "lambda":
                return await perdure.step("pay", lambda: pay(ledger, owner, 5))
            case "partial":
                return await perdure.step("pay", functools.partial(pay, ledger, owner, 5))
            case "opaque":
                return await pay_into(Account(ledger, owner), 5)
            case "within":
                return await pay_into([Account(ledger, owner)], 5)
            case "secret":
                return await charge(owner, 5)
            case "same key":
                return await charge.options(key=f"of {owner}")(owner, 5)  # As it is stored, the key is the same.
            case "closure":
                return await perdure.step("pay", lambda amount: pay(ledger, owner, amount), 5)
            case "default":

                def pay_to(amount: int, to: str = owner) -> str:
                    return pay(ledger, to, amount)

                return await perdure.step("pay", pay_to, 5)
            case "nested":
                return await nested(owner)(5)
            case _:
                return await pay_into.options(key="pay")(owner, 5)

    return finish


TOLD = "AmbiguousStep: .* give each call what distinguishes it as an argument, or a key"


@pytest.mark.parametrize("how", ["plain", "wait_for", "main", "as_completed"])
@pytest.mark.parametrize("differs", WAYS)
async def test_dangerous_calls_of_branches_that_look_alike_and_are_not_the_same_are_refused(
    house: Theatre, ledger: Ledger, differs: str, how: str
) -> None:
    finish = pays_by(differs, ledger)

    @perdure.tool(risk="low")
    async def search(owner: str) -> str:
        await asyncio.sleep(5 if owner == "ben" else 1)
        return owner

    async def branch(owner: str) -> str:
        await (asyncio.wait_for(search(owner), 9) if how == "wait_for" else search(owner))
        return await finish(owner)

    @perdure.agent(retries=0)
    async def host() -> None:
        match how:
            case "main":
                beside = asyncio.create_task(branch("ben"))
                await search("ana")
                await finish("ana")
                await beside
            case "as_completed":
                for first in asyncio.as_completed([search("ben"), search("ana")]):
                    await finish(await first)
            case _:
                await asyncio.gather(branch("ben"), branch("ana"))

    with pytest.raises(perdure.TaskFailed, match=TOLD):
        await house.play(host)
    assert ledger.done == ["ana 5"]


@pytest.mark.parametrize("differs", WAYS)
async def test_so_are_those_of_threads(house: Theatre, ledger: Ledger, differs: str) -> None:
    finish = pays_by(differs, ledger)

    @perdure.agent(retries=0)
    async def host() -> None:
        await finish("ana")
        await asyncio.to_thread(psync.call, look)
        await finish("ben")

    @perdure.tool(risk="low")
    async def look() -> int:
        return 1

    with pytest.raises(perdure.TaskFailed, match=TOLD):
        await house.play(host)
    assert ledger.done == ["ana 5"]


async def test_branches_may_call_the_same_alike(house: Theatre, ledger: Ledger) -> None:
    shared = Account(ledger, "ana")

    @perdure.tool(risk="high")
    async def pay_into(account: Account, amount: int) -> str:
        return account.pay(amount)

    @perdure.tool(risk="low")
    async def wait(wait_s: float) -> None:
        await asyncio.sleep(wait_s)

    async def branch(wait_s: float) -> list[str]:
        await wait(wait_s)
        return [
            await pay_into(shared, 5),
            await perdure.step("pay", shared.pay, 5),
            await perdure.step("pay partly", functools.partial(shared.pay, 5)),
            await perdure.step("pay then", lambda: shared.pay(5)),
        ]

    @perdure.agent
    async def host() -> list[Any]:
        return list(await asyncio.gather(branch(0), branch(5)))

    assert await house.play(host) == [["paid ana"] * 4, ["paid ana"] * 4]


async def test_harmless_calls_with_other_secrets_are_told_apart_too(house: Theatre) -> None:
    @perdure.tool(risk="low", secret=["token"])
    async def balance(token: str, currency: str) -> str:
        return f"100 {currency}"

    @perdure.agent(retries=0)
    async def host() -> list[str]:
        return list(await asyncio.gather(balance("of ana", "EUR"), balance("of ben", "EUR")))

    with pytest.raises(perdure.TaskFailed, match=TOLD):
        await house.play(host)


async def test_two_lists_are_not_taken_for_one_and_the_same_function_is(house: Theatre, ledger: Ledger) -> None:
    done: list[str] = []

    @perdure.tool(risk="high")
    async def note(what: str) -> int:
        done.append(what)  # Closed over, by one function for all branches.
        return len(done)

    async def closed_over(owner: str) -> None:
        order = {"to": owner}

        async def charge(amount: int) -> None:
            ledger.note(f"{order} {amount}")

        await perdure.step("pay", charge, 5)

    @perdure.agent(retries=0)
    async def host() -> None:
        assert sorted(await asyncio.gather(note("same"), note("same"))) == [1, 2]
        for owner in ("ana", "ben"):  # One after the other: what the first had may be where the second one's is.
            await asyncio.create_task(closed_over(owner))

    with pytest.raises(perdure.TaskFailed, match=TOLD):
        await house.play(host)
    assert len(ledger.done) == 1


async def test_a_text_that_tells_calls_apart_is_not_kept(house: Theatre) -> None:
    async def upload(name: str, text: str) -> int:
        return await perdure.step("upload", lambda name: len(text), name)

    @perdure.agent
    async def host() -> int:
        text = "x" * 1000
        before = sys.getrefcount(text)
        for number in range(5):
            await upload(f"page {number}", text)
        gc.collect()
        return sys.getrefcount(text) - before

    assert await house.play(host) == 0


async def test_what_tells_calls_apart_is_kept_no_longer_than_they_need_it(house: Theatre) -> None:
    class Big:
        pass

    alive: list[weakref.ref[Big]] = []

    @perdure.tool(risk="high")
    async def send(client: Big, number: int) -> int:
        return number

    @perdure.agent
    async def host() -> int:
        async def sent(number: int) -> None:
            client = Big()
            alive.append(weakref.ref(client))
            await send(client, number)

        for number in range(5):
            await sent(number)
        gc.collect()
        return sum(one() is not None for one in alive)

    assert await house.play(host) == 0


async def test_one_call_after_the_other_needs_no_key_whatever_it_hides(house: Theatre, ledger: Ledger) -> None:
    @perdure.agent
    async def host() -> list[str]:
        async def branch() -> list[str]:
            return [await perdure.step("pay", Account(ledger, owner).pay, 5) for owner in ("ana", "ben")]

        (paid,) = await asyncio.gather(branch())
        return paid

    assert await house.play(host) == ["paid ana", "paid ben"]


async def test_the_tries_of_a_call_find_what_their_branches_had_made(house: Theatre, ledger: Ledger) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low")
    async def search(owner: str, wait_s: float) -> str:
        await asyncio.sleep(wait_s)
        return owner

    @perdure.tool(risk="low", retries=2)
    async def order() -> list[str]:
        tries.append(1)

        async def branch(owner: str) -> str:
            await search(owner, {"ana": 1, "ben": 2}[owner])
            if owner == "ben" and len(tries) == 1:
                raise ConnectionError("reset")
            return await perdure.read("pay", lambda: pay(ledger, owner, 5))

        return list(await perdure.gather(branch("ben"), branch("ana")))

    @perdure.agent
    async def host() -> list[str]:
        return await order()

    assert await house.play(host) == ["paid ben", "paid ana"]
    assert ledger.done == ["ana 5", "ben 5"]


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_order_that_another_worker_of_a_queue_had_paid_is_asked_about(
    house: Theatre, ledger: Ledger, is_done: bool
) -> None:
    orders: list[str] = []

    @perdure.tool(risk="high")
    async def settle(order: str) -> str:
        ledger.note(order)
        if not is_done:
            await asyncio.sleep(1e6)
        return order

    @perdure.tool(risk="low")
    async def work(n: int) -> list[str]:
        await asyncio.sleep(5 if n == (len(house.actors) == 1) else 0)  # Another one is first after the kill.
        done = []
        while orders:
            done.append(await settle(orders.pop()))
            await asyncio.sleep(1e6)
        return done

    @perdure.agent
    async def host() -> list[Any]:
        orders[:] = ["o-1"]
        return list(await perdure.gather(work(0), work(1)))

    first = await house.hire(host)
    await house.client.start(host)
    await house.until(lambda: ledger.done)
    await asyncio.sleep(1)
    house.kill(first)
    await house.hire(host)

    assert "lies unused: settle(order=" in (await house.question()).text
    assert ledger.done == ["o-1"]
