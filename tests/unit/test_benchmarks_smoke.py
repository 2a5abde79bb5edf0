"""The benchmark runs and writes every cell. What it measures is not looked at: no test depends on a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow(timeout_s=180)
def test_a_tiny_session_writes_every_cell_as_json(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    tiny = ["--rounds=1", "--seconds=0.05", "--tasks=2", "--concurrency=2", "--interrupted=3", f"--out={out}"]

    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *tiny], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )

    assert ended.returncode == 0, ended.stderr
    written = json.loads(out.read_text())
    assert set(written["cells"]) == {
        "limit 2",
        "steps 2",
        "limit 2, pages of perdure's size",
        "task started",
        "task run",
        "task elsewhere",
        "recovery 3",
        "recovery 3, a worker a core",
    }
    assert set(written["cells"]["steps 2"]) == {
        "count",
        "per_s",
        "cpu_us",
        "syncs",
        "written_bytes",
        "p50_ms",
        "p99_ms",
        "stored_ratio",
        "of_limit",
    }
    assert "first_done_s" in written["cells"]["recovery 3"]
    assert "all_done_s" in written["cells"]["recovery 3, a worker a core"]
    assert "steps 2" in ended.stdout
