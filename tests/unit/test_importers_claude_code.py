"""Runs of a Claude Code session log, from invented lines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.importers import (
    CallEntry,
    Entry,
    Json,
    MessageEntry,
    RecordedRun,
    Recording,
    ResultEntry,
    Role,
    RunStatus,
)
from perdure.importers.claude_code import read_claude_code
from perdure.importers.claude_log import read_instant_ms
from tests.claude_lines import (
    SESSION,
    Record,
    call,
    hook,
    line,
    progress,
    prompt,
    reply,
    result,
    text,
    thinking,
    to_lines,
)


def read(*records: Record) -> Recording:
    return read_claude_code(to_lines(records), path="log")


def read_one(*records: Record) -> RecordedRun:
    (run,) = read(*records).runs
    return run


def messages(run: RecordedRun) -> list[MessageEntry]:
    return [entry for entry in run.entries if isinstance(entry, MessageEntry)]


def calls(run: RecordedRun) -> list[CallEntry]:
    return [entry for entry in run.entries if isinstance(entry, CallEntry)]


def results(run: RecordedRun) -> list[ResultEntry]:
    return [entry for entry in run.entries if isinstance(entry, ResultEntry)]


def reasons(recording: Recording) -> dict[str, str]:
    return {item.reason: item.where for item in recording.remarks}


def kinds(entries: Sequence[Entry]) -> list[str]:
    return [f"{entry.role} message" if isinstance(entry, MessageEntry) else type(entry).__name__ for entry in entries]


def test_a_session_is_one_run_with_its_header() -> None:
    run = read_one(
        prompt("u1", "fix it", second=1, version="9.9", cwd="/home/someone"),
        reply("a1", text("fixed"), second=3),
    )

    assert (run.source_id, run.session, run.agent, run.model) == (SESSION, SESSION, "claude-code", "model-x")
    assert (run.prompt, run.result, run.status, run.error) == ("fix it", "fixed", RunStatus.COMPLETED, None)
    assert run.started_at_ms == read_instant_ms("2026-03-04T05:06:01.007Z")
    assert run.ended_at_ms == read_instant_ms("2026-03-04T05:06:03.007Z")
    assert (run.metadata["version"], run.metadata["cwd"]) == ("9.9", "/home/someone")


def test_lines_of_one_reply_become_one_message_although_results_stand_between() -> None:
    run = read_one(
        prompt("u1"),
        reply("a1", text("\n\n")),
        reply("a2", thinking("hmm")),
        reply("a3", text("I look.")),
        reply("a4", call("c1", at="x")),
        result("r1", "c1", "one"),
        reply("a5", call("c2", at="y")),
        result("r2", "c2", "two"),
        reply("a6", text("Done."), message_id="m2"),
    )

    assert kinds(run.entries) == [
        "user message",
        "assistant message",
        "CallEntry",
        "tool message",
        "ResultEntry",
        "CallEntry",
        "tool message",
        "ResultEntry",
        "assistant message",
    ]
    message = messages(run)[1]
    assert message.source_ids == ("a1", "a2", "a3", "a4", "a5")
    assert (message.content, message.reasoning) == ("I look.", "hmm")
    assert [asked.call_id for asked in message.tool_calls] == ["c1", "c2"]
    assert [begun.batch for begun in calls(run)] == ["m1", "m1"]
    assert [begun.arguments for begun in calls(run)] == [{"at": "x"}, {"at": "y"}]


def test_a_result_line_is_a_tool_message_and_the_end_of_its_call() -> None:
    run = read_one(reply("a1", call("c1", "Grep"), second=1), result("r1", "c1", [text("one"), text("two")], second=4))

    message, end = messages(run)[1], results(run)[0]
    assert (message.role, message.tool_call_id, message.tool_name) == (Role.TOOL, "c1", "Grep")
    assert message.content == "one\n\ntwo"
    assert end == ResultEntry(
        "r1:result",
        read_instant_ms("2026-03-04T05:06:04.007Z"),
        "c1",
        "a1:0:call",
        "Grep",
        failed=False,
        result=[text("one"), text("two")],
    )


def test_a_failed_call_keeps_its_error() -> None:
    run = read_one(reply("a1", call("c1")), result("r1", "c1", "Exit code 1", is_error=True))

    assert [(end.failed, end.error, end.result) for end in results(run)] == [(True, "Exit code 1", None)]
    assert run.status is RunStatus.COMPLETED


def test_a_call_without_a_result_is_kept_open_and_said() -> None:
    recording = read(reply("a1", call("c1")), reply("a2", call("c2")), result("r1", "c2"))

    assert [begun.call_id for begun in calls(recording.runs[0])] == ["c1", "c2"]
    assert [end.call_id for end in results(recording.runs[0])] == ["c2"]
    assert reasons(recording) == {"a call without a result: kept as begun and never ended": "line 1"}


@pytest.mark.parametrize("before", [[], [result("r0", "c1")]])
def test_a_result_without_an_open_call_stays_a_message_and_is_said(before: list[Record]) -> None:
    recording = read(reply("a1", call("c1")), *before, result("r1", "c1"), result("r2", "c1"))

    assert len(results(recording.runs[0])) == 1
    assert [message.role for message in messages(recording.runs[0])][-1] is Role.TOOL
    assert "a result that answers no open call is kept as a message only" in reasons(recording)


def test_one_line_may_hold_words_calls_and_several_results() -> None:
    both: Record = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
            text("and hurry"),
        ],
    }

    run = read_one(reply("a1", text("go"), call("c1"), call("c2")), line("user", "u1", message=both))

    assert kinds(run.entries)[3:] == ["tool message", "ResultEntry", "tool message", "ResultEntry", "user message"]
    assert run.source_ids == ("a1", "a1:1:call", "a1:2:call", "u1", "u1:result", "u1:1", "u1:1:result", "u1:2")
    assert messages(run)[-1].content == "and hurry"


def test_signatures_are_left_out_and_encrypted_reasoning_is_said() -> None:
    recording = read(reply("a1", thinking("why"), {"type": "redacted_thinking", "data": "xyz"}, text("so")))

    assert "c2lnbmVk" not in repr(recording)
    assert "xyz" not in repr(recording)
    assert reasons(recording) == {"reasoning that the provider encrypted is left out": "line 1"}


def test_blocks_that_are_not_text_are_kept_as_recorded() -> None:
    image: Record = {"type": "image", "source": {"type": "base64", "data": "QUJD"}}

    run = read_one(line("user", "u1", message={"role": "user", "content": [text("see"), image]}))

    assert messages(run)[0].content == [text("see"), image]


def test_what_adds_nothing_is_counted_by_kind_with_its_lines() -> None:
    recording = read(
        {"type": "summary", "summary": "earlier", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        hook("h1"),
        prompt("u1"),
        hook("h2"),
        hook("h3"),
        line("system", "s1", subtype="turn_duration"),
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
        {"type": "brand-new", "sessionId": SESSION},
        line("user", "u2", message={"role": "user"}),
        {"type": "user", "uuid": "u3", "message": {"content": "lost"}},
        {"no": "type"},
    )

    assert {item.reason: (item.where, item.count) for item in recording.unused} == {
        "summary: the title of a conversation": ("line 1", 1),
        "file-history-snapshot: copies of edited files": ("line 2", 1),
        "progress hook_progress: a notice while something runs": ("lines 3, 5-6", 3),
        "system turn_duration: a notice of the program": ("line 7", 1),
        "queue-operation: prompts waiting for their turn": ("line 8", 1),
        "unknown type 'brand-new'": ("line 9", 1),
        "a message without content": ("line 10", 1),
        "a message without sessionId": ("line 11", 1),
        "not an object with a type": ("line 12", 1),
    }
    assert (recording.record_count, recording.used_count) == (12, 1)


def test_a_line_that_stands_twice_is_used_once() -> None:
    recording = read(prompt("u1"), reply("a1", call("c1")), prompt("u1"), reply("a1", call("c1")), result("r1", "c1"))

    assert len(calls(recording.runs[0])) == len(results(recording.runs[0])) == 1
    assert [(item.where, item.count) for item in recording.unused] == [("lines 3-4", 2)]


def test_a_parent_link_skips_lines_that_are_not_used() -> None:
    run = read_one(prompt("u1"), hook("h1", parent="u1"), hook("h2", parent="h1"), prompt("u2", parent="h2"))

    assert [part.follows for message in messages(run) for part in message.parts] == [None, "u1"]


def test_going_back_to_an_earlier_message_keeps_both_branches_and_is_said() -> None:
    recording = read(
        prompt("u1"),
        reply("a1", text("yes"), parent="u1"),
        prompt("u2", "left", parent="a1"),
        reply("a2", text("went left"), parent="u2", message_id="m2"),
        prompt("u3", "right", parent="a1"),
    )

    (run,) = recording.runs
    assert [message.content for message in messages(run)] == ["please look", "yes", "left", "went left", "right"]
    assert (run.metadata["rewinds"], run.metadata["branch_points"]) == (1, 1)
    assert list(reasons(recording).values()) == ["line 5"]


def test_two_sessions_in_one_file_are_two_runs() -> None:
    recording = read(prompt("u1"), prompt("u2") | {"sessionId": "other"})

    assert [run.source_id for run in recording.runs] == [SESSION, "other"]


def test_a_session_that_ends_in_an_error_of_the_model_failed_and_one_that_goes_on_did_not() -> None:
    broken = reply("a1", text("overloaded"), isApiErrorMessage=True)

    assert (read_one(prompt("u1"), broken).status, read_one(prompt("u1"), broken).error) == (
        RunStatus.FAILED,
        "overloaded",
    )
    assert read_one(prompt("u1"), broken, prompt("u2", "again")).status is RunStatus.COMPLETED


def test_usage_is_counted_once_a_reply() -> None:
    def said(uuid: str, message_id: str, output: int) -> Record:
        record = reply(uuid, text("x"), message_id=message_id)
        message = record["message"]
        assert isinstance(message, dict)
        message["usage"] = {"input_tokens": 10, "output_tokens": output, "service_tier": "standard"}
        return record

    run = read_one(said("a1", "m1", 1), said("a2", "m1", 7), said("a3", "m2", 2))

    assert run.metadata["usage"] == {
        "input_tokens": 20,
        "output_tokens": 9,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1970-01-01T00:00:01.002Z", 1002),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00", None),
        ("soon", None),
        (None, None),
    ],
)
def test_an_instant_needs_a_zone(given: str | None, expected: int | None) -> None:
    assert read_instant_ms(given) == expected


def task(call_id: str, words: str = "dig") -> Record:
    return call(call_id, "Task", subagent_type="digger", prompt=words)


def ended(uuid: str, call_id: str, agent_id: str, *, status: str = "completed") -> Record:
    own_copy: Json = {
        "status": status,
        "prompt": "dig",
        "agentId": agent_id,
        "content": [text("found it")],
        "totalTokens": 12,
    }
    return result(uuid, call_id, [text("found it"), text("id 1")], second=9, toolUseResult=own_copy)


def test_a_subagent_inside_progress_lines_is_a_run_with_its_parent_link() -> None:
    recording = read(
        prompt("u1"),
        reply("a1", task("c1")),
        progress("p1", "ag1", "c1", prompt("i1", "dig")),
        progress("p2", "ag1", "c1", reply("i2", call("k1", "Bash"), message_id="mi")),
        progress("p3", "ag1", "c1", result("i3", "k1", "a hole")),
        ended("r1", "c1", "ag1"),
    )

    parent, child = recording.runs
    assert (child.source_id, child.session, child.agent) == (f"{SESSION}/ag1", SESSION, "digger")
    assert (child.parent_source_id, child.parent_call_source_id) == (SESSION, "a1:0:call")
    assert (child.prompt, child.result, child.status) == ("dig", "found it", RunStatus.COMPLETED)
    assert kinds(child.entries) == ["user message", "assistant message", "CallEntry", "tool message", "ResultEntry"]
    assert child.source_ids[0] == "i1"
    assert child.metadata["totalTokens"] == 12
    assert child.ended_at_ms == read_instant_ms("2026-03-04T05:06:09.007Z")
    assert results(parent)[0].child_source_id == child.source_id
    assert recording.record_count == recording.used_count == 6


def test_a_subagent_known_by_its_result_alone_is_a_run_without_messages_and_said() -> None:
    recording = read(
        reply("a1", task("c1", "dig"), task("c2", "dig")), ended("r2", "c2", "ag2"), ended("r1", "c1", "ag1")
    )

    parent, second, first = recording.runs
    assert (second.parent_call_source_id, first.parent_call_source_id) == ("a1:1:call", "a1:0:call")
    assert (first.entries, first.prompt, first.result) == ((), "dig", "found it")
    assert [end.child_source_id for end in results(parent)] == [f"{SESSION}/ag2", f"{SESSION}/ag1"]
    assert "lines 2-3" in reasons(recording).values()


def test_a_subagent_in_sidechain_lines_without_an_id_is_linked_by_its_prompt() -> None:
    def side(record: Record, parent: str | None) -> Record:
        return record | {"isSidechain": True, "parentUuid": parent}

    recording = read(
        reply("a1", task("c1", "dig here"), task("c2", "dig there")),
        side(prompt("i1", "dig there"), None),
        side(prompt("j1", "dig here"), None),
        side(reply("i2", text("deep"), message_id="mi"), "i1"),
        ended("r1", "c2", "ag9"),
    )

    parent, there, here = recording.runs
    assert (there.source_id, there.parent_call_source_id) == (f"{SESSION}/i1", "a1:1:call")
    assert (here.source_id, here.parent_call_source_id) == (f"{SESSION}/j1", "a1:0:call")
    assert [message.content for message in messages(there)] == ["dig there", "deep"]
    assert (there.result, here.result) == ("found it", None)
    assert results(parent)[0].child_source_id == there.source_id


def test_a_subagent_in_a_file_of_its_own_names_a_parent_that_the_file_does_not_hold() -> None:
    run = read_one(
        prompt("i1", "dig") | {"isSidechain": True, "agentId": "ag1"},
        reply("i2", text("dug")) | {"isSidechain": True, "agentId": "ag1"},
    )

    assert (run.source_id, run.parent_source_id, run.parent_call_source_id) == (f"{SESSION}/ag1", SESSION, None)
    assert (run.prompt, run.result, run.ended_at_ms) == ("dig", "dug", None)


def test_a_subagent_fails_with_its_call_and_is_not_over_while_it_runs_in_the_background() -> None:
    start = (reply("a1", task("c1")), progress("p1", "ag1", "c1", prompt("i1", "dig")))

    failed = read(*start, result("r1", "c1", "no shovel", is_error=True, toolUseResult="Error: no shovel")).runs
    waiting = read(*start, ended("r1", "c1", "ag1", status="async_launched")).runs

    assert (failed[1].status, failed[1].error) == (RunStatus.FAILED, "no shovel")
    assert results(failed[0])[0].child_source_id == failed[1].source_id
    assert (waiting[1].status, waiting[1].result, waiting[1].ended_at_ms) == (RunStatus.COMPLETED, None, None)


def test_a_subagent_of_a_subagent_hangs_below_it_and_a_ring_is_not_made() -> None:
    nested = read(
        reply("a1", task("c1")),
        progress("p1", "ag1", "c1", reply("i1", task("c2"), message_id="mi")),
        progress("p2", "ag2", "c2", reply("j1", task("c3"), message_id="mj")),
        progress("p3", "ag1", "c3", prompt("i2", "round")),
    )

    assert [run.parent_source_id for run in nested.runs] == [None, SESSION, f"{SESSION}/ag1"]
    ring = read(
        progress("p1", "ag1", "c0", reply("i1", task("c2"), message_id="mi")),
        progress("p2", "ag2", "c2", reply("j1", task("c3"), message_id="mj")),
        progress("p3", "ag1", "c3", prompt("i2", "round")),
    )
    assert [run.parent_source_id for run in ring.runs] == [SESSION, f"{SESSION}/ag1"]
