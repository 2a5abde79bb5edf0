"""A client that also knows the agents: it runs them in this process, beside whatever else the process does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ParamSpec, Self, TypeVar, cast

from perdure import config
from perdure.client import Client
from perdure.definitions import AgentCall, Startable
from perdure.errors import BadInput
from perdure.model.question import Question as QuestionRow
from perdure.model.task import Lane, Task, tail
from perdure.news import News
from perdure.runtime.blocks import beside, cancelled_by, unless
from perdure.runtime.durable import new_task
from perdure.runtime.pulse import PulseBuffer
from perdure.runtime.starts import admit_one, call_to_start, registry, warn_of_equal
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.store import Store, aio

P = ParamSpec("P")
R = TypeVar("R")


class App(Client):
    """What this process may run: the agents, what they need, and where their state lies. It makes its database."""

    _makes_quietly = True

    def __init__(
        self,
        url: str | None = None,
        *,
        agents: Sequence[Startable[..., Any]],
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        notify: Callable[[Any], Awaitable[None]] | None = None,
        settings: Settings | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(url, settings=settings, store=store)
        for name, hook in (("lifespan", lifespan), ("notify", notify)):
            if hook is not None and not callable(hook):
                raise BadInput(f"{name} is {hook!r}; give a function", field=name)
        self.agents = registry(agents)
        self._lifespan_of_deps = lifespan
        self._notify = notify
        self._worker: Worker | None = None
        self._blocks = 0  # of `async with`
        self._opening: asyncio.Future[None] | None = None
        self._runs: _Runs | None = None

    def __repr__(self) -> str:
        names = ", ".join(sorted({name for name, _version in self.agents}))
        return f"<App of {names} on {config.shown(self.url)}>"

    @property
    def pulses(self) -> PulseBuffer | None:
        """What tasks that run on this app stream; None while it has no worker here."""
        return None if self._worker is None else self._worker.pulses

    async def run(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an agent as a task, here, and return its result. Each run is a new task, and does everything anew.

        To go on after a crash instead, give it a key: `app.run(agent.options(key="…"), …)`. A run with the key of
        an earlier one joins it, or gets its result or its failure. Runs at the same time have one worker; the
        last of them ends it and closes the store, unless `async with` holds that open.

        Raises BadInput for an agent that this app does not have, or when a child's is one that no live worker has (the
        task is open then, and goes on once somebody has it), and what `TaskHandle.result` raises.
        """
        call = call_to_start(agent, args, kwargs)
        if not any(name == call.definition.name for name, _version in self.agents):
            known = ", ".join(sorted({name for name, _version in self.agents}))
            raise BadInput(
                f"this app has no agent {call.definition.name}, so nothing here would run it; it has {known}. "
                f"Add it to App(agents=[…])",
                field="agent",
            )
        while self._opening is not None and self._runs is None:
            await asyncio.wait({self._opening})
        if self._worker is not None and self._runs is None:
            # A worker of the caller's own may go on with what another one has to do first: it is only warned of.
            return cast("R", await self._result_on(self._worker, await self._admit(call), call))
        return cast("R", await self._run_here(call))

    async def _run_here(self, call: AgentCall) -> Any:
        """Run it on the worker that the runs of this app have in common."""
        while (runs := self._runs) is not None and not runs.hosting.done() and runs.is_ending_here():
            await asyncio.wait({runs.hosting})
        if runs is None or runs.hosting.done():
            runs = self._runs = _Runs(self)
        what = ""
        try:
            async with runs.joined() as worker:
                task = await self._admit(call)
                what = f"{task.agent} {tail(task.id)}"
                root = task.root_session_id
                with runs.news.telling_of(root):
                    async with unless(runs.news.until_unmanned(root)):
                        return await self._result_on(worker, task, call)
        except asyncio.CancelledError as cut:
            # Ctrl-C: what was waited for where says nothing, and would stand above what says how to go on.
            runs.news.tell_stopped(what, has_key=call.options.key is not None)
            raise cut.with_traceback(None)  # noqa: B904  # the same error

    async def _host(self, runs: _Runs) -> None:
        """Have a worker for as long as there are runs; then close the store, if no block holds it open."""
        try:
            async with self.worker(on_event=runs.news.hear) as worker, beside(runs.news.run()):
                runs.worker.set_result(worker)
                await runs.unused.wait()
        finally:
            if not self._blocks:
                await self.aclose()
            self._runs = None

    async def _admit(self, call: AgentCall) -> Task:
        new = new_task(call, key=call.options.key, lane=Lane.MAIN)
        # Nobody is told of the admission before the result, which is durable after it.
        try:
            admitted, equal = await aio.call_softly(self.store, admit_one, new)
        except BadInput as refused:  # Another's key, say: the frames of the store tell nothing of that.
            raise refused.with_traceback(None)  # noqa: B904  # the same error
        (task,) = admitted.tasks
        warn_of_equal(task, equal, self._warned_of)
        return task

    async def _result_on(self, worker: Worker, task: Task, call: AgentCall) -> Any:
        await worker.adopt(task.id)
        return await self._handle(task.id, call).result()

    async def __aenter__(self) -> Self:
        self._blocks += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._blocks -= 1
        if self._runs is None or self._runs.hosting.done():
            await self.aclose()  # Else the last run does.

    @asynccontextmanager
    async def worker(
        self,
        *,
        killable: bool = False,
        on_event: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> AsyncIterator[Worker]:
        """A worker in this process for as long as the block runs; then it hands back what it holds.

        Should the worker break, the block is cancelled and what broke it raised.
        """
        if self._worker is not None or self._opening is not None:
            raise BadInput("this app already runs a worker in this process", field="worker")
        self._opening = opening = asyncio.get_running_loop().create_future()
        try:
            async with self._deps() as deps:
                worker = Worker(
                    self.store,
                    list(self.agents.values()),
                    killable=killable,
                    deps=deps,
                    notify=None if self._notify is None else self._tell,
                    on_event=on_event,
                )
                running = await _started(worker)
                try:
                    self._worker, self._opening = worker, None
                    opening.set_result(None)
                    async with cancelled_by(running):
                        yield worker
                finally:
                    self._worker = None
                    worker.stop()
                    await running
        finally:
            if not opening.done():
                self._opening = None
                opening.set_result(None)

    @asynccontextmanager
    async def _deps(self) -> AsyncIterator[Sequence[Any]]:
        if self._lifespan_of_deps is None:
            yield ()
            return
        async with self._lifespan_of_deps() as opened:
            yield opened if isinstance(opened, list | tuple) else (opened,)

    async def _tell(self, row: QuestionRow) -> None:
        assert self._notify is not None
        await self._notify(await self.question(row.id))


class _Runs:
    """The runs of one app that are under way, and the worker that they have in common.

    The first one starts it, in an asyncio task of its own, which the last one ends and awaits.
    """

    def __init__(self, app: App) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.news = News(commands=app.commands, read=app.read)
        self.unused = asyncio.Event()
        self.worker: asyncio.Future[Worker] = self._loop.create_future()
        self.hosting = self._loop.create_task(app._host(self))

    def is_ending_here(self) -> bool:
        """Whether the last one has left already. Raises BadInput on another event loop than theirs."""
        if self._loop is not asyncio.get_running_loop():
            raise BadInput(
                "this app runs on another event loop; run it there, or from threads with perdure.sync", field="app"
            )
        return self.unused.is_set()

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Worker]:
        """Have the worker for one run. Should it break, the block is cancelled and what broke it raised."""
        self._count += 1
        try:
            either: set[asyncio.Future[Any]] = {self.hosting, self.worker}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.hosting.done():
                await self.hosting
            async with cancelled_by(self.hosting):
                yield self.worker.result()
        finally:
            self._count -= 1
            if self._count == 0:
                self.unused.set()
                if not self.worker.done():
                    self.hosting.cancel()
                await self.hosting


async def _started(worker: Worker) -> asyncio.Task[Any]:
    """The task that runs it, once it is ready."""
    ready = asyncio.Event()
    running = asyncio.get_running_loop().create_task(worker.run(ready=ready))
    waiting = asyncio.get_running_loop().create_task(ready.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        worker.stop()
        await running
        raise
    finally:
        waiting.cancel()
    if running.done():
        await running
    return running
