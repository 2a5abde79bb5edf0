"""The fixture `store`: every test that asks for it runs on a SQLite file, on SQLite in memory and on PostgreSQL.

Time and ids are the test's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.settings import Settings
from perdure.store import MEMORY, Store, open_store
from tests.contract.lending import Lending
from tests.postgres import Server
from tests.world import World

DATABASES = ("sqlite_file", "sqlite_memory", pytest.param("postgres", marks=pytest.mark.postgres))


class OpenSecond(Protocol):
    """Opens another store on the same database."""

    def __call__(self, store: Store, *, busy_s: float = 5.0) -> Store: ...


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def settings() -> Settings:
    """Settings that a test module or test may replace."""
    return Settings()


@pytest.fixture(scope="session")
def lending(session_postgres: Server) -> Iterator[Lending]:
    """Lends a database with our schema."""
    lending = Lending(session_postgres)
    yield lending
    lending.close()


@pytest.fixture
def migrated_postgres_url(lending: Lending) -> Iterator[str]:
    """The address of a PostgreSQL database with our schema and no rows."""
    yield lending.lend()
    lending.take_back()


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_db: Path) -> str:
    """Where `store` lies, as it is given to `open_store`."""
    match request.param:
        case "sqlite_file":
            return str(tmp_db)
        case "sqlite_memory":
            return MEMORY
        case _:
            return str(request.getfixturevalue("migrated_postgres_url"))


@pytest.fixture
def store(store_url: str, clock: FakeClock, settings: Settings) -> Iterator[Store]:
    """An open store, on each database in turn."""
    with open_store(store_url, settings=settings, clock=clock, ids=SeededIds(1)) as store:
        yield store


@pytest.fixture
def open_second(store_url: str, clock: FakeClock) -> Iterator[OpenSecond]:
    """Opens more stores on the database of `store`, as another process would. Skips what is in memory alone."""
    opened: list[Store] = []

    def open_it(store: Store, *, busy_s: float = 5.0) -> Store:
        if store.database.url == "sqlite://":
            pytest.skip("a database in memory has one store")
        ids = SeededIds(2 + len(opened))
        opened.append(open_store(store_url, settings=Settings(busy_s=busy_s), clock=clock, ids=ids))
        return opened[-1]

    yield open_it
    for second in opened:
        second.close()


@pytest.fixture
def world(store: Store, clock: FakeClock) -> World:
    """Workers, tasks and steps on `store`, one line each."""
    return World(store, clock)
