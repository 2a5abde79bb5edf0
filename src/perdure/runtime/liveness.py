"""Who is silent and who is dead: the judge of heartbeats, an owner's own deadline, and a lock no dead process can hold.

An instance without a heartbeat for a lease is *silent*: its work may be taken over, but it may still act. Only a free
lock proves it *dead*. Nothing here loops, waits or reads the database; the worker brings what it read and acts on what
it is told.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.clock import Clock
from perdure.errors import BadInput, InvariantError, StoreError
from perdure.model.instance import Instance
from perdure.settings import Settings
from perdure.states import InstanceStatus
from perdure.store import Store, sqlite_path
from perdure.store.filesystem import make_private

log = logging.getLogger(__name__)

_MARK_BYTES: Final = 8
# Python names these commands only where its headers did. None: the platform has no such locks.
_IS_MACOS: Final = sys.platform == "darwin"
_SET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", 90 if _IS_MACOS else None)
_GET_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", 92 if _IS_MACOS else None)


@dataclass(frozen=True, slots=True)
class Host:
    """Where this process runs. `boot_id` changes when the machine starts; "" where it cannot be read."""

    host: str
    boot_id: str
    pid: int


def whoami() -> Host:
    """This process. Ask again after a fork."""
    return Host(socket.gethostname(), _boot_id(), os.getpid())


def new_instance_id(now_ms: int, random: Random) -> str:
    """An id that tells when the process started (UTC, to the second); the schema refuses the rare equal one."""
    started = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"agt_{started:%Y%m%d%H%M%S}_{random.getrandbits(24):06x}"


# -- silence --------------------------------------------------------------------------------


class Observer:
    """Judges by heartbeat counters and its own boot clock who has been silent for a lease; compares no two clocks.

    A stall of the observer, or of the disk they share, silences everybody: after a gap of half a lease in its own
    acknowledged beats all its watches begin anew. With three beats to a lease, what is left always covers a healthy
    instance that waited through such a gap and had its next beat still to come. It is told of each of its own beats,
    for beats that are only looked at now and then seem as far apart as the looks. Belongs to one event loop.
    """

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._longest_gap_ms = lease_ms // 2
        self._beat_ms: int | None = None
        self._watches: dict[tuple[str, int], _Watch] = {}

    def beat_acknowledged(self) -> None:
        """A heartbeat of the observer's own has just been acknowledged; registering counts as one."""
        if not self._beats_get_through():
            self._watches = {}
        self._beat_ms = self._clock.boot_ms()

    def saw(self, instances: Sequence[Instance]) -> list[Instance]:
        """Take note of the instances just read and return those that are silent, in the order given.

        May be called as often or as seldom as one likes: who is silent is only found out later. It forgets who is not
        in the list. A word said stands only for the counter seen, so act on it with a compare-and-set.
        """
        now_ms = self._clock.boot_ms()
        # While writes stall, reads may go on and show that nobody's counter moves.
        known = self._watches if self._beats_get_through() else {}
        self._watches = {}
        silent = []
        for instance in instances:
            key = (instance.id, instance.generation)
            watch = known.get(key)
            if watch is None or watch.heartbeat != instance.heartbeat:
                watch = _Watch(instance.heartbeat, now_ms)
            self._watches[key] = watch
            if now_ms - watch.since_ms >= self._lease_ms:
                silent.append(instance)
        return silent

    def _beats_get_through(self) -> bool:
        return self._beat_ms is not None and self._clock.boot_ms() - self._beat_ms <= self._longest_gap_ms


@dataclass(frozen=True, slots=True)
class _Watch:
    heartbeat: int
    since_ms: int


class Deadline:
    """Until when an owner may start a call above low risk: 0.8 lease after its last acknowledged heartbeat began.

    Others wait a whole lease from when they saw that beat, which was later, so nobody takes over before this has
    passed. Times are those of `Clock.boot_ms`. Safe to ask from any thread.
    """

    def __init__(self, lease_ms: int) -> None:
        self._allowance_ms = lease_ms * 4 // 5
        self._until_ms: int | None = None

    def beat_acknowledged(self, started_boot_ms: int) -> None:
        """A heartbeat that began then is durable; registering counts as one. Answers may come out of order."""
        until_ms = started_boot_ms + self._allowance_ms
        if self._until_ms is None or until_ms > self._until_ms:
            self._until_ms = until_ms

    def may_call(self, now_boot_ms: int) -> bool:
        """Whether a call may start now. False before the first acknowledged beat."""
        return self._until_ms is not None and now_boot_ms < self._until_ms


# -- the lock -------------------------------------------------------------------------------


