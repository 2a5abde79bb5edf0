"""The power goes at every call that SQLite makes on a disk, while tasks live their life: what was answered is there,
and whatever else is there is whole.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreError
from perdure.model.message import NewMessage
from perdure.model.task import Claim, Lane, Usage
from perdure.settings import Settings
from perdure.store import Store, events, instances, messages, questions, steps, tasks
from perdure.store.database import ThreadWaiter
from perdure.store.sqlite import open_sqlite
from perdure.testing.invariants import broken
from tests.crash.power import Disk, Fault
from tests.rows import query
from tests.world import World, done, packed, timer

CRASHES = 200_000 if os.environ.get("PERDURE_LONG") else 5_000
BLOCKS = 10
WAYS = (0.0, 0.5, 1.0)  # how much of what was not synced the disk has kept
CHECK = query("PRAGMA integrity_check")

Fact = Callable[[World], bool]


@dataclass
class Told:
    """What a life was told to be durable, as facts to look up after the crash."""

    facts: list[tuple[str, Fact]] = field(default_factory=list)
    is_over: bool = False


def open_world(disk: Disk, seed: int) -> World:
    """The store on a disk that may fail, in this thread alone."""
    clock, ids, settings = FakeClock(), SeededIds(seed), Settings(busy_s=0.1)
    database = open_sqlite(Path("agents.db"), settings=settings, clock=clock, ids=ids, vfs=disk.name, inline=True)
    return World(Store(database, clock=clock, ids=ids, settings=settings), clock)


def live(world: World, told: Told) -> None:
    """One life of a task: each durable answer becomes a fact; soft ones are hardened by the next durable one."""

    def durable(name: str, fact: Fact) -> None:
        told.facts.append((name, fact))

    task = world.admit(key="one")
    durable("admitted", lambda w: w.task(task.id).id == task.id)
    worker = world.worker
    (claim,) = _softly(
        world,
        tasks.claim,
        lane=Lane.SUBAGENT,
        instance=worker.n,
        instance_id=worker.id,
        generation=worker.generation,
        limit=1,
    )
    _softly(world, instances.beat, worker.id, generation=worker.generation, held=[claim.execution_id])
    world.record(claim, "low", done(usage=Usage(10, 5, 0.5)))
    durable("low step", lambda w: _outcome(w, claim, "low") == "completed")
    durable("claimed before it", lambda w: w.task(task.id).attempt >= 1)
    world.begin(claim, "high", risk="high")
    durable("intent", lambda w: _outcome(w, claim, "high") in ("open", "completed"))
    _softly(world, events.add_pulses, task.id, execution_id=claim.execution_id, after_seq=1, number=1, packed=b"J[]")
    world.end_step(claim, "high", risk="high")
    durable("outcome", lambda w: _outcome(w, claim, "high") == "completed")
    world.store.call(messages.append, claim.fence, NewMessage("user", b'"' + b"x" * 9000 + b'"'), step_key="m")
    durable("message", lambda w: len(w.store.read(messages.listing, task.id)) == 1)
    world.store.call(messages.save_checkpoint, claim.fence, packed({"at": "x" * 3000}), step_key="c")
    durable("checkpoint", lambda w: w.task(task.id).checkpoint == 1)
    _softly(world, tasks.wait, claim.fence, timer(world.clock.now_ms() + 1000))
    _softly(world, tasks.restore, claim.fence)
    child = world.spawn(claim)
    durable("child", lambda w: w.task(child.id).parent_task_id == task.id)
    world.complete(world.claim(child.id))
    durable("child's end", lambda w: w.task(child.id).status == "completed")
    asked = world.ask(claim)
    durable("question", lambda w: w.store.read(questions.get, asked.id).id == asked.id)
    world.complete(claim, "r" * 5000)
    durable("completed", lambda w: w.task(task.id).status == "completed")
    told.is_over = True


def _softly(world: World, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    waiter: ThreadWaiter[Any] = ThreadWaiter()
    world.store.database.write_softly(lambda tx: operation(tx, *args, **kwargs), waiter)
    return waiter.wait()


def _outcome(world: World, claim: Claim, key: str) -> str:
    found = world.store.read(steps.by_key, claim.task.id, key)
    return "missing" if found is None else found.outcome or "open"


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
    live(world, told)
    count = disk.calls
    world.store.close()
    disk.close()
    assert told.is_over
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
        live(world, told)
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
        wrong += [f"{name} is lost" for name, fact in told.facts if not _holds(fact, world)]
        world.admit(key="two")  # and life goes on
        return wrong
    finally:
        world.store.close()


def _holds(fact: Fact, world: World) -> bool:
    try:
        return fact(world)
    except LookupError:
        return False
