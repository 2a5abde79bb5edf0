"""Threads that read a SQLite file, each with a connection of its own that cannot write.

What comes together shares one snapshot. A connection whose transaction cannot be ended is given up for another: it
would read from that snapshot for ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import apsw

from perdure.clock import Clock, Ids
from perdure.errors import StoreError
from perdure.store.database import Answer
from perdure.store.sqlite_errors import as_told
from perdure.store.sqlite_transaction import SqliteTransaction, close_anyway, roll_back
from perdure.store.sqlite_units import Job
from perdure.store.waiters import deliver_all

_READ_TOGETHER = 8


class Readers:
    """So many threads that run reading units. Without any, nothing may be submitted."""

    def __init__(self, count: int, connect: Callable[[], apsw.Connection], *, clock: Clock, ids: Ids) -> None:
        self._connect, self._clock, self._ids = connect, clock, ids
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read_all, name=f"perdure-read-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def __bool__(self) -> bool:
        return bool(self._threads)

    def submit(self, job: Job) -> None:
        """Have a unit run, and its waiter told."""
        self._jobs.put(job)

    def close(self) -> None:
        """Return once all that was submitted before has been read."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def refuse(self, error: StoreError) -> None:
        """Answer what came in after the threads had ended."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is None:
                self._jobs.put(None)  # The sign to end, for a thread.
                return
            deliver_all([(job[1], None, error)])

    def _read_all(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._jobs.get()) is not None:
            batch = [job, *self._waiting()]
            answers: list[Answer] = []
            try:
                connection = connection or self._connect()
                for one in batch:
                    answers.append(self._run(connection, one))
            except BaseException as error:  # noqa: BLE001  # It could not be opened, or no transaction begun.
                answers += [(waiter, None, as_told(error)) for _, waiter in batch[len(answers) :]]
            if connection is not None and not roll_back(connection):
                close_anyway(connection)
                connection = None
            deliver_all(answers)
        if connection is not None:
            close_anyway(connection)

    def _waiting(self) -> list[Job]:
        """Reads that came meanwhile, to share one snapshot and one wake-up of their loop; not many, for all wait."""
        found: list[Job] = []
        while len(found) < _READ_TOGETHER - 1:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)  # The sign to end, for this thread or another; what came before it is done.
                break
            found.append(job)
        return found

    def _run(self, connection: apsw.Connection, job: Job) -> Answer:
        unit, waiter = job
        if not connection.in_transaction:
            connection.execute("BEGIN")
        try:
            return waiter, unit(SqliteTransaction(connection.cursor(), self._clock.now_ms(), self._ids)), None
        except BaseException as error:  # noqa: BLE001  # Whatever a unit raises is its caller's, never the thread's.
            return waiter, None, as_told(error)
