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
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Any, NoReturn, Protocol, TypeVar

from perdure import ambient, codec
from perdure.definitions import AgentCall, AgentDefinition, ToolCall, hints, unbind_arguments
from perdure.errors import BadInput, Cancelled, Damaged, Error, LeaseLost, Refused, RefusedBySchema, StoreError, Suspend
from perdure.model.question import Question
from perdure.model.task import Claim, Usage
from perdure.policy.budget import Budget
from perdure.policy.risk import Risk
from perdure.runtime import calls, durable, endings, stand_ins
from perdure.runtime.branches import ThreadCode, mark_thread, of_agent
from perdure.runtime.call import Call, from_tool
from perdure.runtime.histories import read_again
from perdure.runtime.in_flight import InFlightCalls
from perdure.runtime.journal import Journal
from perdure.runtime.raised import walk
from perdure.runtime.running import contained, contained_in_thread, until_done
from perdure.runtime.spending import Saved, Spending
from perdure.runtime.threads import block_on, start_thread
from perdure.runtime.waits import Waits
from perdure.settings import Settings
from perdure.states import TaskStatus
from perdure.store import Store, aio
from perdure.store.completions import Completion
from perdure.store.steps import NewStep
from perdure.store.traces import Trace

log = logging.getLogger(__name__)
R = TypeVar("R")
_ENDED = "this attempt has ended; let CancelledError pass"
_PATIENCE, _TURNED_AWAY_S = 100, 0.05  # after so many refusals each further one takes so long
_DECIDED_S = 1.0  # so long may a stopped attempt keep its permit while its end is being written


class Stop(Enum):
    """Why an attempt ends although its agent has not."""

    RELEASE = auto()  # handed back between two steps; costs nothing
    SUSPEND = auto()  # gives up its memory while it waits
    INTERRUPT = auto()  # cut off; recovery decides
    DEADLINE = auto()  # its time is over
    LOST = auto()  # somebody else owns the task, or it has ended: write nothing


class Host(Protocol):
    """The worker, as its attempts see it."""

    store: Store
    settings: Settings
    random: Random

    @property
    def instance_id(self) -> str:
        """Who this worker is to the others now."""
        ...

    @property
    def in_flight(self) -> InFlightCalls:
        """Calls that may still be inside their function."""
        ...

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

    def has_agent(self, name: str, version: str) -> bool:
        """Whether tasks of an agent can run here."""
        ...

    def tell_unmanned(self, attempt: Attempt, agent: str) -> None:
        """A child of the attempt waits for an agent that no live worker has."""
        ...

    def stream(self, attempt: Attempt, kind: str, payload: dict[str, Any]) -> None:
        """Hand on a streamed event."""
        ...

    async def until_streamed(self, attempt: Attempt) -> None:
        """Store what the attempt has streamed so far, if the store can."""
        ...

    async def complete_together(self, one: Completion) -> bool:
        """Complete a task in one write with others that complete now; False when it is to be completed by itself."""
        ...

    def dep(self, cls: type[R]) -> R:
        """What the app's lifespan opened, by class."""
        ...


