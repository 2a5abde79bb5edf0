"""Counts what became of every record of a file, so that nothing is left out in silence.

A reader calls `use`, `leave` or `remark` as it goes; `recording` sums up, one line a reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.importers.recorded import Format, RecordedRun, Recording, Remark, Unused

MAX_PLACES = 20
"""So many places (or ranges of lines) are named for one reason; the count is always exact."""

Place = int | str
"""A line number, or a path such as `runs[3].traj[7]`."""


class Tally:
    """The counts of one file being read."""

    def __init__(self) -> None:
        self._used = 0
        self._left: dict[str, list[Place]] = {}
        self._left_counts: dict[str, int] = {}
        self._remarks: dict[str, list[Place]] = {}

    def use(self) -> None:
        """One record went into a run."""
        self._used += 1

    def leave(self, place: Place, *, reason: str, count: int = 1) -> None:
        """`count` records at this place add nothing."""
        self._left.setdefault(reason, []).append(place)
        self._left_counts[reason] = self._left_counts.get(reason, 0) + count

    def remark(self, place: Place, *, reason: str) -> None:
        """Something about a record that is used."""
        self._remarks.setdefault(reason, []).append(place)

    def recording(self, format: Format, *, path: str, runs: tuple[RecordedRun, ...]) -> Recording:
        """Everything read, with the counts of all records."""
        unused = tuple(
            Unused(name_places(places), reason, self._left_counts[reason]) for reason, places in self._left.items()
        )
        return Recording(
            format=format,
            path=path,
            runs=runs,
            record_count=self._used + sum(item.count for item in unused),
            used_count=self._used,
            unused=unused,
            remarks=tuple(Remark(name_places(places), reason, len(places)) for reason, places in self._remarks.items()),
        )


def name_places(places: Sequence[Place]) -> str:
    """Name places for a person: `line 3`, `lines 1, 4-6`, `runs[0], runs[2]`; a long list ends with its remainder."""
    ranges: list[str] = []
    lines = sorted({place for place in places if isinstance(place, int)})
    start = 0
    for end, line in enumerate(lines, 1):
        if end == len(lines) or lines[end] != line + 1:
            ranges.append(str(lines[start]) if start == end - 1 else f"{lines[start]}-{line}")
            start = end
    names = [*ranges, *(place for place in dict.fromkeys(places) if isinstance(place, str))]
    shown = ", ".join(names[:MAX_PLACES])
    if len(names) > MAX_PLACES:
        shown += f" and {len(names) - MAX_PLACES} more"
    if not lines:
        return shown
    return f"line {shown}" if len(names) == 1 and "-" not in shown else f"lines {shown}"
