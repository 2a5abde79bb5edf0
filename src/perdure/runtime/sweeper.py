"""Small bounded passes that every worker makes: deadlines, timers, expiries, who is gone, recovery, news of questions.

Each pass is safe to run twice and by many at once; a row that cannot be dealt with never holds up the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import StoreBusy, StoreClosed
from perdure.model.instance import Instance
from perdure.runtime.liveness import Host, Observer, end_process, is_dead, whoami
from perdure.store import aio, ends, instances, questions, recovery, task_lists, tasks

if TYPE_CHECKING:
    from perdure.runtime.worker import Worker

log = logging.getLogger(__name__)
_BATCH = 200


class Sweeper:
    """The passes of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._store = worker.store
        self._settings = worker.settings
        self._observer = Observer(worker.store.clock, int(worker.settings.lease_s * 1000))

    async def run(self) -> None:
        """Sweep until cancelled; at once at the start."""
        while True:
            busy = await self.sweep()
            await asyncio.sleep(0 if busy else self._settings.sweep_s)

    async def tell_always(self) -> None:
        """Tell the app of open questions until cancelled. In a loop of its own: telling may take long, or hang."""
        while True:
            await self._isolated(self._announce)
            await asyncio.sleep(self._settings.sweep_s)

    async def sweep(self) -> bool:
        """Every pass once. True when a pass found a full batch, so that there is more to do."""
        more = False
        for one in (self._time_out, self._wake, self._expire, self._bury, self._recover):
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

    async def _each(self, ids: list[str], act: Callable[[str], Awaitable[object]]) -> bool:
        """Act on each row by itself: one that fails does not strand the rest."""
        results = await asyncio.gather(*(act(one) for one in ids), return_exceptions=True)
        for one, result in zip(ids, results, strict=True):
            if isinstance(result, StoreClosed):
                raise result
            if isinstance(result, BaseException) and not isinstance(result, StoreBusy):
                log.error("sweeping %s failed", one, exc_info=result)
        return len(ids) >= _BATCH and not any(isinstance(result, BaseException) for result in results)

    async def _time_out(self) -> bool:
        grace_ms = int(self._settings.deadline_grace_s * 1000)
        overdue = await aio.read(self._store, task_lists.overdue, grace_ms=grace_ms, limit=_BATCH)
        return await self._each(overdue, lambda one: aio.call(self._store, ends.time_out, one))

    async def _wake(self) -> bool:
        due = await aio.read(self._store, task_lists.due_waiters, limit=_BATCH)
        return await self._each(due, lambda one: aio.call(self._store, tasks.wake, one))

    async def _expire(self) -> bool:
        expired = await aio.read(self._store, questions.overdue, limit=_BATCH)
        return await self._each(expired, lambda one: aio.call(self._store, questions.expire_one, one))

    async def _bury(self) -> bool:
        """Find instances that are gone, and end the attempts they had open."""
        found = await aio.read(self._store, instances.alive)
        others = [one for one in found if one.id != self._worker.instance_id]
        me, path = whoami(), self._worker.membership.lock_path
        for one in self._observer.saw(others, self._worker.membership.last_beat_ms):
            # It may only be stopped, and would wake in the middle of a call: end it before its work is taken.
            # Once the kernel has, its lock is free, and it is buried below or in the next pass.
            if path is not None and _is_ended_by_us(one, me, path):
                continue
            await aio.call(self._store, instances.mark_crashed, one.id, heartbeat=one.heartbeat)
        if path is not None:
            silent = await aio.read(self._store, instances.crashed)
            for one in [*others, *silent]:
                if is_dead(one, me=me, path=path):
                    await aio.call(self._store, instances.mark_stopped, one.id)
        ended = await aio.call(self._store, instances.interrupt_orphans, limit=_BATCH)
        return len(ended) >= _BATCH

    async def _recover(self) -> bool:
        waiting = await aio.read(self._store, recovery.interrupted, limit=_BATCH)
        return await self._each(waiting, self._recover_one)

    async def _recover_one(self, task_id: str) -> None:
        recovered = await aio.call(
            self._store,
            recovery.act,
            task_id,
            recovery_limit=self._settings.recovery_limit,
            question_expiry_ms=int(self._settings.question_expiry_s * 1000),
        )
        if recovered is not None:
            facts = {
                "task": task_id,
                "agent": recovered.task.agent,
                "verdict": recovered.decision.verdict,
                "steps": recovered.task.step_count,
                "question": recovered.question_id or "",
                "text": recovered.decision.question.text if recovered.decision.question is not None else "",
            }
            self._worker.say("recovered", facts)

    async def _announce(self) -> bool:
        """Tell the app of each open question, at least once."""
        for question in await aio.read(self._store, questions.unnotified, limit=_BATCH):
            if await self._worker.notify(question):
                await aio.call(self._store, questions.mark_notified, question.id)
        return False


def _is_ended_by_us(one: Instance, me: Host, path: Path) -> bool:
    return one.killable and not is_dead(one, me=me, path=path) and end_process(one, me=me, path=path)
