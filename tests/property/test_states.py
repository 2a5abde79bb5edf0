"""The database itself refuses every move that is not in the table, and allows every one that is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import FakeClock, SeededIds
from perdure.errors import StoreError
from perdure.states import INSTANCE, MACHINES, TASK, Machine, Transition
from perdure.store import MEMORY, open_store
from perdure.store.database import Transaction
from tests.rows import query
from tests.world import World

MOVE = query("UPDATE instances SET status = :target, stopped_at = 1 WHERE id = :id")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    clock = FakeClock()
    with open_store(MEMORY, clock=clock, ids=SeededIds()) as store:
        yield World(store, clock)


def _try(world: World, instance_id: str, target: str) -> bool:
    """Whether the database lets an instance move there by plain SQL."""

    def unit(tx: Transaction) -> None:
        tx.run(MOVE, target=target, id=instance_id)

    try:
        world.store.call(unit)
    except StoreError:
        return False
    return True


@given(path=st.lists(st.sampled_from(INSTANCE.statuses), max_size=8))
def test_an_instance_walks_only_along_arrows(world: World, path: list[str]) -> None:
    instance_id, status = world.new_worker().id, "starting"

    for target in path:
        moved = _try(world, instance_id, target)

        assert moved == (target == status or (status, target) in INSTANCE.moves)
        status = target if moved else status
        assert world.rows("SELECT status FROM instances WHERE id = :id", id=instance_id) == [(status,)]


def test_a_task_walks_only_along_arrows(world: World) -> None:
    # Owner and end are set as the schema's checks want them, so that only the move itself can be refused.
    terminal = ", ".join(f"'{status}'" for status in TASK.terminal)
    move = (
        f"UPDATE tasks SET status = :target, finished_at = CASE WHEN :target IN ({terminal}) THEN 1 END,"
        " execution_id = CASE WHEN :target = 'running' THEN id END,"
        " instance_id = CASE WHEN :target = 'running' THEN id END,"
        " waiting_for = CASE WHEN :target = 'waiting' THEN '[1]' ELSE '[]' END WHERE id = :id"
    )
    for source, target in product(TASK.statuses, TASK.statuses):
        task_id = world.admit().id
        for status in _way_to(source):
            world.execute(move, target=status, id=task_id)

        try:
            world.execute(move, target=target, id=task_id)
            moved = True
        except StoreError:
            moved = False

        assert moved == (source == target or (source, target) in TASK.moves), (source, target)


def _way_to(target: str) -> list[str]:
    """The statuses from pending to `target`, along arrows."""
    ways: dict[str, list[str]] = {"pending": []}
    for _ in TASK.statuses:
        for source, after in sorted(TASK.moves):
            if source in ways and after not in ways:
                ways[after] = [*ways[source], after]
    return ways[target]


@given(st.sampled_from(MACHINES), st.data())
def test_what_is_asked_of_a_machine_agrees_with_its_arrows(machine: Machine, data: st.DataObject) -> None:
    one: Transition = data.draw(st.sampled_from(machine.transitions))

    sources = machine.sources(one.verb)

    assert set(one.sources) <= set(sources)
    assert list(sources) == sorted(sources, key=machine.statuses.index)
    assert all((source, one.target) in machine.moves for source in one.sources)
    assert (one.target in machine.initial) or any(target == one.target for _, target in machine.moves)
