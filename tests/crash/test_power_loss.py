"""The power goes at every call that SQLite makes on a disk, while tasks live their life: what was answered is there,
and whatever else is there is whole.
"""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreError
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.sqlite import open_sqlite
from perdure.testing.invariants import broken
from tests.crash.power import Disk, Fault
from tests.lives import Fact, holds, live_briefly
from tests.rows import query
from tests.world import World

CRASHES = 200_000 if os.environ.get("PERDURE_LONG") else 5_000
BLOCKS = 10
WAYS = (0.0, 0.5, 1.0)  # how much of what was not synced the disk has kept
CHECK = query("PRAGMA integrity_check")


@dataclass
class Told:
    """What a life was told to be durable, as facts to look up after the crash."""

    facts: list[tuple[str, Fact]] = field(default_factory=list)

    def tell(self, name: str, fact: Fact) -> None:
        """One more durable answer."""
        self.facts.append((name, fact))


def open_world(disk: Disk, seed: int) -> World:
    """The store on a disk that may fail, in this thread alone."""
    clock, ids, settings = FakeClock(), SeededIds(seed), Settings(busy_s=0.1)
    database = open_sqlite(Path("agents.db"), settings=settings, clock=clock, ids=ids, vfs=disk.name, inline=True)
    return World(Store(database, clock=clock, ids=ids, settings=settings), clock)


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """The files of a database that was opened once and closed."""
    disk = Disk("fresh", seed=0)
    open_world(disk, 0).store.close()
    disk.close()
    return disk.files


@pytest.fixture(scope="module")
def calls(fresh: dict[str, Any]) -> int:
    """How many calls one life makes."""
    disk, told = Disk("measure", seed=0), Told()
    disk.files = copy.deepcopy(fresh)
    world = open_world(disk, 0)
    disk.calls = 0
    live_briefly(world, told.tell)
    count = disk.calls
    world.store.close()
    disk.close()
    assert told.facts[-1][0] == "completed"
    return count


@pytest.mark.slow(timeout_s=3600 if os.environ.get("PERDURE_LONG") else 120)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_was_answered_survives_a_loss_of_power_at_any_call(fresh: dict[str, Any], calls: int, block: int) -> None:
    chance = random.Random(block)
    lost: list[str] = []
    for number in range(CRASHES // BLOCKS // len(WAYS)):
        lost += crash(fresh, seed=block * CRASHES + number, at_call=chance.randint(1, calls))

    assert calls > 30
    assert lost == []


def crash(fresh: dict[str, Any], *, seed: int, at_call: int) -> list[str]:
    """One life that ends at a call, and each way in which the disk may be found after it: what is missing or broken."""
    disk, told = Disk(f"power-{seed}", seed=seed), Told()
    disk.files = copy.deepcopy(fresh)
    world = open_world(disk, seed)
    disk.calls, disk.fault, disk.at_call = 0, Fault.POWER_LOSS, at_call
    try:
        live_briefly(world, told.tell)
    except StoreError:
        pass  # The power went in the middle of it.
    finally:
        world.store.close()
    wrong: list[str] = []
    files = disk.files
    for kept in WAYS:
        disk.files = copy.deepcopy(files)
        disk.reboot(kept=kept)
        wrong += [f"seed {seed}, call {at_call}, {kept:g} kept: {what}" for what in _restart(disk, seed, told)]
    disk.close()
    return wrong


def _restart(disk: Disk, seed: int, told: Told) -> list[str]:
    world = open_world(disk, seed + 1)
    try:
        wrong = list(world.store.read(broken))
        if world.store.call(lambda tx: tx.all(CHECK)) != [("ok",)]:
            wrong.append("the file is damaged")
        wrong += [f"{name} is lost" for name, fact in told.facts if not holds(fact, world)]
        world.admit(key="two")  # and life goes on
        return wrong
    finally:
        world.store.close()
