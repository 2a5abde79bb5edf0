"""Answers reach their event loop, whichever it is, and leave nothing behind when it is gone."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from perdure.store import Store, aio
from perdure.store.database import Transaction
from perdure.store.letterbox import open_letterbox

OPEN_FILES = Path("/proc/self/fd")


def one(tx: Transaction) -> int:
    return tx.now


async def ask(store: Store) -> None:
    assert await asyncio.gather(*(aio.call(store, one) for _ in range(3)))
    assert await aio.read(store, one)


def files_of_loops() -> int:
    """How many counters and pollers are open: what a loop has. A store may open its database once more to read it."""
    names = [os.path.realpath(OPEN_FILES / one) for one in os.listdir(OPEN_FILES)]
    return sum(name.endswith(("[eventfd]", "[eventpoll]")) for name in names)


def test_a_counter_is_seen_among_the_open_files() -> None:
    if not hasattr(os, "eventfd") or not OPEN_FILES.exists():
        pytest.skip("open files are only counted on Linux")
    before = files_of_loops()
    counter = os.eventfd(0)

    try:
        assert files_of_loops() == before + 1
    finally:
        os.close(counter)


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="open files are only counted on Linux")
def test_loops_that_come_and_go_leave_no_file_open(store: Store) -> None:
    asyncio.run(ask(store))
    before = files_of_loops()
    gc.disable()  # Closed with the loop, and not when the collector comes by.
    try:
        for _ in range(20):
            asyncio.run(ask(store))
        assert files_of_loops() < before + 10  # Other tests may have left a thread or two with a loop.
    finally:
        gc.enable()


def test_loops_of_several_threads_get_their_own_answers(store: Store) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                asyncio.run(ask(store))
        except BaseException as error:  # noqa: BLE001  # Shown by the thread that waits for this one.
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not failures and not any(thread.is_alive() for thread in threads)


def test_an_answer_for_a_loop_that_is_closed_hurts_nobody(store: Store) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> int:
        begun.set()
        assert may_end.wait(10)
        return tx.now

    async def leave() -> None:
        aio.submit(store, slow)
        assert await asyncio.to_thread(begun.wait, 10)

    asyncio.run(leave())
    may_end.set()

    assert store.call(one)
    asyncio.run(ask(store))


def test_a_loop_does_not_keep_the_context_of_whoever_asked_first(store: Store) -> None:
    class Thing:
        pass

    held: contextvars.ContextVar[Thing] = contextvars.ContextVar("held")

    async def ask_with_a_thing() -> weakref.ref[Thing]:
        thing = Thing()
        held.set(thing)
        await ask(store)
        return weakref.ref(thing)

    async def main() -> None:
        known = await asyncio.create_task(ask_with_a_thing())
        await asyncio.sleep(0)
        gc.collect()
        assert known() is None

    asyncio.run(main())


class _LoopWithoutReaders(asyncio.SelectorEventLoop):
    add_reader = asyncio.AbstractEventLoop.add_reader


@pytest.mark.parametrize("why", ["the loop has no readers", "the system has no eventfd", "no file may be opened"])
def test_a_loop_that_can_have_none_is_told_plainly(store: Store, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_args: Any) -> int:
        raise OSError(24, "Too many open files")

    loop = asyncio.SelectorEventLoop()
    match why:
        case "the loop has no readers":
            loop.close()
            loop = _LoopWithoutReaders()
        case "the system has no eventfd":
            monkeypatch.delattr(os, "eventfd", raising=False)
        case _:
            monkeypatch.setattr(os, "eventfd", too_many, raising=False)
    try:
        loop.run_until_complete(ask(store))
    finally:
        loop.close()
    assert store.call(one)


async def test_one_answer_that_no_future_can_hold_keeps_nobody_elses(store: Store) -> None:
    gate = threading.Event()
    held = aio.submit(store, lambda _tx: gate.wait(10))
    # All of them in one batch, whose answers come together.
    asked = [aio.submit(store, unit) for unit in (lambda _tx: next(iter(())), one, one)]
    gate.set()

    answers = await asyncio.wait_for(asyncio.gather(held, *asked, return_exceptions=True), 10)

    assert isinstance(answers[1], RuntimeError) and "StopIteration" in str(answers[1])
    assert all(isinstance(answer, int) for answer in answers[2:])


async def test_a_letter_that_cannot_be_read_keeps_no_other() -> None:
    read: list[int] = []
    all_read = asyncio.Event()

    def note(letter: int) -> None:
        read.append(letter)
        if letter == 3:
            all_read.set()
        if letter % 2:
            raise ValueError(letter)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    box = open_letterbox(loop, note)
    if box is None:
        pytest.skip("this system has no letterboxes")
    box.put([1, 2, 3])

    await asyncio.wait_for(all_read.wait(), 10)
    assert read == [1, 2, 3]


async def test_a_loop_whose_counter_somebody_closed_harms_nobody_else(store: Store) -> None:
    if not hasattr(os, "eventfd"):
        pytest.skip("this system has no letterboxes")
    made: list[int] = []
    make = os.eventfd

    def noted(*args: Any) -> int:
        made.append(make(*args))
        return made[-1]

    def lose_its_counter() -> None:
        async def ask_and_go() -> None:
            await aio.call(store, one)
            os.close(made[-1])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(aio.call(store, one), 0.2)

        asyncio.run(ask_and_go())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "eventfd", noted)
        await asyncio.to_thread(lose_its_counter)

    assert await asyncio.wait_for(aio.call(store, one), 10)
    assert await asyncio.to_thread(store.call, one)
