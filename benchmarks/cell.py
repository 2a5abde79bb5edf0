"""The door to one cell, each in a process of its own: what one measures must not warm up or slow down the next.

    python -m benchmarks.cell steps '{"folder": "/dev/shm/x", "tasks": 8, "seconds": 1}'

Prints its numbers as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import limit, recovery, steps, tasks
from benchmarks.meter import Numbers
from perdure.runtime import collector

CELLS: dict[str, Callable[..., Numbers]] = {
    "limit": limit.measure,
    "steps": steps.measure,
    "tasks": tasks.measure,
    "serve": tasks.serve,
    "interrupt": recovery.interrupt,
    "recovery": recovery.measure,
    "recover_too": recovery.recover_too,
}


def main(name: str, arguments: str) -> None:
    """Measure one cell."""
    given = json.loads(arguments)
    if "folder" in given:
        given["folder"] = Path(given["folder"])
    collector.calm_down()  # As `perdure worker` does.
    print(json.dumps(CELLS[name](**given)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
