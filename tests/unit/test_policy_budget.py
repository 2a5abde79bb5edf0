"""Budgets: what a child gets, what is left, and which limits are violated."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadInput
from perdure.policy.budget import Budget, Spent, narrow, spend, violated, violations

NAMES = [each.name for each in fields(Budget)]
COUNTS = st.integers(0, 2**63 - 1)
COSTS = st.floats(0, 1e12)


def _amounts(count: st.SearchStrategy[object], cost: st.SearchStrategy[object]) -> dict[str, st.SearchStrategy[object]]:
    return {name: cost if name == "cost" else count for name in NAMES}


BUDGETS = st.builds(Budget, **_amounts(st.none() | COUNTS, st.none() | COSTS))
USAGES = st.builds(Spent, **_amounts(COUNTS, COSTS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, True, "5", math.nan, math.inf, 10**400])
def test_a_limit_that_is_no_amount_is_refused_with_its_name(name: str, value: object) -> None:
    with pytest.raises(BadInput) as refused:
        Budget(**{name: value})  # type: ignore[arg-type]  # the door is tested with what types forbid

    assert refused.value.field == name


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cost"])
def test_half_a_count_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        Budget(**{name: 1.5})  # type: ignore[arg-type]  # the door is tested with what types forbid


def test_usage_is_never_below_nothing_and_never_missing() -> None:
    with pytest.raises(BadInput):
        Spent(tokens=-1)
    with pytest.raises(BadInput):
        Spent(tokens=None)  # type: ignore[arg-type]  # the door is tested with what types forbid


def test_a_child_gets_the_smaller_of_what_is_left_and_what_it_asks_for() -> None:
    left = Budget(tokens=1_000, cost=2.5, depth=3)
    asked = Budget(tokens=5_000, cost=1.0, runs=4)

    assert narrow(left, asked) == Budget(tokens=1_000, cost=1.0, depth=3, runs=4)


@given(left=BUDGETS, asked=BUDGETS)
def test_a_child_never_gets_more_than_either_side_allows(left: Budget, asked: Budget) -> None:
    given_to_child = narrow(left, asked)

    for name in NAMES:
        sides = [limit for limit in (getattr(left, name), getattr(asked, name)) if limit is not None]
        assert getattr(given_to_child, name) == (min(sides) if sides else None)
    assert narrow(asked, left) == given_to_child


def test_spending_uses_up_counts_and_money_but_no_ceilings() -> None:
    budget = Budget(tokens=100, cost=1.0, tool_calls=5, iterations=6, depth=3, concurrent=2, runs=4)
    usage = Spent(tokens=40, cost=0.25, tool_calls=1, iterations=2, depth=3, concurrent=2, runs=4)

    left = spend(budget, usage)

    assert left == Budget(tokens=60, cost=0.75, tool_calls=4, iterations=4, depth=3, concurrent=2, runs=0)


@given(budget=BUDGETS, usage=USAGES)
def test_what_is_left_is_never_negative_and_never_more(budget: Budget, usage: Spent) -> None:
    left = spend(budget, usage)

    for name in NAMES:
        before, after = getattr(budget, name), getattr(left, name)
        assert (before is None) == (after is None)
        assert before is None or 0 <= after <= before


def test_a_violation_names_the_limit_the_numbers_and_the_owner() -> None:
    texts = violations(Budget(tokens=60_000, cost=5.0), Spent(tokens=60_000, cost=4.99), owner="coder")

    assert texts == ("tokens 60,000 of 60,000 (limit of coder)",)


def test_every_violated_limit_is_listed() -> None:
    budget = Budget(tokens=10, cost=0.5, tool_calls=1, depth=2, concurrent=1, runs=0)
    usage = Spent(tokens=12, cost=0.51, tool_calls=2, depth=3, concurrent=2, runs=1)

    assert violations(budget, usage) == (
        "tokens 12 of 10",
        "cost 0.51 of 0.5",
        "tool_calls 2 of 1",
        "depth 3 of 2",
        "concurrent 2 of 1",
        "runs 1 of 0",
    )


@pytest.mark.parametrize("name", ["tokens", "cost"])
def test_what_is_known_only_afterwards_is_violated_when_reached(name: str) -> None:
    budget = Budget(**{name: 10})

    assert violated(budget, Spent(**{name: 9})) == ()
    assert violated(budget, Spent(**{name: 10})) == (name,)


@pytest.mark.parametrize("name", ["tool_calls", "iterations", "depth", "concurrent", "runs"])
def test_what_is_counted_beforehand_is_violated_when_exceeded(name: str) -> None:
    budget = Budget(**{name: 10})

    assert violated(budget, Spent(**{name: 10})) == ()
    assert violated(budget, Spent(**{name: 11})) == (name,)


def test_no_runs_left_does_not_stop_a_model_call() -> None:
    assert violated(Budget(runs=0, tool_calls=0, tokens=100), Spent(tokens=50)) == ()


@given(usage=USAGES)
def test_without_limits_nothing_is_violated(usage: Spent) -> None:
    assert violations(Budget(), usage) == ()


@given(budget=BUDGETS)
def test_a_budget_comes_back_equal_from_json(budget: Budget) -> None:
    assert Budget.from_json(json.loads(json.dumps(budget.to_json()))) == budget


def test_only_limits_that_are_set_are_written() -> None:
    assert Budget(tokens=5, cost=1).to_json() == {"tokens": 5, "cost": 1.0}


def test_the_same_cost_is_written_the_same_way() -> None:
    assert json.dumps(Budget(cost=5).to_json()) == json.dumps(Budget(cost=5.0).to_json())


def test_an_unknown_limit_is_refused_with_its_name() -> None:
    with pytest.raises(BadInput, match="the limits are tokens") as refused:
        Budget.from_json({"tokens": 5, "max_tokens": 5})

    assert refused.value.field == "budget.max_tokens"


@pytest.mark.parametrize("value", ["5", True, [], -1])
def test_a_limit_of_another_type_is_refused_from_json(value: object) -> None:
    with pytest.raises(BadInput) as refused:
        Budget.from_json({"tokens": value})

    assert refused.value.field == "tokens"
