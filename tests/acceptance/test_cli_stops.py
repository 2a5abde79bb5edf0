"""What `perdure run` says when it stops: of its task, and of calls that it cuts off."""

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


def test_a_timeout_says_of_a_task_that_runs_here_no_more_than_that(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SHUTDOWN_GRACE_S", "0.1")

    said = desk.run("run", "slow", "30", "--timeout", "0.1")

    told = said.err.splitlines()
    assert told[0].startswith("not done after 100 ms: it runs here since ")
    assert told[-1].startswith("slow …") and told[-1].endswith(" stays open: the same line goes on with it")
