"""PostgreSQL: a few writer threads with a connection each, reader threads for snapshots.

One unit is one transaction. What its end was is always known but in one case: a connection that is lost while it
commits gives CommitUnknown for that unit alone, and its effect is found again by its key. Lost before that, or undone
because another transaction was in the way, nothing has happened and the unit runs again, in a new transaction.

Nothing here waits without an end, see `postgres_connection`; hints to other processes are in `postgres_bell`.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from perdure.clock import Clock, Ids, SystemClock
from perdure.errors import CommitUnknown, Damaged, ForkedStore, InvariantError, StoreClosed, StoreError
from perdure.settings import Settings
from perdure.store.database import Row, Unit, Value, Waiter
from perdure.store.forks import Forks
from perdure.store.migrate import migrate
from perdure.store.postgres_bell import Bell
from perdure.store.postgres_connection import Address, Connection, Connector, Line, is_lost, is_repeatable, translate
from perdure.store.queries import POSTGRES, Query
from perdure.store.server_clock import ServerClock
from perdure.store.waiters import deliver_all

_WRITERS = 8
_READERS = 2
# A unit that loses its connection again and again may be what kills it.
_MAX_LOSSES = 5
_MAX_REPEATS = 20
_MIGRATION_LOCK = 0x7065726475726530
_MIGRATION_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    unit: Unit[Any]
    waiter: Waiter
    asked_at: float  # monotonic seconds
    is_soft: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: Any = None
    error: BaseException | None = None
    hinted: bool = False


class PostgresTransaction:
    """One run of a unit on a connection. Not used again."""

    __slots__ = ("_cursor", "_ids", "hinted", "now")

    def __init__(self, connection: Connection, now: int, ids: Ids) -> None:
        # Binary results: payloads come as they are, not as hexadecimal text twice their size.
        self._cursor = connection.cursor(binary=True)
        self._ids = ids
        self.now = now
        self.hinted = False

    def one(self, query: Query, /, **values: Value) -> Row | None:
        rows = self.all(query, **values)
        if len(rows) > 1:
            raise InvariantError(f"{query.name} returned {len(rows)} rows")
        return rows[0] if rows else None

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        if query.wants_now:
            values["now"] = self.now
        return self._cursor.execute(query.postgres.encode(), values).fetchall()

    def run(self, query: Query, /, **values: Value) -> int:
        if query.wants_now:
            values["now"] = self.now
        return self._cursor.execute(query.postgres.encode(), values).rowcount

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        wants_now = query.wants_now
        every = [{**row, "now": self.now} if wants_now else row for row in rows]
        if len(every) == 1:  # The pipeline that many use costs more than it saves for one.
            self._cursor.execute(query.postgres.encode(), every[0])
        elif every:
            self._cursor.executemany(query.postgres.encode(), every)
        return self._cursor.rowcount if every else 0

    def lock(self, query: Query, /, **values: Value) -> None:
        self.all(query, **values)

    def new_id(self) -> str:
        return self._ids.new(self.now)

    def new_token(self) -> str:
        return self._ids.token()

    def hint(self) -> None:
        self.hinted = True


class PostgresDatabase:
    """One database and schema on a server. See `perdure.store.database.Database` for the promises."""

    dialect = "postgres"

    def __init__(self, connector: Connector, bell: Bell, *, ids: Ids, settings: Settings) -> None:
        self.url = connector.address.shown
        self.clock = connector.clock
        self._connector, self._bell = connector, bell
        self._ids, self._busy_s = ids, settings.busy_s
        self._random = ids.random()
        self._pid, self._forks = os.getpid(), Forks.count
        self._writers = _Crew("write", _WRITERS, lambda: Line(connector, snapshot=False), self._end, bell.tell)
        self._readers = _Crew("read", _READERS, lambda: Line(connector, snapshot=True), self._end, bell.tell)

    # -- the port ---------------------------------------------------------------------------

    def write(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._submit(self._writers, _Job(unit, waiter, time.monotonic()))

    def read(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._submit(self._readers, _Job(unit, waiter, time.monotonic()))

    def write_softly(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._submit(self._writers, _Job(unit, waiter, time.monotonic(), is_soft=True))

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._check_process()
        return self._bell.listen(wake)

    def check_place(self) -> None:
        return  # The file is the server's.

    def close(self) -> None:
        if self._forks != Forks.count:
            return
        self._writers.close()
        self._readers.close()
        self._bell.close()

    def _submit(self, crew: _Crew, job: _Job) -> None:
        self._check_process()
        if not crew.submit(job):
            raise StoreClosed(f"{self.url} is closed. Open it anew.")

    def _check_process(self) -> None:
        if self._forks != Forks.count:
            raise ForkedStore(f"{self.url} was opened in process {self._pid}; open it anew in this child process")

    # -- in the threads of a crew ------------------------------------------------------------

    def _end(self, line: Line, job: _Job) -> _Outcome:
        """Run a job until its end is known. What the unit raised comes out as it is."""
        started, losses, repeats = time.monotonic(), 0, 0
        while True:
            connection = line.connection(deadline=job.asked_at + self._busy_s)
            try:
                return self._run(connection, job)
            except psycopg.Error as error:
                if is_lost(connection, error):
                    line.drop()
                    losses += 1
                    if losses > _MAX_LOSSES:
                        raise StoreError(
                            f"the connection to {self.url} was lost {losses} times while this ran; nothing was "
                            f"written. If nothing else fails, this is what ends it: {error}"
                        ) from error
                    continue
                line.undo()
                late = time.monotonic() > started + self._busy_s or repeats == _MAX_REPEATS
                if late or not is_repeatable(error):
                    raise translate(error, self.url) from error
                repeats += 1
            time.sleep(self._random.random() * min(0.2, 0.002 * 2**repeats))

    def _run(self, connection: Connection, job: _Job) -> _Outcome:
        """Run a unit once. When this raises, nothing has happened."""
        if isinstance(self.clock, ServerClock) and self.clock.is_due():
            self._connector.learn_time(connection)
        if job.is_soft:
            connection.execute("SET LOCAL synchronous_commit = off", prepare=False)
        tx = PostgresTransaction(connection, self.clock.now_ms(), self._ids)
        result = job.unit(tx)
        if connection.read_only:
            connection.rollback()
            return _Outcome(result)
        if connection.info.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.IDLE):
            # COMMIT would answer that all is well and roll back.
            raise InvariantError("a unit went on after one of its statements had failed")
        try:
            connection.commit()
        except psycopg.Error as error:
            if not is_lost(connection, error):
                raise
            connection.close()
            unknown = CommitUnknown(
                f"the connection to {self.url} was lost while it committed: it may or may not have happened. "
                "Look for it by its key, or do it again with the same key."
            )
            unknown.__cause__ = error
            return _Outcome(error=unknown)
        return _Outcome(result, hinted=tx.hinted)


class _Crew:
    """Up to `size` threads, each with a line of its own, that take jobs from one queue. They start when needed."""

    def __init__(
        self,
        name: str,
        size: int,
        open_line: Callable[[], Line],
        end: Callable[[Line, _Job], _Outcome],
        tell: Callable[[], None],
    ) -> None:
        self._name, self._size = name, size
        self._open_line, self._end, self._tell = open_line, end, tell
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unanswered = 0
        self._closing = False

    def submit(self, job: _Job) -> bool:
        """Take a job in, or return False when closing has begun."""
        with self._mutex:
            if self._closing:
                return False
            self._unanswered += 1
            if self._unanswered > len(self._threads) < self._size:
                self._start()
            self._jobs.put(job)
        return True

    def close(self) -> None:
        """Finish what was taken in and end the threads."""
        with self._mutex:
            if not self._closing:
                self._closing = True
                for _ in self._threads:
                    self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        name = f"perdure-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        line = self._open_line()
        while (job := self._jobs.get()) is not None:
            try:
                outcome = self._end(line, job)
            except BaseException as error:  # noqa: BLE001  # Whatever a unit raises is its caller's, never the thread's.
                line.undo()
                outcome = _Outcome(error=error)
            # Before the answer: who asks again because of it must not look like a second one who waits.
            with self._mutex:
                self._unanswered -= 1
            deliver_all([(job.waiter, outcome.result, outcome.error)])
            if outcome.hinted:
                self._tell()
        line.drop()


def open_postgres(url: str, *, settings: Settings, clock: Clock, ids: Ids) -> PostgresDatabase:
    """Open the database and bring its schema up to date. All its tables lie in the connection's current schema.

    With the system's clock the time is the server's; another clock is used as it is. Raises BadInput for a URL that
    cannot be one, StoreBusy when no server answers for `busy_s`, SchemaTooNew, Damaged or another StoreError.
    """
    times = ServerClock(clock) if isinstance(clock, SystemClock) else clock
    address = Address(url, busy_s=settings.busy_s)
    connector = Connector(address, busy_s=settings.busy_s, clock=times, random=ids.random())
    schema = _bring_up_to_date(connector, busy_s=settings.busy_s)
    bell = Bell(connector.connect, schema=schema)
    return PostgresDatabase(connector, bell, ids=ids, settings=settings)


def _bring_up_to_date(connector: Connector, *, busy_s: float) -> int:
    """Migrate and return the number of the schema. May be tried again after a lost connection, whatever came of it."""
    deadline = time.monotonic() + busy_s
    while True:
        connection = connector.connect_until(deadline, first=True)
        try:
            return _migrate(connection, connector.clock)
        except psycopg.Error as error:
            again = is_lost(connection, error) or is_repeatable(error)
            if again and time.monotonic() < deadline:
                continue
            if error.sqlstate in ("42P07", "42703"):  # A table is there already, or has not our columns.
                raise Damaged(
                    f"the schema of {connector.address.shown} holds another program's tables; it was left unchanged. "
                    "Make a schema for perdure and name it in the search_path of its user."
                ) from error
            raise translate(error, connector.address.shown) from error
        finally:
            connection.close()


def _migrate(connection: Connection, clock: Clock) -> int:
    wait = f"{_MIGRATION_WAIT_S:g}s"
    connection.reply_s = 10 * _MIGRATION_WAIT_S
    connection.execute(
        "SELECT set_config('lock_timeout', %(wait)s, true), set_config('statement_timeout', '0', true),"
        " set_config('idle_in_transaction_session_timeout', '0', true)",
        {"wait": wait},
    )
    # Of many processes that start at once, one works and the others then find it done.
    connection.execute("SELECT pg_advisory_xact_lock(%(key)s)", {"key": _MIGRATION_LOCK})
    schema = connection.execute("SELECT oid::bigint FROM pg_namespace WHERE nspname = current_schema()").fetchone()
    if schema is None:
        raise StoreError("no schema in the search_path of this connection exists; make one and try again")
    migrate(_Schema(connection), POSTGRES, now_ms=clock.now_ms())
    connection.commit()
    return int(schema[0])


class _Schema:
    """A connection as a migration sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str) -> None:
        self._connection.execute(sql.encode(), prepare=False)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return list(self._connection.execute(sql.encode(), prepare=False).fetchall())
