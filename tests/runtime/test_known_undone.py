"""A call that did not happen and that no code waits for any more: it is made should the code come to it after all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import phrases
from perdure.definitions import Startable
from perdure.settings import Settings
from perdure.store import aio, questions, steps
from tests.held_calls import Ledger
from tests.theatre import Theatre

FORGETFUL = Settings(sweep_s=0.5, poll_ms=500, drift_settle_ms=50, question_expiry_s=120, waiting_in_memory=0)


class Shop:
    """An agent that does not wait long for its payments, and what was really paid."""

    def __init__(self, ledger: Ledger, *, key: str | None = None, **options: Any) -> None:
        self.patience_s = 2.0
        self.is_quick = False  # whether a payment takes no time

        @perdure.tool(risk="high", **options)
        async def pay(order: int) -> str:
            ledger.note(f"pay {order}")
            if not self.is_quick:
                await asyncio.sleep(60)
            return f"receipt {order}"

        async def buy(order: int) -> str:
            try:
                async with asyncio.timeout(self.patience_s):
                    return await (pay(order) if key is None else pay.options(key=f"{key} {order}")(order))
            except TimeoutError:
                return "impatient"

        @perdure.agent
        async def shop() -> tuple[str, str]:
            return await perdure.gather(buy(1), buy(2))

        self.agent: Startable[[], tuple[str, str]] = shop


async def say(house: Theatre, order: int, verdict: Any) -> None:
    """Settle what is asked about the payment of an order."""
    asked = await house.until_asked(lambda one: one.kind == "step_in_doubt" and one.args["order"] == order)
    await asked.resolve(verdict, by="ana")


@pytest.mark.parametrize("settings", [FORGETFUL])
async def test_what_did_not_happen_is_made_by_the_attempt_after_the_task_was_set_aside(
    house: Theatre, ledger: Ledger
) -> None:
    shop = Shop(ledger)
    await house.hire(shop.agent)
    task = await house.client.start(shop.agent)
    await say(house, 1, perdure.not_happened())
    await house.until(lambda: [one.status for one in house.attempts(task)] == ["suspended"])
    shop.is_quick = True

    await say(house, 2, perdure.happened("receipt 2"))

    assert await task.result() == ("receipt 1", "receipt 2")
    assert ledger.done == ["pay 1", "pay 2", "pay 1"]
    assert ledger.tokens[0] == ledger.tokens[2]


@pytest.mark.parametrize("key", [None, "order"])
@pytest.mark.parametrize("finds_out", [False, True])
async def test_what_did_not_happen_is_made_by_the_attempt_after_a_crash_and_nobody_is_asked_again(
    house: Theatre, ledger: Ledger, finds_out: bool, key: str | None
) -> None:
    looked: list[Any] = []

    async def reconcile(doubt: perdure.Doubt) -> Any:
        looked.append(doubt.args["order"])
        return perdure.not_happened() if doubt.args["order"] == 1 else perdure.unknown()

    shop = Shop(ledger, key=key, **({"reconcile": reconcile} if finds_out else {}))
    first = await house.hire(shop.agent)
    task = await house.client.start(shop.agent)
    if not finds_out:
        await say(house, 1, perdure.not_happened())
    await house.until(lambda: [one.is_undone for one in house.steps(task, "pay")] == [True, False])
    house.kill(first)
    shop.is_quick = True
    await house.hire(shop.agent)

    await say(house, 2, perdure.happened("receipt 2"))

    assert await task.result() == ("receipt 1", "receipt 2")
    assert ledger.done == ["pay 1", "pay 2", "pay 1"]
    assert sorted(looked) == ([1, 2] if finds_out else [])
    assert len(house.store.read(questions.of_task, task.id)) == (1 if finds_out else 2)


async def test_a_second_crash_inside_what_is_made_again_asks_again(house: Theatre, ledger: Ledger) -> None:
    shop = Shop(ledger)
    first = await house.hire(shop.agent)
    task = await house.client.start(shop.agent)
    await say(house, 1, perdure.not_happened())
    await house.until(lambda: [one.is_undone for one in house.steps(task, "pay")] == [True, False])
    house.kill(first)
    shop.patience_s = 1000
    second = await house.hire(shop.agent)
    await house.until(lambda: ledger.done.count("pay 1") == 2)
    house.kill(second)
    await house.hire(shop.agent)

    await say(house, 1, perdure.happened("receipt 1"))
    await say(house, 2, perdure.happened("receipt 2"))

    assert await task.result() == ("receipt 1", "receipt 2")
    assert ledger.done == ["pay 1", "pay 2", "pay 1"]


async def test_what_did_not_happen_has_that_as_its_outcome_once_the_task_completes(
    house: Theatre, ledger: Ledger
) -> None:
    shop = Shop(ledger)
    await house.hire(shop.agent)
    task = await house.client.start(shop.agent)
    await say(house, 1, perdure.not_happened())
    await house.until(lambda: house.steps(task, "pay")[0].is_undone)

    known = [phrases.outcome(one) for one in house.steps(task, "pay")]
    await say(house, 2, perdure.happened("receipt 2"))

    assert known == ["did not happen", "in doubt"]
    assert await task.result() == ("impatient", "impatient")
    assert [(one.outcome, phrases.outcome(one)) for one in house.steps(task, "pay")] == [
        ("failed", "did not happen"),
        ("completed", "completed"),
    ]
    assert ledger.done == ["pay 1", "pay 2"]


async def test_a_call_that_was_never_made_is_made_by_a_later_attempt_that_comes_to_it(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, is_slow = aio.submit, True

    def tell_late(store: Any, operation: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        done = submit(store, operation, *args, **kwargs)
        is_late = is_slow and operation is steps.begin and args[1].name == "book"
        return asyncio.ensure_future(late(done)) if is_late else done

    async def late(done: asyncio.Future[Any]) -> Any:
        written = await done
        await asyncio.sleep(5)
        return written

    @perdure.tool
    async def book() -> str:
        ledger.note("book")
        return "booked"

    @perdure.tool
    async def pay() -> str:
        ledger.note("pay")
        await asyncio.sleep(60)
        return "paid"

    async def impatiently(call: Any) -> str:
        try:
            async with asyncio.timeout(1):
                return str(await call)
        except TimeoutError:
            return "impatient"

    @perdure.agent
    async def shop() -> list[str]:
        return [await impatiently(book()), await impatiently(pay())]

    monkeypatch.setattr(aio, "submit", tell_late)
    first = await house.hire(shop)
    task = await house.client.start(shop)
    doubt = await house.question()
    await house.until(lambda: house.steps(task, "book")[0].is_undone)
    house.kill(first)
    is_slow = False
    await house.hire(shop)
    await doubt.resolve(perdure.happened("paid"), by="ana")

    assert await task.result() == ["booked", "paid"]
    assert ledger.done == ["pay", "book"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_what_was_made_inside_a_call_that_did_not_happen_is_found_out_about_by_itself(
    house: Theatre, ledger: Ledger, crashes: bool
) -> None:
    is_slow = True

    @perdure.tool
    async def pay() -> str:
        ledger.note("pay")
        if is_slow:
            await asyncio.sleep(60)
        return "paid"

    @perdure.tool
    async def order() -> str:
        ledger.note("order")
        return await pay()

    @perdure.agent
    async def shop() -> str:
        try:
            async with asyncio.timeout(2):
                return await order()
        except TimeoutError:
            return "impatient"

    first = await house.hire(shop)
    task = await house.client.start(shop)
    outer = await house.question()
    await outer.resolve(perdure.not_happened(), by="ana")
    inner = await house.until_asked(lambda one: one.id != outer.id)
    if crashes:
        house.kill(first)
        is_slow = False
        await house.hire(shop)
    await inner.resolve(perdure.happened("paid"), by="ana")

    assert (outer.evidence["tool"], inner.evidence["tool"]) == ("order", "pay")
    assert await task.result() == ("paid" if crashes else "impatient")
    assert ledger.done == ["order", "pay", *(["order"] if crashes else [])]
    outcomes = [(one.name, one.outcome) for one in house.steps(task)]
    assert outcomes == [("order", "completed" if crashes else "failed"), ("pay", "completed")]