class Attempt:
    """One attempt. Lives on one event loop; synchronous agents call in from their thread."""

    def __init__(self, host: Host, claim: Claim, definition: AgentDefinition, *, history: Trace | None = None) -> None:
        """`history` is the task's trace, if it has been read already."""
        self.host = host
        self.task = claim.task
        self.definition = definition
        self.journal = Journal(host.store, claim, on_store_error=self._store_failed)
        self.waits = Waits(self.journal, self, on_waiting=self._release_if_drained)
        self.spending = Spending(claim)
        self.saved = Saved()
        self.allowed: dict[str, str] = {}  # the yes to a call that fits no record, by its key
        self.intents: dict[str, tuple[Call, NewStep]] = {}  # begun, or found in doubt, and without an outcome so far
        self.holds_permit = True
        self.stopping: Stop | None = None
        self.is_draining = False
        self.is_ending = False
        self.is_writing_end = False  # the write is under way that says how it ended
        self.is_handed_back = False
        self.outcome: tuple[TaskStatus, Error | None] | None = None  # how the task ended, if this attempt has ended it
        self.done = asyncio.Event()
        self._claim = claim
        self._history = history
        self._root: asyncio.Future[Any] | None = None
        self._turned_away = 0
        self._bridged: dict[asyncio.Task[Any], threading.Thread] = {}  # for whom each makes its call
        self._open_calls: dict[Call, asyncio.Task[Any] | None] = {}
        self._call_closed: asyncio.Future[None] | None = None  # once somebody waits for it
        self._stand_ins: dict[int, tuple[BaseException, int, bool]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    # -- the life of an attempt ---------------------------------------------------------------

    async def run(self) -> None:
        """Run the agent to an end of the attempt, and write that end. Never raises what an agent or a store raises."""
        try:
            with ambient.running_attempts:
                await self._run()
        except RefusedBySchema:
            log.exception("the end of task %s cannot be stored; it is looked at again", self.task.id)
        except StoreError as failed:
            # The task is this worker's still, with nobody on it: its next heartbeat interrupts it, or who buries it.
            if not self.has_lost:  # Else that was told.
                self._store_failed(failed)
        finally:
            self._let_go()

    async def _run(self) -> None:
        value: Any = None
        error: BaseException | None = asyncio.CancelledError("it was stopped before its agent began")
        try:
            await read_again(self._load, task_id=self.task.id, until=lambda: self.stopping is not None)
        except (Damaged, Refused) as why:  # Refused is a trace that is too long to be replayed.
            await endings.set_apart(self, why)
            return
        if self.stopping is None:
            value, error = await self._follow(self._start_agent())
        if self.stopping is None:
            self.is_ending = True
            await self._end(value, error)
        if self.stopping is not None and self.outcome is None:
            self._cancel_calls()
            await self.waits.close()
            await endings.end_stopped(self, value, error)

    async def _load(self) -> None:
        await self.journal.load(self._history)
        self._history = None
        await self.spending.look(partial(aio.read, self.host.store))

    def _start_agent(self) -> asyncio.Future[Any]:
        """The agent in its own asyncio task or thread."""
        context = contextvars.copy_context()
        scope = ambient.Scope(self)
        context.run(ambient.enter, scope)
        fn = self.definition.fn
        try:
            args, kwargs = self._arguments()
            if not self.definition.is_async:
                run = contained_in_thread(of_agent(fn), *args, **kwargs)
                return start_thread(run, context=context, name=self.definition.name)
            agent = self._loop.create_task(contained(fn, *args, **kwargs), context=context)
            scope.runs_in(agent)
            return agent
        except Exception as exc:  # noqa: BLE001  # Arguments that do not fit its signature: the task fails by them.
            failed: asyncio.Future[Any] = self._loop.create_future()
            failed.set_exception(exc)
            return failed

    async def _follow(self, running: asyncio.Future[Any]) -> tuple[Any, BaseException | None]:
        """Wait for what the attempt does now, which `stop` cancels; what it returned or raised."""
        self._root = running
        if self.stopping is not None:
            running.cancel()
        await until_done(running)
        if running.cancelled():
            return None, asyncio.CancelledError("the agent was cancelled")
        error = running.exception()
        return (None, error) if error is not None else (running.result(), None)

    async def _end(self, value: Any, error: BaseException | None) -> None:
        """Write what became of the task. `stop` cancels it, and this returns all the same."""
        me = asyncio.current_task(self._loop)
        assert me is not None
        self._root = me
        try:
            await endings.end(self, value, error)
        except BaseException:
            if self.stopping is None:
                raise
        finally:
            self._root = None
            if self.stopping is not None:
                while me.cancelling():  # That was for what has ended: what follows may wait again.
                    me.uncancel()

    def stop(self, reason: Stop) -> None:
        """End the attempt from outside. The first reason stands; losing the lease overrides it.

        Its agent is cancelled once, and again only when no time is left to end well: INTERRUPT, LOST.
        """
        if self.stopping is not None and reason not in (Stop.INTERRUPT, Stop.LOST):
            return  # Its agent has been told once; a second cancellation would cut what it does to end well.
        if self.stopping is None or reason is Stop.LOST:
            self.stopping = reason
        if self._root is not None and not self._root.done():
            if self.is_writing_end:
                # The write itself may be why the task is not owned any more, and what it comes to is to be told, though
                # it be late. Its fence keeps it from doing harm.
                self._loop.call_later(_DECIDED_S, self._let_go_of, self._root)
            elif self.definition.is_async or self.is_ending:
                self._root.cancel()
            else:
                for task in list(self._bridged):
                    task.cancel()
                if not self._bridged:
                    self._root.cancel()  # The thread goes on alone; its next perdure call ends it.

    def _let_go_of(self, writing: asyncio.Future[Any]) -> None:
        if self._root is writing:
            self._let_go()

    def _let_go(self) -> None:
        """Hold up nobody any more."""
        self.done.set()
        self.waits.cancel()
        self._cancel_calls()
        self.give_permit()

    def forget(self) -> None:
        """It has ended, and nobody is inside it: cut its circles, or its history stays until the collector comes."""
        if not self._open_calls and self.waits.is_still:
            self.journal.forget()
            self.waits.forget()

    @property
    def has_lost(self) -> bool:
        """Whether somebody else owns the task now, or it has ended: nothing is written any more."""
        return self.stopping is Stop.LOST

    def drain(self) -> None:
        """Hand the task back as soon as no call of it is in flight."""
        self.is_draining = True
        self._release_if_drained()

    def _release_if_drained(self) -> None:
        if not self.is_draining or self.waits.live_calls or self.stopping is not None:
            return  # Asked after each step.
        # Above low risk a tool that waits inside has the grace time, for it may do other things, too.
        if not any(call.is_running and call.is_dangerous for call in self._open_calls):
            self.stop(Stop.RELEASE)

    @property
    def may_leave_memory(self) -> bool:
        """Whether all it does is to wait. A tool that waits may do other things, too, and would begin them anew."""
        return self.waits.live_calls == 0 and not any(call.is_running for call in self._open_calls)

    def _store_failed(self, error: StoreError) -> None:
        if not isinstance(error, LeaseLost):
            log.error("task %s is let go, for the store failed: %s", self.task.id, error)
        self.stop(Stop.LOST)

    @property
    def is_to_end(self) -> bool:
        """Whether the attempt is to end, so that no call starts any more."""
        return self.stopping is not None or self.done.is_set()

    def check(self) -> None:
        """Raise CancelledError once the attempt is to end."""
        if self.is_to_end:
            raise asyncio.CancelledError(_ENDED)

    async def turn_away(self, why: str = _ENDED) -> NoReturn:
        """Refuse a call by CancelledError. Who goes on calling all the same does not keep the loop from others."""
        self._turned_away += 1
        await asyncio.sleep(0 if self._turned_away < _PATIENCE else _TURNED_AWAY_S)
        raise asyncio.CancelledError(why)

    # -- open calls -----------------------------------------------------------------------------

    def open_call(self, call: Call, task: asyncio.Task[Any] | None) -> None:
        """A call begins, made by `task`, that is not answered from a record."""
        self._open_calls[call] = task

    def close_call(self, call: Call) -> None:
        """The call has ended, in whatever way."""
        self._open_calls.pop(call, None)
        if self._call_closed is not None and not self._call_closed.done():
            self._call_closed.set_result(None)

    async def hold_call(self) -> None:
        """Keep a new call from beginning, until the cancellation that ends the attempt.

        For when the worker stops or the agent has ended: what runs may end, nothing begins.
        """
        self._release_if_drained()
        await self._loop.create_future()

    async def close_calls(self) -> None:
        """The agent has ended: let dangerous calls that it left running come to their outcome, drop all others."""
        while any(call.is_running and call.is_dangerous for call in self._open_calls):
            await self._until_call_closed()
        self._cancel_calls()
        while self._open_calls:
            await self._until_call_closed()

    async def _until_call_closed(self) -> None:
        self._call_closed = self._loop.create_future()
        await self._call_closed

    def _cancel_calls(self) -> None:
        for task in {task for task in self._open_calls.values() if task is not None and not task.done()}:
            task.cancel()

    def outcome_recorded(self, step: NewStep, usage: Usage) -> None:
        """A call has its outcome on record."""
        if step.risk != Risk.LOW:
            self.intents.pop(step.key, None)
            self.host.in_flight.forget(self.task.id, step.key)
        self.spending.add(usage)

    # -- errors -----------------------------------------------------------------------------------

    def remember(self, stand_in: BaseException, step_index: int, risk: Risk) -> BaseException:
        """Know a stand-in again, should it be what ends the attempt."""
        is_final = risk >= Risk.HIGH or stand_ins.is_final(stand_in)
        self._stand_ins[id(stand_in)] = (stand_in, step_index, is_final)
        return stand_in

    def raised(self, exc: BaseException) -> Iterator[tuple[int, bool]]:
        """Steps whose stand-in is this exception, in its chain, or in its group: (index, final)."""
        for one in walk(exc, lambda one: (one.__cause__, one.__context__)):
            if id(one) in self._stand_ins:
                _, index, is_final = self._stand_ins[id(one)]
                yield index, is_final

    def knows(self, exc: BaseException) -> bool:
        """Whether this very exception stands for a call of this attempt."""
        return id(exc) in self._stand_ins

    def is_final(self, exc: BaseException) -> bool:
        """Whether doing the task again would end the same way: by this error, by what caused it, or in its group.

        The mere context of an error says nothing: the agent had caught that, and may come further next time.
        """
        for one in walk(exc, lambda one: () if self.knows(one) else (one.__cause__,)):
            known = self._stand_ins.get(id(one))
            if known[2] if known is not None else stand_ins.is_final(one):
                return True
        return False

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
        """Whether the caller is on the attempt's event loop, which no other loop can run inside."""
        return threading.get_ident() == self._thread

    def block_on(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """From a thread of the attempt: run a coroutine on its loop and wait. Raises Suspend or Cancelled."""
        try:
            self.check()
            answer: R = block_on(self._loop, make, started=partial(self._bridge, mark_thread()))
            return answer
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            if self.stopping in (Stop.RELEASE, Stop.SUSPEND, Stop.INTERRUPT):
                raise Suspend("this task is set aside; it goes on from its records later") from None
            if self.is_to_end:
                raise Cancelled("this task is over, or belongs to another worker now") from None
            scope = ambient.scope()
            is_cut_off = scope is not None and scope.is_cut_off
            raise Cancelled(ambient.CUT_OFF if is_cut_off else "what was called here has been cancelled") from None

    def _bridge(self, mark: ThreadCode, task: asyncio.Task[Any]) -> None:
        self._bridged[task] = mark.thread
        mark.calls_by(task)
        task.add_done_callback(lambda _: self._bridged.pop(task, None))
        if self.stopping is not None:
            task.cancel()

    def caller(self, task: asyncio.Task[Any] | None) -> object:
        """Who makes its calls one after the other, where `task` makes this one: a thread has one for each."""
        return self if task is None else self._bridged.get(task, task)

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

    @property
    def budget_left(self) -> Budget:
        """What is left of the budget now."""
        return self.spending.left

    # -- arguments --------------------------------------------------------------------------------------

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The agent's arguments, of the types that it names. Raises BadInput or TypeError when they do not fit it."""
        given = codec.decode(self._claim.input.prompt)
        if not isinstance(given, dict):
            raise BadInput(f"the arguments are {type(given).__name__}, not a mapping of names", field="arguments")
        wanted = hints(self.definition.fn)
        typed = {
            name: codec.decode(codec.encode(value), annotation=wanted[name]) if name in wanted else value
            for name, value in given.items()
        }
        return unbind_arguments(self.definition.fn, typed)
