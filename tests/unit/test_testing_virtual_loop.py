"""The loop of a play: its time, what is held on it, and threads beside it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from perdure.runtime.threads import start_thread
from perdure.testing.virtual_loop import Process, TooLong, VirtualLoop

T = TypeVar("T")
WEEK_S = 7 * 86_400


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(start_ms=1_000_000)
    yield loop
    loop.close()


def run(loop: VirtualLoop, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return loop.run_until_complete(main())


def test_a_week_of_sleep_takes_no_time_and_both_clocks_show_it(loop: VirtualLoop) -> None:
    started = time.monotonic()

    run(loop, lambda: asyncio.sleep(WEEK_S))

    assert time.monotonic() - started < 5
    assert loop.boot_ms() == WEEK_S * 1000
    assert loop.now_ms() == 1_000_000 + WEEK_S * 1000


def test_sleepers_wake_in_the_order_of_their_times(loop: VirtualLoop) -> None:
    woken = []

    async def sleep(duration_s: float) -> None:
        await asyncio.sleep(duration_s)
        woken.append((duration_s, loop.time()))

    async def main() -> None:
        await asyncio.gather(sleep(30), sleep(10), sleep(20))

    run(loop, main)

    assert woken == [(10, 10.0), (20, 20.0), (30, 30.0)]


def test_a_jump_moves_the_wall_clock_alone(loop: VirtualLoop) -> None:
    loop.jump(-3_600_000)

    assert (loop.now_ms(), loop.boot_ms(), loop.time()) == (1_000_000 - 3_600_000, 0, 0.0)


def test_periodic_looks_are_left_out_while_nothing_happens(loop: VirtualLoop) -> None:
    looks = 0

    async def look() -> None:
        nonlocal looks
        while True:
            await asyncio.sleep(0.25)
            looks += 1

    async def main() -> None:
        looking = asyncio.create_task(look(), name="perdure-look")
        await asyncio.sleep(WEEK_S)
        looking.cancel()

    run(loop, main)

    assert 2 <= looks < 20


def test_a_moment_that_no_timer_stands_for_is_reached(loop: VirtualLoop) -> None:
    due_ms = 1_000_000 + 50_000
    reached = asyncio.Event()
    loop.next_moment_ms = lambda: due_ms if loop.now_ms() < due_ms else None
    loop.on_idle = reached.set

    run(loop, reached.wait)

    assert loop.now_ms() == due_ms


def test_waiting_for_what_never_comes_is_an_error(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match="waits for ever"):
        run(loop, asyncio.Event().wait)


def test_a_program_without_an_end_is_an_error(loop: VirtualLoop) -> None:
    loop.turns_left = 1000

    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(TooLong):
        run(loop, main)


async def count(seen: list[float]) -> None:
    """Note the time each second."""
    while True:
        await asyncio.sleep(1)
        seen.append(asyncio.get_running_loop().time())


def test_nothing_of_a_held_process_moves_until_it_is_released(loop: VirtualLoop) -> None:
    process = Process("held")
    seen: list[float] = []

    async def main() -> list[float]:
        counting = loop.create_task(count(seen), context=process.context())
        await asyncio.sleep(2.5)
        process.hold()
        await asyncio.sleep(10)
        before = list(seen)
        process.release(loop)
        await asyncio.sleep(1.5)
        counting.cancel()
        return before

    before = run(loop, main)

    assert before == [1.0, 2.0]
    assert seen == [1.0, 2.0, 12.5, 13.5]


def test_what_a_held_process_started_is_held_with_it(loop: VirtualLoop) -> None:
    process = Process("held")
    seen: list[float] = []

    async def main() -> None:
        async def start() -> None:
            started = asyncio.create_task(count(seen))
            process.tasks.add(started)

        await loop.create_task(start(), context=process.context())
        process.hold()
        await asyncio.sleep(5)

    run(loop, main)

    assert seen == []
    assert len(process.tasks) == 2 or len(process.tasks) == 1


def test_a_timer_that_was_cancelled_while_it_was_kept_does_not_fire(loop: VirtualLoop) -> None:
    process = Process("held")
    fired: list[str] = []

    async def main() -> None:
        handle = process.context().run(loop.call_later, 1, fired.append, "late")
        process.hold()
        await asyncio.sleep(5)
        handle.cancel()
        process.release(loop)
        await asyncio.sleep(5)

    run(loop, main)

    assert fired == []


def test_time_stands_still_while_a_thread_works(loop: VirtualLoop) -> None:
    may_end = threading.Event()

    async def main() -> float:
        sleeping = asyncio.create_task(asyncio.sleep(3600))
        working = start_thread(may_end.wait, context=contextvars.copy_context(), name="work")
        threading.Timer(0.05, may_end.set).start()
        await working
        now_s = loop.time()
        sleeping.cancel()
        return now_s

    assert run(loop, main) == 0.0


def test_a_thread_of_asyncio_counts_too(loop: VirtualLoop) -> None:
    async def main() -> tuple[int, float]:
        async with asyncio.timeout(3600):
            return await asyncio.to_thread(sum, [1, 2, 3]), loop.time()

    assert run(loop, main) == (6, 0.0)
