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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import apsw
import pytest

import perdure.store
from perdure.clock import FakeClock, SeededIds
from perdure.model.question import QuestionKind
from perdure.model.step import Note
from perdure.model.task import Claim, Wait, WaitKind
from perdure.settings import Settings
from perdure.store import (
    Store,
    admission,
    artifacts,
    completions,
    ends,
    instances,
    messages,
    outcomes,
    questions,
    recovery,
    tasks,
)
from perdure.store.completions import Completion
from perdure.store.sqlite import open_sqlite
from perdure.store.steps import Place
from perdure.testing.invariants import broken
from tests.world import TABLES, World, done, new_step, new_task, packed, timer

_STORE = Path(perdure.store.__file__).parent
MODULES = tuple(f"/perdure/store/{one.name}" for one in _STORE.glob("*.py") if "(tx: Transaction" in one.read_text())
EACH_TIME = bool(os.environ.get("PERDURE_LONG"))
KILLED = 137
MANY = 3
AT_ONCE = min(os.cpu_count() or 1, 4)


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
            # What is done for many tasks at once.
            self._admit_many,
            self._claim_many,
            lambda: self.world.store.call(outcomes.RECORD.together, [self._outcome(one) for one in self.many]),
            lambda: self.world.store.call(tasks.interrupt_all, self._owned(), reason="the worker was lost"),
            lambda: self.world.store.call(recovery.resume_plain, [one.task.id for one in self.many], recovery_limit=3),
            self._claim_many,
            lambda: self.world.store.call(completions.complete_all, [self._completion(one) for one in self.many]),
            lambda: self.world.store.call(artifacts.keep, b"a report"),
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

    def _admit_many(self) -> None:
        self.world.store.call(admission.admit, [new_task(work=f"one of many {number}") for number in range(MANY)])

    def _claim_many(self) -> None:
        self.many = self.world.claim_any(worker=self.world._workers[1])
        assert len(self.many) == MANY

    def _owned(self) -> list[tuple[str, str]]:
        return [(one.task.id, one.execution_id) for one in self.many]

    def _outcome(self, claim: Claim) -> outcomes.Outcome:
        place = Place(claim.task.n, claim.task.event_seq, claim.task.step_count, claim.task.attempt)
        return outcomes.Outcome(claim.fence, new_step("look"), done(), place)

    def _completion(self, claim: Claim) -> Completion:
        return Completion(claim.fence, packed("result"), Note("turn_completed", b"{}"), "low")


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
    """Ends the process at the n-th line of the watched modules. One that runs again counts once, unless EACH_TIME."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._seen: set[tuple[CodeType, int]] = set()

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.endswith(MODULES) else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        line = frame.f_code, frame.f_lineno
        if event == "line" and (EACH_TIME or line not in self._seen):
            self._seen.add(line)
            self._left -= 1
            if self._left == 0:
                os._exit(KILLED)
        return self._line


Rows = dict[str, list[tuple[Any, ...]]]


def act_and_die(act: Callable[[], Any], world: World, path: Path, *, at: int) -> int:
    """Make one operation on a copy in another process, which dies at a line of it. Returns its id."""
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
    return pid


def has_died(pid: int, *, at: int) -> bool:
    """Wait for its end. False when it lived."""
    _, ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended)
    assert code in (0, KILLED), f"line {at}: the operation itself failed"
    return code == KILLED


def left_at_each_line(act: Callable[[], Any], world: World, path: Path) -> list[Rows]:
    """What one operation leaves that is killed at its first, second, ... line, and last what it leaves alive."""
    found: list[Rows] = []
    running: deque[tuple[int, int, Path]] = deque()
    copies = (path.with_name(f"copy-{at}.db") for at in itertools.count(1))
    lives = False
    while running or not lives:
        while not lives and len(running) < AT_ONCE:
            at, copy = len(found) + len(running) + 1, next(copies)
            shutil.copy(path, copy)
            running.append((act_and_die(act, world, copy, at=at), at, copy))
        pid, at, copy = running.popleft()
        died = has_died(pid, at=at)
        if not lives:
            found.append(rows_of(copy))
            lives = not died
        for one in copy.parent.glob(f"{copy.name}*"):
            one.unlink()
    return found


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
    path = folder / "story.db"
    store = open_at(path)
    world = World(store, FakeClock())
    store.close()
    tried = 0

    for number, act in enumerate(Story(world).chapters()):
        before = rows_of(path)
        found = left_at_each_line(act, world, path)
        with open_at(path, world):
            act()
        after = rows_of(path)

        assert wrong_in(path) == [], f"chapter {number}"
        assert found[-1] == after, f"chapter {number} is not the same each time"
        halves = [at for at, rows in enumerate(found, 1) if rows not in (before, after)]
        assert halves == [], f"chapter {number}: half an operation was left at these lines"
        tried += len(found) - 1
    print(f"killed at {tried} lines")
    assert tried > 1000


def test_what_is_looked_for_can_be_missing(folder: Path) -> None:
    path = folder / "broken.db"
    with open_at(path) as store:
        world = World(store, FakeClock())
        world.start()
        world.execute("DELETE FROM events WHERE kind = 'task_started'")

    assert "without a gap" in wrong_in(path)[0]
