"""Waiting for a child, a timer, a delivery or a person: without a permit, without memory, and across crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.model.task import WaitKind
from perdure.settings import Settings
from tests.theatre import Theatre

FORGETFUL = Settings(
    sweep_s=0.5,
    poll_ms=500,
    question_expiry_s=120,
    waiting_in_memory=0,
    heartbeat_s=1,
    lease_s=6,
    permits=2,
    main_permits=1,
)
ONE_PERMIT = Settings(sweep_s=0.5, poll_ms=500, permits=1, main_permits=0)
FEW_PERMITS = Settings(sweep_s=0.5, poll_ms=500, permits=2, main_permits=0)


# -- permits --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [ONE_PERMIT])
async def test_fifty_levels_deep_with_one_permit_come_to_an_end(house: Theatre) -> None:
    @perdure.agent
    async def nested(depth: int) -> int:
        return depth if depth == 0 else 1 + await nested(depth - 1)

    await house.hire(nested)

    assert await house.run(nested, 50) == 50


@pytest.mark.parametrize("settings", [ONE_PERMIT])
async def test_a_task_that_waits_lets_others_run(house: Theatre) -> None:
    @perdure.agent
    async def sleeper() -> str:
        await perdure.sleep(120)
        return "slept"

    @perdure.agent
    async def quick() -> str:
        return "ran"

    await house.hire(sleeper, quick)
    slow = await house.client.start(sleeper)
    await house.until_status(slow, "waiting")
    before = house.loop.time()

    assert await house.run(quick) == "ran"
    assert house.loop.time() - before < 30
    assert await slow.result() == "slept"


@pytest.mark.parametrize("settings", [ONE_PERMIT])
async def test_who_goes_on_comes_before_who_begins(house: Theatre) -> None:
    began: list[str] = []

    @perdure.agent
    async def early() -> None:
        await perdure.receive("go")
        began.append("early goes on")

    @perdure.agent
    async def holder() -> None:
        began.append("holder")
        await asyncio.sleep(60)

    @perdure.agent
    async def late() -> None:
        began.append("late")

    await house.hire(early, holder, late)
    first = await house.client.start(early)
    await house.until_status(first, "waiting")
    await house.client.start(holder)
    await house.until(lambda: began)
    last = await house.client.start(late)
    await house.client.send(first.id, "go")
    await last.result()

    assert began == ["holder", "early goes on", "late"]


# -- what wakes -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [FORGETFUL])
@pytest.mark.parametrize("what", ["child", "timer", "answer", "delivery"])
async def test_a_task_set_aside_from_memory_is_woken_and_replayed(house: Theatre, what: str) -> None:
    runs: list[int] = []

    @perdure.agent
    async def child() -> str:
        await perdure.sleep(30)
        return "child"

    @perdure.agent
    async def host() -> Any:
        runs.append(1)
        match what:
            case "child":
                return await child()
            case "timer":
                await perdure.sleep(30)
                return "timer"
            case "answer":
                return await perdure.ask("Which one?")
            case _:
                return await perdure.receive("paid")

    actor = await house.hire(host, child)
    task = await house.client.start(host)
    await house.until(lambda: house.row(task).status == "waiting" and house.row(task).execution_id is None)
    assert not actor.worker.attempts
    if what == "answer":
        await (await house.question()).answer("answer", by="ana")
    elif what == "delivery":
        await house.client.send(task.id, "paid", "delivery")

    assert await task.result() == what
    assert len(runs) == 2
    assert "task_suspended" in house.kinds(task)
    assert [one.status for one in house.attempts(task)] == ["suspended", "completed"]
    assert house.row(task).recoveries == 0


async def test_a_delivery_that_comes_first_is_taken_at_once(house: Theatre) -> None:
    @perdure.agent
    async def host() -> list[Any]:
        await perdure.sleep(60)
        return [await perdure.receive("paid"), await perdure.receive("paid")]

    await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "paid", 1, key="evt_1")
    await house.client.send(task.id, "paid", 1, key="evt_1")  # the same event, sent twice
    await house.client.send(task.id, "paid", 2, key="evt_2")

    assert await task.result() == [1, 2]


async def test_nothing_sent_and_null_sent_are_two_things_live_and_on_replay(house: Theatre) -> None:
    reached = asyncio.Event()

    @perdure.agent
    async def host() -> list[str]:
        found: list[str] = []
        for _ in range(2):
            try:
                found.append(f"got {await perdure.receive('paid', timeout=60)}")
            except TimeoutError:
                found.append("too late")
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return found

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "paid", None)
    await reached.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == ["got None", "too late"]


async def test_a_sleep_goes_on_across_a_crash_and_is_not_begun_anew(house: Theatre) -> None:
    @perdure.agent
    async def host() -> None:
        await perdure.sleep(600)

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    await asyncio.sleep(500)
    house.kill(first)
    await house.hire(host)
    await task.result()

    assert 600 <= house.loop.time() < 620
    assert house.row(task).recoveries == 0  # interrupted while waiting: nothing to count


async def test_an_answer_given_while_nobody_works_is_found(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        return await perdure.ask("Which one?", type=str, to="ana")

    first = await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    house.kill(first)
    await asked.answer("this one", by="ana")
    await house.hire(host)

    assert await task.result() == "this one"
    assert house.kinds(task).count("question_opened") == 1


async def test_an_open_question_expires_only_where_it_was_told_to(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        try:
            return await perdure.ask("Which one?", expires=60)
        except perdure.Expired:
            return "nobody"

    await house.hire(host)

    assert await house.run(host) == "nobody"
    assert house.loop.time() < 120


async def test_a_task_that_starts_again_after_damage_receives_again_what_it_had_received(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        paid = await perdure.receive("paid", type=str)
        await perdure.sleep(100)
        return paid

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "paid", "100 EUR", key="evt_1")
    await house.until(lambda: "timer" in [one.event_kind for one in house.steps(task)])
    house.kill(first)
    house.execute("UPDATE steps SET output = x'00' WHERE name = 'receive'")
    await house.hire(host)
    await (await house.question(kind="resume")).approve(by="ana")

    assert await task.result(timeout=600) == "100 EUR"
    house.execute("UPDATE steps SET output = NULL, outcome = NULL, ended_at = NULL WHERE output = x'00'")  # mended


async def test_two_receives_of_one_name_get_one_delivery_each(house: Theatre) -> None:
    @perdure.agent
    async def host() -> list[Any]:
        return sorted(await perdure.gather(perdure.receive("x"), perdure.receive("x"), perdure.receive("x")))

    await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "waiting")
    for n in (1, 2, 3):
        await house.client.send(task.id, "x", n)

    assert await task.result() == [1, 2, 3]


# -- several at once ------------------------------------------------------------------------


async def test_a_gather_of_children_is_one_wait_that_needs_all(house: Theatre) -> None:
    @perdure.agent
    async def child(n: int) -> int:
        await perdure.sleep(n * 100)
        return n

    @perdure.agent
    async def host() -> list[int]:
        return await perdure.gather(*(child(n) for n in (1, 2, 3)))

    await house.hire(host, child)
    task = await house.client.start(host)
    await house.until(lambda: any(w.kind is WaitKind.CHILDREN for w in house.row(task).waiting_for))
    (wait,) = house.row(task).waiting_for

    assert set(wait.keys) == {one.id for one in house.children(task)}
    assert await task.result() == [1, 2, 3]
    assert house.kinds(task).count("task_restored") == 1


@pytest.mark.parametrize("settings", [FORGETFUL])
async def test_a_gather_set_aside_from_memory_wakes_once_when_all_have_ended(house: Theatre) -> None:
    @perdure.agent
    async def child(n: int) -> int:
        await perdure.sleep(n * 100)
        return n

    @perdure.agent
    async def host() -> list[int]:
        return await perdure.gather(*(child(n) for n in (1, 2, 3)))

    await house.hire(host, child)
    task = await house.client.start(host)

    assert await task.result() == [1, 2, 3]
    assert house.kinds(task).count("task_woken") == 1
    assert house.row(task).attempt == 2


async def test_a_branch_goes_on_when_its_own_wait_is_over(house: Theatre) -> None:
    seen: list[str] = []

    @perdure.agent
    async def host() -> list[str]:
        async def branch(name: str, wait_s: float) -> str:
            await perdure.sleep(wait_s)
            seen.append(name)
            return name

        return list(await perdure.gather(branch("late", 200), branch("soon", 100)))

    await house.hire(host)

    assert await house.run(host) == ["late", "soon"]
    assert seen == ["soon", "late"]


async def test_a_call_beside_a_wait_keeps_the_task_running(house: Theatre) -> None:
    statuses: list[str] = []

    @perdure.tool(risk="low")
    async def work(task_id: str) -> None:
        await asyncio.sleep(50)
        statuses.append(house.row(task_id).status)

    @perdure.agent
    async def host() -> None:
        await perdure.gather(work(perdure.current().task_id), perdure.sleep(10))

    await house.hire(host)
    await house.run(host)

    assert statuses == ["running"]


async def test_a_wait_that_its_agent_cancels_leaves_the_others_alone(house: Theatre) -> None:
    @perdure.agent
    async def host() -> list[Any]:
        async def impatient() -> str:
            try:
                async with asyncio.timeout(30):
                    return str(await perdure.receive("never"))
            except TimeoutError:
                return "gave up"

        return list(await perdure.gather(impatient(), perdure.receive("x")))

    await house.hire(host)
    task = await house.client.start(host)
    await asyncio.sleep(100)
    await house.client.send(task.id, "x", "here")

    assert await task.result() == ["gave up", "here"]


async def test_children_that_nobody_awaited_are_joined_before_the_task_ends(house: Theatre) -> None:
    left: list[asyncio.Task[Any]] = []

    @perdure.agent
    async def child() -> str:
        await perdure.sleep(100)
        return "child"

    @perdure.agent
    async def host() -> str:
        left.append(asyncio.ensure_future(child()))
        await asyncio.sleep(1)
        return "host"

    await house.hire(host, child)
    task = await house.client.start(host)

    assert await task.result() == "host"
    assert [one.status for one in house.children(task)] == ["completed"]
    assert house.loop.time() >= 100


async def test_a_child_behind_hundreds_of_others_is_joined_too(house: Theatre) -> None:
    left: list[asyncio.Task[Any]] = []

    @perdure.agent
    async def child(number: int) -> int:
        await perdure.sleep(100 if number == 200 else 0.1)
        return number

    @perdure.agent
    async def host() -> str:
        await perdure.gather(*(child(number) for number in range(200)))
        left.append(asyncio.ensure_future(child(200)))
        await asyncio.sleep(1)
        return "host"

    await house.hire(host, child)
    task = await house.client.start(host)

    assert await task.result() == "host"
    assert {one.status for one in house.every_task()} == {"completed"}


@pytest.mark.parametrize("settings", [FORGETFUL])
async def test_joining_children_can_be_set_aside_too(house: Theatre) -> None:
    left: list[asyncio.Task[Any]] = []

    @perdure.agent
    async def child() -> None:
        await perdure.sleep(100)

    @perdure.agent
    async def host() -> str:
        left.append(asyncio.ensure_future(child()))
        await asyncio.sleep(0.5)
        return "host"

    await house.hire(host, child)
    task = await house.client.start(host)

    assert await task.result() == "host"
    assert "task_suspended" in house.kinds(task)
    assert len(house.children(task)) == 1


async def test_a_refused_child_is_an_error_of_its_branch_live_and_on_replay(house: Theatre) -> None:
    reached = asyncio.Event()

    @perdure.agent
    async def child() -> str:
        return "child"

    @perdure.agent(budget=perdure.Budget(runs=1))
    async def host() -> list[str]:
        found = [await child()]
        try:
            found.append(await child())
        except perdure.Refused as refused:
            found.append(refused.limits[0])
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return found

    first = await house.hire(host, child)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host, child)

    assert await task.result() == ["child", "runs 2 of 1 (limit of host)"]
    assert len(house.children(task)) == 1
