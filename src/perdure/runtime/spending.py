"""What one task may use, what it has used, and whether another call is allowed.

A budget covers all tasks below the one that has it. What the others have used is read from the store before each call
that counts; a task without a budget asks nothing. Where the number of calls is limited the store looks itself, and has
the last word: a call is on record before it runs, so that of calls that begin at once, in whatever process, each is
counted. There `left` may lag behind what tasks beside this one use.
What a call consumes is known only afterwards: tokens and cost stop the calls that begin after they were reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.model.step import Step, StepKind
from perdure.model.task import Claim, Usage
from perdure.policy.budget import Budget, Spent, narrow, spend
from perdure.runtime.call import Call
from perdure.store import Transaction, budgets, tasks
from perdure.store.budgets import Binding

_NO_LIMITS = Budget()


class Read(Protocol):
    """Runs a reading operation of the store."""

    def __call__(
        self, operation: Callable[[Transaction, str], Sequence[Binding]], task_id: str, /
    ) -> Awaitable[Sequence[Binding]]:
        """What the operation returns for a task."""
        ...


@dataclass(slots=True)
class Saved:
    """What records have answered in this attempt: calls not made and tokens not bought again."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0

    def count(self, record: Step) -> None:
        """One more answer."""
        self.model_calls += record.event_kind == StepKind.MODEL_CALL
        self.tool_calls += record.event_kind == StepKind.TOOL_CALL
        self.tokens += record.prompt_tokens + record.completion_tokens


class Spending:
    """The budgets of a task, over all its attempts. Calls are counted as they begin, tokens as they are known."""

    def __init__(self, claim: Claim) -> None:
        task = claim.task
        self.has_limits = len(claim.input.budget) > len("{}")
        self._task_id = task.id
        self._others: Sequence[Binding] = ()  # each with what all but this task have used of it
        self._tokens = task.prompt_tokens + task.completion_tokens
        self._cost = task.cost
        self._tool_calls = task.tool_calls
        self._iterations = task.iterations
        self._turn = asyncio.Lock()
        self._looks = 0  # how often it was asked for, and
        self._seen = 0  # how many of those the newest answer has seen

    async def look(self, read: Read, *, has_children: bool = True) -> None:
        """Learn what the others have used by now. Asks nothing where there are none.

        A thousand children that end together are one question or two: what is asked while one is under way is answered
        by the next.
        """
        if not self.has_limits or not (has_children or len(self._others) != 1):
            return
        self._looks += 1
        mine = self._looks
        async with self._turn:
            if self._seen < mine:
                begun = self._looks
                self._others = await read(_used_by_others, self._task_id)
                self._seen = begun

    def reserve(self, call: Call, *, is_counted: bool) -> None:
        """Count a call that is about to begin; `is_counted` when an earlier attempt has.

        Raises BudgetExceeded when nothing is left for it; uncaught, it fails the task.
        """
        tool_calls = int(call.kind is StepKind.TOOL_CALL and not is_counted)
        iterations = int(call.kind is StepKind.MODEL_CALL and not is_counted)
        if self.has_limits and call.kind in (StepKind.MODEL_CALL, StepKind.TOOL_CALL):
            budgets.refuse_violated(self._bound(), tool_calls=tool_calls, iterations=iterations)
        self._tool_calls += tool_calls
        self._iterations += iterations

    def give_back(self, call: Call) -> None:
        """A call that was counted did not begin."""
        self._tool_calls -= int(call.kind is StepKind.TOOL_CALL)
        self._iterations -= int(call.kind is StepKind.MODEL_CALL)

    def limits_number_of(self, call: Call) -> bool:
        """Whether a budget limits how many such calls there may be."""
        name = {StepKind.TOOL_CALL: "tool_calls", StepKind.MODEL_CALL: "iterations"}.get(call.kind)
        return name is not None and any(getattr(one.budget, name) is not None for one in self._others)

    def add(self, usage: Usage) -> None:
        """Count what a call has consumed."""
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        self._cost += usage.cost

    @property
    def left(self) -> Budget:
        """What is left for this task, of its own budget and of those above it, as far as was seen last."""
        left = _NO_LIMITS
        for one in self._bound():
            left = narrow(left, spend(one.budget, one.used))
        return left

    def _bound(self) -> list[Binding]:
        own = Spent(tokens=self._tokens, cost=self._cost, tool_calls=self._tool_calls, iterations=self._iterations)
        return [one.with_more(own) for one in self._others]


def _used_by_others(tx: Transaction, task_id: str) -> Sequence[Binding]:
    row = tasks.get(tx, task_id)
    own = Spent(
        tokens=row.prompt_tokens + row.completion_tokens,
        cost=row.cost,
        tool_calls=row.tool_calls,
        iterations=row.iterations,
    )
    return [one.without(own) for one in budgets.binding(tx, task_id)]
