"""A shorter trace read back is a beginning of the longer one, whatever was said between its records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.message import Message
from perdure.model.step import Step
from perdure.runtime.replay import Record, replay


def a_record(index: int, *, is_note: bool, is_open: bool) -> Record:
    outcome = None if is_note or is_open else "completed"
    step = Step(
        task_id="t", step_index=index, event_kind="tool_call", name="look", key=None if is_note else f"k{index}",
        try_number=0, risk=None if is_note else "low", payload=None, outcome=outcome, output=None, attempt=1,
        token=None, child_task_id=None, tool_call_id=None if is_note else f"call-{index}", prompt_tokens=0,
        completion_tokens=0, cost=0.0, started_seq=index + 1, ended_seq=None, timestamp=0, ended_at=None,
        retried_at=None,
    )  # fmt: skip
    return Record(step, {"index": index})


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[Record], list[Message]]:
    kinds = draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
    records = [a_record(index, is_note=note, is_open=open_) for index, (note, open_) in enumerate(kinds)]
    places = sorted(draw(st.lists(st.integers(0, len(records)), max_size=12)))
    said = [Message("t", seq, "user", f"line {seq}", at_step=place) for seq, place in enumerate(places)]
    return records, said


@given(traces())
def test_a_prefix_of_a_trace_gives_a_prefix_of_its_replay(trace: tuple[list[Record], list[Message]]) -> None:
    records, said = trace
    whole = replay(records, said)

    for length in range(len(records) + 1):
        part = replay(records[:length], said, whole=False)

        assert part.records == whole.records[:length]
        assert part.messages == whole.messages[: len(part.messages)]
        assert all(message.at_step <= length for message in part.messages)
        assert all(message.at_step > length for message in whole.messages[len(part.messages) :])
    assert replay(records, said, whole=False) == whole


@given(traces())
def test_what_is_last_and_whether_all_is_done_is_read_off_the_records(
    trace: tuple[list[Record], list[Message]],
) -> None:
    records, said = trace

    seen = replay(records, said)

    calls = [record.step for record in records if record.step.key is not None]
    assert seen.complete == all(step.outcome is not None for step in calls)
    assert seen.last_tool_call_id == (calls[-1].tool_call_id if calls else None)
    assert seen.last_step == (len(records) - 1 if records else None)


def test_an_empty_trace_is_empty_and_complete() -> None:
    seen = replay([], [])

    assert (seen.messages, seen.last_step, seen.complete, seen.last_tool_call_id) == ((), None, True, None)
