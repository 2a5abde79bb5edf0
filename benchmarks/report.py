"""Medians as a table, with the ratio to the limit, the goal, and what was recorded on an earlier day.

Ratios, syncs, bytes and CPU are compared; rates alone are shown and never judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.meter import PAYLOAD_BYTES, Numbers

Cells = Mapping[str, Numbers]


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that may be compared between machines and days, and what it should be at least or at most."""

    name: str
    value: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        return self.value >= (self.at_least or 0) and (self.at_most is None or self.value <= self.at_most)


def goals(cells: Cells) -> list[Goal]:
    """What the session says about each goal; those whose cells were not measured are left out."""
    many = "recovery 10000, a worker a core"
    wanted = [
        Goal("steps/s over the limit, 1 task", _number(cells, "steps 1", "of_limit"), at_least=0.85),
        Goal("steps/s over the limit, 8 tasks", _number(cells, "steps 8", "of_limit"), at_least=0.55),
        Goal("steps/s over the limit, 64 tasks", _number(cells, "steps 64", "of_limit"), at_least=0.25),
        Goal("syncs a step, 1 task", _number(cells, "steps 1", "syncs"), at_most=1.05),
        Goal("syncs a step, 64 tasks", _number(cells, "steps 64", "syncs"), at_most=0.05),
        Goal("syncs of a task of one step, started here", _number(cells, "task started", "own_syncs"), at_most=3),
        Goal("syncs of a task of one step, run here", _number(cells, "task run", "own_syncs"), at_most=2),
        Goal("syncs of a task of one step, another process", _number(cells, "task elsewhere", "own_syncs"), at_most=3),
        Goal("CPU a step, 64 tasks, us", _number(cells, "steps 64", "cpu_us"), at_most=200),
        Goal("stored bytes a payload byte, 64 tasks", _number(cells, "steps 64", "stored_ratio"), at_most=1.5),
        Goal("written bytes a payload byte, 64 tasks", _written(cells, "steps 64"), at_most=7),
        Goal("10,000 interrupted tasks, a worker a core, all done, s", _number(cells, many, "all_done_s"), at_most=6),
        Goal("10,000 interrupted tasks, first done, s", _number(cells, many, "first_done_s"), at_most=0.5),
    ]
    return [goal for goal in wanted if goal.value is not None]


def table(cells: Cells, recorded: Mapping[str, float]) -> str:
    """Everything that was measured, for people."""
    rows: list[tuple[str, ...]] = [
        ("cell", "per s", "p50 ms", "p99 ms", "CPU us", "syncs", "KB written", "of the limit")
    ]
    for name, numbers in cells.items():
        shown = [_show(numbers.get(key)) for key in ("per_s", "p50_ms", "p99_ms", "cpu_us", "syncs")]
        rows.append((name, *shown, _show(numbers.get("written_bytes"), 1 / 1024), _show(numbers.get("of_limit"))))
    judged: list[tuple[str, ...]] = [("goal", "measured", "wanted", "", "recorded")]
    for goal in goals(cells):
        wanted = f">= {goal.at_least:g}" if goal.at_least is not None else f"<= {goal.at_most:g}"
        verdict = "met" if goal.is_met else "NOT MET"
        judged.append((goal.name, _show(goal.value), wanted, verdict, _show(recorded.get(goal.name))))
    return "\n".join([*_aligned(rows), "", *_aligned(judged)])


def _written(cells: Cells, cell: str) -> float | None:
    written = _number(cells, cell, "written_bytes")
    return None if written is None else written / PAYLOAD_BYTES


def _number(cells: Cells, cell: str, name: str) -> float | None:
    return cells[cell].get(name) if cell in cells else None


def _show(value: float | None, factor: float = 1.0) -> str:
    if value is None:
        return "-"
    value *= factor
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
