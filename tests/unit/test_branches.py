"""Whose calls a state that is saved cannot tell of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.runtime.branches import Branch, Branches


@asynccontextmanager
async def going_on(branches: Branches, *keys: str, of: list[Branch] | None = None) -> AsyncIterator[Branch]:
    """A branch that has made these calls, and goes on; the one that began it is put into `of`."""
    entered: asyncio.Future[Branch] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def inner() -> None:
        entered.set_result(_made(branches, keys))
        await over.wait()

    async def outer() -> None:
        assert of is not None
        of.append(_made(branches, ("outer",)))
        await asyncio.create_task(inner())

    task = asyncio.create_task(inner() if of is None else outer())
    try:
        yield await entered
    finally:
        over.set()
        await task


async def ended(branches: Branches, *keys: str) -> None:
    """A branch that has made these calls and ended."""

    async def branch() -> None:
        _made(branches, keys)

    await _alone(branch())


async def test_what_a_save_that_failed_was_to_tell_of_is_told_by_the_one_on_its_way_and_by_the_next() -> None:
    branches = Branches()
    await ended(branches, "pay")
    branches.settle("settled")

    async with going_on(branches) as first, going_on(branches) as second:
        saving = branches.beside(first)
        found = saving.__enter__()
        with branches.beside(second) as beside:
            assert (found.unsure, found.sure, beside.unsure, beside.sure) == (["pay"], ["settled"], [], [])
            with pytest.raises(TimeoutError):
                saving.gen.throw(TimeoutError())
            assert beside.unsure == ["pay"]
        with branches.beside(second) as later:
            assert (later.unsure, later.sure) == (["pay"], ["settled"])
    with branches.beside(branches.main) as by_the_agent:
        assert by_the_agent.sure == ["pay"]


async def test_what_a_branch_has_called_is_not_known_to_the_one_that_it_has_begun_nor_found_again() -> None:
    branches = Branches()
    around: list[Branch] = []

    async with going_on(branches, "inner", of=around) as saver, going_on(branches, "beside"):
        with branches.beside(saver) as found:
            assert (found.unsure, found.going_on) == (["outer"], ["beside"])


def _made(branches: Branches, keys: tuple[str, ...]) -> Branch:
    task = asyncio.current_task()
    for key in keys:
        branches.note(task, key)
    return branches.enter(task)


async def _alone(work: Coroutine[Any, Any, None]) -> None:
    await asyncio.create_task(work)
