"""A process that dies at any call by which it changes a file: what it was told is there, and the rest is whole."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.settings import Settings
from perdure.store import Store, open_store
from perdure.testing.invariants import broken
from tests.children import Script
from tests.crashing import lines, note
from tests.lives import Fact, holds, live_in_every_way
from tests.rows import query
from tests.world import World

STRIDE = 1 if os.environ.get("PERDURE_LONG") else 5
SOURCE = Path(__file__).resolve().parent.parent / "faults" / "faultio.c"
CHECK = query("PRAGMA integrity_check")


def open_world(path: Path, seed: int) -> World:
    """A world on a file, with ids made from a seed."""
    clock = FakeClock()
    store: Store = open_store(str(path), settings=Settings(), clock=clock, ids=SeededIds(seed))
    return World(store, clock)


def serve() -> None:
    """For each line: fork a process that lives a life and dies at a file call. Runs under the preloaded library."""
    for line in sys.stdin:
        folder, nth = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _live(Path(folder), nth)
                status = 0
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        print(ended, flush=True)


def _live(folder: Path, nth: int) -> None:
    library = ctypes.CDLL(None)
    library.faultio_arm(b"agents.db", nth)
    world = open_world(folder / "agents.db", 1)
    live_in_every_way(world, lambda name, _fact: note(folder / "told", name))
    world.store.close()
    note(folder / "calls", str(library.faultio_seen()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The injector, built from its source."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and LD_PRELOAD")
    built = tmp_path_factory.mktemp("faultio") / "faultio.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", built, SOURCE, "-ldl"], check=True)
    return built


@pytest.fixture
def server(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A process that forks the ones to be struck."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    script = Script("from tests.crash.test_file_calls import serve; serve()")
    monkeypatch.delenv("LD_PRELOAD")
    with script:
        yield script


@pytest.mark.slow(timeout_s=1200 if os.environ.get("PERDURE_LONG") else 120)
def test_what_was_told_survives_a_kill_at_any_file_call(server: Script, tmp_path: Path) -> None:
    facts = _facts(tmp_path / "expected.db")
    calls = _strike(server, tmp_path / "calm", 0)
    assert lines(tmp_path / "calm" / "told") == [name for name, _ in facts]
    wrong: list[str] = []
    died = 0
    for nth in range(1, calls + 1, STRIDE):
        folder = tmp_path / str(nth)
        died += _strike(server, folder, nth) == 0
        wrong += [f"call {nth} of {calls}: {what}" for what in _restart(folder, facts)]
        shutil.rmtree(folder)

    assert died > 0.9 * calls / STRIDE > 100
    assert wrong == []


def _strike(server: Script, folder: Path, nth: int) -> int:
    """Let one process live and die; how many calls it made if it lived to the end, as it may with a late one."""
    folder.mkdir()
    server.say(json.dumps([str(folder), nth]))
    ended = int(server.hear())
    if os.WIFSIGNALED(ended):
        return 0
    assert ended == 0
    (calls,) = lines(folder / "calls")
    return int(calls)


def _facts(path: Path) -> list[tuple[str, Fact]]:
    """What such a life is told, in order: lived here, with the same ids."""
    facts: list[tuple[str, Fact]] = []
    world = open_world(path, 1)
    live_in_every_way(world, lambda name, fact: facts.append((name, fact)))
    world.store.close()
    return facts


def _restart(folder: Path, facts: list[tuple[str, Fact]]) -> list[str]:
    told = lines(folder / "told")
    world = open_world(folder / "agents.db", 2)
    try:
        wrong = list(world.store.read(broken))
        if world.store.read(lambda tx: tx.all(CHECK)) != [("ok",)]:
            wrong.append("the file is damaged")
        wrong += [f"{name} is lost" for name, fact in facts[: len(told)] if not holds(fact, world)]
        world.admit(key="another")  # and life goes on
        return wrong
    finally:
        world.store.close()
