"""A virtual loop that runs what is ready in an order drawn from a seed, as threads and networks would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from perdure.testing.virtual_loop import VirtualLoop


class ShuffledLoop(VirtualLoop):
    """`is_tense` says whether something is under way that periodic looks have to notice."""

    _ready: deque[Any]  # asyncio's own queue of callbacks

    def __init__(self, seed: int, *, quiet_after_s: float) -> None:
        super().__init__(quiet_after_s=quiet_after_s)
        self.is_tense: Callable[[], bool] = lambda: False
        self._random = Random(seed)

    def pass_time(self, timeout_s: float | None) -> None:
        if self.is_quiet and self.is_tense():
            self.something_happened()
        super().pass_time(timeout_s)

    def _run_once(self) -> None:
        if len(self._ready) > 1:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]  # typeshed leaves it out
