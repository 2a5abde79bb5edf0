"""Durable waits of one attempt: while every open call waits, the task gives its permit back.

The waiting is a row (`waiting_for`), so it survives the process; in memory it is a future that the worker resolves
when it sees that the thing has happened. A call beside the waits keeps the task running; a new one restores it first.
A call around others does what these do: a tool that waits for its child holds no permit either, or as many such tools
as there are permits would wait for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from msgspec import Struct

from perdure.ambient import Scope
from perdure.model.task import Fence, Wait, WaitKind
from perdure.runtime.journal import Journal
from perdure.store import tasks
from perdure.trace import ROOT

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


class OpenCall(Struct, eq=False):
    """An open call, and by what it counts: by itself, or by the calls that it has made."""

    around: OpenCall | None
    open_inside: int = 0  # calls that it has made, and that are open
    waits: int = 0
    has_ended: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it counts by itself, as doing something."""
        return not (self.open_inside or self.waits or self.has_ended)


@dataclass(eq=False, slots=True)
class _Entry:
    wait: Wait
    happened: asyncio.Future[None]
    group: object | None = field(default=None)
    inside: Scope | None = field(default=None)


class Waits:
    """What one attempt waits for, and whether it is set aside for it."""

    def __init__(self, journal: Journal, permits: Permits, *, on_waiting: Callable[[], None]) -> None:
        self._journal = journal
        self._permits = permits
        self._entries: list[_Entry] = []
        self._open: dict[str, OpenCall] = {}
        self._live = 0
        self._is_waiting = False
        self._turn = asyncio.Lock()
        # Each in a task of its own: what an agent cancels must not cut a verb of its task in two.
        self._setting_aside: asyncio.Task[None] | None = None
        self._restoring: asyncio.Task[bool] | None = None
        self._is_over = False
        self._on_waiting = on_waiting
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

    def pending(self) -> list[tuple[Wait, list[asyncio.Future[None]]]]:
        """What is waited for, for the worker to look up, each with those to tell: children of one gather together."""
        found: list[tuple[Wait, list[asyncio.Future[None]]]] = []
        if not self._entries:
            return found  # Most attempts, and each is looked at again and again.
        groups: dict[object, int] = {}
        for entry in self._entries:
            if entry.happened.done():
                continue
            if entry.group is None or entry.wait.kind is not WaitKind.CHILDREN:
                found.append((entry.wait, [entry.happened]))
            elif entry.group in groups:
                wait, futures = found[groups[entry.group]]
                futures.append(entry.happened)
                found[groups[entry.group]] = replace(wait, keys=(*wait.keys, *entry.wait.keys)), futures
            else:
                groups[entry.group] = len(found)
                found.append((entry.wait, [entry.happened]))
        return found

    @asynccontextmanager
    async def call(self, key: str = ROOT) -> AsyncIterator[None]:
        """Around something that the attempt does by itself: the task runs meanwhile. One at a time for each key."""
        opened = self.begin_call(key, ROOT)
        try:
            await self.until_running()
            yield
        finally:
            self.end_call(key, opened)

    def begin_call(self, key: str, parent: str) -> OpenCall:
        """A call is open, until `end_call`, inside the one with the key `parent`.

        It goes on once the task runs (`until_running`).
        """
        around = self._open.get(parent) if parent else None
        opened = self._open[key] = OpenCall(around)
        self._live += 1
        if around is not None:
            self._change(around, inside=1)
        return opened

    @property
    def is_running(self) -> bool:
        """Whether the task runs, so that a call may go on at once."""
        return not (self._is_waiting or self._turn.locked())

    def end_call(self, key: str, opened: OpenCall) -> None:
        """The call has ended; the task may be set aside for what is still waited for."""
        self._live -= opened.is_live
        opened.has_ended = True
        if self._open.get(key) is opened:
            del self._open[key]
        if opened.open_inside:  # Left in a thread, or shielded: the cancellation did not reach them.
            for entry in self._entries:
                if entry.inside is not None and entry.inside.is_cut_off:
                    entry.happened.cancel()
        if opened.around is not None:
            self._change(opened.around, inside=-1)
            self._run_again_soon()
        if self._live == 0:
            if self._entries:
                self._set_aside_soon()
            self._on_waiting()

    def go_on(self) -> None:
        """Nobody waits any more for what the task may have been set aside for, and its agent goes on by itself."""
        if self._is_waiting and not self._is_over:
            self._restore_soon()

    async def until(
        self,
        wait: Wait,
        *,
        or_done: asyncio.Future[Any] | None = None,
        inside: Scope | None = None,
        outside_gather: bool = False,
    ) -> None:
        """Wait, inside the call that `wait` names, until the thing has happened; the task runs when this returns.

        `or_done` may end it too: something in this process, which no other can see. So does, by CancelledError, the end
        of a call around it that was cut off, where that is named by `inside`: what waits for a thread is not cancelled.
        With `outside_gather` it goes on by itself also as a member of one.
        """
        happened = asyncio.get_running_loop().create_future()
        entry = _Entry(wait, happened, None if outside_gather else gather_group.get(), inside)
        if or_done is not None:
            or_done.add_done_callback(lambda _: None if happened.done() else happened.set_result(None))
        self._entries.append(entry)
        caller = self._open[wait.step_key]
        self._change(caller, waits=1)
        try:
            self._permits.look_soon()
            self._set_aside_soon()
            self._on_waiting()
            await entry.happened
        finally:
            self._entries.remove(entry)
            self._change(caller, waits=-1)
        await self.until_running()

    async def until_known(self, parent: str, other: Awaitable[None]) -> None:
        """Inside the call with the key `parent`, wait for what another call comes to; that counts for itself."""
        around = self._open.get(parent)
        if around is None:
            await other
            return
        self._change(around, waits=1)
        try:
            self._set_aside_soon()
            self._on_waiting()
            await other
        finally:
            self._change(around, waits=-1)
            self._run_again_soon()
        await self.until_running()

    def _change(self, one: OpenCall, *, inside: int = 0, waits: int = 0) -> None:
        self._live -= one.is_live
        one.open_inside += inside
        one.waits += waits
        self._live += one.is_live

    def cancel(self) -> None:
        """The attempt ends: nothing is set aside any more."""
        self._is_over = True
        for moving in (self._setting_aside, self._restoring):
            if moving is not None:
                moving.cancel()

    async def close(self) -> None:
        """The same, and wait until no verb of it is under way, so that the next one is the last."""
        self.cancel()
        moving = [one for one in (self._setting_aside, self._restoring) if one is not None]
        if moving:
            await asyncio.wait(moving)

    @property
    def is_still(self) -> bool:
        """Whether no verb of it is under way."""
        return self._setting_aside is None and self._restoring is None

    def forget(self) -> None:
        """The attempt has ended, and waits for nothing more."""
        self._permits, self._on_waiting = _Nobody(), _nothing

    # -- setting aside ----------------------------------------------------------------------

    def _set_aside_soon(self) -> None:
        """Once the present turn of the loop is over, for the agent may go on with another call."""
        is_due = self._live == 0 and self._entries and not self._is_waiting and not self._is_over
        if is_due and self._setting_aside is None:
            loop = asyncio.get_running_loop()
            self._setting_aside = loop.create_task(self._set_aside(), context=contextvars.Context())

    async def _set_aside(self) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            async with self._turn:
                waits = [wait for wait, _ in self.pending()]
                if self._live or not waits or self._is_waiting:
                    return
                await self._journal.write_softly(tasks.wait, self.fence, waits)
                self._is_waiting = True
                self.waiting_since_ms = self._journal.store.clock.boot_ms()
                self._permits.give_permit()
                self._permits.look_soon()
                self._run_again_soon()
        except asyncio.CancelledError:
            return  # The attempt has ended, or lost its task; that is told elsewhere.
        finally:
            self._setting_aside = None

    async def until_running(self) -> None:
        """Run again, if the task has been set aside. Raises CancelledError when it cannot."""
        while not self.is_running:
            moving = self._restore_soon()
            await asyncio.wait({moving})
            if moving.cancelled() or not moving.result():
                raise asyncio.CancelledError("this attempt has ended, or lost its task")

    def _run_again_soon(self, turns: int = 3) -> None:
        """A call around may have lost the one that it waited for, to a timeout of its own say, and go on by itself.

        Looked at once more after some turns of the loop, for when all of them are cancelled each ends in turn.
        """
        if self._live and self._is_waiting and not self._is_over:
            if turns:
                asyncio.get_running_loop().call_soon(self._run_again_soon, turns - 1)
            else:
                self._restore_soon()

    def _restore_soon(self) -> asyncio.Task[bool]:
        if self._restoring is None:
            loop = asyncio.get_running_loop()
            self._restoring = loop.create_task(self._restore(), context=contextvars.Context())
        return self._restoring

    async def _restore(self) -> bool:
        """Win a permit and run again; False when the task is lost."""
        try:
            async with self._turn:
                if not self._is_waiting:
                    return True
                await self._permits.take_permit()
                try:
                    await self._journal.write_softly(tasks.restore, self.fence)
                except BaseException:
                    self._permits.give_permit()
                    raise
                self._is_waiting = False
                return True
        except asyncio.CancelledError:
            return False
        finally:
            self._restoring = None
            # Whoever wanted to run may have been cancelled meanwhile; then the task is set aside again.
            asyncio.get_running_loop().call_soon(self._set_aside_soon)


class _Nobody:
    """Who gives permits to an attempt that has ended."""

    async def take_permit(self) -> None:
        raise asyncio.CancelledError("this attempt has ended")

    def give_permit(self) -> None:
        return

    def look_soon(self) -> None:
        return


def _nothing() -> None:
    return
