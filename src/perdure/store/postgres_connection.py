"""Connections to PostgreSQL: how one is opened, how long it may stay silent, and what its errors mean.

Every wait has an end: for the connection, for a lock, for a statement, for a peer that is gone (the system's TCP
timeouts) and for one that is there but silent (`Connection.wait`). Errors are told apart by SQLSTATE, by the state of
the connection and by asking the server whether it takes connections; never by their text.
"""

from __future__ import annotations

import math
import threading
import time
from random import Random
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader

from perdure.clock import Clock
from perdure.errors import BadInput, Damaged, RefusedBySchema, StoreBusy, StoreError, StoreFull
from perdure.store.server_clock import ServerClock

V = TypeVar("V")

# Another transaction was in the way and this one is undone: the same again may succeed.
_REPEATABLE = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock timeout
# This server, or this connection to it, takes no writes any more: find one that does.
_ELSEWHERE = frozenset({"25006", "25P03", "57P01", "57P02", "57P03", "57P05"})
# A unit uses a few dozen statements, each with NULLs in some places of its parameters.
_STATEMENTS_KEPT = 500
_PREPARE_AFTER = 2

_SESSION = """SELECT
    set_config('lock_timeout', %(lock_ms)s, false),
    set_config('statement_timeout', %(statement_ms)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s, false),
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false)"""
_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that ends itself when the server stays silent for `reply_s`, however healthy TCP finds it."""

    reply_s: float | None = None

    def wait(self, gen: PQGen[V], interval: float = 0.1, timeout: float | None = None) -> V:
        if timeout is not None or self.reply_s is None:
            return super().wait(gen, interval, timeout)
        deadline = time.monotonic() + self.reply_s
        try:
            return super().wait(gen, interval, self.reply_s)
        except psycopg.OperationalError as error:
            if error.sqlstate is not None or time.monotonic() < deadline:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server was silent for {self.reply_s:g} s") from error


class Address:
    """Where the server is: a checked URL. `shown` is safe to print, it holds no password."""

    def __init__(self, url: str, *, busy_s: float) -> None:
        """Raises BadInput for a URL that libpq would not take."""
        self.parameters = _parse(url)
        self.shown = _without_password(self.parameters)
        # What the URL says goes first; the rest sees to it that a dead peer is found out.
        defaults: dict[str, object] = {
            "fallback_application_name": "perdure",
            "connect_timeout": max(2, math.ceil(busy_s / 2)),
            "keepalives_idle": max(1, math.ceil(busy_s / 2)),
            "keepalives_interval": max(1, math.ceil(busy_s / 6)),
            "keepalives_count": 3,
            "tcp_user_timeout": max(1000, int(busy_s * 1000)),
            "target_session_attrs": "read-write",
        }
        for name, value in defaults.items():
            self.parameters.setdefault(name, str(value))
        self.parameters["client_encoding"] = "utf8"


class Connector:
    """Opens connections to one address, and knows for all its threads whether the server was there a moment ago."""

    def __init__(self, address: Address, *, busy_s: float, clock: Clock, random: Random) -> None:
        self.address = address
        self.clock = clock
        self._busy_s = busy_s
        self._random = random
        self._mutex = threading.Lock()
        self._unreachable_since: float | None = None
        statement_ms = max(1000, int(2000 * busy_s))
        self._limits = {
            "lock_ms": f"{max(1, int(500 * busy_s))}",
            "statement_ms": f"{statement_ms}",
            "idle_ms": f"{max(1000, int(1000 * busy_s))}",
        }
        # The server ends a statement that takes too long; what is silent beyond that is no server.
        self._reply_s = statement_ms / 1000 + busy_s / 2 + 1

    def connect(self) -> Connection:
        """One try. Raises psycopg.Error, and StoreError for a database that cannot be used."""
        parameters: dict[str, Any] = dict(self.address.parameters)
        connection = Connection.connect(prepare_threshold=_PREPARE_AFTER, **parameters)
        try:
            connection.reply_s = self._reply_s
            connection.prepared_max = _STATEMENTS_KEPT
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            connection.adapters.register_loader("numeric", _Number)
            connection.adapters.register_loader("bool", _Truth)
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"the database's encoding is {encoding}; perdure needs one made with ENCODING 'UTF8'")
            connection.autocommit = True
            connection.execute(_SESSION, self._limits, prepare=False)
            self.learn_time(connection)
            connection.autocommit = False
            # Said aloud, because a server can be set to another default.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        except BaseException:
            connection.close()
            raise
        self._unreachable_since = None
        return connection

    def connect_until(self, deadline: float, *, first: bool = False) -> Connection:
        """Try until `deadline` (monotonic seconds), at least once. Raises StoreBusy when it did not work until then.

        The `first` connection does not wait where waiting does not help: a server that takes connections, but not
        ours, is a StoreError at once. Later the same may be a failover or a crowd, which passes.
        """
        refusals, pause_s = 0, 0.05
        while True:
            try:
                return self.connect()
            except psycopg.Error as error:
                now = time.monotonic()
                with self._mutex:
                    self._unreachable_since = self._unreachable_since or now
                # It may have come up between the try and the question, so its answer counts from the second time.
                refusals = refusals + 1 if first and self._takes_connections() else 0
                if refusals > 1:
                    raise StoreError(f"the server refused the connection to {self.address.shown}: {error}") from error
                if now + pause_s > deadline:
                    raise self.unreachable(error) from error
            time.sleep(pause_s * (0.5 + self._random.random()))
            pause_s = min(1.0, pause_s * 2)

    def is_unreachable(self) -> bool:
        """True while the last try, by whatever thread, has failed and the failing began `busy_s` ago."""
        since = self._unreachable_since
        return since is not None and time.monotonic() - since > self._busy_s

    def unreachable(self, error: BaseException | None = None) -> StoreBusy:
        """The error for a server that cannot be reached."""
        why = f" ({error})" if error is not None else ""
        return StoreBusy(
            f"the server of {self.address.shown} cannot be reached{why}; nothing was written. It was tried for "
            f"{self._busy_s:g} s. See that it runs and try again."
        )

    def learn_time(self, connection: Connection) -> None:
        """Ask the server for its time, unless the clock is not the server's."""
        if not isinstance(self.clock, ServerClock):
            return
        sent_ms = self.clock.boot_ms()
        row = connection.execute(_TIME, prepare=False).fetchone()
        assert row is not None
        self.clock.learn(row[0], sent_ms=sent_ms, received_ms=self.clock.boot_ms())

    def _takes_connections(self) -> bool:
        """Ask the server itself: this does not log in, and it tells "starting up" from "not you"."""
        conninfo = make_conninfo("", **self.address.parameters)
        return pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK


class Line:
    """A place for one connection: opened when it is first needed, and again when it was lost. For one thread."""

    def __init__(self, connector: Connector, *, snapshot: bool) -> None:
        self._connector = connector
        self._snapshot = snapshot
        self._connection: Connection | None = None

    def connection(self, *, deadline: float) -> Connection:
        """The connection, ready for a transaction. Raises StoreError when there is none by `deadline`."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        # What has waited behind others for a server that is gone is not made to wait once more.
        if time.monotonic() > deadline and self._connector.is_unreachable():
            raise self._connector.unreachable()
        connection = self._connector.connect_until(deadline)
        if self._snapshot:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
        self._connection = connection
        return connection

    def undo(self) -> None:
        """Roll back what is open, so that the connection can be used again."""
        if self._connection is not None:
            try:
                self._connection.rollback()
            except psycopg.Error:
                self.drop()  # With the connection its transaction is gone, too.

    def drop(self) -> None:
        """Close the connection, if there is one; the server undoes its open transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """True when the connection is of no use any more: it has ended, or the server says that it ends it."""
    return (
        connection.closed
        or error.diag.severity_nonlocalized in ("FATAL", "PANIC")
        or error.sqlstate in _ELSEWHERE
        or (error.sqlstate or "").startswith("08")
    )


def is_repeatable(error: psycopg.Error) -> bool:
    """True when another transaction was in the way, so that the same unit may succeed when it runs again."""
    return error.sqlstate in _REPEATABLE


def translate(error: psycopg.Error, shown: str) -> StoreError:
    """A driver error as perdure's own, by its SQLSTATE. For errors that wrote nothing."""
    code = error.sqlstate or ""
    match code:
        case "53100":
            return StoreFull(f"no space is left on the server of {shown}; nothing was written. Free space, then go on.")
        case "40001" | "40P01" | "55P03":
            return StoreBusy(f"other transactions kept the rows that this one needs; nothing was written to {shown}")
        case "57014":
            return StoreBusy(f"a statement took too long and was cancelled; nothing was written to {shown}")
        case "53200" | "53300" | "53400":
            return StoreBusy(f"the server of {shown} is short of memory or connections; nothing was written: {error}")
        case "XX001" | "XX002":
            return Damaged(f"the database {shown} is damaged: {error}")
        case "42501":
            return StoreError(f"the user of {shown} may not do this: {error}")
        case _ if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            # Its first line: the others show the whole row.
            what = error.diag.message_primary or str(error)
            return RefusedBySchema(f"the schema refused the write: {what}; nothing was written")
        case _:
            return StoreError(f"the database failed ({shown}): {error}")


class _Number(NumericBinaryLoader):
    """sum() of integers is `numeric` there; our rows hold int and float, as on SQLite."""

    def load(self, data: Buffer) -> Any:
        value = super().load(data)
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)


class _Truth(Loader):
    """A comparison is 0 or 1, as on SQLite."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"\x01")


def _parse(url: str) -> dict[str, str]:
    """The parameters in a URL. Raises BadInput; the driver's own text is not shown, it may quote the password."""
    refusal = BadInput(
        "this is no address of a PostgreSQL database; give postgresql://user:password@host:5432/name, with every "
        "special character of the password as %XX",
        field="url",
    )
    if "\x00" in url or url.split("://", 1)[0] not in ("postgresql", "postgres"):
        raise refusal
    try:
        parameters = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:
        raise refusal from None
    for port in parameters.get("port", "").split(","):
        if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
            # Not shown: an "@" that was not written as %40 makes a piece of the password stand here.
            raise BadInput("the port in the database's URL is no number from 1 to 65535", field="url")
    return parameters


def _without_password(parameters: dict[str, str]) -> str:
    # From what libpq understood: in a URL as it was written the password may lie where nobody expects it.
    user = f"{parameters['user']}@" if "user" in parameters else ""
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"postgresql://{user}{parameters.get('host', '')}{port}/{parameters.get('dbname', '')}"
