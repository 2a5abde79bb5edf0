"""SQLite: one writer thread with group commit, read-only connections for snapshots.

The writer takes all that is waiting, runs it in one transaction, commits once and then answers: while one sync
runs, the next batch collects. A refusal (raised before the unit's first write) fails alone at no cost; a unit that
fails after a write makes the batch roll back and run once more with a savepoint for each unit. A failed COMMIT is
no refusal: every unit gets CommitUnknown and the store closes until it is opened anew.

The file is never opened by anything but SQLite: closing any descriptor of it would drop SQLite's locks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from perdure.clock import Clock, Ids
from perdure.errors import CommitUnknown, ForkedStore, StoreClosed, StoreError
from perdure.settings import Settings
from perdure.store.checkpointer import Checkpointer
from perdure.store.database import Answer, Unit, Waiter
from perdure.store.file_place import FilePlace
from perdure.store.filesystem import check_path, create_private
from perdure.store.forks import Forks
from perdure.store.migrate import migrate
from perdure.store.queries import SQLITE
from perdure.store.sqlite_errors import translate, unwritable
from perdure.store.sqlite_file import SchemaOf, is_empty, prepare_file
from perdure.store.sqlite_readers import Readers
from perdure.store.sqlite_transaction import close_anyway, roll_back
from perdure.store.sqlite_units import Batch, Job
from perdure.store.waiters import deliver_all
from perdure.store.wakeup import Wakeup
from perdure.store.writer_lock import WriterLock

_MAX_BATCH = 512
# What is committed may wait to be told while so many units are run: some milliseconds, where that saves more.
_HOLD_FROM, _HOLD_UP_TO = 16, 64
_READERS = 2
_CACHE_KIB = 65_536


class SqliteDatabase:
    """One SQLite file, or memory when `path` is None. See `perdure.store.database.Database` for the promises."""

    dialect = "sqlite"

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        ids: Ids,
        settings: Settings,
        vfs: str = "",
        inline: bool = False,
    ) -> None:
        self.url = f"sqlite:///{path}" if path else "sqlite://"
        self.path = path
        self.clock = clock
        self._ids, self._settings = ids, settings
        self._pid, self._forks = os.getpid(), Forks.count
        self._failure: StoreError | None = None
        self._waiting: deque[Job] = deque()
        self._idle = threading.Lock()
        self._idle.acquire()
        self._is_idle = False
        self._closing = False
        self._vfs = vfs
        self._ended = False
        self._lock = WriterLock(_beside(path, "lock"), busy_s=settings.busy_s) if path and not vfs else None
        self._wakeup = Wakeup(path)
        self._file: tuple[int, int] | None = None
        try:
            self._file = Forks.opening(path) if path and not vfs else None
            self._connection = self._open_writer()
            self._checkpointer = None if self._lock is None else self._open_checkpointer(self._lock)
        except BaseException:
            self._let_go_of_file()
            raise
        self._cursor = self._connection.cursor()  # the writer's only one: to make one takes as long as a statement
        self._place = FilePlace(path) if path and not vfs else None
        self._is_soft = False
        self._answers: list[Answer] = []  # of batches that are committed, and not told yet
        self._readers = Readers(
            _READERS if path and not vfs else 0, partial(self._new_connection, read_only=True), clock=clock, ids=ids
        )
        self._writer = None if inline else threading.Thread(target=self._write_all, name="perdure-write", daemon=True)
        if self._writer is not None:
            self._writer.start()

    # -- the port ---------------------------------------------------------------------------

    def write(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._check_usable()
        if self._writer is None:
            self._commit([(unit, waiter)])
            self._hand_out()
            return
        self._waiting.append((unit, waiter))
        if self._is_idle:
            self._is_idle = False
            self._wake_writer()
        if self._ended:  # Closed since the check: nobody is left to take it.
            self._refuse_waiting()

    def read(self, unit: Unit[Any], waiter: Waiter) -> None:
        if not self._readers:
            self.write(unit, waiter)
            return
        self._check_usable()
        self._readers.submit((unit, waiter))
        if self._ended:
            self._refuse_waiting()

    def write_softly(self, unit: Unit[Any], waiter: Waiter) -> None:
        self.write(_Soft(unit), waiter)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._wakeup.listen(wake)

    def log_bytes(self) -> int:
        """Size of the write-ahead log after the last commit; 0 in memory."""
        return self._checkpointer.log_bytes if self._checkpointer is not None else 0

    def check_place(self) -> None:
        what = self._place.what_happened() if self._place is not None and self._failure is None else ""
        if what:
            self._failure = StoreClosed(what)
        if isinstance(self._failure, StoreClosed):
            raise self._closed()

    def close(self) -> None:
        if self._forks != Forks.count or self._closing:
            return
        self._closing = True
        if self._writer is None:
            close_anyway(self._connection)
        else:
            self._wake_writer()
            self._writer.join()
        self._readers.close()
        self._ended = True
        self._refuse_waiting()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._wakeup.close()
        self._let_go_of_file()

    def _let_go_of_file(self) -> None:
        if self._lock is not None:
            self._lock.close()
        if self._file is not None:
            Forks.closed(self._file)

    # -- the writer thread -------------------------------------------------------------------

    def _write_all(self) -> None:
        while not self._ended:
            if not self._waiting:
                self._hand_out()
                if self._waiting:
                    continue
                if self._closing:
                    break
                self._is_idle = True
                # Looked at once more after saying so: a submit in between saw no idle writer to wake.
                if not self._waiting and not self._closing:
                    self._idle.acquire()
                self._is_idle = False
                continue
            batch = self._take_waiting(_MAX_BATCH)
            if self._answers and not _HOLD_FROM <= len(batch) <= _HOLD_UP_TO:
                self._hand_out()
            try:
                self._commit(batch)
            except BaseException as error:  # noqa: BLE001  # None is known; but nobody must wait for ever.
                self._give_up(batch, error)
        close_anyway(self._connection)

    def _take_waiting(self, limit: int) -> list[Job]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), limit))]

    def _give_up(self, batch: list[Job], error: BaseException) -> None:
        self._failure = StoreClosed(f"the thread that writes to {self.url} has failed with {error!r}")
        self._failure.__cause__ = error
        self._hand_out()  # First: to whoever has an answer, the next one says nothing.
        deliver_all([(waiter, None, self._closed()) for _, waiter in batch])
        self._ended = True
        self._refuse_waiting()

    def _commit(self, batch: list[Job]) -> None:
        connection = self._connection
        if self._failure is not None:
            self._answers += [(waiter, None, self._closed()) for _, waiter in batch]
            return
        is_wanted = False  # by another process, which writes as well
        try:
            if self._lock is not None and not self._lock.take_if_free():
                is_wanted = True
                self._hand_out()
                self._lock.wait()
                batch += self._take_waiting(_MAX_BATCH - len(batch))  # what has come in meanwhile
        except StoreError as refused:
            self._answers += [(waiter, None, refused) for _, waiter in batch]
            return
        hinted = False
        try:
            hinted = self._run_batch(connection, batch)
        except BaseException as error:  # noqa: BLE001  # A clock that fails, no memory: the writer must outlive it.
            roll_back(connection)
            self._answers += [(waiter, None, error) for _, waiter in batch]
        finally:
            # While they wake up the rest is done here. Not if another process would have to wait for that, too.
            if not is_wanted and not self._waiting:
                self._hand_out()
            if self._lock is not None:
                self._lock.drop()
        if not self._waiting:
            self._hand_out()
        if hinted:
            self._wakeup.tell()
        if self._checkpointer is not None and self._checkpointer.is_over_cap:
            self._hand_out()
            self._checkpointer.keep_small()

    def _hand_out(self) -> None:
        """Tell whoever waits for what is committed.

        While more is waiting it is put off until the next batch is about to reach the disk. What the callers do then
        takes no time from the writer, which sleeps in the sync, where before it they would take turns with it.
        """
        answers, self._answers = self._answers, []
        deliver_all(answers)

    def _run_batch(self, connection: apsw.Connection, batch: list[Job]) -> bool:
        """Run and commit a batch, and say whether one of its units hinted.

        If a unit fails after a write, all of it runs once more with a savepoint for each.
        """
        now = self.clock.now_ms()
        try:
            # One durable unit makes the whole batch durable; the log is one, so it hardens earlier soft ones too.
            is_soft = type(batch[0][0]) is _Soft and all(type(unit) is _Soft for unit, _ in batch)
            if is_soft != self._is_soft:
                self._set_soft(connection, is_soft=is_soft)
            self._cursor.execute("BEGIN IMMEDIATE")
            units = Batch(self._cursor, now, self._ids)
            if not units.run(batch):
                roll_back(connection)
                connection.execute("BEGIN IMMEDIATE")
                units = Batch(self._cursor, now, self._ids)
                units.run_apart(batch)
        except (apsw.Error, StoreError) as error:
            roll_back(connection)
            failure = error if isinstance(error, StoreError) else translate(error, self.url)
            if isinstance(error, apsw.IOError):  # What SQLite knows of its file may be wrong from here on.
                self._failure = failure = StoreError(
                    f"{failure}; nothing was written. The store has closed itself; look at the disk, then open it anew."
                )
                failure.__cause__ = error
            self._answers += [(waiter, None, failure) for _, waiter in batch]
            return False
        if self._answers:
            self._hand_out()
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            self._commit_failed(connection, batch, error)
            return False
        self._answers = units.answers
        return units.hinted

    def _set_soft(self, connection: apsw.Connection, *, is_soft: bool) -> None:
        """Say whether the next commit must reach the disk.

        One connection does both kinds: of two, each would find its cache emptied by the commits of the other.
        """
        if self.path is not None:
            connection.execute("PRAGMA synchronous = NORMAL" if is_soft else "PRAGMA synchronous = FULL")
            self._is_soft = is_soft

    def _commit_failed(self, connection: apsw.Connection, batch: list[Job], error: apsw.Error) -> None:
        """COMMIT itself failed. A busy or full database has rolled back; anything else may have been written."""
        if isinstance(error, apsw.BusyError | apsw.FullError):
            roll_back(connection)
            self._answers += [(waiter, None, translate(error)) for _, waiter in batch]
            return
        roll_back(connection)
        self._failure = CommitUnknown(
            f"the commit to {self.url} failed ({error}): it may or may not have happened. The store has closed itself; "
            "open it anew, and what was written is found again by its key."
        )
        self._failure.__cause__ = error
        self._answers += [(waiter, None, self._failure) for _, waiter in batch]

    # -- opening -----------------------------------------------------------------------------

    def _open_writer(self) -> apsw.Connection:
        if self._lock is not None:
            self._lock.take()
        try:
            connection = self._new_connection()
            prepare_file(connection, in_memory=self.path is None)
            connection.execute("BEGIN IMMEDIATE")
            try:
                migrate(SchemaOf(connection), SQLITE, now_ms=self.clock.now_ms())
                connection.execute("COMMIT")
            finally:
                roll_back(connection)
            return connection
        except apsw.Error as error:
            raise translate(error, self.url) from error
        finally:
            if self._lock is not None:
                self._lock.drop()

    def _open_checkpointer(self, lock: WriterLock) -> Checkpointer:
        try:
            return Checkpointer(self._new_connection, writer=self._connection, lock=lock)
        except apsw.Error as error:
            self._connection.close()
            raise translate(error, self.url) from error

    def _new_connection(self, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        where = {"vfs": self._vfs} if self._vfs else {}
        connection = apsw.Connection(str(self.path or ":memory:"), flags=flags, statementcachesize=256, **where)
        connection.set_busy_timeout(int(self._settings.busy_s * 1000))
        # Plans do not depend on the values bound. Otherwise SQLite compiles most of our statements anew at each use,
        # which takes longer than to run them.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if self._vfs:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA trusted_schema = OFF")
        # SQLite's own 2 MB hold less than one batch of recoveries (measured: 5 reads for each task instead of 2).
        connection.pragma("cache_size", -_CACHE_KIB)
        return connection

    # -- checks ------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._forks != Forks.count:
            raise ForkedStore(f"{self.url} was opened in process {self._pid}, from which this one was forked")
        if self._closing or self._failure is not None:
            raise self._closed()

    def _closed(self) -> StoreError:
        why = f" after this: {self._failure}" if self._failure is not None else ""
        closed = StoreClosed(f"{self.url} is closed{why}. Open it anew.")
        closed.__cause__ = self._failure
        return closed

    def _refuse_waiting(self) -> None:
        """Answer what came in after the threads had ended; they and this may look at the same moment."""
        while True:
            try:
                _, waiter = self._waiting.popleft()
            except IndexError:
                break
            deliver_all([(waiter, None, self._closed())])
        self._readers.refuse(self._closed())

    def _wake_writer(self) -> None:
        try:
            self._idle.release()
        except RuntimeError:  # Already awake.
            return


class _Soft:
    """Marks a unit that need not reach the disk at once, so that a batch of such alone costs no sync."""

    __slots__ = ("_unit",)

    def __init__(self, unit: Unit[Any]) -> None:
        self._unit = unit

    def __call__(self, tx: Any) -> Any:
        return self._unit(tx)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}-{what}")


def _refuse_foreign(path: Path) -> None:
    """Look before anything is put beside a file that is not ours. Raises Damaged."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        is_empty(connection)
    except apsw.BusyError:
        return  # Another process makes it just now; the lock tells who is first.
    except apsw.Error as error:
        raise translate(error, f"sqlite:///{path}") from error
    finally:
        connection.close()


def open_sqlite(
    path: Path | None, *, settings: Settings, clock: Clock, ids: Ids, vfs: str = "", inline: bool = False
) -> SqliteDatabase:
    """Open the file (None: memory), make it ours and bring its schema up to date.

    `inline`: each unit runs at once in the thread that submits it, and only one may; for simulations, where a thread
    of the writer's own would make two runs differ. Raises StoreError where nothing can be written.
    """
    try:
        if path is not None and not vfs:
            path = check_path(path)
            create_private(path)
            if not _beside(path, "lock").exists():
                _refuse_foreign(path)
        return SqliteDatabase(path, clock=clock, ids=ids, settings=settings, vfs=vfs, inline=inline)
    except OSError as error:
        if path is None:
            raise
        raise unwritable(path, error) from error
