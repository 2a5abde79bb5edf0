"""A task is tried again: durably, by the kind of its error, and running anew exactly what made it fail."""

from __future__ import annotations

import asyncio
import contextvars
from itertools import pairwise
from typing import Any

import pytest

import perdure
import perdure.sync as psync
from perdure.runtime.attempt import Stop
from tests.theatre import Theatre


async def test_a_retry_is_a_row_that_waits_and_no_process(house: Theatre) -> None:
    tries: list[float] = []

    @perdure.agent
    async def host() -> str:
        tries.append(house.loop.time())
        if len(tries) < 3:
            raise ConnectionError("reset")
        return "there"

    first = await house.hire(host)
    task = await house.client.start(host)
    row = await house.until_status(task, "pending")
    await house.until(lambda: len(tries) == 1 and house.row(task).failures == 1)
    row = house.row(task)
    assert house.store.clock.now_ms() < row.available_at <= house.store.clock.now_ms() + 1250
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "there"
    assert 1.0 <= tries[1] - tries[0] <= 3.0
    assert 2.0 <= tries[2] - tries[1] <= 4.5
    assert house.row(task).failures == 2
    assert [one.status for one in house.attempts(task)] == ["failed", "failed", "completed"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(ConnectionError("reset"), 4), (RuntimeError("who knows"), 4), (ValueError("bad"), 1), (KeyError("bad"), 1)],
)
async def test_the_kind_of_an_error_decides_whether_there_is_another_try(
    house: Theatre, error: Exception, attempts: int
) -> None:
    @perdure.agent
    async def host() -> None:
        raise error

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert len(house.attempts(task)) == attempts
    assert house.row(task).recoveries == 0


async def test_an_agent_may_want_no_retries(house: Theatre) -> None:
    @perdure.agent(retries=0)
    async def host() -> None:
        raise ConnectionError("reset")

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert len(house.attempts(task)) == 1


