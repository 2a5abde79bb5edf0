"""What a script that runs an app is told: how to go on after Ctrl-C, and what is refused without perdure's insides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import perdure
from tests.command_line import SOURCE, finish, hear

AGENT = """
import asyncio, sys
import perdure
from perdure.settings import Settings

@perdure.tool(risk="low")
async def slow() -> None:
    print("inside", flush=True)
    await asyncio.sleep(3600)

@perdure.agent
async def agent() -> None:
    await slow()

app = perdure.App("agents.db", agents=[agent], settings=Settings(shutdown_grace_s=0.5))
asyncio.run(app.run(agent.options(key=sys.argv[1]) if sys.argv[1:] else agent))
"""


@perdure.agent
async def echo(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("key", "ways"),
    [(["k"], "the same line goes on with it"), ([], "a worker goes on with it, or a run with a key would")],
)
def test_a_run_that_is_cut_off_says_how_its_task_goes_on(tmp_path: Path, key: list[str], ways: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with subprocess.Popen(
        [sys.executable, "agent.py", *key],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        # Whoever runs the tests in the background has Ctrl-C ignored in all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        hear(process.stdout, "inside")
        said = finish(process, signal.SIGINT)

    assert said.code != 0
    assert said.err.startswith("stopped: agent …")
    assert said.err.splitlines()[0].endswith(f" stays open; {ways}")
    assert "attempt.py" not in said.err and "client.py" not in said.err


@pytest.mark.parametrize("verb", ["start", "run"])
async def test_a_key_of_other_work_is_refused_without_the_frames_of_the_store(tmp_path: Path, verb: str) -> None:
    app = perdure.App(str(tmp_path / "a.db"), agents=[echo])
    async with app, app.worker():
        await app.start(echo.options(key="k"), 1)

        with pytest.raises(perdure.KeyConflict, match=r": n=2 instead of 1\. .*use another key") as refused:
            await getattr(app, verb)(echo.options(key="k"), 2)

    frames = {Path(frame.filename).parent.name for frame in traceback.extract_tb(refused.value.__traceback__)}
    assert frames.isdisjoint({"store", "runtime"})
