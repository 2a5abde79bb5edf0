"""Recorded runs become tasks that have ended; a file read twice adds nothing, a longer copy adds only its rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.errors import BadInput
from perdure.importers import (
    CallEntry,
    Format,
    MessageEntry,
    MessagePart,
    RecordedRun,
    Recording,
    ResultEntry,
    Role,
    RunStatus,
    read_runs,
)
from perdure.importers.claude_code import read_claude_code
from perdure.model.message import Message
from perdure.model.step import Step
from perdure.model.task import Task
from perdure.runtime.replay import inspect
from perdure.states import TaskStatus
from perdure.store import health, imports, messages, steps, task_lists, tasks
from perdure.store.imports import Added
from tests.claude_lines import Record, call, prompt, reply, result, text, thinking, to_lines
from tests.recorded_data import Facts, recorded_files, requires_data
from tests.world import World

SHORT = [
    prompt("u1", "what is in it?", second=1),
    reply("a1", thinking("two files"), text("I look."), second=2),
    reply("a2", call("c1", "Read", path="a"), second=3),
    reply("a3", call("c2", "Read", path="b"), second=4),
    result("r1", "c1", "alpha", second=5),
]
LONG = [
    *SHORT,
    result("r2", "c2", "no such file", is_error=True, second=6),
    reply("b1", text("Only alpha."), message_id="m2", second=7),
]


def recorded(lines: Sequence[Record]) -> Recording:
    return read_claude_code(to_lines(lines), path="log")


def add_all(world: World, recording: Recording, *, limit: int = 1000) -> list[Added]:
    """Every run of a recording, parents first, each until nothing is left of it."""
    added = []
    for run in imports.in_order(recording.runs):
        while True:
            added.append(world.store.call(imports.add, recording.format, run, limit=limit))
            if added[-1].is_whole:
                break
    return added


def transcript(world: World, task_id: str) -> list[tuple[object, ...]]:
    found: list[Message] = world.store.read(messages.listing, task_id)
    return [(one.role, one.content, one.reasoning, one.tool_calls, one.tool_call_id, one.step_key) for one in found]


def calls(world: World, task_id: str) -> list[tuple[Step, Any]]:
    return [(step, given) for step, given in world.store.read(steps.listing, task_id, limit=10_000) if not step.is_note]


def only_task(world: World) -> Task:
    (task,) = world.store.read(task_lists.recent)
    return task


def a_run(source_id: str, session: str, *, name: str = "look", answer: str = "ok", **fields: Any) -> RecordedRun:
    """A run with one call whose source id is `c`."""
    entries = (
        MessageEntry("m", None, Role.USER, (MessagePart("m", "go"),)),
        CallEntry("c", None, "id", name, {"a": 1}, "m"),
        ResultEntry("c:result", None, "id", "c", name, False, result=answer),
    )
    return RecordedRun(
        **{
            "source_id": source_id,
            "session": session,
            "agent": "desk",
            "prompt": "go",
            "status": RunStatus.COMPLETED,
            "entries": entries,
            **fields,
        }
    )


def test_a_recorded_run_is_a_task_that_has_ended(world: World) -> None:
    (added,) = add_all(world, recorded(LONG))

    task = world.task(added.task_id)
    assert (task.status, task.origin, task.agent) == (TaskStatus.COMPLETED, "import", "claude-code")
    assert (added.is_new, added.messages, added.calls, added.results) == (True, 5, 2, 2)
    assert (task.message_count, task.tool_calls, task.iterations, task.attempt) == (5, 2, 2, 0)
    assert world.kinds(task.id)[0] == "task_imported"
    outcome = world.store.read(task_lists.outcome, task.id)
    assert outcome is not None
    assert json.loads(outcome.result or b"") == "Only alpha."


def test_times_are_those_of_the_record(world: World) -> None:
    recording = recorded(LONG)
    (added,) = add_all(world, recording)

    task = world.task(added.task_id)
    (run,) = recording.runs
    assert (task.created_at, task.finished_at) == (run.started_at_ms, run.ended_at_ms)
    first, second = calls(world, task.id)
    assert second[0].timestamp - first[0].timestamp == 1000
    assert [one.created_at for one in world.store.read(messages.listing, task.id)] == [
        entry.at_ms for entry in run.entries if isinstance(entry, MessageEntry)
    ]


def test_calls_keep_arguments_results_failures_and_the_batch_they_were_asked_for_in(world: World) -> None:
    (added,) = add_all(world, recorded(LONG))

    (first, first_given), (second, second_given) = calls(world, added.task_id)
    assert (first.name, first.tool_call_id, first.outcome) == ("Read", "c1", "completed")
    assert json.loads(first.output or b"") == "alpha"
    assert second.outcome == "failed"
    assert json.loads(second.output or b"")["message"] == "no such file"
    assert first_given == {"arguments": {"path": "a"}, "batch": "m1"}
    assert second_given["batch"] == first_given["batch"]


def test_a_file_read_twice_changes_no_row(world: World) -> None:
    recording = recorded(LONG)
    add_all(world, recording)

    again = world.unchanged_by(add_all, world, recording)

    assert isinstance(again, list)
    assert [(one.is_new, one.messages, one.calls, one.results) for one in again] == [(False, 0, 0, 0)]


@pytest.mark.parametrize("cut", range(1, len(LONG)))
def test_a_longer_copy_adds_its_rest_and_then_equals_one_that_was_read_at_once(world: World, cut: int) -> None:
    (before,) = add_all(world, recorded(LONG[:cut]))

    (after,) = add_all(world, recorded(LONG))

    grown = world.task(before.task_id)
    assert (after.task_id, after.is_new) == (before.task_id, False)
    assert (before.calls + after.calls, before.results + after.results) == (2, 2)
    assert (grown.message_count, grown.tool_calls, grown.iterations) == (5, 2, 2)
    whole = transcript(world, before.task_id)
    assert whole[1][:4] == (
        "assistant",
        "I look.",
        "two files",
        [
            {"id": "c1", "name": "Read", "arguments": {"path": "a"}},
            {"id": "c2", "name": "Read", "arguments": {"path": "b"}},
        ],
    )
    assert [one[1] for one in whole] == ["what is in it?", "I look.", "alpha", "no such file", "Only alpha."]
    assert [step.outcome for step, _ in calls(world, before.task_id)] == ["completed", "failed"]
    assert world.store.read(health.broken) == []


@pytest.mark.parametrize("damaged", range(len(LONG)))
def test_a_whole_copy_adds_what_a_damaged_line_held_and_nothing_twice(world: World, damaged: int) -> None:
    lines = to_lines(LONG)
    broken = read_claude_code([*lines[:damaged], b'{"type": "us\n', *lines[damaged + 1 :]], path="log")
    (before,) = add_all(world, broken)
    assert [one.where for one in broken.unused] == [f"line {damaged + 1}"]

    (after,) = add_all(world, recorded(LONG))

    task = world.task(before.task_id)
    assert (after.task_id, after.is_new) == (before.task_id, False)
    assert (before.calls + after.calls, before.results + after.results) == (2, 2)
    assert (task.message_count, task.tool_calls) == (5, 2)
    texts = ["what is in it?", "I look.", "alpha", "no such file", "Only alpha."]
    assert sorted(str(one[1]) for one in transcript(world, task.id)) == sorted(texts)
    assert sorted(str(step.outcome) for step, _ in calls(world, task.id)) == ["completed", "failed"]
    assert world.store.read(health.broken) == []
    again = world.unchanged_by(add_all, world, recorded(LONG))
    assert isinstance(again, list)


def test_an_older_copy_changes_nothing(world: World) -> None:
    add_all(world, recorded(LONG))

    again = world.unchanged_by(add_all, world, recorded(SHORT))

    assert isinstance(again, list)
    assert [(one.messages, one.calls, one.results, one.stays) for one in again] == [(0, 0, 0, "")]


def test_slices_add_up_to_the_whole(world: World) -> None:
    added = add_all(world, recorded(LONG), limit=1)

    assert len(added) == 9
    assert [one.is_new for one in added] == [True] + [False] * 8
    assert len(transcript(world, added[0].task_id)) == 5
    assert world.store.read(health.broken) == []


def test_an_ended_status_stays_and_that_is_said(world: World) -> None:
    broken = [*SHORT, reply("e1", text("overloaded"), message_id="m9", second=8, isApiErrorMessage=True)]
    (before,) = add_all(world, recorded(broken))
    assert world.task(before.task_id).status is TaskStatus.FAILED

    (after,) = add_all(world, recorded([*broken, reply("b1", text("Here."), message_id="m3", second=9)]))

    assert after.stays == "failed"
    assert world.task(before.task_id).status is TaskStatus.FAILED
    assert transcript(world, before.task_id)[-1][1] == "Here."


def test_a_subagent_hangs_below_its_parent_and_the_call_that_began_it(world: World) -> None:
    parent = a_run("main", "s")
    child = a_run("sub", "s", parent_source_id="main", parent_call_source_id="c")

    child_first = Recording(Format.CLAUDE_CODE, "x", (child, parent), 0, 0)
    top, below = add_all(world, child_first)

    assert world.task(below.task_id).parent_task_id == top.task_id
    assert world.task(below.task_id).depth == 2
    assert world.task(below.task_id).root_task_id == top.task_id
    (step, _), *_ = calls(world, top.task_id)
    assert step.child_task_id == below.task_id


def test_a_parent_that_is_nowhere_leaves_the_child_a_root(world: World) -> None:
    (added,) = add_all(world, Recording(Format.CLAUDE_CODE, "x", (a_run("sub", "s", parent_source_id="gone"),), 0, 0))

    assert world.task(added.task_id).parent_task_id is None


def test_a_failed_run_keeps_its_error_as_text(world: World) -> None:
    run = a_run("r", "s", status=RunStatus.FAILED, error="the reward is 0")

    added = world.store.call(imports.add, Format.TAU_BENCH, run)

    task = world.task(added.task_id)
    assert task.status is TaskStatus.FAILED
    assert world.store.read(lambda tx: tasks.read_error(tx, task.error)).message == "the reward is 0"  # type: ignore[union-attr]  # it is there


def test_the_same_ids_of_two_formats_are_two_runs(world: World) -> None:
    first = world.store.call(imports.add, Format.TAU_BENCH, a_run("r", "s"))
    second = world.store.call(imports.add, Format.CLAUDE_CODE, a_run("r", "s"))

    assert first.task_id != second.task_id


def test_an_imported_task_is_never_claimed_nor_recovered(world: World) -> None:
    world.new_worker(("claude-code", ""))
    add_all(world, recorded(SHORT))

    assert world.claim_any() == []
    assert world.store.read(lambda tx: tx.one(tasks.Q.newest_open_like, agent="claude-code", work_digest="x")) is None


def test_a_run_that_cannot_be_stored_is_refused_whole(world: World) -> None:
    bad = a_run("bad", "s", name="nul \x00 inside")

    outcome = world.unchanged_by(world.store.call, imports.add, Format.TAU_BENCH, bad)

    assert isinstance(outcome, BadInput)


def test_a_nul_in_a_payload_is_stored_and_comes_back(world: World) -> None:
    run = a_run("r", "s", metadata={"note": "a\x00b"}, answer="x\x00y")

    added = world.store.call(imports.add, Format.TAU_BENCH, run)

    (step, _), *_ = calls(world, added.task_id)
    assert json.loads(step.output or b"") == "x\x00y"
    assert world.store.read(tasks.get_input, added.task_id).metadata == {"note": "a\x00b"}


def test_the_conversation_at_a_record_is_a_beginning_of_the_whole(world: World) -> None:
    (added,) = add_all(world, recorded(LONG))
    whole = world.store.read(inspect, added.task_id)

    for at in range(len(whole.records)):
        part = world.store.read(inspect, added.task_id, at_step=at)

        assert part.records == whole.records[: at + 1]
        assert part.messages == whole.messages[: len(part.messages)]
        assert part.last_step == at
    assert (whole.complete, whole.last_tool_call_id) == (True, "c2")


@requires_data
@pytest.mark.parametrize(
    "facts",
    [*recorded_files(format="claude-code-jsonl"), *recorded_files(format="tau-bench")],
    ids=lambda facts: facts.path.name,
)
def test_a_real_file_is_added_once_and_sound(world: World, facts: Facts) -> None:
    recording = read_runs(facts.path)

    added = add_all(world, recording)

    assert sum(one.is_new for one in added) == len(recording.runs)
    # The manifest leaves out what subagents called.
    called = sum(isinstance(entry, CallEntry) for run in recording.runs for entry in run.entries)
    assert sum(one.calls for one in added) == called >= facts.tool_calls
    assert world.store.read(health.broken, sample=1000) == []
    assert not any(one.messages + one.calls + one.results for one in add_all(world, recording))


@requires_data
def test_successive_checkpoints_of_a_session_become_one_task(world: World) -> None:
    files = [facts.path for facts in recorded_files(format="claude-code-jsonl") if "37a27d31" in facts.path.name]
    assert len(files) == 3

    for file in sorted(files, key=lambda file: file.stat().st_size):
        add_all(world, read_runs(file))

    largest = max(files, key=lambda file: file.stat().st_size)
    (run,) = read_runs(largest).runs
    task = only_task(world)
    assert [one[1] for one in transcript(world, task.id)] == [
        entry.content for entry in run.entries if isinstance(entry, MessageEntry)
    ]
    assert world.store.read(health.broken) == []
