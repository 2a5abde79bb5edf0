"""What cannot be dealt with stands at the head of a list for ever, and holds up nothing behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import perdure
from perdure.errors import StoreError
from perdure.model.instance import InstanceType
from perdure.runtime import sweeper
from perdure.runtime.liveness import whoami
from perdure.runtime.membership import Membership
from perdure.states import InstanceStatus
from perdure.store import ends, instances, recovery
from perdure.store.database import Transaction
from tests.theatre import Theatre

T = TypeVar("T")
FULL = 2


@pytest.fixture(autouse=True)
def _small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "_BATCH", FULL)


def _failing_for(task_ids: list[str], act: Callable[..., T]) -> Callable[..., T]:
    def acting(tx: Transaction, task_id: str, **more: Any) -> T:
        if task_id in task_ids:
            raise StoreError("this row cannot be dealt with")
        return act(tx, task_id, **more)

    return acting


def _failing(*_: Any, **__: Any) -> None:
    raise StoreError("one of these rows cannot be dealt with")


@perdure.agent
async def asking() -> str:
    return await perdure.ask("Which one?")


@perdure.agent
async def idle() -> None: ...


async def test_news_that_fails_or_hangs_for_some_questions_reaches_the_app_of_the_others(house: Theatre) -> None:
    told: list[str] = []

    async def notify(question: Any) -> None:
        told.append(question.id)
        if question.id in ("Q1", "Q3"):
            raise RuntimeError("no route")
        if question.id == "Q2":
            await asyncio.sleep(1e6)

    await house.client.start_all(asking.bind() for _ in range(6))
    await house.hire(asking, notify=notify)
    await house.until(lambda: "Q6" in told)
    await house.until(lambda: told.count("Q3") > 1)

    assert told == ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q1", "Q2", "Q3"]


class Hangup(BaseException):
    """Raised by a library that means to end more than itself."""


@pytest.mark.parametrize("failure", [asyncio.CancelledError, Hangup, GeneratorExit])
async def test_a_notify_that_is_cancelled_from_inside_has_failed_and_ends_no_loop(
    house: Theatre, failure: type[BaseException]
) -> None:
    told: list[str] = []

    async def notify(question: Any) -> None:
        told.append(question.id)
        if len(told) == 1:
            raise failure

    await house.client.start(asking)
    await house.client.start(asking)
    actor = await house.hire(asking, notify=notify)
    await house.until(lambda: len(told) == 3)  # the first failed, and is told again after the second

    assert told[0] == told[2]
    assert not actor.running.done()


async def test_tasks_that_cannot_be_recovered_hold_up_no_other(house: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await house.hire(asking)
    handles = await house.client.start_all(asking.bind() for _ in range(5))
    await house.until(lambda: all(house.row(one).status == "waiting" for one in handles))
    stuck = [one.id for one in handles[:FULL]]
    monkeypatch.setattr(recovery, "act", _failing_for(stuck, recovery.act))
    monkeypatch.setattr(recovery, "resume_plain", _failing)

    house.kill(first)
    await house.hire(asking)

    await house.until(lambda: all(len(house.attempts(one)) == 2 for one in handles[FULL:]))
    assert [house.row(one).status for one in stuck] == ["interrupted"] * FULL


async def test_tasks_that_cannot_be_timed_out_hold_up_no_other(house: Theatre, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = await house.client.start_all(asking.options(deadline=1).bind() for _ in range(5))
    stuck = [one.id for one in handles[:FULL]]
    monkeypatch.setattr(ends, "time_out", _failing_for(stuck, ends.time_out))
    await asyncio.sleep(10)

    await house.hire(idle)  # Nobody claims them: only the sweep ends them.

    await house.until(lambda: all(house.row(one).status == "timed_out" for one in handles[FULL:]))
    assert [house.row(one).status for one in stuck] == ["pending"] * FULL
    monkeypatch.undo()


async def test_a_silent_instance_is_proven_dead_behind_many_that_never_will_be(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    me = whoami()
    for number in range(110):
        host, boot_id = ("elsewhere", "other") if number < 103 else (me.host, me.boot_id)
        house.store.call(
            instances.register,
            instance_id=f"i{number}",
            type=InstanceType.EXECUTOR,
            host=host,
            boot_id=boot_id,
            pid=1,
            killable=False,
        )
        house.store.call(instances.mark_crashed, f"i{number}", heartbeat=1)
    monkeypatch.setattr(Membership, "lock_path", property(lambda _: tmp_path / "live"))
    monkeypatch.setattr(sweeper, "is_dead", lambda one, **_: one.id == "i109")

    await house.hire(asking)

    await house.until(lambda: house.store.read(instances.get, "i109").status is InstanceStatus.STOPPED)
    assert house.store.read(instances.get, "i108").status is InstanceStatus.CRASHED
