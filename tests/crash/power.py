"""A disk in memory that loses power, fails or fills up at a chosen call of SQLite.

What is written stays in a cache until its file is synced. When the power goes, each 512-byte sector in the cache is
kept or lost by chance, as on a real disk. It is a VFS of SQLite with shared memory left out, so that one connection
at a time uses a file.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from enum import StrEnum

import apsw

_SECTOR = 512


class Fault(StrEnum):
    """What happens at the chosen call."""

    POWER_LOSS = "power loss"  # that call and all later ones fail
    IO_ERROR = "I/O error"  # that call fails
    FULL = "full"  # that call and all later ones that write fail, until there is space


@dataclass(slots=True)
class _File:
    synced: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut off here


class Disk:
    """The files, and the fault that waits for its call."""

    def __init__(self, name: str, *, seed: int, fault: Fault | None = None, at_call: int = 0) -> None:
        self.name = name
        self.files: dict[str, _File] = {}
        self.calls = 0
        self.fault = fault
        self.at_call = at_call
        self._random = random.Random(seed)
        self._vfs = _Vfs(self)

    @property
    def has_struck(self) -> bool:
        """True once the fault has come."""
        return self.fault is not None and self.calls >= self.at_call

    def clear(self) -> None:
        """No fault any more: there is space, the cable sits tight."""
        self.fault = None

    def reboot(self, *, kept: float = 0.5) -> None:
        """Lose what was not synced, sector by sector and by chance (a share of `kept` stays), and be well again."""
        for file in self.files.values():
            image = bytearray(file.synced)
            for offset, data in file.unsynced:
                if data is None:
                    if self._random.random() < kept:
                        del image[offset:]
                    continue
                for start in range(0, len(data), _SECTOR):
                    if self._random.random() < kept:
                        _put(image, offset + start, data[start : start + _SECTOR])
            file.synced, file.now, file.unsynced = image, bytearray(image), []
        self.clear()

    def close(self) -> None:
        """Take the file system away from SQLite."""
        self._vfs.unregister()

    def call(self, *, writes: bool) -> None:
        """Count a call that changes a file, or fail it."""
        if self.fault is Fault.POWER_LOSS and self.has_struck:
            raise apsw.IOError("the power is off")
        self.calls += 1
        if not self.has_struck:
            return
        match self.fault:
            case Fault.FULL if writes:
                raise apsw.FullError("no space")
            case Fault.IO_ERROR if self.calls == self.at_call:
                raise apsw.IOError("a cable is loose")
            case Fault.POWER_LOSS:
                raise apsw.IOError("the power is off")
            case _:
                return


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._temporary = itertools.count()
        super().__init__(disk.name, "", maxpathname=512)

    def xFullPathname(self, name: str) -> str:
        return name

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self._disk.files

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._disk.call(writes=False)
        self._disk.files.pop(filename, None)

    def excepthook(self, etype: object, evalue: object, etraceback: object) -> bool:
        """Say nothing where SQLite goes on after an error: the test sees it in what SQLite does."""
        return True

    def xOpen(  # type: ignore[override]  # apsw takes whatever has the methods; its own class opens a real file
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> _OpenFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or f"temporary-{next(self._temporary)}"
        if path not in self._disk.files:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(path)
            self._disk.files[path] = _File()
        return _OpenFile(self._disk, self._disk.files[path])


class _OpenFile:
    """What SQLite needs of an open file; nobody else uses it, so locks are not needed."""

    def __init__(self, disk: Disk, file: _File) -> None:
        self._disk = disk
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self._file.now[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.call(writes=True)
        _put(self._file.now, offset, bytes(data))
        self._file.unsynced.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        self._disk.call(writes=False)
        del self._file.now[newsize:]
        self._file.unsynced.append((newsize, None))

    def xSync(self, flags: int) -> None:
        self._disk.call(writes=False)
        self._file.synced, self._file.unsynced = bytearray(self._file.now), []

    def xFileSize(self) -> int:
        return len(self._file.now)

    def xLock(self, level: int) -> None:
        return None

    def xUnlock(self, level: int) -> None:
        return None

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return _SECTOR

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xClose(self) -> None:
        return None

    def excepthook(self, etype: object, evalue: object, etraceback: object) -> bool:
        return True


def _put(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data