class InstanceLock:
    """One byte of a side file, locked for as long as this process lives; the kernel frees it at death.

    An open-file-description lock: closing the same file elsewhere in the process does not drop it, as it would a
    POSIX record lock, and a forked child lets go of it at birth. After locking, the file is marked with whose byte it
    is, so that a byte is called free only when its owner really held it in this very file: not when the owner has not
    come to lock it yet, not in a new file of the same name, not on a machine that shares files but no locks.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        seen = weakref.ref(self)  # Such a hook cannot be taken back, so it must not keep the lock alive.

        def let_go_in_child() -> None:
            lock = seen()
            if lock is not None:
                lock.release()

        os.register_at_fork(after_in_child=let_go_in_child)

    def hold(self, path: Path, slot: int, *, owner: str = "") -> bool:
        """Lock byte `slot` (a generation) and mark it as `owner`'s. True when it is held.

        False, with a warning, when it cannot be: no such locks here, the file cannot be written, or the byte is held
        by an older owner (another database lay there before). Then this death is found by silence, a lease later,
        and never proven. Plain record locks would be no help there: they can fall while their owner lives.
        """
        if self._fd is not None:
            raise InvariantError("this lock holds a byte already; release it first, or make another one")
        if slot < 1:
            raise BadInput(f"slot: {slot} is no generation, which are numbered from 1", field="slot")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            problem = _lock(self._fd, path, slot) or _write_mark(self._fd, slot, owner)
        except OSError as error:
            problem = error.strerror or type(error).__name__
        if problem:
            self.release()
            log.warning("no lock proves that this process lives: %s", problem, extra={"path": str(path), "slot": slot})
        return not problem

    @staticmethod
    def is_free(path: Path, slot: int, *, owner: str = "") -> bool | None:
        """True: `owner` held this byte and no longer does. False: it does. None: cannot tell. Disturbs nobody."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            # The mark first: it is written under the lock, so a byte that is free after its mark was seen has been
            # let go. The other way round, an owner who locks and signs in between would look dead.
            is_marked = os.pread(fd, _MARK_BYTES, slot * _MARK_BYTES) == _mark(owner)
            return not _is_locked(fd, slot) if is_marked else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def release(self) -> None:
        """Let go; may be called twice. Only when nothing of this owner runs any more: it counts as its death."""
        # Closing, never unlocking: in a child that shares the description, unlocking would take it from the parent.
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def side_file(database_path: Path | None, database_url: str) -> Path:
    """Where the locks of a database lie: beside its file, else in a private folder under a name made of its URL.

    Passwords do not enter the name. Processes that name one server differently only fail to prove each other dead.
    Raises StoreError when the folder belongs to somebody else, who could then forge deaths.
    """
    if database_path is not None:
        real = Path(os.path.realpath(database_path))
        return real.with_name(f"{real.name}-live")
    name = hashlib.sha256(_without_password(database_url).encode()).hexdigest()[:16]
    return _private_folder() / f"{name}-live"


def locks_of(url: str) -> Path | None:
    """Where the locks of the database at `url` lie; None in memory, where nobody else can be. Raises as `side_file`."""
    return None if url in ("sqlite://", "memory:") else side_file(sqlite_path(url), url)


# -- death ----------------------------------------------------------------------------------


def owner_of(instance_id: str, boot_id: str) -> str:
    """How an instance signs its byte: with the machine start it belongs to, since locks end there."""
    return f"{instance_id} {boot_id}"


def is_dead(instance: Instance, *, me: Host, path: Path) -> bool:
    """Whether the instance is proven dead: its byte in `path` is free, under this kernel or one this host had before.

    False says nothing. Pids are not asked: in a container they are somebody else's.
    """
    if not me.boot_id or not instance.boot_id:
        return False
    # A machine under another name may share the file without sharing its locks.
    if instance.boot_id != me.boot_id and instance.host != me.host:
        return False
    owner = owner_of(instance.id, instance.boot_id)
    return InstanceLock.is_free(path, instance.generation, owner=owner) is True


@dataclass(frozen=True, slots=True)
class Judge:
    """What those who only look take a worker for: proven dead, or silent after so long. Nothing acts on it."""

    is_dead: Callable[[Instance], bool] = lambda _: False
    silent_ms: int = int(Settings().lease_s * 1000)

    def is_silent(self, instance: Instance, *, now_ms: int) -> bool:
        """Whether its last heartbeat is older than a lease."""
        return now_ms - instance.heartbeat_at >= self.silent_ms

    def is_out(self, instance: Instance, *, now_ms: int) -> bool:
        """Whether it is silent or dead, or has ended."""
        has_ended = instance.status in (InstanceStatus.CRASHED, InstanceStatus.STOPPED)
        return has_ended or self.is_silent(instance, now_ms=now_ms) or self.is_dead(instance)


