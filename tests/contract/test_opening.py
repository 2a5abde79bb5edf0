"""Opening a database: many at once, strange ones, newer ones, and in processes that fork."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from pathlib import Path

import apsw
import psycopg
import pytest

from perdure.clock import FakeClock, RandomIds, SystemClock
from perdure.errors import BadInput, Damaged, SchemaTooNew, StoreError
from perdure.settings import Settings
from perdure.store import Store, Transaction, open_store, sqlite_path
from perdure.store.migrate import migrations
from perdure.store.postgres import open_postgres
from perdure.store.sqlite import SqliteDatabase
from perdure.store.sqlite_transaction import SqliteTransaction
from perdure.store.waiters import ThreadWaiter
from tests.children import Script, run_together
from tests.contract.conftest import OpenSecond
from tests.rows import keys, put, query

NEWEST = len(migrations())
on_disk = pytest.mark.parametrize(
    "store_url", ["sqlite_file", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
on_file = pytest.mark.parametrize("store_url", ["sqlite_file"], indirect=True)
on_postgres = pytest.mark.parametrize(
    "store_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _versions(store: Store) -> list[tuple[object, ...]]:
    return store.read(lambda tx: tx.all(query("SELECT version FROM schema_versions ORDER BY version")))


# -- many at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [8, 16, 24])
def test_many_processes_may_open_a_new_file_at_once(tmp_db: Path, processes: int) -> None:
    def open_and_put(number: int) -> None:
        with open_store(str(tmp_db)) as store:
            store.call(put, f"{number}")

    assert run_together(processes, open_and_put) == []

    with open_store(str(tmp_db)) as store:
        assert len(store.read(keys)) == processes
        assert _versions(store) == [(version,) for version in range(1, NEWEST + 1)]


@pytest.mark.parametrize("processes", [8, 12])
def test_many_processes_may_open_a_new_postgres_database_at_once(postgres_url: str, processes: int) -> None:
    def open_and_put(number: int) -> None:
        with open_store(postgres_url) as store:
            store.call(put, f"{number}")

    assert run_together(processes, open_and_put) == []

    with open_store(postgres_url) as store:
        assert len(store.read(keys)) == processes
        assert _versions(store) == [(version,) for version in range(1, NEWEST + 1)]


@on_disk
def test_opening_again_changes_nothing(store: Store, open_second: OpenSecond) -> None:
    store.call(put, "a")
    rows = query("SELECT version, checksum, applied_at FROM schema_versions")
    before = store.read(lambda tx: tx.all(rows))

    second = open_second(store)

    assert second.read(lambda tx: tx.all(rows)) == before
    assert second.read(keys) == ["a"]


# -- what is not ours, or not of our time ----------------------------------------------------


@on_disk
def test_a_newer_schema_is_refused_and_left_unchanged(store: Store, store_url: str) -> None:
    row = "INSERT INTO schema_versions (version, checksum, applied_at) VALUES (:version, 'future', 1)"
    store.call(lambda tx: tx.run(query(row), version=NEWEST + 1))
    store.close()
    before = _contents(store_url)

    with pytest.raises(SchemaTooNew, match="install the newer perdure"):
        open_store(store_url)

    assert _contents(store_url) == before


@on_disk
def test_a_step_that_was_applied_from_another_text_is_damage(store: Store, store_url: str) -> None:
    store.call(lambda tx: tx.run(query("UPDATE schema_versions SET checksum = 'other' WHERE version = 1")))
    store.close()
    before = _contents(store_url)

    with pytest.raises(Damaged, match="another text"):
        open_store(store_url)

    assert _contents(store_url) == before


def _contents(url: str) -> object:
    path = sqlite_path(url)
    if path is not None:
        assert not path.with_name(f"{path.name}-wal").exists()
        return _digest(path)
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
        ).fetchall()
        return tables, connection.execute("SELECT * FROM schema_versions ORDER BY 1").fetchall()


def test_another_programs_sqlite_file_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    foreign, marked, text = tmp_path / "foreign.db", tmp_path / "marked.db", tmp_path / "text.db"
    for path, statement in ((foreign, "CREATE TABLE theirs (x)"), (marked, "PRAGMA application_id = 77")):
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
    text.write_text("This is no database at all, but somebody's notes.\n" * 100)
    before = [_digest(path) for path in (foreign, marked, text)]

    for path, why in (
        (foreign, "another program's tables"),
        (marked, "application id 77"),
        (text, "is no SQLite file"),
    ):
        with pytest.raises(Damaged, match=why):
            open_store(str(path))

    assert [_digest(path) for path in (foreign, marked, text)] == before
    assert {path.name for path in tmp_path.iterdir()} == {"foreign.db", "marked.db", "text.db"}  # Nothing beside them.


def test_another_programs_postgres_schema_is_refused_and_left_unchanged(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE tasks (theirs TEXT)")

    with pytest.raises(Damaged, match="another program's tables"):
        open_store(postgres_url)

    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert tables.fetchall() == [("tasks",)]


def test_two_schemas_of_one_postgres_database_are_two_stores(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute('CREATE SCHEMA one; CREATE SCHEMA "Two; 2"')
    with (
        open_store(f"{postgres_url}?options=-csearch_path%3Done") as one,
        open_store(f"{postgres_url}?options=-csearch_path%3D%22Two;%5C%202%22") as two,
    ):
        heard = threading.Event()
        stop = two.database.listen(heard.set)
        assert heard.wait(10)  # it listens now
        heard.clear()

        one.call(put, "a", hint=True)
        two.call(put, "b")
        one.close()  # its hint is sent

        assert two.read(keys) == ["b"]
        assert not heard.is_set()
        stop()


def test_a_schema_that_does_not_exist_is_refused(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="no schema in the search_path"):
        open_store(f"{postgres_url}?options=-csearch_path%3Dnowhere")


# -- addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@host:port/name",
        "postgresql://user:secret@host:99999/name",
        "postgresql://user:secret@host/name?no_such_option=1",
        "postgresql://user:secret@host/name\x00",
        "postgresql://user:se%zzcret@host/name",
        "postgresql://user:1secret/@host/name",
        "mysql://user:secret@host/name",
    ],
)
def test_a_bad_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(BadInput) as refusal:
        open_postgres(url, settings=Settings(), clock=FakeClock(), ids=RandomIds())

    assert refusal.value.field == "url"
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert "secret" not in str(refusal.value.__context__ or "") or refusal.value.__suppress_context__


def test_a_wrong_password_is_an_error_at_once_and_is_not_shown(postgres_url: str) -> None:
    before, _, after = postgres_url.partition("@")
    wrong = f"{before}x-secret@{after}"

    with pytest.raises(StoreError, match="refused the connection") as refusal:
        open_store(wrong, settings=Settings(busy_s=60))

    assert "secret" not in str(refusal.value)


def test_the_address_that_a_store_shows_has_no_password(postgres_url: str) -> None:
    password = postgres_url.partition("@")[0].rpartition(":")[2]

    with open_store(postgres_url) as store:
        assert password not in store.database.url
        assert store.database.url.startswith("postgresql://postgres@127.0.0.1:")


# -- every connection ------------------------------------------------------------------------


@on_file
def test_every_sqlite_connection_has_what_durability_needs(store: Store) -> None:
    database = store.database
    assert isinstance(database, SqliteDatabase)
    assert database._checkpointer is not None
    seen = [_pragmas(database._connection), _pragmas(database._checkpointer._connection)]
    for _ in range(2):
        seen.append(store.read(lambda tx: _pragmas(tx._connection) if isinstance(tx, SqliteTransaction) else {}))

    full = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}
    # Who empties the log does not wait for a reader that reads for long.
    assert seen == [full, {**full, "busy_timeout": 60}, full, full]


@on_file
def test_a_durable_write_after_a_soft_one_waits_for_the_disk_again(store: Store) -> None:
    database = store.database
    assert isinstance(database, SqliteDatabase)

    def synchronous(tx: Transaction) -> object:
        assert isinstance(tx, SqliteTransaction)
        return tx._connection.pragma("synchronous")

    soft: ThreadWaiter[object] = ThreadWaiter()
    database.write_softly(synchronous, soft)

    assert (soft.wait(), store.call(synchronous)) == (1, 2)


def _pragmas(connection: apsw.Connection) -> dict[str, object]:
    return {name: connection.pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")}


@pytest.fixture
def careless_postgres_url(postgres_url: str) -> str:
    """A database whose defaults break promises."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        for careless in ("synchronous_commit = off", "default_transaction_isolation = 'repeatable read'"):
            connection.execute(f"ALTER DATABASE {name} SET {careless}".encode())
    return postgres_url


