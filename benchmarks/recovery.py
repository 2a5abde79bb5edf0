"""Recovery: tasks of five recorded steps each, cut off by kill -9, taken up by a new process and finished.

`interrupt` makes such a database once: a real worker, killed when every task has its five steps and waits inside the
agent. `measure` takes up a copy of it. Every task is replayed, takes one more step, and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import perdure
from benchmarks.meter import Meter, Numbers, make_payload
from perdure.settings import Settings

STEPS = 5
_PERMITS = 256
_ANSWER = make_payload()


class _Crowd:
    """What the tasks of one process share with the measurement."""

    def __init__(self) -> None:
        self.left = 0  # tasks that have still to get where they are watched for
        self.all_there = asyncio.Event()
        self.is_trap = False  # whether they are to stay inside the agent, for kill -9 to find them there

    def arrive(self) -> None:
        """One more task is where it is watched for."""
        self.left -= 1
        if self.left == 0:
            self.all_there.set()


_crowd = _Crowd()


async def answer(_turn: int) -> dict[str, Any]:
    """A model that answers at once."""
    return _ANSWER


@perdure.agent
async def worker_of_six() -> int:
    """Five steps; then, in the first process, a wait that only kill -9 ends; in the next, the sixth step."""
    tokens = 0
    for turn in range(STEPS):
        reply = await perdure.model(answer, turn)
        tokens += int(reply["usage"]["input_tokens"])
    if _crowd.is_trap:
        _crowd.arrive()
        await asyncio.Event().wait()
    last = await perdure.model(answer, STEPS)
    return tokens + int(last["usage"]["input_tokens"])


def interrupt(folder: Path, *, tasks: int) -> Numbers:
    """Leave a database of so many interrupted tasks in `folder`. Does not return: the process kills itself."""

    async def work() -> None:
        _crowd.is_trap, _crowd.left = True, tasks
        app = _open(folder, permits=tasks)
        async with app.worker():
            for first in range(0, tasks, 500):
                await app.start_all([worker_of_six.bind() for _ in range(min(500, tasks - first))])
            await _crowd.all_there.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(work())
    raise AssertionError("the process outlived kill -9")


def measure(folder: Path, *, made: str, tasks: int, workers: int = 1) -> Numbers:
    """From opening a copy of the database in `made` until the first and the last task have ended, durably.

    This process has one worker; the others are processes that are started in the same moment.
    """
    for file in Path(made).iterdir():
        shutil.copy(file, folder)
    begun_ms = time.time() * 1000
    command = [sys.executable, "-m", "benchmarks.cell", "recover_too", json.dumps({"folder": str(folder)})]
    others = [subprocess.Popen(command) for _ in range(workers - 1)]
    try:
        return asyncio.run(_measure(folder, tasks, begun_ms=begun_ms, is_alone=workers == 1))
    finally:
        for other in others:
            other.kill()
            other.wait()


def recover_too(folder: Path) -> Numbers:
    """A worker beside the one that is measured, until it is killed."""

    async def work() -> None:
        async with _open(folder, permits=_PERMITS).worker():
            await asyncio.Event().wait()

    asyncio.run(work())
    raise AssertionError("nobody stopped this worker")


async def _measure(folder: Path, tasks: int, *, begun_ms: float, is_alone: bool) -> Numbers:
    meter = Meter()
    meter.start()
    app = _open(folder, permits=_PERMITS)
    async with app.worker():
        while True:
            if not await app.tasks(open=True, limit=1):
                break
            await asyncio.sleep(0.05)  # When the last one ended says the database; to look takes time from the workers.
        meter.stop()
        ended_ms = await _ends(app)
    await app.aclose()
    assert len(ended_ms) == tasks, f"{len(ended_ms)} of {tasks} tasks have ended"
    numbers = meter.per(tasks)
    if not is_alone:  # What the other processes took is not known here.
        numbers = {**numbers, "cpu_us": None}
    return {
        **numbers,
        "all_done_s": (max(ended_ms) - begun_ms) / 1000,
        "first_done_s": (min(ended_ms) - begun_ms) / 1000,
    }


async def _ends(app: perdure.App) -> list[int]:
    """When each task ended, by the database's own record of it."""
    found: list[int] = []
    after: str | None = None
    while True:
        page = await app.tasks(limit=200, after=after)
        found += [task.finished_at for task in page if task.finished_at is not None]
        if (after := page.after) is None:
            return found


def _open(folder: Path, *, permits: int) -> perdure.App:
    settings = Settings(permits=permits, main_permits=0)
    return perdure.App(str(folder / "recovery.db"), agents=[worker_of_six], settings=settings)
