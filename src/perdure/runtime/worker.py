"""A worker: registers, beats, claims what it has permits for, and runs attempts until it is told to stop.

    claim loop      permits by lane -> tasks.claim -> an Attempt each
    heartbeat       raise the counter, reconcile what the database says this process owns
    sweeper         deadlines, timers, expiries, who is silent, recovery (sweeper.py)
    look            whether what waiting attempts wait for has happened
    pulses          streamed events, batched

A worker may live in a process of its own or inside an app. Every loop has an owner that awaits it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from perdure.definitions import AgentDefinition
from perdure.errors import (
    Damaged,
    ForkedStore,
    InvariantError,
    NetworkFileSystem,
    NotFound,
    SchemaTooNew,
    StoreClosed,
    StoreError,
)
from perdure.model.event import EventKind
from perdure.model.question import Question
from perdure.model.task import Claim, Lane
from perdure.runtime.announcer import Announcer, Listener
from perdure.runtime.attempt import Attempt, Stop
from perdure.runtime.completions import Completions
from perdure.runtime.histories import read_together
from perdure.runtime.in_flight import InFlightCalls
from perdure.runtime.lookout import Lookout
from perdure.runtime.membership import Membership
from perdure.runtime.permits import PermitQueue
from perdure.runtime.pulse import Dropped, Pack, PulseBuffer, PulseFlusher
from perdure.runtime.running import is_cancelled
from perdure.runtime.sweeper import Sweeper
from perdure.states import QuestionStatus
from perdure.store import Store, aio, events, instances, order, task_lists, tasks
from perdure.store.completions import Completion
from perdure.store.database import Transaction
from perdure.store.traces import Trace

log = logging.getLogger(__name__)
T = TypeVar("T")

_CLAIMED_AT_ONCE = 64
_UNWIND_S = 5.0
_HOPELESS = (StoreClosed, ForkedStore, SchemaTooNew, Damaged, NetworkFileSystem)
_LONGEST_PAUSE_S = 30.0
_NOTIFY_S = 60.0  # so long may the app take over the news of one question before the next one's turn


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a worker stopped: tasks handed back between two steps, and attempts that were cut off."""

    handed_back: int
    interrupted: int


