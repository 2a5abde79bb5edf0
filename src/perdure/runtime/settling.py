"""What a person says of a call, as the outcome of a call whose task has ended: nobody runs it any more."""

from __future__ import annotations

from typing import Any

from perdure import codec
from perdure.errors import NotApplied
from perdure.model.question import HAPPENED, NOT_HAPPENED
from perdure.runtime import stand_ins
from perdure.runtime.doubts import Verdict
from perdure.store import steps


def as_outcome(verdict: Verdict[Any], *, tool: str, reason: str = "") -> steps.Result:
    """The outcome that a verdict amounts to. Raises NotSerializable for a result that cannot be stored."""
    if verdict.kind == HAPPENED:
        return steps.Result(completed=True, output=codec.pack(codec.encode(verdict.result)))
    if verdict.kind == NOT_HAPPENED:
        error: Exception = NotApplied("it did not happen" + (f": {reason}" if reason else ""))
    else:
        error = stand_ins.outcome_unknown(tool, reason)
    return steps.Result(completed=False, output=codec.pack(stand_ins.to_body(stand_ins.describe(error))))
