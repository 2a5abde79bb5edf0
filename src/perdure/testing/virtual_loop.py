"""An event loop whose time is its own: an hour of sleep takes no time, and the same program runs the same way again.

Time moves only when nothing is ready and no thread works. What runs for one worker can be held where it stands, as by
kill -9 or Ctrl-Z: a `Process` is found through a context variable, so everything that was started in it belongs to it.
Knows nothing of perdure's store; sockets work, but time does not wait for them.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple, Unpack

from perdure.runtime.threads import start_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_process: ContextVar[Process | None] = ContextVar("perdure_process", default=None)
# Periodic looks of a worker: time need not stop for each of them while nothing happens.
_PERIODIC = frozenset(f"perdure-{name}" for name in ("claim", "beat", "sweep", "tell", "look", "pulse"))


_THREAD_LOOK_S = 1.0
_TURNS = 2_000_000


class TooLong(AssertionError):
    """The program goes on and on."""


class Process:
    """What one worker runs. While it is held, nothing of it moves; what comes for it is kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_held = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._kept: list[_Callback] = []

    @staticmethod
    def current() -> Process | None:
        """The process that the running code belongs to, if any."""
        return _process.get()

    def context(self) -> Context:
        """A new context in which everything belongs to this process."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        return context

    def hold(self) -> None:
        """Stop it where it stands. For a process that is never released this is its death."""
        self.is_held = True

    def release(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let it go on; what came meanwhile comes now, in order."""
        self.is_held = False
        kept, self._kept = self._kept, []
        for one in kept:
            loop.call_soon(self.run, one, context=one.context)

    def run(self, one: _Callback) -> None:
        """Call back, or keep the call while held."""
        if self.is_held:
            self._kept.append(one)
        elif not one.is_cancelled:
            one.callback(*one.args)


@dataclass(slots=True)
class _Callback:
    context: Context
    callback: Callable[..., object]
    args: tuple[Any, ...]
    handle: asyncio.Handle | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was taken back while it was kept."""
        return self.handle is not None and self.handle.cancelled()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. It is a clock too, so that the store and the loop agree.

    `next_moment_ms` names the next moment at which something falls due that no timer of this loop stands for;
    `on_idle` is called when there is none either, and must make something happen; also when time would reach the moment
    that `last_moment_ms` names.
    """

    def __init__(self, *, start_ms: int = 1_790_000_000_000, quiet_after_s: float = 1.0) -> None:
        self.quiet_after_s = quiet_after_s  # Periodic looks go on so long after the last thing that happened.
        self.turns_left = _TURNS
        self.next_moment_ms: Callable[[], int | None] = _nothing
        self.last_moment_ms: Callable[[], int | None] = _nothing
        self.on_idle: Callable[[], None] = _deadlock
        self._start_ms = start_ms
        self._skew_ms = 0
        self._time_s = 0.0
        self._quiet_since_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process | None]] = []
        self._numbers = itertools.count()
        self._busy_threads = 0
        self._mutex = threading.Lock()
        super().__init__(_Selector(self))

    # -- the clock --------------------------------------------------------------------------

    def time(self) -> float:
        return self._time_s

    def now_ms(self) -> int:
        """The wall clock."""
        return self._start_ms + self._skew_ms + self.boot_ms()

    def boot_ms(self) -> int:
        """Milliseconds since the loop was made."""
        return int(self._time_s * 1000 + 1e-3)  # A sum of floats may end just below the millisecond it means.

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back; only periodic looks may notice."""
        self._skew_ms += ms
        self.something_happened()

    @property
    def is_in_periodic_task(self) -> bool:
        """Whether one of a worker's periodic looks is running: time need not stop for the timers it sets."""
        task = asyncio.current_task(self) if self.is_running() else None
        return task is not None and task.get_name() in _PERIODIC

    def something_happened(self) -> None:
        """Periodic looks are worth their while again."""
        self._quiet_since_s = self._time_s

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has happened for so long that periodic looks are left out."""
        return self._time_s >= self._quiet_since_s + self.quiet_after_s

    def pass_time(self, timeout_s: float | None) -> None:
        """Nothing is ready: move on to what comes next, `timeout_s` away if it is a timer."""
        end_s = self._as_time_s(self.last_moment_ms())
        if timeout_s is not None and not self.is_quiet and (end_s is None or self._time_s + timeout_s < end_s):
            self._time_s += timeout_s
            return
        moments = [one for one in (self._next_timer_s(), self._as_time_s(self.next_moment_ms())) if one is not None]
        if moments and (end_s is None or min(moments) < end_s):
            self._time_s = max(self._time_s, min(moments))
            self.something_happened()
        else:
            self.on_idle()

    def _next_timer_s(self) -> float | None:
        while self._timers:
            when, _, handle, process = self._timers[0]
            if not handle.cancelled() and when > self._time_s and not (process is not None and process.is_held):
                return when
            heapq.heappop(self._timers)
        return None

    def _as_time_s(self, moment_ms: int | None) -> float | None:
        return None if moment_ms is None else (moment_ms - self._start_ms - self._skew_ms) / 1000

    def count_turn(self) -> None:
        """One more turn. Raises TooLong when there were more than any play needs."""
        self.turns_left -= 1
        if self.turns_left < 0:
            raise TooLong(f"this has not come to an end within {_TURNS:,} turns and {self._time_s:,.0f} s of its time")

    # -- whose callback it is -----------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        one = _Callback(context, callback, args)
        one.handle = handle = super().call_soon(process.run, one, context=context)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon_threadsafe(process.run, _Callback(context, callback, args), context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(_process)
        if process is None:
            handle = super().call_at(when, callback, *args, context=context)
        else:
            one = _Callback(context, callback, args)
            one.handle = handle = super().call_at(when, process.run, one, context=context)
        if not self.is_in_periodic_task:
            heapq.heappush(self._timers, (when, next(self._numbers), handle, process))
        return handle

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        process = _process.get() if context is None else context.get(_process)
        if process is not None:
            process.tasks.add(task)
        return task

    # -- threads ------------------------------------------------------------------------------

    def run_in_executor(self, _executor: object, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        return start_thread(lambda: func(*args), context=contextvars.copy_context(), name="executor")

    def thread_goes_on(self) -> None:
        """Time stands still for one more thread."""
        with self._mutex:
            self._busy_threads += 1

    def thread_rests(self) -> None:
        """One thread less; the loop looks whether time may go on."""
        with self._mutex:
            self._busy_threads -= 1
        self._write_to_self()  # type: ignore[attr-defined]  # what call_soon_threadsafe uses, without a callback

    @property
    def waits_for_threads(self) -> bool:
        """Whether a thread works, so that time stands still."""
        return self._busy_threads > 0


class _Selector(selectors.DefaultSelector):
    """Hands waiting over to the loop: only for threads does it really wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = weakref.proxy(loop)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        loop.count_turn()
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if loop.waits_for_threads:
            loop.something_happened()
            return super().select(_THREAD_LOOK_S)
        ready = super().select(0)
        if not ready:
            loop.pass_time(timeout)
        return ready


def _nothing() -> None:
    return None


def _deadlock() -> None:
    raise RuntimeError("nothing is ready, no timer is set and nothing falls due: the program waits for ever")
