"""Whose a SQLite file is, and making it ours: page size, journal, identity."""

from __future__ import annotations

from typing import Final

import apsw

from perdure.errors import Damaged, StoreError

# A lone commit writes whole pages and a batch shares them: 8 KiB lies between (measured with 2 KB payloads).
_PAGE_BYTES: Final = 8192
_APPLICATION_ID: Final = 0x70657264  # "perd"


def prepare_file(connection: apsw.Connection, *, in_memory: bool) -> None:
    """Make the file ours: page size, journal and identity. What was asked for is read back."""
    if is_empty(connection):
        connection.pragma("page_size", _PAGE_BYTES)
        if not in_memory:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.pragma("application_id", _APPLICATION_ID)
    if in_memory:
        return
    journal = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if journal != [("wal",)] or connection.pragma("synchronous") != 2 or connection.pragma("foreign_keys") != 1:
        raise StoreError(
            f"SQLite would not take the settings that durability needs (journal {journal}, synchronous "
            f"{connection.pragma('synchronous')}): the promise could not be kept, so the store was not opened"
        )


def is_empty(connection: apsw.Connection) -> bool:
    """Whether the file is nobody's yet. Raises Damaged when it is somebody else's."""
    # One snapshot: between two looks another process may make the file ours.
    connection.execute("BEGIN")
    try:
        found = connection.pragma("application_id")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    finally:
        connection.execute("ROLLBACK")
    if found not in (0, _APPLICATION_ID):
        raise Damaged(f"this SQLite file belongs to another program (application id {found}); it was left unchanged")
    if found == 0 and tables != [(0,)]:
        raise Damaged("this SQLite file holds another program's tables; it was left unchanged. Name another file.")
    return bool(found == 0)


class SchemaOf:
    """A connection as a migration sees it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in self._connection.execute(sql).fetchall()]
