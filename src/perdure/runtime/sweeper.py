"""Small bounded passes that every worker makes: deadlines, timers, expiries, who is dead, recovery, news of questions.

Each pass is safe to run twice and by many at once. A row that cannot be dealt with never holds up the others: a
pass takes so many rows, leaves behind what it could not move and goes on after it, and begins again at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import StoreBusy, StoreClosed
from perdure.model.instance import Instance
from perdure.runtime.liveness import Host, end_process, is_dead, whoami
from perdure.store import aio, ends, instances, questions, recovery, task_lists, tasks
from perdure.store.database import Transaction

if TYPE_CHECKING:
    from perdure.runtime.worker import Worker

log = logging.getLogger(__name__)
R = TypeVar("R", str, Instance)
_BATCH = 200
_SET_BACK_MS = 500  # less is a clock that is being corrected


class Sweeper:
    """The passes of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._store = worker.store
        self._settings = worker.settings
        self._left: Counter[Callable[..., object]] = Counter()  # rows left behind in this round, by their list
        self._ahead_ms: int | None = None  # the wall clock before the steady one, when it was looked at last
        # Whoever sweeps seldom wants what a lease promises all the same.
        self._every_s = min(worker.settings.sweep_s, worker.settings.lease_s / 4)

    async def run(self) -> None:
        """Sweep until cancelled; at once at the start."""
        while True:
            busy = await self.sweep()
            await asyncio.sleep(0 if busy else self._every_s)

    async def tell_always(self) -> None:
        """Tell the app of open questions until cancelled. In a loop of its own: telling may take long, or hang."""
        while True:
            more = await self._isolated(self._announce)
            await asyncio.sleep(0 if more else self._settings.sweep_s)

    async def sweep(self) -> bool:
        """Every pass once. True when a pass found a full batch, so that there is more to do."""
        more = False
        for one in (self._time_out, self._wake, self._count_anew, self._expire, self._bury, self._recover):
            more = await self._isolated(one) or more
        return more

    async def _isolated(self, one: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await one()
        except StoreBusy:
            return False
        except StoreClosed:
            raise
        except Exception:
            # Also what no operation should raise, such as a word nobody knows: the other passes must go on.
            log.exception("a sweep failed; it comes round again")
            return False

    async def _round(
        self,
        find: Callable[..., list[R]],
        act: Callable[[R], Awaitable[object]],
        *,
        first: Callable[[Sequence[R]], Awaitable[Collection[R]]] | None = None,
        **filters: object,
    ) -> bool:
        """Act on the next rows of a list, each by itself. True when there are more of them in this round.

        `first` deals with as many as it can together and returns those. What is left in the list, because it failed or
        there was nothing to do, stands before the next rows then.
        """
        found = await aio.read(self._store, find, skip=self._left[find], limit=_BATCH, **filters)
        done = await first(found) if first is not None and found else ()
        others = [one for one in found if one not in done]
        results = await asyncio.gather(*(act(one) for one in others), return_exceptions=True)
        busy = 0
        for one, result in zip(others, results, strict=True):
            if isinstance(result, StoreClosed):
                raise result
            if isinstance(result, StoreBusy):
                busy += 1
                continue
            if isinstance(result, BaseException):
                log.error("sweeping %s failed", one, exc_info=result)
            if result is not True:
                self._left[find] += 1
        if len(found) < _BATCH:
            self._left[find] = 0
        return len(found) >= _BATCH and not busy

    async def _time_out(self) -> bool:
        grace_ms = int(self._settings.deadline_grace_s * 1000)
        return await self._round(
            task_lists.overdue, lambda one: aio.call(self._store, ends.time_out, one), grace_ms=grace_ms
        )

    async def _wake(self) -> bool:
        return await self._round(task_lists.due_waiters, self._wake_one)

    async def _count_anew(self) -> bool:
        """At the start, and when the clock has been set back since: who waits for a time counts anew how long."""
        clock = self._store.clock
        ahead_ms = clock.now_ms() - clock.boot_ms()
        known_ms, self._ahead_ms = self._ahead_ms, None
        if known_ms is None or ahead_ms <= known_ms - _SET_BACK_MS:
            wakes = await self._round(task_lists.waiters_from_later, self._wake_one)
            starts = await self._round(task_lists.starts_from_later, self._count_one_anew)
            if wakes or starts:
                return True
            # A busy database may have left some, and nothing will say again that the clock was set back.
            if await aio.read(self._store, _are_any_from_later):
                return False
        self._ahead_ms = ahead_ms
        return False

    async def _count_one_anew(self, task_id: str) -> bool:
        return await aio.call(self._store, tasks.count_anew, task_id)

    async def _wake_one(self, task_id: str) -> bool:
        return await aio.call(self._store, tasks.wake, task_id)

    async def _expire(self) -> bool:
        return await self._round(questions.overdue, self._expire_one)

    async def _expire_one(self, question_id: str) -> bool:
        await aio.call(self._store, questions.expire_one, question_id)
        return True

    async def _bury(self) -> bool:
        """Find instances that are silent or dead, and end the attempts they had open."""
        found = await aio.read(self._store, instances.alive)
        others = [one for one in found if one.id != self._worker.instance_id]
        me, path = whoami(), self._worker.membership.lock_path
        for one in self._worker.membership.observer.saw(others):
            # It may only be frozen, and would wake in the middle of a call: end it before its work is taken.
            # Once the kernel has, its lock is free, and it is buried below or in the next pass.
            if path is not None and _is_ended_by_us(one, me, path):
                continue
            await aio.call(self._store, instances.mark_crashed, one.id, heartbeat=one.heartbeat)
        more = False
        if path is not None:
            for one in others:
                await self._bury_one(one, me, path)
            more = await self._round(
                instances.crashed, lambda one: self._bury_one(one, me, path), host=me.host, boot_id=me.boot_id
            )
        ended = await aio.call(self._store, instances.interrupt_orphans, limit=_BATCH)
        return more or len(ended) >= _BATCH

    async def _bury_one(self, one: Instance, me: Host, path: Path) -> bool:
        return is_dead(one, me=me, path=path) and await aio.call(self._store, instances.mark_stopped, one.id)

    async def _recover(self) -> bool:
        return await self._round(recovery.interrupted, self._recover_one, first=self._resume_plain)

    async def _resume_plain(self, task_ids: Sequence[str]) -> Collection[str]:
        """Deal together with the many that simply go on; if that fails, they too are dealt with one by one."""
        if len(task_ids) == 1:
            return ()
        try:
            resumed = await aio.call(
                self._store, recovery.resume_plain, task_ids, recovery_limit=self._settings.recovery_limit
            )
        except (StoreBusy, StoreClosed):
            raise
        except Exception:
            log.exception("%d tasks could not be recovered together", len(task_ids))
            return ()
        for one in resumed:
            self._say_recovered(one)
        return {one.task_id for one in resumed}

    async def _recover_one(self, task_id: str) -> bool:
        recovered = await aio.call(
            self._store,
            recovery.act,
            task_id,
            recovery_limit=self._settings.recovery_limit,
            question_expiry_ms=int(self._settings.question_expiry_s * 1000),
        )
        if recovered is not None:
            task = recovered.task
            acted = recovery.Acted(task_id, task.root_session_id, task.agent, task.step_count, recovered.decision)
            self._say_recovered(acted, question_id=recovered.question_id or "")
        return recovered is not None

    def _say_recovered(self, one: recovery.Acted, *, question_id: str = "") -> None:
        asked = one.decision.question
        facts = {
            "task": one.task_id,
            "root": one.root_session_id,
            "agent": one.agent,
            "verdict": one.decision.verdict,
            "steps": one.step_count,
            "question": question_id,
            "text": asked.text if asked is not None else "",
        }
        self._worker.say("recovered", facts)

    async def _announce(self) -> bool:
        """Tell the app of each open question, one at a time, at least once."""
        found = await aio.read(self._store, questions.unnotified, skip=self._left[questions.unnotified], limit=_BATCH)
        for question in found:
            if await self._worker.notify(question):
                await aio.call(self._store, questions.mark_notified, question.id)
            else:
                self._left[questions.unnotified] += 1
        if len(found) < _BATCH:
            self._left[questions.unnotified] = 0
        return len(found) >= _BATCH


def _is_ended_by_us(one: Instance, me: Host, path: Path) -> bool:
    return one.killable and not is_dead(one, me=me, path=path) and end_process(one, me=me, path=path)


def _are_any_from_later(tx: Transaction) -> bool:
    return bool(task_lists.waiters_from_later(tx, limit=1) or task_lists.starts_from_later(tx, limit=1))
