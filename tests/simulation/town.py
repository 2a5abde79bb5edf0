"""A town of workers on one store and one virtual clock: they die, stall and come back, and people answer late.

Everything is drawn from one seed, so a run that goes wrong goes wrong again. The ledger of effects lies outside.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from perdure import codec
from perdure.client import Client, Question
from perdure.clock import SeededIds
from perdure.definitions import AgentCall, AgentDefinition, AgentOptions, definition_of
from perdure.model.question import QuestionKind
from perdure.model.task import Task
from perdure.runtime.doubts import Verdict, happened, not_happened
from perdure.runtime.durable import new_task
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.states import TaskStatus
from perdure.store import Store, admission, instances, messages, task_lists, tasks
from perdure.store.sqlite import open_sqlite
from perdure.testing.actor import Actor, unwind
from perdure.testing.invariants import broken
from perdure.testing.line import Death, Line, Moment
from perdure.testing.virtual_loop import Process
from tests.simulation.outside import Outside
from tests.simulation.program import Author, Program, actor, answer_to, expected, numbers, own_numbers
from tests.simulation.shuffled_loop import ShuffledLoop
from tests.simulation.slow_line import SlowLine

HOUR_S = 3600.0
MOST_WORKERS = 5
SETTINGS = Settings(
    heartbeat_s=5,
    lease_s=30,
    sweep_s=5,
    poll_ms=5000,
    permits=3,
    main_permits=1,
    waiting_in_memory=2,
    shutdown_grace_s=5,
    deadline_grace_s=5,
    recovery_limit=50,
)


@dataclass(slots=True)
class Plan:
    """A task of the town."""

    task_id: str
    program: Program
    may_be_cancelled: bool = False
    may_time_out: bool = False


class Town:
    """One run of one virtual hour and of what is left after it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.deaths = self.stalls = self.commits = 0
        self.loop = ShuffledLoop(seed, quiet_after_s=5.5)
        self.random = Random(seed)
        self.outside = Outside(Random(seed + 1))
        self._ids = SeededIds(seed)
        self._author = Author(self.random)
        self._actors: list[Actor] = []
        self._plans: list[Plan] = []
        self._digest = hashlib.sha256()
        self._failures: list[BaseException] = []
        self._is_calm = False
        self._context = contextvars.copy_context()

    def play(self) -> str:
        """Live through it; a digest over everything that was written. Raises AssertionError naming the seed."""
        try:
            return self.loop.run_until_complete(self._main())
        finally:
            self.loop.set_exception_handler(lambda _loop, _context: None)
            self.loop.close()

    async def _main(self) -> str:
        self._news = asyncio.Event()
        self._database = open_sqlite(None, settings=SETTINGS, clock=self.loop, ids=self._ids, inline=True)
        self._store = self._store_on(Line(self._database, self.loop))
        self._client = Client(store=self._store)
        self.loop.next_moment_ms = self._next_moment_ms
        self.loop.is_tense = self._is_tense
        self.loop.on_idle = self._news.set
        self.loop.set_exception_handler(self._failed)
        try:
            for _ in range(3):
                self._start_worker()
            for _ in range(self.random.randint(3, 6)):
                self._later(self.random.uniform(0, HOUR_S / 2), self._admit)
            self._later(self.random.uniform(5, 300), self._bring_trouble)
            await asyncio.sleep(HOUR_S)
            await self._calm_down()
            await asyncio.sleep(200)
            self._check()
            return self._digest.hexdigest()
        finally:
            await unwind(self._actors)
            self._database.close()

    async def _calm_down(self) -> None:
        """No more trouble: everything must come to its end."""
        self._is_calm = True
        for one in self._living():
            one.process.release(self.loop)
        self._start_worker()
        while self._store.read(task_lists.recent, open_only=True, limit=1):
            self._news.clear()
            if self.loop.time() > 5 * HOUR_S:
                break
            try:
                async with asyncio.timeout(600):
                    await self._news.wait()
            except TimeoutError:
                continue

    # -- work ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start a task, twice with the same key as an impatient client would; some are cancelled, some must hurry."""
        program = self._author.write()
        definition = _agent()
        hurries = self.random.random() < 0.15
        call = AgentCall(definition, AgentOptions(deadline=400.0 if hurries else None), (program,), {})
        new = new_task(call, key=f"k{len(self._plans)}")
        first = self._store.call(admission.admit, [new]).tasks[0]
        again = self._store.call(admission.admit, [new]).tasks[0]
        assert first.id == again.id
        plan = Plan(first.id, program, may_time_out=hurries)
        self._plans.append(plan)
        if self.random.random() < 0.15:
            plan.may_be_cancelled = True
            self._later(self.random.uniform(1, 300), self._cancel, plan)
        for number in own_numbers(program, "receive"):
            for _ in range(2):
                self._later(self.random.uniform(0, 600), self._send, plan, number)

    def _cancel(self, plan: Plan) -> None:
        self._start(self._client.task(plan.task_id).cancel("changed my mind"))

    def _send(self, plan: Plan, number: int) -> None:
        if self._store.read(task_lists.outcome, plan.task_id) is None:
            self._start(self._client.send(plan.task_id, f"m{number}", number, key=f"once {number}"))

    # -- trouble --------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        if len(self._living()) >= MOST_WORKERS:
            return
        number = len(self._actors)
        process = Process(f"worker {number + 1}")
        doomed = self.random.random() < 0.5 and not self._is_calm
        line = SlowLine(
            self._database,
            self.loop,
            random=Random(self.random.random()),
            death=Death(self.random.randint(1, 40), self.random.choice(list(Moment))) if doomed else None,
            on_death=lambda: self._kill(self._actors[number]),
            on_write=lambda names: self._written(names, by=number),
        )
        worker = Worker(self._store_on(line), [_agent()], deps=[self.outside])
        running = self.loop.create_task(worker.run(), name=process.name, context=process.context())
        one = Actor(process, line, worker, running)
        running.add_done_callback(lambda _done: self._prove_dead(one))  # Its process ends with it.
        self._actors.append(one)

    def _living(self) -> list[Actor]:
        return [one for one in self._actors if not one.line.is_dead and not one.running.done()]

    def _bring_trouble(self) -> None:
        """Kill, stall, stop or start a worker, or set the wall clock; then again later."""
        if self._is_calm:
            return
        awake = [one for one in self._living() if not one.process.is_held]
        match self.random.choice(("kill", "kill", "stall", "stall", "stop", "start", "clock")):
            case "kill" if awake:
                self._kill(self.random.choice(awake))
            case "stall" if awake:
                self._stall(self.random.choice(awake))
            case "stop" if awake:
                self.random.choice(awake).worker.stop()
                self._later(self.random.uniform(0, 20), self._start_worker)
            case "clock":
                self.loop.jump(self.random.choice((-3_600_000, -1000, 1000, 30_000)))
            case _:
                self._start_worker()
        self._later(self.random.uniform(20, 500), self._bring_trouble)

    def _kill(self, one: Actor) -> None:
        self.deaths += 1
        one.die()
        # Its lock is found free at once, or (on another host) only when somebody says so: silence has to tell first.
        self._later(self.random.choice((0.5, 5, 100)), self._prove_dead, one)
        self._later(self.random.uniform(0, 30), self._start_worker)

    def _prove_dead(self, one: Actor) -> None:
        for identity in one.line.identities:
            self._store.call(instances.mark_stopped, identity)

    def _stall(self, one: Actor) -> None:
        if one.process.is_held:
            return
        self.stalls += 1
        one.process.hold()
        duration_s = self.random.choice((self.random.uniform(1, 20), self.random.uniform(28, 34), 60, 150))
        self._later(duration_s, self._wake, one)

    def _wake(self, one: Actor) -> None:
        if not one.line.is_dead:
            one.process.release(self.loop)

    # -- people -----------------------------------------------------------------------------------

    def _written(self, names: Sequence[str], *, by: int) -> None:
        """A worker is about to commit. Now and then it stalls right there, and its answer waits for it."""
        self.commits += 1
        if self.random.random() < 0.02 and not self._is_calm:
            self._stall(self._actors[by])
        self._digest.update(f"{self.loop.boot_ms()} {names}\n".encode())
        if "questions.insert" in names:
            self._later(self.random.uniform(0, 60), self._answer_soon)
        if "tasks.finish" in names or "tasks.end_unfenced" in names:
            self._news.set()

    def _answer_soon(self) -> None:
        self._start(self._answer())

    async def _answer(self) -> None:
        """Answer what is open, as far as it can be known."""
        for question in await self._client.questions(limit=200):
            match question.row.kind:
                case QuestionKind.CALL | QuestionKind.RESUME:
                    await question.approve(by="ana")
                case QuestionKind.ASK:
                    await question.answer(answer_to(int(question.text.split()[-1].rstrip("?"))), by="ana")
                case QuestionKind.STEP_IN_DOUBT:
                    verdict = self._find_out(question)
                    if verdict is None:
                        self._later(self.random.uniform(5, 60), self._answer_soon)
                    else:
                        await question.resolve(verdict, by="ana")

    def _find_out(self, question: Question) -> Verdict[str] | None:
        """What became of a payment; None while a worker that may come back stands in the middle of it."""
        number = int(question.args["number"])
        if self.outside.paid[number]:
            return happened(f"p{number}")
        living = {one.process for one in self._living()}
        return None if living.intersection(self.outside.standing_inside(number)) else not_happened()

    # -- time -------------------------------------------------------------------------------------

    def _is_tense(self) -> bool:
        """While somebody is silent and the others have not noticed, every heartbeat counts."""
        silent = {identity for one in self._actors if one.process.is_held for identity in one.line.identities}
        return bool(silent) and any(one.id in silent for one in self._store.read(instances.alive))

    def _next_moment_ms(self) -> int | None:
        now = self.loop.now_ms()
        moments = [self._store.read(task_lists.next_moment, grace_ms=int(SETTINGS.deadline_grace_s * 1000))]
        for one in self._living():
            for attempt in one.worker.attempts.values():
                moments += [wait.until_ms for wait, _ in attempt.waits.pending()]
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    # -- what must hold -----------------------------------------------------------------------------

    def _check(self) -> None:
        wrong = [*self._store.read(broken), *(repr(failure) for failure in self._failures)]
        for plan in self._plans:
            wrong += self._wrong_with(plan)
        twice = {number: count for number, count in self.outside.paid.items() if count > 1}
        wrong += [f"paid more than once: {twice}"] if twice else []
        renamed = [number for number, tokens in self.outside.tokens.items() if len(tokens) > 1]
        wrong += [f"calls with more than one token: {renamed}"] if renamed else []
        living = {identity for one in self._living() for identity in one.line.identities}
        unburied = [one.id for one in self._store.read(instances.alive) if one.id not in living]
        wrong += [f"instances that nobody buried: {unburied}"] if unburied else []
        if wrong:
            raise AssertionError(f"seed {self.seed}: " + "\n".join(wrong))

    def _wrong_with(self, plan: Plan) -> list[str]:
        task = self._store.read(tasks.get, plan.task_id)
        here = f"{plan.program}\n    {self._describe(task)}"
        allowed = {TaskStatus.COMPLETED}
        allowed |= {TaskStatus.CANCELLED} if plan.may_be_cancelled else set()
        allowed |= {TaskStatus.TIMED_OUT} if plan.may_time_out else set()
        if task.status not in allowed:
            found = self._store.read(task_lists.outcome, task.id)
            why = "" if found is None else f" with {found.error}"
            return [f"{here} ended {task.status}{why}, allowed is {sorted(allowed)}"]
        if task.status is not TaskStatus.COMPLETED:
            return []
        outcome = self._store.read(task_lists.outcome, task.id)
        assert outcome is not None
        assert outcome.result is not None
        wrong = []
        result = codec.decode(outcome.result)
        if result != expected(plan.program):
            wrong.append(f"{here} returned {result}, not {expected(plan.program)}")
        unpaid = [number for number in numbers(plan.program, "pay") if self.outside.paid[number] != 1]
        if unpaid:
            wrong.append(f"{here} completed without the payments {unpaid}")
        said = len(self._store.read(messages.listing, task.id, limit=1000))
        if said != len(own_numbers(plan.program, "say")):
            wrong.append(f"{here} has {said} messages")
        return wrong

    def _describe(self, task: Task) -> str:
        waits = [(wait.kind.value, wait.keys) for wait in task.waiting_for]
        return f"task {task.id} is {task.status} in attempt {task.attempt}, waiting for {waits}"

    # -- small things ---------------------------------------------------------------------------------

    def _later(self, delay_s: float, act: Callable[..., object], *args: object) -> None:
        """Do it later as the town: what a worker sets going while it writes must not stall or die with it."""
        self.loop.call_later(delay_s, act, *args, context=self._context)

    def _store_on(self, line: Line) -> Store:
        return Store(line, clock=self.loop, ids=self._ids, settings=SETTINGS)

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(lambda done: None if done.cancelled() else self._note(done.exception()))

    def _note(self, error: BaseException | None) -> None:
        if error is not None:
            self._failures.append(error)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self._failures.append(error if isinstance(error, BaseException) else RuntimeError(str(context["message"])))


def _agent() -> AgentDefinition:
    definition = definition_of(actor)
    assert isinstance(definition, AgentDefinition)
    return definition
