"""Budgets along the chain of parents: what each covers, what of it is used, and whether one more call fits.

A budget covers the task that has it and all tasks below. What they use is counted from their rows, so that nothing has
to be given back or counted again after a crash; which rows those are is written down when a task is admitted
(`bindings`), so that no tree is followed. A task with any budget above it has one of its own (admission hands down what
is left): where a task has none, nothing here is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perdure.errors import BudgetExceeded
from perdure.policy.budget import Budget, Spent, violations
from perdure.store import tasks
from perdure.store.database import Transaction
from perdure.store.queries import load

Q = load("tasks")
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Binding:
    """A budget that binds a task: its own, or one of a task above it, with what is used of it."""

    task_id: str
    agent: str
    depth: int
    budget: Budget
    used: Spent

    def with_more(self, used: Spent) -> Binding:
        """The same with this used on top."""
        return replace(self, used=self.used.plus(used))

    def without(self, used: Spent) -> Binding:
        """The same without a part of what is used."""
        return replace(self, used=self.used.minus(used))


def binding(tx: Transaction, task_id: str) -> list[Binding]:
    """The budgets that bind a task, its own first, then upwards."""
    return [
        Binding(
            id_,
            agent,
            depth,
            Budget.from_json(json.loads(budget)),
            Spent(
                tokens=min(int(tokens), _INT64_MAX), cost=cost, tool_calls=tool_calls, iterations=iterations, runs=runs
            ),
        )
        for id_, agent, depth, budget, tokens, cost, tool_calls, iterations, runs in tx.all(Q.budgets, id=task_id)
    ]


def check_call(tx: Transaction, task_id: str, *, tool_calls: int, iterations: int) -> None:
    """Refuse a call that a budget has no room for; the caller puts the call on record in this same transaction.

    Holds the session: of calls that begin at once under one budget each sees the others.
    Raises NotFound, and BudgetExceeded with every limit that is violated.
    """
    tasks.hold_session(tx, task_id)
    refuse_violated(binding(tx, task_id), tool_calls=tool_calls, iterations=iterations)


def refuse_violated(bound: Sequence[Binding], *, tool_calls: int = 0, iterations: int = 0) -> None:
    """Raise BudgetExceeded with every limit that these calls on top would violate, the nearest first."""
    calls = Spent(tool_calls=tool_calls, iterations=iterations)
    texts = [text for one in bound for text in violations(one.budget, one.used.plus(calls), owner=one.agent)]
    if texts:
        raise BudgetExceeded("; ".join(texts), limit=texts[0])
