"""The demo, with real processes that are really killed: the three promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from perdure.demo import run_demo
from perdure.demo.show import command_here
from perdure.errors import BadInput
from tests.recorded_data import DATA, requires_data

FAULTS = ("lost", "twice", "stuck", "unequal")


@pytest.fixture(autouse=True)
def _keep_files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo leaves for people to look at goes away with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def counts_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    counts: dict[str, Any] = json.loads(out)
    return counts


def test_the_scenario_survives_kills_and_a_zombie(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_demo(kills=4, zombies=1, seed=1, as_json=True)

    counts = counts_of(capsys)
    assert {name: counts[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (code, counts["kills"], counts["zombies"]) == (0, 4, 1)
    assert counts["tasks"] >= 20
    assert counts["resumed"] > 0
    assert counts["asked"] == counts["answered"]
    assert list(counts) == ("tasks steps kills zombies resumed asked answered lost twice stuck unequal seconds".split())


def test_a_small_recording_is_told_in_few_and_short_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = {"id": "c1", "function": {"name": "send_mail", "arguments": json.dumps({"text": "long\n" * 400})}}
    run = {
        "task_id": 3,
        "trial": 0,
        "traj": [
            {"role": "user", "content": "Tell them."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "send_mail", "content": "sent"},
            {"role": "assistant", "content": "Done."},
        ],
    }
    source = tmp_path / "results.json"
    source.write_text(json.dumps([run]))

    assert run_demo(sources=[source], kills=2, zombies=1, seed=1) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "perdure demo: 1 recorded run; 2 worker processes, seed 1"
    assert sum(" again " in line and "once more" in line for line in lines) == 1
    happened = [line for line in lines if re.match(r" *[0-9.]+ s  ", line)]
    assert max(map(len, happened)) < 200
    assert any(
        re.search(r"\d+ tasks \(\d+ of them played again\), resumed \d+ times?; 0 stuck", line) for line in lines
    )


def test_the_first_line_counts_subagents_as_the_last_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(kills=0, seed=1) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "12 runs of an invented refund desk" in lines[0] and "with their subagents 20 tasks;" in lines[0]
    assert any("20 tasks, resumed 0 times; 0 stuck, 0 other than recorded" in line for line in lines)


@requires_data
def test_recorded_runs_of_a_benchmark_survive_kills(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_demo(sources=[DATA / "tau-bench"], kills=8, zombies=0, seed=2, as_json=True)

    counts = counts_of(capsys)
    assert {name: counts[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (code, counts["kills"]) == (0, 8)
    assert counts["tasks"] >= 40


@requires_data
def test_recorded_sessions_with_subagents_survive_kills(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_demo(sources=[DATA / "claude-code"], kills=8, zombies=1, seed=3, as_json=True)

    counts = counts_of(capsys)
    assert {name: counts[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (code, counts["kills"], counts["zombies"]) == (0, 8, 1)
    assert counts["tasks"] >= 23


@pytest.mark.slow(timeout_s=180)
def test_the_same_on_postgres(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_demo(kills=4, zombies=1, seed=4, url=postgres_url, as_json=True)

    counts = counts_of(capsys)
    assert {name: counts[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert (code, counts["kills"], counts["zombies"]) == (0, 4, 1)


def test_where_nobody_watches_a_terminal_it_prints_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_demo(kills=1, zombies=0, workers=1, seed=5)

    out = capsys.readouterr().out
    assert code == 0
    assert "\x1b" not in out
    assert "killed     worker 1" in out
    assert out.count("kept    ") == 3
    assert re.search(r"\n  its tasks, .*\n    \S*perdure ps --all --db \S+\n", out)


def test_work_that_nobody_disturbed_names_no_task_that_was_disturbed(capsys: pytest.CaptureFixture[str]) -> None:
    run_demo(kills=0, zombies=0, workers=1, seed=5)

    out = capsys.readouterr().out
    assert "1 worker process, seed 5" in out
    assert "No worker is killed" in out
    assert "taken up most often" not in out


def test_the_command_it_names_at_the_end_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "perdure").write_text("")
    (tmp_path / "bin" / "perdure").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    outside = command_here()
    monkeypatch.chdir(tmp_path)
    inside = command_here()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin")
    active = command_here()
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")

    assert (outside, inside, active) == (str(tmp_path / "bin" / "perdure"), "bin/perdure", "perdure")
    assert command_here() == "/usr/bin/python3 -m perdure.cli"


def test_a_database_in_use_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "used.db")
    run_demo(kills=0, zombies=0, url=url, as_json=True)
    before = counts_of(capsys)["tasks"]

    with pytest.raises(BadInput, match="holds tasks already"):
        run_demo(kills=0, zombies=0, url=url, as_json=True)

    assert before == 20
    assert capsys.readouterr().out == ""


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"a": 1}')

    with pytest.raises(BadInput, match="unknown format"):
        run_demo(sources=[path], kills=0)


@pytest.mark.parametrize("wrong", [{"kills": -1}, {"workers": 0}, {"copies": 0}, {"zombies": -1}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))} is"):
        run_demo(**wrong)
