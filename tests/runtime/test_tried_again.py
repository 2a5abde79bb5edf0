"""Dangerous calls inside calls that are tried again, settled or given up: none is made twice behind one's back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from tests.theatre import Theatre


async def test_a_call_that_was_taken_over_is_held_by_whoever_took_it_over(house: Theatre) -> None:
    inside = asyncio.Event()
    paid: list[str] = []
    seen: list[int] = []

    def find(_doubt: perdure.Doubt) -> perdure.Verdict[str]:
        seen.append(len(paid))
        return perdure.happened("paid") if paid else perdure.not_happened()

    @perdure.tool(risk="high", reconcile=find)
    async def pay() -> str:
        if len(house.actors) == 1:
            inside.set()
            await asyncio.sleep(1e6)

        async def slowly() -> str:
            await asyncio.sleep(30)
            paid.append("paid")
            return "paid"

        # As a thread does, it goes on when its caller is cut off.
        going_on = asyncio.create_task(slowly())
        while not going_on.done():
            try:
                await asyncio.shield(going_on)
            except asyncio.CancelledError:
                continue
        return going_on.result()

    @perdure.tool(risk="low", timeout=5, retries=9)
    async def outer() -> str:
        return await pay()

    @perdure.agent
    async def host() -> str:
        return await outer()

    first = await house.hire(host)
    task = await house.client.start(host)
    await inside.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "paid"
    assert paid == ["paid"]
    assert seen[0] == 0


async def test_reconcile_looks_afresh_and_not_at_what_the_call_saw(house: Theatre) -> None:
    paid: list[int] = []
    inside = asyncio.Event()

    @perdure.tool(risk="low")
    async def find(n: int) -> list[int]:
        return [one for one in paid if one == n]

    async def look(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        found = await find(doubt.args["n"])
        assert await perdure.read("count", lambda: len(paid)) == len(found)
        return perdure.happened("found") if found else perdure.not_happened()

    @perdure.tool(risk="high", reconcile=look)
    async def pay(n: int) -> str:
        assert await find(n) == []
        paid.append(n)
        inside.set()
        await asyncio.sleep(1e6)
        return "never"

    @perdure.agent
    async def host() -> str:
        return await pay(7)

    first = await house.hire(host)
    task = await house.client.start(host)
    await inside.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "found"
    assert paid == [7]
    assert [one.name for one in house.steps(task)] == ["pay", "find"]


async def test_reconcile_that_does_more_than_look_is_refused_and_a_person_asked(house: Theatre) -> None:
    inside = asyncio.Event()

    @perdure.tool(risk="high")
    async def pay_back() -> str:
        raise AssertionError("nobody wanted that")

    async def look(_doubt: perdure.Doubt) -> perdure.Verdict[str]:
        return perdure.happened(await pay_back())

    @perdure.tool(risk="high", reconcile=look)
    async def pay() -> str:
        inside.set()
        await asyncio.sleep(1e6)
        return "never"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await inside.wait()
    house.kill(first)
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("yes"), by="ana")

    assert "only looks" in doubt.evidence["reconcile"]
    assert await task.result() == "yes"


async def test_an_agent_that_swallows_its_end_holds_up_nobody_else(house: Theatre) -> None:
    swallowed: list[BaseException] = []
    is_told = asyncio.Event()

    async def answer() -> str:
        return "so"

    @perdure.agent
    async def stubborn() -> None:
        while len(swallowed) < 5000:
            try:
                await perdure.read("poll", answer)
                await asyncio.sleep(1)
            except asyncio.CancelledError as told:
                swallowed.append(told)
                is_told.set()

    @perdure.agent
    async def other() -> str:
        return await perdure.read("poll", answer)

    await house.hire(stubborn, other)
    task = await house.client.start(stubborn)
    await house.until(lambda: house.steps(task))
    await task.cancel("enough")
    await is_told.wait()
    before = house.loop.now_ms()

    assert await house.run(other) == "so"
    # It is still at it, and each time takes a while by now.
    assert len(swallowed) < 5000
    assert house.loop.now_ms() - before < 60_000


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_other_arguments_in_another_try_are_asked_about(house: Theatre, answer: str) -> None:
    paid: list[int] = []

    @perdure.tool(risk="high")
    async def pay(at: int) -> int:
        paid.append(at)
        return at

    @perdure.tool(risk="low")
    async def outer() -> int:
        told = await pay(len(paid))
        if len(paid) == 1:
            raise ConnectionError("after it had paid")
        return told

    @perdure.agent
    async def host() -> int:
        try:
            return await outer()
        except perdure.Denied:
            return -1

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    if answer == "yes":
        await question.approve(by="ana")
    else:
        await question.deny("it has paid", by="ana")

    assert question.kind == "call"
    assert "lies unused: pay(at=0)" in question.text
    assert await task.result() == (1 if answer == "yes" else -1)
    assert paid == ([0, 1] if answer == "yes" else [0])


async def test_the_same_arguments_in_another_try_get_the_recorded_result(house: Theatre) -> None:
    paid: list[str] = []
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(to: str) -> str:
        paid.append(to)
        return to

    @perdure.tool(risk="low")
    async def outer() -> list[str]:
        tries.append(1)
        done = await perdure.gather(pay("a"), pay("b"))
        if len(tries) == 1:
            raise ConnectionError("after it had paid")
        return [*done, await pay("c")]

    @perdure.agent
    async def host() -> list[str]:
        return await outer()

    assert await house.play(host) == ["a", "b", "c"]
    assert paid == ["a", "b", "c"]


async def test_a_call_that_still_runs_inside_one_that_is_settled_comes_to_its_own_outcome(house: Theatre) -> None:
    other_paid: list[int] = []

    @perdure.tool(risk="high")
    async def pay() -> str:
        await asyncio.sleep(20)
        return "paid"

    @perdure.tool(risk="high", timeout=5, reconcile=lambda _doubt: perdure.happened("as a whole"))
    async def outer() -> str:
        return await asyncio.shield(asyncio.create_task(pay()))

    @perdure.tool(risk="high")
    async def other() -> str:
        await asyncio.sleep(60)
        other_paid.append(1)
        return "other"

    @perdure.agent
    async def host() -> list[str]:
        return [await outer(), await other()]

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == ["as a whole", "other"]
    assert other_paid == [1]
    assert house.row(task).attempt == 1
    assert {(one.name, one.outcome) for one in house.steps(task)} == {
        ("outer", "completed"),
        ("pay", "completed"),
        ("other", "completed"),
    }


async def test_a_call_inside_another_try_tells_reconcile_when_it_began(house: Theatre) -> None:
    began: list[float] = []
    told: list[float] = []

    def find(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        told.append(doubt.started_at.timestamp())
        return perdure.unknown("not yet") if len(told) == 1 else perdure.happened("found")

    @perdure.tool(risk="high", reconcile=find)
    async def pay() -> str:
        began.append(house.loop.now_ms() / 1000)
        await asyncio.sleep(1e6)
        return "never"

    @perdure.tool(risk="low", timeout=5, retries=9)
    async def outer() -> str:
        return await pay()

    @perdure.agent
    async def host() -> str:
        return await outer()

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await question.resolve(perdure.happened("found"), by="ana")

    assert await task.result() == "found"
    assert told and set(told) == set(began)
    assert question.evidence["started_at"] == int(began[0] * 1000)


async def test_a_yes_that_comes_when_the_call_around_is_cut_off_makes_nothing_run(house: Theatre) -> None:
    paid: list[int] = []

    @perdure.tool(risk="critical")
    async def pay() -> str:
        paid.append(1)
        return "paid"

    @perdure.tool(risk="low", timeout=5, retries=0)
    async def outer() -> str:
        return await asyncio.shield(asyncio.create_task(pay()))

    @perdure.agent
    async def host() -> str:
        try:
            return await outer()
        except TimeoutError:
            await asyncio.sleep(60)
            return "cut off"

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await asyncio.sleep(20)
    await question.approve(by="ana")

    assert await task.result() == "cut off"
    assert paid == []


@pytest.mark.parametrize("outer_first", [True, False])
async def test_of_calls_in_doubt_inside_each_other_the_outer_one_is_asked_about(
    house: Theatre, outer_first: bool
) -> None:
    inside = asyncio.Event()

    @perdure.tool(risk="high")
    async def deep() -> str:
        inside.set()
        await asyncio.sleep(1e6)
        return "never"

    @perdure.tool(risk="high")
    async def pay() -> str:
        return await deep()

    @perdure.tool(risk="low", timeout=5, retries=0)
    async def outer() -> str:
        return await pay()

    @perdure.agent
    async def host() -> Any:
        try:
            return await outer()
        except TimeoutError:
            if len(house.actors) == 1:
                if outer_first:
                    house.kill(house.actors[0])
                await asyncio.sleep(1)
                house.kill(house.actors[0])
                await asyncio.sleep(1e6)
            return "cut off"

    await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: "outer" in {one.name for one in house.steps(task) if one.outcome})
    await house.hire(host)
    question = await house.question()
    await question.resolve(perdure.happened("paid"), by="ana")

    assert question.tool == "pay"
    assert await task.result() == "cut off"
    assert house.row(task).attempt == 2
    assert {one.name: one.outcome for one in house.steps(task)} == {
        "outer": "failed",
        "pay": "completed",
        "deep": "failed",
    }


async def test_what_a_person_said_of_a_call_inside_stands_when_the_one_around_it_is_settled(house: Theatre) -> None:
    paid: list[int] = []

    @perdure.tool(risk="high")
    async def pay() -> str:
        paid.append(1)
        await asyncio.sleep(1e6)
        return "paid"

    @perdure.tool(risk="high")
    async def order() -> str:
        return await pay()

    @perdure.agent
    async def host() -> str:
        return await order()

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: paid)
    house.kill(first)
    second = await house.hire(host)
    await (await house.question()).resolve(perdure.not_happened(), by="ann")
    inside = await house.until_asked(lambda one: one.text.startswith("did pay("))
    house.kill(second)
    await inside.resolve(perdure.happened("paid"), by="ann")
    await house.hire(host)
    around = await house.until_asked(lambda one: one.text.startswith("did order("))
    await around.resolve(perdure.happened("ordered"), by="ann")

    assert await task.result() == "ordered"
    assert [one.outcome for one in house.steps(task, "pay")] == ["completed"]
    assert paid == [1]


async def test_what_the_last_try_says_of_itself_it_does_not_say_of_an_earlier_one(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[None] = []
    tries: list[None] = []
    waits = asyncio.Event()

    async def pause(_duration_s: float) -> None:
        pauses.append(None)
        if len(pauses) == 2:
            waits.set()
            await asyncio.sleep(1e6)

    @perdure.tool(risk="medium", idempotent=True, timeout=1)
    async def send() -> None:
        tries.append(None)
        if len(tries) > 1:
            raise perdure.NotApplied("no connection")
        await asyncio.sleep(1e6)  # Whether it happened, nobody knows.

    @perdure.agent
    async def host() -> str:
        sending = asyncio.ensure_future(send())
        await waits.wait()
        sending.cancel()
        return "went on"

    actor = await house.hire(host)
    monkeypatch.setattr(actor.worker, "pause", pause)
    task = await house.client.start(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened(None), by="ana")

    assert await task.result() == "went on"
    assert [one.outcome for one in house.steps(task, "send")] == ["completed"]