def judge(store: Store) -> Judge:
    """Who is proven dead, and who is silent, by what this machine knows and the settings of this store."""
    try:
        path = locks_of(store.database.url)
    except StoreError:  # The folder is somebody else's, and so is any proof in it.
        path = None
    me = whoami()
    return Judge(
        lambda instance: path is not None and is_dead(instance, me=me, path=path), int(store.settings.lease_s * 1000)
    )


def end_process(instance: Instance, *, me: Host, path: Path) -> bool:
    """Kill a killable instance on this host that lives past its lease; True when the signal was sent.

    Only after verifying that the process of that pid is the one that holds the instance's byte. Never this process,
    never pid 1. A process in the kernel's hands dies later than the signal: wait for `is_dead` before acting on it.
    """
    if not instance.killable or instance.pid <= 1 or instance.pid in (me.pid, os.getpid()):
        return False
    if not me.boot_id or (instance.host, instance.boot_id) != (me.host, me.boot_id):
        return False
    if sys.platform != "linux":
        # No pid namespaces there: if the byte is held, the process of this boot that has the pid is its owner.
        return _holds_byte(instance, path) and _kill(instance.pid)
    try:
        process = os.pidfd_open(instance.pid)
    except OSError:
        return False
    try:
        # The handle keeps meaning the process that was verified, even if it dies now and its pid is used again.
        if not _holds_byte(instance, path) or not _has_lock_open(instance.pid, path, instance.generation):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False  # It has ended, or belongs to another user.
    finally:
        os.close(process)
    log.warning("ended a worker that lived past its lease", extra={"instance": instance.id, "pid": instance.pid})
    return True


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _holds_byte(instance: Instance, path: Path) -> bool:
    owner = owner_of(instance.id, instance.boot_id)
    return InstanceLock.is_free(path, instance.generation, owner=owner) is False


def _has_lock_open(pid: int, path: Path, slot: int) -> bool:
    """Whether a descriptor of this process carries the lock; another process's pid 7 in another container does not."""
    wanted = os.stat(path)
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
            if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
                continue
            lines = Path(f"/proc/{pid}/fdinfo/{name}").read_text().splitlines()
        except FileNotFoundError:
            continue  # Closed meanwhile.
        if any("OFDLCK" in line and line.split()[-2:] == [str(slot), str(slot)] for line in lines):
            return True
    return False


# -- the kernel -----------------------------------------------------------------------------


@cache  # It cannot change while a process lives, and asking costs a subprocess on macOS.
def _boot_id() -> str:
    try:
        if not _IS_MACOS:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _range(kind: int, slot: int) -> bytes:
    """A `struct flock` of 64-bit Linux or macOS for one byte; an open-file-description lock wants pid 0."""
    if _IS_MACOS:
        return struct.pack("qqihh", slot, 1, 0, kind, os.SEEK_SET)
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, slot, 1, 0)


def _kind(answer: bytes) -> int:
    if _IS_MACOS:
        return int(struct.unpack("qqihh", answer)[3])
    return int(struct.unpack("hhqqi4x", answer)[0])


def _is_locked(fd: int, slot: int) -> bool:
    if _GET_LOCK is None:
        raise OSError("this platform has no open-file-description locks")
    return _kind(fcntl.fcntl(fd, _GET_LOCK, _range(fcntl.F_WRLCK, slot))) != fcntl.F_UNLCK


def _lock(fd: int, path: Path, slot: int) -> str:
    """Lock the byte; what went wrong, or ""."""
    if _SET_LOCK is None:
        return "this platform has no open-file-description locks"
    try:
        fcntl.fcntl(fd, _SET_LOCK, _range(fcntl.F_WRLCK, slot))
    except (BlockingIOError, PermissionError):
        return "somebody else holds the byte; another database lay at this place before, or lies there now"
    # Some file systems say yes and lock nothing: a second description must see it.
    other = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return "" if _is_locked(other, slot) else "this file system only pretends to lock"
    finally:
        os.close(other)


def _mark(owner: str) -> bytes:
    return hashlib.sha256(owner.encode()).digest()[:_MARK_BYTES]


def _write_mark(fd: int, slot: int, owner: str) -> str:
    """Sign the byte; what went wrong, or "". The file stays sparse, and marks do not meet bytes: nobody reads those."""
    mark = _mark(owner)
    return "" if os.pwrite(fd, mark, slot * _MARK_BYTES) == len(mark) else "the mark could not be written whole"


# -- where the side file lies ---------------------------------------------------------------


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    query = [(key, value) for key, value in parse_qsl(parts.query) if "password" not in key.lower()]
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + place, query=urlencode(query)))


def _private_folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "perdure" if runtime else Path(tempfile.gettempdir()) / f"perdure-{os.geteuid()}-live"
    try:
        make_private(folder)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot keep the locks of workers: {error.strerror or type(error).__name__}. "
            "Point XDG_RUNTIME_DIR or TMPDIR to a folder of your own."
        ) from error
    return folder
