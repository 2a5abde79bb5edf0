"""One execution of a task, from claim to end. The heart: reads top-down.

    run()            load the records, call the agent, write what became of it
    stop(reason)     from outside: hand back, set aside, interrupt, or just let go
    call_tool(…)     what agent code does while it runs (calls.py, durable.py)

An attempt is set aside or cancelled by asyncio cancellation; from then on every perdure call in it raises
CancelledError again, whatever the agent does with the first. Nothing here retries a store write that was refused:
a lost lease means that somebody else goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any, Protocol, TypeVar

from perdure import ambient, codec
from perdure.definitions import AgentCall, AgentDefinition, ToolCall, hints, returns, unbind_arguments
from perdure.errors import (
    BudgetExceeded,
    Cancelled,
    Damaged,
    InvariantError,
    LeaseLost,
    NotSerializable,
    StoreError,
    Suspend,
)
from perdure.model.question import Question
from perdure.model.step import Note, NoteKind, Step, StepKind
from perdure.model.task import Claim, Mode, Usage, Wait, WaitKind
from perdure.policy.budget import Budget, violated, violations
from perdure.policy.budget import Usage as Spent
from perdure.policy.retry import ErrorClass, RetryPolicy, classify, delay_s, should_retry
from perdure.policy.risk import Risk
from perdure.runtime import calls, doubts, durable, stand_ins
from perdure.runtime.call import Call, from_tool
from perdure.runtime.journal import Journal
from perdure.runtime.threads import block_on, start_thread
from perdure.runtime.waits import Waits
from perdure.settings import Settings
from perdure.store import Store, ends, task_lists, tasks

R = TypeVar("R")


class Stop(Enum):
    """Why an attempt ends although its agent has not."""

    RELEASE = auto()  # handed back between two steps; costs nothing
    SUSPEND = auto()  # gives up its memory while it waits
    INTERRUPT = auto()  # cut off; recovery decides
    DEADLINE = auto()  # its time is over
    LOST = auto()  # somebody else owns the task, or it has ended: write nothing


class InFlight(Protocol):
    """Calls that may still be inside their function, over all attempts of a process."""

    def add(self, task_id: str, key: str, running: asyncio.Future[Any]) -> None:
        """A call has started; it counts until `running` is done."""
        ...

    def holds(self, task_id: str, key: str) -> bool:
        """Whether the call may still be running in this process."""
        ...


class Host(Protocol):
    """The worker, as its attempts see it."""

    store: Store
    settings: Settings
    random: Random
    instance_id: str
    in_flight: InFlight

    async def until_may_call(self) -> None:
        """Return once this process has proven lately that it lives; a call above low risk must not start before."""
        ...

    async def pause(self, duration_s: float) -> None:
        """Wait, on the worker's own clock."""
        ...

    async def take_permit(self, attempt: Attempt) -> None:
        """Win a permit again."""
        ...

    def give_permit(self, attempt: Attempt) -> None:
        """Give the permit back."""
        ...

    def look_soon(self) -> None:
        """Look soon whether what attempts wait for has happened."""
        ...

    def tell(self, question: Question) -> None:
        """A question was opened or found."""
        ...

    def stream(self, attempt: Attempt, kind: str, payload: dict[str, Any]) -> None:
        """Hand on a streamed event."""
        ...

    def dep(self, cls: type[R]) -> R:
        """What the app's lifespan opened, by class."""
        ...


