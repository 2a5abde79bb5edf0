"""Whatever stops the writer, what it answered is there afterwards, and nothing is there by halves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import CommitUnknown, StoreClosed, StoreError, StoreFull
from perdure.settings import Settings
from perdure.store import Store, open_store
from perdure.store.database import Transaction
from perdure.store.sqlite import open_sqlite
from tests.children import Script
from tests.crash.power import Disk, Fault
from tests.rows import keys, put, query

UNITS = 6
# Every third call of SQLite is struck in a quick run, the others in a slow one.
STRIDE = 3
every_call = pytest.mark.parametrize(
    "first", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
CHECK = query("PRAGMA integrity_check")


@dataclass(slots=True)
class Outcome:
    """What a run of units was told."""

    answered: list[str] = field(default_factory=list)
    errors: list[StoreError] = field(default_factory=list)


def _open(disk: Disk) -> Store:
    clock, ids, settings = FakeClock(), SeededIds(1), Settings(busy_s=0.1)
    database = open_sqlite(Path("agents.db"), settings=settings, clock=clock, ids=ids, vfs=disk.name)
    return Store(database, clock=clock, ids=ids, settings=settings)


def _pair(tx: Transaction, key: str) -> str:
    put(tx, f"{key}-a")
    put(tx, f"{key}-b")
    return key


def _run(disk: Disk, *, name: str = "") -> Outcome:
    """Open, write pairs and close, whatever happens."""
    outcome = Outcome()
    try:
        store = _open(disk)
    except StoreError as error:
        outcome.errors.append(error)
        return outcome
    with store:
        for number in range(UNITS):
            try:
                outcome.answered.append(store.call(_pair, f"{name}{number}"))
            except StoreError as error:
                outcome.errors.append(error)
    return outcome


def _found(disk: Disk) -> list[str]:
    """The keys of whole pairs in a sound database; fails when half a pair is there."""
    with _open(disk) as store:
        assert store.call(lambda tx: tx.all(CHECK)) == [("ok",)]
        there = store.call(keys)
    pairs = sorted({key.rpartition("-")[0] for key in there})
    assert there == [f"{key}-{half}" for key in pairs for half in ("a", "b")]
    return pairs


@pytest.fixture
def count_calls() -> int:
    """How many calls a run without a fault makes."""
    disk = Disk("measuring", seed=0)
    assert _run(disk).errors == []
    disk.close()
    return disk.calls


@every_call
def test_what_was_answered_survives_a_loss_of_power_at_any_call(count_calls: int, first: int) -> None:
    for at_call in range(first, count_calls + 1, STRIDE):
        disk = Disk(f"power-{at_call}", seed=at_call, fault=Fault.POWER_LOSS, at_call=at_call)
        outcome = _run(disk)
        assert disk.has_struck
        disk.reboot()

        found = _found(disk)

        assert set(outcome.answered) <= set(found), f"call {at_call}"
        # At most the one whose commit was cut off is there without an answer.
        assert len(found) - len(outcome.answered) <= 1, f"call {at_call}"
        disk.close()


@every_call
def test_an_input_output_error_at_any_call_loses_nothing_that_was_answered(count_calls: int, first: int) -> None:
    unknown = 0
    for at_call in range(first, count_calls + 1, STRIDE):
        disk = Disk(f"cable-{at_call}", seed=at_call, fault=Fault.IO_ERROR, at_call=at_call)
        outcome = _run(disk)
        unknown += any(type(error) is CommitUnknown for error in outcome.errors)
        disk.clear()

        found = _found(disk)

        assert set(outcome.answered) <= set(found), f"call {at_call}"
        again = _run(disk, name="again-")
        assert again.errors == [], f"call {at_call}"
        disk.close()
    assert unknown >= UNITS


@every_call
def test_a_full_disk_at_any_call_is_told_and_the_store_goes_on_when_there_is_space(
    count_calls: int, first: int
) -> None:
    full = 0
    for at_call in range(first, count_calls + 1, STRIDE):
        disk = Disk(f"full-{at_call}", seed=at_call, fault=Fault.FULL, at_call=at_call)
        try:
            store = _open(disk)
        except StoreFull:
            disk.clear()
            store = _open(disk)
        with store:
            for number in range(UNITS):
                try:
                    store.call(_pair, f"{number}")
                except StoreFull:
                    full += 1
                    disk.clear()
                    store.call(_pair, f"{number}")  # at once, without opening anew

        assert _found(disk) == [f"{number}" for number in range(UNITS)], f"call {at_call}"
        disk.close()
    assert full >= UNITS


@pytest.fixture
def failing_disk() -> Iterator[Disk]:
    """A disk whose next sync will fail once, when a test says so."""
    disk = Disk("failing", seed=0)
    yield disk
    disk.close()


def test_a_failed_commit_is_unknown_and_closes_the_store_until_it_is_opened_anew(failing_disk: Disk) -> None:
    store = _open(failing_disk)
    store.call(_pair, "before")
    failing_disk.fault, failing_disk.at_call = Fault.IO_ERROR, failing_disk.calls + 2

    with pytest.raises(CommitUnknown, match="found again by its key"):
        store.call(_pair, "unknown")

    with pytest.raises(StoreClosed, match="may or may not have happened"):
        store.call(_pair, "after")
    with pytest.raises(StoreClosed):
        store.read(keys)
    store.close()
    assert set(_found(failing_disk)) - {"unknown"} == {"before"}


# -- real processes --------------------------------------------------------------------------

_WRITING = """
import itertools, sys
from perdure.store import open_store
from tests.rows import put

def pair(tx, key):
    put(tx, f"{key}-a")
    put(tx, f"{key}-b")
    return key

with open_store(sys.argv[1]) as store:
    for number in itertools.count():
        print(store.call(pair, f"{sys.argv[2]}{number:05}"), flush=True)
"""


def test_what_was_answered_survives_kill_9_and_the_next_writer_goes_on_at_once(tmp_db: Path) -> None:
    answered: list[str] = []
    for turn in range(4):
        with Script(_WRITING, str(tmp_db), f"{turn}x") as writer:
            answered += [writer.hear() for _ in range(5 + 7 * turn)]
            writer.kill()
            answered += writer.rest()

    with open_store(str(tmp_db), settings=Settings(busy_s=0.5)) as store:
        there = store.call(keys)
        assert store.call(lambda tx: tx.all(CHECK)) == [("ok",)]

    pairs = sorted({key.rpartition("-")[0] for key in there})
    assert there == [f"{key}-{half}" for key in pairs for half in ("a", "b")]
    assert set(answered) <= set(pairs)
    assert len(pairs) - len(answered) <= 4
