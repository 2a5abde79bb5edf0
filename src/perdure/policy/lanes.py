"""The order inside a lane, and how many permits each may hold.

Exists so that a person who waits never waits behind background work. Does not claim, queue or time anything: it only
counts and computes. Commands that abort take no permit at all, and so never ask here.
"""

from __future__ import annotations

from typing import Final

from perdure.errors import BadInput, InvariantError
from perdure.model.task import Lane

PRIORITY_MAX: Final = 9
PRIORITY_STEP_MS: Final = 30_000  # one more of priority is worth this much earlier
_INT64_MAX: Final = 2**63 - 1


def check_priority(priority: int) -> int:
    """Return the priority, or raise BadInput unless it is a whole number from 0 to 9 (greater goes first)."""
    _check_whole("priority", priority, low=0, high=PRIORITY_MAX)
    return priority


def rank_ms(available_at_ms: int, priority: int) -> int:
    """The place in a lane's order, lowest first: 30 s earlier for each point of priority.

    It needs no clock, so that it can be stored and indexed: as both tasks age alike, their order never changes.
    """
    _check_whole("available_at_ms", available_at_ms, low=0, high=_INT64_MAX)
    return available_at_ms - PRIORITY_STEP_MS * check_priority(priority)


class Permits:
    """Counts what runs in each lane: `main_only` of the `total` permits are never given to subagent work.

    Main work fills the permits kept for it first, so that it takes no more from the others than it must.
    Belongs to one event loop; it is no lock.
    """

    __slots__ = ("_main", "_subagent", "main_only", "total")

    def __init__(self, total: int = 16, main_only: int = 2) -> None:
        _check_whole("total", total, low=1, high=1_000_000)
        _check_whole("main_only", main_only, low=0, high=total)
        self.total = total
        self.main_only = main_only
        self._main = 0
        self._subagent = 0

    def free(self, lane: Lane) -> int:
        """How many permits this lane could take now."""
        unheld = self.total - self._main - self._subagent
        match lane:
            case Lane.MAIN:
                return unheld
            case Lane.SUBAGENT:
                return min(unheld, self.total - self.main_only - self._subagent)

    def held(self, lane: Lane) -> int:
        """How many permits this lane holds now."""
        match lane:
            case Lane.MAIN:
                return self._main
            case Lane.SUBAGENT:
                return self._subagent

    def acquire(self, lane: Lane, count: int = 1) -> bool:
        """Take so many permits if the lane has them free. False changes nothing; True is owed as many releases."""
        if self.free(lane) < count:
            return False
        self._change(lane, count)
        return True

    def release(self, lane: Lane, count: int = 1) -> None:
        """Give permits back. Raises InvariantError, and changes nothing, when the lane does not hold so many."""
        if self.held(lane) < count:
            raise InvariantError(f"lane {lane} gave back a permit that it does not hold; each acquire has one release")
        self._change(lane, -count)

    def _change(self, lane: Lane, by: int) -> None:
        match lane:
            case Lane.MAIN:
                self._main += by
            case Lane.SUBAGENT:
                self._subagent += by


def _check_whole(field: str, value: object, *, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{field}: {value!r} is not a whole number from {low:,} to {high:,}", field=field)
