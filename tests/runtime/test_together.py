"""What a worker does for many tasks at once: the outcome is each task's own, also when the write for all fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import perdure
from perdure.errors import StoreError
from perdure.store import completions, recovery, traces
from perdure.store.completions import Completion
from perdure.store.database import Transaction
from tests.theatre import Theatre

TASKS = 10


@perdure.agent
async def square(number: int) -> int:
    return number * number


async def twice(number: int) -> int:
    return 2 * number


@perdure.agent
async def asking(number: int) -> str:
    doubled = await perdure.step("twice", twice, number)
    return f"{doubled} {await perdure.ask('Which one?')}"


async def _squares(house: Theatre) -> list[int]:
    handles = await house.client.start_all(square.bind(number) for number in range(TASKS))
    await house.hire(square)
    return [await one.result() for one in handles]


async def test_tasks_that_complete_in_one_turn_are_completed_in_one_write(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    complete_all = completions.complete_all

    def count(tx: Transaction, wanted: Sequence[Completion]) -> set[str]:
        written.append(len(wanted))
        return complete_all(tx, wanted)

    monkeypatch.setattr(completions, "complete_all", count)

    assert await _squares(house) == [number * number for number in range(TASKS)]
    assert written == [TASKS]


async def test_when_the_write_for_all_fails_each_task_completes_by_itself(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreError("no room for so much at once")

    monkeypatch.setattr(completions, "complete_all", fail)

    assert await _squares(house) == [number * number for number in range(TASKS)]


@pytest.mark.parametrize("failing", [(), ("resume_plain",), ("read_all",), ("resume_plain", "read_all")])
async def test_tasks_of_a_killed_worker_are_recovered_together_or_one_by_one(
    house: Theatre, monkeypatch: pytest.MonkeyPatch, failing: Sequence[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("no")

    alone: list[str] = []

    def watch(module: Any, name: str) -> None:
        real = getattr(module, name)

        def watched(tx: Transaction, task_id: str, **more: Any) -> Any:
            alone.append(name)
            return real(tx, task_id, **more)

        monkeypatch.setattr(module, name, watched)

    for module, name in ((recovery, "resume_plain"), (traces, "read_all")):
        if name in failing:
            monkeypatch.setattr(module, name, fail)
    first = await house.hire(asking)
    handles = await house.client.start_all(asking.bind(number) for number in range(TASKS))
    await house.until(lambda: all(house.row(one).status == "waiting" for one in handles))
    watch(recovery, "act")
    watch(traces, "read")

    house.kill(first)
    await house.hire(asking)
    await house.until(lambda: all(len(house.attempts(one)) == 2 for one in handles))
    for _ in handles:
        question = await house.question()
        await question.answer("this", by="ana")

    assert [await one.result() for one in handles] == [f"{2 * number} this" for number in range(TASKS)]
    expected = {"resume_plain": "act", "read_all": "read"}
    assert sorted(alone) == sorted(expected[name] for name in failing for _ in handles)
