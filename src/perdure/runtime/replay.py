"""Read a trace back: the conversation and the records of a task up to any step. No model and no tool is called.

`replay` is pure, `inspect` reads for it. A shorter trace gives a beginning of what a longer one gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.errors import BadInput
from perdure.model.message import Message
from perdure.model.step import Step
from perdure.store import messages, steps, tasks
from perdure.store.database import Transaction

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its input as recorded; `step.output` is canonical JSON."""

    step: Step
    input: Any


@dataclass(frozen=True, slots=True)
class Inspection:
    """A task as its trace tells it. `complete`: every call has its outcome; an empty trace is empty and complete."""

    messages: tuple[Message, ...]
    records: tuple[Record, ...]

    @property
    def last_step(self) -> int | None:
        """Index of the last record, or None when there is none."""
        return self.records[-1].step.step_index if self.records else None

    @property
    def complete(self) -> bool:
        """Whether no call was left without an outcome."""
        return not any(record.step.is_open for record in self.records)

    @property
    def last_tool_call_id(self) -> str | None:
        """The id that the model gave its last recorded tool call, if any."""
        found = (record.step.tool_call_id for record in reversed(self.records))
        return next((one for one in found if one is not None), None)


def inspect(tx: Transaction, task_id: str, *, at_step: int | None = None) -> Inspection:
    """What a task had said and done when record `at_step` was its last; all of it without `at_step`.

    Raises NotFound, Damaged, and BadInput for a step that is not on record.
    """
    count = tasks.get(tx, task_id).step_count
    if at_step is not None and not 0 <= at_step < count:
        have = f"they go from 0 to {count - 1}" if count else "it has none"
        raise BadInput(f"step {at_step} is not on record: {have}", field="step")
    wanted = count if at_step is None else at_step + 1
    records: list[Record] = []
    while len(records) < wanted:
        page = steps.listing(tx, task_id, after=len(records) - 1, limit=min(_AT_ONCE, wanted - len(records)))
        if not page:
            break
        records += (Record(step, given) for step, given in page)
    return replay(records, _messages(tx, task_id), whole=at_step is None)


def replay(records: Sequence[Record], said: Sequence[Message], *, whole: bool = True) -> Inspection:
    """Fold records and messages. With `whole` false, only what was said before the next record came."""
    heard = said if whole else [one for one in said if one.at_step <= len(records)]
    return Inspection(tuple(heard), tuple(records))


def _messages(tx: Transaction, task_id: str) -> list[Message]:
    found: list[Message] = []
    while page := messages.listing(tx, task_id, after=found[-1].seq if found else -1, limit=_AT_ONCE):
        found += page
    return found
