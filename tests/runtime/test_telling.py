"""What is told beside calls: who may not tell any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
import perdure.sync
from tests.theatre import Theatre

_TELLERS: dict[str, tuple[Any, ...]] = {
    "message": ("assistant", "late"),
    "event": ("late",),
    "artifact": ("late", "late"),
    "read_artifact": ("0" * 64,),
    "checkpoint": ("late",),
    "last_checkpoint": (),
    "stream": ("late",),
    "usage": (),
}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("verb", sorted(_TELLERS))
async def test_a_tool_that_was_cut_off_tells_nothing_any_more(house: Theatre, verb: str, is_async: bool) -> None:
    raised: list[type[BaseException]] = []
    arguments = _TELLERS[verb]

    async def tell() -> None:
        if not is_async:
            await asyncio.to_thread(getattr(perdure.sync, verb), *arguments)
        elif asyncio.iscoroutine(telling := getattr(perdure, verb)(*arguments)):
            await telling

    @perdure.tool(risk="low", timeout=1, retries=0)
    async def lingers() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # As a thread would, which cannot be cut.
        try:
            await tell()
        except BaseException as exc:
            raised.append(type(exc))
            raise

    @perdure.agent
    async def host() -> str:
        with pytest.raises(TimeoutError):
            await lingers()
        await asyncio.sleep(5)
        return "done"

    actor = await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "done"
    await house.dismiss(actor)
    assert raised == [asyncio.CancelledError if is_async else perdure.sync.Cancelled]
    assert await task.messages() == []
    assert house.row(task).checkpoint is None
    assert not {"late", "artifact_created"} & set(house.kinds(task))
