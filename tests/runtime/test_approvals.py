"""Calls that a person allows first: asked once, bound to the arguments, and refused in two different ways."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import perdure
from perdure.store import effects
from tests.theatre import Theatre


def refunds(done: list[tuple[str, int]]) -> perdure.AnyTool:
    @perdure.tool(approve=lambda order, amount: amount > 100, to="finance")
    async def refund(order: str, amount: int) -> str:
        done.append((order, amount))
        return f"r-{order}"

    return refund


async def test_a_call_is_asked_about_only_where_its_arguments_want_it(house: Theatre) -> None:
    done: list[tuple[str, int]] = []
    refund = refunds(done)

    @perdure.agent
    async def host() -> list[str]:
        return [await refund("o-1", 50), await refund("o-2", 500)]

    await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    done_before = list(done)
    await asked.approve(by="ana")

    assert (asked.kind, asked.row.to, asked.args) == ("call", "finance", {"order": "o-2", "amount": 500})
    assert done_before == [("o-1", 50)]
    assert await task.result() == ["r-o-1", "r-o-2"]
    assert house.row(task).status == "completed"


async def test_who_approves_sees_the_values_of_what_runs(house: Theatre) -> None:
    @dataclass
    class Pay:
        amount: Decimal
        to: str
        token: str

    @perdure.tool(approve=True, secret=["pin"])
    async def pay(p: Pay, pin: str) -> str:
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay(Pay(Decimal(1_000_000), "mallory", "s3cret-pin"), "s3cret-pin")

    await house.hire(host)
    await house.client.start(host)
    asked = await house.question()

    shown = 'may pay(p=Pay(amount=1000000, to="mallory", token="[secret]")) run?'
    assert asked.text == shown


async def test_a_no_is_denied_with_who_and_why_and_nothing_runs(house: Theatre) -> None:
    done: list[tuple[str, int]] = []
    refund = refunds(done)

    @perdure.agent
    async def host() -> str:
        try:
            return await refund("o-1", 500)
        except perdure.Denied as no:
            return f"{no.by}: {no.reason}"

    await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).deny("too much", by="ana")

    assert await task.result() == "ana: too much"
    assert done == []


async def test_nobody_in_time_is_expired_and_not_denied(house: Theatre) -> None:
    done: list[tuple[str, int]] = []
    refund = refunds(done)

    @perdure.agent
    async def host() -> str:
        try:
            return await refund("o-1", 500)
        except perdure.Denied:
            return "denied"
        except perdure.Expired:
            return "expired"

    await house.hire(host)

    assert await house.run(host) == "expired"
    assert done == []
    assert house.loop.time() >= house.settings.question_expiry_s


@pytest.mark.parametrize("end", ["deny", "expire"])
async def test_a_refusal_that_nobody_catches_fails_the_task_without_another_try(house: Theatre, end: str) -> None:
    refund = refunds([])

    @perdure.agent
    async def host() -> str:
        return await refund("o-1", 500)

    await house.hire(host)
    task = await house.client.start(host)
    if end == "deny":
        await (await house.question()).deny("no", by="ana")
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert house.row(task).failures == 0
    assert len(house.attempts(task)) == 1


async def test_a_refusal_is_the_same_on_replay(house: Theatre) -> None:
    refund, reached = refunds([]), asyncio.Event()

    @perdure.tool(risk="low")
    async def wait_here() -> None:
        reached.set()
        if len(house.actors) == 1:
            await asyncio.sleep(1e6)

    @perdure.agent
    async def host() -> str:
        try:
            return await refund("o-1", 500)
        except perdure.Denied as no:
            await wait_here()
            return f"{no.by}: {no.reason}"

    first = await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).deny("too much", by="ana")
    await reached.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "ana: too much"
    assert len(await house.client.questions()) == 0


async def test_a_yes_survives_a_crash_before_the_call_and_is_spent_by_it(house: Theatre) -> None:
    done: list[tuple[str, int]] = []
    refund = refunds(done)

    @perdure.agent
    async def host() -> str:
        return await refund("o-1", 500)

    first = await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    house.kill(first)
    await asked.approve(by="ana")
    await house.hire(host)

    assert await task.result() == "r-o-1"
    assert done == [("o-1", 500)]
    assert (await house.client.question(asked.id)).row.spent_at is not None
    assert house.kinds(task).count("question_opened") == 1


async def test_a_yes_is_bound_to_the_arguments_it_was_given_for(house: Theatre) -> None:
    done: list[tuple[str, int]] = []
    refund, amount = refunds(done), 500

    @perdure.agent
    async def host() -> str:
        return str(await refund.options(key="the refund")("o-1", amount))

    first = await house.hire(host)
    task = await house.client.start(host)
    small = await house.question()
    house.kill(first)
    await small.approve(by="ana")
    amount = 500_000  # The code, or a model, has changed its mind since.
    await house.hire(host)
    large = await house.question()
    assert done == []
    await large.deny("no", by="ana")

    assert large.id != small.id
    assert large.args == {"order": "o-1", "amount": 500_000}
    with pytest.raises(perdure.TaskFailed):
        await task.result()
    assert done == []


async def test_an_open_question_about_other_arguments_is_taken_back(house: Theatre) -> None:
    refund, amount = refunds([]), 500

    @perdure.agent
    async def host() -> str:
        return str(await refund.options(key="the refund")("o-1", amount))

    first = await house.hire(host)
    task = await house.client.start(host)
    small = await house.question()
    house.kill(first)
    amount = 700
    await house.hire(host)
    await house.until(lambda: house.row(task).attempt == 2 and house.row(task).status == "waiting")
    large = await house.question()
    await large.approve(by="ana")

    assert large.args["amount"] == 700
    assert (await house.client.question(small.id)).status == "cancelled"
    assert await task.result() == "r-o-1"


async def test_a_critical_call_is_always_asked_about_first(house: Theatre) -> None:
    done: list[str] = []

    @perdure.tool(risk="critical")
    async def launch(what: str) -> str:
        done.append(what)
        return what

    @perdure.agent
    async def host() -> str:
        return await launch("rocket")

    await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    done_before = list(done)
    await asked.approve(by="ana")

    assert await task.result() == "rocket"
    assert (asked.kind, done_before, done) == ("call", [], ["rocket"])


async def test_risk_may_depend_on_the_arguments(house: Theatre) -> None:
    @perdure.tool(risk=lambda amount: "critical" if amount > 100 else "low")
    async def pay(amount: int) -> int:
        return amount

    @perdure.agent
    async def host() -> list[int]:
        return [await pay(1), await pay(1000)]

    await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).approve(by="ana")

    assert await task.result() == [1, 1000]
    assert [one.risk for one in house.steps(task)] == ["low", "critical"]
    assert house.row(task).risk_seen == "critical"


@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_a_yes_allows_one_try_of_the_task_and_the_next_one_asks_again(house: Theatre, risk: Any) -> None:
    done: list[int] = []

    @perdure.tool(risk=risk, idempotent=True, approve=True, retries=1)
    async def look(x: int) -> int:
        done.append(x)
        if len(done) < 4:
            raise ConnectionError("reset")
        return x

    @perdure.agent
    async def host() -> int:
        return await look(7)

    await house.hire(host)
    task = await house.client.start(host)
    first = await house.question()
    await first.approve(by="ana")
    second = await house.question()
    done_before = list(done)
    await second.approve(by="ben")

    assert await task.result() == 7
    assert first.id != second.id
    assert done_before == [7, 7]  # The call's own retry is still the call that was allowed.
    spent = [(await house.client.question(one.id)).row.spent_at for one in (first, second)]
    assert None not in spent


async def test_a_try_that_ran_stays_among_the_effects_when_the_next_one_is_denied(house: Theatre) -> None:
    @perdure.tool(risk="medium", idempotent=True, approve=True, retries=0)
    async def pay() -> None:
        raise ConnectionError("reset after the money had left")

    @perdure.agent
    async def host() -> None:
        await pay()

    await house.hire(host)
    task = await house.client.start(host)
    first = await house.question()
    await first.approve(by="ana")
    await house.until(lambda: house.row(task).failures == 1)
    second = await house.question()
    await second.deny("once is enough", by="ana")

    with pytest.raises(perdure.TaskFailed, match="once is enough"):
        await task.result()
    assert second.id != first.id
    assert [one.try_number for one in house.steps(task, "pay")] == [0, 1]
    assert [one.step.try_number for one in house.store.read(effects.listing)] == [0]
