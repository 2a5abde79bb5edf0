"""Where synchronous code waits for asynchronous code: on the loop of the task around it, else on one of its own.

Everything else in this package is one-line delegations through here. Waiting on an event loop would stop that loop,
so it is refused with the line to write instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from perdure import ambient
from perdure.errors import WrongThread
from perdure.runtime.threads import block_on

R = TypeVar("R")


def wait(make: Callable[[], Coroutine[Any, Any, R]], *, name: str) -> R:
    """Run a coroutine of perdure and wait for it. Inside a task raises Suspend or Cancelled when the attempt ends.

    Raises WrongThread on an event loop.
    """
    refuse_on_loop(f"perdure.{name}")
    scope = ambient.scope()
    if scope is not None:
        return scope.runner.block_on(make)
    return asyncio.run(make())


def refuse_on_loop(name: str) -> None:
    """Raise WrongThread where an event loop runs in this thread, naming what to write instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    scope = ambient.scope()
    if scope is not None and not scope.runner.is_on_loop:
        # A loop that the agent itself has started: the asynchronous twin belongs to the task's.
        raise WrongThread(f"{name} of perdure.sync blocks this loop: write await asyncio.to_thread({name}, …)")
    raise WrongThread(f"{name} of perdure.sync blocks: on an event loop import perdure and write await {name}(…)")


class LoopThread:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._held = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile `stop_unless_held` leaves it running."""
        with self._mutex:
            self._held += 1
        try:
            yield
        finally:
            with self._mutex:
                self._held -= 1

    def run(self, make: Callable[[], Coroutine[Any, Any, R]], *, name: str) -> R:
        """Run a coroutine on the loop and wait. An interrupt (Ctrl-C) cancels it and waits until it has ended.

        Raises WrongThread on an event loop.
        """
        refuse_on_loop(name)
        with self.held():
            return self._run(make)

    def _run(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        loop = self._started()
        running: list[asyncio.Task[R]] = []
        try:
            return block_on(loop, make, started=running.append)
        except KeyboardInterrupt:
            ended = threading.Event()

            def cancel() -> None:
                running[0].cancel()
                running[0].add_done_callback(lambda _: ended.set())

            loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise

    def stop_unless_held(self) -> None:
        """The same as `stop` when nobody else waits for anything on it."""
        self._stop(even_held=False)

    def stop(self) -> None:
        """Cancel what still runs and end the thread. It starts again when it is needed. May be called twice."""
        self._stop(even_held=True)

    def _stop(self, *, even_held: bool) -> None:
        with self._mutex:
            if self._held and not even_held:
                return
            thread, loop, end = self._thread, self._loop, self._end
            self._thread = self._loop = self._end = None
        if thread is None or loop is None or end is None:
            return
        loop.call_soon_threadsafe(end.set)
        if thread is not threading.current_thread():
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                ready = threading.Event()
                self._thread = threading.Thread(target=self._work, args=(ready,), name=self._name, daemon=True)
                self._thread.start()
                ready.wait()
            assert self._loop is not None
            return self._loop

    def _work(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._until_end(ready))

    async def _until_end(self, ready: threading.Event) -> None:
        # The starter holds the mutex and waits for `ready`, so that these two are set for it alone.
        self._loop = asyncio.get_running_loop()
        self._end = end = asyncio.Event()
        ready.set()
        await end.wait()
