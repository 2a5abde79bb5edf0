"""Runs of a tau-bench result file, from invented records."""

from __future__ import annotations

import json
from pathlib import Path

from perdure.importers import (
    CallEntry,
    Json,
    MessageEntry,
    Recording,
    ResultEntry,
    Role,
    RunStatus,
    read_runs,
)


def read(folder: Path, runs: list[Json], *, indent: int | None = None) -> Recording:
    path = folder / "runs.json"
    path.write_text(json.dumps(runs, indent=indent))
    return read_runs(path)


def asked(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def run(*messages: Json, task_id: int = 7, reward: float = 1.0, **more: Json) -> Json:
    return {"task_id": task_id, "trial": 0, "reward": reward, "info": {}, "traj": list(messages), **more}


def user(content: str) -> Json:
    return {"role": "user", "content": content}


def assistant(content: str | None, *calls: Json) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def tool(call_id: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": content}


def test_messages_calls_and_results_are_read_in_order(tmp_path: Path) -> None:
    recording = read(
        tmp_path,
        [
            run(
                {"role": "system", "content": "be kind"},
                user("where is it?"),
                assistant(None, asked("c1", "look", '{"at": [1, 2]}')),
                tool("c1", "on the shelf"),
                assistant("on the shelf"),
            )
        ],
    )

    (found,) = recording.runs
    roles = [entry.role for entry in found.entries if isinstance(entry, MessageEntry)]
    assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert found.entries[3] == CallEntry("2:0:call", None, "c1", "look", {"at": [1, 2]}, batch="2")
    assert found.entries[5] == ResultEntry(
        "3:result", None, "c1", "2:0:call", "look", failed=False, result="on the shelf"
    )
    assert (found.prompt, found.result, found.status) == ("where is it?", "on the shelf", RunStatus.COMPLETED)
    assert (recording.record_count, recording.used_count, recording.remarks) == (5, 5, ())


def test_a_result_that_starts_with_error_failed(tmp_path: Path) -> None:
    recording = read(tmp_path, [run(assistant(None, asked("c1", "look", "{}")), tool("c1", "Error: no shelf"))])

    end = recording.runs[0].entries[-1]
    assert isinstance(end, ResultEntry)
    assert (end.failed, end.error, end.result) == (True, "Error: no shelf", None)


def test_a_reward_of_zero_or_a_broken_run_is_a_failed_run(tmp_path: Path) -> None:
    broken = run(task_id=2, reward=0.0)
    assert isinstance(broken, dict)
    broken["info"] = {"error": "the model went away"}

    recording = read(tmp_path, [run(user("a"), reward=0.0), broken, run(user("b"), reward=0.5)])

    assert [(found.status, found.error) for found in recording.runs] == [
        (RunStatus.FAILED, "the benchmark gave the reward 0"),
        (RunStatus.FAILED, "the model went away"),
        (RunStatus.COMPLETED, None),
    ]
    assert recording.record_count == recording.used_count == 3


def test_a_call_id_used_again_keeps_each_result_with_its_own_call(tmp_path: Path) -> None:
    recording = read(
        tmp_path,
        [
            run(
                assistant(None, asked("same", "look", '{"n": 1}')),
                tool("same", "one"),
                assistant(None, asked("same", "look", '{"n": 2}')),
                tool("same", "two"),
            )
        ],
    )

    ends = [entry for entry in recording.runs[0].entries if isinstance(entry, ResultEntry)]
    assert [(end.call_source_id, end.result) for end in ends] == [("0:0:call", "one"), ("2:0:call", "two")]


def test_parallel_calls_share_their_batch_and_an_unanswered_one_is_said(tmp_path: Path) -> None:
    both = assistant(None, asked("c1", "look", "{}"), asked("c2", "look", "{}"))

    recording = read(tmp_path, [run(both, tool("c1", "one"))])

    calls = [entry for entry in recording.runs[0].entries if isinstance(entry, CallEntry)]
    assert [call.batch for call in calls] == ["0", "0"]
    assert [(item.where, item.reason) for item in recording.remarks] == [
        ("runs[0].traj[0]", "a call without a result: kept as begun and never ended")
    ]


def test_arguments_that_are_no_json_are_kept_as_text_and_said(tmp_path: Path) -> None:
    recording = read(tmp_path, [run(assistant(None, asked("c1", "look", '{"at": ')), tool("c1", "?"))])

    call = recording.runs[0].entries[1]
    assert isinstance(call, CallEntry)
    assert call.arguments == '{"at": '
    assert recording.remarks[0].reason == "arguments that are not JSON are kept as text"


def test_what_cannot_be_used_is_named_with_its_place_and_counted(tmp_path: Path) -> None:
    orphan = tool("nobody", "hello?")

    recording = read(tmp_path, [run(user("a"), {"role": "robot"}, "noise", orphan), 5, {"task_id": 1}])

    assert [(item.where, item.count) for item in recording.unused] == [
        ("runs[0].traj[1], runs[0].traj[2]", 2),
        ("runs[1], runs[2]", 2),
    ]
    assert recording.record_count == recording.used_count + 4 == 6
    assert "answers no open call" in recording.remarks[0].reason


def test_a_run_keeps_its_id_when_the_file_is_written_anew_or_grows(tmp_path: Path) -> None:
    first = read(tmp_path, [run(user("a")), run(user("b"))])
    written_anew = read(tmp_path, [run(user("a")), run(user("b"))], indent=2)
    grown = read(tmp_path, [run(user("c")), run(user("a")), run(user("b"))])

    ids = [found.source_id for found in first.runs]
    assert [found.source_id for found in written_anew.runs] == ids
    assert [found.source_id for found in grown.runs][1:] == ids
    assert grown.runs[1].entries_after(first.runs[0].source_ids) == ()


def test_the_same_run_twice_in_one_file_is_read_once_and_said(tmp_path: Path) -> None:
    recording = read(tmp_path, [run(user("a"), user("b")), run(user("a"), user("b"))])

    assert len(recording.runs) == 1
    assert [(item.where, item.reason, item.count) for item in recording.unused] == [
        ("runs[1]", "the same run as runs[0]", 2)
    ]
