"""What an operation sees of a SQLite connection while its unit runs.

Values are bound by place: to look each up by its name costs as much as a third of the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import apsw

from perdure.clock import Ids
from perdure.errors import InvariantError
from perdure.store.database import Row, Value
from perdure.store.queries import Query


class SqliteTransaction:
    """One unit's view of a connection. Units may share a cursor: each reads all its rows at once."""

    __slots__ = ("_connection", "_execute", "_execute_many", "_ids", "hinted", "now")

    def __init__(self, cursor: apsw.Cursor, now: int, ids: Ids) -> None:
        self._connection = cursor.connection
        self._execute = cursor.execute
        self._execute_many = cursor.executemany
        self._ids = ids
        self.now = now
        self.hinted = False

    def one(self, query: Query, /, **values: Value) -> Row | None:
        if query.wants_now:
            values["now"] = self.now
        rows = self._execute(query.sqlite, query.in_order(values)).fetchall()
        if len(rows) > 1:
            raise InvariantError(f"{query.name} returned {len(rows)} rows")
        return rows[0] if rows else None

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        if query.wants_now:
            values["now"] = self.now
        return self._execute(query.sqlite, query.in_order(values)).fetchall()

    def run(self, query: Query, /, **values: Value) -> int:
        if query.wants_now:
            values["now"] = self.now
        self._execute(query.sqlite, query.in_order(values))
        return self._connection.changes()

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        every = list(rows)
        if len(every) == 1:
            return self.run(query, **every[0])
        before = self._connection.total_changes()
        if query.wants_now:
            every = [{**row, "now": self.now} for row in every]
        self._execute_many(query.sqlite, map(query.in_order, every))
        return self._connection.total_changes() - before

    def lock(self, query: Query, /, **values: Value) -> None:
        """Nothing: a file has one writer at a time."""

    def new_id(self) -> str:
        return self._ids.new(self.now)

    def new_token(self) -> str:
        return self._ids.token()

    def hint(self) -> None:
        self.hinted = True


def roll_back(connection: apsw.Connection) -> bool:
    """Whether no transaction is open any more. What led here is told already; a writer's next BEGIN tells the rest."""
    with suppress(apsw.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return not connection.in_transaction


def close_anyway(connection: apsw.Connection) -> None:
    """Close it as far as a broken disk lets it."""
    with suppress(apsw.Error):  # The disk failed again; what is committed lies in the log and is found there.
        connection.close()
