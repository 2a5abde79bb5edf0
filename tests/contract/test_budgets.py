"""Budgets: what a task and all below it use is deducted from every budget above, however many begin at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from perdure.errors import BudgetExceeded
from perdure.model.step import StepKind
from perdure.model.task import Claim, Usage
from perdure.policy.budget import Budget, spend
from perdure.runtime.spending import Spending
from perdure.store import Store, Transaction, aio, budgets, steps
from perdure.store.budgets import Binding
from tests.contract.conftest import OpenSecond
from tests.world import World, done, new_step, outcome_of


def _left(world: World, claim: Claim) -> list[Budget]:
    """What is left of each budget that binds a task, its own first."""
    return [spend(one.budget, one.used) for one in world.store.read(budgets.binding, claim.task.id)]


def _begin(store: Store, claim: Claim, key: str, kind: StepKind = StepKind.TOOL_CALL) -> steps.Written:
    return store.call(steps.begin, claim.fence, new_step(key, kind=kind), counts=True)


def test_what_is_used_below_is_deducted_up_to_every_budget_above(world: World) -> None:
    top = world.start()
    lead = world.claim(world.spawn(top, "lead", budget=Budget(tokens=1000, cost=1.0, tool_calls=9, iterations=5)).id)
    child = world.claim(world.spawn(lead, "child", budget=Budget(tokens=500)).id)
    grandchild = world.claim(world.spawn(child, "grandchild").id)
    other = world.claim(world.spawn(top, "other").id)
    used = done(usage=Usage(prompt_tokens=60, completion_tokens=40, cost=0.25))

    world.record(grandchild, "m", used, kind=StepKind.MODEL_CALL)
    world.record(grandchild, "t")
    world.record(child, "t")
    world.record(lead, "t")
    world.record(other, "m", used, kind=StepKind.MODEL_CALL)

    assert _left(world, grandchild) == [
        Budget(tokens=400, cost=0.75, tool_calls=8, iterations=4),
        Budget(tokens=400, cost=0.75, tool_calls=7, iterations=4),
        Budget(tokens=900, cost=0.75, tool_calls=6, iterations=4),
    ]
    assert _left(world, lead) == _left(world, grandchild)[2:]
    assert _left(world, other) == _left(world, top) == []


def test_usage_counts_however_its_task_and_its_attempt_ended(world: World) -> None:
    lead = world.start(budget=Budget(tool_calls=9))
    ended = [world.claim(world.spawn(lead, key).id) for key in ("completed", "failed", "cancelled", "interrupted")]
    for claim in ended:
        world.record(claim, "t")
    world.complete(ended[0])
    world.fail(ended[1])
    world.end(ended[2].task.id, "cancel")
    world.interrupt(ended[3])

    assert _left(world, lead) == [Budget(tool_calls=5)]


def test_more_tokens_than_an_integer_holds_are_a_used_up_budget(world: World) -> None:
    lead = world.start(budget=Budget(tokens=10))
    for key in ("a", "b"):
        claim = world.claim(world.spawn(lead, key).id)
        world.record(claim, "m", done(usage=Usage(prompt_tokens=2**63 - 1, completion_tokens=2**63 - 1)))

    assert _left(world, lead) == [Budget(tokens=0)]


def test_a_child_gets_what_is_left_of_every_limit(world: World) -> None:
    lead = world.start(budget=Budget(iterations=5, tool_calls=5))
    first = world.claim(world.spawn(lead, "a").id)
    world.record(first, "m", kind=StepKind.MODEL_CALL)
    world.record(first, "t")

    second = world.claim(world.spawn(lead, "b").id)

    assert _left(world, second)[0] == Budget(iterations=4, tool_calls=4)


@pytest.mark.parametrize(("kind", "limit"), [(StepKind.TOOL_CALL, "tool_calls"), (StepKind.MODEL_CALL, "iterations")])
def test_a_call_that_a_budget_above_has_no_room_for_is_refused_and_writes_nothing(
    world: World, kind: StepKind, limit: str
) -> None:
    lead = world.start(agent="writer", budget=Budget(**{limit: 2}))
    one, other = (world.claim(world.spawn(lead, key).id) for key in "ab")
    _begin(world.store, one, "1", kind)
    _begin(world.store, lead, "2", kind)

    refused = world.unchanged_by(_begin, world.store, other, "3", kind)

    assert isinstance(refused, BudgetExceeded)
    assert refused.limit == f"{limit} 3 of 2 (limit of writer)"


def test_a_call_that_was_begun_is_counted_once_whoever_ends_it(world: World) -> None:
    lead = world.start(budget=Budget(tool_calls=2, iterations=2))
    child = world.spawn(lead)
    first = world.claim(child.id)
    _begin(world.store, first, "t")
    _begin(world.store, first, "m", StepKind.MODEL_CALL)
    world.interrupt(first)
    world.recover(child.id)
    second = world.claim(child.id)
    world.end_step(second, "t")
    world.end_step(second, "m", kind=StepKind.MODEL_CALL)

    assert _left(world, lead) == [Budget(tool_calls=1, iterations=1)]


def test_of_calls_that_begin_at_once_in_many_children_exactly_as_many_begin_as_there_is_room_for(
    world: World, request: pytest.FixtureRequest
) -> None:
    other = world.store
    if other.database.url != "sqlite://":
        open_second: OpenSecond = request.getfixturevalue("open_second")
        other = open_second(world.store)
    lead = world.start(budget=Budget(tool_calls=10))
    children = [world.claim(world.spawn(lead, f"{number}").id) for number in range(8)]
    outcomes: list[object] = []

    def work(number: int) -> None:
        store = other if number % 2 else world.store
        for key in range(4):
            outcomes.append(outcome_of(_begin, store, children[number], f"{key}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(isinstance(one, steps.Written) for one in outcomes) == 10
    assert sum(isinstance(one, BudgetExceeded) for one in outcomes) == 22
    assert _left(world, lead) == [Budget(tool_calls=0)]


def test_a_task_is_bound_by_its_budget_and_all_above_and_without_any_by_none(world: World) -> None:
    top = world.start()
    lead = world.claim(world.spawn(top, "lead", budget=Budget(tokens=9)).id)
    child = world.claim(world.spawn(lead, "child").id)
    world.spawn(top, "other")

    bound = world.rows(
        "SELECT t.id, o.id FROM bindings b JOIN tasks t ON t.n = b.task JOIN tasks o ON o.n = b.budget_of"
    )

    ids = (lead.task.id, child.task.id)
    assert sorted(bound) == sorted([(ids[0], ids[0]), (ids[1], ids[0]), (ids[1], ids[1])])


async def test_children_that_end_together_are_looked_at_once_or_twice_and_each_is_seen(world: World) -> None:
    lead = world.start(budget=Budget(tool_calls=100))
    children = [world.claim(world.spawn(lead, f"child{number}").id) for number in range(10)]
    spending, reads = Spending(lead), 0

    async def read(operation: Callable[[Transaction, str], Sequence[Binding]], task_id: str, /) -> Sequence[Binding]:
        nonlocal reads
        reads += 1
        return await aio.read(world.store, operation, task_id)

    async def ends(child: Claim) -> int | None:
        await aio.call(world.store, steps.complete, child.fence, new_step("a"), done(), begun=False)
        await spending.look(read)
        return spending.left.tool_calls

    world.record(children[0], "first")
    first = asyncio.ensure_future(spending.look(read))
    for child in children[1:]:
        world.record(child, "t")
    await asyncio.gather(first, *(spending.look(read) for _ in range(50)))

    assert (reads <= 2, spending.left.tool_calls) == (True, 90)
    assert await ends(children[0]) == 89
