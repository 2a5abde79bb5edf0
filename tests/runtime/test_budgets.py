"""Budgets: what a family of tasks may use together, side by side and over crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.store import budgets
from perdure.store.database import Transaction
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre


def spender(made: list[int], *, seconds: float = 0) -> Callable[..., Any]:
    """A model that uses 100 tokens a call."""

    async def think(n: int) -> dict[str, Any]:
        made.append(n)
        await asyncio.sleep(seconds)
        return {"usage": {"input_tokens": 100, "output_tokens": 0}}

    return think


async def test_what_a_child_used_is_gone_from_its_parents_budget(house: Theatre) -> None:
    made: list[int] = []
    think = spender(made)

    @perdure.agent
    async def kid() -> None:
        await perdure.model(think, 1)

    @perdure.agent(budget=perdure.Budget(tokens=100, iterations=3))
    async def lead() -> list[Any]:
        await kid()
        left = perdure.current().budget_left
        try:
            await perdure.model(think, 2)
        except perdure.BudgetExceeded as over:
            return [left.tokens, left.iterations, over.limit]
        return []

    await house.hire(lead, kid)

    assert await house.run(lead) == [0, 2, "tokens 100 of 100 (limit of lead)"]
    assert made == [1]


async def test_children_side_by_side_share_the_tokens_of_their_parent(house: Theatre) -> None:
    made: list[int] = []
    think = spender(made, seconds=1)

    @perdure.agent
    async def kid(n: int) -> str:
        try:
            while True:
                await perdure.model(think, n)
        except perdure.BudgetExceeded as over:
            return over.limit

    @perdure.agent(budget=perdure.Budget(tokens=700))
    async def lead() -> list[str]:
        return await perdure.gather(*(kid(n) for n in range(5)))

    await house.hire(lead, kid)

    # What a call uses is known only when it returns: the round that goes over the limit is the last.
    assert await house.run(lead) == ["tokens 1,000 of 700 (limit of lead)"] * 5
    assert len(made) == 10


@pytest.mark.parametrize("is_apart", [False, True])
async def test_children_side_by_side_make_no_more_calls_than_their_parent_may(house: Theatre, is_apart: bool) -> None:
    made: list[int] = []

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        made.append(n)
        await asyncio.sleep(1)
        return n

    @perdure.agent
    async def kid(n: int) -> int:
        found = await perdure.gather(*(look(n) for _ in range(3)), return_exceptions=True)
        return sum(isinstance(one, int) for one in found)

    @perdure.agent(budget=perdure.Budget(tool_calls=7))
    async def lead() -> int:
        await look(0)
        return sum(await perdure.gather(*(kid(n) for n in range(5))))

    if is_apart:
        await house.hire(kid)
    await house.hire(lead) if is_apart else await house.hire(lead, kid)
    task = await house.client.start(lead)

    assert await task.result() == 6
    assert len(made) == 7


@pytest.mark.parametrize("risk", ["low", "high"])
async def test_a_call_that_the_store_refuses_was_never_begun(house: Theatre, risk: Any) -> None:
    @perdure.tool(risk=risk)
    async def look(n: int) -> int:
        await asyncio.sleep(1)
        return n

    @perdure.agent
    async def kid(n: int) -> bool:
        try:
            await look(n)
        except perdure.BudgetExceeded:
            (me,) = (one for one in actor.worker.attempts.values() if one.task.id == perdure.current().task_id)
            return not me.intents
        return False

    @perdure.agent(budget=perdure.Budget(tool_calls=1))
    async def lead() -> list[bool]:
        return await perdure.gather(*(kid(n) for n in range(2)))

    actor = await house.hire(lead, kid)

    assert sorted(await house.run(lead)) == [False, True]


async def test_the_tasks_below_a_budget_are_added_up_once_for_each_call_that_it_counts(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[str] = []
    binding = budgets.binding

    def counted(tx: Transaction, task_id: str) -> list[budgets.Binding]:
        walks.append(task_id)
        return binding(tx, task_id)

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        return n

    @perdure.agent
    async def kid() -> None:
        pass

    @perdure.agent(budget=perdure.Budget(tool_calls=4))
    async def lead() -> list[int]:
        await kid()
        monkeypatch.setattr(budgets, "binding", counted)
        return [await look(n) for n in range(4)]

    await house.hire(lead, kid)

    assert await house.run(lead) == [0, 1, 2, 3]
    assert len(walks) == 4


async def test_a_refused_call_does_not_count(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        await asyncio.sleep(1)
        return n

    @perdure.agent
    async def kid(n: int) -> str:
        limit = ""
        for _ in range(3):
            try:
                await look(n)
            except perdure.BudgetExceeded as over:
                limit = over.limit
        return limit

    @perdure.agent(budget=perdure.Budget(tool_calls=2))
    async def lead() -> list[str]:
        return await perdure.gather(*(kid(n) for n in range(2)))

    await house.hire(lead, kid)

    assert set(await house.run(lead)) == {"tool_calls 3 of 2 (limit of lead)"}


async def test_a_call_cut_off_by_a_crash_is_counted_once_and_runs_again(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        ledger.note(str(n))
        if n == 1:
            await ledger.hold()
        return n

    @perdure.agent
    async def kid() -> list[int]:
        found = await perdure.gather(*(look(n) for n in (1, 2, 3)), return_exceptions=True)
        return [one for one in found if isinstance(one, int)]

    @perdure.agent(budget=perdure.Budget(tool_calls=2))
    async def lead() -> list[int]:
        return await kid()

    first = await house.hire(lead, kid)
    task = await house.client.start(lead)
    await kill_inside(house, first, ledger)
    await house.hire(lead, kid)

    assert await task.result() == [1, 2]
    assert ledger.done == ["1", "2", "1"]
    assert house.children(task)[0].tool_calls == 2


async def test_a_task_without_a_budget_reads_and_writes_nothing_more(
    house: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(budgets, "binding")

    @perdure.tool(risk="low")
    async def look() -> int:
        return 1

    @perdure.agent
    async def host() -> int:
        return await look()

    task = await house.client.start(host)
    await house.hire(host)

    assert await task.result() == 1
    assert [step.started_seq + 1 for step in house.steps(task)] == [step.ended_seq for step in house.steps(task)]


async def test_a_call_that_its_caller_gave_up_while_a_person_was_asked_is_not_counted(house: Theatre) -> None:
    @perdure.tool(risk="high", approve=True)
    async def pay(n: int) -> int:
        return n

    @perdure.tool
    async def look() -> int:
        return 7

    @perdure.agent(budget=perdure.Budget(tool_calls=1))
    async def host() -> int:
        try:
            async with asyncio.timeout(10):
                await pay(1)
        except TimeoutError:
            pass
        return await look()

    assert await house.play(host) == 7
