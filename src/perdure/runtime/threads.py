"""Synchronous agents and tools: a thread for each, and the bridge from it back to the event loop.

Not a pool: a bounded one deadlocks as soon as tools wait for tools. Threads are daemons, for a blocked call must not
keep a worker from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


async def run_in_thread(fn: Callable[[], R], *, context: contextvars.Context, name: str) -> R:
    """Run `fn` in a thread of its own and wait. Cancelling the waiter leaves the thread running: `fn` cannot be cut."""
    return await start_thread(fn, context=context, name=name)


def start_thread(fn: Callable[[], R], *, context: contextvars.Context, name: str) -> asyncio.Future[R]:
    """Start `fn` in a thread; its result comes to the running loop. The future is done only when `fn` has returned."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
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
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # The loop has closed; nobody waits any more.

    threading.Thread(target=work, name=f"perdure-{name}", daemon=True).start()
    return future


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

    def finish(task: asyncio.Task[R]) -> None:
        if answer.cancelled():
            return
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
    return answer.result()
