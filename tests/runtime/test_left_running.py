"""Calls that a cut-off call leaves running, and its next try: what they made is found, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Literal, TypeVar

import pytest

import perdure
import perdure.sync as psync
from perdure.settings import Settings
from perdure.store import questions
from tests.held_calls import Ledger
from tests.theatre import Theatre

R = TypeVar("R")
SET_ASIDE = Settings(sweep_s=0.5, poll_ms=500, waiting_in_memory=0)


def left(made: Awaitable[R]) -> asyncio.Future[R]:
    """A call that goes on when whoever waits for it is cut off."""
    return asyncio.shield(asyncio.ensure_future(made))


@pytest.mark.parametrize("how", ["cleanup", "left", "thread"])
async def test_a_call_that_lingers_hides_nothing_that_was_made_in_it(house: Theatre, ledger: Ledger, how: str) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note("pay")
        return n

    @perdure.tool(risk="low")
    async def wrap(n: int, at: int) -> int:
        paid = await pay(n)
        if at == 1:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(30 if how == "cleanup" else 0)
        return paid

    @perdure.tool(risk="low", timeout=5, retries=2)
    async def outer() -> int:
        tries.append(1)
        made = wrap(1, len(tries))
        return await (left(made) if how == "left" else made)

    @perdure.tool(risk="low", timeout=5, retries=2)
    def outer_in_thread() -> int:
        tries.append(1)
        return psync.call(wrap, 1, len(tries))

    @perdure.agent
    async def host() -> int:
        return await (perdure.call(outer_in_thread) if how == "thread" else outer())

    await house.hire(host)
    await house.client.start(host)
    question = await house.question()

    assert "lies unused: pay(n=1)" in question.text
    assert ledger.done == ["pay"]


@pytest.mark.parametrize("drift", ["ask", "error"])
async def test_a_record_that_is_waited_for_is_no_sign_of_drift(
    house: Theatre, ledger: Ledger, drift: Literal["ask", "error"]
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        await asyncio.sleep(20 if n == 1 else 1)
        return n

    @perdure.tool(risk="low")
    async def prepare() -> int:
        await asyncio.sleep(12 if len(tries) == 1 else 1)
        return 2

    @perdure.tool(risk="low", timeout=10, retries=3)
    async def outer() -> list[int]:
        tries.append(1)

        async def second() -> int:
            return await pay(await prepare())

        async def first() -> int:
            return await left(pay(1))

        return list(await perdure.gather(first(), second()))

    @perdure.agent(drift=drift, retries=0)
    async def host() -> list[int]:
        return await outer()

    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == [1, 2]
    assert sorted(ledger.done) == ["pay 1", "pay 2"]
    assert house.store.read(questions.of_task, task.id) == []


@pytest.mark.parametrize("by", ["no input", "key"])
async def test_a_call_that_has_its_record_is_not_ambiguous_beside_a_later_one_left_running(
    house: Theatre, ledger: Ledger, by: str
) -> None:
    @perdure.tool(risk="low")
    async def poll() -> str:
        ledger.done.append("poll")
        await asyncio.sleep(0 if len(ledger.done) == 1 else 20)
        return "polled"

    @perdure.tool(risk="low")
    async def poll_for(n: int) -> str:
        return f"{await poll.options(key='inner')()} {n}"

    @perdure.tool(risk="low", timeout=5, retries=9)
    async def outer() -> str:
        if by == "key":
            await left(poll_for.options(key="o")(1))
            return await left(poll_for.options(key="o")(2))
        await left(poll())
        return await left(poll())

    @perdure.agent(retries=0)
    async def host() -> str:
        return await outer()

    assert (await house.play(host)).startswith("polled")
    assert ledger.done == ["poll", "poll"]


async def test_who_gives_up_waiting_for_one_left_running_works_as_a_running_task(
    house: Theatre, ledger: Ledger
) -> None:
    tries: list[int] = []

    @perdure.agent
    async def child() -> None:
        await perdure.sleep(200)

    @perdure.tool(risk="low")
    async def delegate() -> None:
        await child()

    @perdure.tool(risk="low")
    async def between() -> None:
        tries.append(1)
        made = delegate()
        if len(tries) == 1:
            await left(made)
        try:
            async with asyncio.timeout(5):
                await made
        except TimeoutError:
            await ledger.hold()

    @perdure.tool(risk="low", timeout=10, retries=1)
    async def outer() -> None:
        await between()

    @perdure.agent
    async def host() -> None:
        await outer()

    await house.hire(host, child)
    task = await house.client.start(host)
    await ledger.reached.wait()
    await asyncio.sleep(2)

    assert house.row(task).status == "running"


async def test_a_worker_that_stops_hands_back_who_waits_for_one_left_running(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.agent
    async def child() -> None:
        await perdure.sleep(2000)

    @perdure.tool(risk="low")
    async def delegate() -> None:
        await child()

    @perdure.tool(risk="low")
    async def between() -> None:
        tries.append(1)
        await asyncio.sleep(0 if len(tries) == 1 else 3)
        await left(delegate())

    @perdure.tool(risk="low", timeout=20, retries=1)
    async def outer() -> None:
        await between()

    @perdure.agent
    async def host() -> None:
        await outer()

    actor = await house.hire(host, child)
    task = await house.client.start(host)
    await house.until(lambda: len(tries) == 2)
    began = house.loop.time()
    await house.dismiss(actor)

    assert house.loop.time() - began < 5
    assert house.row(task).status == "pending"


async def test_whoever_was_cut_off_while_waiting_for_one_left_running_begins_nothing(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool(risk="low")
    async def linger() -> None:
        ledger.done.append("begun")
        await asyncio.sleep(1000)

    @perdure.tool(risk="low", timeout=5, retries=2)
    async def outer() -> None:
        await left(linger())

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            await outer()
        except TimeoutError:
            return "late"
        return "in time"

    assert await house.play(host) == "late"
    assert ledger.done == ["begun"]


@pytest.mark.parametrize("settings", [SET_ASIDE])
async def test_set_aside_for_a_person_a_call_that_runs_again_meets_no_recorded_error(house: Theatre) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=0)
    async def look() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return "seen"

    @perdure.tool(risk="high", ambiguous=(ConnectionError,))
    async def pay() -> str:
        return await look()

    @perdure.agent(retries=0)
    async def host() -> str:
        return await pay()

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await asyncio.sleep(5)
    await question.resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "seen"
    assert len(house.store.read(questions.of_task, task.id)) == 1


async def test_a_question_asked_in_a_thread_goes_when_its_call_is_settled(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high", timeout=5, reconcile=lambda _doubt: perdure.happened("found"))
    def outer() -> str:
        return psync.ask("pay it?")

    @perdure.agent
    async def host() -> str:
        found = await perdure.call(outer)
        await ledger.hold()
        return found

    await house.hire(host)
    task = await house.client.start(host)
    await ledger.reached.wait()
    await asyncio.sleep(5)

    assert await house.client.questions() == []
    assert house.row(task).status == "running"


async def test_a_question_about_drift_tells_of_a_record_as_it_is_by_now(house: Theatre, ledger: Ledger) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        await asyncio.sleep(8)
        return n

    @perdure.tool(risk="low", timeout=5, retries=2)
    async def outer() -> int:
        tries.append(1)
        await asyncio.sleep(0 if len(tries) == 1 else 4)
        return await left(pay(len(tries)))

    @perdure.agent
    async def host() -> int:
        return await outer()

    await house.hire(host)
    await house.client.start(host)
    question = await house.question()

    assert "lies unused: pay(n=1)" in question.text
    assert "may have happened" not in question.text


async def test_a_call_left_running_is_not_tried_again_and_leaves_nothing_unused(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low", retries=1)
    async def linger() -> None:
        await pay(1)
        await asyncio.sleep(10)
        raise ConnectionError("once")

    @perdure.tool(risk="low", timeout=5, retries=0)
    async def outer() -> None:
        await left(linger())

    @perdure.agent(retries=0, drift="error")
    async def host() -> int:
        with contextlib.suppress(TimeoutError):
            await outer()
        await asyncio.sleep(60)
        return await pay(2)

    assert await house.play(host) == 2
    assert ledger.done == ["pay 1", "pay 2"]


@pytest.mark.parametrize("settings", [SET_ASIDE])
async def test_run_again_a_call_does_not_take_another_way_than_the_one_it_paid_on(
    house: Theatre, ledger: Ledger
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="low", retries=0)
    async def look() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")

    @perdure.tool(risk="high")
    async def pay_here() -> None:
        ledger.note("here")

    @perdure.tool(risk="high")
    async def pay_there() -> None:
        ledger.note("there")

    @perdure.tool(risk="high", ambiguous=(OSError,))
    async def outer() -> str:
        first = len(ledger.done) == 0
        try:
            await look()
        except ConnectionError:
            await pay_there()
        else:
            await pay_here()
        if first:
            raise OSError("gone")
        return "paid"

    @perdure.agent(retries=0)
    async def host() -> str:
        return await outer()

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await asyncio.sleep(5)
    await question.resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "paid"
    assert ledger.done == ["there"]


@pytest.mark.parametrize("lingers", [True, False])
async def test_what_is_made_again_is_known_to_lie_inside_though_it_is_cut_off(
    house: Theatre, ledger: Ledger, lingers: bool
) -> None:
    lives: list[int] = []
    tries: list[int] = []
    is_paid = asyncio.Event()

    @perdure.tool(risk="high")
    async def pay(n: int) -> int:
        ledger.note(f"pay {n}")
        return n

    @perdure.tool(risk="low")
    async def wrap() -> int:
        if len(tries) == 2:
            await asyncio.sleep(20)
        paid = await pay(1)
        if len(lives) == 1:
            is_paid.set()
            await asyncio.sleep(500)
        return paid

    @perdure.tool(risk="low", timeout=10, retries=1)
    async def outer() -> int:
        tries.append(1)
        await asyncio.sleep(5 if len(tries) == 3 else 0)
        return await (left(wrap()) if lingers else wrap())

    @perdure.agent(retries=1, drift="error")
    async def host() -> list[int]:
        async def other() -> int:
            await asyncio.sleep(14)
            return await pay(2)

        lives.append(1)
        if len(lives) == 1:
            running = asyncio.ensure_future(outer())
            await is_paid.wait()
            assert not running.done()
            raise ConnectionError("again")
        return list(await perdure.gather(outer(), other()))

    assert await house.play(host) == [1, 2]
    assert ledger.done == ["pay 1", "pay 2"]


async def test_two_calls_with_one_key_that_are_open_at_once_are_refused_though_the_key_is_on_record(
    house: Theatre,
) -> None:
    lives: list[int] = []

    @perdure.tool(risk="low", retries=0)
    async def act(what: str) -> str:
        await asyncio.sleep(1)
        if what == "draw" and len(lives) == 1:
            raise ConnectionError("again")
        return what

    @perdure.agent(retries=1)
    async def host() -> str:
        lives.append(1)
        first = len(lives) == 1

        async def drawing() -> str:
            await asyncio.sleep(0 if first else 0.5)
            return await act.options(key="k")("draw")

        async def writing() -> str:
            await asyncio.sleep(3 if first else 0)
            return await act.options(key="k")("write")

        drawn, _ = await asyncio.gather(drawing(), writing(), return_exceptions=True)
        if isinstance(drawn, BaseException):
            raise drawn
        return drawn

    with pytest.raises(perdure.TaskFailed, match="another call that is still open"):
        await house.play(host)
