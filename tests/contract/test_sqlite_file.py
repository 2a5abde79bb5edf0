"""One SQLite file and several processes: who holds the lock, who is frozen, and what a full disk does."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreBusy, StoreClosed, StoreError, StoreFull
from perdure.settings import Settings
from perdure.store import Store, checkpointer, open_store
from perdure.store.database import Transaction
from perdure.store.sqlite_file import is_empty
from perdure.store.sqlite_transaction import SqliteTransaction
from perdure.store.waiters import ThreadWaiter
from perdure.store.writer_lock import WriterLock
from tests.children import Script, run_together
from tests.rows import keys, put, put_body, put_twice

_HOLDING = """
import sys
from perdure.store import open_store
from tests.rows import put

def hold(tx):
    put(tx, "held")
    print("holding", flush=True)
    sys.stdin.readline()

with open_store(sys.argv[1]) as store:
    store.call(hold)
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_db: Path) -> Iterator[Store]:
    """A store on a file that gives up early."""
    with open_store(str(tmp_db), settings=Settings(busy_s=0.2), clock=FakeClock(), ids=SeededIds(1)) as store:
        yield store


def test_a_busy_store_names_the_stopped_process_that_holds_it_and_goes_on_when_it_does(
    store: Store, tmp_db: Path
) -> None:
    with Script(_HOLDING, str(tmp_db)) as holder:
        assert holder.hear() == "holding"
        holder.stop()

        with pytest.raises(StoreBusy, match="Wake or end that process") as busy:
            store.call(put, "a")
        assert (busy.value.holder_pid, busy.value.holder_frozen) == (holder.pid, True)
        with pytest.raises(StoreBusy, match=f"process {holder.pid} "):
            store.call(put_twice, "a")
        assert store.read(keys) == []  # reading needs no lock

        holder.go_on()
        with pytest.raises(StoreBusy, match="look what that process does") as busy:
            store.call(put, "a")
        assert not busy.value.holder_frozen

        holder.say()
        assert holder.hear() == "done"
        assert store.call(put, "a") == "a"
        assert store.read(keys) == ["a", "held"]


@pytest.mark.parametrize("what", ["p.db", "p.db-lock"])
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "mount the file system for writing"),
        (errno.EACCES, "let this user write in"),
        (errno.ENOSPC, "Free space"),
    ],
)
def test_a_folder_that_cannot_be_written_is_told_by_one_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int, advice: str
) -> None:
    really_open = os.open

    def refusing(path: Any, *args: Any, **more: Any) -> int:
        if Path(path).name == what:
            raise OSError(number, os.strerror(number), str(path))
        return really_open(path, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(StoreError, match=advice) as refused:
        open_store(str(tmp_path / "p.db"))

    assert isinstance(refused.value, StoreFull) == (number == errno.ENOSPC)
    assert str(tmp_path / "p.db") in str(refused.value)


def test_a_killed_holder_leaves_neither_a_lock_nor_half_a_write(store: Store, tmp_db: Path) -> None:
    with Script(_HOLDING, str(tmp_db)) as holder:
        assert holder.hear() == "holding"
        holder.kill()

        assert store.call(put, "a") == "a"

    assert store.read(keys) == ["a"]


def test_a_program_that_locks_the_file_without_us_is_named_as_such(store: Store, tmp_db: Path) -> None:
    other = apsw.Connection(str(tmp_db))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy, match="another program"):
        store.call(put, "a")

    other.execute("ROLLBACK")
    other.close()
    assert store.call(put, "a") == "a"


def test_the_lock_excludes_after_a_wait_was_given_up(tmp_path: Path) -> None:
    first, second = (WriterLock(tmp_path / "lock", busy_s=0.05) for _ in range(2))
    for _ in range(8):
        first.take()
        with pytest.raises(StoreBusy):
            second.take()  # its thread still waits
        first.drop()

        second.take()

        with pytest.raises(StoreBusy):
            first.take()
        second.drop()
    first.close()
    second.close()


def test_a_lock_that_is_closed_while_its_thread_waits_closes_no_file_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    lock = WriterLock(tmp_path / "lock", busy_s=0.05)
    with pytest.raises(StoreBusy):
        lock.take()  # its thread waits on
    really_release, opened = lock._wanted.release, list[int]()

    def release_while_the_holder_does() -> None:
        really_release()
        fcntl.flock(holder, fcntl.LOCK_UN)
        assert lock._thread is not None
        lock._thread.join(10)
        opened.append(os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT))

    monkeypatch.setattr(lock._wanted, "release", release_while_the_holder_does)
    lock.close()

    for one in (holder, *opened):
        os.close(one)


