"""The lock that lets one process at a time write to a SQLite file, fair and with a deadline.

SQLite's own busy handler sleeps and retries, so the process that has just committed wins again (measured: one
process got 1 commit against 813). A blocking flock is fair but hangs for ever when its holder is frozen. So: take
it at once if it is free, else a thread waits in flock and the caller waits for that thread, up to a deadline.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path

from perdure.errors import StoreBusy, StoreError


class WriterLock:
    """An flock on a side file. Used by one writer thread; the kernel frees it when the process dies."""

    def __init__(self, path: Path, *, busy_s: float) -> None:
        self._path = path
        self._busy_s = busy_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._wanted = threading.Semaphore(0)
        self._granted = threading.Semaphore(0)
        self._mutex = threading.Lock()
        self._abandoned = False
        self._trouble: OSError | None = None  # why the thread did not get it
        self._thread: threading.Thread | None = None
        self._closed = False
        self._is_open = True
        # A forked child shares the descriptor and with it the lock, which would then outlive us.
        os.register_at_fork(after_in_child=partial(_close_in_child, weakref.ref(self)))

    def take(self) -> None:
        """Hold the lock. Raises StoreBusy, naming the holder, when another process keeps it for `busy_s`."""
        if not self.take_if_free():
            self.wait()

    def take_if_free(self) -> bool:
        """Hold the lock if nobody else does. When it says no, `wait` is the only way to it."""
        # Both ways use one descriptor: were the lock taken here while the thread still waits for it, the thread would
        # get it, too, and one of them would drop it under the other.
        with self._mutex:
            if self._abandoned:
                return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failed(error) from error
        return True

    def wait(self) -> None:
        """Hold the lock as soon as its holder drops it. Raises StoreBusy, naming it, after `busy_s`, or StoreError."""
        with self._mutex:
            still_waiting, self._abandoned = self._abandoned, False
        if not still_waiting:
            self._wait_in_thread()
        is_granted = False
        try:
            is_granted = self._granted.acquire(timeout=self._busy_s)
        finally:
            if not is_granted:  # After the deadline, or Ctrl-C.
                with self._mutex:
                    is_granted = self._granted.acquire(blocking=False)  # It came between the deadline and here.
                    self._abandoned = not is_granted
        if not is_granted:
            raise self._busy()
        if self._trouble is not None:
            raise self._failed(self._trouble) from self._trouble

    def drop(self) -> None:
        """Let the next process write."""
        _unlock(self._fd)

    def close(self) -> None:
        """Close the side file; a waiting thread ends when it next gets the lock, and closes it then."""
        with self._mutex:
            self._closed = True
            if not self._abandoned:
                self._close_file()
        self._wanted.release()

    def _wait_in_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait_in_flock, name="perdure-lock", daemon=True)
            self._thread.start()
        self._wanted.release()

    def _wait_in_flock(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closed:
                return
            trouble = None
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            except OSError as error:
                trouble = error
            with self._mutex:
                self._trouble = trouble
                if self._abandoned:  # The writer gave up: nobody would use the lock.
                    self._abandoned = False
                    _unlock(self._fd)
                    if self._closed:
                        self._close_file()
                        return
                else:
                    self._granted.release()

    def _close_file(self) -> None:
        # Once, by whoever holds the mutex: the number is another file's as soon as one is opened.
        if self._is_open:
            self._is_open = False
            with suppress(OSError):  # Closed already, by somebody whose file it was not.
                os.close(self._fd)

    def _failed(self, error: OSError) -> StoreError:
        what_to_do = "Open the store anew" if error.errno == errno.EBADF else "Try again"  # Somebody closed its file.
        return StoreError(f"the write lock {self._path} failed ({error.strerror}); nothing was written. {what_to_do}.")

    def _busy(self) -> StoreBusy:
        pid = _holder(self._path)
        frozen = pid is not None and _is_frozen(pid)
        who = "another process" if pid is None else f"process {pid}{' (frozen)' if frozen else ''}"
        return StoreBusy(
            f"{who} has held the write lock of {self._path} for {self._busy_s:g} s; nothing was written. "
            + ("Wake or end that process." if frozen else "Try again, or look what that process does."),
            holder_pid=pid,
            holder_frozen=frozen,
        )


def _unlock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:  # The descriptor is gone, and with it the lock.
        return


def _close_in_child(parents: weakref.ref[WriterLock]) -> None:
    lock = parents()
    if lock is not None:
        lock._close_file()  # Without the mutex: a thread may have held it, and there is none here to give it back.


def _holder(path: Path) -> int | None:
    """The pid that holds an flock on `path`, where the kernel says so."""
    try:
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode) and int(words[4]) > 0:
                return int(words[4])
    except (OSError, IndexError, ValueError):
        return None  # Not Linux, or a container that hides it: the error then names nobody.
    return None


def _is_frozen(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
