"""One worker among the others: registered under a generation, beating, and holding the lock that proves it lives.

Declared silent by others, it takes a new identity; the old one is retired once nothing runs under it any more, with the
last words about the calls it had begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from perdure.errors import StoreBusy, StoreError
from perdure.model.instance import InstanceType
from perdure.runtime.in_flight import InFlightCalls
from perdure.runtime.liveness import (
    Deadline,
    InstanceLock,
    Observer,
    end_process,
    locks_of,
    new_instance_id,
    owner_of,
    whoami,
)
from perdure.states import InstanceStatus
from perdure.store import Store, aio, instances, last_words
from perdure.store.last_words import LastWord

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_LEAVE_S = 5.0  # so long a busy store is asked again by a worker that leaves


class Membership:
    """What the others know of this worker. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        in_flight: InFlightCalls,
        *,
        killable: bool,
        random: Random,
        attempts: Callable[[], Collection[tuple[str, int]]],
    ) -> None:
        """`attempts` names those that live in this process now: task and number."""
        self.instance_id = ""  # the last one that stands on record
        self.registration: instances.Registration | None = None  # None: nothing may be claimed
        self.observer = Observer(store.clock, int(store.settings.lease_s * 1000))
        self._store = store
        self._in_flight = in_flight
        self._killable = killable
        self._random = random
        self._attempts = attempts
        self._beaten = asyncio.Event()
        self._deadline = Deadline(int(store.settings.lease_s * 1000))
        self._lock = InstanceLock()
        self._retiring: dict[asyncio.Task[None], tuple[str, InstanceLock]] = {}
        self._frozen: tuple[int, int] | None = None  # who holds the write lock and stands still, and since when

    @property
    def lock_path(self) -> Path | None:
        """Where the locks of this database lie; None in memory, where nobody else can be."""
        return locks_of(self._store.database.url)

    async def register(self, agents: Collection[tuple[str, str]]) -> None:
        """Join under a new generation, able to run these agents (name, version). If that fails, nothing has changed."""
        me = whoami()
        started = self._store.clock.boot_ms()
        registration: instances.Registration = await self._patiently(
            aio.call,
            instances.register,
            instance_id=new_instance_id(self._store.clock.now_ms(), self._random),
            type=InstanceType.EXECUTOR,
            host=me.host,
            boot_id=me.boot_id,
            pid=me.pid,
            killable=self._killable,
            agents=list(agents),
        )
        self.instance_id, self.registration = registration.id, registration
        self._deadline.beat_acknowledged(started)
        self.observer.beat_acknowledged()
        path = self.lock_path
        if path is not None:
            self._lock.hold(path, registration.generation, owner=owner_of(self.instance_id, me.boot_id))

    async def beat(self, held: Collection[str]) -> instances.Beat:
        """Prove that this process lives; the answer tells what the database says it owns. Not alive is also who has
        given an identity up and has no other yet. Raises StoreClosed where the database's file was taken away, and
        nobody else sees this any more.
        """
        self._store.database.check_place()
        if self.registration is None:
            return instances.Beat(False, InstanceStatus.CRASHED, ())
        started = self._store.clock.boot_ms()
        beat: instances.Beat = await self._patiently(
            aio.call_softly_once, instances.beat, self.instance_id, generation=self.registration.generation, held=held
        )
        if beat.alive:
            self._deadline.beat_acknowledged(started)
            self.observer.beat_acknowledged()
            self._beaten.set()
        return beat

    async def until_may_call(self) -> None:
        """Return once this process has proven lately that it lives."""
        while not self._deadline.may_call(self._store.clock.boot_ms()):
            self._beaten.clear()
            await self._beaten.wait()

    def give_up(self, attempts: Sequence[asyncio.Task[Any]]) -> None:
        """Others have taken this process for dead. Retire the identity once what ran under it has ended.

        Until the next registration there is none; given up once, it is not given up again.
        """
        if self.registration is None:
            return
        log.warning("this worker was declared silent; its tasks belong to others now")
        retiring = asyncio.get_running_loop().create_task(
            self._retire(self.instance_id, self._lock, [*attempts, *self._in_flight.all()])
        )
        self._retiring[retiring] = self.instance_id, self._lock
        retiring.add_done_callback(self._retiring.pop)
        self.registration, self._lock = None, InstanceLock()

    async def tell_last_words(self) -> None:
        """Put on record how calls have ended that this process does not go on with: nobody will ask it for that."""
        with suppress(StoreBusy):  # They are told with the next heartbeat.
            await self._tell_wanted(self._words_of_the_dead(), aio.call)

    async def _tell_wanted(self, words: Sequence[LastWord], call: Callable[..., Awaitable[Any]]) -> None:
        # One of a call that another of its threads is still inside is not the last.
        words = [word for word in words if not self._in_flight.holds(word.task_id, word.key)]
        if words and (words := await aio.read(self._store, last_words.wanted, words)):
            await call(self._store, last_words.tell, words)
            self._in_flight.told(words)

    async def leave(self) -> None:
        """The worker ends. A thread may still be inside a call: then the locks stay held until the process has ended,
        for a free one proves death.
        """
        identities = [(self.instance_id, self._lock), *self._retiring.values()]
        retiring = list(self._retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        is_inside = bool(self._in_flight.all())
        # Attempts that live on in spite of their cancellation begin no call any more: their words stand, too.
        words = self._in_flight.words()
        try:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    if is_inside:
                        await self._tell_wanted(words, aio.call_patiently)
                    else:
                        ids = [one for one, _ in identities]
                        await aio.call_patiently(self._store, instances.mark_stopped, *ids, words=words)
        finally:
            if not is_inside:  # Also when nobody could be told: then a free lock is all that is left to say it.
                for _, lock in identities:
                    lock.release()

    async def _patiently(
        self, call: Callable[..., Awaitable[Any]], operation: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> T:
        """Ask a busy store again, and end a worker that was frozen while it held the write lock of everybody."""
        while True:
            try:
                found: T = await call(self._store, operation, *args, **kwargs)
            except StoreBusy as busy:
                await self._mind_frozen(busy)
                await asyncio.sleep(0.05)
            else:
                self._frozen = None
                return found

    async def _mind_frozen(self, busy: StoreBusy) -> None:
        """Its heartbeat cannot be judged, as nobody's gets through; that it stands still for a lease can be seen."""
        now = self._store.clock.boot_ms()
        if busy.holder_pid is None or not busy.holder_frozen:
            self._frozen = None
            return
        if self._frozen is None or self._frozen[0] != busy.holder_pid:
            self._frozen = busy.holder_pid, now
        path = self.lock_path
        if path is None or now - self._frozen[1] < self._store.settings.lease_s * 1000:
            return
        for one in await aio.read(self._store, instances.alive):
            if one.pid == busy.holder_pid:
                end_process(one, me=whoami(), path=path)

    async def _retire(self, instance_id: str, lock: InstanceLock, running: Collection[asyncio.Future[Any]]) -> None:
        """Say that an identity of this process is dead, once nothing runs under it any more; until cancelled, again
        while the store fails: nobody else can say it as long as this process holds the lock.
        """
        if running:
            await asyncio.wait(running)
        pause_s = _FIRST_PAUSE_S
        while True:
            words = self._words_of_the_dead()
            try:
                await aio.call_patiently(self._store, instances.mark_stopped, instance_id, words=words)
            except StoreError as error:
                log.warning("%s could not be retired; trying again in %.1f s: %s", instance_id, pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                break
        self._in_flight.told(words)
        lock.release()

    def _words_of_the_dead(self) -> list[LastWord]:
        """Last words of attempts that have ended. One that lives may run the call yet, and make its word untrue."""
        alive = set(self._attempts())
        return [word for word in self._in_flight.words() if (word.task_id, word.attempt) not in alive]
