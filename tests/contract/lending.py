"""One PostgreSQL database that is lent to test after test, because emptying it takes a tenth of making a new one."""

from __future__ import annotations

import psycopg
from psycopg import sql

from perdure.store import open_store
from tests.postgres import Server

_TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY oid DESC"
_MIGRATIONS = "SELECT version, checksum, (SELECT string_agg(digest, ',') FROM schema_guards) FROM schema_versions"
_RESTART_NUMBERS = """SELECT setval(pg_get_serial_sequence(attrelid::regclass::text, attname), 1, false)
    FROM pg_attribute WHERE attidentity <> '' AND attrelid IN
        (SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace)"""
_END_OTHERS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""


class Lending:
    """The database and how it looked when it was new."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._url: str | None = None
        self._looks: object = None
        self._counters: list[tuple[str, int]] = []

    def lend(self) -> str:
        """The address of a database with our schema and no rows but those that the schema brings."""
        if self._url is None:
            self._url = self._server.create_database()
            open_store(self._url).close()
            with psycopg.connect(self._url) as connection:
                self._looks = _looks(connection)
                self._counters = connection.execute("SELECT name, value FROM counters").fetchall()
        return self._url

    def take_back(self) -> None:
        """Empty it, or drop it where the test has changed more than rows."""
        assert self._url is not None
        try:
            with psycopg.connect(self._url) as connection:
                connection.execute(_END_OTHERS)
                if _looks(connection) == self._looks:
                    self._empty(connection)
                    return
        except psycopg.OperationalError:
            pass  # The test has left the server down, or the database unusable.
        self.close()

    def close(self) -> None:
        """Drop it. Safe to repeat."""
        url, self._url = self._url, None
        if url is not None:
            self._server.drop_database(url)

    def _empty(self, connection: psycopg.Connection) -> None:
        # Youngest tables first: they refer to older ones.
        for (table,) in connection.execute(_TABLES).fetchall():
            if not table.startswith("schema_"):
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        connection.execute(_RESTART_NUMBERS)
        connection.cursor().executemany("INSERT INTO counters (name, value) VALUES (%s, %s)", self._counters)


def _looks(connection: psycopg.Connection) -> object:
    return connection.execute(_TABLES).fetchall(), connection.execute(_MIGRATIONS).fetchall()
