"""An attempt that has ended is gone from memory, and its history with it, before any garbage collector comes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

import perdure
from perdure import ambient


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@perdure.tool(risk="low")
async def look(number: int) -> int:
    """Reads."""
    return number


@pytest.mark.parametrize("waits_s", [0, 0.05])
@pytest.mark.parametrize("calls", [0, 3])
async def test_an_attempt_that_has_ended_is_freed_at_once(waits_s: float, calls: int) -> None:
    seen: list[weakref.ref[object]] = []

    @perdure.agent
    async def counts() -> int:
        seen.append(weakref.ref(ambient.require("counts").runner))
        if waits_s:
            await perdure.sleep(waits_s)
        return sum([await look(number) for number in range(calls)])

    async with perdure.App("memory:", agents=[counts]) as app, app.worker():
        await app.run(counts)
        await app.run(counts)  # The loop itself holds on to what it ran last.

    assert seen[0]() is None
