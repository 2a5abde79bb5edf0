"""What is done to the workers: killed at random moments, or frozen in the middle of a call and woken much later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from perdure.demo.crew import Crew, Member
from perdure.demo.telling import Teller
from perdure.demo.worker import SETTINGS
from perdure.errors import StoreBusy
from perdure.states import InstanceStatus
from perdure.store import Store, aio, effects, instances, task_lists
from perdure.store.database import Transaction

_LOOK_S = 0.01
_LONGEST_PAUSE_S = 0.06  # between the moment at which a kill is due and the kill
_ALL_AT_ONCE = 0.1  # the share of kills that take every worker
_IDLE = 0.2  # the share of workers without a task that are killed all the same
_FIND_S = 1.0  # how long to look for a worker inside a dangerous call
_PROBE_S = 0.5
_TAKE_OVER_S = 5 * SETTINGS.lease_s


@dataclass(slots=True)
class Moments:
    """When something is due, counted in steps on record; drawn at random."""

    random: Random
    left: int
    done: int = 0
    _due: list[float] = field(default_factory=list)

    def spread(self, start: float, end: float) -> None:
        """Draw anew when those that are left are due."""
        self._due = sorted(self.random.uniform(start, end) for _ in range(self.left))

    def is_due(self, step_count: int) -> bool:
        """Whether the next one is due after so many steps."""
        return self.left > 0 and self._due[-self.left] <= step_count

    def happened(self) -> None:
        """One is done."""
        self.left -= 1
        self.done += 1


@dataclass(eq=False, slots=True)
class Harm:
    """Kills and stops the members of a crew. `steps_done` tells how far the work has come."""

    crew: Crew
    store: Store
    teller: Teller
    random: Random
    kills: Moments
    zombies: Moments
    steps_done: Callable[[], int]
    has_one_stopped: bool = False

    async def kill_always(self) -> None:
        """Kill workers when kills are due, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.kills.is_due(self.steps_done()):
                continue
            await asyncio.sleep(self.random.random() * _LONGEST_PAUSE_S)
            victims = [one for one in self.crew.alive if one.is_ready and not one.is_spared]
            self.random.shuffle(victims)
            if self.random.random() >= _ALL_AT_ONCE:
                victims = victims[:1]
            for victim in victims[: self.kills.left]:
                held = await aio.read(self.store, _held_by, victim.process.pid)
                if (held or self.random.random() < _IDLE) and self.crew.kill(victim):
                    self.kills.happened()
                    self.teller.say("killed", f"{victim} with kill -9, while it held {_count(held)}")

    async def stop_always(self) -> None:
        """Stop workers when that is due, until others have taken their work; then wake them. Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self.zombies.is_due(self.steps_done()):
                continue
            victim = await self._find_one_inside_a_call()
            if victim is None:
                continue
            victim.is_spared = self.has_one_stopped = True
            try:
                if await self._make_zombie(victim):
                    self.zombies.happened()
            finally:
                victim.is_spared = self.has_one_stopped = False

    async def _find_one_inside_a_call(self) -> Member | None:
        """A worker that must not be ended by others and has a dangerous call open; any that works when none has."""
        end = _now() + _FIND_S
        while True:
            for one in self.crew.alive:
                if one.is_ready and not one.killable and not one.is_spared:
                    is_inside = await aio.read(self.store, _is_inside_a_call, one.process.pid)
                    if one.is_alive and (is_inside or _now() > end):
                        return one
            if _now() > end:
                return None
            await asyncio.sleep(_LOOK_S)

    async def _make_zombie(self, victim: Member) -> bool:
        if not self.crew.stop(victim):
            return False
        held = await aio.read(self.store, _held_by, victim.process.pid)
        if not held or not await self._can_write():
            # It holds nothing, or was frozen in the middle of a commit: then everybody waits for it, and rightly.
            self.crew.wake(victim)
            await asyncio.sleep(_PROBE_S)
            return False
        self.teller.say("frozen", f"{victim} for longer than its lease; it believes that it holds {_count(held)}")
        is_taken = await self._until_taken_over(victim)
        await asyncio.sleep(self.random.random() * _PROBE_S)
        self.crew.wake(victim)
        self.teller.say("woken", f"{victim}" + ("; what it still writes is refused" if is_taken else ", too early"))
        await asyncio.sleep(_PROBE_S)
        return is_taken

    async def _can_write(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_S):
                await aio.call(self.store, _nothing)
        except (TimeoutError, StoreBusy):
            return False
        return True

    async def _until_taken_over(self, victim: Member) -> bool:
        """Until others have taken its tasks. Whoever watches it for a lease must live that long, so one is spared."""
        end = _now() + _TAKE_OVER_S
        watcher: Member | None = None
        try:
            while _now() < end:
                if watcher is None or not watcher.is_alive:
                    watcher = next((one for one in self.crew.alive if one.is_ready), None)
                    if watcher is not None:
                        watcher.is_spared = True
                if not await aio.read(self.store, _held_by, victim.process.pid):
                    return True
                await asyncio.sleep(5 * _LOOK_S)
        finally:
            if watcher is not None:
                watcher.is_spared = False
        return False


def _now() -> float:
    return asyncio.get_running_loop().time()


def _count(ids: Sequence[str]) -> str:
    return f"{len(ids)} task{'' if len(ids) == 1 else 's'}"


def _held_by(tx: Transaction, pid: int) -> list[str]:
    """Tasks that the database says are run by a process which it takes to be alive."""
    gone = (InstanceStatus.CRASHED, InstanceStatus.STOPPED)
    mine = {one.id for one in instances.listing(tx, limit=50) if one.pid == pid and one.status not in gone}
    return [task.id for task in task_lists.recent(tx, open_only=True, limit=200) if task.instance_id in mine]


def _is_inside_a_call(tx: Transaction, pid: int) -> bool:
    """Whether a process may be inside a dangerous call now."""
    held = set(_held_by(tx, pid))
    return any(one.is_running and one.step.task_id in held for one in effects.open_list(tx, limit=1000))


def _nothing(_tx: Transaction) -> None:
    return None
