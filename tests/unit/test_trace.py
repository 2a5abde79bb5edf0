"""What of a task's records is still to come, and what only looks like it."""

from __future__ import annotations

from msgspec import structs

from perdure.model.step import Step
from perdure.trace import Records, scope_under


def recorded(key: str, index: int, *, is_open: bool = False, is_undone: bool = False) -> Step:
    outcome = None if is_open or is_undone else "completed"
    call = ("t", index, "tool_call", "pay", key, 0, "high", b"", outcome, b"")
    retried_at = 1 if is_undone else None
    return Step.from_row(
        (*call, 1, None, None, None, 0, 0, 0.0, index, index if outcome else None, 0, None, retried_at)
    )


def test_what_no_call_has_come_to_is_to_come_but_for_what_lies_before_the_checkpoint_gone_on_from() -> None:
    in_doubt, before, after = "=pay:1#0", "=pay:2#0", "=pay:3#0"
    records = Records(
        [recorded(in_doubt, 1, is_open=True), recorded(before, 2), recorded(after, 3)],
    )

    assert set(records.to_come) == {in_doubt, before, after}
    records.leave_open(frozenset())
    records.use_before(3)

    assert set(records.to_come) == {after}


def test_a_record_of_a_call_that_did_not_happen_is_no_sign_of_drift() -> None:
    records = Records([recorded("=pay:1#0", 1, is_undone=True), recorded("=pay:2#0", 2)])

    found = records.unused_like("pay", key="=pay:3#0", parent="", is_dangerous=True, open_keys=())

    assert [step.key for step in found] == ["=pay:2#0"]


def test_of_calls_that_were_unsure_each_is_a_sign_of_drift_for_an_equal_one_once() -> None:
    records = Records([recorded("=pay:1#0", 1), recorded("=pay:1#1", 2)])
    records.use_before(3, unsure=frozenset({"=pay:1#0"}))

    assert not records.has_unused_like("pay", key="=pay:2#0", parent="", is_dangerous=True)
    assert records.has_unused_like("pay", key="=pay:1#2", parent="", is_dangerous=True)
    assert records.is_another("=pay:1#2") == "=pay:1#0"
    assert not records.has_unused_like("pay", key="=pay:1#3", parent="", is_dangerous=True)


def test_the_call_of_an_agent_is_a_sign_of_drift_wherever_it_was_made() -> None:
    inside = f"{scope_under('=wrap:1#0')}=cashier:1#0"
    record = structs.replace(recorded(inside, 2), event_kind="child", name="cashier", risk="low")
    records = Records([structs.replace(recorded("=wrap:1#0", 1), name="wrap", risk="low"), record])

    def unused(**options: bool) -> list[str | None]:
        assert records.has_unused_like("cashier", key="=cashier:2#0", parent="", **options) == options["is_dangerous"]
        found = records.unused_like("cashier", key="=cashier:2#0", parent="", open_keys=(), **options)
        return [step.key for step in found]

    assert unused(is_dangerous=True) == [inside]
    assert unused(is_dangerous=False) == []
