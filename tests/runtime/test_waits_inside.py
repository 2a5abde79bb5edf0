"""Waits inside a tool: a call around others does what these do, and holds no permit while they only wait."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any, Literal

import pytest

import perdure
import perdure.sync as psync
from perdure.runtime.journal import Journal
from perdure.settings import Settings
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre

IN_MEMORY = Settings(sweep_s=0.5, poll_ms=500, permits=2, main_permits=0, shutdown_grace_s=10)
SET_ASIDE = Settings(sweep_s=0.5, poll_ms=500, permits=2, main_permits=0, shutdown_grace_s=10, waiting_in_memory=0)


@pytest.fixture(params=[IN_MEMORY, SET_ASIDE], ids=["in memory", "set aside"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Few permits, and waits that stay in memory or leave it at once."""
    chosen: Settings = request.param
    return chosen


@pytest.mark.parametrize("depth", [1, 3])
async def test_tools_that_wait_for_children_hold_no_permit(house: Theatre, depth: int) -> None:
    @perdure.agent
    async def child(n: int) -> int:
        await perdure.sleep(1)
        return n

    @perdure.tool(risk="low")
    async def dig(n: int, deep: int) -> int:
        return await (dig(n, deep - 1) if deep > 1 else child(n))

    @perdure.agent
    async def host(n: int) -> int:
        return await dig(n, depth)

    await house.hire(host, child)
    tasks = await house.client.start_all([host.bind(n) for n in range(6)])  # Three times as many as there are permits.

    assert [await task.result(timeout=100) for task in tasks] == [*range(6)]


async def test_a_tool_in_a_thread_that_waits_holds_no_permit(house: Theatre) -> None:
    @perdure.agent
    async def child(n: int) -> int:
        return n

    @perdure.tool(risk="low")
    def delegate(n: int) -> int:
        return psync.call(child, n)

    @perdure.agent
    async def host(n: int) -> int:
        return await perdure.call(delegate, n)

    await house.hire(host, child)
    tasks = await house.client.start_all([host.bind(n) for n in range(6)])

    assert [await task.result(timeout=100) for task in tasks] == [*range(6)]


@pytest.mark.parametrize("risk", ["low", "high"])
async def test_other_work_goes_on_while_people_are_asked_inside_tools(
    house: Theatre, risk: Literal["low", "high"]
) -> None:
    @perdure.tool(risk=risk)
    async def send(n: int) -> str:
        return await perdure.ask(f"send {n}?")

    @perdure.agent
    async def host(n: int) -> str:
        return await send(n)

    @perdure.agent
    async def other() -> str:
        return "done"

    await house.hire(host, other)
    tasks = await house.client.start_all([host.bind(n) for n in range(4)])
    for task in tasks:
        await house.until_status(task, "waiting")

    assert await house.run(other) == "done"
    for question in await house.client.questions():
        await question.answer(question.text, by="ana")
    assert sorted([await task.result() for task in tasks]) == [f"send {n}?" for n in range(4)]


async def test_a_call_beside_the_wait_keeps_the_task_running(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="low")
    async def work() -> str:
        await ledger.hold()
        return "worked"

    @perdure.tool(risk="low")
    async def both() -> list[str]:
        return list(await perdure.gather(perdure.ask("well?"), work()))

    @perdure.agent
    async def host() -> list[str]:
        return await both()

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await ledger.reached.wait()
    await asyncio.sleep(5)

    assert house.row(task).status == "running"
    ledger.go_on.set()
    await house.until_status(task, "waiting")
    await question.answer("yes", by="ana")
    assert await task.result() == ["yes", "worked"]


@pytest.mark.parametrize(("risk", "within_s"), [("low", 1), ("medium", 11)])
async def test_a_worker_that_stops_hands_back_a_tool_that_waits_for_a_person(
    house: Theatre, risk: Literal["low", "medium"], within_s: float
) -> None:
    @perdure.tool(risk=risk, idempotent=risk == "medium")
    async def send() -> str:
        return await perdure.ask("send it?")

    @perdure.agent
    async def host() -> str:
        return await send()

    task = await house.client.start(host)
    for _ in range(4):  # More often than a task may be cut off.
        actor = await house.hire(host)
        await house.until_status(task, "waiting")
        began = house.loop.time()
        await house.dismiss(actor)
        assert house.loop.time() - began < within_s
    await house.hire(host)
    (question,) = await house.client.questions()
    await question.answer("yes", by="ana")

    assert await task.result() == "yes"
    assert house.row(task).recoveries == 0


