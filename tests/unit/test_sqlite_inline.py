"""The database of a simulation: units run in the thread that submits them, and no thread is started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreClosed
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.database import Transaction
from perdure.store.sqlite import SqliteDatabase, open_sqlite
from tests.rows import keys, put


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = open_sqlite(None, settings=Settings(), clock=FakeClock(), ids=SeededIds(1), inline=True)
    yield database
    database.close()


@pytest.fixture
def store(database: SqliteDatabase) -> Store:
    return Store(database, clock=database.clock, ids=SeededIds(1), settings=Settings())


def test_a_unit_runs_in_the_calling_thread_and_starts_none(store: Store) -> None:
    before = threading.active_count()

    seen = store.call(lambda _tx: threading.current_thread())

    assert seen is threading.current_thread()
    assert threading.active_count() == before


def test_writes_and_reads_do_what_they_do_elsewhere(store: Store) -> None:
    def fails(tx: Transaction) -> None:
        put(tx, "b")
        raise ValueError("after a write")

    store.call(put, "a")
    with pytest.raises(ValueError, match="after a write"):
        store.call(fails)

    assert store.read(keys) == ["a"]


def test_a_closed_one_refuses_and_may_be_closed_again(store: Store) -> None:
    store.close()
    store.close()

    with pytest.raises(StoreClosed):
        store.call(put, "a")


def test_a_file_keeps_what_was_written(tmp_db: Path) -> None:
    for key in ("a", "b"):
        database = open_sqlite(tmp_db, settings=Settings(), clock=FakeClock(), ids=SeededIds(1), inline=True)
        with Store(database, clock=database.clock, ids=SeededIds(1), settings=Settings()) as store:
            store.call(put, key)

    assert sorted(_keys_at(tmp_db)) == ["a", "b"]


def test_plans_do_not_depend_on_values_so_that_statements_are_compiled_once(database: SqliteDatabase) -> None:
    assert database._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1


def _keys_at(path: Path) -> list[str]:
    database = open_sqlite(path, settings=Settings(), clock=FakeClock(), ids=SeededIds(1), inline=True)
    with Store(database, clock=database.clock, ids=SeededIds(1), settings=Settings()) as store:
        return store.read(keys)
