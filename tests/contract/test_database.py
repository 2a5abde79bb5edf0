"""What every database promises to the operations above it, whatever happens to a unit or to who waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from perdure.errors import Refused, RefusedBySchema, StoreClosed, StoreError, Suspend
from perdure.states import TASK
from perdure.store import Store, aio
from perdure.store.database import Transaction
from perdure.store.waiters import ThreadWaiter
from tests.contract.conftest import OpenSecond
from tests.rows import ADD, INSERT, add, keys, put, put_and_fail, put_twice, query, refuse, value

# Units that wait in one batch; PostgreSQL has a transaction for each.
BATCH = 50


def _submit(store: Store, unit: Callable[[Transaction], Any]) -> ThreadWaiter[Any]:
    waiter: ThreadWaiter[Any] = ThreadWaiter()
    store.database.write(unit, waiter)
    return waiter


def _submit_together(store: Store, units: list[Callable[[Transaction], Any]]) -> list[ThreadWaiter[Any]]:
    """Submit while the writer is busy, so that all of them are in one batch."""
    gate = threading.Event()
    first = _submit(store, lambda _tx: gate.wait())
    waiters = [_submit(store, unit) for unit in units]
    gate.set()
    first.wait()
    return waiters


# -- durable once it is answered -------------------------------------------------------------


def test_what_was_answered_is_there_for_another_store(store: Store, open_second: OpenSecond) -> None:
    second = open_second(store)

    assert store.call(put, "a") == "a"

    assert second.read(keys) == ["a"]
    assert second.call(keys) == ["a"]


def test_a_value_comes_back_as_it_was_written(store: Store) -> None:
    echo = query("SELECT name, value, 1 = 1, sum(value) FROM counters WHERE name = :key GROUP BY name, value")
    body = query("SELECT body FROM payloads WHERE hash = :hash")
    store.call(lambda tx: tx.run(INSERT, key="100%:\u00e9\n'", value=2**62))
    store.call(
        lambda tx: tx.run(query("INSERT INTO payloads VALUES (:hash, :body)"), hash=b"h", body=bytes(range(256)))
    )

    row = store.read(lambda tx: tx.one(echo, key="100%:\u00e9\n'"))

    assert row is not None
    assert row == ("100%:\u00e9\n'", 2**62, 1, 2**62)
    assert [type(cell) for cell in row] == [str, int, int, int]
    assert store.read(lambda tx: tx.one(body, hash=b"h")) == (bytes(range(256)),)


def test_many_runs_a_statement_for_each_row_in_order(store: Store) -> None:
    def fill(tx: Transaction) -> list[str]:
        assert tx.many(INSERT, [{"key": f"key-{number}", "value": number} for number in range(3)]) == 3
        assert tx.many(ADD, [{"key": "key-2", "value": 40}]) == 1
        assert tx.many(ADD, [{"key": "nobody", "value": 40}, {"key": "key-1", "value": 0}]) == 1
        assert tx.many(ADD, []) == 0
        return keys(tx)

    assert store.call(fill) == ["0", "1", "2"]
    assert store.read(value, "2") == 42


def test_one_refuses_a_second_row(store: Store) -> None:
    store.call(put_twice, "a")

    with pytest.raises(AssertionError, match="returned 2 rows"):
        store.read(lambda tx: tx.one(query("SELECT name FROM counters WHERE name LIKE 'key-%'")))


# -- a unit fails, alone and as a whole ------------------------------------------------------


def test_a_refusal_leaves_its_neighbours_alone(store: Store) -> None:
    runs: list[str] = []

    def counted(tx: Transaction, key: str) -> None:
        runs.append(key)
        put(tx, key)

    units = [partial(counted, key=str(number)) for number in range(10)]

    waiters = _submit_together(store, [*units[:5], refuse, *units[5:]])

    with pytest.raises(Refused, match="no"):
        waiters.pop(5).wait()
    for waiter in waiters:
        waiter.wait()
    assert store.read(keys) == [str(number) for number in range(10)]
    assert len(runs) == 10  # a refusal costs nothing: nobody ran twice


def test_a_failure_after_a_write_undoes_its_unit_alone(store: Store) -> None:
    units: list[Callable[[Transaction], Any]] = [partial(put, key=f"{number:02}") for number in range(BATCH)]
    units[BATCH - 3] = partial(put_and_fail, key="bad")

    waiters = _submit_together(store, units)

    with pytest.raises(Refused, match="too late"):
        waiters.pop(BATCH - 3).wait()
    for waiter in waiters:
        waiter.wait()
    assert store.read(keys) == [f"{number:02}" for number in range(BATCH) if number != BATCH - 3]


def test_what_the_schema_refuses_undoes_its_unit_alone(store: Store) -> None:
    store.call(put, "taken")

    waiters = _submit_together(store, [partial(put, key="a"), partial(put_twice, key="b"), partial(put, key="taken")])

    with pytest.raises(RefusedBySchema, match=r"the schema refused the write: .*(?i:unique).*; nothing was written"):
        waiters[2].wait()
    assert (waiters[0].wait(), waiters[1].wait()) == ("a", "b")
    assert store.read(keys) == ["a", "b-a", "b-b", "taken"]


@pytest.mark.parametrize("by", ["schema", "syntax", "python"])
def test_an_error_at_any_statement_leaves_no_lock(store: Store, open_second: OpenSecond, by: str) -> None:
    second = open_second(store, busy_s=0.2)
    store.call(put, "shared")

    def write(tx: Transaction, failing: int) -> None:
        for number in range(4):
            if number == failing:
                match by:
                    case "schema":
                        put(tx, "shared")
                    case "syntax":
                        tx.run(query("UPDATE no_such_table SET x = 1"))
                    case _:
                        raise ValueError("a bug in a unit")
            add(tx, "shared")

    for failing in range(4):
        with pytest.raises((StoreError, ValueError)):
            store.call(write, failing)

        assert second.call(add, "shared") == 1
        assert second.read(value, "shared") == failing + 1
    assert store.call(add, "shared") == 1


def test_whatever_a_unit_raises_reaches_its_caller_and_not_the_thread(store: Store) -> None:
    def write_and_fail(tx: Transaction, error: type[BaseException]) -> None:
        put(tx, "lost")
        raise error

    def read_and_fail(tx: Transaction, error: type[BaseException]) -> None:
        keys(tx)
        raise error

    for error in (Suspend, asyncio.CancelledError, SystemExit, MemoryError):
        with pytest.raises(error):
            store.call(write_and_fail, error)
        with pytest.raises(error):
            store.read(read_and_fail, error)

    assert store.call(put, "after") == "after"
    assert store.read(keys) == ["after"]


# -- who waits -------------------------------------------------------------------------------


async def test_threads_and_event_loops_share_one_store(store: Store) -> None:
    def in_thread(number: int) -> None:
        for turn in range(5):
            store.call(put, f"t{number:02}-{turn}")
            assert f"t{number:02}-{turn}" in store.read(keys)

    async def on_loop(name: str) -> None:
        await asyncio.gather(*(aio.call(store, put, f"{name}-{turn:02}") for turn in range(20)))
        assert len([key for key in await aio.read(store, keys) if key.startswith(name)]) == 20

    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(32)]
    threads += [threading.Thread(target=lambda name=name: asyncio.run(on_loop(name))) for name in ("l1", "l2")]

    for thread in threads:
        thread.start()
    await on_loop("l0")
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert len(await aio.read(store, keys)) == 32 * 5 + 3 * 20


async def test_a_cancelled_call_is_committed_or_not_as_a_whole(store: Store, open_second: OpenSecond) -> None:
    second = open_second(store, busy_s=0.2)
    for steps in range(5):
        task = asyncio.create_task(aio.call(store, put_twice, f"{steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)

        task.cancel()

        with suppress(asyncio.CancelledError):  # A fast disk may have ended it already.
            await task
        await aio.call(store, put, f"{steps}-next")
        assert await aio.call(second, put, f"{steps}-other")
        there = [key for key in await aio.read(store, keys) if key.startswith(f"{steps}-")]
        assert there in ([f"{steps}-next", f"{steps}-other"], [f"{steps}-{end}" for end in ("a", "b", "next", "other")])


async def test_a_call_cancelled_while_its_unit_runs_is_committed(store: Store) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        put(tx, "a")
        begun.set()
        gate.wait()
        put(tx, "b")

    task = asyncio.create_task(aio.call(store, slow))
    await asyncio.to_thread(begun.wait)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    while not (there := await aio.read(store, keys)):
        continue
    assert there == ["a", "b"]


def test_an_answer_for_a_closed_loop_hurts_nobody(store: Store) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(_tx: Transaction) -> None:
        begun.set()
        gate.wait()

    async def leave() -> None:
        task = asyncio.create_task(aio.call(store, slow))
        await asyncio.to_thread(begun.wait)
        task.cancel()

    asyncio.run(leave())
    gate.set()

    assert store.call(put, "a") == "a"


# -- closing ---------------------------------------------------------------------------------


def test_closing_finishes_what_was_submitted(store: Store, open_second: OpenSecond) -> None:
    second = open_second(store)
    waiters = _submit_together(store, [partial(put, key=f"{number:02}") for number in range(BATCH)])

    store.close()

    for waiter in waiters:
        waiter.wait()
    assert len(second.read(keys)) == BATCH


def test_closing_twice_is_allowed_and_later_calls_are_refused(store: Store) -> None:
    store.close()
    store.close()

    for call in (store.call, store.read):
        with pytest.raises(StoreClosed, match="Open it anew"):
            call(keys)


def test_every_call_is_answered_while_the_store_closes(store: Store) -> None:
    ends: list[str] = []

    def call_until_closed(call: Callable[..., Any]) -> None:
        try:
            while True:
                call(keys)
        except StoreClosed:
            ends.append("closed")

    threads = [threading.Thread(target=call_until_closed, args=(call,)) for call in (store.call, store.read) * 4]
    for thread in threads:
        thread.start()

    store.call(put, "a")
    store.close()

    for thread in threads:
        thread.join(timeout=20)
    assert ends == ["closed"] * 8


# -- hints -----------------------------------------------------------------------------------


def test_a_hint_rings_in_its_own_process_after_the_commit(store: Store) -> None:
    seen: list[list[str]] = []
    rang = threading.Event()

    def wake() -> None:
        seen.append(["rang"])
        rang.set()

    store.call(put, "silent")
    stop = store.database.listen(wake)
    store.call(put, "a", hint=True)

    assert rang.wait(10)
    stop()
    rang.clear()
    store.call(put, "b", hint=True)
    assert not rang.is_set()


def test_a_hint_reaches_another_store(store: Store, open_second: OpenSecond) -> None:
    second = open_second(store)
    heard = threading.Semaphore(0)
    second.database.listen(heard.release)

    # The other store starts to listen on its own time, so a first hint may come too early.
    assert any(_hint_is_heard(store, heard, attempt) for attempt in range(50))


def _hint_is_heard(store: Store, heard: threading.Semaphore, attempt: int) -> bool:
    while heard.acquire(blocking=False):
        continue  # what is left of the attempt before
    store.call(put, f"{attempt}", hint=True)
    return heard.acquire(timeout=0.2)


def test_a_unit_that_fails_rings_nobody(store: Store) -> None:
    rang = threading.Event()
    store.database.listen(rang.set)
    if store.database.dialect == "postgres":
        assert rang.wait(10)  # once, when it begins to listen: nobody heard what was told before
        rang.clear()

    def hint_and_fail(tx: Transaction) -> None:
        put(tx, "a", hint=True)
        raise Refused("no")

    with pytest.raises(Refused):
        store.call(hint_and_fail)

    store.call(put, "silent")
    store.close()
    assert not rang.is_set()


def test_a_listener_on_a_closed_loop_hurts_nobody(store: Store) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    rang = threading.Event()

    def wake_loop() -> None:
        loop.call_soon_threadsafe(int)

    store.database.listen(wake_loop)
    store.database.listen(rang.set)

    store.call(put, "a", hint=True)

    assert rang.wait(10)
    assert store.call(put, "b") == "b"


# -- time and snapshots ----------------------------------------------------------------------


def test_a_unit_has_one_time_and_the_clock_of_the_store(store: Store, clock: Any) -> None:
    def look(tx: Transaction) -> tuple[int, int]:
        before = tx.now
        clock.advance(1000)
        return before, tx.now

    start = store.clock.now_ms()

    assert store.call(look) == (start, start)
    assert store.read(look) == (start + 1000, start + 1000)
    assert store.call(lambda tx: tx.one(query("SELECT :now + 0"))) == (start + 2000,)


def test_a_read_sees_one_snapshot(store: Store, open_second: OpenSecond) -> None:
    second = open_second(store)
    store.call(put, "a")

    def look_twice(tx: Transaction) -> tuple[list[str], list[str]]:
        first = keys(tx)
        second.call(put, "b")
        return first, keys(tx)

    assert store.read(look_twice) == (["a"], ["a"])
    assert store.read(keys) == ["a", "b"]


async def test_reads_that_come_together_are_answered_each_by_itself(store: Store) -> None:
    await aio.call(store, put, "a")

    def refuse(tx: Transaction) -> list[str]:
        keys(tx)
        raise Refused("no")

    answers = await asyncio.gather(
        *(aio.read(store, refuse if number % 3 == 1 else keys) for number in range(30)), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [Refused if number % 3 == 1 else list for number in range(30)]
    assert answers[0] == ["a"]


def test_a_read_cannot_write(store: Store, open_second: OpenSecond) -> None:
    open_second(store)  # a database in memory reads on its only connection

    with pytest.raises(StoreError):
        store.read(put, "a")

    assert store.call(keys) == []


def test_a_soft_write_that_fails_leaves_nothing(store: Store) -> None:
    waiter: ThreadWaiter[None] = ThreadWaiter()

    store.database.write_softly(partial(put_and_fail, key="a"), waiter)

    with pytest.raises(Refused):
        waiter.wait()
    assert store.call(keys) == []


def test_a_soft_write_is_committed_like_any_other(store: Store) -> None:
    waiter: ThreadWaiter[str] = ThreadWaiter()

    store.database.write_softly(partial(put, key="a"), waiter)

    assert waiter.wait() == "a"
    assert store.read(keys) == ["a"]


# -- what the schema refuses -----------------------------------------------------------------

_SESSION = query("INSERT INTO sessions (id, created_at) VALUES ('s', 0)")
_TASK = query(
    """INSERT INTO tasks (id, session_id, root_session_id, root_task_id, caller_agent_id, caller_scope_id, work_digest,
        agent, version, definition_hash, mode, lane, execution, priority, rank, depth, risk, risk_seen, resume,
        status, available_at, origin, created_at, updated_at)
    VALUES ('t', 's', 's', 't', '', '', '', '', '', '', 'foreground', 'main', 'parallel', 5, 0, 1, 'low', 'low',
        'auto', 'pending', 0, 'run', 0, 0)"""
)
_END = query("UPDATE tasks SET status = :status, finished_at = 1 WHERE id = 't'")


def test_a_move_that_is_in_no_table_is_refused_by_the_database(store: Store) -> None:
    assert ("pending", "completed") not in TASK.moves
    assert ("pending", "cancelled") in TASK.moves
    store.call(lambda tx: (tx.run(_SESSION), tx.run(_TASK)))

    with pytest.raises(RefusedBySchema, match="illegal move of task"):
        store.call(lambda tx: tx.run(_END, status="completed"))
    store.call(lambda tx: tx.run(_END, status="cancelled"))

    assert store.read(lambda tx: tx.one(query("SELECT status FROM tasks"))) == ("cancelled",)


def test_a_row_without_its_parent_is_refused(store: Store) -> None:
    with pytest.raises(RefusedBySchema):
        store.call(lambda tx: tx.run(_TASK))


@pytest.mark.parametrize("wrong", ["-1", "'text'", "NULL"])
def test_a_value_that_its_column_does_not_take_is_refused(store: Store, wrong: str) -> None:
    insert = query(f"INSERT INTO counters (name, value) VALUES ('key-1', {wrong})")

    with pytest.raises(RefusedBySchema):
        store.call(lambda tx: tx.run(insert))

    assert store.read(keys) == []
