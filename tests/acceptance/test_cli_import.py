"""`perdure import` and `perdure doctor` as commands: what is printed, as lines and as JSON, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.claude_lines import call, hook, prompt, reply, result, text, to_bytes
from tests.command_line import Desk
from tests.recorded_data import recorded_files, requires_data

SHORT = [
    prompt("u1", "what is in it?", second=1),
    reply("a1", text("I look."), call("c1", "Read", path="a"), second=2),
]
LONG = [
    *SHORT,
    hook("h1"),
    result("r1", "c1", "alpha", second=3),
    reply("b1", text("Alpha."), message_id="m2", second=4),
]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_an_import_says_what_was_added_and_what_was_not_used(desk: Desk) -> None:
    file = desk.folder / "log.jsonl"
    file.write_bytes(to_bytes(LONG))

    said = desk.run("import", str(file))

    assert said.code == 0
    assert said.out.splitlines() == [
        f"{file}: claude-code, 1 run",
        "  added 1 new run, 4 messages, 1 tool call, 1 result",
        "  4 of 5 records are of use",
        "  not used: 1 x progress hook_progress: a notice while something runs (line 3)",
    ]


def test_an_import_that_can_read_nothing_makes_no_database(desk: Desk) -> None:
    (desk.folder / "notes.txt").write_text("nothing of ours")

    said = desk.run("import", "nofile", str(desk.folder / "notes.txt"))

    assert said.code == 1
    assert said.out.startswith("problem: cannot read nofile: ")
    assert not desk.db.exists()


def test_a_second_import_adds_nothing_and_a_longer_file_its_rest(desk: Desk) -> None:
    file = desk.folder / "log.jsonl"
    file.write_bytes(to_bytes(SHORT))
    desk.run("import", str(file))

    again = desk.run("import", str(file))
    file.write_bytes(to_bytes(LONG))
    longer = desk.run("import", str(file))

    assert again.out.splitlines()[1] == "  nothing new"
    assert longer.out.splitlines()[1] == "  added 2 messages, 1 result (1 run had grown)"
    (task,) = desk.run("ps", "--all", "--json").json["tasks"]
    assert (task["status"], task["origin"], task["messages"]) == ("completed", "import", 4)


def test_the_imported_run_can_be_shown(desk: Desk) -> None:
    file = desk.folder / "log.jsonl"
    file.write_bytes(to_bytes(LONG))
    desk.run("import", str(file))
    (task,) = desk.run("ps", "--all", "--json").json["tasks"]

    shown = desk.run("show", task["id"], "--messages").out

    assert "imported: it ran elsewhere" in shown
    assert 'Read(path="a")' in shown
    assert "assistant" in shown and "  Alpha." in shown


def test_a_folder_stands_for_its_files(desk: Desk) -> None:
    folder = desk.folder / "logs" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(to_bytes(LONG))
    (folder / ".hidden").write_text("x")

    told = desk.run("import", str(desk.folder / "logs"), "--json").json

    assert [Path(one["file"]).name for one in told["files"]] == ["a.jsonl"]
    assert told["files"][0]["messages"] == 4


def test_a_file_of_no_known_format_is_a_problem_and_the_others_are_read(desk: Desk) -> None:
    good, bad = desk.folder / "a.jsonl", desk.folder / "b.json"
    good.write_bytes(to_bytes(LONG))
    bad.write_text(json.dumps({"hello": 1}))

    said = desk.run("import", str(bad), str(good), str(desk.folder / "missing"))

    assert said.code == 1
    assert "unknown format" in said.out
    assert "added 1 new run" in said.out
    assert "cannot read" in said.out


@requires_data
def test_forty_recorded_runs_are_one_command(desk: Desk) -> None:
    (facts,) = recorded_files(format="tau-bench")

    told = desk.run("import", str(facts.path), "--json").json["files"][0]

    assert (told["new_runs"], told["messages"], told["calls"], told["results"]) == (
        facts.trajectories, facts.messages, facts.tool_calls, facts.tool_results,
    )  # fmt: skip
    assert told["used"] == told["records"]
    assert desk.run("doctor").code == 0


def test_doctor_says_that_all_is_well(desk: Desk) -> None:
    desk.run("run", "writer", "x")

    said = desk.run("doctor")

    assert said.code == 0
    assert said.out.splitlines()[-1] == "all is well"
    assert "SQLite      3." in said.out
    assert desk.run("doctor", "--json").json["findings"] == []


def test_doctor_exits_with_1_and_names_what_it_found(desk: Desk) -> None:
    desk.run("run", "writer", "x")
    desk.db.chmod(0o644)

    said = desk.run("doctor")

    assert said.code == 1
    assert f"  {desk.db} has mode 0644" in said.out.splitlines()
    (finding,) = desk.run("doctor", "--json").json["findings"]
    assert finding["check"] == "modes"
    assert f"{desk.db} has mode 0644" in finding["rows"]