@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_killed_while_a_tool_waits_for_a_person_nothing_is_counted(
    house: Theatre, risk: Literal["low", "medium"]
) -> None:
    @perdure.tool(risk=risk, idempotent=risk == "medium")
    async def send() -> str:
        return await perdure.ask("send it?")

    @perdure.agent
    async def host() -> str:
        return await send()

    task = await house.client.start(host)
    for _ in range(5):
        actor = await house.hire(host)
        await house.until_status(task, "waiting")
        await asyncio.sleep(5)
        house.kill(actor)
    await house.hire(host)
    (question,) = await house.client.questions()
    await question.answer("yes", by="ana")

    assert await task.result() == "yes"


async def test_a_high_tool_that_waits_inside_is_not_cut_to_save_memory_or_by_a_stop(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool(risk="high")
    async def pay() -> str:
        ledger.note("begun")
        said = await perdure.ask("pay it?")
        ledger.note("paid")
        return said

    @perdure.agent
    async def host() -> str:
        return await pay()

    actor = await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await house.until_status(task, "waiting")
    await asyncio.sleep(30)
    actor.worker.stop()
    await asyncio.sleep(5)
    await question.answer("yes", by="ana")
    await actor.running
    await house.hire(host)

    assert await task.result() == "yes"
    assert ledger.done == ["begun", "paid"]
    assert "step_in_doubt" not in house.kinds(task)


async def test_in_doubt_inside_tools_people_are_asked_and_other_work_goes_on(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        await ledger.hold()
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int) -> int:
        return await pay(n)

    @perdure.agent
    async def host(n: int) -> int:
        return await wrap(n)

    @perdure.agent
    async def other() -> str:
        return "done"

    first = await house.hire(host)
    tasks = await house.client.start_all([host.bind(n) for n in range(2)])
    await house.until(lambda: all(house.steps(task, "pay") for task in tasks))
    await kill_inside(house, first, ledger)
    await house.hire(host, other)
    for task in tasks:
        await house.until_status(task, "waiting")

    assert await house.run(other) == "done"
    for question in await house.client.questions():
        await question.resolve(perdure.happened(7), by="ana")
    assert [await task.result() for task in tasks] == [7, 7]


@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_a_tool_in_a_thread_that_is_handed_back_leaves_no_error_that_nobody_has_seen(
    house: Theatre, risk: Literal["low", "medium"]
) -> None:
    unseen: list[Any] = []
    house.loop.set_exception_handler(lambda _loop, told: unseen.append(told))

    @perdure.tool(risk=risk, idempotent=risk == "medium")
    def send() -> str:
        return psync.ask("send it?")

    @perdure.agent
    async def host() -> str:
        return await perdure.call(send)

    actor = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    await house.dismiss(actor)
    await asyncio.sleep(1)
    gc.collect()

    assert unseen == []


async def test_above_low_what_a_tool_does_beside_its_wait_has_the_grace_time(house: Theatre, ledger: Ledger) -> None:
    async def post() -> None:
        ledger.note("begun")
        await asyncio.sleep(5)
        ledger.note("posted")

    @perdure.tool(risk="medium", idempotent=True)
    async def send() -> str:
        said, _ = await asyncio.gather(perdure.ask("send it?"), post())
        return said

    @perdure.agent
    async def host() -> str:
        return await send()

    actor = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    await house.dismiss(actor)

    assert ledger.done == ["begun", "posted"]


async def test_tried_again_a_call_waits_for_one_left_running_and_holds_no_permit(house: Theatre) -> None:
    @perdure.agent
    async def child() -> str:
        await perdure.sleep(20)
        return "done"

    @perdure.tool(risk="low")
    async def delegate() -> str:
        return await child()

    @perdure.tool(risk="low")
    async def between() -> str:
        return await asyncio.shield(asyncio.ensure_future(delegate()))

    @perdure.tool(risk="low", timeout=5, retries=9)
    async def outer() -> str:
        return await between()

    @perdure.agent
    async def host() -> str:
        return await outer()

    await house.hire(host, child)
    tasks = await house.client.start_all([host.bind() for _ in range(2)])

    assert [await task.result() for task in tasks] == ["done", "done"]
    assert all(len(house.children(task)) == 1 for task in tasks)


async def test_a_tool_that_gives_up_its_wait_and_works_runs_again(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="low")
    async def send() -> str:
        try:
            async with asyncio.timeout(5):
                return await perdure.ask("send it?")
        except TimeoutError:
            await ledger.hold()
            return "sent"

    @perdure.agent
    async def host() -> str:
        return await send()

    await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    await ledger.reached.wait()
    await asyncio.sleep(1)

    assert house.row(task).status == "running"
    ledger.go_on.set()
    assert await task.result() == "sent"


async def test_a_tool_that_kills_its_process_after_a_wait_that_it_gave_up_is_parked(house: Theatre) -> None:
    deaths = asyncio.Queue[None]()

    @perdure.tool(risk="low")
    async def send() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await perdure.ask("send it?")
        await asyncio.sleep(1)
        deaths.put_nowait(None)
        await asyncio.sleep(1e6)

    @perdure.agent
    async def host() -> None:
        await send()

    task = await house.client.start(host)
    for _ in range(4):
        actor = await house.hire(host)
        await deaths.get()
        house.kill(actor)
    await house.hire(host)

    assert (await house.question(kind="resume")).task_id == task.id


async def test_a_tool_that_works_beside_short_waits_comes_to_its_end(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="low")
    async def send() -> str:
        async def post() -> None:
            ledger.note("begun")
            await asyncio.sleep(30)

        posting = asyncio.create_task(post())
        while not posting.done():
            await perdure.sleep(2)
        return "sent"

    @perdure.agent
    async def host() -> str:
        return await send()

    assert await house.play(host) == "sent"
    assert ledger.done == ["begun"]


@pytest.mark.parametrize("timeout", [None, 1000.0])
@pytest.mark.parametrize("retries", [0, 1])
async def test_what_is_sent_goes_to_nobody_whose_call_was_cut_off(
    house: Theatre, timeout: float | None, retries: int
) -> None:
    heard: list[Any] = []

    @perdure.tool(risk="low", timeout=5, retries=retries)
    def wait_for() -> None:
        heard.append(psync.receive("x", timeout=timeout))

    @perdure.agent
    async def host() -> str:
        with contextlib.suppress(TimeoutError):
            await perdure.call(wait_for)
        await perdure.sleep(60)
        return str(await perdure.receive("x", timeout=100))

    await house.hire(host)
    task = await house.client.start(host)
    await asyncio.sleep(20)
    await house.client.send(task.id, "x", "hello")

    assert await task.result() == "hello"
    assert heard == []


async def test_a_delivery_that_is_taken_while_its_call_is_cut_off_is_given_back(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    complete = Journal.complete

    async def slowly(journal: Journal, step: Any, result: Any, **options: Any) -> int:
        index = await complete(journal, step, result, **options)
        if result.delivery is not None and not heard:
            heard.append("taken")
            await asyncio.sleep(3)  # Its answer comes when the timeout is over.
        return index

    @perdure.tool(risk="low", timeout=5, retries=0)
    def wait_for() -> None:
        heard.append(psync.receive("x"))

    @perdure.agent
    async def host() -> str:
        with contextlib.suppress(TimeoutError):
            await perdure.call(wait_for)
        return str(await perdure.receive("x", timeout=100))

    monkeypatch.setattr(Journal, "complete", slowly)
    await house.hire(host)
    task = await house.client.start(host)
    await asyncio.sleep(4)
    await house.client.send(task.id, "x", "hello")

    assert await task.result() == "hello"
    assert heard == ["taken"]


@pytest.mark.parametrize("waits_for", ["timer", "child", "delivery"])
async def test_a_thread_whose_call_is_cut_off_waits_for_nothing_any_more(house: Theatre, waits_for: str) -> None:
    ended: list[str] = []

    @perdure.agent
    async def child() -> None:
        await perdure.sleep(1e4)

    def wait() -> None:
        match waits_for:
            case "timer":
                psync.sleep(1e4)
            case "child":
                psync.call(child)
            case _:
                psync.receive("x")

    @perdure.tool(risk="low", timeout=5, retries=0)
    def hang() -> None:
        try:
            wait()
        except psync.Cancelled as cut:
            ended.append(str(cut))
            raise

    @perdure.agent
    async def host() -> list[str]:
        with contextlib.suppress(TimeoutError):
            await perdure.call(hang)
        await perdure.sleep(10)
        return ended

    await house.hire(host, child)
    task = await house.client.start(host)
    await house.until(lambda: ended)

    assert ended == ["the call around this one has been cut off"]
    assert not house.row(task).status.is_terminal