class Calls:
    """How often each tool ran."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def count(self, name: str) -> int:
        return self.made.count(name)


def flaky(calls: Calls, name: str, *, failures: int = 1) -> Any:
    """A low tool that fails at first."""

    @perdure.tool(risk="low", retries=0, name=name)
    async def act() -> str:
        calls.made.append(name)
        if calls.count(name) <= failures:
            raise ConnectionError(f"{name} is down")
        return name

    return act


async def test_the_step_whose_error_escaped_runs_anew_and_no_other(house: Theatre) -> None:
    calls = Calls()
    steady, down = flaky(calls, "steady", failures=0), flaky(calls, "down")

    @perdure.agent
    async def host() -> list[str]:
        return [await steady(), await down()]

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == ["steady", "down"]
    assert calls.made == ["steady", "down", "down"]
    assert [(one.name, one.try_number, one.outcome) for one in house.steps(task)] == [
        ("steady", 0, "completed"),
        ("down", 0, "failed"),
        ("down", 1, "completed"),
    ]


@pytest.mark.parametrize("how", ["cause", "context", "group", "taskgroup", "gather"])
async def test_an_error_is_known_again_in_a_chain_and_in_a_group(house: Theatre, how: str) -> None:
    import asyncio

    calls = Calls()
    down, other = flaky(calls, "down"), flaky(calls, "other", failures=0)

    @perdure.agent
    async def host() -> str:
        match how:
            case "cause":
                try:
                    await down()
                except ConnectionError as error:
                    raise RuntimeError("wrapped") from error
            case "context":
                try:
                    await down()
                except ConnectionError:
                    raise RuntimeError("meanwhile")  # noqa: B904  # the context is what is tested
            case "group":
                try:
                    await down()
                except ConnectionError as error:
                    raise ExceptionGroup("several", [RuntimeError("one"), error]) from None
            case "taskgroup":
                async with asyncio.TaskGroup() as group:
                    group.create_task(down())
                    group.create_task(other())
            case _:
                await perdure.gather(down(), other())
        return "there"

    await house.hire(host)

    assert await house.run(host) == "there"
    assert calls.count("down") == 2
    assert calls.count("other") == (how in ("taskgroup", "gather"))


async def test_an_error_that_the_agent_caught_is_raised_again_from_the_record(house: Theatre) -> None:
    calls = Calls()
    caught, escaped = flaky(calls, "caught"), flaky(calls, "escaped")

    @perdure.agent
    async def host() -> str:
        try:
            found = await caught()
        except ConnectionError:
            found = "fallback"
        await escaped()
        return found

    await house.hire(host)

    assert await house.run(host) == "fallback"
    assert calls.made == ["caught", "escaped", "escaped"]


async def test_errors_of_low_calls_are_raised_anew_until_the_tries_are_used_up(house: Theatre) -> None:
    calls = Calls()
    down = flaky(calls, "down", failures=99)

    @perdure.agent(retries=2)
    async def host() -> None:
        await down()

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed) as failed:
        await task.result()

    assert failed.value.error.type == "ConnectionError"
    assert len(calls.made) == 3
    assert [one.try_number for one in house.steps(task)] == [0, 1, 2]


async def test_the_final_error_of_a_high_call_ends_the_task_at_once(house: Theatre) -> None:
    ran: list[int] = []

    @perdure.tool
    async def act() -> None:
        ran.append(1)
        raise ConnectionError("reset")

    @perdure.agent
    async def host() -> None:
        await act()

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert (len(ran), len(house.attempts(task))) == (1, 1)


async def test_a_failed_child_ends_its_parent_at_once_unless_it_is_caught(house: Theatre) -> None:
    @perdure.agent(retries=0)
    async def child(n: int) -> int:
        raise ConnectionError(f"child {n}")

    @perdure.agent
    async def strict() -> int:
        return await child(1)

    @perdure.agent
    async def lenient() -> str:
        try:
            return str(await child(2))
        except perdure.TaskFailed as failed:
            return f"{failed.error.type}: {failed.error.message}"

    await house.hire(strict, lenient, child)
    task = await house.client.start(strict)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert len(house.attempts(task)) == 1
    assert house.outcome(task) == ("failed", "perdure.errors.TaskFailed")
    assert await house.run(lenient) == "ConnectionError: child 2"


async def test_a_group_with_one_final_error_is_final(house: Theatre) -> None:
    calls = Calls()
    down = flaky(calls, "down", failures=99)

    @perdure.tool
    async def act() -> None:
        raise ConnectionError("high")

    @perdure.agent
    async def host() -> None:
        await perdure.gather(down(), act())

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert len(house.attempts(task)) == 1


@pytest.mark.parametrize("how", ["cause", "cause of the cause", "cause in a group"])
async def test_an_error_raised_from_a_final_one_is_final(house: Theatre, how: str) -> None:
    @perdure.tool
    async def act() -> None:
        raise ConnectionError("high")

    @perdure.agent
    async def host() -> None:
        try:
            await act()
        except ConnectionError as error:
            wrapped = RuntimeError("could not act")
            wrapped.__cause__ = error
            match how:
                case "cause":
                    raise wrapped from error
                case "cause of the cause":
                    raise RuntimeError("gave up") from wrapped
                case _:
                    raise ExceptionGroup("several", [wrapped]) from None

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert len(house.attempts(task)) == 1


async def test_what_fails_while_a_final_error_is_handled_is_tried_again(house: Theatre) -> None:
    calls = Calls()
    down = flaky(calls, "down")

    @perdure.tool
    async def act() -> None:
        raise ConnectionError("high")

    @perdure.agent
    async def host() -> str:
        try:
            await act()
        except ConnectionError:
            return await down()
        return "never"

    await house.hire(host)

    assert await house.run(host) == "down"
    assert calls.count("down") == 2


async def test_a_wait_that_ran_out_waits_anew_on_the_next_try(house: Theatre) -> None:
    @perdure.agent
    async def host() -> Any:
        return await perdure.receive("paid", timeout=10)

    await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: house.row(task).attempt == 2)
    await house.client.send(task.id, "paid", {"amount": 5})

    assert await task.result() == {"amount": 5}
    assert [(one.try_number, one.outcome) for one in house.steps(task)] == [(0, "failed"), (1, "completed")]


async def test_calls_are_tried_again_by_their_own_policy_first(house: Theatre) -> None:
    calls: list[float] = []

    @perdure.tool(risk="low")
    async def down() -> str:
        calls.append(house.loop.time())
        if len(calls) < 4:
            raise ConnectionError("reset")
        return "there"

    @perdure.agent
    async def host() -> str:
        return await down()

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "there"
    assert len(house.attempts(task)) == 1
    assert len(house.steps(task)) == 1
    waits = [later - sooner for sooner, later in pairwise(calls)]
    assert all(plain <= wait <= 1.25 * plain for plain, wait in zip((1, 2, 4), waits, strict=True))


async def test_children_admitted_before_a_retry_are_found_again(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.agent
    async def child() -> str:
        return "child"

    @perdure.agent
    async def host() -> str:
        found = await child()
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("reset")
        return found

    await house.hire(host, child)
    task = await house.client.start(host)

    assert await task.result() == "child"
    assert len(house.children(task)) == 1


@pytest.mark.parametrize("why", ["given up", "lost"])
async def test_a_call_whose_worker_may_not_call_yet_is_not_made_once_nobody_wants_it(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    begun: list[int] = []
    tries: list[int] = []
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine")
    has_failed, may_call = asyncio.Event(), asyncio.Event()

    @perdure.tool(risk="medium", idempotent=True, retries=3)
    async def pay() -> None:
        tries.append(mine.get())
        has_failed.set()
        raise ConnectionError("reset")

    @perdure.tool(risk="low", timeout=20, retries=0)
    def order() -> None:
        psync.call(pay)

    @perdure.agent
    async def host() -> str:
        begun.append(1)
        mine.set(len(begun))
        try:
            await perdure.call(order)
        except TimeoutError:
            await perdure.sleep(60)
        return "gave it up"

    actor = await house.hire(host)
    task = await house.client.start(host)
    await has_failed.wait()
    monkeypatch.setattr(actor.worker, "until_may_call", may_call.wait)  # Its database is silent for a while, say.
    if why == "lost":
        await asyncio.sleep(5)
        (attempt,) = actor.worker.attempts.values()
        attempt.stop(Stop.LOST)
    await asyncio.sleep(25)
    may_call.set()
    if why == "given up":
        assert await task.result() == "gave it up"
        assert [one.outcome for one in house.steps(task, "pay")] == ["failed"]
        assert house.kinds(task).count("question_opened") == 0  # What its last try came to is known.
    await asyncio.sleep(5)

    assert tries.count(1) == 1  # A later attempt makes it again.


async def test_that_a_call_was_not_applied_is_known_when_its_next_try_is_cut_off(house: Theatre) -> None:
    has_failed = asyncio.Event()
    tries: list[int] = []

    @perdure.tool(risk="high", retries=3)
    async def pay() -> str:
        tries.append(1)
        if len(tries) == 1:
            has_failed.set()
            raise perdure.NotApplied("no connection")
        return "paid"

    @perdure.agent
    async def host() -> str:
        beside = asyncio.create_task(pay())
        await has_failed.wait()
        await asyncio.sleep(0)
        beside.cancel()
        return "went on"

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "went on"
    assert tries == [1]
    assert house.kinds(task).count("question_opened") == 0


async def test_a_call_that_says_after_its_caller_has_left_that_it_was_not_applied_is_made_again(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high", retries=3)
    async def pay() -> str:
        tries.append(1)
        if len(tries) == 1:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                raise perdure.NotApplied("the connection was never made") from None
        return "paid"

    @perdure.tool(risk="low", timeout=5, retries=2)
    async def order() -> str:
        return await pay()

    @perdure.agent
    async def host() -> str:
        return await order()

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "paid"
    assert len(tries) == 2
    assert house.kinds(task).count("question_opened") == 0
