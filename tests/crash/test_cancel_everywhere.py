"""Cancelled at every await: whatever public function it hits, nothing stays open, held or stuck.

One worker with one permit plays in virtual time: a permit that is not given back, or a transaction left open, keeps
the task after it from ever running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure.client import Client
from perdure.clock import SeededIds
from perdure.definitions import AgentDefinition, definition_of
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.store import Store, task_lists
from perdure.store.sqlite import open_sqlite
from perdure.testing.acting import Cast
from perdure.testing.actor import Actor, unwind
from perdure.testing.answers import Answers
from perdure.testing.line import Line
from perdure.testing.stage import Record, Stage
from perdure.testing.virtual_loop import Process, VirtualLoop
from tests.cancelling import cut_at

ONE_PERMIT = Settings(permits=1, main_permits=0, sweep_s=0.5, poll_ms=500, pulse_flush_ms=100)
MANY = 200

Make = Callable[[], Coroutine[Any, Any, Any]]


# -- what agents call --------------------------------------------------------------------------


@perdure.tool(risk="low")
async def look_up(name: str) -> str:
    await asyncio.sleep(1)
    return name.upper()


@perdure.tool(approve=True, to="finance")
async def pay(amount: int) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool(risk="medium", idempotent=True, timeout=30)
async def note(text: str) -> str:
    raise AssertionError("the real tool must not run")


@perdure.agent
async def child(name: str) -> str:
    return await look_up(name)


async def slowly(value: int) -> int:
    await asyncio.sleep(1)
    return value


async def stored() -> str:
    return await perdure.artifact("report", "text", media_type="text/plain")


async def noon() -> bool:
    return (await perdure.now()).tzinfo is not None


async def drawn() -> bool:
    return 0 <= (await perdure.random()).random() < 1


async def named() -> int | None:
    return (await perdure.uuid()).version


async def received() -> str:
    try:
        return str(await perdure.receive("news", timeout=5))
    except TimeoutError:
        return "no news"


FUNCTIONS: dict[str, tuple[Make, Any]] = {
    "model": (lambda: perdure.model(slowly, 1), 1),
    "read": (lambda: perdure.read("slowly", slowly, 1), 1),
    "step": (lambda: perdure.step("slowly", slowly, 1), 1),
    "call": (lambda: perdure.call(look_up, "a"), "A"),
    "tool": (lambda: look_up("a"), "A"),
    "medium": (lambda: note("a"), "noted a"),
    "high": (lambda: pay(7), "paid 7"),
    "child": (lambda: child("a"), "A"),
    "gather": (lambda: perdure.gather(look_up("a"), child("b"), perdure.sleep(2)), ["A", "B", None]),
    "sleep": (lambda: perdure.sleep(5), None),
    "receive": (received, "no news"),
    "ask": (lambda: perdure.ask("Which one?"), "this one"),
    "message": (lambda: perdure.message("user", "hello"), None),
    "checkpoint": (lambda: perdure.checkpoint({"a": 1}), None),
    "last_checkpoint": (perdure.last_checkpoint, None),
    "event": (lambda: perdure.event("told", {"a": 1}), None),
    "artifact": (stored, None),
    "now": (noon, True),
    "uuid": (named, 4),
    "random": (drawn, True),
}


@perdure.agent
async def cut(name: str, at: int) -> list[Any]:
    """Cut a call in a branch, go on with another one of the same kind, and tell what came of both."""
    make, _ = FUNCTIONS[name]
    _, has_struck = await cut_at(make(), at=at)
    return [has_struck, await make()]


@perdure.agent
async def outer(name: str, at: int) -> list[Any]:
    """The cut one, and one after it, which needs the permit."""
    return [await cut(name, at), await child("after")]


def play(agent: Any, *arguments: object) -> Record:
    """Play with one permit; the world answers, and nothing may be wrong."""
    troupe = Cast(
        tools={_fn(pay): lambda amount: f"paid {amount}", _fn(note): lambda text: f"noted {text}"},
        steps={"slowly": slowly},
    )
    answers = Answers.of({"Which": "this one", pay: "approve"})
    record = Stage(agent.bind(*arguments).call, troupe=troupe, answers=answers, settings=ONE_PERMIT).run()
    assert record.wrong == ()
    assert record.status == "completed", record.error
    return record


def _fn(tool: object) -> Callable[..., Any]:
    definition = definition_of(tool)
    assert definition is not None
    return definition.fn


def decoded(record: Record) -> Any:
    from perdure import codec

    assert record.result is not None
    return codec.decode(record.result)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_call_that_is_cancelled_at_any_await_leaves_nothing_behind(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = FUNCTIONS[name][1]
    points = 0
    for at in range(1, MANY):
        (has_struck, value), after = decoded(play(outer, name, at))

        assert after == "AFTER"
        if wanted is not None:
            assert value == wanted
        if not has_struck:
            break
        points += 1

    assert caplog.records == []
    assert 1 <= points < MANY - 1 or name == "last_checkpoint"


@perdure.agent
async def cancels_itself(name: str, at: int) -> Any:
    """The task of the agent is cancelled inside a call, in its first attempt only; the next attempt goes through."""
    make, _ = FUNCTIONS[name]
    if perdure.current().attempt > 1:
        return await make()
    value, has_struck = await _cut_here(make, at)
    return [value] if not has_struck else value


async def _cut_here(make: Make, at: int) -> tuple[Any, bool]:
    from tests.cancelling import CutAt

    here = CutAt(make(), at=at)
    return await here, here.has_struck


@perdure.agent
async def around(name: str, at: int) -> list[Any]:
    return [await cancels_itself(name, at), await child("after")]


@pytest.mark.parametrize("name", ["model", "step", "high", "child", "gather", "sleep", "ask"])
def test_an_agent_that_is_cancelled_at_any_await_is_tried_again(name: str) -> None:
    wanted = FUNCTIONS[name][1]
    for at in range(1, MANY):
        value, after = decoded(play(around, name, at))

        assert after == "AFTER"
        if value == [wanted]:
            break
        assert value == wanted
    else:
        pytest.fail("it never got through")


# -- what clients call ---------------------------------------------------------------------------


@perdure.agent
async def asks() -> str:
    return f"{await perdure.ask('Which one?')} {await perdure.receive('news', type=str)}"


async def start(client: Client) -> Any:
    return (await client.start(asks.options(key="k"))).id


async def answer(client: Client) -> Any:
    for question in await client.questions():
        await question.answer("this one", by="ana")
    return None


async def send(client: Client) -> Any:
    await client.send(await start(client), "news", "late", key="once")


async def wait(client: Client) -> Any:
    return await client.task(await start(client)).result()


async def follow(client: Client) -> Any:
    return [event.kind async for event in client.task(await start(client)).follow()][-1]


async def look(client: Client) -> Any:
    task = client.task(await start(client))
    return (await task.info()).agent, len(await task.steps()) > 0, await task.messages(), len(await client.tasks())


async def cancel(client: Client) -> Any:
    return await client.task(await start(client)).cancel("changed my mind")


ACTS = {"start": start, "questions": answer, "send": send, "result": wait, "follow": follow, "info": look}


class Lab:
    """One worker with one permit, and a client, on a virtual loop."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(quiet_after_s=1.1)
        self.ids = SeededIds(1)

    def run(self, main: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """Run a client's program beside the worker; afterwards nothing may be open."""
        try:
            self.loop.run_until_complete(self._main(main))
        finally:
            self.loop.close()

    async def _main(self, main: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        database = open_sqlite(None, settings=ONE_PERMIT, clock=self.loop, ids=self.ids, inline=True)
        self.store = self._store_on(Line(database, self.loop))
        self.loop.next_moment_ms = lambda: self.store.read(task_lists.next_moment, grace_ms=5000)
        process, line = Process("worker"), Line(database, self.loop)
        worker = Worker(self._store_on(line), [_agent(asks), _agent(child)])
        running = self.loop.create_task(worker.run(), context=process.context())
        try:
            await main(Client(store=self.store))
            assert not database._connection.in_transaction
        finally:
            await unwind([Actor(process, line, worker, running)])
            database.close()

    def _store_on(self, line: Line) -> Store:
        return Store(line, clock=self.loop, ids=self.ids, settings=ONE_PERMIT)


def _agent(agent: object) -> AgentDefinition:
    definition = definition_of(agent)
    assert isinstance(definition, AgentDefinition)
    return definition


@pytest.mark.parametrize("name", sorted(ACTS))
def test_a_client_that_is_cancelled_at_any_await_may_do_it_again(name: str) -> None:
    struck, at = True, 0

    async def main(client: Client) -> None:
        nonlocal struck
        handle = await client.start(asks.options(key="k"))
        helping = [asyncio.ensure_future(_help(client, name))]
        _, struck = await cut_at(ACTS[name](client), at=at)
        await ACTS[name](client)
        await send(client)
        await answer(client)
        assert await handle.result(timeout=3600) == "this one late"
        assert len(await client.tasks()) == 1
        await asyncio.gather(*helping)
        after = await client.start(child, "after")
        assert await after.result(timeout=3600) == "AFTER"

    while struck and at < MANY:
        at += 1
        Lab().run(main)
    assert 1 < at < MANY


async def _help(client: Client, name: str) -> None:
    """What the function under test waits for."""
    if name in ("result", "follow"):
        await asyncio.sleep(1)
        await send(client)
        while not await client.questions():
            await asyncio.sleep(0.5)
        await answer(client)


def test_a_cancel_that_is_cancelled_at_any_await_cancels_or_does_not() -> None:
    struck, at = True, 0

    async def main(client: Client) -> None:
        nonlocal struck
        handle = await client.start(asks.options(key="k"))
        _, struck = await cut_at(cancel(client), at=at)
        await cancel(client)
        with pytest.raises(perdure.TaskCancelled):
            await handle.result(timeout=3600)
        after = await client.start(child, "after")
        assert await after.result(timeout=3600) == "AFTER"

    while struck and at < MANY:
        at += 1
        Lab().run(main)
    assert 1 < at < MANY


def test_a_worker_that_is_cancelled_in_the_turn_of_a_hint_ends() -> None:
    loop = VirtualLoop()
    database = open_sqlite(None, settings=ONE_PERMIT, clock=loop, ids=SeededIds(1), inline=True)
    worker = Worker(Store(Line(database, loop), clock=loop, ids=SeededIds(1), settings=ONE_PERMIT), [_agent(child)])

    async def main() -> bool:
        ready = asyncio.Event()
        running = asyncio.ensure_future(worker.run(ready=ready))
        await ready.wait()
        await asyncio.sleep(1)
        worker._hinted()  # Its loops are awake now, and are cancelled before they have their turn.
        running.cancel()
        await asyncio.wait({running}, timeout=60)
        return running.done()

    try:
        assert loop.run_until_complete(main())
    finally:
        loop.close()
        database.close()
