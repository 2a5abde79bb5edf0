"""A worker that stops, recovers and tells: what it hands back, what it parks, what it counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.runtime.attempt import Stop
from perdure.settings import Settings
from perdure.store import aio, tasks
from tests.theatre import Theatre

LANES = Settings(sweep_s=0.5, poll_ms=500, permits=4, main_permits=1)
BRIEF_GRACE = Settings(sweep_s=0.5, poll_ms=500, shutdown_grace_s=10)


# -- stopping -------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [BRIEF_GRACE])
async def test_a_stop_hands_back_what_is_between_two_steps_and_lets_calls_in_flight_end(house: Theatre) -> None:
    ended: list[str] = []

    @perdure.tool
    async def send(what: str) -> str:
        await asyncio.sleep(5)
        ended.append(what)
        return what

    @perdure.agent
    async def between() -> str:
        await send("first")
        await asyncio.sleep(1000 if len(house.actors) == 1 else 0)
        return "between"

    @perdure.agent
    async def inside() -> list[str]:
        return [await send("one"), await send("two")]

    @perdure.agent
    async def waiting() -> Any:
        return await perdure.receive("go")

    first = await house.hire(between, inside, waiting)
    started = [await house.client.start(one) for one in (between, waiting)]
    await house.until(lambda: ended == ["first"])
    started.append(await house.client.start(inside))
    await house.until(lambda: len(house.steps(started[2])) == 1)
    stopped = await house.dismiss(first)

    assert (stopped.handed_back, stopped.interrupted) == (3, 0)
    assert ended == ["first", "one"]
    assert {house.row(task).status for task in started} == {"pending"}
    assert [one.status for task in started for one in house.attempts(task)] == ["suspended"] * 3
    await house.hire(between, inside, waiting)
    await house.client.send(started[1].id, "go", 7)
    assert [await task.result() for task in started] == ["between", 7, ["one", "two"]]
    assert ended == ["first", "one", "two"]
    assert [house.row(task).recoveries for task in started] == [0, 0, 0]
    assert all("question_opened" not in house.kinds(task) for task in started)


@pytest.mark.parametrize("settings", [BRIEF_GRACE])
async def test_a_call_that_does_not_end_within_the_grace_time_is_interrupted(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def slow() -> str:
        await asyncio.sleep(1000 if len(house.actors) == 1 else 1)
        return "slow"

    @perdure.agent
    async def host() -> str:
        return await slow()

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    before = house.loop.time()
    stopped = await house.dismiss(first)

    assert (stopped.handed_back, stopped.interrupted) == (0, 1)
    assert 10 <= house.loop.time() - before < 12
    await house.hire(host)
    assert await task.result() == "slow"


@pytest.mark.parametrize("settings", [BRIEF_GRACE])
async def test_branches_begin_nothing_new_while_a_worker_stops(house: Theatre) -> None:
    begun: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        begun.append(n)
        await asyncio.sleep(3)
        return n

    @perdure.agent
    async def host() -> list[int]:
        async def branch(start: int) -> list[int]:
            await perdure.sleep(start)  # so that there is always a call in flight
            return [await act(10 * start + n) for n in range(5)]

        found = await perdure.gather(branch(1), branch(2), branch(3))
        return sorted(n for some in found for n in some)

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: len(begun) == 3)
    stopped = await house.dismiss(first)

    assert (stopped.handed_back, stopped.interrupted) == (1, 0)
    assert len(begun) == 3
    await house.hire(host)
    assert len(await task.result()) == 15
    assert len(begun) == len(set(begun)) == 15


async def test_an_agent_that_swallows_its_cancellation_does_not_keep_a_worker_from_ending(house: Theatre) -> None:
    let_go = asyncio.Event()

    @perdure.agent
    async def host() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    stopped = await house.dismiss(first)
    let_go.set()

    assert stopped.interrupted == 1
    assert house.row(task).status == "running"  # it held on to its task to the end; the next worker takes it over


async def test_twenty_restarts_during_a_deploy_cost_no_retry_and_no_recovery(house: Theatre) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> int:
        for n in range(25):
            await act(n)
            await perdure.sleep(2)
        return len(made)

    task = await house.client.start(host)
    for _ in range(20):
        actor = await house.hire(host)
        await asyncio.sleep(2)
        await house.dismiss(actor)
    await house.hire(host)

    assert await task.result() == 25
    assert made == list(range(25))
    assert (house.row(task).failures, house.row(task).recoveries) == (0, 0)
    assert house.row(task).attempt >= 20


async def test_a_task_claimed_while_its_worker_stops_is_handed_back_too(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        await asyncio.sleep(1000 if len(house.actors) == 1 else 0)
        return "ran"

    actor = await house.hire(host)
    task = await house.client.start(host)
    actor.worker.stop()
    stopped = await actor.running

    assert house.row(task).status == "pending"
    assert stopped.interrupted == 0
    await house.hire(host)
    assert await task.result() == "ran"


async def test_a_claim_under_way_when_its_worker_stops_leaves_no_task_behind(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> None:
        await asyncio.sleep(1000)

    committed, told = asyncio.Event(), asyncio.Event()
    call_softly = aio.call_softly

    async def tell_late(store: Any, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        done = await call_softly(store, operation, *args, **kwargs)
        if operation is tasks.claim and done:
            committed.set()
            await told.wait()
        return done

    monkeypatch.setattr(aio, "call_softly", tell_late)
    actor = await house.hire(host)
    task = await house.client.start(host)
    await committed.wait()
    actor.worker.stop()
    await asyncio.sleep(1)
    told.set()
    stopped = await actor.running

    assert (house.row(task).status, stopped.handed_back) == ("pending", 1)


async def test_a_task_seen_unowned_the_moment_it_was_handed_back_counts_as_handed_back(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> None:
        await asyncio.sleep(1000)

    actor = await house.hire(host)
    await house.until_status(await house.client.start(host), "running")
    (attempt,) = actor.worker.attempts.values()
    write = attempt.journal.write

    async def write_and_be_looked_at(*args: Any, **kwargs: Any) -> None:
        await write(*args, **kwargs)
        attempt.stop(Stop.LOST)  # As the look at what is owned says when it comes before the writer's own news.

    monkeypatch.setattr(attempt.journal, "write", write_and_be_looked_at)
    stopped = await house.dismiss(actor)

    assert (stopped.handed_back, stopped.interrupted) == (1, 0)


# -- recovery -------------------------------------------------------------------------------


async def test_a_task_that_crashes_its_workers_is_parked_and_a_yes_counts_from_zero(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        if len(house.actors) <= 4:
            await asyncio.sleep(1e6)
        return "ran"

    task = await house.client.start(host)
    for crash in range(1, 5):
        actor = await house.hire(host)
        await house.until(lambda crash=crash: house.row(task).attempt == crash)  # type: ignore[misc]  # bound to this round
        house.kill(actor)
    await house.hire(host)
    asked = await house.question()
    await asked.approve(by="ana")

    assert asked.kind == "resume"
    assert "3 times" in asked.text
    assert await task.result() == "ran"


async def test_progress_ends_a_row_of_fruitless_recoveries(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        return n

    @perdure.agent
    async def host() -> str:
        for n in range(len(house.actors)):
            await look(n)
        if len(house.actors) <= 6:
            await asyncio.sleep(1e6)
        return "ran"

    task = await house.client.start(host)
    for crash in range(1, 7):
        actor = await house.hire(host)
        await house.until(lambda crash=crash: len(house.steps(task)) == crash)  # type: ignore[misc]  # bound to this round
        house.kill(actor)
    await house.hire(host)

    assert await task.result() == "ran"
    assert "question_opened" not in house.kinds(task)


@pytest.mark.parametrize(("options", "kind"), [({"risk": "high"}, "resume"), ({"resume": "ask"}, "resume")])
async def test_an_agent_may_want_a_yes_before_it_goes_on(house: Theatre, options: Any, kind: str) -> None:
    @perdure.agent(**options)
    async def host() -> str:
        await asyncio.sleep(1e6 if len(house.actors) == 1 else 0)
        return "ran"

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    house.kill(first)
    await house.hire(host)
    asked = await house.question()
    await asked.approve(by="ana")

    assert asked.kind == kind
    assert await task.result() == "ran"


# -- telling --------------------------------------------------------------------------------


async def test_a_notify_that_hangs_or_fails_stops_no_sweep(house: Theatre) -> None:
    told: list[str] = []

    async def notify(question: Any) -> None:
        told.append(question.id)
        if len(told) == 1:
            raise RuntimeError("no route")
        await asyncio.sleep(1e6)

    @perdure.agent(deadline=60)
    async def overdue() -> None:
        await perdure.ask("Which one?")

    await house.hire(overdue, notify=notify)
    task = await house.client.start(overdue)
    with pytest.raises(perdure.TaskTimedOut):
        await task.result()

    assert len(told) == 2  # told again after it failed
    assert house.loop.time() < 120


async def test_usage_is_counted_from_results_and_from_what_is_told(house: Theatre) -> None:
    class Reply:
        def __init__(self) -> None:
            self.text = "hi"

    async def with_mapping() -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}

    async def telling() -> str:
        perdure.usage(input_tokens=7, output_tokens=3, cost=0.25)
        perdure.usage(input_tokens=1)
        return "told"

    @perdure.agent
    async def host() -> None:
        await perdure.model(with_mapping)
        await perdure.model(telling)

    await house.hire(host)
    task = await house.client.start(host)
    await task.result()
    row = house.row(task)

    assert (row.prompt_tokens, row.completion_tokens, row.cost, row.iterations) == (18, 8, 0.25, 2)


async def test_a_budget_that_is_used_up_can_be_caught_to_end_in_good_order(house: Theatre) -> None:
    made: list[int] = []

    async def think() -> dict[str, Any]:
        made.append(1)
        return {"usage": {"input_tokens": 600, "output_tokens": 0}}

    @perdure.agent(budget=perdure.Budget(tokens=1000))
    async def host() -> str:
        try:
            while True:
                await perdure.model(think)
        except perdure.BudgetExceeded as over:
            return over.limit

    @perdure.agent(budget=perdure.Budget(tokens=1000))
    async def careless() -> None:
        while True:
            await perdure.model(think)

    await house.hire(host, careless)
    assert await house.run(host) == "tokens 1,200 of 1,000 (limit of host)"
    assert len(made) == 2
    task = await house.client.start(careless)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert house.outcome(task) == ("failed", "perdure.errors.BudgetExceeded")
    assert len(house.attempts(task)) == 1


async def test_a_budget_holds_for_calls_that_begin_at_once(house: Theatre) -> None:
    made: list[int] = []

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        made.append(n)
        await asyncio.sleep(1)
        return n

    @perdure.agent(budget=perdure.Budget(tool_calls=3))
    async def host() -> int:
        found = await perdure.gather(*(look(n) for n in range(10)), return_exceptions=True)
        return sum(isinstance(one, perdure.BudgetExceeded) for one in found)

    assert await house.play(host) == 7
    assert len(made) == 3


async def test_an_agent_that_is_set_aside_is_told_once_also_when_its_deadline_passes_meanwhile(house: Theatre) -> None:
    told: list[float] = []

    @perdure.agent(deadline=2)
    async def host() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ends = house.loop.time() + 5
            while house.loop.time() < ends:
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    told.append(house.loop.time())

    actor = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    await house.dismiss(actor)

    assert told == []
