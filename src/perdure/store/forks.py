"""What a fork leaves behind: stores that are not the child's, and files that SQLite must not open there.

Whether this process is such a child is asked before every transaction. The kernel's pid would tell, too, but to ask it
takes longer than all other checks together.

SQLite remembers for each process which locks it holds on a file. A child inherits what it remembers, but not the locks:
its connections would think that they hold what nobody holds, and the log that they write to could be deleted under
them by any other process (SQLite: How To Corrupt An SQLite Database File, 2.6).
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import ClassVar

from perdure.errors import ForkedStore

_File = tuple[int, int]  # device and inode, as SQLite tells files apart


class Forks:
    """The forks between the process that loaded this module and this one, and what was open at each of them."""

    count = 0
    _open: ClassVar[Counter[_File]] = Counter()
    _inherited: ClassVar[set[_File]] = set()

    @classmethod
    def opening(cls, path: Path) -> _File:
        """This process is about to open an existing file with SQLite; what `closed` wants to know later.

        Raises ForkedStore when a process from which this one was forked had it open then.
        """
        file = _id_of(path)
        if file in cls._inherited:
            raise ForkedStore(
                f"{path} was open when this process was forked: SQLite's locks do not hold in such a child, and what "
                "it writes could be lost. Fork before the database is opened, or start the child as a program of its "
                "own, for example with multiprocessing's method 'spawn' or 'forkserver'."
            )
        cls._open[file] += 1
        return file

    @classmethod
    def closed(cls, file: _File) -> None:
        """A store of this process has closed it."""
        cls._open[file] -= 1
        if cls._open[file] <= 0:
            del cls._open[file]

    @classmethod
    def _in_child(cls) -> None:
        cls.count += 1
        cls._inherited |= cls._open.keys()
        cls._open.clear()


def _id_of(path: Path) -> _File:
    found = path.stat()
    return found.st_dev, found.st_ino


os.register_at_fork(after_in_child=Forks._in_child)
