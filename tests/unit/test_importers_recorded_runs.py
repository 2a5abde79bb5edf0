"""The readers on real recorded runs, counted against what their manifest says."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure.errors import BadInput
from perdure.importers import CallEntry, MessageEntry, Recording, ResultEntry, Role, RunStatus, read_runs
from perdure.importers.claude_code import read_claude_code
from tests.growth import assert_grows, assert_sound
from tests.recorded_data import DATA, Facts, other_files, recorded_files, requires_data

CLAUDE_CODE = recorded_files(format="claude-code-jsonl")
TAU_BENCH = recorded_files(format="tau-bench")


def name(facts: Facts) -> str:
    return facts.path.name


def count(recording: Recording, *, is_child: bool) -> Counter[str]:
    """What the main runs hold, or their subagents' runs."""
    counts: Counter[str] = Counter()
    for run in recording.runs:
        if (run.parent_source_id is not None) is not is_child:
            continue
        counts["runs"] += 1
        batches: Counter[str] = Counter()
        for entry in run.entries:
            match entry:
                case MessageEntry():
                    counts["parts"] += len(entry.parts)
                case CallEntry():
                    counts["calls"] += 1
                    batches[entry.batch] += 1
                case ResultEntry():
                    counts["results"] += 1
                    counts["failures"] += entry.failed
        counts["parallel"] += sum(1 for size in batches.values() if size > 1)
    return counts


@requires_data
def test_there_are_files_of_both_formats() -> None:
    assert (len(CLAUDE_CODE), len(TAU_BENCH)) == (13, 1)


@requires_data
@pytest.mark.parametrize("facts", [*CLAUDE_CODE, *TAU_BENCH], ids=name)
def test_the_counts_are_those_of_the_manifest(facts: Facts) -> None:
    recording = read_runs(facts.path)

    counts = count(recording, is_child=False)
    assert counts["runs"] == facts.trajectories
    assert counts["parts"] == facts.messages
    assert counts["calls"] == facts.tool_calls
    assert counts["results"] == facts.tool_results
    assert counts["failures"] == facts.failed_results
    assert counts["parallel"] == facts.parallel
    assert count(recording, is_child=True)["runs"] == facts.links


@requires_data
@pytest.mark.parametrize("facts", CLAUDE_CODE, ids=name)
def test_every_log_cut_at_a_line_is_a_prefix(facts: Facts) -> None:
    lines = facts.path.read_bytes().splitlines(keepends=True)
    longer = read_claude_code(lines, path="log")
    assert_sound(longer, line_count=len(lines))

    # Every line of the short logs, and of the long ones about thirty spread so that all kinds of lines are met.
    for cut in range(0, len(lines), max(1, len(lines) // 31)):
        shorter = read_claude_code(lines[:cut], path="log")
        assert_sound(shorter, line_count=cut)
        assert_grows(shorter, longer)


@requires_data
def test_three_checkpoints_of_one_session_grow_into_each_other() -> None:
    copies = [
        read_runs(path) for path in sorted(DATA.glob("claude-code/37a27d31*"), key=lambda path: path.stat().st_size)
    ]

    first, second, third = copies
    assert_grows(first, second)
    assert_grows(second, third)
    known: set[str] = set()
    added = 0
    for copy in copies:
        rest = copy.runs[0].entries_after(known)
        known.update(source_id for entry in rest for source_id in entry.source_ids)
        added += len(rest)
    assert known == set(third.runs[0].source_ids)
    assert added == len(third.runs[0].entries)
    assert third.runs[0].entries_after(known) == ()


@requires_data
def test_the_messages_of_subagents_are_read_from_their_parents_log() -> None:
    (path,) = DATA.glob("claude-code/170cebcc*")

    recording = read_runs(path)

    counts = count(recording, is_child=True)
    assert (counts["runs"], counts["parts"], counts["calls"], counts["results"]) == (2, 130, 64, 64)
    root, *children = recording.runs
    calls = {entry.source_id: entry for entry in root.entries if isinstance(entry, CallEntry)}
    for child in children:
        assert child.parent_source_id == root.source_id
        begun = calls[str(child.parent_call_source_id)]
        assert (begun.name, begun.at_ms) == ("Task", child.started_at_ms)
        assert child.status is RunStatus.COMPLETED
        assert isinstance(child.result, str)


@requires_data
def test_six_subagents_of_one_message_are_linked_to_its_six_calls() -> None:
    (path,) = DATA.glob("claude-code/9667a07f*")

    root, *children = read_runs(path).runs

    calls = {entry.source_id: entry for entry in root.entries if isinstance(entry, CallEntry)}
    started = [calls[str(child.parent_call_source_id)] for child in children]
    assert len({begun.source_id for begun in started}) == 6
    assert len({begun.batch for begun in started}) == 1
    assert len({child.agent for child in children}) == 6
    assert {end.child_source_id for end in root.entries if isinstance(end, ResultEntry)} >= {
        child.source_id for child in children
    }


@requires_data
def test_every_entry_of_a_log_has_its_time_and_no_signature_is_kept() -> None:
    for facts in CLAUDE_CODE:
        recording = read_runs(facts.path)

        assert all(entry.at_ms is not None for run in recording.runs for entry in run.entries)
        assert '"signature"' in facts.path.read_text()
        assert "'signature'" not in repr(recording)


@requires_data
def test_rewards_decide_how_benchmark_runs_ended() -> None:
    recording = read_runs(TAU_BENCH[0].path)

    for run in recording.runs:
        assert (run.status is RunStatus.FAILED) == (run.metadata["reward"] == 0)
        assert [entry.role for entry in run.entries[:2] if isinstance(entry, MessageEntry)] == [Role.SYSTEM, Role.USER]
    assert (recording.remarks, recording.unused) == ((), ())


@requires_data
@pytest.mark.parametrize("path", other_files("claude-code-jsonl", "tau-bench"), ids=lambda path: path.name)
def test_every_other_format_is_refused_with_what_is_supported(path: object) -> None:
    with pytest.raises(BadInput, match="unknown format; supported: tau-bench, claude-code"):
        read_runs(str(path))
