"""A worker: registers, beats, claims what it has permits for, and runs attempts until it is told to stop.

    claim loop      permits by lane -> tasks.claim -> an Attempt each
    heartbeat       raise the counter, reconcile what the database says this process owns
    sweeper         deadlines, timers, expiries, who is gone, recovery (sweeper.py)
    look            whether what waiting attempts wait for has happened
    pulses          streamed events, batched

A worker may live in a process of its own or inside an app. Every loop has an owner that awaits it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from perdure.definitions import AgentDefinition
from perdure.errors import NotFound, StoreBusy, StoreError
from perdure.model.event import EventKind
from perdure.model.instance import InstanceType
from perdure.model.question import Question
from perdure.model.task import Claim, Lane, Wait
from perdure.policy.lanes import Permits
from perdure.runtime.announcer import Announcer, Listener
from perdure.runtime.attempt import Attempt, Stop
from perdure.runtime.in_flight import InFlightCalls
from perdure.runtime.liveness import Deadline, InstanceLock, new_instance_id, owner_of, side_file, whoami
from perdure.runtime.pulse import Dropped, Pack, PulseBuffer, PulseFlusher
from perdure.runtime.sweeper import Sweeper
from perdure.store import Store, aio, events, instances, sqlite_path, task_lists, tasks
from perdure.store.database import Transaction

log = logging.getLogger(__name__)
T = TypeVar("T")

_LOOK_AT_MOST_EVERY_S = 0.005


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
        self.instance_id = ""
        self.in_flight = InFlightCalls()
        self.pulses = PulseBuffer(self.settings.pulse_kept, clock=store.clock)
        self.attempts: dict[str, Attempt] = {}
        self._agents = {(one.name, one.version): one for one in agents}
        self._killable = killable
        self._deps = deps
        self._notify = notify
        self._news = Announcer(on_event)
        self._permits = Permits(self.settings.permits, self.settings.main_permits)
        self._restoring: dict[Lane, deque[asyncio.Future[None]]] = {Lane.MAIN: deque(), Lane.SUBAGENT: deque()}
        self._work = asyncio.Event()
        self._look = asyncio.Event()
        self._beaten = asyncio.Event()
        self._deadline = Deadline(int(self.settings.lease_s * 1000))
        self._lock = InstanceLock()
        self._registration: instances.Registration | None = None
        self._is_stopping = False
        self._stop_now = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._retiring: list[asyncio.Task[None]] = []
        self.stopped = Stopped(0, 0)

    # -- from start to stop --------------------------------------------------------------------

    async def run(self, *, ready: asyncio.Event | None = None) -> Stopped:
        """Work until `stop` is called; then hand back what can be handed back. Raises StoreError if the store fails."""
        await self._register()
        sweeper = Sweeper(self, self._lock_path())
        flusher = PulseFlusher(
            self.pulses, write=self._write_pulses, on_dropped=self._tell_dropped,
            batch=self.settings.pulse_batch, flush_ms=self.settings.pulse_flush_ms,
        )
        loop = asyncio.get_running_loop()
        unlisten = self.store.database.listen(lambda: _ring(loop, self._hinted))
        loops = [
            loop.create_task(work, name=f"perdure-{name}")
            for name, work in (
                ("claim", self._claim_all()),
                ("beat", self._beat_always()),
                ("sweep", sweeper.run()),
                ("look", self._look_always()),
                ("pulse", flusher.run()),
            )
        ]
        self._sweeper = sweeper
        if ready is not None:
            ready.set()
        stop = loop.create_task(self._stop_now.wait())
        try:
            await asyncio.wait([stop, *loops], return_when=asyncio.FIRST_COMPLETED)
            failed = next((task.exception() for task in loops if task.done() and not task.cancelled()), None)
            await self._wind_down()
            if failed is not None:
                raise failed
        finally:
            unlisten()
            self._is_stopping = True
            for task in (stop, *loops, *self._retiring):
                task.cancel()
            for attempt in list(self.attempts.values()):
                attempt.stop(Stop.LOST)
            await asyncio.gather(stop, *loops, *self._running, return_exceptions=True)
            with suppress(StoreError):
                await flusher.close()
                # A thread may still be inside a call. Then the lock stays held, for a free one proves death, and
                # the kernel frees it when the process ends.
                if not self.in_flight.all():
                    await aio.call(self.store, instances.mark_stopped, self.instance_id)
                    self._lock.release()
        return self.stopped

    def stop(self) -> None:
        """Ask the worker to end in good order. May be called twice."""
        self._is_stopping = True
        self._stop_now.set()

    async def _register(self) -> None:
        me = whoami()
        started = self.store.clock.boot_ms()
        self.instance_id = new_instance_id(self.store.clock.now_ms(), self.random)
        registration = await aio.call_patiently(
            self.store,
            instances.register,
            instance_id=self.instance_id,
            type=InstanceType.EXECUTOR,
            host=me.host,
            boot_id=me.boot_id,
            pid=me.pid,
            killable=self._killable,
            agents=list(self._agents),
        )
        self._registration = registration
        self._deadline.beat_acknowledged(started)
        path = self._lock_path()
        if path is not None:
            self._lock.hold(path, registration.generation, owner=owner_of(self.instance_id, me.boot_id))

    def _lock_path(self) -> Any:
        url = self.store.database.url
        if url in ("sqlite://", "memory:"):
            return None
        return side_file(sqlite_path(url), url)

    async def _wind_down(self) -> None:
        """Hand back what is between two steps, let calls in flight end within the grace time, interrupt the rest."""
        self._is_stopping = True
        held = list(self.attempts.values())
        for attempt in held:
            attempt.drain()
        grace = asyncio.get_running_loop().time() + self.settings.shutdown_grace_s
        while self._running and (left := grace - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._running, timeout=left)
        cut_off = list(self.attempts.values())
        for attempt in cut_off:
            attempt.stop(Stop.INTERRUPT)
        if self._running:
            await asyncio.wait(self._running, timeout=5)
        self.stopped = Stopped(
            sum(attempt.stopping is Stop.RELEASE for attempt in held), len(cut_off)
        )

    # -- claiming --------------------------------------------------------------------------------

    def _hinted(self) -> None:
        self._work.set()
        self._look.set()

    async def _claim_all(self) -> None:
        while not self._is_stopping:
            self._work.clear()
            if not await self._claim_once():
                await self._until_work()

    async def _claim_once(self) -> bool:
        """Claim as much as there are permits for, main first. True when something was claimed."""
        claimed = False
        for lane in (Lane.MAIN, Lane.SUBAGENT):
            while not self._restoring[lane] and (free := self._permits.free(lane)) > 0 and not self._is_stopping:
                assert self._registration is not None
                found = await aio.call_softly(
                    self.store,
                    tasks.claim,
                    lane=lane,
                    instance=self._registration.n,
                    instance_id=self.instance_id,
                    generation=self._registration.generation,
                    limit=min(free, 64),
                )
                for one in found:
                    self._start(one)
                claimed = claimed or bool(found)
                if len(found) < min(free, 64):
                    break
        return claimed

    async def adopt(self, task_id: str) -> bool:
        """Claim one task that was just admitted in this process, if a permit is free."""
        if self._is_stopping or self._registration is None or self._permits.free(Lane.MAIN) < 1:
            return False
        claim = await aio.call_softly(
            self.store, tasks.claim_this, task_id, instance_id=self.instance_id,
            generation=self._registration.generation,
        )
        if claim is not None:
            self._start(claim)
        return claim is not None

    def _start(self, claim: Claim) -> None:
        definition = self._agents.get((claim.task.agent, claim.task.version)) or self._newest(claim.task.agent)
        self._permits.acquire(claim.task.lane)
        attempt = self.attempt_type(self, claim, definition)
        self.attempts[claim.execution_id] = attempt
        task = asyncio.get_running_loop().create_task(attempt.run(), name=f"perdure-{claim.task.id[-6:]}")
        self._running.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            self.attempts.pop(claim.execution_id, None)
            self._news.resumed(attempt)
            self._work.set()
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("attempt of %s broke", claim.task.id, exc_info=error)

        task.add_done_callback(ended)
        self._news.started(attempt)

    def _newest(self, agent: str) -> AgentDefinition:
        return max((one for (name, _), one in self._agents.items() if name == agent), key=lambda one: one.version)

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
        while not self._deadline.may_call(self.store.clock.boot_ms()):
            self._beaten.clear()
            await self._beaten.wait()

    async def pause(self, duration_s: float) -> None:
        """Wait on the loop's clock."""
        await asyncio.sleep(duration_s)

    async def take_permit(self, attempt: Attempt) -> None:
        """Win a permit again; those who restore come before new claims of their lane."""
        lane = attempt.task.lane
        if self._restoring[lane] or not self._permits.acquire(lane):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._restoring[lane].append(turn)
            try:
                await turn  # Whoever resolves it has acquired the permit for us.
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_permit(attempt)
                else:
                    self._restoring[lane].remove(turn)
                raise

    def give_permit(self, attempt: Attempt) -> None:
        """Give the permit back, first of all to who waits to restore."""
        self._permits.release(attempt.task.lane)
        for lane, waiting in self._restoring.items():
            while waiting and self._permits.acquire(lane):
                turn = waiting.popleft()
                if turn.cancelled():
                    self._permits.release(lane)
                else:
                    turn.set_result(None)
        self._work.set()

    def look_soon(self) -> None:
        """Look soon whether what attempts wait for has happened."""
        self._look.set()

    def tell(self, question: Question) -> None:
        """A question was opened or found by an attempt."""
        self._news.asked(question)

    def stream(self, attempt: Attempt, kind: str, payload: dict[str, Any]) -> None:
        """Buffer a streamed event."""
        self.pulses.add(
            attempt.task.id,
            execution_id=attempt.journal.fence.execution_id,
            after_seq=attempt.journal.last_seq,
            kind=kind,
            payload=payload,
        )

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

    async def beat(self) -> bool:
        """Prove that this process lives and reconcile what it owns. False when it was declared gone."""
        assert self._registration is not None
        started = self.store.clock.boot_ms()
        held = list(self.attempts)
        try:
            beat = await aio.call_softly(
                self.store, instances.beat, self.instance_id, generation=self._registration.generation, held=held
            )
        except StoreBusy:
            return True
        if not beat.alive:
            await self._acknowledge_loss()
            return False
        self._deadline.beat_acknowledged(started)
        self._beaten.set()
        self._sweeper.own_beat_ms = self.store.clock.boot_ms()
        owned = {one.execution_id: one for one in beat.owned}
        for execution_id in held:
            attempt = self.attempts.get(execution_id)
            if attempt is not None and execution_id not in owned and not attempt.done.is_set():
                attempt.stop(Stop.LOST)
        self._mind_deadlines()
        self._set_aside_longest()
        return True

    async def _acknowledge_loss(self) -> None:
        """Others have taken this process for dead: stop every attempt, say so, and begin anew under a new generation."""
        log.warning("this worker was declared gone; its tasks belong to others now")
        mine = list(self.attempts.values())
        for attempt in mine:
            attempt.stop(Stop.LOST)
        self._retiring.append(
            asyncio.get_running_loop().create_task(
                self._retire(self.instance_id, self._lock, [*self._running], self.in_flight.all())
            )
        )
        self._lock = InstanceLock()
        await self._register()

    async def _retire(
        self,
        instance_id: str,
        lock: InstanceLock,
        attempts: Sequence[asyncio.Task[None]],
        calls_in_flight: Collection[asyncio.Future[Any]],
    ) -> None:
        """Say that an identity of this process is dead, once nothing runs under it any more."""
        if waiting := [*attempts, *calls_in_flight]:
            await asyncio.wait(waiting)
        await aio.call_patiently(self.store, instances.mark_stopped, instance_id)
        lock.release()

    def _mind_deadlines(self) -> None:
        """Tell attempts whose time is over; they have the grace time to end in good order."""
        now = self.store.clock.now_ms()
        for attempt in list(self.attempts.values()):
            if attempt.task.deadline_at is not None and attempt.task.deadline_at <= now:
                attempt.stop(Stop.DEADLINE)

    def _set_aside_longest(self) -> None:
        """Beyond the limit, waiting attempts give up their memory, the longest first; they are replayed later."""
        waiting = [one for one in self.attempts.values() if one.waits.is_waiting and one.stopping is None]
        excess = len(waiting) - self.settings.waiting_in_memory
        for attempt in sorted(waiting, key=lambda one: one.waits.waiting_since_ms)[: max(0, excess)]:
            attempt.stop(Stop.SUSPEND)

    # -- looking whether waits are over ---------------------------------------------------------

    async def _look_always(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_look_s()):
                    await self._look.wait()
            self._look.clear()
            self._mind_deadlines()
            self._news.look()
            await self._look_once()
            await asyncio.sleep(_LOOK_AT_MOST_EVERY_S)

    def _next_look_s(self) -> float:
        now = self.store.clock.now_ms()
        times = [
            wait.until_ms
            for attempt in self.attempts.values()
            for wait, _ in attempt.waits.pending()
            if wait.until_ms is not None
        ] + [a.task.deadline_at for a in self.attempts.values() if a.task.deadline_at is not None]
        soonest = min(times, default=now + 3_600_000)
        return max(0.001, min(self.settings.poll_ms, soonest - now) / 1000)

    async def _look_once(self) -> None:
        waiting: list[tuple[str, Wait, asyncio.Future[None]]] = [
            (attempt.task.id, wait, future)
            for attempt in self.attempts.values()
            for wait, future in attempt.waits.pending()
        ]
        if not waiting:
            return
        happened = await aio.read(self.store, _which_happened, [(task_id, wait) for task_id, wait, _ in waiting])
        for place in happened:
            future = waiting[place][2]
            if not future.done():
                future.set_result(None)

    # -- pulses and news --------------------------------------------------------------------------

    async def _write_pulses(self, packs: Sequence[Pack]) -> None:
        await aio.call_softly(self.store, _add_packs, packs)

    async def _tell_dropped(self, dropped: Dropped) -> None:
        await aio.call_softly(self.store, _emit_dropped, dropped)

    async def notify(self, question: Question) -> bool:
        """Tell the app of a question; at least once."""
        if self._notify is None:
            return True
        try:
            await self._notify(question)
        except Exception:
            log.exception("notify failed for %s; it is told again", question.id)
            return False
        return True

    def say(self, what: str, facts: Mapping[str, Any]) -> None:
        """News for whoever runs this worker."""
        self._news.say(what, facts)


def _which_happened(tx: Transaction, waiting: Sequence[tuple[str, Wait]]) -> list[int]:
    return [place for place, (task_id, wait) in enumerate(waiting) if tasks.has_happened(tx, task_id, wait)]


def _add_packs(tx: Transaction, packs: Sequence[Pack]) -> None:
    for pack in packs:
        events.add_pulses(
            tx, pack.task_id, execution_id=pack.execution_id, after_seq=pack.after_seq, number=pack.number,
            packed=pack.packed,
        )


def _emit_dropped(tx: Transaction, dropped: Dropped) -> None:
    events.tell(tx, dropped.task_id, EventKind.PULSES_DROPPED, dropped.payload)


def _ring(loop: asyncio.AbstractEventLoop, hinted: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # The loop has closed.
        loop.call_soon_threadsafe(hinted)