def test_every_postgres_connection_has_what_durability_needs(careless_postgres_url: str) -> None:
    look = query(
        "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation'),"
        " current_setting('transaction_read_only'), current_setting('lock_timeout'),"
        " current_setting('statement_timeout'), current_setting('application_name')"
    )

    with open_store(careless_postgres_url, settings=Settings(busy_s=4)) as store:
        written = store.call(lambda tx: tx.one(look))
        read = store.read(lambda tx: tx.one(look))

    assert written == ("on", "read committed", "off", "2s", "8s", "perdure")
    assert read == ("on", "repeatable read", "on", "2s", "8s", "perdure")


def test_the_time_is_the_servers(postgres_url: str) -> None:
    clock = SystemClock()
    behind = FakeClock()

    with (
        open_store(postgres_url, clock=clock) as store,
        open_store(postgres_url, clock=behind) as fake,
    ):
        sent = clock.now_ms()
        server = store.call(lambda tx: (tx.one(query("SELECT extract(epoch FROM clock_timestamp()) * 1000")), tx.now))
        received = clock.now_ms()

        assert server[0] is not None
        assert abs(server[0][0] - server[1]) <= received - sent + 5
        assert fake.call(lambda tx: tx.now) == behind.now_ms()


# -- fork ------------------------------------------------------------------------------------

