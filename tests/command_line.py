"""The command line for tests: in this process, or as one of its own where signals or death matter.

`Desk` is a folder with an app and a database, in which commands are typed.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from perdure.cli import app

SOURCE = Path(__file__).resolve().parent.parent / "src"

APP = """
import asyncio, os, signal
from pathlib import Path
import perdure

EFFECTS = Path(__file__).with_name("effects.txt")

def happened(what):
    with EFFECTS.open("a") as file:
        file.write(what + "\\n")

@perdure.tool(risk="low")
async def search(query: str) -> list[str]:
    happened(f"search {query}")
    return [query]

@perdure.tool
async def send_email(to: str, body: str) -> str:
    happened(f"send {to}")
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "m-1"

@perdure.tool(approve=True, to="finance")
async def refund(order: str, amount: int) -> str:
    happened(f"refund {order}")
    return "r-1"

async def llm(words):
    return {"text": " ".join(words), "usage": {"input_tokens": 900, "output_tokens": 40}}

@perdure.agent
async def writer(topic: str, n: int = 1) -> str:
    hits = await search(topic)
    reply = await perdure.model(llm, hits * n)
    await perdure.message("assistant", reply["text"])
    await send_email("team@example.org", reply["text"])
    return reply["text"].upper()

@perdure.agent
async def lead(topics: list[str]) -> list[str]:
    return await perdure.gather(*(writer(topic) for topic in topics))

@perdure.agent
async def support(order: str) -> str:
    if not await perdure.ask(f"Is the customer of {order} entitled?", type=bool, to="support"):
        return "not entitled"
    try:
        return await refund(order, 250)
    except perdure.Denied as no:
        return f"refused by {no.by}: {no.reason}"

@perdure.agent
async def failing(x: int) -> int:
    raise ValueError(f"boom {x}")

@perdure.agent
async def waiting(name: str) -> str:
    happened(f"waiting {name}")
    return await perdure.receive(name)

@perdure.agent(risk="high")
async def careful() -> str:
    await perdure.receive("go")
    return "done"

@perdure.agent
async def talker(name: str) -> str:
    for word in ("dear ", name, ",\\nhel", "lo"):
        perdure.stream(word)
    return f"said to {name}"

@perdure.agent
async def slow(n: int) -> int:
    for at in range(1, n + 1):
        print(f"slow {at}", flush=True)
        await asyncio.sleep(1)
    return n

app = perdure.App(agents=[writer, lead, support, failing, waiting, careful, talker, slow])
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as one JSON value."""
        return json.loads(self.out)


class Desk:
    """A folder with an app whose name every command knows from the environment, as it does the database."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.module = f"desk_{uuid4().hex[:8]}"
        self.db = folder / "desk.db"
        (folder / f"{self.module}.py").write_text(APP, encoding="utf-8")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    @property
    def environment(self) -> dict[str, str]:
        """What a command finds the app and the database by. Workers are quick to notice a death."""
        return {
            "PERDURE_APP": f"{self.module}:app",
            "PERDURE_DB": str(self.db),
            "PERDURE_HEARTBEAT_S": "0.2",
            "PERDURE_LEASE_S": "1",
            "NO_COLOR": "1",
        }

    @property
    def effects(self) -> list[str]:
        """What the tools have done, outside of the database."""
        path = self.folder / "effects.txt"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *words: str) -> Said:
        """A command in this process."""
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    def run_apart(self, *words: str, **environment: str) -> Said:
        """A command in a process of its own, to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "perdure.cli", *words],
            capture_output=True,
            text=True,
            env=self._environment_of(environment),
            check=False,
            timeout=60,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def begin(self, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """A command in a process of its own, which is ended when the block is."""
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment_of(environment),
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def on_terminal(self, *words: str, **environment: str) -> str:
        """What a command prints on a terminal of 80 columns, escapes and all."""
        mine, its = pty.openpty()
        environment = {"COLUMNS": "80", "TERM": "xterm-256color", **environment}
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", *words],
            stdout=its,
            stderr=its,
            env=self._environment_of(environment),
        )
        os.close(its)
        try:
            return _read_all(mine).decode()
        finally:
            os.close(mine)
            process.wait(timeout=60)

    def _environment_of(self, more: dict[str, str]) -> dict[str, str]:
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(SOURCE), **more}
        # An empty value takes the variable away.
        return {name: value for name, value in environment.items() if value}


def finish(process: subprocess.Popen[str], *signals: int) -> Said:
    """Send signals to a process and wait for its end."""
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return Said(process.returncode, out, err)


def shown_commands(page: str) -> list[str]:
    """The lines of a page that are commands, each whole, as one pastes it."""
    return [line.strip() for line in page.splitlines() if line.strip().startswith("perdure ")]


def hear(stream: IO[str] | None, words: str) -> list[str]:
    """Read lines until one holds `words`; every line read."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line.rstrip("\n"))
        if words in line:
            return lines
    raise AssertionError(f"the process ended without saying {words!r}; it said {lines}")


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # Linux's way to say that the other side has closed.
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


TERM = signal.SIGTERM
INT = signal.SIGINT
