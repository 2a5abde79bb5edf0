"""Copying the log of a SQLite file: what keeps it from being copied is told, but for what passes by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import apsw
import pytest

from perdure.store.checkpointer import Checkpointer


class Disk:
    """A connection whose log can be copied, or not, as the test says."""

    def __init__(self) -> None:
        self.error: apsw.Error | None = None
        self.tried = threading.Semaphore(0)
        self.hook: Callable[[Any, str, int], int] = lambda *_: 0

    def pragma(self, _name: str) -> int:
        return 4096

    def set_busy_timeout(self, _milliseconds: int) -> None: ...

    def set_wal_hook(self, hook: Callable[[Any, str, int], int]) -> None:
        self.hook = hook

    def wal_checkpoint(self, *, mode: int) -> None:
        assert mode in (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.tried.release()
        if self.error is not None:
            raise self.error

    def take(self) -> None: ...

    def drop(self) -> None: ...

    def close(self) -> None: ...


def test_a_disk_that_fails_is_told_of_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    checkpointer = Checkpointer(lambda: cast("Any", disk), writer=cast("Any", disk), lock=cast("Any", disk))
    told: list[list[str]] = []

    def copy_twice(error: apsw.Error | None, pages: int) -> None:
        disk.error = error
        disk.hook(None, "main", pages)  # By its own thread, and by the writer.
        assert disk.tried.acquire(timeout=10)
        checkpointer.keep_small()
        assert disk.tried.acquire(timeout=10)
        told.append([one.message for one in caplog.records])
        caplog.clear()

    with caplog.at_level(logging.WARNING):
        copy_twice(apsw.BusyError("locked"), 10_000)
        copy_twice(apsw.FullError("database or disk is full"), 20_000)
        copy_twice(apsw.IOError("disk I/O error"), 30_000)
        copy_twice(None, 40_000)
        copy_twice(None, 50_000)
        copy_twice(apsw.IOError("disk I/O error"), 60_000)
    checkpointer.close()

    grows = "the log of the database cannot be copied into its file, and grows: "
    again = "the log of the database is copied into its file again"
    full, failed = f"{grows}database or disk is full", f"{grows}disk I/O error"
    assert told == [[], [full], [], [again], [], [failed]]
