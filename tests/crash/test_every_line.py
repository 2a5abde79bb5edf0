"""Killed at every line of the store's operations: what is found afterwards is what a whole number of them leaves.

Each operation of one story is made again and again on a copy, in a forked process that ends, as by kill -9, at the
first, second, ... line of the modules that hold transactions. Ids and times are fixed, so what it leaves can be
compared row by row with what was there before, and with what the whole operation leaves.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.model.question import QuestionKind
from perdure.model.task import Wait, WaitKind
from perdure.settings import Settings
from perdure.store import Store, ends, instances, messages, questions, tasks
from perdure.store.sqlite import open_sqlite
from perdure.testing.invariants import broken
from tests.world import TABLES, World, packed, timer

MODULES = tuple(
    f"/perdure/store/{name}.py"
    for name in ("tasks", "steps", "ends", "admission", "questions", "recovery", "sessions", "messages", "instances")
)
KILLED = 137
STRIDE = 1 if os.environ.get("PERDURE_LONG") else 3


@dataclass
class Story:
    """What happens, one operation after the other."""

    world: World

    def chapters(self) -> list[Callable[[], Any]]:
        """Each calls one operation that writes (some also read)."""
        return [
            self.world.new_worker,
            self.world.new_worker,
            self._admit,
            self._claim,
            lambda: self.world.record(self.claim, "look"),
            lambda: self.world.begin(self.claim, "pay", risk="high"),
            lambda: self.world.end_step(self.claim, "pay", risk="high"),
            self._ask,
            lambda: self.world.wait_for(self.claim, Wait(WaitKind.QUESTION, (self.question.id,), "ask")),
            lambda: self.world.store.call(questions.answer, self.question.id, by="ana", value=packed("yes")),
            lambda: self.world.store.call(tasks.restore, self.claim.fence),
            self._spawn,
            lambda: self.world.wait_for(self.claim, Wait(WaitKind.CHILDREN, (self.child.id,), "child")),
            self._suspend,
            self._claim_child,
            lambda: self.world.complete(self.child_claim, "done"),
            self._claim,
            self._send,
            lambda: self.world.begin(self.claim, "mail", risk="high"),
            lambda: self.world.interrupt(self.claim),
            lambda: self.world.recover(self.task.id),
            self._claim,
            lambda: self.world.wait_for(self.claim, *timer(self.world.clock.now_ms() + 1000)),
            self._suspend,
            self._wake,
            self._claim,
            lambda: self.world.store.call(instances.mark_stopped, self.world.worker.id),
            lambda: self.world.store.call(instances.interrupt_orphans),
            lambda: self.world.recover(self.task.id),
            self._claim_by_second,
            lambda: self.world.end_step(self.claim, "mail", risk="high"),
            lambda: self.world.complete(self.claim, "result"),
            self._admit_another,
            lambda: self.world.store.call(ends.cancel, self.task.id, reason="changed my mind"),
        ]

    def _admit(self) -> None:
        self.task = self.world.admit(key="k")

    def _claim(self) -> None:
        self.claim = self.world.claim(self.task.id)

    def _suspend(self) -> None:
        self.world.store.call(tasks.suspend, self.claim.fence)

    def _claim_by_second(self) -> None:
        self.claim = self.world.claim(self.task.id, worker=self.world._workers[1])

    def _ask(self) -> None:
        self.question = self.world.ask(self.claim, QuestionKind.ASK, step_key="ask")

    def _spawn(self) -> None:
        self.child = self.world.spawn(self.claim)

    def _claim_child(self) -> None:
        self.child_claim = self.world.claim(self.child.id)

    def _send(self) -> None:
        self.world.store.call(
            messages.send, self.task.id, name="news", key="once", payload=packed("late"), unread_limit=10
        )

    def _wake(self) -> None:
        self.world.clock.advance(1000)
        assert self.world.store.call(tasks.wake, self.task.id)

    def _admit_another(self) -> None:
        self.task = self.world.admit(work="other")


def open_at(path: Path, world: World | None = None) -> Store:
    """A store whose units run in the calling thread, which is the one that is traced. It becomes that of `world`."""
    clock, ids = (FakeClock(), SeededIds(1)) if world is None else (world.clock, world.store.ids)
    settings = Settings()
    database = open_sqlite(path, settings=settings, clock=clock, ids=ids, inline=True)
    store = Store(database, clock=clock, ids=ids, settings=settings)
    if world is not None:
        world.store = store
    return store


class Killer:
    """Ends the process at the n-th line of the watched modules."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.endswith(MODULES) else None

    def _line(self, _frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os._exit(KILLED)
        return self._line


def act_and_die(act: Callable[[], Any], world: World, path: Path, *, at: int) -> bool:
    """Make one operation on a copy in another process, which dies at a line of it; False when it lived."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            open_at(path, world)
            sys.settrace(Killer(at))
            act()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended)
    assert code in (0, KILLED), f"line {at}: the operation itself failed"
    return code == KILLED


Rows = dict[str, list[tuple[Any, ...]]]


def rows_of(path: Path) -> Rows:
    """Every row of a sound file, read as quickly as can be."""
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("integrity_check") == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
    finally:
        connection.close()


def wrong_in(path: Path) -> list[str]:
    """What does not hold."""
    with open_at(path) as store:
        return store.read(broken)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: nobody cuts the power here, so nothing need reach a disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.slow(timeout_s=600)
def test_a_process_killed_at_any_line_leaves_whole_operations(folder: Path) -> None:
    path, copy = folder / "story.db", folder / "copy.db"
    store = open_at(path)
    world = World(store, FakeClock())
    store.close()
    tried = 0

    for number, act in enumerate(Story(world).chapters()):
        before = rows_of(path)
        found = []
        for at in itertools.count(1 + number % STRIDE, STRIDE):
            shutil.copy(path, copy)
            died = act_and_die(act, world, copy, at=at)
            found.append((at, rows_of(copy)))
            for one in folder.glob("copy.db*"):
                one.unlink()
            if not died:
                break
        with open_at(path, world):
            act()
        after = rows_of(path)

        assert wrong_in(path) == [], f"chapter {number}"
        assert found[-1][1] == after, f"chapter {number} is not the same each time"
        halves = [at for at, rows in found if rows not in (before, after)]
        assert halves == [], f"chapter {number}: half an operation was left at these lines"
        tried += len(found) - 1
    print(f"killed at {tried} lines")
    assert tried > 500 / STRIDE


def test_what_is_looked_for_can_be_missing(folder: Path) -> None:
    path = folder / "broken.db"
    with open_at(path) as store:
        world = World(store, FakeClock())
        world.start()
        world.execute("DELETE FROM events WHERE kind = 'task_started'")

    assert "without a gap" in wrong_in(path)[0]
