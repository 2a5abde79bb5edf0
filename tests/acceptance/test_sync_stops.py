"""What ends a synchronous agent from outside, and what its threads may still do: it is told by exceptions that are no
Exceptions, and whatever it does with them, nothing of it is written or called any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perdure.sync as blocking
from perdure import App, Question, TaskCancelled, TaskHandle, tool
from perdure.errors import Cancelled, NoTaskContext, Suspend
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.store import aio, tasks

BRIEFLY = Settings(poll_ms=20, sweep_s=0.02, shutdown_grace_s=5)
LIMIT_S = 30


class Agent:
    """An agent that is watched from outside: what it did, and how it was stopped."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.stopped_by: list[type[BaseException]] = []
        self.reached = threading.Event()
        self.ended = threading.Event()

    def until_stopped(self, wait: Callable[[], object]) -> None:
        """Wait inside a call, and note how it ended."""
        try:
            self.reached.set()
            wait()
        except Exception:  # noqa: BLE001  # An agent that catches every Exception must not catch this one.
            self.made.append("caught")
        except BaseException as stop:
            self.stopped_by.append(type(stop))
            raise
        finally:
            self.ended.set()


async def until(event: threading.Event) -> None:
    """Until a thread has said so."""
    assert await asyncio.to_thread(event.wait, LIMIT_S)


async def until_status(task: TaskHandle[str], status: str) -> None:
    """Until the task has come so far."""
    async with asyncio.timeout(LIMIT_S):
        while (await task.info()).status != status:
            await asyncio.sleep(0.01)


def new_app(tmp_db: Path, *agents: blocking.SyncAgent[..., object], settings: Settings = BRIEFLY) -> App:
    return App(str(tmp_db), agents=agents, settings=settings)


# -- how it is told ----------------------------------------------------------------------------


async def test_a_shutdown_suspends_it_and_the_next_worker_goes_on_from_its_records(tmp_db: Path) -> None:
    watched = Agent()

    @blocking.tool(risk="low")
    def look() -> str:
        watched.made.append("look")
        return "seen"

    @blocking.agent
    def waiter() -> str:
        found = look()
        watched.until_stopped(lambda: blocking.receive("go"))
        return found

    async with new_app(tmp_db, waiter) as app:
        async with app.worker() as worker:
            task = await app.start(waiter)
            await until(watched.reached)
        after_the_first = (await task.info()).status
        await app.send(task.id, "go")
        async with app.worker():
            result = await task.result(timeout=LIMIT_S)
        attempts = (await task.info()).attempt

    assert watched.stopped_by == [Suspend]
    assert worker.stopped.interrupted == 0
    assert after_the_first in ("pending", "waiting")
    assert (result, attempts) == ("seen", 2)
    assert watched.made == ["look"]


async def test_beyond_what_may_wait_in_memory_it_is_suspended_and_comes_back(tmp_db: Path) -> None:
    watched = Agent()

    @blocking.agent
    def waiter() -> str:
        watched.until_stopped(lambda: blocking.receive("go"))
        return "went"

    app = new_app(tmp_db, waiter, settings=BRIEFLY.override({"waiting_in_memory": 0}))
    async with app, app.worker() as worker:
        task = await app.start(waiter)
        await until_status(task, "waiting")
        await worker.beat()
        await until(watched.ended)
        await app.send(task.id, "go")
        result = await task.result(timeout=LIMIT_S)

    assert watched.stopped_by == [Suspend]
    assert result == "went"


async def test_a_cancel_ends_it_and_its_next_call_too(tmp_db: Path) -> None:
    watched = Agent()
    outcome: list[type[BaseException]] = []

    @blocking.tool
    def send() -> str:
        watched.made.append("send")
        return "sent"

    @blocking.agent
    def stubborn() -> str:
        try:
            watched.until_stopped(lambda: blocking.sleep(3600))
        except BaseException:  # noqa: BLE001  # What it should never do; it gains nothing by it.
            try:
                return send()
            except BaseException as again:
                outcome.append(type(again))
                raise
        return "never"

    async with new_app(tmp_db, stubborn) as app, app.worker() as worker:
        task = await app.start(stubborn)
        await until_status(task, "waiting")
        assert await task.cancel("enough")
        await worker.beat()
        await until(watched.ended)
        with pytest.raises(TaskCancelled):
            await task.result(timeout=LIMIT_S)
        await _until_idle(worker)

    assert watched.stopped_by == outcome == [Cancelled]
    assert watched.made == []


async def test_one_that_lost_its_lease_writes_nothing_any_more(tmp_db: Path) -> None:
    watched = Agent()
    go_on = threading.Event()

    @blocking.agent
    def stunned() -> str:
        if blocking.current().attempt > 1:
            return "by the second"
        watched.reached.set()
        assert go_on.wait(LIMIT_S)  # Between two calls: it cannot hear that its task is another one's now.
        watched.until_stopped(lambda: blocking.event("late"))
        return "by the first"

    async with new_app(tmp_db, stunned) as app, app.worker() as worker:
        task = await app.start(stunned)
        await until(watched.reached)
        (first,) = worker.attempts
        await aio.call(worker.store, tasks.interrupt, task.id, first, reason="taken over")
        await worker.beat()
        result = await task.result(timeout=LIMIT_S)
        go_on.set()
        await until(watched.ended)
        kinds = [event.kind async for event in task.follow()]

    assert result == "by the second"
    assert watched.stopped_by == [Cancelled]
    assert "late" not in kinds


