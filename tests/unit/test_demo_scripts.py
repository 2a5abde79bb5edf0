"""Recorded runs become scripts that say and do the same, whatever their format left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.demo import scripts
from perdure.demo.scenario import scenario
from perdure.demo.scripts import Script
from perdure.errors import BadInput
from tests.claude_lines import SESSION, Record, call, progress, prompt, reply, result, text, to_bytes


def write(folder: Path, name: str, lines: Sequence[Record]) -> Path:
    path = folder / name
    path.write_bytes(to_bytes(lines))
    return path


def read_one(folder: Path, *lines: Record) -> Script:
    (script,) = scripts.read_scripts([write(folder, "log.jsonl", lines)])
    return script


@pytest.mark.parametrize("tool", ["get_order", "find_user", "search_flights", "list_all", "calculate", "think", "Read"])
def test_tools_that_only_look_are_reads(tool: str) -> None:
    assert scripts.is_read(tool)


@pytest.mark.parametrize("tool", ["Bash", "Edit", "refund", "forget_order", "Reader", "thinker", "research", ""])
def test_every_other_tool_is_not(tool: str) -> None:
    assert not scripts.is_read(tool)


def test_calls_of_one_answer_are_made_at_once_and_told_in_their_order(tmp_path: Path) -> None:
    script = read_one(
        tmp_path,
        prompt("u1", "look twice"),
        reply("a1", call("c1", "Read", path="x")),
        reply("a2", call("c2", "Bash", command="ls")),
        result("r2", "c2", "files"),
        result("r1", "c1", "text"),
        reply("a3", text("done"), message_id="m2"),
    )

    assert [line.role for line in script.lines] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [one.name for one in script.lines[1].calls] == ["Read", "Bash"]
    assert [line.answers for line in script.lines[2:4]] == [one.id for one in reversed(script.lines[1].calls)]
    assert script.step_count == 4


def test_what_was_recorded_is_what_the_transcript_shall_say(tmp_path: Path) -> None:
    script = read_one(
        tmp_path, prompt("u1"), reply("a1", call("c1", "Bash", command="ls")), result("r1", "c1", "files")
    )

    (made,) = script.calls
    said = [scripts.message_of(line, {made.id: made.content}) for line in script.lines]

    assert said == [
        "please look",
        {"content": None, "tool_calls": [{"id": "c1", "name": "Bash", "arguments": {"command": "ls"}}]},
        {"tool_call_id": "c1", "name": "Bash", "content": "files"},
    ]


def test_a_subagent_is_a_child_that_hands_over_what_its_caller_was_told(tmp_path: Path) -> None:
    played = scripts.read_scripts(
        [
            write(
                tmp_path,
                "log.jsonl",
                [
                    prompt("u1"),
                    reply("a1", call("c1", "Task", prompt="dig")),
                    progress("p1", "ag1", "c1", prompt("s1", "dig")),
                    progress("p2", "ag1", "c1", reply("s2", text("a bone"), message_id="m9")),
                    result("r1", "c1", "a bone, it says", toolUseResult={"agentId": "ag1"}),
                ],
            )
        ]
    )

    parent, child = played
    assert [one.child for one in parent.calls] == [child.id]
    assert child.id.startswith(SESSION)
    assert child.result == "a bone, it says"
    assert [line.role for line in child.lines] == ["user", "assistant"]


def test_a_recorded_error_is_kept_as_far_as_a_replay_keeps_it(tmp_path: Path) -> None:
    script = read_one(
        tmp_path, prompt("u1"), reply("a1", call("c1", "Bash")), result("r1", "c1", "x" * 20_000, is_error=True)
    )

    (made,) = script.calls
    assert made.failed
    assert made.content == "x" * 10_000


def test_a_call_that_never_got_a_result_is_not_made(tmp_path: Path) -> None:
    script = read_one(tmp_path, prompt("u1"), reply("a1", call("c1", "Bash")))

    assert list(script.calls) == []
    assert len(script.lines[1].tool_calls) == 1


def test_of_two_copies_of_one_session_the_longer_counts(tmp_path: Path) -> None:
    lines = [prompt("u1"), reply("a1", text("hello"))]
    write(tmp_path, "a.jsonl", lines)
    write(tmp_path, "b.jsonl", lines[:1])

    (script,) = scripts.read_scripts([tmp_path])

    assert len(script.lines) == 2


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no recorded runs"):
        scripts.read_scripts([tmp_path])


def test_a_script_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    played = scenario()

    scripts.keep(tmp_path / "scripts", played)

    assert [scripts.fetch(tmp_path / "scripts", script.id) for script in played] == played
    assert scripts.fetch(tmp_path / "scripts", f"{played[0].id}~7") == played[0]


def test_a_run_without_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no script of nobody"):
        scripts.fetch(tmp_path, "nobody")


def test_the_child_of_a_copy_is_of_the_same_copy() -> None:
    assert scripts.like("lead~3", "child") == "child~3"
    assert scripts.like("lead", "child") == "child"


def test_the_scenario_has_everything_that_can_go_wrong() -> None:
    played = scenario()
    calls = [one for script in played for one in script.calls]

    assert any(one.failed for one in calls)
    assert any(one.child for one in calls)
    assert any(one.child and one.failed for one in calls)
    assert any(len(line.calls) > 4 for script in played for line in script.lines)
    assert len({script.id for script in played}) == len(played)
