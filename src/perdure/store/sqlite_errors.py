"""What SQLite and the system say when something fails, as perdure's own errors."""

from __future__ import annotations

import errno
from pathlib import Path

import apsw

from perdure.errors import Damaged, RefusedBySchema, StoreBusy, StoreError, StoreFull


def translate(error: apsw.Error, url: str = "") -> StoreError:
    """A driver error as perdure's own, by its code."""
    where = f" ({url})" if url else ""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"the database is locked by another program{where}; nothing was written. Try again.")
        case apsw.FullError():
            return StoreFull(f"no space is left for the database{where}; nothing was written. Free space, then go on.")
        case apsw.NotADBError() | apsw.CorruptError():
            return Damaged(f"the database is damaged or is no SQLite file{where}: {error}. It was left unchanged.")
        case apsw.ConstraintError() | apsw.TooBigError():
            return RefusedBySchema(f"the schema refused the write{where}: {error}; nothing was written")
        case apsw.CantOpenError():
            what_to_do = "Check the path, its permissions, and how many files this process may have open."
            return StoreError(f"the database cannot be opened{where}: {error}. {what_to_do}")
        case apsw.ReadOnlyError():
            return StoreError(f"the database is read-only{where}: {error}")
        case _:
            return StoreError(f"the database failed{where}: {error}")


def as_told(error: BaseException) -> BaseException:
    """An error of the driver translated, any other as it is."""
    return translate(error) if isinstance(error, apsw.Error) else error


def unwritable(path: Path, error: OSError) -> StoreError:
    """The system would not open or make the file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space is left for {path}; nothing was written. Free space, then go on.")
    return StoreError(
        f"{path} cannot be opened: {error.strerror} ({error.filename or path}). perdure writes to the file and to its "
        f"locks beside it, even to read: let this user write in {path.parent}, mount the file system for writing, or "
        f"open a copy elsewhere."
    )
