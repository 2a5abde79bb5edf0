"""Calls that may have changed the world, of all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.model.step import Step
from perdure.model.task import Task
from perdure.store import payloads
from perdure.store.database import Row, Transaction
from perdure.store.queries import load
from perdure.store.steps import unpacked

Q = load("steps")


@dataclass(frozen=True, slots=True)
class Effect:
    """A call that may have changed the world, with the task it belongs to.

    `place` is where a list goes on after it. `is_running`: a live attempt is inside it now; otherwise, without an
    outcome, it is in doubt.
    """

    step: Step
    agent: str
    arguments: Any
    place: tuple[int, int]
    is_running: bool


def listing(tx: Transaction, *, since_ms: int = 0, after: tuple[int, int] = (-1, 0), limit: int = 100) -> list[Effect]:
    """Calls above low risk since a moment, oldest first, strictly after the place `after`."""
    rows = tx.all(Q.effects, since=since_ms, after_at=after[0], after_n=after[1], limit=limit)
    return [_effect(tx, row) for row in rows]


def open_list(
    tx: Transaction, *, since_ms: int = 0, after: tuple[int, int] = (-1, 0), limit: int = 100
) -> list[Effect]:
    """Those of them without an outcome: a live attempt is inside, or nobody knows what became of them."""
    rows = tx.all(Q.open_effects, since=since_ms, after_at=after[0], after_n=after[1], limit=limit)
    return [_effect(tx, row) for row in rows]


def left_in_doubt(tx: Transaction, task: Task) -> list[tuple[int, str, str]]:
    """Index, name and key of each call of a task without an outcome; while the task goes on, one may be running."""
    return [(row[0], row[1], row[2]) for row in tx.all(Q.in_doubt, task=task.n, from_index=0)]


def _effect(tx: Transaction, row: Row) -> Effect:
    *columns, agent, n, is_running = row
    step = unpacked(tx, Step.from_row(tuple(columns)))
    return Effect(step, agent, payloads.plain(tx, step.payload), (step.timestamp, n), bool(is_running))
