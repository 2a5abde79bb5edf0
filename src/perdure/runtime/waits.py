"""Durable waits of one attempt: while every open call waits, the task gives its permit back.

The waiting is a row (`waiting_for`), so it survives the process; in memory it is a future that the worker resolves
when it sees that the thing has happened. A call beside the waits keeps the task running; a new one restores it first.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from perdure.model.task import Fence, Wait, WaitKind
from perdure.runtime.journal import Journal
from perdure.store import tasks

# Members of one `gather` that are children wait together: the task need not wake for each.
gather_group: contextvars.ContextVar[object | None] = contextvars.ContextVar("perdure_gather", default=None)


class Permits(Protocol):
    """Who may run: the worker's permits, as one attempt sees them."""

    async def take_permit(self) -> None:
        """Win a permit again, before any new task of the lane."""
        ...

    def give_permit(self) -> None:
        """Give the permit back."""
        ...

    def look_soon(self) -> None:
        """Have the worker look whether what is waited for has happened already."""
        ...


@dataclass(eq=False, slots=True)
class _Entry:
    wait: Wait
    happened: asyncio.Future[None]
    group: object | None = field(default=None)


class Waits:
    """What one attempt waits for, and whether it is set aside for it."""

    def __init__(self, journal: Journal, permits: Permits, *, settle: Callable[[], None]) -> None:
        self._journal = journal
        self._permits = permits
        self._entries: list[_Entry] = []
        self._live = 0
        self._is_waiting = False
        self._turn = asyncio.Lock()
        self._setting_aside: asyncio.Task[None] | None = None
        self._settle = settle
        self.waiting_since_ms = 0

    @property
    def fence(self) -> Fence:
        """The proof of ownership."""
        return self._journal.fence

    @property
    def live_calls(self) -> int:
        """Open calls that are doing something."""
        return self._live

    @property
    def is_waiting(self) -> bool:
        """Whether the task is set aside."""
        return self._is_waiting

    def pending(self) -> list[tuple[Wait, asyncio.Future[None]]]:
        """What is waited for, for the worker to look up."""
        return [(entry.wait, entry.happened) for entry in self._entries if not entry.happened.done()]

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Around a call that does something: the task runs meanwhile."""
        self._live += 1
        try:
            await self._run_again()
            yield
        finally:
            self._live -= 1
            self._set_aside_soon()
            self._settle()

    async def until(self, wait: Wait) -> None:
        """Wait, inside a call, until the thing has happened; the task runs again when this returns."""
        entry = _Entry(wait, asyncio.get_running_loop().create_future(), gather_group.get())
        self._entries.append(entry)
        self._live -= 1
        try:
            self._permits.look_soon()
            self._set_aside_soon()
            self._settle()
            await entry.happened
        finally:
            self._entries.remove(entry)
            self._live += 1
        await self._run_again()

    def cancel(self) -> None:
        """The attempt ends: nothing is set aside any more."""
        if self._setting_aside is not None:
            self._setting_aside.cancel()

    # -- setting aside ----------------------------------------------------------------------

    def _set_aside_soon(self) -> None:
        """Once the present turn of the loop is over, for the agent may go on with another call."""
        if self._live == 0 and self._entries and not self._is_waiting and self._setting_aside is None:
            loop = asyncio.get_running_loop()
            self._setting_aside = loop.create_task(self._set_aside(), context=contextvars.Context())

    async def _set_aside(self) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            async with self._turn:
                if self._live or not self.pending() or self._is_waiting:
                    return
                await self._journal.write_softly(tasks.wait, self.fence, self._merged())
                self._is_waiting = True
                self.waiting_since_ms = self._journal.store.clock.boot_ms()
                self._permits.give_permit()
                self._permits.look_soon()
        except asyncio.CancelledError:
            return  # The attempt has ended, or lost its task; that is told elsewhere.
        finally:
            self._setting_aside = None

    async def _run_again(self) -> None:
        if not self._is_waiting and not self._turn.locked():
            return
        async with self._turn:
            if not self._is_waiting:
                return
            await self._permits.take_permit()
            try:
                await self._journal.write_softly(tasks.restore, self.fence)
            except BaseException:
                self._permits.give_permit()
                raise
            self._is_waiting = False

    def _merged(self) -> list[Wait]:
        """The entries as stored: children of one gather as one entry that needs all."""
        merged: list[Wait] = []
        groups: dict[object, int] = {}
        for entry in self._entries:
            wait = entry.wait
            if entry.group is None or wait.kind is not WaitKind.CHILDREN:
                merged.append(wait)
            elif entry.group in groups:
                place = groups[entry.group]
                merged[place] = replace(merged[place], keys=(*merged[place].keys, *wait.keys))
            else:
                groups[entry.group] = len(merged)
                merged.append(wait)
        return merged