def test_a_wait_that_is_interrupted_locks_no_file_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (WriterLock(tmp_path / "lock", busy_s=10) for _ in range(2))
    first.take()

    def interrupt(**_options: object) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(second._granted, "acquire", interrupt)
    with pytest.raises(KeyboardInterrupt):
        second.take()

    second.close()
    another = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)
    assert another != second._fd  # to which its thread goes on to wait
    first.drop()
    assert second._thread is not None
    second._thread.join(10)
    assert not second._thread.is_alive()
    first.take()
    first.close()
    os.close(another)


def test_a_childs_child_keeps_its_files_though_its_parent_had_a_store_open(store: Store, tmp_path: Path) -> None:
    assert store.call(put, "a") == "a"

    def fork_again(_number: int) -> None:
        own = [os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT) for _ in range(4)]

        def look(_number: int) -> None:
            for one in own:
                os.fstat(one)

        assert run_together(1, look) == []

    assert run_together(1, fork_again) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_lock_that_fails_once_is_told_and_the_writer_goes_on(
    store: Store, tmp_db: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    failures = [OSError(errno.ENOLCK, "No locks available")]
    flock = fcntl.flock

    def fail_once(fd: int, operation: int) -> None:
        if failures and bool(operation & fcntl.LOCK_NB) != waits:
            raise failures.pop()
        flock(fd, operation)

    with Script(_HOLDING, str(tmp_db)) as holder:
        if not waits:
            holder.kill()  # Nobody holds it, so that it is taken at once.
        else:
            assert holder.hear() == "holding"
        monkeypatch.setattr(fcntl, "flock", fail_once)

        with pytest.raises(StoreError, match=r"No locks available.*nothing was written") as told:
            store.call(put, "a")

        assert not isinstance(told.value, StoreBusy)
    assert store.call(put, "a") == "a"


def test_a_lock_that_somebody_closed_is_told_and_the_store_can_be_closed(store: Store, tmp_db: Path) -> None:
    lock = str(tmp_db.with_name(f"{tmp_db.name}-lock"))
    (descriptor,) = (
        int(one) for one in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{one}") == lock
    )
    os.close(descriptor)

    with pytest.raises(StoreError, match="Open the store anew"):
        store.call(put, "a")

    store.close()
    with open_store(str(tmp_db)) as again:
        assert again.call(put, "a") == "a"


def test_a_store_that_could_not_be_opened_is_not_open_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    lock = tmp_path / "a.db-lock"
    open_store(str(path)).close()
    lock.unlink()
    lock.mkdir()
    with pytest.raises(StoreError):
        open_store(str(path))
    lock.rmdir()

    def write(_number: int) -> None:
        with open_store(str(path)) as own:
            own.call(put, "child")

    assert run_together(1, write) == []


def test_a_writer_that_fails_for_good_leaves_nobody_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise MemoryError("no room")

    begun, gate = threading.Event(), threading.Event()

    def hold(_tx: Transaction) -> str:
        begun.set()
        gate.wait(10)
        return "held"

    waiters: list[ThreadWaiter[str]] = [ThreadWaiter() for _ in range(3)]
    store.database.write(hold, waiters[0])
    assert begun.wait(10)
    monkeypatch.setattr(store.database, "_commit", fail)
    for waiter in waiters[1:]:
        store.database.write(partial(put, key="a"), waiter)
    gate.set()

    assert waiters[0].wait() == "held"
    for waiter in waiters[1:]:
        with pytest.raises(StoreClosed, match="no room"):
            waiter.wait()
    with pytest.raises(StoreClosed, match="no room"):
        store.call(put, "b")


@pytest.mark.parametrize("way", ["write", "read"])
def test_a_call_that_closing_overtakes_is_answered(store: Store, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    waiter: ThreadWaiter[list[str]] = ThreadWaiter()
    # The store closes between the check whether it is open and the submission.
    monkeypatch.setattr(store.database, "_check_usable", store.database.close)

    getattr(store.database, way)(keys, waiter)

    with pytest.raises(StoreClosed):
        waiter.wait()


def test_a_reader_that_cannot_end_its_transaction_reads_no_old_snapshot_later(store: Store) -> None:
    def keep(operation: int, word: str | None, *_: object) -> int:
        is_rollback = operation == apsw.SQLITE_TRANSACTION and word == "ROLLBACK"
        return apsw.SQLITE_DENY if is_rollback else apsw.SQLITE_OK

    both, begun = threading.Barrier(2), threading.Event()

    def spoil(tx: Transaction) -> list[str]:
        assert isinstance(tx, SqliteTransaction)
        tx._connection.authorizer = keep
        begun.set()
        both.wait(10)
        return keys(tx)

    waiters: list[ThreadWaiter[list[str]]] = [ThreadWaiter() for _ in range(2)]
    store.database.read(spoil, waiters[0])
    assert begun.wait(10)
    store.database.read(spoil, waiters[1])  # by the other thread, for the first one waits
    assert [one.wait() for one in waiters] == [[], []]

    store.call(put, "a")

    assert [store.read(keys) for _ in range(4)] == [["a"]] * 4


def test_processes_that_write_at_once_share_the_file(tmp_db: Path) -> None:
    open_store(str(tmp_db)).close()

    def write(number: int) -> None:
        with open_store(str(tmp_db)) as store:
            for turn in range(20):
                store.call(put_twice, f"{number}-{turn}")

    assert run_together(4, write) == []

    with open_store(str(tmp_db)) as store:
        assert len(store.read(keys)) == 4 * 20 * 2


@pytest.mark.parametrize("way", ["write", "write_softly"])
def test_the_log_stays_below_its_cap(store: Store, tmp_db: Path, way: str) -> None:
    body = os.urandom(1_000_000)
    for number in range(90):
        waiter: ThreadWaiter[None] = ThreadWaiter()
        getattr(store.database, way)(partial(put_body, key=f"{number}", body=body), waiter)
        waiter.wait()

    log = tmp_db.with_name(f"{tmp_db.name}-wal")
    assert log.stat().st_size < 70 << 20
    store.close()
    assert not log.exists()


def test_a_reader_that_holds_the_log_holds_up_no_commit_and_the_log_is_cut_when_it_has_gone(
    store: Store, tmp_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_CAP_BYTES", 1 << 20)
    log = tmp_db.with_name(f"{tmp_db.name}-wal")
    body = os.urandom(1_000_000)
    settings = Settings(busy_s=30)  # so long would a commit take that waits for the reader
    with open_store(str(tmp_db), settings=settings) as patient, closing(apsw.Connection(str(tmp_db))) as reader:
        reader.execute("BEGIN; SELECT count(*) FROM tasks").fetchall()
        began = time.monotonic()
        for number in range(12):
            patient.call(put_body, key=f"{number}", body=body)
            store.call(put, f"of another process {number}")  # It would be refused after 0.2 s.

        assert time.monotonic() - began < 20
        assert log.stat().st_size > 10 << 20

        reader.execute("ROLLBACK")
        for number in range(12):
            patient.call(put_body, key=f"after {number}", body=body)

        assert log.stat().st_size < 12 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_and_the_store_goes_on_when_there_is_space(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with open_store(str(small_disk / "agents.db"), clock=FakeClock(), ids=SeededIds(1)) as store:
        for turn in range(3):
            store.call(put, f"before-{turn}")
            _fill(filler)

            for number in range(3):
                with pytest.raises(StoreFull, match="Free space, then go on"):
                    store.call(put_body, f"{turn}-{number}", os.urandom(200_000))
            assert f"before-{turn}" in store.read(keys)

            filler.unlink()
            store.call(put_body, f"{turn}-after", os.urandom(200_000))
            store.call(put, f"after-{turn}")

        assert len(store.read(keys)) == 6


def test_opening_on_a_full_disk_is_an_error_and_works_when_there_is_space(small_disk: Path) -> None:
    _fill(small_disk / "filler")

    with pytest.raises(StoreFull):
        open_store(str(small_disk / "agents.db"))

    (small_disk / "filler").unlink()
    with open_store(str(small_disk / "agents.db")) as store:
        assert store.call(put, "a") == "a"


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return  # Full, as it should be.


def take_away(path: Path) -> None:
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()


def replace(path: Path) -> None:
    take_away(path)
    open_store(str(path)).close()


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (take_away, "its file was deleted or moved away while it was open"),
        (replace, "its file was replaced by another file while it was open"),
        (lambda path: shutil.rmtree(path.parent), "its file was deleted or moved away"),
    ],
)
def test_a_store_whose_file_was_taken_away_closes_itself_once_it_is_asked(
    tmp_path: Path, harm: Callable[[Path], None], what: str
) -> None:
    path = tmp_path / "folder" / "gone.db"
    with open_store(str(path)) as store:
        store.call(put, "a")
        store.database.check_place()
        harm(path)

        with pytest.raises(StoreClosed, match=what):
            store.database.check_place()
        with pytest.raises(StoreClosed, match=what):
            store.call(put, "b")
        with pytest.raises(StoreClosed, match=what):
            store.read(keys)


def test_a_store_in_memory_has_no_place_to_lose() -> None:
    with open_store("memory:") as store:
        store.database.check_place()
        store.call(put, "a")


def test_a_file_that_is_made_ours_between_two_looks_is_no_strangers(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    maker, looker = apsw.Connection(path), apsw.Connection(path)
    maker.execute("PRAGMA journal_mode = WAL")

    def make_it_ours(_cursor: apsw.Cursor, sql: str, _values: object) -> bool:
        if "sqlite_schema" in sql:
            maker.pragma("application_id", 0x70657264)
            maker.execute("CREATE TABLE tasks (n)")
        return True

    looker.exec_trace = make_it_ours

    assert is_empty(looker)
    looker.exec_trace = None
    assert not is_empty(looker)
