"""`App`, `Client` and their handles, blocking. Each has an event loop in a thread and hands every call over to it.

The loop starts with the first call. `with` or `close` ends it; `App.run` ends one that it started itself.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from perdure import app, client
from perdure.client import AskedQuestion, Page
from perdure.definitions import Bound, Duration, Startable
from perdure.model.event import Event
from perdure.model.message import Message
from perdure.model.question import Question as QuestionRow
from perdure.model.task import Task
from perdure.runtime.doubts import Verdict
from perdure.settings import Settings
from perdure.store import Store
from perdure.sync.bridge import LoopThread

P = ParamSpec("P")
R = TypeVar("R")


class Question(AskedQuestion):
    """A question, and how to settle it. A second answer changes nothing and returns the first."""

    __slots__ = ("_loop", "_twin")

    def __init__(self, loop: LoopThread, twin: client.Question) -> None:
        super().__init__(twin.row, twin.args, twin.evidence)
        self._loop, self._twin = loop, twin

    def approve(self, *, by: str) -> QuestionRow:
        """Say yes."""
        return self._loop.run(lambda: self._twin.approve(by=by), name="question.approve")

    def deny(self, reason: str, *, by: str) -> QuestionRow:
        """Say no, and why."""
        return self._loop.run(lambda: self._twin.deny(reason, by=by), name="question.deny")

    def answer(self, value: Any, *, by: str) -> QuestionRow:
        """Answer an open question of the agent. Raises BadInput for a value that is not what it asked for.

        A type of the agent's own is judged by its worker: where the value is none, the question is asked again.
        """
        return self._loop.run(lambda: self._twin.answer(value, by=by), name="question.answer")

    def resolve(self, verdict: Verdict[Any], *, by: str, reason: str = "", anyway: bool = False) -> QuestionRow:
        """Say what became of a call: happened(result), not_happened(), or unknown() to give up finding out.

        "It did not happen, run it" acts once its old worker is proven dead; `anyway` does not wait for that, and may
        be added to that answer later. Raises BadInput for a result that the tool cannot have returned; where only the
        worker has the tool, the question is asked again.
        """
        return self._loop.run(
            lambda: self._twin.resolve(verdict, by=by, reason=reason, anyway=anyway), name="question.resolve"
        )


class TaskHandle(Generic[R]):
    """A task from outside."""

    def __init__(self, loop: LoopThread, twin: client.TaskHandle[R]) -> None:
        self._loop, self._twin = loop, twin
        self.id = twin.id

    def __repr__(self) -> str:
        return repr(self._twin)

    def result(self, *, timeout: Duration | None = None) -> R:
        """The task's result, once it has one.

        Raises TaskFailed, TaskTimedOut, TaskCancelled; TimeoutError when `timeout` seconds have passed, which changes
        nothing in the task.
        """
        return self._loop.run(lambda: self._twin.result(timeout=timeout), name="task.result")

    def info(self) -> Task:
        """The task's row now."""
        return self._loop.run(self._twin.info, name="task.info")

    def follow(self, *, after: int = 0) -> Iterator[Event]:
        """Every event after seq `after`, in order, live and across restarts; ends when the task has ended."""
        events = self._twin.follow(after=after)
        with self._loop.held():
            try:
                while (event := self._loop.run(lambda: _next(events), name="task.follow")) is not None:
                    yield event
            finally:
                self._loop.run(lambda: _close(events), name="task.follow")

    def cancel(self, reason: str = "", *, by: str = "code") -> bool:
        """End the task and its descendants; `by` is on record. True if this call did it; it is durable then."""
        return self._loop.run(lambda: self._twin.cancel(reason, by=by), name="task.cancel")

    def settle(self, step: int, verdict: Verdict[Any], *, by: str, reason: str = "") -> bool:
        """Say what became of the call on record `step`, which the task left in doubt when it ended. Moves no task.

        True if this call did it, False when its outcome is known. Raises NotFound, Refused while the task goes on, and
        BadInput for a result that the tool cannot have returned.
        """
        return self._loop.run(lambda: self._twin.settle(step, verdict, by=by, reason=reason), name="task.settle")

    def why(self) -> str:
        """Why the task stands where it stands, as text."""
        return self._loop.run(self._twin.why, name="task.why")

    def steps(self, *, limit: int = 100, after: str | None = None) -> Page[tuple[Any, Any]]:
        """The task's records with their inputs, by index."""
        return self._loop.run(lambda: self._twin.steps(limit=limit, after=after), name="task.steps")

    def messages(self, *, limit: int = 10_000) -> list[Message]:
        """The task's transcript."""
        return self._loop.run(lambda: self._twin.messages(limit=limit), name="task.messages")

    def checkpoint_data(self) -> Any:
        """The state that the task saved last with `perdure.checkpoint`; None when it has saved none."""
        return self._loop.run(self._twin.checkpoint_data, name="task.checkpoint_data")


