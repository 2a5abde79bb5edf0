"""Where the recorded runs are that some tests read. They are not part of the repository.

PERDURE_TEST_DATA names the folder; without it, the folder `shared/data` beside the checkout is tried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("PERDURE_TEST_DATA") or ROOT.parent / "shared" / "data")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the manifest says of one file."""

    path: Path
    trajectories: int
    messages: int
    tool_calls: int
    tool_results: int
    failed_results: int
    parallel: int
    links: int


def requires_data(test: Test) -> Test:
    """Mark a test or class that reads the recorded runs; it is skipped, visibly, where they are missing."""
    is_missing = not (DATA / "MANIFEST.json").is_file()
    skip = pytest.mark.skipif(is_missing, reason="no recorded runs: set PERDURE_TEST_DATA to their folder")
    marked: Test = pytest.mark.needs_data(skip(test))
    return marked


def recorded_files(*, format: str) -> list[Facts]:
    """The manifest's facts about all files of one format; none where the data is missing."""
    manifest = DATA / "MANIFEST.json"
    if not manifest.is_file():
        return []
    return [
        Facts(
            path=DATA / entry["file"],
            trajectories=entry["trajectories"],
            messages=entry["messages"],
            tool_calls=entry["tool_calls"],
            tool_results=entry["tool_results"],
            failed_results=entry["failed_results"],
            parallel=entry["messages_with_parallel_calls"],
            links=entry["subagent_or_parent_links"],
        )
        for entry in json.loads(manifest.read_text())["files"]
        if entry["format"] == format
    ]


def other_files(*formats: str) -> list[Path]:
    """Every recorded file of another format than these."""
    manifest = DATA / "MANIFEST.json"
    if not manifest.is_file():
        return []
    files = json.loads(manifest.read_text())["files"]
    return [DATA / entry["file"] for entry in files if entry["format"] not in formats]
