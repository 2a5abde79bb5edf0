"""PostgreSQL fails in every way it has: what was answered holds, what failed did not happen, one case is unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import CommitUnknown, Damaged, InvariantError, RefusedBySchema, StoreBusy, StoreError, StoreFull
from perdure.settings import Settings
from perdure.store import Store, open_store
from perdure.store.database import Transaction
from perdure.store.waiters import ThreadWaiter
from tests.children import Script
from tests.postgres import Cluster
from tests.proxy import Proxy, Way
from tests.rows import ADD, add, keys, put, put_once, put_twice, query, value

BUSY_S = 0.5

OpenAt = Callable[..., Store]


@pytest.fixture
def open_at(migrated_postgres_url: str) -> Iterator[OpenAt]:
    """Opens stores, by default on the test's database and patient."""
    opened: list[Store] = []

    def open_it(url: str = migrated_postgres_url, *, busy_s: float = 20) -> Store:
        opened.append(open_store(url, settings=Settings(busy_s=busy_s), clock=FakeClock(), ids=SeededIds(len(opened))))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_at: OpenAt) -> Store:
    """A patient store."""
    return open_at()


@pytest.fixture
def proxy(migrated_postgres_url: str) -> Iterator[Proxy]:
    """A proxy before the test's database."""
    with Proxy(migrated_postgres_url) as proxy:
        yield proxy


def _fail_with(code: str) -> Any:
    """A statement that fails with an error of this code."""
    return query(f"DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{code}'; END $$")


def _submit_many(store: Store) -> list[ThreadWaiter[str]]:
    """More units than there are writers, all at once."""
    waiters: list[ThreadWaiter[str]] = [ThreadWaiter() for _ in range(50)]
    for number, waiter in enumerate(waiters):
        store.database.write(partial(put, key=f"many-{number}"), waiter)
    return waiters


# -- lost before the commit: nothing happened, the unit runs again ---------------------------


def test_a_unit_whose_connection_is_killed_runs_again(store: Store, postgres_server: Cluster) -> None:
    runs: list[int] = []

    def write(tx: Transaction) -> str:
        put(tx, "a")
        runs.append(1)
        if len(runs) == 1:
            postgres_server.kill_backends()
        put(tx, "b")
        return "done"

    assert store.call(write) == "done"

    assert len(runs) == 2
    assert store.read(keys) == ["a", "b"]


def test_a_read_whose_connection_is_killed_runs_again(store: Store, postgres_server: Cluster) -> None:
    runs: list[int] = []
    store.call(put, "a")

    def look(tx: Transaction) -> list[str]:
        runs.append(1)
        if len(runs) == 1:
            postgres_server.kill_backends()
        return keys(tx)

    assert store.read(look) == ["a"]
    assert len(runs) == 2


def test_a_connection_that_died_while_idle_is_not_noticed_by_anybody(store: Store, postgres_server: Cluster) -> None:
    for turn in range(3):
        store.call(put, f"{turn}")
        assert len(store.read(keys)) == turn + 1

        assert postgres_server.kill_backends() >= 2


