"""The store: every durable fact, one operation a function, one transaction a call.

    store = open_store("agents.db")
    store.call(tasks.admit, [...])              in a thread
    await aio.call(store, tasks.admit, [...])   on an event loop

This is the only place that knows both databases and imports a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from perdure.clock import Clock, Ids, RandomIds, SystemClock
from perdure.errors import BadInput
from perdure.settings import Settings
from perdure.store.database import Database, Transaction
from perdure.store.waiters import ThreadWaiter

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[Transaction, P], T]

MEMORY = "memory:"


class Store:
    """One opened database and the operations on it. Safe to use from any thread, not after fork."""

    def __init__(self, database: Database, *, clock: Clock, ids: Ids, settings: Settings) -> None:
        self.database = database
        self.clock = clock
        self.ids = ids
        self.settings = settings

    def call(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `operation` in a transaction and return once it is durable. Blocks the thread.

        Raises what the operation raises, and StoreError when the database could not do it.
        """
        waiter: ThreadWaiter[T] = ThreadWaiter()
        self.database.write(lambda tx: operation(tx, *args, **kwargs), waiter)
        return waiter.wait()

    def read(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a reading operation on one snapshot. Blocks the thread."""
        waiter: ThreadWaiter[T] = ThreadWaiter()
        self.database.read(lambda tx: operation(tx, *args, **kwargs), waiter)
        return waiter.wait()

    def close(self) -> None:
        """Finish what was submitted, then close. May be called twice."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_store(
    url: str,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Store:
    """Open (and create or migrate) the database at `url`: a path, `sqlite:///path`, `memory:` or `postgresql://…`.

    Many processes may open the same database at the same moment. Raises BadInput for a URL that names no database,
    NetworkFileSystem, SchemaTooNew, Damaged or another StoreError; then nothing was changed.
    """
    settings = settings or Settings()
    ids = ids or RandomIds()
    database = _connect(url, settings=settings, clock=clock or SystemClock(), ids=ids)
    return Store(database, clock=database.clock, ids=ids, settings=settings)


def sqlite_path(url: str) -> Path | None:
    """The file a URL names, or None for a database in memory or on a server. Raises BadInput for neither."""
    if url in (MEMORY, "sqlite://", "sqlite:///:memory:", ":memory:"):
        return None
    scheme = _scheme(url)
    if scheme in ("postgresql", "postgres"):
        return None
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    if "://" in url or not url or "\x00" in url:
        raise BadInput(
            f"{url!r} names no database; give a path such as agents.db, sqlite:///agents.db, or postgresql://host/name",
            field="url",
        )
    return Path(url)


def _connect(url: str, *, settings: Settings, clock: Clock, ids: Ids) -> Database:
    if _scheme(url) in ("postgresql", "postgres"):
        try:
            from perdure.store.postgres import open_postgres
        except ModuleNotFoundError as error:
            raise BadInput("PostgreSQL needs a driver: pip install 'psycopg[binary]'", field="url") from error
        return open_postgres(url, settings=settings, clock=clock, ids=ids)
    from perdure.store.sqlite import open_sqlite

    return open_sqlite(sqlite_path(url), settings=settings, clock=clock, ids=ids)


def _scheme(url: str) -> str:
    # Not urlsplit: it raises for a half-written address before anybody could say what is wrong with it.
    return url.partition("://")[0] if "://" in url else ""


__all__ = ["MEMORY", "Database", "Operation", "Store", "Transaction", "open_store", "sqlite_path"]
