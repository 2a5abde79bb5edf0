"""A call and the calls it makes: whose error it is, what is counted, what becomes of the one when the other ends."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Any, Literal

import pytest

import perdure
from perdure.store import questions
from perdure.testing.actor import Actor
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre


async def _restart(house: Theatre, first: Actor, ledger: Ledger, *agents: Any) -> None:
    await kill_inside(house, first, ledger)
    await house.hire(*agents)


# -- whose error it is ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
@pytest.mark.parametrize("timeout", [None, 300])
async def test_a_call_inside_that_was_cut_off_does_not_put_the_call_around_it_in_doubt(
    house: Theatre, ledger: Ledger, how: str, timeout: float | None
) -> None:
    @perdure.tool(risk="low", timeout=1, retries=0)
    async def look() -> None:
        if how == "cancelled":
            raise asyncio.CancelledError
        await asyncio.sleep(1e6)

    @perdure.tool(risk="high", timeout=timeout)
    async def pay() -> None:
        ledger.note("pay")
        await look()

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            await pay()
        except Exception as error:  # noqa: BLE001  # What it is, is looked at below.
            return str(error)
        return ""

    said = await house.play(host)

    assert ("look did not return within 1 s" if how == "timeout" else "look was cancelled from inside") in said
    assert ledger.done == ["pay"]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_reconcile_has_a_call_made_again_as_often_as_its_retries_and_with_pauses(
    house: Theatre, ledger: Ledger, retries: int, how: str
) -> None:
    at: list[float] = []

    @perdure.tool(
        risk="high",
        retries=retries,
        timeout=1,
        ambiguous=(ConnectionError,),
        reconcile=lambda _doubt: perdure.not_happened(),
    )
    async def pay() -> None:
        at.append(house.loop.time())
        if how == "raises":
            raise ConnectionError("no luck")
        await asyncio.sleep(1e6)

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            await pay()
        except (ConnectionError, TimeoutError) as error:
            return str(error)
        return ""

    said = await house.play(host)

    assert said == ("no luck" if how == "raises" else "pay did not return within 1 s")
    assert len(at) == 1 + retries
    assert all(later - sooner > 0.1 for sooner, later in pairwise(at))


async def test_all_tries_of_a_call_are_counted_together(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high", retries=2, ambiguous=(ConnectionError,), reconcile=lambda _doubt: perdure.not_happened())
    async def pay() -> None:
        ledger.note("pay")
        if len(ledger.done) % 2:
            raise perdure.NotApplied("busy")
        raise ConnectionError("no luck")

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            await pay()
        except (ConnectionError, perdure.NotApplied) as error:
            return str(error)
        return ""

    assert await house.play(host) == "busy"
    assert len(ledger.done) == 3


@pytest.mark.parametrize("who", ["reconcile", "person"])
async def test_run_again_a_call_does_not_meet_the_recorded_error_of_one_inside_it(house: Theatre, who: str) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=0)
    async def look() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return "seen"

    def find(_doubt: perdure.Doubt) -> perdure.Verdict[str]:
        return perdure.not_happened() if who == "reconcile" else perdure.unknown()

    @perdure.tool(risk="high", ambiguous=(ConnectionError,), reconcile=find)
    async def pay() -> str:
        return await look()

    @perdure.agent(retries=0)
    async def host() -> str:
        return await pay()

    await house.hire(host)
    task = await house.client.start(host)
    if who == "person":
        await (await house.question()).resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "seen"
    assert len(tries) == 2


@pytest.mark.parametrize("now", ["low", "medium"])
async def test_the_error_of_a_high_call_stays_its_outcome_when_it_is_declared_harmless_later(
    house: Theatre, ledger: Ledger, now: Literal["low", "medium"]
) -> None:
    @perdure.tool(risk="high", name="charge")
    async def charge() -> None:
        ledger.note("charge")
        raise ConnectionError("charged, but the line broke")

    @perdure.tool(risk=now, idempotent=now == "medium", name="charge")
    async def charge_now() -> None:
        ledger.note("charge")

    @perdure.agent(name="charger")
    async def before() -> None:
        try:
            await charge()
        finally:
            await ledger.hold()

    @perdure.agent(name="charger")
    async def after() -> None:
        await charge_now()

    first = await house.hire(before)
    task = await house.client.start(before)
    await _restart(house, first, ledger, after)
    with pytest.raises(perdure.TaskFailed, match="the line broke"):
        await task.result()

    assert ledger.done == ["charge"]


# -- the same call under another one ----------------------------------------------------------


@pytest.mark.parametrize("now", ["other input", "renamed", "dropped", "added"])
async def test_after_a_kill_a_high_call_under_another_call_is_not_made_again_without_a_yes(
    house: Theatre, ledger: Ledger, now: str
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int, at: float) -> int:
        paid = await pay(n)
        await ledger.hold()
        return paid

    @perdure.agent(name="payer")
    async def before() -> int:
        if now == "added":
            paid = await pay(1)
            await ledger.hold()
            return paid
        return await wrap(1, 1.0)

    @perdure.tool(risk="low")
    async def envelop(n: int) -> int:
        return await pay(n)

    @perdure.agent(name="payer")
    async def after() -> int:
        match now:
            case "other input":
                return await wrap(1, 2.0)
            case "dropped":
                return await pay(1)
            case _:
                return await envelop(1)

    first = await house.hire(before)
    task = await house.client.start(before)
    await _restart(house, first, ledger, after)
    question = await house.question()

    assert question.kind == "call"
    assert "lies unused: pay(n=1)" in question.text
    assert ledger.done == ["pay"]
    await question.approve(by="ana")
    assert await task.result() == 1
    assert ledger.done == ["pay", "pay"]


async def test_cut_off_a_call_in_between_leaves_what_it_made_to_be_asked_about(house: Theatre, ledger: Ledger) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int, at: int) -> int:
        paid = await pay(n)
        if len(tries) == 1:
            await asyncio.sleep(1e6)
        return paid

    @perdure.tool(risk="low", timeout=5, retries=2)
    async def outer() -> int:
        tries.append(1)
        return await wrap(1, len(tries))

    @perdure.agent
    async def host() -> int:
        return await outer()

    await house.hire(host)
    await house.client.start(host)
    question = await house.question()

    assert "lies unused: pay(n=1)" in question.text
    assert ledger.done == ["pay"]


@pytest.mark.parametrize("drift", ["ask", "error"])
async def test_what_one_branch_makes_anew_speaks_against_no_other_branch(
    house: Theatre, ledger: Ledger, drift: Literal["ask", "error"]
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int) -> int:
        return await pay(n)

    @perdure.tool(risk="low")
    async def again() -> int:
        tries.append(1)
        if len(tries) == 2:
            await asyncio.sleep(30)
        paid = await wrap(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return paid

    @perdure.tool(risk="low")
    async def later() -> int:
        await asyncio.sleep(20)
        return await pay(2)

    @perdure.agent(drift=drift)
    async def host() -> list[int]:
        return list(await perdure.gather(again(), later()))

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == [1, 2]
    assert ledger.done == ["pay 1", "pay 2"]
    assert house.store.read(questions.of_task, task.id) == []


async def test_what_a_call_made_that_the_agent_has_cut_off_speaks_against_no_later_call(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low", retries=9)
    async def work(n: int) -> int:
        if n == 0 and ledger.done:
            await asyncio.sleep(1e6)
        paid = await pay(n)
        if n == 0:
            raise ConnectionError("once")
        return paid

    @perdure.agent
    async def host() -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await work(0)
        return await work(1)

    assert await house.play(host) == 1
    assert ledger.done == ["pay 0", "pay 1"]


@pytest.mark.parametrize("again", ["call", "task"])
async def test_tried_again_a_high_call_under_a_call_with_another_input_waits_for_a_yes(
    house: Theatre, ledger: Ledger, again: str
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int, at: int) -> int:
        return await pay(n)

    async def once() -> None:
        tries.append(1)
        await wrap(1, len(tries))
        if len(tries) == 1:
            raise ConnectionError("once")

    @perdure.tool(risk="low")
    async def outer() -> None:
        await once()

    @perdure.agent
    async def host() -> str:
        await (outer() if again == "call" else once())
        return "done"

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()

    assert ledger.done == ["pay"]
    await question.deny("it was paid", by="ana")
    with pytest.raises(perdure.TaskFailed, match="it was paid"):
        await task.result()
    assert ledger.done == ["pay"]


async def test_what_a_call_that_has_ended_did_not_make_again_speaks_against_no_later_call(
    house: Theatre, ledger: Ledger
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low")
    async def outer() -> None:
        tries.append(1)
        if len(tries) == 1:
            await pay(1)
            raise ConnectionError("once")

    @perdure.agent
    async def host() -> int:
        await outer()
        return await pay(2)

    assert await house.play(host) == 2
    assert ledger.done == ["pay 1", "pay 2"]


@pytest.mark.parametrize("drift", ["ask", "error"])
async def test_branches_that_come_to_their_records_later_hold_up_no_call(
    house: Theatre, ledger: Ledger, drift: Literal["ask", "error"]
) -> None:
    lives = 0

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int) -> int:
        if n == 1 and lives == 1:
            await asyncio.sleep(1e6)  # Nothing of it is on record.
        if n == 0 and lives == 2:
            await asyncio.sleep(5)  # It comes to its record long after the other has begun.
        paid = await pay(n)
        if n == 0:
            await ledger.hold()
        return paid

    @perdure.agent(drift=drift)
    async def host() -> list[int]:
        nonlocal lives
        lives += 1
        return list(await perdure.gather(wrap(0), wrap(1)))

    first = await house.hire(host)
    task = await house.client.start(host)
    await _restart(house, first, ledger, host)

    assert await task.result() == [0, 1]
    assert ledger.done == ["pay 0", "pay 1"]
    assert house.store.read(questions.of_task, task.id) == []


# -- what is left running -----------------------------------------------------------------------


@pytest.mark.parametrize("by", ["no input", "key"])
async def test_tried_again_a_call_finds_the_one_inside_that_was_left_running(
    house: Theatre, ledger: Ledger, by: str
) -> None:
    @perdure.tool(risk="high")
    async def pay() -> str:
        ledger.note("pay")
        await asyncio.sleep(20)
        return "paid"

    @perdure.tool(risk="high")
    async def pay_for(at: float) -> str:
        return f"{await pay()} {at >= 0}"

    @perdure.tool(risk="low", timeout=5, retries=9)
    async def outer() -> str:
        made = pay() if by == "no input" else pay_for.options(key="order 7")(house.loop.time())
        return await asyncio.shield(asyncio.ensure_future(made))

    @perdure.agent(retries=0)
    async def host() -> str:
        return await outer()

    assert (await house.play(host)).startswith("paid")
    assert ledger.done == ["pay"]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("kind", ["step_in_doubt", "ask"])
async def test_a_question_of_a_call_goes_when_the_call_around_it_is_settled(
    house: Theatre, ledger: Ledger, kind: str, deep: bool
) -> None:
    @perdure.tool(risk="high", timeout=1)
    async def pay() -> str:
        ledger.note("pay")
        await asyncio.sleep(1e6)
        return "paid"

    @perdure.tool(risk="low")
    async def between() -> str:
        return await (perdure.ask("pay it?") if kind == "ask" else pay())

    @perdure.tool(risk="high", timeout=60, reconcile=lambda _doubt: perdure.happened("found"))
    async def outer() -> str:
        return await (between() if deep else perdure.ask("pay it?") if kind == "ask" else pay())

    @perdure.agent
    async def host() -> str:
        found = await outer()
        await ledger.hold()
        return found

    await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question(kind=kind)
    await ledger.reached.wait()

    assert await house.client.questions() == []
    why = "whoever asked does not wait any more" if kind == "ask" else "the call around it was settled"
    assert (await house.client.question(asked.id)).row.reason == why
    ledger.go_on.set()
    assert await task.result() == "found"
