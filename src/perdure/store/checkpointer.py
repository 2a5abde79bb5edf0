"""Keeps SQLite's log short without making a commit wait for somebody who reads for long.

One connection of its own copies the log into the database whenever it has grown by a few MiB; commits go on
meanwhile. If the log still passes its cap (writing without a pause), the writer empties it between two batches. While
a reader holds on to the log, which a backup does for long, it grows, and is cut some MiB after the reader has gone.
Its size is a metric.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

import apsw

from perdure.errors import StoreError
from perdure.store.writer_lock import WriterLock

log = logging.getLogger(__name__)

_COPY_EVERY_BYTES = 8 << 20
_CAP_BYTES = 64 << 20
_PATIENCE_MS = 60  # so long may the writer wait for reads, which end by then, and seldom: once for so many MiB
_TRY_EVERY_BYTES = 8 << 20


class Connect(Protocol):
    """Opens another connection to the same file."""

    def __call__(self) -> apsw.Connection: ...


class Checkpointer:
    """Watches the log of one file."""

    def __init__(self, connect: Connect, *, writer: apsw.Connection, lock: WriterLock) -> None:
        self._lock = lock
        self._page_bytes = int(writer.pragma("page_size"))
        self._pages = 0
        self._copied_at_pages = 0
        self._empty_from_bytes = _CAP_BYTES
        self._due = threading.Event()
        self._at_work = threading.Lock()
        self._closing = False
        self._is_failing = False
        self._connection = connect()
        self._connection.set_busy_timeout(_PATIENCE_MS)
        writer.set_wal_hook(self._committed)
        self._thread = threading.Thread(target=self._copy, name="perdure-checkpoint", daemon=True)
        self._thread.start()

    @property
    def log_bytes(self) -> int:
        """Size of the log after the last commit."""
        return self._pages * self._page_bytes

    @property
    def is_over_cap(self) -> bool:
        """Whether the log is so long that the writer has to empty it."""
        return self.log_bytes > self._empty_from_bytes

    def keep_small(self) -> None:
        """Empty the log that is over its cap. Called by the writer between two batches, without the write lock."""
        # SQLite would say "busy" at once while the copying thread is at it, which it always is by now; and while
        # another process writes, which it always does where two never pause: hence the lock.
        try:
            with self._at_work:
                self._lock.take()
                try:
                    self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
                finally:
                    self._lock.drop()
        except (apsw.Error, StoreError):
            # A reader needs the log, the disk fails, or a process that holds the lock is frozen. All is in the log.
            self._empty_from_bytes = self.log_bytes + _TRY_EVERY_BYTES

    def close(self) -> None:
        """Stop copying."""
        self._closing = True
        self._due.set()
        self._thread.join()
        self._connection.close()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:  # The log began anew.
            self._copied_at_pages, self._empty_from_bytes = 0, _CAP_BYTES
        self._pages = pages
        if (pages - self._copied_at_pages) * self._page_bytes > _COPY_EVERY_BYTES:
            self._copied_at_pages = pages
            self._due.set()
        return apsw.SQLITE_OK

    def _copy(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._closing:
                return
            try:
                with self._at_work:
                    self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error:
                continue  # Another process is at it, a reader holds on, or the disk fails: it comes round again.

    def _checkpoint(self, mode: int) -> None:
        """Copy the log. A disk that is full or fails is told of once, until it works again; raises apsw.Error."""
        try:
            self._connection.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError):
            raise
        except apsw.Error as error:
            if not self._is_failing:
                log.warning("the log of the database cannot be copied into its file, and grows: %s", error)
            self._is_failing = True
            raise
        if self._is_failing:
            log.warning("the log of the database is copied into its file again")
        self._is_failing = False
