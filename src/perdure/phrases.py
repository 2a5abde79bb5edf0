"""Words for people: durations, moments, calls, counts.

Everything that prints (the command line, `why`, the news of a run) takes its words from here, so that one thing is
called the same everywhere. Pure; knows no store and no screen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from perdure import codec, written
from perdure.errors import Error
from perdure.model.step import Step

# Characters that move the cursor, change colours or turn the reading direction of what follows.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LATEST_MS: Final = 253_370_764_800_000  # the year 9999, beyond which no calendar goes
_SHOWN_CHARS: Final = 60
_CALL_CHARS: Final = 240
_ASKED_CHARS: Final = 400
# Errors that tell more of a call than that it failed.
_OUTCOMES: Final = {
    "perdure.errors.Denied": "denied",
    "perdure.errors.Expired": "expired",
    "perdure.errors.OutcomeUnknown": "nobody knows",
    "perdure.errors.NotApplied": "did not happen",
}


def duration(ms: float) -> str:
    """A length of time as people say it: `12 ms`, `2.4 s`, `41 min`, `5 h`, `7 d`."""
    seconds = max(0.0, ms / 1000)
    if seconds < 1:
        return f"{max(0.0, ms):.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:,.0f} d"


def moment(at_ms: int, now_ms: int) -> str:
    """An instant in local time: the time of day when it is today, else the date too."""
    if not 0 <= at_ms < _LATEST_MS:
        return "never"
    at, now = (datetime.fromtimestamp(ms / 1000, UTC).astimezone() for ms in (at_ms, now_ms))
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 task`, `3 tasks`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(texts: Collection[str], *, most: int = 5) -> str:
    """Texts in a row; of many the first few and how many more there are."""
    shown = ", ".join(list(texts)[:most])
    return shown if len(texts) <= most else f"{shown} and {len(texts) - most:,} more"


def call(name: str, arguments: object, *, limit: int = _CALL_CHARS, secrets: Collection[str] = ()) -> str:
    """A call as one would write it: `refund(order="o-9", amount=120)`, its arguments cut to `limit` characters.

    Equal for equal evidence, whichever process writes it. The text of every secret in the arguments is masked.
    """
    if not isinstance(arguments, Mapping):
        return f"{name}({'' if arguments is None else shown(arguments)})"
    return f"{name}({written.arguments(arguments, limit=limit, secrets=secrets)})"


def shown(value: object, *, limit: int = _SHOWN_CHARS, secrets: Collection[str] = ()) -> str:
    """A value on one line, cut to `limit` characters, each secret in it masked before. Calls no code of others."""
    return written.one_line(value, limit=limit, secrets=secrets)


def as_json(value: object, *, limit: int) -> str:
    """A plain value as JSON on one line, however deep, cut to `limit` characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def failure(error: Error | None) -> str:
    """How something failed, on one line, with the place in the code: `KeyError: 'total' (shop.py:7 in pay)`."""
    if error is None:
        return "no error was recorded"
    return one_line(str(error)) + (f" ({error.place})" if error.place else "")


def error_of(step: Step) -> Error | None:
    """How a recorded call failed; None when it has not."""
    if step.outcome != "failed" or step.output is None:
        return None
    try:
        return Error.from_json(codec.decode(step.output))
    except (KeyError, TypeError, AttributeError):  # Of an imported run, which may hold anything.
        return None


def outcome(step: Step, *, has_task_ended: bool = False) -> str:
    """What became of a recorded call, in a word or two."""
    if step.outcome is None:
        if step.is_undone:
            return "did not happen"
        return "in doubt" if step.is_in_doubt else "cut off" if has_task_ended else "not ended"
    if step.outcome == "failed" and step.output is not None:
        error = codec.decode(step.output)
        return _OUTCOMES.get(error.get("type", ""), step.outcome) if isinstance(error, Mapping) else step.outcome
    return step.outcome


def one_line(text: str, *, limit: int = 200) -> str:
    """Text without line ends, cut to `limit` characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def asked(text: str) -> str:
    """The text of a question on one line; of a long one its beginning and its end."""
    return written.cut_in_middle(" ".join(text.split()), _ASKED_CHARS)


def is_cut(text: str) -> bool:
    """Whether `asked` does not tell all of a question: it is long, has lines, or leaves out some of an argument."""
    return asked(text) != text.strip() or "…" in text


def safe(text: str) -> str:
    """Text without characters that would steer a terminal; line ends and tabs stay."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))