@dataclass(slots=True)
class Saved:
    """What records have answered in this attempt: calls not made and tokens not bought again."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0

    def count(self, record: Step) -> None:
        """One more answer."""
        self.model_calls += record.event_kind == StepKind.MODEL_CALL
        self.tool_calls += record.event_kind == StepKind.TOOL_CALL
        self.tokens += record.prompt_tokens + record.completion_tokens


class Attempt:
    """One attempt. Lives on one event loop; synchronous agents call in from their thread."""

    def __init__(self, host: Host, claim: Claim, definition: AgentDefinition) -> None:
        self.host = host
        self.task = claim.task
        self.definition = definition
        self.journal = Journal(host.store, claim, on_store_error=self._store_failed)
        self.waits = Waits(self.journal, self, settle=self._settle_drain)
        self.saved = Saved()
        self.allowed: dict[str, str] = {}
        self.holds_permit = True
        self.stopping: Stop | None = None
        self.is_draining = False
        self.done = asyncio.Event()
        self._claim = claim
        self._root: asyncio.Future[Any] | None = None
        self._bridged: set[asyncio.Task[Any]] = set()
        self._stand_ins: dict[int, tuple[BaseException, int, bool]] = {}
        self._loop = asyncio.get_running_loop()
        self._budget = Budget.from_json(json.loads(claim.input.budget))
        self._has_limits = self._budget != Budget()
        self._spent = Usage(
            claim.task.prompt_tokens, claim.task.completion_tokens, claim.task.cost, claim.task.tool_calls,
            claim.task.iterations,
        )

    # -- the life of an attempt ---------------------------------------------------------------

    async def run(self) -> None:
        """Run the agent to an end of the attempt, and write that end. Never raises."""
        try:
            with ambient.running_attempts:
                await self._run()
        finally:
            self.waits.cancel()
            if self.holds_permit:
                self.host.give_permit(self)
            self.done.set()

    async def _run(self) -> None:
        try:
            await self.journal.load()
            args, kwargs = self._arguments()
        except Damaged as damage:
            await self._end(tasks.interrupt, self.task.id, self.journal.fence.execution_id,
                            reason="its records cannot be read", trace_error=str(damage))
            return
        except asyncio.CancelledError:
            return
        value, error = await self._call_agent(args, kwargs)
        if self.stopping is not None:
            await self._write_stop()
        elif error is not None:
            await self._failed(error)
        else:
            await self._completed(value)

    async def _call_agent(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
        """Call the agent in its own asyncio task or thread; what it returned or raised."""
        context = contextvars.copy_context()
        context.run(ambient.enter, ambient.Scope(self))
        fn = self.definition.fn
        if self.definition.is_async:
            self._root = self._loop.create_task(fn(*args, **kwargs), context=context)
        else:
            self._root = start_thread(lambda: fn(*args, **kwargs), context=context, name=self.definition.name)
        if self.stopping is not None:
            self._root.cancel()
        await asyncio.wait({self._root})
        if self._root.cancelled():
            return None, asyncio.CancelledError("the agent was cancelled")
        error = self._root.exception()
        return (None, error) if error is not None else (self._root.result(), None)

    def stop(self, reason: Stop) -> None:
        """End the attempt from outside. The first reason stands; losing the lease overrides it."""
        if self.stopping is None or reason is Stop.LOST:
            self.stopping = reason
        if self._root is not None and not self._root.done():
            if self.definition.is_async:
                self._root.cancel()
            else:
                for task in list(self._bridged):
                    task.cancel()
                if not self._bridged:
                    self._root.cancel()  # The thread goes on alone; its next perdure call ends it.

    def drain(self) -> None:
        """Hand the task back as soon as no call of it is in flight."""
        self.is_draining = True
        self._settle_drain()

    def _settle_drain(self) -> None:
        if self.is_draining and self.waits.live_calls == 0 and self.stopping is None:
            self.stop(Stop.RELEASE)

    def _store_failed(self, error: StoreError) -> None:
        self.stop(Stop.LOST)

    def check(self) -> None:
        """Raise CancelledError once the attempt is to end; no call starts after that."""
        if self.stopping is not None or self.done.is_set():
            raise asyncio.CancelledError("this attempt has ended; let CancelledError pass")

    # -- ends -----------------------------------------------------------------------------------

    async def _completed(self, value: Any) -> None:
        limit = self.host.settings.payload_limit_bytes
        try:
            stored, _ = codec.roundtrip(value, annotation=returns(self.definition.fn), limit=limit)
        except NotSerializable as error:
            await self._failed(error)
            return
        try:
            await self._join_children()
            while doubtful := self.journal.records.in_doubt():
                for record in doubtful:
                    self.journal.used(record.key or "")
                    async with self.waits.call():
                        await doubts.settle_unreached(self, record)
        except asyncio.CancelledError:
            await self._write_stop()
            return
        notes = [*self.journal.take_notes(), Note(NoteKind.TURN_COMPLETED, codec.encode({"outcome": "completed"}))]
        await self._end(
            ends.complete, self.journal.fence, codec.pack(stored), notes=notes, risk_seen=self.journal.risk_seen
        )

    async def _failed(self, exc: BaseException) -> None:
        error = stand_ins.describe(exc)
        final = self._is_final(exc)
        policy = RetryPolicy(retries=self.definition.retries)
        kind = ErrorClass.UNKNOWN if isinstance(exc, asyncio.CancelledError) else classify(exc)
        notes = self.journal.take_notes()
        if not final and should_retry(policy, kind, self.task.failures):
            wait_s = delay_s(policy, self.task.failures, self.host.random)
            await self._end(
                tasks.retry,
                self.journal.fence,
                available_at=self.journal.store.clock.now_ms() + int(wait_s * 1000),
                error=error,
                rerun_steps=[index for index, is_final in self._raised(exc) if not is_final and index >= 0],
            )
            return
        await self._end(ends.fail, self.journal.fence, error, notes=notes, risk_seen=self.journal.risk_seen)

    async def _write_stop(self) -> None:
        """Write why the attempt ended although its agent had not."""
        fence = self.journal.fence
        match self.stopping:
            case Stop.RELEASE:
                await self._end(tasks.release, fence, reason="the worker is stopping")
            case Stop.SUSPEND:
                await self._end(tasks.suspend, fence)
            case Stop.INTERRUPT:
                await self._end(
                    tasks.interrupt, self.task.id, fence.execution_id, reason="the worker stopped during a call"
                )
            case Stop.DEADLINE:
                await self._end(ends.time_out, self.task.id, fence=fence)
            case Stop.LOST | None:
                return

    async def _end(self, operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Write an end. A lease that is lost by now is no error: somebody else has the task."""
        try:
            await self.journal.write(operation, *args, **kwargs)
        except (asyncio.CancelledError, LeaseLost, InvariantError):
            return

    async def _join_children(self) -> None:
        """Wait for children that were started and not awaited: a task does not end before those it waits for."""
        found = await self.journal.read(task_lists.children, self.task.id)
        still = tuple(t.id for t in found if t.mode is Mode.FOREGROUND and not t.status.is_terminal)
        if still:
            async with self.waits.call():
                await self.waits.until(Wait(WaitKind.CHILDREN, still))

    # -- errors -----------------------------------------------------------------------------------

    def remember(self, stand_in: BaseException, step_index: int, risk: Risk) -> BaseException:
        """Know a stand-in again, should it be what ends the attempt."""
        is_final = risk >= Risk.HIGH or stand_ins.is_final(stand_in)
        self._stand_ins[id(stand_in)] = (stand_in, step_index, is_final)
        return stand_in

    def _raised(self, exc: BaseException) -> Iterator[tuple[int, bool]]:
        """Steps whose stand-in is this exception, in its chain, or in its group: (index, final)."""
        seen: set[int] = set()
        todo: list[BaseException | None] = [exc]
        while todo:
            one = todo.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if id(one) in self._stand_ins:
                _, index, is_final = self._stand_ins[id(one)]
                yield index, is_final
            todo += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                todo += one.exceptions

    def _is_final(self, exc: BaseException) -> bool:
        if isinstance(exc, BaseExceptionGroup):
            return any(self._is_final(one) for one in exc.exceptions)
        known = self._stand_ins.get(id(exc))
        return known[2] if known is not None else stand_ins.is_final(exc)

    # -- what agent code does -----------------------------------------------------------------------

    async def call_tool(self, call: ToolCall) -> Any:
        """Record and run a tool."""
        return await calls.perform(self, from_tool(call))

    async def call_agent(self, call: AgentCall) -> Any:
        """Run an agent as a child task."""
        return await durable.run_agent(self, call)

    def as_run_here(self, call: Call) -> Call:
        """The call as it really runs: itself. A test world puts a stand-in in its place."""
        return call

    @property
    def is_on_loop(self) -> bool:
        """Whether the caller is on the attempt's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def block_on(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """From a thread of the attempt: run a coroutine on its loop and wait. Raises Suspend or Cancelled."""
        try:
            self.check()
            return block_on(self._loop, make, started=self._bridge)
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            if self.stopping in (Stop.RELEASE, Stop.SUSPEND, Stop.INTERRUPT):
                raise Suspend("this task is set aside; it goes on from its records later") from None
            raise Cancelled("this task has ended or belongs to another worker now") from None

    def _bridge(self, task: asyncio.Task[Any]) -> None:
        self._bridged.add(task)
        task.add_done_callback(self._bridged.discard)
        if self.stopping is not None:
            task.cancel()

    # -- permits, as waits see them ------------------------------------------------------------------

    async def take_permit(self) -> None:
        """Win a permit again."""
        await self.host.take_permit(self)
        self.holds_permit = True

    def give_permit(self) -> None:
        """Give the permit back."""
        if self.holds_permit:
            self.holds_permit = False
            self.host.give_permit(self)

    def look_soon(self) -> None:
        """Have the worker look what has happened."""
        self.host.look_soon()

    # -- budget ---------------------------------------------------------------------------------------

    def check_budget(self, call: Call) -> None:
        """Refuse a call for which nothing is left. Raises BudgetExceeded; uncaught, it fails the task."""
        if not self._has_limits or call.kind not in (StepKind.MODEL_CALL, StepKind.TOOL_CALL):
            return
        spent = Spent(
            tokens=self._spent.prompt_tokens + self._spent.completion_tokens,
            cost=self._spent.cost,
            tool_calls=self._spent.tool_calls + (call.kind is StepKind.TOOL_CALL),
            iterations=self._spent.iterations + (call.kind is StepKind.MODEL_CALL),
        )
        names = violated(self._budget, spent)
        if names:
            texts = violations(self._budget, spent, owner=self.definition.name)
            raise BudgetExceeded("; ".join(texts), limit=texts[0])

    def spent(self, call: Call, usage: Usage | None) -> None:
        """Count what a call has consumed."""
        counted = Usage(0, 0, 0.0, int(call.kind is StepKind.TOOL_CALL), int(call.kind is StepKind.MODEL_CALL))
        self._spent = self._spent.plus(counted if usage is None else counted.plus(usage))

    @property
    def budget_left(self) -> Budget:
        """What is left of the budget now."""
        from perdure.policy.budget import spend

        return spend(
            self._budget,
            Spent(
                tokens=self._spent.prompt_tokens + self._spent.completion_tokens,
                cost=self._spent.cost,
                tool_calls=self._spent.tool_calls,
                iterations=self._spent.iterations,
            ),
        )

    # -- arguments --------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The agent's arguments, of the types that it names. Raises Damaged when they cannot be read."""
        given = codec.decode(self._claim.input.prompt)
        if not isinstance(given, dict):
            raise Damaged(f"the arguments of task {self.task.id} are {type(given).__name__}, not a mapping")
        wanted = hints(self.definition.fn)
        typed = {
            name: codec.decode(codec.encode(value), annotation=wanted[name]) if name in wanted else value
            for name, value in given.items()
        }
        return unbind_arguments(self.definition.fn, typed)
