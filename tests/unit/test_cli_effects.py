"""Calls in doubt as people list them: a call that runs is none, until its process has died."""

from __future__ import annotations

import pytest

from perdure import people
from perdure.cli import looking
from perdure.clock import FakeClock, SeededIds
from perdure.commands import Commands
from perdure.runtime.liveness import Judge
from perdure.store import MEMORY, open_store
from perdure.store.database import Transaction
from tests.world import World


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_page_of_calls_in_doubt_is_full_however_many_calls_run_before_them(limit: int) -> None:
    clock = FakeClock()
    with open_store(MEMORY, clock=clock, ids=SeededIds(1)) as store:
        world = World(store, clock)
        alive, dead = world.new_worker(), world.new_worker()
        for key, worker in [*((f"runs-{n}", alive) for n in range(102)), ("first", dead), ("second", dead)]:
            clock.advance(1)
            world.begin(world.start(worker=worker), key, risk="high")

        found: list[str] = []
        after = (-1, 0)
        while page := store.read(
            looking._effects,
            since_ms=0,
            in_doubt=True,
            after=after,
            limit=limit,
            view=looking._View(Judge(lambda one: one.id == dead.id), Commands()),
        )[0]:
            found += [one.effect.step.key or "" for one in page]
            after = page[-1].effect.place

    assert found == ["first", "second"]


def test_who_settled_calls_is_read_once_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(tx: Transaction, task_id: str) -> people.SettledCalls:
        read.append(task_id)
        return people.settled(tx, task_id)

    monkeypatch.setattr(looking, "settled", counted)
    with open_store(MEMORY, clock=FakeClock(), ids=SeededIds(1)) as store:
        world = World(store, FakeClock())
        claims = [world.start() for _ in range(2)]
        for claim in claims:
            for number in range(5):
                world.record(claim, f"pay-{number}", risk="high")
            world.complete(claim)

        seen, _ = store.read(
            looking._effects,
            since_ms=0,
            in_doubt=False,
            after=(-1, 0),
            limit=100,
            view=looking._View(Judge(), Commands()),
        )

    assert len(seen) == 10
    assert sorted(read) == sorted(claim.task.id for claim in claims)
