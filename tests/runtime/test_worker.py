"""A worker: what it claims first, what it survives, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure.definitions import AgentCall, call_of
from perdure.errors import InvariantError, StoreBusy, StoreError
from perdure.model.task import Fence, Lane
from perdure.runtime.durable import new_task
from perdure.runtime.sweeper import Sweeper
from perdure.settings import Settings
from perdure.store import admission, aio, ends, steps, tasks, traces
from perdure.store.database import Unit, Waiter
from perdure.testing.actor import Actor
from perdure.testing.line import Line
from tests.theatre import Theatre
from tests.world import new_step, packed

LANES = Settings(sweep_s=0.5, poll_ms=500, permits=4, main_permits=1)
BRIEF_GRACE = Settings(sweep_s=0.5, poll_ms=500, shutdown_grace_s=10)


@dataclass
class Tokens:
    input_tokens: int
    output_tokens: int


@dataclass
class Reply:
    text: str
    usage: Tokens


# -- claiming -------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [LANES])
async def test_a_main_task_starts_at_once_behind_a_thousand_subagents(house: Theatre) -> None:
    @perdure.agent
    async def background() -> None:
        await asyncio.sleep(100)

    @perdure.agent
    async def urgent() -> str:
        return "at once"

    await house.client.start_all(background.bind() for _ in range(1000))
    actor = await house.hire(background, urgent)
    await house.until(lambda: len(actor.worker.attempts) == 3)  # the fourth permit is kept for people
    call = call_of(urgent)
    assert isinstance(call, AgentCall)
    new = new_task(call, key=None, lane=Lane.MAIN)
    admitted = await aio.call(house.store, admission.admit, [new])
    before = house.loop.time()

    assert await house.client.task(admitted.tasks[0].id).result() == "at once"
    assert house.loop.time() - before < 1


@pytest.mark.parametrize("settings", [LANES])
async def test_priority_goes_before_age_within_a_lane(house: Theatre) -> None:
    ran: list[int] = []

    @perdure.agent
    async def one(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(1)

    for n in range(3):
        await house.client.start(one, n)
    last = await house.client.start(one.options(priority=9), 99)
    await house.hire(one)
    await last.result()

    assert ran[0] == 99


async def test_a_task_of_an_agent_that_nobody_has_stays_pending(house: Theatre) -> None:
    @perdure.agent
    async def known() -> str:
        return "ran"

    @perdure.agent
    async def unknown() -> str:
        return "never"

    await house.hire(known)
    task = await house.client.start(unknown)
    assert await house.run(known) == "ran"
    await asyncio.sleep(60)

    assert house.row(task).status == "pending"
    assert house.attempts(task) == []


async def test_a_pinned_version_goes_only_to_workers_that_have_it(house: Theatre) -> None:
    @perdure.agent(name="lead", version="1")
    async def old() -> str:
        return "old"

    @perdure.agent(name="lead", version="2")
    async def new() -> str:
        return "new"

    task = await house.client.start(old)
    await house.hire(new)
    await asyncio.sleep(30)
    assert house.row(task).status == "pending"
    await house.hire(old, new)

    assert await task.result() == "old"


async def test_one_task_whose_input_is_damaged_does_not_stop_the_other_nine(house: Theatre) -> None:
    @perdure.agent
    async def host(n: int) -> int:
        return n

    started = [await house.client.start(host, n) for n in range(10)]
    house.execute(
        "UPDATE task_inputs SET prompt = :blob WHERE task = (SELECT n FROM tasks WHERE id = :id)",
        blob=b"Xnonsense",
        id=started[0].id,
    )
    await house.hire(host)

    assert [await task.result() for task in started[1:]] == list(range(1, 10))
    asked = await house.question()
    assert (asked.kind, asked.task_id) == ("resume", started[0].id)
    assert house.row(started[0]).status == "interrupted"


async def test_a_task_whose_trace_is_too_long_to_replay_is_asked_about_and_begins_anew(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> str:
        for _ in range(5):
            await perdure.sleep(1)
        await perdure.sleep(100)
        return "done"

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: house.row(task).step_count > 5)
    house.kill(first)
    monkeypatch.setattr(traces, "MOST_RECORDS", 5)
    await house.hire(host)
    asked = await house.question(kind="resume")

    assert "more than the 5 that are replayed at once" in asked.text
    assert "none of them is damaged" in asked.text
    await asked.approve(by="ana")
    assert await task.result(timeout=600) == "done"


@pytest.mark.parametrize("arguments", [{"n": 1, "extra": 2}, {}])
async def test_arguments_that_do_not_fit_the_agent_fail_its_task_and_no_other(
    house: Theatre, arguments: dict[str, int]
) -> None:
    @perdure.agent
    async def host(n: int) -> int:
        return n

    bad = await house.client.start("host", **arguments)
    good = await house.client.start("host", n=5)
    await house.hire(host)
    with pytest.raises(perdure.TaskFailed):
        await bad.result()

    assert await good.result() == 5
    assert house.outcome(bad) == ("failed", "TypeError")


async def test_records_that_cannot_be_read_are_a_persons_matter_and_a_yes_starts_anew(house: Theatre) -> None:
    reached = asyncio.Event()
    ran: list[int] = []

    @perdure.tool(risk="low")
    async def look() -> int:
        ran.append(1)
        return len(ran)

    @perdure.agent
    async def host() -> int:
        found = await look()
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return found

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    house.execute("UPDATE steps SET output = :blob WHERE name = 'look'", blob=b"Xnonsense")
    await house.hire(host)
    asked = await house.question()
    await asked.approve(by="ana")

    assert asked.kind == "resume"
    assert await task.result() == 2
    house.execute("UPDATE steps SET output = :blob WHERE name = 'look'", blob=b"J1")


# -- ownership ------------------------------------------------------------------------------


async def test_a_heartbeat_during_a_claim_takes_nothing_for_lost(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        await asyncio.sleep(1)
        return "ran"

    actor = await house.hire(host)
    beating = asyncio.ensure_future(_beat_always(actor))
    started = [await house.client.start(host) for _ in range(40)]
    results = [await task.result() for task in started]
    beating.cancel()
    await asyncio.wait({beating})

    assert results == ["ran"] * 40
    assert all(len(house.attempts(task)) == 1 for task in started)


async def _beat_always(actor: Actor) -> None:
    while True:
        await actor.worker.beat()
        await asyncio.sleep(0.01)


async def test_a_write_after_the_lease_was_taken_over_is_refused_and_the_attempt_ends_quietly(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    made: list[int] = []

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> str:
        if len(house.actors) == 1:
            reached.set()
            await go_on.wait()
        await look(len(house.actors))
        return f"worker {len(house.actors)}"

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    claim = house.row(task)
    first.process.hold()
    assert house.store.call(tasks.interrupt, task.id, str(claim.execution_id), reason="taken over")
    await house.hire(host)
    assert await task.result() == "worker 2"
    with caplog.at_level(logging.ERROR):
        go_on.set()
        first.process.release(house.loop)
        await asyncio.sleep(20)

    assert made == [2, 2]  # Of low risk, so that it may run and is only not recorded.
    assert [one.attempt for one in house.steps(task)] == [2]
    assert not first.running.done()
    assert [one.message for one in caplog.records] == []
    fence = Fence(task.id, str(claim.execution_id), claim.generation)
    with pytest.raises(perdure.LeaseLost):
        house.store.call(steps.begin, fence, new_step("late"))
    with pytest.raises(perdure.LeaseLost):
        house.store.call(ends.complete, fence, packed("late"), risk_seen="low")


async def test_an_attempt_that_a_worker_no_longer_holds_is_interrupted_and_taken_up_again(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        if len(house.attempts(task)) == 1:
            await asyncio.sleep(1e6)
        return "ran"

    actor = await house.hire(host)
    task = await house.client.start(host)
    await house.until_status(task, "running")
    actor.worker.attempts.clear()  # as if it had been forgotten

    assert await task.result() == "ran"
    assert [one.status for one in house.attempts(task)] == ["interrupted", "completed"]


# -- a store that fails ---------------------------------------------------------------------


class Failing:
    """Lets a worker's writes fail for a while, or what it reads."""

    def __init__(self, actor: Actor, error: Callable[[], StoreError], *, what: str = "write") -> None:
        self._line: Line = actor.line
        self._what = what
        self._real = getattr(actor.line, what)
        self._error = error
        self.refused = 0

    def fail(self) -> None:
        """From now on every durable write fails, or every read."""
        setattr(self._line, self._what, self._refuse)

    def work(self) -> None:
        """From now on they go through."""
        setattr(self._line, self._what, self._real)

    def _refuse(self, unit: Unit[Any], waiter: Waiter) -> None:
        self.refused += 1
        asyncio.get_running_loop().call_soon(waiter.deliver, None, self._error())


