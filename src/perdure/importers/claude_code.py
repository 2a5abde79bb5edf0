"""Reads the session log of Claude Code: JSON Lines, appended while a session goes on.

This file reads lines; claude_log.py decides which run a line belongs to; claude_runs.py builds the runs. A session
is one run, known by its session id. Each subagent is a run of its own under it, known by session and agent id. Its
messages stand in the session's log inside `progress` lines, or as lines marked `isSidechain` (there or in a file of
their own), or only its result is there.

Every step depends on the lines before it alone, so a shorter copy of a log gives a prefix of the longer one's runs
and entries. Lines are kept in the order of the file: `parentUuid` makes a tree, and where a person went back and
asked anew both branches are kept. Not kept: the signatures of reasoning, which are the provider's own state.

A line that is damaged (a log that was cut off and continued has one) is left out and named; the lines around it are
used. A later copy in which it is whole adds what it holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from perdure.errors import BadInput
from perdure.importers.claude_log import ASIDE_TYPES, Log
from perdure.importers.recorded import Format, Json, Recording
from perdure.importers.strict import Parsed, as_object, parse_json, text_in
from perdure.importers.tally import Tally

_CUT_OFF = "cut off: the file ends within this line"


def looks_like_claude_code(record: Json) -> bool:
    """Whether the first line of a file, parsed, is one of this format."""
    fields = as_object(record)
    if fields.get("type") in ASIDE_TYPES:
        return True
    return all(text_in(fields, key) is not None for key in ("type", "uuid", "sessionId"))


def read_claude_code(lines: Iterable[bytes], *, path: str) -> Recording:
    """Turn the lines of a log, each with its line end, into runs. Every line is counted as used or unused."""
    tally = Tally()
    log = Log(tally)
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            tally.leave(number, reason="blank")
            continue
        try:
            parsed = parse_line(raw, number=number)
        except BadInput as error:
            tally.leave(number, reason=_why_left(error, is_ended=raw.endswith(b"\n")))
            continue
        for reason in parsed.remarks:
            tally.remark(number, reason=reason)
        log.read(number, as_object(parsed.value))
    return tally.recording(Format.CLAUDE_CODE, path=path, runs=tuple(run.build() for run in log.finish()))


def _why_left(error: BadInput, *, is_ended: bool) -> str:
    """Why a line is of no use, without its place, so that lines with the same damage are told together."""
    match error.__cause__:
        case UnicodeDecodeError() | json.JSONDecodeError() if not is_ended:
            return _CUT_OFF
        case UnicodeDecodeError():
            return "damaged: not UTF-8"
        case json.JSONDecodeError() as damage:
            return f"damaged: not JSON ({damage.msg})"
        case _:
            return f"damaged: {str(error).removeprefix(f'{error.field}: ')}"


def parse_line(raw: bytes, *, number: int) -> Parsed:
    """Parse one line.

    Raises:
        BadInput: not UTF-8, or what `parse_json` refuses. The message names the line.
    """
    where = f"line {number}"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: not UTF-8 at byte {error.start + 1}", field=where) from error
    return parse_json(text.rstrip("\r\n"), where=where)
