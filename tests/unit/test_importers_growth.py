"""A longer copy of a log adds only its rest: for invented logs of every shape, cut anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.importers import Entry, MessageEntry, Recording
from perdure.importers.claude_code import read_claude_code
from tests.claude_lines import Record, call, hook, line, progress, prompt, reply, result, text, to_lines
from tests.growth import assert_grows, assert_sound

CALL_IDS = st.sampled_from(["c1", "c2", "c3"])
AGENT_IDS = st.sampled_from(["ag1", "ag2"])
MESSAGE_IDS = st.sampled_from(["m1", "m2"])
BLOCKS = st.one_of(
    st.just(text("words")),
    st.builds(call, CALL_IDS),
    st.builds(lambda call_id: call(call_id, "Task", prompt="dig"), CALL_IDS),
)


@st.composite
def records(draw: st.DrawFn, *, depth: int = 0) -> Record:
    """Any line, with ids from so small a set that lines collide, reopen replies and answer each other."""
    uuid = draw(st.sampled_from([f"x{number}" for number in range(12)]))
    kind = draw(st.integers(0, 7 if depth == 0 else 2))
    parent = draw(st.sampled_from([None, "x0", "x1", "x2"]))
    match kind:
        case 0:
            made = prompt(uuid, draw(st.sampled_from(["dig", "look"])), parent=parent)
        case 1:
            made = reply(uuid, *draw(st.lists(BLOCKS, max_size=2)), message_id=draw(MESSAGE_IDS), parent=parent)
        case 2:
            made = result(uuid, draw(CALL_IDS), is_error=draw(st.booleans()))
        case 3 | 4:
            made = progress(uuid, draw(AGENT_IDS), draw(CALL_IDS), draw(records(depth=1)))
        case 5:
            own_copy: Record = {"agentId": draw(AGENT_IDS), "status": "completed", "content": [text("found")]}
            made = result(uuid, draw(CALL_IDS), toolUseResult=own_copy)
        case 6:
            made = hook(uuid, parent=parent)
        case _:
            made = line(draw(st.sampled_from(["system", "odd"])), uuid)
    if draw(st.integers(0, 4)) == 0:
        made["isSidechain"] = True
    if draw(st.integers(0, 8)) == 0:
        del made["uuid"]
    return made


@given(st.lists(records(), min_size=1, max_size=25), st.data())
def test_any_log_cut_anywhere_is_a_prefix_and_counts_every_line(log: list[Record], data: st.DataObject) -> None:
    lines = to_lines(log)
    cut = data.draw(st.integers(0, len(lines)))

    shorter, longer = (read_claude_code(part, path="log") for part in (lines[:cut], lines))

    assert_sound(longer, line_count=len(lines))
    assert_sound(shorter, line_count=cut)
    assert_grows(shorter, longer)


def rest_of(shorter: Recording, longer: Recording) -> tuple[Entry, ...]:
    return longer.runs[0].entries_after(frozenset(shorter.runs[0].source_ids))


def test_the_same_file_twice_adds_nothing() -> None:
    lines = to_lines([prompt("u1"), reply("a1", call("c1")), result("r1", "c1")])

    assert rest_of(read_claude_code(lines, path="one"), read_claude_code(lines, path="two")) == ()


def test_a_reply_that_was_half_written_comes_with_its_other_parts_only() -> None:
    lines = to_lines([reply("a1", text("I look")), reply("a2", text("twice.")), reply("a3", call("c1"))])

    shorter, longer = read_claude_code(lines[:1], path="log"), read_claude_code(lines, path="log")

    message, begun = rest_of(shorter, longer)
    assert isinstance(message, MessageEntry)
    assert (message.source_id, message.source_ids, message.content) == ("a2", ("a2", "a3"), "twice.")
    assert begun.source_id == "a3:0:call"
    assert longer.runs[0].entries[0].source_id == shorter.runs[0].entries[0].source_id == "a1"


def test_a_call_that_was_open_gets_its_result_later() -> None:
    lines = to_lines([reply("a1", call("c1")), result("r1", "c1")])

    rest = rest_of(read_claude_code(lines[:1], path="log"), read_claude_code(lines, path="log"))

    assert [entry.source_id for entry in rest] == ["r1", "r1:result"]
