"""Every setting: default, unit, range, reason. Given to `App(settings=)`, by flags, `[tool.perdure]` or environment.

A name ends in its unit: `_s` seconds, `_ms` milliseconds, `_bytes`; counts have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from perdure.errors import BadInput

_DAY_S = 86_400.0


def _setting(default: float, low: float, high: float, reason: str) -> float:
    return field(default=default, metadata={"low": low, "high": high, "reason": reason})


def _count(default: int, low: int, high: int, reason: str) -> int:
    return field(default=default, metadata={"low": low, "high": high, "reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a process works. Each value is checked against its range when the object is made."""

    heartbeat_s: float = _setting(5.0, 0.05, 600, "how often a worker proves that it lives")
    lease_s: float = _setting(30.0, 0.2, 3600, "silence after which its work may be taken over; at least 3 heartbeats")
    permits: int = _count(16, 1, 10_000, "tasks that run at once in one worker")
    main_permits: int = _count(2, 0, 10_000, "of these, kept for people who wait; of a single one, none")
    shutdown_grace_s: float = _setting(10.0, 0, 3600, "how long calls in flight may end after a stop signal")
    deadline_grace_s: float = _setting(5.0, 0, 600, "how long an owner may end in good order after its deadline")
    busy_s: float = _setting(10.0, 0.05, 600, "how long to wait for another process's write before saying who holds it")
    sweep_s: float = _setting(
        1.0, 0.02, 600, "how often deadlines, timers, recovery are looked at; at least 4 times in each lease"
    )
    poll_ms: float = _setting(250, 5, 60_000, "how often to look for work that no hint told of (1,000 on PostgreSQL)")
    waiting_in_memory: int = _count(256, 0, 100_000, "waiting attempts kept in memory; the longest are set aside first")
    payload_limit_bytes: int = _count(16 << 20, 1024, 1 << 30, "largest single value")
    artifact_limit_bytes: int = _count(64 << 20, 1024, 256 << 20, "largest content of one artifact")
    question_expiry_s: float = _setting(7 * _DAY_S, 1, 3650 * _DAY_S, "after this an unanswered yes-or-no is `expired`")
    drift_settle_ms: float = _setting(50, 0, 60_000, "quiet time before an unmatched dangerous call counts as drift")
    pulse_batch: int = _count(50, 1, 10_000, "streamed events per flush")
    pulse_flush_ms: float = _setting(500, 1, 60_000, "longest time a streamed event stays in memory")
    pulse_kept: int = _count(1000, 1, 1_000_000, "streamed events buffered per task; the oldest are dropped")
    call_retries: int = _count(3, 0, 100, "how often a low or medium call is tried again")
    recovery_limit: int = _count(3, 1, 1000, "recoveries without progress before a task is parked")
    unread_limit: int = _count(1000, 1, 1_000_000, "deliveries a task may have unread")

    def __post_init__(self) -> None:
        for item in fields(self):
            value, low, high = getattr(self, item.name), item.metadata["low"], item.metadata["high"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise BadInput(
                    f"setting {item.name} is {value!r}; it must be a number from {low:g} to {high:g}", field=item.name
                )
        if self.lease_s < 3 * self.heartbeat_s:
            raise BadInput(
                f"lease_s is {self.lease_s:g} but must be at least three heartbeats ({3 * self.heartbeat_s:g} s)",
                field="lease_s",
            )
        if self.main_permits >= self.permits and self.permits > 1:
            raise BadInput("main_permits must be smaller than permits", field="main_permits")

    def override(self, values: Mapping[str, object]) -> Settings:
        """These settings with others on top. Raises BadInput for an unknown name or a value out of range."""
        known = {item.name: item for item in fields(self)}
        changes: dict[str, float] = {}
        for name, value in values.items():
            if name not in known:
                raise BadInput(f"unknown setting {name}; known are {', '.join(sorted(known))}", field=name)
            try:
                number = float(value) if isinstance(value, str) else value
            except ValueError:
                raise BadInput(f"setting {name} is {value!r}, not a number", field=name) from None
            if isinstance(known[name].default, int) and isinstance(number, float) and number.is_integer():
                number = int(number)
            changes[name] = number  # type: ignore[assignment]  # __post_init__ refuses what is no number
        return replace(self, **changes)  # type: ignore[arg-type]  # float covers int


def durability_note() -> str:
    """One sentence on what an acknowledged write survives; shown by `doctor`."""
    return "an acknowledged write survives kill -9 and power loss (WAL, synchronous=FULL)"
