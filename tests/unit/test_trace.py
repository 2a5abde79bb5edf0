"""What of a task's records is still to come, and what only looks like it."""

from __future__ import annotations

from perdure.model.step import Step
from perdure.trace import Records


def recorded(key: str, index: int, *, is_open: bool = False) -> Step:
    outcome = None if is_open else "completed"
    call = ("t", index, "tool_call", "pay", key, 0, "high", b"", outcome, b"")
    return Step.from_row((*call, 1, None, None, None, 0, 0, 0.0, index, None if is_open else index, 0, None, None))


def test_what_no_call_has_come_to_is_to_come_but_for_what_lies_before_the_checkpoint_gone_on_from() -> None:
    in_doubt, before, after = "=pay:1#0", "=pay:2#0", "=pay:3#0"
    records = Records(
        [recorded(in_doubt, 1, is_open=True), recorded(before, 2), recorded(after, 3)],
    )

    assert set(records.to_come) == {in_doubt, before, after}
    records.leave_open(frozenset())
    records.use_before(3)

    assert set(records.to_come) == {after}
