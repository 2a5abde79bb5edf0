"""A client opens what its address names, refuses what names no database, and does not make one unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure


@perdure.agent
async def idle() -> None: ...


@pytest.mark.parametrize("url", ["mysql://x", "sqlite://x", "http://host/agents.db", "a\x00b"])
def test_an_address_that_names_no_database_is_refused_at_once(url: str) -> None:
    client = perdure.Client("agents.db")

    for refusing in (lambda: perdure.Client(url), lambda: perdure.App(url, agents=[idle]), lambda: client.use(url)):
        with pytest.raises(perdure.BadInput, match="names no database") as refused:
            refusing()
        assert refused.value.field == "url"


async def test_a_client_that_makes_a_database_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "typo.db"

    for _ in range(2):
        async with perdure.Client(str(path)) as client:
            assert await client.questions() == []

    assert caplog.messages == [f"made a new database at {path}: there was none"]


async def test_an_app_makes_its_database_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with perdure.App(str(tmp_path / "agents.db"), agents=[idle]) as app:
        assert await app.questions() == []

    assert caplog.messages == []
