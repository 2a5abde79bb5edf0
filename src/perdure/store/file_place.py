"""Whether a database file still lies where it was opened.

SQLite cannot tell: a file that is deleted stays open, takes every commit, and is gone with the process. Asked now and
then by name alone, for opening the file and closing it again would drop SQLite's locks.
"""

from __future__ import annotations

import os
from pathlib import Path


class FilePlace:
    """Where a file lay when this was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = _id_of(path)

    def what_happened(self) -> str:
        """What became of the file, or "" while it lies where it did."""
        try:
            how = "" if _id_of(self._path) == self._id else "was replaced by another file"
        except (FileNotFoundError, NotADirectoryError):
            how = "was deleted or moved away"
        except OSError:  # It cannot be seen just now, which says nothing.
            how = ""
        return how and f"its file {how} while it was open, and what was written last may be lost with it"


def _id_of(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
