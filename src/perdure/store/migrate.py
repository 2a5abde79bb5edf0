"""Brings a database to the newest schema: ordered, atomic, checksummed, safe when many processes start at once.

Each step runs in one transaction together with its own record, and the version is read inside that transaction,
so of many processes one does the work and the others find it done. A database that a newer perdure wrote is
refused and left unchanged. The triggers that refuse illegal moves are made anew when states.py has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

from perdure.errors import Damaged, SchemaTooNew
from perdure.states import ATTEMPT, INSTANCE, QUESTION, TASK, Machine
from perdure.store.queries import Dialect, fill

# Machines whose table exists in the schema.
_GUARDED: tuple[Machine, ...] = (TASK, ATTEMPT, QUESTION, INSTANCE)

_VERSIONS = """CREATE TABLE IF NOT EXISTS schema_versions (
    version {int} NOT NULL PRIMARY KEY,
    checksum {text} NOT NULL,
    applied_at {int} NOT NULL
) {strict}"""


class SchemaConnection(Protocol):
    """What a migration needs of a driver: plain statements inside a transaction that the adapter holds open."""

    def execute(self, sql: str) -> None:
        """Run one statement."""
        ...

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Run one query."""
        ...


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Digest of the file's text: a step that was applied must never change."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Every step, in order."""
    found = []
    for entry in sorted((files("perdure.store") / "sql" / "schema").iterdir(), key=lambda entry: entry.name):
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        if entry.name.endswith(".sql"):
            found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "schema files must be numbered without a gap"
    return tuple(found)


def migrate(connection: SchemaConnection, dialect: Dialect, *, now_ms: int) -> int:
    """Apply what is missing and return how many steps that were. The caller holds an exclusive transaction.

    Raises SchemaTooNew for a database from a newer perdure, Damaged when an applied step's text has changed.
    """
    connection.execute(fill(_VERSIONS, dialect))
    applied = {int(str(v)): str(c) for v, c in connection.rows("SELECT version, checksum FROM schema_versions")}
    known = {m.version: m for m in migrations()}
    if applied and max(applied) > max(known):
        raise SchemaTooNew(
            f"the database has schema {max(applied)}, this perdure knows {max(known)}: a newer perdure wrote it. "
            "Nothing was changed; install the newer perdure."
        )
    for version, checksum in applied.items():
        if known[version].checksum != checksum:
            raise Damaged(f"schema step {version} ({known[version].name}) was applied from another text than this one")
    missing = [m for m in migrations() if m.version not in applied]
    for step in missing:
        for statement in statements(fill(step.text, dialect)):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_versions (version, checksum, applied_at) "  # noqa: S608  # Digest and numbers of our own.
            f"VALUES ({step.version:d}, '{step.checksum}', {now_ms:d})"
        )
    _guard_moves(connection, dialect)
    return len(missing)


def statements(text: str) -> Iterator[str]:
    """The statements of a script; none of ours holds a semicolon inside."""
    without_comments = re.sub(r"--[^\n]*", "", text)
    for part in without_comments.split(";"):
        if part.strip():
            yield part.strip()


def guard(machine: Machine, dialect: Dialect) -> tuple[str, ...]:
    """The statements that make the database refuse every move of `machine` that states.py does not hold."""
    # Not IN: for a list SQLite makes a table at each use, which takes longer than the update itself.
    legal = " ".join(f"WHEN '{source}>{target}' THEN 0" for source, target in sorted(machine.moves))
    name, table = f"{machine.name}_moves", machine.table
    test = f"OLD.status <> NEW.status AND CASE OLD.status || '>' || NEW.status {legal} ELSE 1 END = 1"
    if dialect.name == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, 'illegal move of {machine.name}'); END"
        make = f"CREATE TRIGGER {name} BEFORE UPDATE OF status ON {table} WHEN {test} {refuse}"
        return (f"DROP TRIGGER IF EXISTS {name}", make)
    message = f"'illegal move of {machine.name}: % to %', OLD.status, NEW.status USING ERRCODE = 'check_violation'"
    function = f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
    body = f"$$ BEGIN RAISE EXCEPTION {message}; END $$"
    make = f"CREATE TRIGGER {name} BEFORE UPDATE OF status ON {table} FOR EACH ROW"
    return (
        f"{function} {body}",
        f"DROP TRIGGER IF EXISTS {name} ON {table}",
        f"{make} WHEN ({test}) EXECUTE FUNCTION {name}()",
    )


def _guard_moves(connection: SchemaConnection, dialect: Dialect) -> None:
    """Install the guards whose text differs from the installed one."""
    wanted = {machine.name: guard(machine, dialect) for machine in _GUARDED}
    digest = hashlib.sha256(repr(wanted).encode()).hexdigest()
    connection.execute(
        fill("CREATE TABLE IF NOT EXISTS schema_guards (digest {text} NOT NULL PRIMARY KEY) {strict}", dialect)
    )
    if connection.rows("SELECT digest FROM schema_guards") == [(digest,)]:
        return
    for texts in wanted.values():
        for statement in texts:
            connection.execute(statement)
    connection.execute("DELETE FROM schema_guards")
    connection.execute(f"INSERT INTO schema_guards (digest) VALUES ('{digest}')")  # noqa: S608  # A digest of our own.
