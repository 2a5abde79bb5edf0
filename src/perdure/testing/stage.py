"""One play: a store in memory, a loop with virtual time, one worker (or two, one after the other), and answers.

A stage is used once. It is over when the task has ended, or when nothing can happen any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.client import Client, Question
from perdure.clock import SeededIds
from perdure.definitions import AgentCall
from perdure.errors import Error, NotFound
from perdure.model.task import Task, WaitKind
from perdure.runtime.durable import new_task
from perdure.settings import Settings
from perdure.states import TaskStatus
from perdure.store import Store, admission, instances, task_lists, tasks
from perdure.store.sqlite import open_sqlite
from perdure.testing.acting import ActingWorker, Cast
from perdure.testing.actor import Actor, unwind
from perdure.testing.answers import Answers, Nobody, give
from perdure.testing.invariants import broken
from perdure.testing.ledger import Ledger
from perdure.testing.line import Death, Line
from perdure.testing.virtual_loop import Process, TooLong, VirtualLoop

T = TypeVar("T")

_SETTINGS = Settings(sweep_s=0.5, poll_ms=500)
# Two sweeps and some looks: whatever a worker has to notice, it has noticed by then.
_QUIET_AFTER_S = 1.1
_UNWIND_TURNS = 100_000


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a play."""

    status: TaskStatus
    result: bytes | None
    error: Error | None
    questions: tuple[str, ...]
    commits: tuple[str, ...]
    wrong: tuple[str, ...]
    ledger: Ledger


