"""Cancels a coroutine at a chosen one of its suspensions, so that a test can try them all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CutAt(Generic[T]):
    """Awaits `work`, and cancels the task around it where it is suspended for the `at`-th time.

    cut = CutAt(work(), at=3)
    await cut                      raises CancelledError, if work gets that far
    cut.has_struck
    """

    def __init__(self, work: Coroutine[Any, Any, T], *, at: int) -> None:
        self.has_struck = False
        self._work = work
        self._at = at

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        error: BaseException | None = None
        suspensions = 0
        while True:
            try:
                awaited = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            suspensions += 1
            if suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self.has_struck = True
            try:
                value, error = (yield awaited), None
            except BaseException as thrown:  # noqa: BLE001  # It is for the work to deal with.
                value, error = None, thrown


async def cut_at(work: Coroutine[Any, Any, T], *, at: int) -> tuple[T | None, bool]:
    """Run `work` in a task of its own and cut it; its result, and whether it got that far."""
    cut = CutAt(work, at=at)

    async def run() -> T:
        return await cut

    running = asyncio.ensure_future(run())
    await asyncio.wait({running})
    if running.cancelled():
        return None, True
    return running.result(), cut.has_struck
