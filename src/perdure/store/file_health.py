"""The facts about a SQLite file: version, settings, sizes, the modes of it and its companions, whether it is whole.

A read-only connection of its own looks; nothing else opens the file, for closing any other descriptor of it would drop
SQLite's locks.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import apsw

from perdure.store.sqlite_errors import translate

_COMPLAINTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Beside:
    """A file that belongs to the database: itself, its log, its locks."""

    path: Path
    size_bytes: int
    mode: int

    @property
    def is_private(self) -> bool:
        """Whether only its owner can read and write it."""
        return self.mode & 0o077 == 0


@dataclass(frozen=True, slots=True)
class FileHealth:
    """What SQLite and the file system say. `complaints` are SQLite's own about the file's structure."""

    sqlite_version: str
    journal_mode: str
    page_bytes: int
    files: tuple[Beside, ...]
    log_bytes: int
    free_bytes: int
    folder_mode: int
    complaints: tuple[str, ...]


def examine(path: Path) -> FileHealth:
    """Look at a database file that is open elsewhere in this process. Raises StoreError when SQLite cannot read it."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(5000)
            journal_mode = str(connection.pragma("journal_mode"))
            page_bytes = int(connection.pragma("page_size"))
            said = [str(row[0]) for row in connection.execute("PRAGMA quick_check(20)")]
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate(error, str(path)) from error
    files = tuple(_files(path))
    room = os.statvfs(path.parent)
    return FileHealth(
        sqlite_version=apsw.sqlite_lib_version(),
        journal_mode=journal_mode,
        page_bytes=page_bytes,
        files=files,
        log_bytes=next((one.size_bytes for one in files if one.path.name == f"{path.name}-wal"), 0),
        free_bytes=room.f_bavail * room.f_frsize,
        folder_mode=stat.S_IMODE(path.parent.stat().st_mode),
        complaints=tuple(line for line in said if line != "ok")[:_COMPLAINTS_MAX],
    )


def _files(path: Path) -> list[Beside]:
    found = []
    for entry in sorted(path.parent.iterdir()):
        if entry.name == path.name or entry.name.startswith(f"{path.name}-"):
            facts = entry.stat()
            found.append(Beside(entry, facts.st_size, stat.S_IMODE(facts.st_mode)))
    return found