@pytest.mark.parametrize("what", ["write", "read"])
async def test_a_busy_store_is_asked_again_and_the_agent_never_sees_it(house: Theatre, what: str) -> None:
    failing: list[Failing] = []

    @perdure.tool(risk="low")
    async def look() -> str:
        failing[0].fail()
        house.loop.call_later(30, failing[0].work)
        return "seen"

    @perdure.agent
    async def host() -> str:
        draft = await perdure.artifact("draft", "a text")
        seen = await look()
        assert await perdure.read_artifact(draft) == b"a text"
        return seen

    actor = await house.hire(host)
    failing.append(Failing(actor, lambda: StoreBusy("held by 7", holder_pid=7), what=what))
    task = await house.client.start(host)

    assert await task.result() == "seen"
    assert failing[0].refused > 10
    assert len(house.attempts(task)) == 1


async def test_a_store_that_was_away_for_a_moment_costs_the_attempt_and_not_the_worker(house: Theatre) -> None:
    failing: list[Failing] = []
    ran: list[int] = []

    @perdure.tool(risk="low")
    async def look() -> str:
        ran.append(1)
        if len(ran) == 1:
            failing[0].fail()
            house.loop.call_later(3, failing[0].work)
        return "seen"

    @perdure.agent
    async def host() -> str:
        return await look()

    actor = await house.hire(host)
    failing.append(Failing(actor, lambda: StoreError("the server has gone away")))
    task = await house.client.start(host)

    assert await task.result() == "seen"
    assert not actor.running.done()
    assert len(house.attempts(task)) == 2