class Client:
    """Talks to one database. Opened on first use; `with` or `close` closes it.

    Where there is no database, it is made.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, store: Store | None = None) -> None:
        self._start_with(client.Client(url, settings=settings, store=store))

    def __repr__(self) -> str:
        return repr(self._twin)

    def _start_with(self, twin: client.Client) -> None:
        self._twin = twin
        self._loop = LoopThread("perdure-client")
        # An abandoned client must not keep the process from ending in good order.
        weakref.finalize(self, self._loop.stop)

    def use(self, url: str | None = None, *, settings: Mapping[str, object] | None = None) -> None:
        """Take another database, or put settings on top. Raises BadInput when a database is open already."""
        self._twin.use(url, settings=settings)

    def close(self) -> None:
        """Close the store, if this client opened it, and end the loop. May be called twice."""
        self._loop.run(self._twin.aclose, name="client.aclose")
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def lifespan(self, _app: Any = None, /) -> Iterator[None]:
        """Closes the client when the block ends."""
        with self:
            yield

    # -- tasks -----------------------------------------------------------------------------------

    @overload
    def start(self, agent: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]: ...
    @overload
    def start(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    def start(self, agent: str | Startable[..., Any], /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Admit a task and return once it is durable; it can be listed then. The same key and work join.

        Raises KeyConflict for a key of other work, NotSerializable for arguments that cannot be stored.
        """
        return self._handle(self._loop.run(lambda: self._twin.start(agent, *args, **kwargs), name="client.start"))

    def start_all(self, calls: Iterable[Bound[R]], /) -> list[TaskHandle[R]]:
        """Admit a batch: all or none."""
        started = self._loop.run(lambda: self._twin.start_all(calls), name="client.start_all")
        return [self._handle(one) for one in started]

    def task(self, task_id: str, /) -> TaskHandle[Any]:
        """A handle on a task that exists."""
        return self._handle(self._twin.task(task_id))

    def tasks(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        open: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[Task]:
        """Tasks newest first, strictly after the cursor; at most 200 a page."""
        return self._loop.run(
            lambda: self._twin.tasks(status=status, agent=agent, session=session, open=open, limit=limit, after=after),
            name="client.tasks",
        )

    def send(self, task_id: str, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Feed a task's `receive(name)`. The same key is delivered once.

        Raises NotFound, or Refused once the task has ended.
        """
        self._loop.run(lambda: self._twin.send(task_id, name, payload, key=key), name="client.send")

    def artifact(self, sha256: str, /) -> bytes:
        """The content of an artifact; the `artifact_created` events of a task tell its SHA-256. Raises NotFound."""
        return self._loop.run(lambda: self._twin.artifact(sha256), name="client.artifact")

    # -- questions -------------------------------------------------------------------------------

    def questions(
        self, *, session: str | None = None, to: str | None = None, limit: int = 100, after: str | None = None
    ) -> Page[Question]:
        """Open questions, oldest first, after the cursor; at most 200 a page."""
        page = self._loop.run(
            lambda: self._twin.questions(session=session, to=to, limit=limit, after=after), name="client.questions"
        )
        return Page((Question(self._loop, one) for one in page), after=page.after)

    def question(self, question_id: str, /) -> Question:
        """One question, whatever became of it; any unique ending of its id will do. Raises NotFound."""
        return Question(self._loop, self._loop.run(lambda: self._twin.question(question_id), name="client.question"))

    def _handle(self, twin: client.TaskHandle[R]) -> TaskHandle[R]:
        return TaskHandle(self._loop, twin)


class App(Client):
    """What this process may run: the agents, what they need, and where their state lies.

    `lifespan` gives an ordinary context manager and `notify` is an ordinary function; both run in threads.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        agents: Sequence[Startable[..., Any]],
        lifespan: Callable[[], AbstractContextManager[Any]] | None = None,
        notify: Callable[[Any], None] | None = None,
        settings: Settings | None = None,
        store: Store | None = None,
    ) -> None:
        self._app = app.App(
            url,
            agents=agents,
            lifespan=None if lifespan is None else _in_threads(lifespan),
            notify=None if notify is None else self._teller(notify),
            settings=settings,
            store=store,
        )
        self._start_with(self._app)

    def run(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an agent as a task, here, and return its result. A second run with the same key joins the first.

        Threads may run at the same time; the last of them closes the store.
        """
        try:
            return self._loop.run(lambda: self._app.run(agent, *args, **kwargs), name="app.run")
        finally:
            self._loop.stop_unless_held()

    @contextmanager
    def worker(
        self, *, killable: bool = False, on_event: Callable[[str, Mapping[str, Any]], None] | None = None
    ) -> Iterator[None]:
        """A worker in this process for as long as the block runs; then it hands back what it holds."""
        release = asyncio.Event()

        async def work(ready: asyncio.Future[None]) -> None:
            # In one asyncio task from beginning to end, as what `lifespan` opens may insist on.
            async with self._app.worker(killable=killable, on_event=on_event):
                ready.set_result(None)
                await release.wait()

        async def begin() -> asyncio.Task[None]:
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[None] = loop.create_future()
            working = loop.create_task(work(ready))
            await asyncio.wait({working, ready}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
            return working

        async def end(working: asyncio.Task[None]) -> None:
            release.set()
            await working

        with self._loop.held():
            working = self._loop.run(begin, name="app.worker")
            try:
                yield
            finally:
                self._loop.run(lambda: end(working), name="app.worker")

    def _teller(self, notify: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
        async def tell(twin: client.Question) -> None:
            await asyncio.to_thread(notify, Question(self._loop, twin))

        return tell


def _in_threads(lifespan: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """A blocking context manager as an asynchronous one."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        manager = lifespan()
        value = await asyncio.to_thread(manager.__enter__)
        try:
            yield value
        except BaseException:
            if not await asyncio.to_thread(manager.__exit__, *sys.exc_info()):
                raise
        else:
            await asyncio.to_thread(manager.__exit__, None, None, None)

    return opened


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


async def _close(events: AsyncIterator[Event]) -> None:
    if isinstance(events, AsyncGenerator):
        await events.aclose()
