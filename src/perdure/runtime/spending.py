"""What one task may use, what it has used, and whether another call is allowed."""

from __future__ import annotations

import json

from perdure.errors import BudgetExceeded
from perdure.model.step import StepKind
from perdure.model.task import Claim, Usage
from perdure.policy.budget import Budget, spend, violations
from perdure.policy.budget import Usage as Spent
from perdure.runtime.call import Call

_NO_LIMITS = Budget()


class Spending:
    """The budget of a task, over all its attempts. Calls are counted as they begin, tokens as they are known."""

    def __init__(self, claim: Claim, *, owner: str) -> None:
        task = claim.task
        self._owner = owner
        given = json.loads(claim.input.budget)
        self._has_limits = bool(given)
        self._budget = Budget.from_json(given) if given else _NO_LIMITS
        self._tokens = task.prompt_tokens + task.completion_tokens
        self._cost = task.cost
        self._tool_calls = task.tool_calls
        self._iterations = task.iterations

    def reserve(self, call: Call, *, is_counted: bool) -> None:
        """Count a call that is about to begin; `is_counted` when an earlier attempt has.

        Raises BudgetExceeded when nothing is left for it; uncaught, it fails the task.
        """
        tool_calls = int(call.kind is StepKind.TOOL_CALL and not is_counted)
        iterations = int(call.kind is StepKind.MODEL_CALL and not is_counted)
        if self._has_limits and call.kind in (StepKind.MODEL_CALL, StepKind.TOOL_CALL):
            texts = violations(self._budget, self._spent(tool_calls, iterations), owner=self._owner)
            if texts:
                raise BudgetExceeded("; ".join(texts), limit=texts[0])
        self._tool_calls += tool_calls
        self._iterations += iterations

    def add(self, usage: Usage) -> None:
        """Count what a call has consumed."""
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        self._cost += usage.cost

    @property
    def left(self) -> Budget:
        """What is left of the budget now."""
        return spend(self._budget, self._spent(0, 0))

    def _spent(self, tool_calls: int, iterations: int) -> Spent:
        return Spent(
            tokens=self._tokens,
            cost=self._cost,
            tool_calls=self._tool_calls + tool_calls,
            iterations=self._iterations + iterations,
        )
