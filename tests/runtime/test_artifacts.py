"""An artifact's content is in the database once its call has returned, and is found by its SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

import perdure
from perdure.errors import BadInput, NotFound
from perdure.settings import Settings
from tests.theatre import Theatre

PICTURE = bytes(range(256)) * 1000


@pytest.fixture
def settings() -> Settings:
    """A small limit, above that of a single value."""
    return Settings(payload_limit_bytes=1024, artifact_limit_bytes=len(PICTURE))


@perdure.agent
async def reader(sha256: str) -> int:
    return len(await perdure.read_artifact(sha256))


async def test_content_of_any_kind_is_read_back_by_the_sha_256_that_artifact_returns(house: Theatre) -> None:
    @perdure.agent
    async def maker() -> list[str]:
        return [
            await perdure.artifact("page.txt", "h\u00e9llo", media_type="text/plain"),
            await perdure.artifact("picture", PICTURE),
        ]

    await house.hire(maker)
    task = await house.client.start(maker)
    page, picture = await task.result()

    assert page == hashlib.sha256("h\u00e9llo".encode()).hexdigest()
    assert picture == hashlib.sha256(PICTURE).hexdigest()
    assert await house.client.artifact(page) == "h\u00e9llo".encode()
    assert await house.client.artifact(picture) == PICTURE
    told = [one.payload for one in house.events(task) if one.kind == "artifact_created"]
    assert told == [
        {"name": "page.txt", "media_type": "text/plain", "bytes": 6, "sha256": page},
        {"name": "picture", "media_type": "", "bytes": len(PICTURE), "sha256": picture},
    ]


async def test_another_task_reads_an_artifact_by_its_hash(house: Theatre) -> None:
    @perdure.agent
    async def maker() -> int:
        return await reader(await perdure.artifact("picture", PICTURE))

    await house.hire(maker, reader)

    assert await house.run(maker) == len(PICTURE)
    with pytest.raises(NotFound):
        await house.client.artifact("0" * 64)


async def test_an_artifact_is_told_of_once_over_all_attempts(house: Theatre) -> None:
    reached = asyncio.Event()

    @perdure.agent
    async def maker() -> str:
        made = await perdure.artifact("picture", PICTURE)
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return made

    first = await house.hire(maker)
    task = await house.client.start(maker)
    await reached.wait()
    house.kill(first)
    await house.hire(maker)

    assert await task.result() == hashlib.sha256(PICTURE).hexdigest()
    assert house.kinds(task).count("artifact_created") == 1


@pytest.mark.parametrize(("data", "said"), [(PICTURE + b"1", "256001"), ("\ud800", "surrogate"), (5, "int")])
async def test_what_cannot_be_stored_is_refused_before_it_is_written(house: Theatre, data: Any, said: str) -> None:
    @perdure.agent
    async def maker() -> str:
        with pytest.raises(BadInput, match=said):
            await perdure.artifact("too much", data)
        return "went on"

    await house.hire(maker)
    task = await house.client.start(maker)

    assert await task.result() == "went on"
    assert "artifact_created" not in house.kinds(task)
