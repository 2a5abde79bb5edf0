"""Real workers on one store in memory, in virtual time: agents that crash, freeze, wake and are answered.

Workers are killed and frozen where they stand, without a process of their own. A test that waits for what never comes
fails at once, since the loop sees that nothing can happen any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from perdure.client import Client, Question, TaskHandle
from perdure.clock import SeededIds
from perdure.definitions import AgentDefinition, Startable, definition_of
from perdure.model.event import Event
from perdure.model.step import Step
from perdure.model.task import Attempt, Task
from perdure.runtime.worker import Stopped, Worker
from perdure.settings import Settings
from perdure.store import Store, events, instances, task_lists, tasks, traces
from perdure.store.database import Transaction
from perdure.store.sqlite import open_sqlite
from perdure.testing.actor import Actor, unwind
from perdure.testing.invariants import broken
from perdure.testing.line import Death, Line
from perdure.testing.virtual_loop import Process, VirtualLoop
from tests.rows import query

T = TypeVar("T")
LIMIT_S = 3600.0  # of virtual time
LOOK_S = 0.05


class Theatre:
    """One store, its workers, and a client beside them."""

    def __init__(self, loop: VirtualLoop, settings: Settings, *, seed: int = 1) -> None:
        self.loop = loop
        self.settings = settings
        self._ids = SeededIds(seed)
        self._database = open_sqlite(None, settings=settings, clock=loop, ids=self._ids, inline=True)
        self.store = self._store_on(Line(self._database, loop))
        self.client = Client(store=self.store)
        self.actors: list[Actor] = []
        loop.next_moment_ms = self._next_moment_ms

    # -- workers ----------------------------------------------------------------------------

    async def hire(self, *agents: Startable[..., Any], death: Death | None = None, **options: Any) -> Actor:
        """A worker that has registered and works, or has died of doing so."""
        process = Process(f"worker {len(self.actors) + 1}")
        ready = asyncio.Event()

        def die() -> None:
            process.hold()
            ready.set()

        line = Line(self._database, self.loop, death=death, on_death=die)
        definitions = [_definition(one) for one in agents]
        worker = Worker(self._store_on(line), definitions, **options)
        running = self.loop.create_task(worker.run(ready=ready), name=process.name, context=process.context())
        actor = Actor(process, line, worker, running)
        self.actors.append(actor)
        waiting = self.loop.create_task(ready.wait())
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return actor

    def kill(self, actor: Actor) -> None:
        """End a worker like kill -9; its lock is free, so that everybody knows."""
        actor.die()
        self.store.call(instances.mark_stopped, actor.worker.instance_id)

    async def crash_at(
        self, task: TaskHandle[Any], *checkpoints: int, agents: Sequence[Startable[..., Any]], after_s: float = 0
    ) -> None:
        """A fresh worker for each of these checkpoints, killed once the task has saved it; then one that stays."""
        for number in checkpoints:
            actor = await self.hire(*agents)
            await self.until(partial(self._has_saved, task, number))
            await asyncio.sleep(after_s)
            self.kill(actor)
        await self.hire(*agents)

    async def dismiss(self, actor: Actor) -> Stopped:
        """Let a worker stop in good order."""
        actor.worker.stop()
        return await actor.running

    async def close(self) -> None:
        """End everything."""
        await unwind(self.actors)
        self._database.close()

    # -- tasks ------------------------------------------------------------------------------

    async def run(self, agent: Startable[..., Any], *args: Any, **options: Any) -> Any:
        """Start a task and wait for its result, while somebody works."""
        task = await self.client.start(agent.options(**options) if options else agent, *args)  # type: ignore[attr-defined]  # as every agent has
        return await task.result(timeout=LIMIT_S)

    async def play(self, agent: Startable[..., Any], *args: Any) -> Any:
        """Run an agent on a worker of its own."""
        actor = await self.hire(agent)
        try:
            return await self.run(agent, *args)
        finally:
            await self.dismiss(actor)

    async def until(self, is_so: Callable[[], T]) -> T:
        """Wait until something holds; what it said then."""
        async with asyncio.timeout(LIMIT_S):
            while not (found := is_so()):
                await asyncio.sleep(LOOK_S)
        return found

    async def until_status(self, task: TaskHandle[Any], *statuses: str) -> Task:
        """Wait until a task has one of these statuses."""
        return await self.until(lambda: row if (row := self.row(task)).status in statuses else None)  # type: ignore[arg-type, return-value]  # never None

    async def question(self, *, kind: str | None = None) -> Question:
        """Wait until a question is open; the oldest."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = [one for one in await self.client.questions() if kind in (None, one.kind)]
                if found:
                    return found[0]
                await asyncio.sleep(LOOK_S)

    async def until_asked(self, is_meant: Callable[[Question], bool]) -> Question:
        """Wait until a question of this kind is open."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for one in await self.client.questions():
                    if is_meant(one):
                        return one
                await asyncio.sleep(LOOK_S)

    # -- looking ----------------------------------------------------------------------------

    def row(self, task: TaskHandle[Any] | str) -> Task:
        """The task as it is now."""
        return self.store.read(tasks.get, task if isinstance(task, str) else task.id)

    def attempts(self, task: TaskHandle[Any]) -> list[Attempt]:
        """Every execution of a task."""
        return self.store.read(task_lists.attempts, task.id)

    def steps(self, task: TaskHandle[Any], name: str | None = None) -> list[Step]:
        """Its recorded calls, of one name or all."""
        found = self.store.read(traces.read, task.id).steps
        return [one for one in found if one.key is not None and name in (None, one.name)]

    def events(self, task: TaskHandle[Any]) -> list[Event]:
        """Its skeleton events."""
        return self.store.read(events.feed, task.id, after=0, limit=100_000)

    def kinds(self, task: TaskHandle[Any]) -> list[str]:
        """What happened to it, as kinds of events."""
        return [one.kind for one in self.events(task)]

    def outcome(self, task: TaskHandle[Any]) -> tuple[str, str]:
        """Status and error type of a task."""
        row = self.row(task)
        error = self.store.read(lambda tx: tasks.read_error(tx, row.error))
        return row.status, "" if error is None else error.type

    def children(self, task: TaskHandle[Any]) -> list[Task]:
        """Its children."""
        return self.store.read(task_lists.children, task.id)

    def every_task(self) -> list[Task]:
        """Every task there is; at most 200."""
        return self.store.read(task_lists.recent, limit=200)

    def wrong(self) -> list[str]:
        """What does not hold and always must."""
        return self.store.read(broken)

    def execute(self, sql: str, **values: Any) -> int:
        """Run a statement of the test's own: damage, mostly."""
        return self.store.call(lambda tx: _run(tx, sql, values))

    # -- inside -----------------------------------------------------------------------------

    def _has_saved(self, task: TaskHandle[Any], number: int) -> bool:
        return (self.row(task).checkpoint or 0) >= number

    def _store_on(self, line: Line) -> Store:
        return Store(line, clock=self.loop, ids=self._ids, settings=self.settings)

    def _next_moment_ms(self) -> int | None:
        found = [self.store.read(task_lists.next_moment, grace_ms=int(self.settings.deadline_grace_s * 1000))]
        for actor in self.actors:
            if not actor.process.is_held:
                for attempt in actor.worker.attempts.values():
                    found += [wait.until_ms for wait, _ in attempt.waits.pending()]
        found += [row[0] for row in self.store.read(_expiries)]
        return min((one for one in found if one is not None and one > self.loop.now_ms()), default=None)


@asynccontextmanager
async def theatre(settings: Settings, *, seed: int = 1) -> AsyncIterator[Theatre]:
    """A theatre on the running virtual loop. What must always hold is looked at in the end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    house = Theatre(loop, settings, seed=seed)
    try:
        yield house
        assert house.wrong() == []
    finally:
        await house.close()


def _definition(agent: object) -> AgentDefinition:
    found = definition_of(agent)
    assert isinstance(found, AgentDefinition)
    return found


def _run(tx: Transaction, sql: str, values: dict[str, Any]) -> int:
    return tx.run(query(sql), **values)


def _expiries(tx: Transaction) -> list[tuple[Any, ...]]:
    return tx.all(query("SELECT expires_at FROM questions WHERE status = 'open' AND expires_at IS NOT NULL"))
