"""The checkers find bugs: each is planted in a copy of the package, and the cheapest checker must fail on it.

A text that is no longer there fails its test: plant the bug in the new code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.plays import FOUND, PLAYS

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS_FAILED = 1  # what pytest says; a test that cannot even be collected says something else


@dataclass(frozen=True, slots=True)
class Check:
    """A checker: arguments of Python, and the exit status that means that it found something."""

    arguments: tuple[str, ...]
    found: int


@dataclass(frozen=True, slots=True)
class Bug:
    """Where it is planted: (file, what stands there, what shall stand there) once or more."""

    name: str
    patches: tuple[tuple[str, str, str], ...]
    check: Check


def contract(test: str) -> Check:
    """One test of a promise of the store, in memory."""
    return tests(f"tests/contract/{test}[sqlite_memory]")


def tests(test: str) -> Check:
    """Any test."""
    return Check(("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=", test), TESTS_FAILED)


def killed(play: str) -> Check:
    """An agent that is killed at every commit."""
    return Check(("-m", "tests.mutants.plays", play), FOUND)


POWER = "tests/crash/test_sqlite_writer.py::test_what_was_answered_survives_a_loss_of_power_at_any_call"
FENCE = "CASE WHEN execution_id = :execution_id AND generation = :generation THEN 1 END = 1"

BUGS = (
    Bug(
        "answers before the commit",
        (
            (
                "store/sqlite.py",
                '            connection.execute("COMMIT")\n        except apsw.Error as error:\n            return self._commit_failed',
                '            deliver_all(answers)\n            connection.execute("COMMIT")\n'
                "        except apsw.Error as error:\n            return self._commit_failed",
            ),
        ),
        tests(POWER),
    ),
    Bug(
        "commits without a sync",
        (
            (
                "store/sqlite.py",
                '"PRAGMA synchronous = NORMAL" if is_soft else "PRAGMA synchronous = FULL"',
                '"PRAGMA synchronous = NORMAL"',
            ),
        ),
        tests(POWER),
    ),
    Bug(
        "keeps what a failed unit wrote",
        (("store/sqlite.py", 'connection.execute("ROLLBACK TO unit")', "pass"),),
        contract("test_database.py::test_a_failure_after_a_write_undoes_its_unit_alone"),
    ),
    Bug(
        "takes writes from anybody",
        (("store/sql/tasks.sql", FENCE, "CASE WHEN :execution_id <> '' AND :generation >= 0 THEN 1 END = 1"),),
        contract("test_steps.py::test_who_no_longer_owns_the_task_writes_nothing"),
    ),
    Bug(
        "takes the worker's name for a fence",
        (("store/sql/tasks.sql", FENCE, "CASE WHEN :execution_id <> '' AND generation = :generation THEN 1 END = 1"),),
        contract("test_steps.py::test_who_no_longer_owns_the_task_writes_nothing"),
    ),
    Bug(
        "runs a dangerous call again by itself",
        (("runtime/doubts.py", "    if call.risk is Risk.MEDIUM:\n", "    if call.risk is not Risk.LOW:\n"),),
        killed("sends"),
    ),
    Bug(
        "gives a call a new token when it runs again",
        (
            (
                "runtime/journal.py",
                "return record.token if record is not None and record.token else self.store.ids.token()",
                "return self.store.ids.token()",
            ),
        ),
        killed("notes"),
    ),
    Bug(
        "tells calls apart by their position",
        (
            (
                "runtime/journal.py",
                "        return call_key(parent, call.name, digest, self._occurrences.number(parent, call.name, digest))",
                '        return call_key(parent, call.name, "0" * 32, self._occurrences.number(parent, call.name, ""))',
            ),
        ),
        killed("race"),
    ),
    Bug(
        "writes the event in a second commit",
        (
            (
                "store/ends.py",
                "    events.emit(tx, proof.n, proof.event_seq, TASK.event(verb), {} if error is None else "
                '{"error": str(error)})\n',
                "    LATE.append((proof.n, proof.event_seq, TASK.event(verb)))\n",
            ),
            (
                "store/ends.py",
                "DEADLINE_EXCEEDED =",
                "LATE: list[tuple[int, int, str]] = []\n\n\ndef tell(tx: Transaction) -> None:\n    while LATE:\n"
                "        events.emit(tx, *LATE.pop())\n\n\nDEADLINE_EXCEEDED =",
            ),
            (
                "runtime/endings.py",
                "notes=notes, risk_seen=journal.risk_seen\n        )\n",
                "notes=notes, risk_seen=journal.risk_seen\n        )\n        await _write(attempt, ends.tell)\n",
            ),
        ),
        killed("sends"),
    ),
    Bug(
        "never wakes a parent that was set aside",
        (("store/ends.py", "            task_ops.wake(tx, parent.id)\n", "            pass\n"),),
        tests("tests/contract/test_ends.py::test_the_end_of_its_last_child_wakes_a_parent_that_was_set_aside"),
    ),
    Bug(
        "leaves an approval to be used twice",
        (
            (
                "store/steps.py",
                "started_seq=seq)\n    if question_id is not None:\n        tx.run(K.spend, id=question_id)\n",
                "started_seq=seq)\n",
            ),
        ),
        contract("test_steps.py::test_an_approval_is_used_up_by_the_begin_it_allows"),
    ),
    Bug(
        "buries who has beaten since it was looked at",
        (("store/sql/instances.sql", "AND heartbeat = :heartbeat AND", "AND :heartbeat >= 0 AND"),),
        contract("test_instances.py::test_who_has_beaten_since_it_was_looked_at_is_not_taken_for_dead"),
    ),
    Bug(
        "recovers without compare-and-set",
        (
            (
                "store/recovery.py",
                "    if place is None or place[3] != TaskStatus.INTERRUPTED:\n",
                "    if place is None:\n",
            ),
            ("store/recovery.py", "    if task.status is not TaskStatus.INTERRUPTED or questions", "    if questions"),
            (
                "store/sql/tasks.sql",
                "revision = :revision, updated_at = {now}\nWHERE id = :id AND status IN ({from:recover})\n",
                "revision = :revision, updated_at = {now}\nWHERE id = :id\n",
            ),
        ),
        contract("test_recovery.py::test_a_second_pass_finds_nothing"),
    ),
    Bug(
        "lets an owner call at the end of its lease",
        (("runtime/liveness.py", "and now_boot_ms < self._until_ms", "and now_boot_ms <= self._until_ms"),),
        tests("tests/unit/test_liveness.py::test_an_owner_may_call_until_four_fifths_of_a_lease_after_its_beat_began"),
    ),
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package to plant a bug in; its folder goes on the path of a checker."""
    shutil.copytree(ROOT / "src" / "perdure", tmp_path / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def plant(bug: Bug, copy: Path) -> None:
    for name, old, new in bug.patches:
        path = copy / "perdure" / name
        text = path.read_text("utf-8")
        assert text.count(old) == 1, f"{bug.name}: {name} holds this {text.count(old)} times: {old}"
        path.write_text(text.replace(old, new), "utf-8")


def run(check: Check, copy: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *check.arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110
    )


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
@pytest.mark.slow(timeout_s=120)
def test_a_planted_bug_is_found(bug: Bug, copy: Path) -> None:
    plant(bug, copy)

    ran = run(bug.check, copy)

    assert ran.returncode == bug.check.found, f"not found by {bug.check.arguments}:\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.slow(timeout_s=120)
@pytest.mark.parametrize("play", sorted(PLAYS))
def test_without_a_bug_the_plays_find_nothing(play: str, copy: Path) -> None:
    ran = run(killed(play), copy)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow(timeout_s=120)
@pytest.mark.parametrize("check", sorted({bug.check.arguments for bug in BUGS if bug.check.found == TESTS_FAILED}))
def test_without_a_bug_the_tests_pass_in_a_copy(check: tuple[str, ...], copy: Path) -> None:
    ran = run(Check(check, TESTS_FAILED), copy)

    assert ran.returncode == 0, ran.stdout + ran.stderr
