"""Files outside the database that only ever grow: what the tools did, and what the store had confirmed.

A line is one `write` of one process. Killed where the file goes on in another page, the process may leave a part of it;
that line was never there, for its write has not returned. Nothing is synced: this file proves what processes did, not
what a disk does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

EFFECTS = "effects.jsonl"
CONFIRMED = "confirmed.jsonl"


class Effect(NamedTuple):
    """One time that the world was changed: under which idempotency token, by which call of which run."""

    token: str
    run: str
    call: str
    pid: int


class Ledger:
    """Appends lines, from any process and thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def append(self, *fields: str | int) -> None:
        """Add a line; it is in the file when this returns."""
        line = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
        os.write(self._fd, f"\n{line}\n".encode())  # On a line of its own, whatever part was left before it.

    def close(self) -> None:
        """Let the file go. Call it once."""
        os.close(self._fd)


class Reader:
    """Reads what was added since the last look."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._stream = path.open("rb")
        self._rest = b""

    def news(self) -> Iterator[list[str | int]]:
        """The lines that are new, in their order."""
        body = self._rest + self._stream.read()
        *lines, self._rest = body.split(b"\n")
        for line in filter(None, lines):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:  # The part of a line whose writer was killed.
                continue

    def close(self) -> None:
        """Let the file go. Safe to repeat."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def effects(path: Path) -> list[Effect]:
    """Every effect so far."""
    with Reader(path) as reader:
        return [Effect(str(line[0]), str(line[1]), str(line[2]), int(line[3])) for line in reader.news()]