def test_units_go_on_after_the_server_crashed_and_came_back(store: Store, postgres_server: Cluster) -> None:
    ends: list[object] = []

    def write(number: int) -> None:
        for turn in range(10):
            try:
                ends.append(store.call(put, f"{number}-{turn}"))
            except CommitUnknown as error:
                ends.append(error)
                store.call(put_once, f"{number}-{turn}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()

    postgres_server.crash()
    postgres_server.start()

    for thread in threads:
        thread.join()
    assert len(ends) == 120
    assert len(store.read(keys)) == 120


def test_a_unit_that_ends_every_connection_it_gets_is_given_up(store: Store, postgres_server: Cluster) -> None:
    runs: list[int] = []

    def poison(tx: Transaction) -> None:
        put(tx, "a")
        runs.append(1)
        postgres_server.kill_backends()
        put(tx, "b")

    with pytest.raises(StoreError, match="lost 6 times while this ran; nothing was written"):
        store.call(poison)

    assert len(runs) == 6
    assert store.read(keys) == []


# -- lost during the commit: the one case that nobody knows ----------------------------------


def test_a_lost_answer_to_commit_is_unknown_for_that_unit_alone(open_at: OpenAt, proxy: Proxy) -> None:
    store = open_at(proxy.url)
    store.call(put, "before")
    proxy.way = Way.LOSE_ANSWER

    with pytest.raises(CommitUnknown, match="Look for it by its key"):
        store.call(put_once, "a")

    assert proxy.lost_answers == 1
    assert store.call(put_once, "a") is False  # it had happened, and is there once
    assert store.call(put, "after") == "after"  # the store is open
    assert store.read(keys) == ["a", "after", "before"]


def test_silence_during_the_commit_is_unknown(open_at: OpenAt, proxy: Proxy) -> None:
    store = open_at(proxy.url, busy_s=BUSY_S)

    def fall_silent(tx: Transaction) -> None:
        put_once(tx, "a")
        proxy.way = Way.SILENT

    with pytest.raises(CommitUnknown):
        store.call(fall_silent)

    proxy.way = Way.OPEN
    assert store.call(put_once, "a") is True  # this COMMIT never arrived


# -- nobody answers --------------------------------------------------------------------------


def test_a_half_open_connection_is_an_error_soon_and_not_for_ever(open_at: OpenAt, proxy: Proxy) -> None:
    store = open_at(proxy.url, busy_s=BUSY_S)
    store.call(put, "before")
    proxy.way = Way.SILENT
    begin = time.monotonic()

    waiters = _submit_many(store)

    with pytest.raises(StoreBusy, match="cannot be reached"):
        store.read(keys)
    for waiter in waiters:
        with pytest.raises(StoreBusy, match="cannot be reached"):
            waiter.wait()
    assert time.monotonic() - begin < 10  # not each of them in turn
    proxy.way = Way.OPEN
    assert store.call(put, "after") == "after"
    assert store.read(keys) == ["after", "before"]


@pytest.mark.slow
def test_a_frozen_server_is_an_error_soon_and_nothing_is_left_of_it(open_at: OpenAt, postgres_server: Cluster) -> None:
    store = open_at(busy_s=BUSY_S)
    store.call(put, "before")

    with postgres_server.frozen(), pytest.raises(StoreBusy, match="nothing was written"):
        store.call(put, "frozen")

    assert store.call(put, "after") == "after"
    assert "frozen" not in store.read(keys)


def test_a_server_that_is_down_is_named_and_everything_goes_on_when_it_is_up(
    open_at: OpenAt, postgres_server: Cluster
) -> None:
    store = open_at(busy_s=BUSY_S)
    store.call(put, "before")
    postgres_server.stop()
    begin = time.monotonic()
    for waiter in _submit_many(store):
        with pytest.raises(StoreBusy, match=r"postgres@127\.0\.0\.1.* cannot be reached"):
            waiter.wait()

    assert time.monotonic() - begin < 8 * BUSY_S
    postgres_server.start()
    assert store.call(put, "after") == "after"
    assert store.read(keys) == ["after", "before"]


def test_opening_waits_for_a_server_that_starts_and_gives_up_on_one_that_does_not(
    open_at: OpenAt, postgres_server: Cluster
) -> None:
    postgres_server.stop()
    with pytest.raises(StoreBusy, match="cannot be reached"):
        open_at(busy_s=BUSY_S)
    starting = threading.Thread(target=postgres_server.start)
    starting.start()

    store = open_at()

    starting.join()
    assert store.call(put, "a") == "a"


def test_closing_does_not_wait_for_a_server_that_is_gone(open_at: OpenAt, postgres_server: Cluster) -> None:
    store = open_at(busy_s=BUSY_S)
    store.database.listen(lambda: None)
    store.call(put, "a", hint=True)
    store.read(keys)
    postgres_server.stop()
    begin = time.monotonic()

    store.close()

    assert time.monotonic() - begin < 5


def test_a_listener_hears_again_after_the_server_came_back(open_at: OpenAt, postgres_server: Cluster) -> None:
    store, other = open_at(), open_at()
    heard = threading.Semaphore(0)
    other.database.listen(heard.release)
    store.call(put, "before", hint=True)
    assert heard.acquire(timeout=10)

    postgres_server.crash()
    postgres_server.start()

    def is_heard(attempt: int) -> bool:
        while heard.acquire(blocking=False):
            continue
        store.call(put_once, f"{attempt}")
        store.call(put, f"{attempt}-hint", hint=True)
        return heard.acquire(timeout=0.2)

    assert any(is_heard(attempt) for attempt in range(50))


# -- other transactions in the way -----------------------------------------------------------


def test_of_two_units_that_deadlock_both_are_done_in_the_end(store: Store) -> None:
    store.call(put_twice, "row")
    both_hold_one = threading.Barrier(2, timeout=20)
    waiters: list[ThreadWaiter[None]] = [ThreadWaiter(), ThreadWaiter()]
    runs: list[str] = []

    def cross(tx: Transaction, first: str, second: str) -> None:
        add(tx, first)
        runs.append(first)
        if len(runs) <= 2:
            both_hold_one.wait()
        add(tx, second)

    store.database.write(lambda tx: cross(tx, "row-a", "row-b"), waiters[0])
    store.database.write(lambda tx: cross(tx, "row-b", "row-a"), waiters[1])

    for waiter in waiters:
        waiter.wait()
    assert len(runs) == 3
    assert store.read(lambda tx: (value(tx, "row-a"), value(tx, "row-b"))) == (2, 2)


def test_a_row_that_another_keeps_is_busy_after_a_while_and_free_later(
    open_at: OpenAt, migrated_postgres_url: str
) -> None:
    store = open_at(busy_s=BUSY_S)
    store.call(put, "row")
    with psycopg.connect(migrated_postgres_url) as other:
        other.execute("UPDATE counters SET value = 7 WHERE name = 'key-row'")

        with pytest.raises(StoreBusy, match="other transactions kept the rows"):
            store.call(add, "row")
        assert store.call(put, "unrelated") == "unrelated"
        other.rollback()

    assert store.call(add, "row") == 1


_HOLDING = """
import sys
from perdure.settings import Settings
from perdure.store import open_store
from tests.rows import add

def hold(tx):
    add(tx, "row")
    if not held:
        held.append(1)
        print("holding", flush=True)
        sys.stdin.readline()
    add(tx, "row")

held = []
with open_store(sys.argv[1], settings=Settings(busy_s=1)) as store:
    store.call(hold)
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_a_process_stopped_in_the_middle_keeps_its_rows_for_a_moment_only(
    store: Store, migrated_postgres_url: str
) -> None:
    store.call(put, "row")
    with Script(_HOLDING, migrated_postgres_url) as holder:
        assert holder.hear() == "holding"
        holder.stop()

        assert store.call(add, "row") == 1  # once the server has ended the stopped transaction

        assert store.read(value, "row") == 1
        holder.go_on()
        holder.say()
        assert holder.hear() == "done"  # it ran again, as a whole
    assert store.read(value, "row") == 3


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_what_may_succeed_next_time_is_run_again(store: Store, code: str) -> None:
    runs: list[int] = []

    def write(tx: Transaction) -> None:
        put(tx, "a")
        runs.append(1)
        if len(runs) < 4:
            tx.run(_fail_with(code))

    store.call(write)

    assert len(runs) == 4
    assert store.read(keys) == ["a"]


def test_what_never_succeeds_is_given_up(open_at: OpenAt) -> None:
    store = open_at(busy_s=BUSY_S)
    runs: list[int] = []

    def write(tx: Transaction) -> None:
        put(tx, "a")
        runs.append(1)
        tx.run(_fail_with("40001"))

    with pytest.raises(StoreBusy):
        store.call(write)

    assert 1 < len(runs) <= 21
    assert store.read(keys) == []


# -- errors by their code --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", StoreFull),
        ("53200", StoreBusy),
        ("57014", StoreBusy),
        ("XX001", Damaged),
        ("XX002", Damaged),
        ("23505", RefusedBySchema),
        ("22003", RefusedBySchema),
        ("42501", StoreError),
        ("P0001", StoreError),
    ],
)
def test_an_error_is_told_by_its_code_and_undone(store: Store, code: str, kind: type[StoreError]) -> None:
    def write(tx: Transaction) -> None:
        put(tx, "a")
        tx.run(_fail_with(code))

    with pytest.raises(StoreError) as error:
        store.call(write)

    assert type(error.value) is kind
    assert store.read(keys) == []
    assert store.call(put, "a") == "a"


def test_a_unit_that_hides_a_failed_statement_is_refused(store: Store) -> None:
    def hide(tx: Transaction) -> None:
        put(tx, "a")
        try:
            put(tx, "a")
        except psycopg.Error:
            return

    with pytest.raises(InvariantError, match="went on after"):
        store.call(hide)

    assert store.read(keys) == []


def test_a_statement_that_takes_too_long_is_cancelled(open_at: OpenAt) -> None:
    store = open_at(busy_s=BUSY_S)

    with pytest.raises(StoreBusy, match="took too long"):
        store.read(lambda tx: tx.one(query("SELECT 1 FROM pg_sleep(30)")))

    assert store.read(keys) == []


def test_a_soft_write_does_not_wait_for_the_disk(store: Store) -> None:
    look = query("SELECT current_setting('synchronous_commit')")
    waiter: ThreadWaiter[Any] = ThreadWaiter()

    store.database.write_softly(lambda tx: (tx.run(ADD, key="key-x", value=1), tx.one(look)), waiter)

    assert waiter.wait() == (0, ("off",))
    assert store.call(lambda tx: tx.one(look)) == ("on",)
