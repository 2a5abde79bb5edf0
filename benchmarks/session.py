"""One session: every cell in a process of its own, round by round, so that a noisy minute hits all of them alike."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.disk import Disk
from benchmarks.meter import Numbers

_ROOT = Path(__file__).resolve().parent.parent
_PERDURE_PAGE_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session measures, and for how long."""

    concurrency: Sequence[int] = (1, 8, 64, 256)
    interrupted: Sequence[int] = (1_000, 10_000)
    seconds: float = 1.5
    tasks: int = 200
    rounds: int = 3


def measure_all(plan: Plan, disk: Disk, say: Callable[[str], None]) -> dict[str, Numbers]:
    """The median of every number of every cell over the rounds."""
    found: dict[str, list[Numbers]] = defaultdict(list)
    with _interrupted(plan, disk, say) as databases:
        for number in range(plan.rounds):
            for name, cell, arguments in _cells(plan, databases):
                say(f"round {number + 1} of {plan.rounds}: {name}")
                found[name].append(_run(disk, cell, arguments))
            _compare(plan, found)
    return {name: _medians(rounds) for name, rounds in found.items()}


def _compare(plan: Plan, found: dict[str, list[Numbers]]) -> None:
    """Note the share of the limit inside the round: between rounds the machine may have become another one."""
    for count in plan.concurrency:
        own, limit = found[f"steps {count}"][-1], found[f"limit {count}"][-1]
        assert own["per_s"] is not None and limit["per_s"] is not None
        own["of_limit"] = own["per_s"] / limit["per_s"]


def _cells(plan: Plan, databases: dict[int, Path]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for count in plan.concurrency:
        # The limit and what is compared with it stand side by side.
        yield f"limit {count}", "limit", {"submitters": count, "seconds": plan.seconds}
        yield f"steps {count}", "steps", {"tasks": count, "seconds": plan.seconds}
        paged = {"submitters": count, "seconds": plan.seconds, "page_bytes": _PERDURE_PAGE_BYTES}
        yield f"limit {count}, pages of perdure's size", "limit", paged
    for how in ("started", "run", "elsewhere"):
        yield f"task {how}", "tasks", {"how": how, "tasks": plan.tasks}
    for count, made in databases.items():
        yield f"recovery {count}", "recovery", {"made": str(made), "tasks": count}
        each = {"made": str(made), "tasks": count, "workers": os.cpu_count() or 1}
        yield f"recovery {count}, a worker a core", "recovery", each


@contextmanager
def _interrupted(plan: Plan, disk: Disk, say: Callable[[str], None]) -> Iterator[dict[int, Path]]:
    """Databases of interrupted tasks, each made once; the rounds take copies."""
    with tempfile.TemporaryDirectory(dir=disk.folder) as made:
        databases: dict[int, Path] = {}
        for count in plan.interrupted:
            say(f"making {count:,} interrupted tasks")
            databases[count] = Path(made) / str(count)
            databases[count].mkdir()
            _call(disk, "interrupt", {"folder": str(databases[count]), "tasks": count}, ends_by=signal.SIGKILL)
        yield databases


def _run(disk: Disk, cell: str, arguments: dict[str, Any]) -> Numbers:
    with tempfile.TemporaryDirectory(dir=disk.folder) as folder:
        numbers: Numbers = json.loads(_call(disk, cell, {"folder": folder, **arguments}))
        return numbers


def _call(disk: Disk, cell: str, arguments: dict[str, Any], *, ends_by: int = 0) -> str:
    # The checkout is what gets measured, whatever else is installed.
    paths = (str(_ROOT / "src"), str(_ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, **disk.environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, "-m", "benchmarks.cell", cell, json.dumps(arguments)]
    ended = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode != -ends_by:
        raise RuntimeError(f"the cell {cell} {arguments} ended with {ended.returncode}; what it said stands above")
    return ended.stdout


def _medians(rounds: Sequence[Numbers]) -> Numbers:
    medians: Numbers = {}
    for name in rounds[0]:
        values = [value for one in rounds if (value := one[name]) is not None]
        medians[name] = statistics.median(values) if values else None
    return medians
