"""Durable steps a second through the public API: agents that ask a model again and again, so many at once.

Everything is on: records, proof of ownership, usage, heartbeats, sweeps, the copy of the log. The model answers at
once with 2,048 bytes, so that nothing but perdure is measured.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import perdure
from benchmarks.meter import PAYLOAD_BYTES, Meter, Numbers, latencies, make_payload
from perdure.settings import Settings

_ANSWER = make_payload()


class _Load:
    """What the running agents share with the measurement."""

    def __init__(self) -> None:
        self.stopping = False
        self.samples_s: list[float] = []
        self.warm_after = 0
        self.is_warm = asyncio.Event()

    def took(self, duration_s: float) -> None:
        """One more step is durable."""
        self.samples_s.append(duration_s)
        if len(self.samples_s) == self.warm_after:
            self.is_warm.set()


_load = _Load()


async def answer(_turn: int) -> dict[str, Any]:
    """A model that answers at once."""
    return _ANSWER


@perdure.agent
async def talker() -> int:
    """Takes step after step until the measurement is over."""
    turn = 0
    while not _load.stopping:
        begun = time.perf_counter()
        await perdure.model(answer, turn)
        _load.took(time.perf_counter() - begun)
        turn += 1
    return turn


def measure(folder: Path, *, tasks: int, seconds: float) -> Numbers:
    """Steps a second with so many tasks at once, and the size of the database they leave."""
    path = folder / "steps.db"
    numbers, steps = asyncio.run(_measure(path, tasks, seconds))
    stored = sum(file.stat().st_size for file in (path, path.with_name("steps.db-wal")) if file.exists())
    return {**numbers, "stored_ratio": stored / (steps * PAYLOAD_BYTES)}


async def _measure(path: Path, tasks: int, seconds: float) -> tuple[Numbers, int]:
    app = perdure.App(str(path), agents=[talker], settings=Settings(permits=tasks + 8, main_permits=1))
    meter = Meter()
    async with app.worker():
        _load.warm_after = 10 * tasks + 100
        handles = await app.start_all([talker.bind() for _ in range(tasks)])
        await _load.is_warm.wait()
        begun_at = len(_load.samples_s)
        meter.start()
        await asyncio.sleep(seconds)
        meter.stop()
        samples_s = _load.samples_s[begun_at:]
        numbers = {**meter.per(len(samples_s)), **latencies(samples_s)}
        _load.stopping = True
        steps = sum([await handle.result() for handle in handles])
    await app.aclose()
    return numbers, steps
