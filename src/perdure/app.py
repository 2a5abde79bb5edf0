"""A client that also knows the agents: it runs them in this process, beside whatever else the process does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast

from perdure import config
from perdure.client import Client
from perdure.definitions import AgentCall, Startable
from perdure.errors import BadInput
from perdure.model.question import Question as QuestionRow
from perdure.model.task import Lane, tail
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
        an earlier one joins it, or gets its result or its failure.

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
        if self._worker is not None:
            return cast("R", await self._run_on(self._worker, call))
        news = News(commands=self.commands, read=self.read)
        try:
            async with self.worker(on_event=news.hear) as worker, beside(news.run()):
                return cast("R", await self._run_on(worker, call, news))
        except asyncio.CancelledError as cut:
            # Ctrl-C: what was waited for where says nothing, and would stand above what says how to go on.
            news.tell_stopped(has_key=call.options.key is not None)
            raise cut.with_traceback(None)  # noqa: B904  # the same error
        finally:
            await self.aclose()

    async def _run_on(self, worker: Worker, call: AgentCall, news: News | None = None) -> Any:
        new = new_task(call, key=call.options.key, lane=Lane.MAIN)
        # Nobody is told of the admission before the result, which is durable after it.
        try:
            admitted, equal = await aio.call_softly(self.store, admit_one, new)
        except BadInput as refused:  # Another's key, say: the frames of the store tell nothing of that.
            raise refused.with_traceback(None)  # noqa: B904  # the same error
        (task,) = admitted.tasks
        warn_of_equal(task, equal, self._warned_of)
        if news is not None:
            news.about(task.root_session_id, task=f"{task.agent} {tail(task.id)}")
        # A worker of the caller's own may go on with what another one has to do first: then it is only warned of.
        async with nullcontext() if news is None else unless(news.until_unmanned(task.root_session_id)):
            await worker.adopt(task.id)
            return await self._handle(task.id, call).result()

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
        if self._worker is not None:
            raise BadInput("this app already runs a worker in this process", field="worker")
        async with self._deps() as deps:
            worker = Worker(
                self.store,
                list(self.agents.values()),
                killable=killable,
                deps=deps,
                notify=None if self._notify is None else self._tell,
                on_event=on_event,
            )
            ready = asyncio.Event()
            running = asyncio.get_running_loop().create_task(worker.run(ready=ready))
            waiting = asyncio.get_running_loop().create_task(ready.wait())
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if running.done():
                await running
            self._worker = worker
            try:
                async with cancelled_by(running):
                    yield worker
            finally:
                self._worker = None
                worker.stop()
                await running

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
