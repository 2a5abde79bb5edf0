"""A worker's way to the database that takes its time and loses hints. Writes of one worker keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from perdure.errors import StoreClosed
from perdure.store.database import Database, Unit, Waiter
from perdure.testing.line import Death, Line
from perdure.testing.virtual_loop import VirtualLoop


class SlowLine(Line):
    """A line whose delays are drawn from `random`."""

    def __init__(
        self,
        database: Database,
        loop: VirtualLoop,
        *,
        random: Random,
        death: Death | None,
        on_death: Callable[[], None],
        on_write: Callable[[Sequence[str]], None],
    ) -> None:
        super().__init__(database, loop, death=death, on_death=on_death, on_write=on_write)
        self._random = random
        self._free_at = 0.0

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return super().listen(lambda: None if self._random.random() < 0.2 else wake())

    def _run(self, submit: Callable[[Unit[Any], Waiter], None], unit: Unit[Any], waiter: Waiter) -> None:
        # Most looks find nothing, and a run has thousands of them.
        is_look = self._loop.is_in_periodic_task and self._random.random() < 0.9
        if waiter.loop is None or self._loop.is_quiet or is_look:
            super()._run(submit, unit, waiter)
            return
        if self._is_cut:
            raise StoreClosed("this worker is gone")
        # A burst may find the database busy; most calls do not.
        delay_s = self._random.choice((0.0, 0.0, 0.002, 0.02, 0.3))
        self._free_at = max(self._free_at, self._loop.time() + delay_s)
        # Who looks periodically gets its answer at once: time would have to stop for a timer that only hands it over.
        answered_s = 0.0 if self._loop.is_in_periodic_task else self._random.choice((0.0, 0.0, 0.001, 0.05))
        self._loop.call_at(self._free_at, self._run_late, submit, unit, _LateWaiter(waiter, self._loop, answered_s))

    def _run_late(self, submit: Callable[[Unit[Any], Waiter], None], unit: Unit[Any], waiter: Waiter) -> None:
        try:
            super()._run(submit, unit, waiter)
        except StoreClosed as closed:
            waiter.deliver(None, closed)


class _LateWaiter:
    """Hands the answer on, some time later."""

    def __init__(self, waiter: Waiter, loop: VirtualLoop, delay_s: float) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self._waiter = waiter
        self._delay_s = delay_s

    def deliver(self, result: Any, error: BaseException | None) -> None:
        assert self.loop is not None
        if self._delay_s:
            self.loop.call_later(self._delay_s, self._waiter.deliver, result, error)
        else:
            self._waiter.deliver(result, error)
