"""The checkers find bugs: each is planted in a copy of the package, and its checker must fail on it.

A bug whose text is no longer there fails its test: plant it in the new code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS, TESTS_FAILED, Bug, Check, killed, suite
from tests.mutants.plays import PLAYS

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.slow(timeout_s=180)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package."""
    shutil.copytree(ROOT / "src" / "perdure", tmp_path / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def plant(bug: Bug, copy: Path) -> None:
    for patch in bug.patches:
        path = copy / "perdure" / patch.file
        text = path.read_text("utf-8")
        count = text.count(patch.old)
        assert count == 1, f"{patch.file} holds this {count} times: {patch.old}"
        path.write_text(text.replace(patch.old, patch.new), "utf-8")


def run(check: Check, copy: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    command = [sys.executable, *check.arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=False)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found(bug: Bug, copy: Path) -> None:
    plant(bug, copy)

    ran = run(bug.check, copy)

    assert ran.returncode == bug.check.found, f"not found by {bug.check.arguments}:\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("play", sorted(PLAYS))
def test_without_a_bug_the_plays_find_nothing(play: str, copy: Path) -> None:
    ran = run(killed(play), copy)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_without_a_bug_the_tests_find_nothing(copy: Path) -> None:
    tests = sorted({bug.check.arguments[-1] for bug in BUGS if bug.check.found == TESTS_FAILED})

    ran = run(suite(*tests), copy)

    assert ran.returncode == 0, ran.stdout + ran.stderr
