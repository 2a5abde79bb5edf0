"""What `perdure run` says of calls that it cuts off when it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Desk

SLOW = """
import asyncio, perdure

@perdure.tool(risk="high")
async def post(text: str) -> None:
    await asyncio.sleep(60)

@perdure.agent
async def poster(text: str) -> None:
    await post(text)

app = perdure.App("slow.db", agents=[poster], settings=perdure.Settings(shutdown_grace_s=0.1))
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_run_that_stops_inside_a_call_says_that_it_cut_it_off_and_where_to_look(desk: Desk) -> None:
    (desk.folder / "slow.py").write_text(SLOW)

    said = desk.run("run", "slow:poster", "hello", "--app", "slow:app", "--timeout", "1")

    assert said.code == 1
    assert "a task had to be cut off inside a call" in said.err
    shown = next(line for line in said.err.splitlines() if "effects --in-doubt" in line)
    assert 'post(text="hello")' in desk.run(*shown.split()[1:]).out
