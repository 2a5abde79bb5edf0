"""Whole tasks of one step, one after the other: admitted, claimed, one step, finished, and the result taken.

started here    a client and a worker in one process: `start`, then `result`
run here        the same with `App.run`, which admits the task already claimed
elsewhere       the client here, the worker in a process of its own
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perdure
from benchmarks.meter import Meter, Numbers, latencies, make_payload

_ANSWER = make_payload()
_WARM_UP = 5


async def answer(_turn: int) -> dict[str, Any]:
    """A model that answers at once."""
    return _ANSWER


@perdure.agent
async def once(turn: int) -> int:
    """One step, then done."""
    await perdure.model(answer, turn)
    return turn


def measure(folder: Path, *, how: str, tasks: int) -> Numbers:
    """Time, syncs and bytes of each of so many tasks."""
    path = folder / "tasks.db"
    if how == "elsewhere":
        with _worker(path):
            return asyncio.run(_measure_elsewhere(path, tasks))
    return asyncio.run(_measure_here(path, tasks, runs=how == "run"))


async def _measure_here(path: Path, tasks: int, *, runs: bool) -> Numbers:
    app = perdure.App(str(path), agents=[once])

    async def run(turn: int) -> int:
        return await app.run(once, turn)

    async with app.worker():
        numbers = await _repeat(run if runs else _starter(app), tasks)
    await app.aclose()
    return numbers


async def _measure_elsewhere(path: Path, tasks: int) -> Numbers:
    async with perdure.Client(str(path)) as client:
        return await _repeat(_starter(client), tasks)


@contextmanager
def _worker(path: Path) -> Iterator[None]:
    """A worker in a process of its own, for as long as the block runs."""
    command = [sys.executable, "-m", "benchmarks.cell", "serve", json.dumps({"path": str(path)})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL):
        yield  # Leaving closes its input, which ends it, and waits for it.


def serve(path: str) -> Numbers:
    """A worker that runs until its input is closed."""

    async def work() -> None:
        app = perdure.App(path, agents=[once])
        async with app.worker():
            await asyncio.to_thread(sys.stdin.read)
        await app.aclose()

    asyncio.run(work())
    return {}


def _starter(client: perdure.Client) -> Callable[[int], Awaitable[int]]:
    async def run(turn: int) -> int:
        handle = await client.start(once, turn)
        return await handle.result()

    return run


async def _repeat(run: Callable[[int], Awaitable[int]], tasks: int) -> Numbers:
    for turn in range(_WARM_UP):
        await run(turn)
    meter, samples_s, syncs = Meter(), list[float](), list[int]()
    meter.start()
    for turn in range(tasks):
        begun, synced = time.perf_counter(), meter.syncs()
        await run(turn)
        samples_s.append(time.perf_counter() - begun)
        syncs.append(meter.syncs() - synced)
    meter.stop()
    # The mean also holds the copying of the log, which comes now and then and waits for nobody.
    own_syncs = statistics.median(syncs) if meter.counts else None
    return {**meter.per(tasks), **latencies(samples_s), "own_syncs": own_syncs}
