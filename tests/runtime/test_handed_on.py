"""Functions that only hand on a coroutine: what they were called for happens once that runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

import perdure
import perdure.sync as psync
from tests.theatre import Theatre


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
async def test_a_coroutine_handed_on_when_its_call_was_cut_off_is_no_result_of_it(house: Theatre) -> None:
    made: list[str] = []
    tries: list[int] = []

    async def send(order: str) -> str:
        made.append(order)
        return "paid"

    @perdure.tool(timeout=1)
    def pay(order: str) -> Coroutine[Any, Any, str]:
        tries.append(1)
        if len(tries) == 1:
            with suppress(psync.Cancelled):
                psync.sleep(10)  # cut off in the part that runs in a thread
        return send(order)

    @perdure.agent
    async def host() -> str:
        return await perdure.call(pay, "o1")

    await house.hire(host)
    task = await house.client.start(host)
    question = await house.question()
    await asyncio.sleep(20)  # It has returned since.
    gc.collect()
    await question.resolve(perdure.not_happened(), by="ana")

    assert await task.result(timeout=60) == "paid"
    assert made == ["o1"]