class Worker:
    """Runs the tasks of some agents on one event loop. `run` returns after `stop`."""

    attempt_type: type[Attempt] = Attempt

    def __init__(
        self,
        store: Store,
        agents: Sequence[AgentDefinition],
        *,
        killable: bool = False,
        deps: Sequence[Any] = (),
        notify: Callable[[Any], Awaitable[None]] | None = None,
        on_event: Listener | None = None,
    ) -> None:
        self.store = store
        self.settings = store.settings
        self.random: Random = store.ids.random()
        self._in_flight = InFlightCalls(lambda: aio.call_softly(store, order.take))
        self.pulses = PulseBuffer(self.settings.pulse_kept, clock=store.clock)
        self._flusher = PulseFlusher(
            self.pulses,
            write=self._write_pulses,
            on_dropped=self._tell_dropped,
            batch=self.settings.pulse_batch,
            flush_ms=self.settings.pulse_flush_ms,
        )
        self.attempts: dict[str, Attempt] = {}
        self._agents = {(one.name, one.version): one for one in agents}
        self._deps = deps
        self._notify = notify
        self._news = Announcer(on_event)
        self._permits = PermitQueue(self.settings.permits, self.settings.main_permits)
        self._member = Membership(
            store, self._in_flight, killable=killable, random=self.random, attempts=self._live_attempts
        )
        self._lookout = Lookout(store, self.attempts.values, self._generation, seen=self._news.look)
        self._sweeper = Sweeper(self)
        self._completions = Completions(store)
        self._work = asyncio.Event()
        # A claim under way is owned by this process and not known to it yet: no heartbeat may judge it meanwhile.
        self._ownership = asyncio.Lock()
        self._is_stopping = False
        self._stop_now = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._handed_back = 0
        self.stopped = Stopped(0, 0)

    @property
    def instance_id(self) -> str:
        """Who this worker is to the others; changes when they have taken it for dead."""
        return self._member.instance_id

    @property
    def in_flight(self) -> InFlightCalls:
        """Calls above low risk that may still be inside their function."""
        return self._in_flight

    @property
    def membership(self) -> Membership:
        """Its registration, heartbeat and lock."""
        return self._member

    @property
    def _registration(self) -> instances.Registration | None:
        return self._member.registration

    def _live_attempts(self) -> list[tuple[str, int]]:
        return [(one.task.id, one.task.attempt) for one in self.attempts.values()]

    def _may_claim(self) -> bool:
        return not self._is_stopping and self._registration is not None

    def _generation(self) -> int:
        assert self._member.registration is not None
        return self._member.registration.generation

    # -- from start to stop --------------------------------------------------------------------

    async def run(self, *, ready: asyncio.Event | None = None) -> Stopped:
        """Work until `stop` is called; then hand back what can be handed back.

        Raises StoreError if the store fails. A loop that ends in any way before the stop ends the worker by an error.
        """
        await self._member.register(list(self._agents))
        loop = asyncio.get_running_loop()
        unlisten = self.store.database.listen(lambda: _ring(loop, self._hinted))
        loops = [
            loop.create_task(work, name=f"perdure-{name}")
            for name, work in (
                ("claim", self._steadily(self._claim_all)),
                ("beat", self._steadily(self._beat_always)),
                ("sweep", self._sweeper.run()),
                ("tell", self._sweeper.tell_always()),
                ("look", self._steadily(self._lookout.watch)),
                ("pulse", self._flusher.run()),
            )
        ]
        if ready is not None:
            ready.set()
        stop = loop.create_task(self._stop_now.wait())
        try:
            await asyncio.wait([stop, *loops], return_when=asyncio.FIRST_COMPLETED)
            ended = [_why_ended(task, is_stopping=self._is_stopping) for task in loops if task.done()]
            failed = next((error for error in ended if error is not None), None)
            if failed is not None:
                where = None if isinstance(failed, StoreClosed) else failed  # The store's own word says it all.
                log.error("worker %s ends: %s", self.instance_id, failed, exc_info=where)
            await self._wind_down()
            if failed is not None:
                raise failed
            self.store.database.check_place()
        finally:
            unlisten()
            self._is_stopping = True
            for task in (stop, *loops):
                task.cancel()
            for attempt in list(self.attempts.values()):
                attempt.stop(Stop.LOST)
            await asyncio.gather(stop, *loops, return_exceptions=True)
            if self._running:  # An agent that swallows its cancellation must not keep the worker from ending.
                await asyncio.wait(self._running, timeout=_UNWIND_S)
            with suppress(StoreError):
                await self._flusher.close()
            await self._member.leave()
        return self.stopped

    async def _steadily(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again after a database that was away for a moment; only what cannot get well ends the worker."""
        pause_s = 0.1
        while True:
            started = self.store.clock.boot_ms()
            try:
                await work()
                return
            except _HOPELESS:
                raise
            except StoreError:
                if self.store.clock.boot_ms() - started > _LONGEST_PAUSE_S * 1000:
                    pause_s = 0.1
                log.warning("the database failed; trying again in %.1f s", pause_s, exc_info=True)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Ask the worker to end in good order. May be called twice."""
        self._is_stopping = True
        self._stop_now.set()

    async def _wind_down(self) -> None:
        """Hand back what is between two steps, let calls in flight end within the grace time, interrupt the rest."""
        self._is_stopping = True
        for attempt in list(self.attempts.values()):
            attempt.drain()
        grace = asyncio.get_running_loop().time() + self.settings.shutdown_grace_s
        with suppress(TimeoutError):
            async with asyncio.timeout_at(grace), self._ownership:
                pass  # A claim was under way: what it took has been started, and is handed back with the rest.
        while self._running and (left := grace - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._running, timeout=left)
        cut_off = list(self.attempts.values())
        for attempt in cut_off:
            attempt.stop(Stop.INTERRUPT)
        if self._running:
            await asyncio.wait(self._running, timeout=_UNWIND_S)
        self.stopped = Stopped(self._handed_back, len(cut_off))

    # -- claiming --------------------------------------------------------------------------------

    def _hinted(self) -> None:
        self._work.set()
        self._lookout.hinted()

    async def _claim_all(self) -> None:
        while not self._is_stopping:
            self._work.clear()
            await self._claim_once()
            await self._until_work()

    async def _claim_once(self) -> None:
        """Claim as much as there are permits for, main first, until there is no permit or nothing is due."""
        for lane in (Lane.MAIN, Lane.SUBAGENT):
            while not self._is_stopping and (permits := self._permits.reserve(lane, _CLAIMED_AT_ONCE)) > 0:
                if await self._claim(lane, permits) < permits:
                    break

    async def _claim(self, lane: Lane, permits: int) -> int:
        """Claim up to `permits` tasks of a lane, whose permits are taken. How many."""
        count = 0
        try:
            async with self._ownership:
                if self._is_stopping or self._registration is None:
                    return 0
                found = await aio.call_softly(
                    self.store,
                    tasks.claim,
                    lane=lane,
                    instance=self._registration.n,
                    instance_id=self.instance_id,
                    generation=self._registration.generation,
                    limit=permits,
                )
                histories = await read_together(self.store, found)
                for claim in found:
                    count += self._start(claim, histories.get(claim.task.id))
            return count
        finally:
            self._permits.give(lane, permits - count)

    async def adopt(self, task_id: str) -> bool:
        """Claim one task that was just admitted in this process, if a permit is free."""
        if not self._may_claim():
            return False
        task = await aio.read(self.store, tasks.get, task_id)
        if not self.has_agent(task.agent, task.version) or self._permits.reserve(task.lane, 1) == 0:
            return False
        started = 0
        try:
            async with self._ownership:
                if not self._may_claim():
                    return False
                claim = await aio.call_softly(
                    self.store, tasks.claim_this, task_id, instance_id=self.instance_id, generation=self._generation()
                )
                if claim is not None:
                    started = self._start(claim)
        finally:
            self._permits.give(task.lane, 1 - started)
        return started > 0

    def _start(self, claim: Claim, history: Trace | None = None) -> int:
        """Run a claimed task, whose permit is taken. How many permits that needs: one."""
        definition = self._agents.get((claim.task.agent, claim.task.version)) or self._newest(claim.task.agent)
        attempt = self.attempt_type(self, claim, definition, history=history)
        self.attempts[claim.execution_id] = attempt
        task = asyncio.get_running_loop().create_task(attempt.run(), name=f"perdure-{claim.task.id[-6:]}")
        self._running.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            self.attempts.pop(claim.execution_id, None)
            self._handed_back += attempt.is_draining and attempt.is_handed_back
            self._news.resumed(attempt)
            self._news.ended(attempt, now_ms=self.store.clock.now_ms())
            attempt.forget()
            self._work.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("attempt of %s broke", claim.task.id, exc_info=error)

        task.add_done_callback(ended)
        self._news.started(attempt)
        if self._is_stopping:
            attempt.drain()
        return 1

    def _newest(self, agent: str) -> AgentDefinition:
        """The version of an agent that was declared last. Versions are texts of the user's own, without an order."""
        return [one for (name, _), one in self._agents.items() if name == agent][-1]

    async def _until_work(self) -> None:
        """Until a hint, the poll interval, or the moment at which a pending task becomes due."""
        wait_s = self.settings.poll_ms / 1000
        due = await aio.read(self.store, task_lists.next_due)
        if due is not None:
            wait_s = min(wait_s, max(0.001, (due - self.store.clock.now_ms()) / 1000))
        # Not wait_for: in Python 3.11 it loses a cancellation that comes in the turn of the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._work.wait()

    # -- what attempts need of their host ------------------------------------------------------

    async def until_may_call(self) -> None:
        """Return once this process has proven lately that it lives."""
        await self._member.until_may_call()

    async def pause(self, duration_s: float) -> None:
        """Wait on the loop's clock."""
        await asyncio.sleep(duration_s)

    async def take_permit(self, attempt: Attempt) -> None:
        """Win a permit again; those who restore come before new claims of their lane."""
        await self._permits.take(attempt.task.lane)

    def give_permit(self, attempt: Attempt) -> None:
        """Give the permit back, first of all to who waits to restore."""
        self._permits.give(attempt.task.lane)
        self._work.set()

    def look_soon(self) -> None:
        """Look soon whether what attempts wait for has happened."""
        self._lookout.soon()

    def tell(self, question: Question) -> None:
        """A question was opened or found by an attempt; one that was answered meanwhile is no news."""
        if question.status is not QuestionStatus.OPEN:
            return
        self._news.asked(question)

    def has_agent(self, name: str, version: str) -> bool:
        """Whether tasks of an agent can run here; version "" is any."""
        return any(name == known and version in ("", has) for known, has in self._agents)

    def tell_unmanned(self, attempt: Attempt, agent: str) -> None:
        """A child of the attempt waits for an agent that no live worker has."""
        self._news.unmanned(attempt, agent)

    def stream(self, attempt: Attempt, kind: str, payload: dict[str, Any]) -> None:
        """Buffer a streamed event."""
        self.pulses.add(
            attempt.task.id,
            execution_id=attempt.journal.fence.execution_id,
            after_seq=attempt.journal.last_seq,
            kind=kind,
            payload=payload,
        )

    async def until_streamed(self, attempt: Attempt) -> None:
        """Store what the attempt has streamed: whoever follows it misses nothing when it ends."""
        await self._flusher.until_stored(attempt.task.id)

    async def complete_together(self, one: Completion) -> bool:
        """Complete a task in one write with others that complete now; False when it is to be completed by itself."""
        return await self._completions.complete(one)

    def dep(self, cls: type[T]) -> T:
        """What the app's lifespan opened, by class."""
        for one in self._deps:
            if isinstance(one, cls):
                return one
        raise NotFound(f"the app's lifespan yields no {cls.__name__}; yield one for perdure.deps to find")

    # -- heartbeat -------------------------------------------------------------------------------

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            await self.beat()
            await self._member.tell_last_words()

    async def beat(self) -> bool:
        """Prove that this process lives and reconcile what it owns. False when it was taken for dead."""
        async with self._ownership:
            # One that was let go, for the store failed, is this process's in the database alone.
            held = [one for one, attempt in self.attempts.items() if not attempt.has_lost]
            beat = await self._member.beat(held)
            if not beat.alive:
                for attempt in list(self.attempts.values()):
                    attempt.stop(Stop.LOST)
                self._member.give_up([*self._running])
                await self._member.register(list(self._agents))
                self._work.set()  # Without a registration nothing was claimed.
                return False
        owned = {one.execution_id for one in beat.owned}
        for execution_id in held:
            attempt_held = self.attempts.get(execution_id)
            if attempt_held is not None and execution_id not in owned and not attempt_held.done.is_set():
                attempt_held.stop(Stop.LOST)
        self._lookout.mind_deadlines()
        self._set_aside_longest()
        return True

    def _set_aside_longest(self) -> None:
        """Beyond the limit, waiting attempts give up their memory, the longest first; they are replayed later."""
        waiting = [one for one in self.attempts.values() if one.waits.is_waiting and one.stopping is None]
        excess = max(0, len(waiting) - self.settings.waiting_in_memory)
        longest = sorted(waiting, key=lambda one: one.waits.waiting_since_ms)
        for attempt in [one for one in longest if one.may_leave_memory][:excess]:
            attempt.stop(Stop.SUSPEND)

    # -- pulses and news --------------------------------------------------------------------------

    async def _write_pulses(self, packs: Sequence[Pack]) -> None:
        await aio.call_softly(self.store, _add_packs, packs)

    async def _tell_dropped(self, dropped: Dropped) -> None:
        await aio.call_softly(self.store, events.tell, dropped.task_id, EventKind.PULSES_DROPPED, dropped.payload)

    async def notify(self, question: Question) -> bool:
        """Tell the app of a question. False when that failed or took too long, and is to be tried again."""
        if self._notify is None:
            return True
        try:
            async with asyncio.timeout(_NOTIFY_S):
                await self._notify(question)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A cancellation of its own making, by a session that was closed say, is a failure like any other.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            log.exception("notify failed for %s; it is told again", question.id)
            return False
        return True

    def say(self, what: str, facts: Mapping[str, Any]) -> None:
        """News for whoever runs this worker."""
        self._news.say(what, facts)


def _why_ended(loop: asyncio.Task[None], *, is_stopping: bool) -> BaseException | None:
    """The error by which a loop has ended. Before the stop each end is one: a worker that lacks a loop is a shell."""
    error = asyncio.CancelledError() if loop.cancelled() else loop.exception()
    if is_stopping or isinstance(error, Exception):
        return error
    how = "returned" if error is None else f"ended by {type(error).__name__}"
    broken = InvariantError(f"{loop.get_name()}, a loop of the worker, {how} although nobody stopped the worker")
    broken.__cause__ = error
    return broken


def _add_packs(tx: Transaction, packs: Sequence[Pack]) -> None:
    for pack in packs:
        events.add_pulses(
            tx,
            pack.task_id,
            execution_id=pack.execution_id,
            after_seq=pack.after_seq,
            number=pack.number,
            packed=pack.packed,
        )


def _ring(loop: asyncio.AbstractEventLoop, hinted: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # The loop has closed.
        loop.call_soon_threadsafe(hinted)
