"""Instants as people type them: `02:00`, `2026-03-04`, `90s`, `15m`, `2h`, `7d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final

from perdure.errors import BadInput

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_UNIT_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def parse_since(text: str, *, now_ms: int) -> int:
    """The instant that `text` means, in milliseconds UTC. Raises BadInput.

    A time of day is the last one that has been, in local time; a length of time is that long ago.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return max(0, now_ms - int(float(ago[1]) * _UNIT_S[ago[2]] * 1000))
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
    try:
        of_day = time.fromisoformat(text.strip())
    except ValueError:
        return _parse_date(text)
    at = datetime.combine(now.date(), of_day, of_day.tzinfo or now.tzinfo)
    return int((at if at <= now else at - timedelta(days=1)).timestamp() * 1000)


def _parse_date(text: str) -> int:
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        known = "02:00, 2026-03-04, 2026-03-04T02:00, 90s, 15m, 2h or 7d"
        raise BadInput(f"{text!r} is no instant; write {known}", field="since") from None
    return int(at.astimezone().timestamp() * 1000)
