"""The identity of a worker that was taken for dead: given up for good, and no other claimed under before it stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.errors import StoreBusy, StoreError
from perdure.settings import Settings
from perdure.store import instances
from perdure.store.database import Row, Unit, Value, Waiter
from perdure.store.queries import Query
from perdure.testing.actor import Actor
from tests.theatre import Theatre


@pytest.fixture
def settings() -> Settings:
    return Settings(sweep_s=0.5, poll_ms=500, heartbeat_s=1, lease_s=6)


class Refusing:
    """Lets the first `times` transactions of a worker fail that come to one query."""

    def __init__(self, actor: Actor, name: str, *, times: int, error: Callable[[], StoreError]) -> None:
        self.left = times
        self._name = name
        self._error = error
        self._run = actor.line._run
        actor.line._run = self._run_unit  # type: ignore[method-assign]  # it is what fails

    def _run_unit(self, submit: Callable[[Unit[Any], Waiter], None], unit: Unit[Any], waiter: Waiter) -> None:
        self._run(submit, lambda tx: unit(_Watched(tx, self)), waiter)

    def look(self, query: Query) -> None:
        """Fail, if it is this query's turn."""
        if query.name == self._name and self.left:
            self.left -= 1
            raise self._error()


class _Watched:
    def __init__(self, tx: Any, refusing: Refusing) -> None:
        self._tx = tx
        self._refusing = refusing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def one(self, query: Query, /, **values: Value) -> Row | None:
        self._refusing.look(query)
        row: Row | None = self._tx.one(query, **values)
        return row

    def run(self, query: Query, /, **values: Value) -> int:
        self._refusing.look(query)
        changed: int = self._tx.run(query, **values)
        return changed


def lost() -> StoreError:
    """What a broken connection raises."""
    return StoreError("the connection was lost; nothing was written")


def declare_silent(house: Theatre, actor: Actor) -> str:
    """As others do with a worker that does not beat; its id."""
    row = house.store.read(instances.get, actor.worker.instance_id)
    assert house.store.call(instances.mark_crashed, row.id, heartbeat=row.heartbeat)
    return row.id


def status_of(house: Theatre, instance_id: str) -> str:
    return house.store.read(instances.get, instance_id).status


async def test_a_worker_whose_new_registration_fails_claims_nothing_until_it_stands(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        return "ran"

    actor = await house.hire(host)
    refusing = Refusing(actor, "instances.next_generation", times=2, error=lost)
    old = declare_silent(house, actor)
    await house.until(lambda: refusing.left < 2)
    task = await house.client.start(host)
    adopted = await actor.worker.adopt(task.id)
    told_as = actor.worker.instance_id
    result = await task.result()

    assert (adopted, told_as, result) == (False, old, "ran")
    assert not actor.running.done()
    assert [one.instance_id for one in house.attempts(task)] == [actor.worker.instance_id] != [old]
    assert [status_of(house, one) for one in (old, actor.worker.instance_id)] == ["stopped", "starting"]


async def test_killed_before_its_new_registration_stands_a_worker_leaves_no_task_behind(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        if len(house.actors) == 1:
            await asyncio.sleep(1e6)
        return "ran"

    actor = await house.hire(host)
    refusing = Refusing(actor, "instances.next_generation", times=1, error=lost)
    declare_silent(house, actor)
    await house.until(lambda: not refusing.left)
    task = await house.client.start(host)
    await asyncio.sleep(0.9)
    actor.die()  # Nobody can say so in the store of an identity that never stood there.
    await house.hire(host)

    assert await task.result() == "ran"


async def test_an_identity_is_retired_although_the_store_fails_at_first(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    @perdure.agent
    async def host() -> None: ...

    actor = await house.hire(host)
    Refusing(actor, "instances.stop", times=3, error=lost)
    with caplog.at_level(logging.WARNING):
        old = declare_silent(house, actor)
        await house.until(lambda: status_of(house, old) == "stopped")

    assert sum("could not be retired" in one.message for one in caplog.records) == 3


@pytest.mark.parametrize("was_silent", [False, True])
async def test_a_worker_that_leaves_asks_a_busy_store_again_for_each_of_its_identities(
    house: Theatre, was_silent: bool
) -> None:
    @perdure.agent
    async def host() -> None: ...

    actor = await house.hire(host)
    told = [actor.worker.instance_id]
    if was_silent:
        refusing = Refusing(actor, "instances.stop", times=3, error=lost)
        declare_silent(house, actor)
        await house.until(lambda: not refusing.left)
        told.append(actor.worker.instance_id)
    Refusing(actor, "instances.stop", times=5, error=lambda: StoreBusy("held by 7", holder_pid=7))
    await house.dismiss(actor)

    assert [status_of(house, one) for one in told] == ["stopped"] * len(told)


async def test_a_worker_that_nobody_could_be_told_of_lets_go_of_its_lock(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.agent
    async def host() -> None: ...

    actor = await house.hire(host)
    released: list[bool] = []
    monkeypatch.setattr(actor.worker.membership._lock, "release", lambda: released.append(True))
    Refusing(actor, "instances.stop", times=10**6, error=lambda: StoreBusy("held by 7", holder_pid=7))
    await house.dismiss(actor)

    assert released == [True]
    assert status_of(house, actor.worker.instance_id) == "starting"
