"""Runs of one app at the same time: whichever ends first, however it ends, leaves the others their worker and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import perdure
from perdure.settings import Settings


class Desk:
    """An agent whose call goes on until it is let go, and one that ends at once."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.is_inside = asyncio.Event()
        self.may_end = asyncio.Event()

        @perdure.tool
        async def pay(what: str) -> str:
            self.made.append(what)
            self.is_inside.set()
            await self.may_end.wait()
            return f"paid {what}"

        @perdure.agent(retries=0)
        async def slow(what: str) -> str:
            return f"{await pay(what)}, {await pay(what + ' again')}"

        @perdure.agent(retries=0)
        async def quick(how: str) -> str:
            if how in ("ends", "fails"):
                await perdure.read("the other is inside", self.is_inside.wait)
            if how == "fails":
                raise ValueError("boom")
            if how == "is cancelled":
                await perdure.receive("never")
            return how

        self.slow, self.quick = slow, quick


@pytest.fixture
def desk() -> Desk:
    return Desk()


def new_app(path: Path, desk: Desk, **options: object) -> perdure.App:
    settings = Settings(poll_ms=20, shutdown_grace_s=0.5)
    return perdure.App(str(path / "a.db"), agents=[desk.slow, desk.quick], settings=settings, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["ends", "fails", "is cancelled"])
async def test_a_run_that_ends_first_leaves_the_others_alone(tmp_path: Path, desk: Desk, how: str) -> None:
    app = new_app(tmp_path, desk)
    shorter = asyncio.create_task(app.run(desk.quick, how))
    longer = asyncio.create_task(app.run(desk.slow, "rent"))
    await desk.is_inside.wait()

    if how == "is cancelled":
        shorter.cancel()
    (ended,) = await asyncio.gather(shorter, return_exceptions=True)
    desk.may_end.set()

    expected = {"ends": str, "fails": perdure.TaskFailed, "is cancelled": asyncio.CancelledError}
    assert type(ended) is expected[how]
    assert await longer == "paid rent, paid rent again"
    assert desk.made == ["rent", "rent again"]


async def test_runs_that_begin_together_share_what_the_lifespan_opens(tmp_path: Path, desk: Desk) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        said.append("opened")
        yield
        said.append("closed")

    app = new_app(tmp_path, desk, lifespan=opened)

    assert await asyncio.gather(*(app.run(desk.quick, name) for name in "abc")) == ["a", "b", "c"]

    assert said == ["opened", "closed"]


async def test_a_run_that_begins_while_the_last_one_closes_waits_and_has_a_worker_of_its_own(
    tmp_path: Path, desk: Desk
) -> None:
    said: list[str] = []
    is_closing, may_close = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        said.append("opened")
        yield
        is_closing.set()
        await may_close.wait()
        said.append("closed")

    app = new_app(tmp_path, desk, lifespan=opened)
    first = asyncio.create_task(app.run(desk.quick, "first"))
    await is_closing.wait()

    second = asyncio.create_task(app.run(desk.quick, "second"))
    await asyncio.sleep(0)
    may_close.set()

    assert [await first, await second] == ["first", "second"]
    assert said == ["opened", "closed"] * 2


async def test_what_keeps_the_worker_from_starting_is_raised_by_each_run(tmp_path: Path, desk: Desk) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        raise OSError("no bank")
        yield

    app = new_app(tmp_path, desk, lifespan=broken)

    said = await asyncio.gather(*(app.run(desk.quick, name) for name in "ab"), return_exceptions=True)

    assert [repr(one) for one in said] == ["OSError('no bank')"] * 2


async def test_a_run_cancelled_while_its_worker_starts_leaves_nothing_behind(tmp_path: Path, desk: Desk) -> None:
    is_opening = asyncio.Event()

    @asynccontextmanager
    async def slow_to_open() -> AsyncIterator[None]:
        is_opening.set()
        await asyncio.sleep(0 if desk.may_end.is_set() else 3600)
        yield

    app = new_app(tmp_path, desk, lifespan=slow_to_open)
    running = asyncio.create_task(app.run(desk.quick, "a"))
    await is_opening.wait()

    running.cancel()
    await asyncio.wait({running})
    desk.may_end.set()

    assert running.cancelled()
    assert await app.run(desk.quick, "b") == "b"


async def test_a_run_inside_the_block_of_its_app_leaves_the_store_open(tmp_path: Path, desk: Desk) -> None:
    async with new_app(tmp_path, desk) as app:
        store = app.store
        await app.run(desk.quick, "a")

        assert app.store is store
        assert len(await app.tasks()) == 1


async def test_the_end_of_the_block_leaves_the_store_to_the_runs_that_go_on(tmp_path: Path, desk: Desk) -> None:
    async with new_app(tmp_path, desk) as app:
        running = asyncio.create_task(app.run(desk.slow, "rent"))
        await desk.is_inside.wait()
    desk.may_end.set()

    assert await running == "paid rent, paid rent again"


async def test_a_run_joins_the_worker_that_its_app_is_just_starting(tmp_path: Path, desk: Desk) -> None:
    is_opening = asyncio.Event()
    said: list[str] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        said.append("opened")
        is_opening.set()
        await asyncio.sleep(0.05)
        yield

    app = new_app(tmp_path, desk, lifespan=opened)

    async def serve() -> None:
        async with app, app.worker():
            await desk.may_end.wait()

    serving = asyncio.create_task(serve())
    await is_opening.wait()

    assert await app.run(desk.quick, "a") == "a"
    desk.may_end.set()
    await serving
    assert said == ["opened"]


def test_an_app_is_not_run_on_two_event_loops_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        desk = Desk()
        app = new_app(tmp_path, desk)
        running = asyncio.create_task(app.run(desk.slow, "rent"))
        await desk.is_inside.wait()

        with pytest.raises(perdure.BadInput, match="another event loop"):
            await asyncio.to_thread(asyncio.run, app.run(desk.quick, "a"))

        desk.may_end.set()
        assert await running == "paid rent, paid rent again"

    asyncio.run(run())
