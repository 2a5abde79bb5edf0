"""When the writer tells what it has committed: as late as it costs nobody anything, and whatever comes after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreBusy
from perdure.settings import Settings
from perdure.store.database import Transaction, Unit
from perdure.store.sqlite import SqliteDatabase, open_sqlite
from tests.rows import put

LATER = [f"later-{number}" for number in range(20)]  # as many as let the writer put off what it has to tell
ALL = ["first", *LATER]
PATIENCE_S = 10


class _Clock(FakeClock):
    """Fails when it is told to."""

    is_broken = False

    def now_ms(self) -> int:
        if self.is_broken:
            raise RuntimeError("the clock has stopped")
        return super().now_ms()


class Told:
    """Notes in which order the answers to some units come."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._came = threading.Condition()
        self.answers: list[tuple[str, BaseException | None]] = []

    def submit(self, name: str, unit: Unit[Any]) -> None:
        """Write without waiting."""
        told = self

        class _Waiter:
            loop: asyncio.AbstractEventLoop | None = None

            def deliver(self, _result: Any, error: BaseException | None) -> None:
                with told._came:
                    told.answers.append((name, error))
                    told._came.notify_all()

        self._database.write(unit, _Waiter())

    def until(self, count: int) -> list[tuple[str, BaseException | None]]:
        """The first so many answers."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.answers) >= count, PATIENCE_S), self.answers
            return self.answers[:count]


@pytest.fixture
def clock() -> _Clock:
    """A clock that can fail."""
    return _Clock()


@pytest.fixture
def database(tmp_path: Path, clock: _Clock) -> Iterator[SqliteDatabase]:
    """A file with a writer of its own."""
    opened = open_sqlite(tmp_path / "a.db", settings=Settings(), clock=clock, ids=SeededIds(1))
    yield opened
    opened.close()


def _held(told: Told) -> threading.Event:
    """The writer is inside the unit `first` until the event is set, so that what is submitted now collects."""
    inside, go = threading.Event(), threading.Event()

    def unit(tx: Transaction) -> None:
        put(tx, "first")
        inside.set()
        assert go.wait(PATIENCE_S)

    told.submit("first", unit)
    assert inside.wait(PATIENCE_S)
    return go


def _collect(told: Told) -> None:
    """A long batch."""
    for name in LATER:
        told.submit(name, partial(_put, name))


def _put(name: str, tx: Transaction) -> None:
    put(tx, name)


def test_what_is_committed_is_told_before_the_batch_after_it_and_all_of_that(database: SqliteDatabase) -> None:
    told = Told(database)
    go = _held(told)
    _collect(told)
    go.set()

    names = [name for name, error in told.until(len(ALL)) if error is None]

    assert names == ALL


def test_what_is_committed_is_told_as_committed_when_the_batch_after_it_fails(
    database: SqliteDatabase, clock: _Clock
) -> None:
    told = Told(database)
    go = _held(told)
    _collect(told)
    clock.is_broken = True
    go.set()

    answers = told.until(len(ALL))

    assert [name for name, error in answers if error is None] == ["first"]
    assert all(isinstance(error, RuntimeError) for name, error in answers if name != "first")


def test_what_is_committed_is_told_while_another_process_keeps_the_lock(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, waiting, go_on = Told(database), threading.Event(), threading.Event()
    go = _held(told)
    _collect(told)

    def wait() -> None:
        waiting.set()
        assert go_on.wait(PATIENCE_S)
        raise StoreBusy("another process keeps it")

    lock = database._lock
    assert lock is not None
    monkeypatch.setattr(lock, "take_if_free", lambda: False)
    monkeypatch.setattr(lock, "wait", wait)
    go.set()
    assert waiting.wait(PATIENCE_S)

    assert told.until(1) == [("first", None)]
    assert len(told.answers) == 1

    go_on.set()
    answers = told.until(len(ALL))
    assert all(isinstance(error, StoreBusy) for name, error in answers if name != "first")


def test_closing_tells_what_was_committed(database: SqliteDatabase) -> None:
    told = Told(database)
    go = _held(told)
    _collect(told)
    closing = threading.Thread(target=database.close)
    closing.start()
    go.set()
    closing.join(PATIENCE_S)

    assert [error for _, error in told.until(len(ALL))] == [None] * len(ALL)
