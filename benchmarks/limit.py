"""The limit: how many rows the same disk makes durable when nothing but storing them is done.

A group-commit writer as lean as Python allows: one thread, one transaction for all that is waiting, one statement for
the rows and one for the counters of a batch, one wake-up of the loop for a batch. No workflow, no proof of ownership,
no events, no codec. It has SQLite's own page size of 4 KiB unless told otherwise; perdure's is a choice of perdure's.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import apsw

from benchmarks.meter import Meter, Numbers, latencies, make_payload

_SCHEMA = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE TABLE steps (
    id INTEGER PRIMARY KEY, task INTEGER NOT NULL, seq INTEGER NOT NULL, name TEXT NOT NULL, output BLOB,
    at INTEGER NOT NULL, UNIQUE (task, seq)
);
"""
_Row = tuple[int, int, str, bytes, int]
_Job = tuple[_Row, "asyncio.Future[None]"]


def measure(folder: Path, *, submitters: int, seconds: float, page_bytes: int = 4096) -> Numbers:
    """Rows a second with so many submitters, each of which waits for its row before it sends the next."""
    return asyncio.run(_measure(folder / "limit.db", submitters, seconds, page_bytes))


async def _measure(path: Path, submitters: int, seconds: float, page_bytes: int) -> Numbers:
    writer = _Writer(path, asyncio.get_running_loop(), submitters, page_bytes)
    writer.start()
    body = json.dumps(make_payload(), separators=(",", ":")).encode()
    meter, samples, done = Meter(), list[float](), 0

    async def submit(task: int, until: float) -> None:
        nonlocal done
        seq = 0
        while (begun := time.perf_counter()) < until:
            seq += 1
            await writer.submit((task, seq, "call_model", body, seq))
            samples.append(time.perf_counter() - begun)
            done += 1

    await asyncio.gather(*(submit(task, time.perf_counter() + seconds / 5) for task in range(submitters)))
    samples.clear()
    done = 0
    meter.start()
    await asyncio.gather(*(submit(task + submitters, time.perf_counter() + seconds) for task in range(submitters)))
    meter.stop()
    writer.close()
    return {**meter.per(done), **latencies(samples)}


class _Writer(threading.Thread):
    """Makes rows durable in batches and answers on the loop."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, submitters: int, page_bytes: int) -> None:
        super().__init__(daemon=True)
        self._loop = loop
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()
        self._connection = apsw.Connection(str(path))
        for pragma in (f"page_size = {page_bytes}", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(_SCHEMA)
        tasks = ((task,) for task in range(2 * submitters))
        self._connection.executemany("INSERT INTO tasks VALUES (?, 0, 0)", tasks)

    def submit(self, row: _Row) -> asyncio.Future[None]:
        """A future that is done once the row is durable."""
        future = self._loop.create_future()
        self._waiting.put((row, future))
        return future

    def close(self) -> None:
        """Stop; nothing may be waiting."""
        self._waiting.put(None)
        self.join()
        self._connection.close()

    def run(self) -> None:
        """Commit whatever is waiting, again and again."""
        insert = "INSERT INTO steps (task, seq, name, output, at) VALUES (?, ?, ?, ?, ?)"
        update = "UPDATE tasks SET last_seq = ?, at = ? WHERE id = ?"
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while not self._waiting.empty() and (job := self._waiting.get()) is not None:
                batch.append(job)
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(insert, [row for row, _ in batch])
            self._connection.executemany(update, [(row[1], row[4], row[0]) for row, _ in batch])
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_resolve, [future for _, future in batch])


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)
