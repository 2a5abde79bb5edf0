"""Whole towns of workers in virtual time: whatever dies, stalls or comes back late, every promise holds at the end.

A failing seed is replayed with `Town(seed).play()`. PERDURE_LONG=1 runs many more.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.town import Town

SEEDS = 5000 if os.environ.get("PERDURE_LONG") else 500
GATE_S = 3600.0 if os.environ.get("PERDURE_LONG") else 45.0
FEWEST = 20
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What workers log about their misfortunes would fill the screen."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow(timeout_s=4000 if os.environ.get("PERDURE_LONG") else 240)
def test_an_hour_of_trouble_breaks_no_promise() -> None:
    started = time.monotonic()
    seeds = deaths = stalls = 0

    while seeds < SEEDS and (seeds < FEWEST or time.monotonic() - started < GATE_S):
        town = Town(seeds)
        town.play()
        seeds, deaths, stalls = seeds + 1, deaths + town.deaths, stalls + town.stalls

    print(f"{seeds} seeds, {deaths} deaths, {stalls} stalls in {time.monotonic() - started:.0f} s")
    assert deaths > seeds
    assert stalls > seeds // 2


def test_a_seed_runs_the_same_way_again() -> None:
    assert Town(3).play() == Town(3).play()
    assert Town(3).play() != Town(4).play()


def test_a_seed_runs_the_same_way_in_another_process() -> None:
    # Sets of texts have another order there.
    program = "import logging; logging.disable(50); from tests.simulation.town import Town; print(Town(5).play())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=100
    )

    assert ran.stdout.strip() == Town(5).play()
