"""How much a task may use, what a child gets of it, and which limits are violated.

Exists so that admission and the running step use the same arithmetic and the same words. Does not count: usage comes
from the rows. Does not know the chain of parents either: whoever refuses adds it.

`tokens`, `cost`, `tool_calls`, `iterations` and `runs` are used up; `depth` and `concurrent` are ceilings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, TypeVar

from perdure.errors import BadInput

N = TypeVar("N", int, float)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits; None is no limit. Raises BadInput naming the field that is not a number of at least 0."""

    tokens: int | None = None
    cost: float | None = None
    tool_calls: int | None = None
    iterations: int | None = None
    depth: int | None = None  # a task without a parent has depth 1
    concurrent: int | None = None  # children at the same time
    runs: int | None = None  # descendants started

    def __post_init__(self) -> None:
        _check_amounts(self, optional=True)

    def to_json(self) -> dict[str, int | float]:
        """The limits that are set, as a mapping that `from_json` turns back into an equal budget."""
        limits = {name: _limit(self, name) for name in _NAMES}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @classmethod
    def from_json(cls, mapping: Mapping[str, object]) -> Budget:
        """The budget of a mapping. Raises BadInput for an unknown key: a limit with a typing error would not limit."""
        unknown = sorted(str(key) for key in mapping if key not in _NAMES)
        if unknown:
            text = f"budget: {', '.join(unknown)} is no limit; the limits are {', '.join(_NAMES)}"
            raise BadInput(text, field=f"budget.{unknown[0]}")
        cost = mapping.get("cost")
        whole = {name: _whole(name, mapping.get(name)) for name in _NAMES if name != "cost"}
        return cls(cost=None if cost is None else _number("cost", cost), **whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was used, or would be with the next move. Raises BadInput naming the field that is below 0."""

    tokens: int = 0
    cost: float = 0.0
    tool_calls: int = 0
    iterations: int = 0
    depth: int = 0
    concurrent: int = 0
    runs: int = 0

    def __post_init__(self) -> None:
        _check_amounts(self, optional=False)

    def plus(self, more: Spent) -> Spent:
        """Both together. What would be too large a number stops there."""
        return self._with(more, 1)

    def minus(self, less: Spent) -> Spent:
        """What remains without a part of it; never below 0."""
        return self._with(less, -1)

    def _with(self, other: Spent, sign: int) -> Spent:
        amounts = {name: getattr(self, name) + sign * getattr(other, name) for name in _NAMES}
        return Spent(**{name: max(0, min(amount, _INT64_MAX)) for name, amount in amounts.items()})


def narrow(parent_left: Budget, asked: Budget) -> Budget:
    """The budget of a child: for each limit the smaller of what its parent has left and what it asks for."""
    return Budget(
        tokens=_smaller(parent_left.tokens, asked.tokens),
        cost=_smaller(parent_left.cost, asked.cost),
        tool_calls=_smaller(parent_left.tool_calls, asked.tool_calls),
        iterations=_smaller(parent_left.iterations, asked.iterations),
        depth=_smaller(parent_left.depth, asked.depth),
        concurrent=_smaller(parent_left.concurrent, asked.concurrent),
        runs=_smaller(parent_left.runs, asked.runs),
    )


def spend(budget: Budget, usage: Spent) -> Budget:
    """What is left after this usage; never below 0, because a call is paid for once it is known what it used.

    Depth and concurrent stay as they are: nothing uses them up.
    """
    return Budget(
        tokens=_minus(budget.tokens, usage.tokens),
        cost=None if budget.cost is None else max(budget.cost - usage.cost, 0.0),
        tool_calls=_minus(budget.tool_calls, usage.tool_calls),
        iterations=_minus(budget.iterations, usage.iterations),
        depth=budget.depth,
        concurrent=budget.concurrent,
        runs=_minus(budget.runs, usage.runs),
    )


def violated(budget: Budget, usage: Spent) -> tuple[str, ...]:
    """The names of every violated limit, in a fixed order; empty when the move is allowed.

    Pass the usage with the next move already counted (one more tool call, these runs, the child's depth): such a
    limit is violated when it is exceeded, so that the last allowed call is allowed and runs=0 stops children but
    not model calls. What the next call costs in tokens and money is not known before: those limits are violated as
    soon as they are reached.
    """
    return tuple(name for name in _NAMES if _is_violated(name, _limit(budget, name), _amount(usage, name)))


def violations(budget: Budget, usage: Spent, *, owner: str = "") -> tuple[str, ...]:
    """The same as sentences: "tokens 60,000 of 60,000 (limit of coder)", where `owner` is whose limit it is."""
    suffix = f" (limit of {owner})" if owner else ""
    return tuple(
        f"{name} {_written(_amount(usage, name))} of {_written(_limit(budget, name) or 0)}{suffix}"
        for name in violated(budget, usage)
    )


_NAMES: Final = tuple(each.name for each in fields(Budget))
_KNOWN_AFTERWARDS: Final = frozenset({"tokens", "cost"})


def _is_violated(name: str, limit: float | None, used: float) -> bool:
    if limit is None:
        return False
    return used >= limit if name in _KNOWN_AFTERWARDS else used > limit


def _limit(budget: Budget, name: str) -> int | float | None:
    limit: int | float | None = getattr(budget, name)
    return limit


def _amount(usage: Spent, name: str) -> int | float:
    amount: int | float = getattr(usage, name)
    return amount


def _written(amount: int | float) -> str:
    if isinstance(amount, int):
        return f"{amount:,}"
    return f"{amount:,.6f}".rstrip("0").rstrip(".")


def _smaller(left: N | None, asked: N | None) -> N | None:
    if left is None or asked is None:
        return asked if left is None else left
    return min(left, asked)


def _minus(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(limit - used, 0)


def _check_amounts(owner: Budget | Spent, *, optional: bool) -> None:
    for name in (each.name for each in fields(owner)):
        value: object = getattr(owner, name)
        if value is None and optional:
            continue
        if name == "cost":
            # One type for one field: cost=5 and cost=5.0 are the same limit and must hash and encode alike.
            object.__setattr__(owner, name, _number(name, value))
        else:
            _whole(name, value, optional=optional)


def _whole(name: str, value: object, *, optional: bool = True) -> int | None:
    if value is None and optional:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _INT64_MAX:
        raise BadInput(f"{name}: {value!r} is not a whole number from 0 to {_INT64_MAX:,}", field=name)
    return value


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise BadInput(f"{name}: {value!r} is not a finite number of at least 0", field=name)
    try:
        return float(value)
    except OverflowError:  # an int may be larger than any float
        raise BadInput(f"{name}: a number this large is no amount; leave it out for no limit", field=name) from None