class Stage:
    """One play, from the admission of its task to its end."""

    def __init__(
        self,
        call: AgentCall,
        *,
        troupe: Cast,
        answers: Answers,
        death: Death | None = None,
        settings: Settings = _SETTINGS,
    ) -> None:
        self.loop = VirtualLoop(quiet_after_s=_QUIET_AFTER_S)
        self._call = call
        self._cast = troupe
        self._answers = answers
        self._death = death
        self._settings = settings
        self._ids = SeededIds(1)
        self._ledger = Ledger()
        self._workers: list[Actor] = []
        self._settled: set[str] = set()
        self._unanswered: dict[str, Question] = {}
        self._is_idle = False

    def run(self) -> Record:
        """Play in this thread. Raises TooLong for an agent that goes on and on."""
        main = self.loop.create_task(self._main())
        try:
            return self.loop.run_until_complete(main)
        except TooLong:
            self.loop.turns_left = _UNWIND_TURNS
            main.cancel()
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(main)
            raise
        finally:
            self.loop.set_exception_handler(_ignore)  # What a broken play leaves behind is nobody's business.
            self.loop.close()

    # -- the play ---------------------------------------------------------------------------

    async def _main(self) -> Record:
        self._news = asyncio.Event()
        self._database = open_sqlite(None, settings=self._settings, clock=self.loop, ids=self._ids, inline=True)
        self._store = self._store_on(Line(self._database, self.loop))
        self._client = Client(store=self._store)
        self.loop.next_moment_ms = self._next_moment_ms
        self.loop.last_moment_ms = self._last_moment_ms
        self.loop.on_idle = self._idle
        self._cast.agents[self._call.definition.name, self._call.definition.version] = self._call.definition
        admitted = self._store.call(admission.admit, [new_task(self._call, key=self._call.options.key)])
        self._task_id = admitted.tasks[0].id
        try:
            self._start_worker(self._death)
            while not await self._look():
                await self._news.wait()
            return self._record()
        finally:
            await unwind(self._workers)
            self._database.close()

    async def _look(self) -> bool:
        """Do what is due for those around the task. True when the play is over."""
        was_idle, self._is_idle = self._is_idle, False
        self._news.clear()
        worker = self._workers[-1]
        if worker.process.is_held:
            self._bury(worker)
            self._start_worker(None)
            return False
        if worker.running.done():
            worker.running.result()
            raise AssertionError("the worker has stopped by itself")
        has_answered = await self._answer_questions()
        return self._task().status.is_terminal or (was_idle and not has_answered)

    def _start_worker(self, death: Death | None) -> None:
        process = Process(f"worker {len(self._workers) + 1}")
        line = Line(self._database, self.loop, death=death, on_death=self._died, on_write=self._noticed)
        worker = ActingWorker(self._store_on(line), troupe=self._cast, ledger=self._ledger, backstage=self._store)
        running = self.loop.create_task(worker.run(), name=process.name, context=process.context())
        running.add_done_callback(lambda _done: self._news.set())
        self._workers.append(Actor(process, line, worker, running))

    def _died(self) -> None:
        self._workers[-1].process.hold()
        self._news.set()

    def _bury(self, actor: Actor) -> None:
        """Say that a worker is proven dead, as its lock would."""
        for identity in actor.line.identities:
            with suppress(NotFound):  # It died before its registration was durable.
                self._store.call(instances.mark_stopped, identity)

    async def _answer_questions(self) -> bool:
        """Answer what is open. True when something was answered."""
        has_answered = False
        for question in await self._client.questions(limit=200):
            if question.id in self._settled:
                continue
            answer = self._answers.find(question)
            if await give(question, answer, self._ledger):
                self._settled.add(question.id)
                has_answered = True
            else:
                self._unanswered[question.id] = question
        return has_answered

    # -- news -------------------------------------------------------------------------------

    def _noticed(self, names: Sequence[str]) -> None:
        if any(name.startswith("questions.") or name in ("tasks.finish", "tasks.end_unfenced") for name in names):
            self.loop.something_happened()
            self._news.set()

    def _idle(self) -> None:
        self._is_idle = True
        self._news.set()

    def _next_moment_ms(self) -> int | None:
        """When something falls due next: in the store, in an attempt's memory, or because nobody answers."""
        now = self.loop.now_ms()
        moments = [self._store.read(task_lists.next_moment, grace_ms=int(self._settings.deadline_grace_s * 1000))]
        for actor in self._workers:
            if not actor.process.is_held:
                for attempt in actor.worker.attempts.values():
                    moments += [wait.until_ms for wait, _ in attempt.waits.pending()]
        for question in self._unanswered.values():
            if isinstance(self._answers.find(question), Nobody):
                moments.append(question.row.expires_at)
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    def _last_moment_ms(self) -> int | None:
        """The deadline that time must not reach, for it would hide a question that no answer of the test fits."""
        asking = {
            question.task_id
            for question in self._unanswered.values()
            if not self._is_settled(question.id) and not isinstance(self._answers.find(question), Nobody)
        }
        if not asking:
            return None
        waiting = [self._store.read(tasks.get, task_id) for task_id in {*asking, self._task_id}]
        return min((task.deadline_at for task in waiting if task.deadline_at is not None), default=None)

    # -- the end ----------------------------------------------------------------------------

    def _record(self) -> Record:
        task = self._task()
        outcome = self._store.read(task_lists.outcome, self._task_id)
        still_open = tuple(question.text for question in self._unanswered.values() if not self._is_settled(question.id))
        wrong = [*self._store.read(broken), *self._ledger.run_wrongly()]
        if not task.status.is_terminal and not still_open and not _waits_for_a_message(task):
            wrong.append(f"the task is stuck: it is {task.status}, and nothing will ever move it on")
        return Record(
            task.status,
            None if outcome is None else outcome.result,
            None if outcome is None else outcome.error,
            still_open,
            tuple(self._workers[0].line.commits),
            tuple(wrong),
            self._ledger,
        )

    # -- small things -----------------------------------------------------------------------

    def _store_on(self, line: Line) -> Store:
        return Store(line, clock=self.loop, ids=self._ids, settings=self._settings)

    def _task(self) -> Task:
        return self._store.read(tasks.get, self._task_id)

    def _is_settled(self, question_id: str) -> bool:
        return question_id in self._settled


def _waits_for_a_message(task: Task) -> bool:
    return task.status is TaskStatus.WAITING and any(wait.kind is WaitKind.RECEIVE for wait in task.waiting_for)


def _ignore(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    return None