async def test_a_stop_reaches_through_nested_tools(tmp_db: Path) -> None:
    inner, outer = Agent(), Agent()

    @blocking.tool(risk="low")
    def deep() -> str:
        inner.until_stopped(lambda: blocking.sleep(3600))
        return "never"

    @blocking.tool(risk="low")
    def shallow() -> str:
        outer.until_stopped(deep)
        return "never"

    @blocking.agent
    def waiter() -> str:
        return shallow()

    async with new_app(tmp_db, waiter, settings=BRIEFLY.override({"shutdown_grace_s": 0.05})) as app:
        async with app.worker() as worker:
            task = await app.start(waiter)
            await until(inner.reached)
        await until(inner.ended)
        await until(outer.ended)
        status = (await task.info()).status

    assert inner.stopped_by == outer.stopped_by == [Suspend]
    assert inner.made == outer.made == []
    assert (worker.stopped.handed_back, worker.stopped.interrupted) == (1, 0)  # The tools, too, only wait.
    assert status == "pending"


async def _until_idle(worker: Worker) -> None:
    async with asyncio.timeout(LIMIT_S):
        while worker.attempts:
            await asyncio.sleep(0.01)


# -- threads that keep their task, and threads that lose it ----------------------------------------


@tool(risk="low")
def harmless(text: str) -> str:
    return text


async def test_carry_takes_the_task_along_into_a_thread(tmp_db: Path) -> None:
    sent: list[str] = []

    @blocking.tool
    def send(to: str) -> str:
        sent.append(to)
        return blocking.current().task_id

    @blocking.agent
    def host() -> list[str]:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(blocking.carry(send), to) for to in ("a", "b")]
            return [future.result() for future in futures]

    async with new_app(tmp_db, host) as app, app.worker():
        task = await app.start(host)
        result = await task.result(timeout=LIMIT_S)
        names = [step.name for step, _ in await task.steps() if step.key]

    assert result == [task.id, task.id]
    assert sorted(sent) == ["a", "b"]
    assert names == ["send", "send"]


async def test_a_dangerous_tool_in_a_thread_that_lost_its_task_is_refused(tmp_db: Path) -> None:
    sent: list[str] = []

    @blocking.tool
    def send(to: str) -> None:
        sent.append(to)

    @blocking.agent
    def host() -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            found = [
                pool.submit(send, "a").exception(),
                pool.submit(blocking.step, "send", sent.append, "b").exception(),
                pool.submit(blocking.call, send, "c").exception(),
            ]
            unharmed = pool.submit(harmless, "still works").result()
        return [type(error).__name__ for error in found] + [unharmed, str(found[0])]

    async with new_app(tmp_db, host) as app:
        *found, text = await app.run(host)

    assert found == ["NoTaskContext", "NoTaskContext", "NoTaskContext", "still works"]
    assert "perdure.carry(send)" in text
    assert sent == []


async def test_an_asynchronous_agent_loses_its_task_in_an_executor_as_well(tmp_db: Path) -> None:
    import perdure

    sent: list[str] = []

    @perdure.tool
    def send(to: str) -> str:
        sent.append(to)
        return "sent"

    @perdure.agent
    async def host() -> list[str]:
        loop = asyncio.get_running_loop()
        found = []
        try:
            await loop.run_in_executor(None, send, "a")
        except NoTaskContext as refused:
            found.append(type(refused).__name__)
        found.append(await loop.run_in_executor(None, perdure.carry(send), "b"))
        found.append(await asyncio.to_thread(send, "c"))  # This one keeps the context by itself.
        return found

    async with App(str(tmp_db), agents=[host], settings=BRIEFLY) as app:
        result = await app.run(host)

    assert result == ["NoTaskContext", "sent", "sent"]
    assert sent == ["b", "c"]


# -- a call that was cut off ------------------------------------------------------------------------


async def test_a_call_whose_thread_still_runs_is_not_run_again(tmp_db: Path) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()
    inside: list[int] = []

    @blocking.tool(timeout=0.05)
    def slow() -> str:
        inside.append(1)
        entered.release()
        assert leave.wait(LIMIT_S)
        return f"run {len(inside)}"

    @blocking.agent
    def host() -> str:
        return slow()

    async with new_app(tmp_db, host) as app, app.worker():
        task = await app.start(host)
        question = await _question(app)
        await question.resolve(blocking.not_happened(), by="ana")
        await asyncio.to_thread(entered.acquire)
        entered_again = await asyncio.to_thread(entered.acquire, timeout=1.5)  # Nothing tells that nothing happens.
        leave.set()
        result = await task.result(timeout=LIMIT_S)

    assert not entered_again
    assert result == "run 1"  # It did happen in the end, and says so itself: the answer came too early.


async def _question(app: App) -> Question:
    async with asyncio.timeout(LIMIT_S):
        while not (found := await app.questions()):
            await asyncio.sleep(0.01)
    return found[0]
