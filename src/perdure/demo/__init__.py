"""`perdure demo`: real worker processes do recorded work, are killed and frozen, and keep three promises.

    run_demo(sources=[], kills=15, workers=2, seed=1, url=None, as_json=False)

The tools write what they did into a ledger outside the database, and the workers what the store confirmed to them; a
verdict compares both with the database at the end. Nothing of it is staged: the processes are killed by the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

KILLS = 15
WORKERS = 2


def run_demo(
    *,
    sources: Sequence[Path] = (),
    kills: int = KILLS,
    workers: int = WORKERS,
    seed: int = 1,
    url: str | None = None,
    as_json: bool = False,
    copies: int = 1,
    zombies: int | None = None,
    out: TextIO | None = None,
) -> int:
    """Run the demo and print on `out`, else standard output, what happened; 0 when every promise was kept, else 1.

    `sources` are files of recorded runs or folders of them; a small scenario when there are none. Each run is played
    `copies` times. `zombies` workers are frozen past their lease and woken: by default one for every eight kills.
    The database is a new file unless `url` names an empty one. Raises BadInput for what cannot be read or used.
    """
    # Only now: a worker of the demo imports this package, too, and must start quickly.
    from perdure.demo.show import show

    return show(
        sources=sources,
        kills=kills,
        workers=workers,
        seed=seed,
        url=url,
        as_json=as_json,
        copies=copies,
        zombies=-(-kills // 8) if zombies is None else zombies,
        out=out,
    )
