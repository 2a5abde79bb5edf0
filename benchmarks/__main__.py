"""`python -m benchmarks`: one session, its numbers as JSON, and a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from benchmarks.disk import open_disk
from benchmarks.report import goals, table
from benchmarks.session import Plan, measure_all

_RECORDED = Path(__file__).with_name("recorded.json")
_QUICK = Plan(concurrency=(1, 8, 64), interrupted=(1_000,), seconds=1.0, tasks=100, rounds=1)


def main() -> None:
    """Measure, write and print."""
    given = _arguments()
    plan = Plan(
        concurrency=given.concurrency,
        interrupted=given.interrupted,
        seconds=given.seconds,
        tasks=given.tasks,
        rounds=given.rounds,
    )
    with open_disk(given.disk, sync_us=given.sync_us) as disk:
        print(disk.remark, flush=True)
        cells = measure_all(plan, disk, lambda text: print(text, file=sys.stderr, flush=True))
        judged = {goal.name: goal.value for goal in goals(cells)}
        facts = {
            "disk": disk.remark,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            "python": platform.python_version(),
            "rounds": plan.rounds,
        }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"session": facts, "cells": cells, "goals": judged}, indent=1) + "\n")
    recorded = json.loads(_RECORDED.read_text())["goals"] if _RECORDED.exists() else {}
    print(table(cells, recorded))
    print(f"written to {given.out}")


def _arguments() -> argparse.Namespace:
    quick = "--quick" in sys.argv[1:]
    usual = _QUICK if quick else Plan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="How fast perdure is, beside the limit.")
    parser.add_argument("--quick", action="store_true", help="one short round without the largest cells")
    parser.add_argument("--disk", choices=("model", "real"), default="model")
    parser.add_argument("--sync-us", type=int, default=1000, help="what a sync of the model disk costs")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="length of one sample")
    parser.add_argument("--tasks", type=int, default=usual.tasks, help="tasks of one step in one sample")
    parser.add_argument("--concurrency", type=_numbers, default=usual.concurrency, help="for example 1,8,64")
    parser.add_argument("--interrupted", type=_numbers, default=usual.interrupted, help="tasks to recover, or nothing")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


if __name__ == "__main__":
    main()
