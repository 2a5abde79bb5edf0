"""Start tasks, wait for them, send to them, answer for them: what an app outside a task does.

It needs only a URL. Who also knows the agents, and so can run them in this process, is an `App` (app.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast, overload

from perdure import codec, config
from perdure.commands import Commands
from perdure.definitions import AgentCall, Bound, Duration, Startable, returns, seconds
from perdure.errors import BadInput, NotFound, Refused
from perdure.following import Following
from perdure.model.event import Event
from perdure.model.message import Message
from perdure.model.page import Page, number_after, rows_of, whole
from perdure.model.question import GIVE_UP, HAPPENED, NOT_HAPPENED, UNKNOWN, QuestionKind
from perdure.model.question import Question as QuestionRow
from perdure.model.task import Task
from perdure.runtime import answers
from perdure.runtime.doubts import Verdict
from perdure.runtime.durable import failure, new_task
from perdure.runtime.liveness import judge
from perdure.runtime.pulse import PulseBuffer
from perdure.runtime.settling import as_outcome
from perdure.runtime.starts import admit_one, bound_call, call_to_start, warn_of_equal
from perdure.settings import Settings
from perdure.states import TaskStatus
from perdure.store import (
    Store,
    admission,
    aio,
    artifacts,
    ends,
    messages,
    open_store,
    questions,
    sqlite_path,
    steps,
    task_lists,
    tasks,
)
from perdure.store.database import Transaction
from perdure.store.sessions import check_id

log = logging.getLogger(__name__)

__all__ = ["AskedQuestion", "Client", "Page", "Question", "TaskHandle"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(slots=True, repr=False)
class AskedQuestion:
    """What is asked, of whom, and about which arguments."""

    row: QuestionRow
    args: Mapping[str, Any]
    evidence: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<Question {self.id} {self.status}: {self.text}>"

    @property
    def id(self) -> str:
        """Its id, such as Q19."""
        return self.row.id

    @property
    def kind(self) -> str:
        """call, step_in_doubt, resume or ask."""
        return self.row.kind

    @property
    def task_id(self) -> str:
        """The task that waits for it."""
        return self.row.task_id

    @property
    def text(self) -> str:
        """What is asked."""
        return self.row.text

    @property
    def tool(self) -> str | None:
        """The tool it is about, if any."""
        return cast("str | None", self.evidence.get("tool"))

    @property
    def status(self) -> str:
        """open, approved, denied, answered, expired or cancelled."""
        return self.row.status


@dataclass(slots=True, repr=False)
class Question(AskedQuestion):
    """A question, and how to settle it. A second answer changes nothing and returns the first."""

    client: Client

    async def approve(self, *, by: str) -> QuestionRow:
        """Say yes."""
        return await self.client.perform(questions.approve, self.id, by=by)

    async def deny(self, reason: str, *, by: str) -> QuestionRow:
        """Say no, and why."""
        return await self.client.perform(questions.deny, self.id, by=by, reason=reason)

    async def answer(self, value: Any, *, by: str) -> QuestionRow:
        """Answer an open question of the agent. Raises BadInput for a value that is not what it asked for.

        A type of the agent's own is judged by its worker: where the value is none, the question is asked again.
        """
        if self.row.kind is not QuestionKind.ASK:
            raise BadInput(f"{self.id} is a {self.kind} question: approve, deny or resolve it", field="answer")
        answers.check_answer(value, str(self.evidence.get("wants", "any")), question_id=self.id)
        return await self.client.perform(questions.answer, self.id, by=by, value=codec.pack(codec.encode(value)))

    async def resolve(self, verdict: Verdict[Any], *, by: str, reason: str = "", anyway: bool = False) -> QuestionRow:
        """Say what became of a call: happened(result), not_happened(), or unknown() to give up finding out.

        "It did not happen, run it" acts once its old worker is proven dead; `anyway` does not wait for that, and may
        be added to that answer later. Raises BadInput for a result that the tool cannot have returned; where only its
        worker can judge that, the question is asked again.
        """
        if self.row.kind is not QuestionKind.STEP_IN_DOUBT:
            raise BadInput(f"{self.id} is a {self.kind} question: it takes no verdict", field="answer")
        if verdict.kind not in (HAPPENED, NOT_HAPPENED, UNKNOWN, GIVE_UP):
            raise BadInput(f"{verdict.kind!r} is no verdict", field="answer")
        if verdict.kind == HAPPENED:
            answers.check_result(verdict.result, self.evidence, question_id=self.id)
        said = {"verdict": GIVE_UP if verdict.kind == UNKNOWN else verdict.kind, "result": verdict.result}
        return await self.client.perform(
            questions.answer, self.id, by=by, value=codec.pack(codec.encode(said)), reason=reason, anyway=anyway
        )


class TaskHandle(Generic[R]):
    """A task from outside."""

    def __init__(self, client: Client, task_id: str, annotation: Any = codec.ANY) -> None:
        self._client = client
        self._annotation = annotation
        self.id = task_id

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"

    async def result(self, *, timeout: Duration | None = None) -> R:
        """The task's result, once it has one.

        Raises TaskFailed, TaskTimedOut, TaskCancelled; TimeoutError when `timeout` seconds have passed, which changes
        nothing in the task.
        """
        limit = None if timeout is None else seconds(timeout, "timeout")
        outcome = None
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                async for outcome in self._client.watch(lambda: self._client.read(task_lists.outcome, self.id)):
                    if outcome is not None:
                        break
        except TimeoutError:
            if not timer.expired():
                raise
            raise TimeoutError(f"task {self.id} has not ended within {limit:g} s; it is still open") from None
        assert outcome is not None
        if outcome.status is not TaskStatus.COMPLETED:
            raise failure(self.id, outcome.status, outcome.error)
        assert outcome.result is not None
        return cast("R", codec.decode(outcome.result, annotation=self._annotation))

    async def info(self) -> Task:
        """The task's row now."""
        return await self._client.read(tasks.get, self.id)

    async def follow(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event after seq `after`, in order, live and across restarts; ends when the task has ended.

        Streamed events of the newest attempt come in between: at once when it runs on this app, else soon. When another
        attempt takes over, `task_started` tells.
        """
        following = Following(self._client, self.id, after=whole(after, "after", least=-1))
        try:
            while not following.is_over:
                for event in await following.next():
                    yield event
        finally:
            following.close()

    async def cancel(self, reason: str = "", *, by: str = "code") -> bool:
        """End the task and its descendants; `by` is on record. True if this call did it; it is durable then."""
        return await self._client.perform(ends.cancel, self.id, reason=reason, by=by)

    async def settle(self, step: int, verdict: Verdict[Any], *, by: str, reason: str = "") -> bool:
        """Say what became of the call on record `step`, which the task left in doubt when it ended. Moves no task.

        True if this call did it, False when its outcome is known. Raises NotFound, Refused while the task goes on, and
        BadInput for a result that the tool cannot have returned.
        """
        record = await self._client.read(steps.at_index, self.id, whole(step, "step"))
        if verdict.kind == HAPPENED:
            asked = await self._client.read(questions.evidence_of_step, record)
            answers.check_result(verdict.result, {**asked, "tool": record.name}, question_id=f"step {step}")
        outcome = as_outcome(verdict, tool=record.name, reason=reason)
        return await self._client.perform(ends.settle_call, self.id, step, outcome, by=by, reason=reason)

    async def why(self) -> str:
        """Why the task stands where it stands, as text."""
        from perdure.why import explain

        limit = self._client.store.settings.recovery_limit
        return await self._client.read(
            explain, self.id, recovery_limit=limit, commands=self._client.commands, judge=judge(self._client.store)
        )

    async def steps(self, *, limit: int = 100, after: str | None = None) -> Page[tuple[Any, Any]]:
        """The task's records with their inputs, by index."""
        start = number_after(after, start=-1)
        found = await self._client.read(steps.listing, self.id, after=start, limit=whole(limit, "limit"))
        return Page(found, after=str(found[-1][0].step_index) if found and len(found) == limit else None)

    async def messages(self, *, limit: int = 10_000) -> list[Message]:
        """The task's transcript."""
        return await self._client.read(messages.listing, self.id, limit=whole(limit, "limit"))

    async def checkpoint_data(self) -> Any:
        """The state that the task saved last with `perdure.checkpoint`; None when it has saved none."""
        found = await self._client.read(messages.checkpoints, self.id)
        return codec.decode(found[0].state) if found else None


class Client:
    """Talks to one database. Opened on first use; `async with` or `lifespan` closes it.

    Where there is no database, it is made, for who starts tasks may come first; a warning in the log says so, as the
    path may hold a slip.
    """

    _makes_quietly: ClassVar[bool] = False

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, store: Store | None = None) -> None:
        _check_url(url)
        if settings is not None and not isinstance(settings, Settings):
            raise BadInput(f"settings is {settings!r}; give a perdure.Settings", field="settings")
        self._url = url
        self._settings = settings
        self._store = store
        self._is_given = store is not None
        self._warned_of: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {config.shown(self.url)}>"

    # -- opening ---------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The opened store."""
        if self._store is None:
            path = sqlite_path(self.url)
            is_new = path is not None and not path.exists()
            self._store = open_store(self.url, settings=self._settings or config.settings())
            if is_new and not self._makes_quietly:
                log.warning("made a new database at %s: there was none", path)
        return self._store

    @property
    def url(self) -> str:
        """Where the database lies: as given, else as the environment or pyproject.toml say."""
        if self._is_given and self._store is not None:
            return self._store.database.url
        return config.database_url(self._url)

    @property
    def commands(self) -> Commands:
        """The commands to show, which find this database. Never a password."""
        return config.commands_for(self.url)

    @property
    def pulses(self) -> PulseBuffer | None:
        """What tasks that run on this client stream; None where it runs none."""
        return None

    def use(self, url: str | None = None, *, settings: Mapping[str, object] | None = None) -> None:
        """Take another database, or put settings on top. Raises BadInput when a database is open already."""
        if self._store is not None:
            raise BadInput(f"{self.url} is open already; say this before its first use", field="url")
        _check_url(url)
        self._url = self._url if url is None else url
        self._settings = (self._settings or config.settings()).override(settings or {})

    async def aclose(self) -> None:
        """Close the store, if this client opened it. May be called twice."""
        if self._store is not None and not self._is_given:
            store, self._store = self._store, None
            await asyncio.to_thread(store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self:
            yield

    def lifespan(self, _app: Any = None, /) -> AbstractAsyncContextManager[None]:
        """For a web framework: closes the client when the app ends."""
        return self._lifespan()

    # -- tasks -----------------------------------------------------------------------------------

    @overload
    async def start(self, agent: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]: ...
    @overload
    async def start(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]: ...
    async def start(self, agent: str | Startable[..., Any], /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Admit a task and return once it is durable; it can be listed then.

        Without a key each start is a new task. The same key and work join: `agent.options(key="…")`.

        Raises KeyConflict for a key of other work, NotSerializable for arguments that cannot be stored.
        """
        call = call_to_start(agent, args, kwargs)
        admitted, equal = await self.perform(admit_one, new_task(call, key=call.options.key))
        warn_of_equal(admitted.tasks[0], equal, self._warned_of)
        return self._handle(admitted.tasks[0].id, call)

    async def start_all(self, calls: Iterable[Bound[R]], /) -> list[TaskHandle[R]]:
        """Admit a batch: all or none."""
        bound = [bound_call(one) for one in calls]
        admitted = await self.perform(admission.admit, [new_task(one, key=one.options.key) for one in bound])
        return [self._handle(task.id, call) for task, call in zip(admitted.tasks, bound, strict=True)]

    def task(self, task_id: str, /) -> TaskHandle[Any]:
        """A handle on a task that exists. Raises BadInput for what can be no id."""
        return TaskHandle(self, check_id(task_id, "task"))

    async def tasks(
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
        cursor = None if after is None else task_lists.Cursor.parse(after)
        found = await self.read(
            task_lists.recent, status=status, agent=agent, session_id=session, open_only=open, after=cursor, limit=limit
        )
        full = len(found) >= rows_of(limit)
        last = task_lists.Cursor(found[-1].created_at, found[-1].id) if found and full else None
        return Page(found, after=None if last is None else str(last))

    async def send(self, task_id: str, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Feed a task's `receive(name)`. One key is delivered once. Raises NotFound, or Refused once it has ended."""
        await self.perform(
            messages.send,
            task_id,
            name=name,
            key=key,
            payload=codec.pack(codec.encode(payload)),
            unread_limit=self.store.settings.unread_limit,
        )

    async def artifact(self, sha256: str, /) -> bytes:
        """The content of an artifact; the `artifact_created` events of a task tell its SHA-256. Raises NotFound."""
        return await self.read(artifacts.get, sha256)

    # -- questions -------------------------------------------------------------------------------

    async def questions(
        self, *, session: str | None = None, to: str | None = None, limit: int = 100, after: str | None = None
    ) -> Page[Question]:
        """Open questions, oldest first, after the cursor; at most 200 a page."""
        start = number_after(after, start=0)
        rows = await self.read(_open_questions, to=to, session_id=session, after=start, limit=limit)
        found = [Question(row, _arguments(evidence), evidence, self) for row, evidence in rows]
        return Page(found, after=str(found[-1].row.n) if len(found) >= rows_of(limit) else None)

    async def question(self, question_id: str, /) -> Question:
        """One question, whatever became of it; any unique ending of its id will do. Raises NotFound."""
        row, evidence = await self.read(_one_question, question_id)
        return Question(row, _arguments(evidence), evidence, self)

    # -- plumbing --------------------------------------------------------------------------------

    async def perform(self, operation: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run an operation of the store in a transaction. What is refused comes without the frames of the store."""
        try:
            return await aio.call(self.store, operation, *args, **kwargs)
        except (BadInput, NotFound, Refused) as refused:
            raise refused.with_traceback(None)  # noqa: B904  # the same error

    async def read(self, operation: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run a reading operation of the store on one snapshot; as `perform` does."""
        try:
            return await aio.read(self.store, operation, *args, **kwargs)
        except (BadInput, NotFound, Refused) as refused:
            raise refused.with_traceback(None)  # noqa: B904  # the same error

    async def watch(self, look: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
        """What `look` finds, again after each hint and each poll interval. Never ends by itself."""
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ring() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        stop = self.store.database.listen(ring)
        try:
            while True:
                woken.clear()
                yield await look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.store.settings.poll_ms / 1000):
                        await woken.wait()
        finally:
            stop()

    def _handle(self, task_id: str, call: AgentCall) -> TaskHandle[Any]:
        return TaskHandle(self, task_id, returns(call.definition.fn))


def _check_url(url: object) -> None:
    if url is not None and not isinstance(url, str):
        raise BadInput(f"url is {url!r}; give a file's path or a postgresql:// address, as text", field="url")
    if url:
        sqlite_path(url)  # Raises BadInput for what names no database.


def _open_questions(tx: Transaction, **filters: Any) -> list[tuple[QuestionRow, Mapping[str, Any]]]:
    return [(row, _mapping(questions.evidence(tx, row))) for row in questions.open_list(tx, **filters)]


def _one_question(tx: Transaction, ending: str) -> tuple[QuestionRow, Mapping[str, Any]]:
    row = questions.get(tx, questions.find(tx, ending))
    return row, _mapping(questions.evidence(tx, row))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _arguments(evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(evidence.get("arguments"))
