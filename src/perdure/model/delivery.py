"""A delivery: what someone sent to a task by name, kept until its `receive` takes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. Unique by task, name and key; taken oldest first, by exactly one step."""

    id: str
    task_id: str
    name: str
    key: str
    payload: bytes
    sent_at: int
    step_key: str | None
