"""Synchronous agents and tools: a thread for each, and the bridge from it back to the event loop.

Not a pool: a bounded one deadlocks as soon as tools wait for tools. Threads are daemons, for a blocked call must not
keep a worker from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

R = TypeVar("R")

_SIGNAL_LOOK_S = 0.2


@runtime_checkable
class CountsThreads(Protocol):
    """An event loop that must know whether threads work for it: one whose time stands still meanwhile."""

    def thread_goes_on(self) -> None:
        """One more thread works. Called on the loop, before the thread can notice."""
        ...

    def thread_rests(self) -> None:
        """A thread has ended, or waits for the loop now. Called in that thread, after it told the loop why."""
        ...


class _Thread(threading.Thread):
    """A thread that works for a loop."""

    def __init__(self, target: Callable[[], None], name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self.counter = loop if isinstance(loop, CountsThreads) else None


async def run_in_thread(fn: Callable[[], R], *, context: contextvars.Context, name: str) -> R:
    """Run `fn` in a thread of its own and wait. Cancelling the waiter leaves the thread running: `fn` cannot be cut."""
    return await start_thread(fn, context=context, name=name)


async def run_plainly(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Just call a function and return what it gives, a synchronous one in a thread of its own."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    context = contextvars.copy_context()
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    result = await run_in_thread(lambda: fn(*args, **kwargs), context=context, name=name)
    return await result if inspect.isawaitable(result) else result


def start_thread(fn: Callable[[], R], *, context: contextvars.Context, name: str) -> asyncio.Future[R]:
    """Start `fn` in a thread; its result comes to the running loop. The future is done only when `fn` has returned."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def end(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("StopIteration was raised in a thread"))
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(fn)
        except BaseException as caught:  # noqa: BLE001  # Carried over to the loop, all of it.
            error = caught
        _close_left_loop()
        try:
            loop.call_soon_threadsafe(end, result, error)
            if thread.counter is not None:
                thread.counter.thread_rests()
        except RuntimeError:
            return  # The loop has closed; nobody waits any more.

    thread = _Thread(work, f"perdure-{name}", loop)
    if thread.counter is not None:
        thread.counter.thread_goes_on()
    thread.start()
    return future


def _close_left_loop() -> None:
    """Close the event loop that code in this thread has made and left: frameworks do so for their blocking calls."""
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:
        return  # The usual case: this thread has none.
    if not loop.is_running():
        loop.close()


def block_on(
    loop: asyncio.AbstractEventLoop,
    make: Callable[[], Coroutine[Any, Any, R]],
    *,
    started: Callable[[asyncio.Task[R]], None],
) -> R:
    """From a thread: run a coroutine on `loop`, in a copy of this thread's context, and wait for its result.

    `started` is told of the task, on the loop. A cancelled task raises concurrent.futures.CancelledError here.
    """
    answer: concurrent.futures.Future[R] = concurrent.futures.Future()
    context = contextvars.copy_context()

    me = threading.current_thread()
    counter = me.counter if isinstance(me, _Thread) else None

    def finish(task: asyncio.Task[R]) -> None:
        if answer.cancelled():
            return
        if counter is not None:
            counter.thread_goes_on()
        if task.cancelled():
            answer.cancel()
            answer.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def begin() -> None:
        task = loop.create_task(make(), context=context)
        task.add_done_callback(finish)
        started(task)

    loop.call_soon_threadsafe(begin)
    if counter is not None:
        counter.thread_rests()
    if me is threading.main_thread():
        # A signal that another thread has taken does not wake this one, and only here Python handles it (Ctrl-C).
        while not concurrent.futures.wait({answer}, timeout=_SIGNAL_LOOK_S).done:
            pass
    return answer.result()
