"""Tools that call tools: recorded under the outer call, and done once however often the outer one runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.store import aio
from perdure.store import steps as store_steps
from perdure.trace import scope_of
from tests.theatre import Theatre


async def test_inner_calls_are_recorded_under_the_outer_ones_key(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def inner(n: int) -> int:
        return n

    @perdure.tool(risk="low")
    async def outer() -> list[int]:
        return [await inner(1), await inner(2)]

    @perdure.agent
    async def host() -> list[int]:
        return await outer() + [await inner(1)]

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == [1, 2, 1]
    keys = {one.name: scope_of(one.key or "") for one in house.steps(task)[:2]}
    assert [one.name for one in house.steps(task)] == ["inner", "inner", "outer", "inner"]
    assert keys["inner"] != ""
    assert scope_of(house.steps(task)[3].key or "") == ""


@pytest.mark.parametrize("kind", ["low", "high", "receive", "ask"])
async def test_what_is_on_its_way_to_the_record_is_known_when_the_outer_call_runs_again(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done: list[str] = []
    tries: list[int] = []
    submit = aio.submit

    def tell_late(store: Any, operation: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        written = submit(store, operation, *args, **kwargs)
        return asyncio.ensure_future(_late(written)) if operation is store_steps.complete and not tries else written

    @perdure.tool(risk="high" if kind == "high" else "low")
    async def act() -> str:
        done.append("act")
        return "told"

    async def call() -> Any:
        match kind:
            case "receive":
                return await perdure.receive("news")
            case "ask":
                return await perdure.ask("Which?")
            case _:
                return await act()

    async def flaky() -> None:
        await asyncio.sleep(2)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("one of them failed")

    @perdure.tool(risk="low")
    async def outer() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                told = group.create_task(call())
                group.create_task(flaky())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return str(told.result())

    @perdure.agent
    async def host() -> str:
        return await outer()

    monkeypatch.setattr(aio, "submit", tell_late)
    await house.hire(host)
    task = await house.client.start(host)
    if kind == "receive":
        await house.client.send(task.id, "news", "told")
    elif kind == "ask":
        await (await house.question()).answer("told", by="ana")

    assert await task.result() == "told"
    assert len(tries) == 2
    assert len(done) == (kind in ("low", "high"))
    assert len(house.attempts(task)) == 1
    assert await house.client.questions() == []


async def _late(written: asyncio.Future[Any]) -> Any:
    result = await written
    await asyncio.sleep(5)
    return result


async def test_a_retried_outer_call_does_not_run_its_inner_high_call_again(house: Theatre) -> None:
    sent: list[str] = []
    tries: list[int] = []

    @perdure.tool
    async def send(to: str) -> str:
        sent.append(to)
        return "m-1"

    @perdure.tool(risk="low")
    async def combined() -> str:
        receipt = await send("a")
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("after the sending")
        return receipt

    @perdure.agent
    async def host() -> str:
        return await combined()

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "m-1"
    assert sent == ["a"]
    assert len(tries) == 3
    assert len(house.steps(task, "send")) == 1


async def test_a_retried_outer_call_gets_the_error_of_its_inner_high_call_again(house: Theatre) -> None:
    sent: list[str] = []

    @perdure.tool
    async def send(to: str) -> str:
        sent.append(to)
        raise ConnectionError("reset")

    @perdure.tool(risk="low")
    async def combined() -> str:
        try:
            return await send("a")
        except ConnectionError as error:
            raise RuntimeError("wrapped") from error

    @perdure.agent
    async def host() -> str:
        return await combined()

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert sent == ["a"]


async def test_the_tries_of_an_inner_call_are_not_multiplied_by_the_outer_one(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=2)
    async def inner() -> None:
        tries.append(1)
        raise ConnectionError("reset")

    @perdure.tool(risk="low", retries=2)
    async def outer() -> None:
        await inner()

    @perdure.agent(retries=0)
    async def host() -> None:
        await outer()

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed) as failed:
        await task.result()

    assert len(tries) == 3
    assert failed.value.error.type == "ConnectionError"


async def test_an_outer_retry_runs_the_inner_low_call_anew_whose_error_made_it_fail(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=0)
    async def inner() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("reset")
        return "there"

    @perdure.tool(risk="low")
    async def outer() -> str:
        try:
            return await inner()
        except ConnectionError as error:
            raise TimeoutError("wrapped") from error

    @perdure.agent
    async def host() -> str:
        return await outer()

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "there"
    assert [one.outcome for one in house.steps(task, "inner")] == ["failed", "failed", "completed"]
    assert [one.try_number for one in house.steps(task, "inner")] == [0, 1, 2]


async def test_a_crash_inside_an_inner_high_call_asks_about_that_one_alone(house: Theatre) -> None:
    reached = asyncio.Event()
    sent: list[str] = []

    @perdure.tool
    async def send(to: str) -> str:
        sent.append(to)
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return to

    @perdure.tool(risk="low")
    async def combined() -> list[str]:
        return [await send("a"), await send("b")]

    @perdure.agent
    async def host() -> list[str]:
        return await combined()

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("A"), by="ana")

    assert doubt.args == {"to": "a"}
    assert await task.result() == ["A", "b"]
    assert sent == ["a", "b"]


async def test_a_settled_outer_call_settles_the_inner_one_in_doubt_too(house: Theatre) -> None:
    reached = asyncio.Event()

    @perdure.tool
    async def inner() -> str:
        reached.set()
        await asyncio.sleep(1e6)
        return "never"

    @perdure.tool
    async def outer() -> str:
        return await inner()

    @perdure.agent
    async def host() -> str:
        return await outer()

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("as a whole"), by="ana")

    assert doubt.tool == "outer"
    assert "inner was cut off inside it: if this one happened, nobody will ask about it" in doubt.evidence["cause"]
    assert await task.result() == "as a whole"
    assert [(one.name, one.outcome) for one in house.steps(task)] == [("outer", "completed"), ("inner", "failed")]


async def test_an_outer_call_cut_off_by_its_timeout_waits_for_its_inner_high_call(house: Theatre) -> None:
    sent: list[str] = []
    tries: list[int] = []

    @perdure.tool
    async def send(to: str) -> str:
        sent.append(to)
        await asyncio.sleep(5)
        return "m-1"

    @perdure.tool(risk="low", timeout=2)
    async def combined() -> str:
        tries.append(1)
        return await send("a")

    @perdure.agent
    async def host() -> str:
        return await combined()

    await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("m-0"), by="ana")

    assert doubt.tool == "send"
    assert sent == ["a"]
    # The second try is cut off too while the person thinks; a later one finds the answer.
    assert await task.result() == "m-0"


async def test_what_is_left_of_a_cut_off_call_makes_no_calls_any_more(house: Theatre) -> None:
    made: list[str] = []

    @perdure.tool(risk="low")
    async def look(what: str) -> str:
        made.append(what)
        return what

    @perdure.tool(risk="low", timeout=2, retries=0)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await look("after the end")
        return "late"

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            return await stubborn()
        except TimeoutError:
            await perdure.sleep(1)
            return "cut off"

    assert await house.play(host) == "cut off"
    assert made == []


@pytest.mark.parametrize("how", ["timeout", "sibling"])
async def test_what_is_left_inside_a_call_that_is_tried_again_makes_no_calls_any_more(house: Theatre, how: str) -> None:
    paid: list[str] = []
    thinking_s = [8, 4]  # The first comes to its call when the second has begun.

    @perdure.tool(risk="high")
    async def pay() -> str:
        paid.append("paid")
        return "paid"

    @perdure.tool(risk="low")
    async def inner() -> str:
        async def think_and_pay(duration_s: float) -> str:
            await asyncio.sleep(duration_s)
            return await pay()

        # As a thread does, it goes on when its caller is cut off.
        return await asyncio.shield(asyncio.create_task(think_and_pay(thinking_s.pop(0))))

    async def fail_once() -> None:
        await asyncio.sleep(2)
        if how == "sibling" and thinking_s:
            raise ConnectionError("once")

    @perdure.tool(risk="low", timeout=5 if how == "timeout" else None)
    async def outer() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                told = group.create_task(inner())
                group.create_task(fail_once())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return told.result()

    @perdure.agent
    async def host() -> str:
        told = await outer()
        await asyncio.sleep(20)
        return told

    assert await house.play(host) == "paid"
    assert paid == ["paid"]


@pytest.mark.parametrize("risk", ["medium", "high"])
@pytest.mark.parametrize("gives_up", [False, True])
async def test_a_call_in_doubt_inside_one_that_has_its_outcome_is_asked_about_before_the_task_completes(
    house: Theatre, risk: Any, gives_up: bool
) -> None:
    @perdure.tool(risk=risk, idempotent=risk == "medium")
    async def pay() -> str:
        await asyncio.sleep(1e6)
        return "never"

    @perdure.tool(risk="low", timeout=None if gives_up else 5, retries=0)
    async def outer() -> str:
        if not gives_up:
            return await pay()
        try:
            return await asyncio.wait_for(pay(), 5)
        except TimeoutError:
            return "gave up"

    @perdure.agent
    async def host() -> str:
        try:
            told = await outer()
        except TimeoutError:
            told = "was cut off"
        if len(house.actors) == 1:
            house.kill(house.actors[0])
            await asyncio.sleep(1e6)
        return told

    await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: "outer" in {one.name for one in house.steps(task) if one.outcome})
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("paid"), by="ana")

    assert doubt.tool == "pay"
    assert await task.result() == ("gave up" if gives_up else "was cut off")
    assert house.row(task).attempt == 2
    assert ("pay", "completed") in {(one.name, one.outcome) for one in house.steps(task)}


async def test_threads_of_a_tool_carry_its_place(house: Theatre) -> None:
    @perdure.tool(risk="low")
    def inner(n: int) -> int:
        return n * 2

    @perdure.tool(risk="low")
    def outer() -> int:
        return inner(1) + inner(2)

    @perdure.agent
    async def host() -> int:
        return await perdure.call(outer) + await asyncio.to_thread(inner, 4)

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == 14
    assert [(one.name, bool(scope_of(one.key or ""))) for one in house.steps(task)] == [
        ("inner", True),
        ("inner", True),
        ("outer", False),
        ("inner", False),
    ]


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_a_dangerous_call_left_running_by_its_agent_comes_to_its_outcome(house: Theatre, ends: str) -> None:
    sent: list[str] = []

    @perdure.tool
    async def send(to: str) -> str:
        await asyncio.sleep(5)
        sent.append(to)
        return to

    left: list[asyncio.Task[Any]] = []

    @perdure.agent(retries=0)
    async def host() -> str:
        left.append(asyncio.ensure_future(send("a")))
        await asyncio.sleep(1)
        if ends == "raises":
            raise ValueError("something else")
        return "done"

    await house.hire(host)
    task = await house.client.start(host)
    if ends == "returns":
        assert await task.result() == "done"
    else:
        with pytest.raises(perdure.TaskFailed):
            await task.result()

    assert sent == ["a"]
    assert [one.outcome for one in house.steps(task, "send")] == ["completed"]
    assert await house.client.questions() == []


async def test_waits_left_open_by_an_agent_do_not_keep_its_task_from_ending(house: Theatre) -> None:
    left: list[asyncio.Task[Any]] = []

    @perdure.agent
    async def host() -> str:
        left.append(asyncio.ensure_future(perdure.receive("never sent")))
        left.append(asyncio.ensure_future(perdure.sleep(1e6)))
        await asyncio.sleep(1)
        return "done"

    assert await house.play(host) == "done"
    assert house.loop.time() < 1e5
    assert all(one.cancelled() for one in left)