_FORKING = """
import os, sys
from perdure.errors import ForkedStore
from perdure.store import open_store
from tests.rows import keys, put

store = open_store(sys.argv[1])
store.call(put, "before")
store.read(keys)
stop = store.database.listen(lambda: None)
pid = os.fork()
if pid == 0:
    refused = 0
    for use in (lambda: store.call(put, "child"), lambda: store.read(keys)):
        try:
            use()
        except ForkedStore as error:
            refused += str(os.getppid()) in str(error)
    store.close()
    try:
        with open_store(sys.argv[1]) as own:
            own.call(put, "own")
    except ForkedStore as error:
        refused += "spawn" in str(error)
    # Ends like any program, with all the cleaning up that this brings.
    sys.exit(40 + refused)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
store.call(put, "after")
print(",".join(store.read(keys)), flush=True)
store.close()
"""


@on_disk
def test_a_forked_child_is_refused_and_its_end_harms_nobody(store: Store, store_url: str) -> None:
    with Script(_FORKING, store_url) as parent:
        # Connections to a server are the child's own; SQLite's locks on a file would not be.
        may_open_its_own = store.database.dialect == "postgres"
        assert parent.hear() == ("42" if may_open_its_own else "43")
        written = ["after", "before", *(["own"] if may_open_its_own else [])]
        assert parent.hear() == ",".join(written)
        assert parent.wait() == 0

    assert store.read(keys) == written
    if store.database.dialect == "sqlite":
        assert store.call(lambda tx: tx.all(query("PRAGMA integrity_check"))) == [("ok",)]


_FORKED_FIRST = """
import os, sys
from perdure.store import open_store
from tests.rows import keys, put

open_store(sys.argv[1]).close()
pid = os.fork()
with open_store(sys.argv[1]) as own:
    own.call(put, "child" if pid == 0 else "parent")
if pid == 0:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@on_disk
def test_who_was_forked_while_the_store_was_closed_opens_one_as_anybody(store: Store, store_url: str) -> None:
    with Script(_FORKED_FIRST, store_url) as parent:
        assert parent.hear() == "0"
        assert parent.wait() == 0

    assert store.read(keys) == ["child", "parent"]


_DYING = """
import os, signal, sys
from perdure.store import open_store
from tests.rows import put

store = open_store(sys.argv[1])
def die_in_the_middle(tx):
    put(tx, "half")
    if os.fork() == 0:
        print("child lives", flush=True)
        sys.stdin.readline()
        os._exit(0)
    signal.pause()

store.call(die_in_the_middle)
"""


@on_disk
def test_a_forked_child_does_not_keep_its_dead_parents_lock(store: Store, store_url: str) -> None:
    with Script(_DYING, store_url) as parent:
        assert parent.hear() == "child lives"
        parent.kill_alone()

        assert store.call(put, "whole") == "whole"

        assert store.read(keys) == ["whole"]
        parent.say("end")


# -- hints between processes -----------------------------------------------------------------

_LISTENING = """
import sys, threading
from perdure.store import open_store

rings = threading.Semaphore(0)
with open_store(sys.argv[1]) as store:
    store.database.listen(rings.release)
    if store.database.dialect == "postgres":
        rings.acquire()  # once, when it begins to listen
    print("listening", flush=True)
    rings.acquire()
    print("heard", flush=True)
"""


@on_disk
def test_a_hint_reaches_another_process(store: Store, store_url: str) -> None:
    with Script(_LISTENING, store_url) as listener:
        assert listener.hear() == "listening"

        store.call(put, "a", hint=True)

        assert listener.hear() == "heard"
        assert listener.wait() == 0