async def test_a_task_that_was_let_go_is_taken_up_though_its_agent_lingers(house: Theatre) -> None:
    failing: list[Failing] = []
    begun: list[float] = []

    @perdure.tool(risk="low")
    async def look() -> str:
        if len(begun) == 1:
            failing[0].fail()
            house.loop.call_later(0.5, failing[0].work)
        return "seen"

    @perdure.agent
    async def host() -> str:
        begun.append(house.loop.time())
        try:
            return await look()
        finally:
            if len(begun) == 1:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1800)
                await asyncio.sleep(1800)

    actor = await house.hire(host)
    failing.append(Failing(actor, lambda: StoreError("the server has gone away")))
    task = await house.client.start(host)

    assert await task.result() == "seen"
    assert begun[1] - begun[0] < 60


@pytest.mark.parametrize("order", [("9", "10"), ("10", "9")])
async def test_a_task_without_a_version_is_run_by_the_one_declared_last(house: Theatre, order: tuple[str, str]) -> None:
    def of(version: str) -> perdure.Agent[[], str]:
        @perdure.agent(name="lead", version=version)
        async def lead() -> str:
            return version

        return lead

    await house.hire(*(of(version) for version in order))
    task = await house.client.start("lead")

    assert await task.result() == order[-1]


# -- its loops ------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [BrokenPipeError, asyncio.CancelledError, GeneratorExit])
async def test_a_listener_that_fails_is_logged_and_touches_neither_the_tasks_nor_their_permits(
    house: Theatre, caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    heard: list[str] = []

    def hear(what: str, facts: Mapping[str, Any]) -> None:
        heard.append(what)
        raise failure("whoever reads this has gone")

    @perdure.agent
    async def one(n: int) -> int:
        await asyncio.sleep(3)
        return n

    actor = await house.hire(one, on_event=hear)
    handles = await house.client.start_all(one.bind(n) for n in range(3))

    assert [await handle.result(timeout=100) for handle in handles] == [0, 1, 2]
    assert sorted(heard) == ["ended"] * 3 + ["started"] * 3
    assert "failed at 'started'" in caplog.text
    await house.dismiss(actor)


@pytest.mark.parametrize("end", [asyncio.CancelledError, None, RuntimeError])
async def test_a_loop_that_ends_although_nobody_stopped_the_worker_ends_it_by_an_error(
    house: Theatre,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: type[BaseException] | None,
) -> None:
    @perdure.agent
    async def idle() -> None: ...

    async def ending(_sweeper: Sweeper) -> None:
        if end is not None:
            raise end

    monkeypatch.setattr(Sweeper, "tell_always", ending)
    actor = await house.hire(idle)
    with pytest.raises(end if end is RuntimeError else InvariantError):
        await actor.running

    assert f"worker {actor.worker.instance_id} ends" in caplog.text
