"""Readers of recorded runs: a file goes in, runs as plain values come out. No database, no network.

The format is told by what stands in the file, never by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from perdure.errors import BadInput
from perdure.importers.claude_code import looks_like_claude_code, parse_line, read_claude_code
from perdure.importers.recorded import (
    CallEntry,
    Entry,
    Format,
    Json,
    MessageEntry,
    MessagePart,
    RecordedRun,
    Recording,
    Remark,
    ResultEntry,
    Role,
    RunStatus,
    ToolCall,
    Unused,
)
from perdure.importers.strict import parse_json
from perdure.importers.tau_bench import looks_like_tau_bench, read_tau_bench

__all__ = [
    "FORMATS",
    "CallEntry",
    "Entry",
    "Format",
    "Json",
    "MessageEntry",
    "MessagePart",
    "RecordedRun",
    "Recording",
    "Remark",
    "ResultEntry",
    "Role",
    "RunStatus",
    "ToolCall",
    "Unused",
    "read_runs",
]

FORMATS = tuple(Format)
"""What `read_runs` can read."""

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_ARRAY_BYTES = 512 * 1024 * 1024
"""A JSON array has to be held in memory as a whole; lines are read one by one, so a log may be of any size."""

_DAMAGED_AT_START = 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SUPPORTED = "supported: " + ", ".join(FORMATS)


def read_runs(path: str | os.PathLike[str]) -> Recording:
    """Read every run that a file of recorded runs holds. The file is read once and not changed.

    Raises:
        BadInput: the file cannot be read, is empty, is of no known format, or is a damaged array. The message names
            the line. Of a log, damaged lines are left out and told in `unused`.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            return _read_stream(stream, path=name)
    except OSError as error:
        raise BadInput(f"cannot read {name}: {error.strerror or error}", field="path") from error
    except BadInput as error:
        raise BadInput(f"{name}: {error}", field=error.field) from error


def _read_stream(stream: BinaryIO, *, path: str) -> Recording:
    lines = _read_lines(stream)
    head: list[bytes] = []
    refused: BadInput | None = None
    for line in lines:
        head.append(line)
        if not line.strip():
            continue
        if refused is None and line.lstrip().startswith(b"["):
            return _read_array(head, stream, path=path)
        try:
            first = parse_line(line, number=len(head)).value
        except BadInput as error:  # Of a log that was cut at its start the first line is damaged.
            refused = refused or error
            if len(head) < _DAMAGED_AT_START:
                continue
            break
        if looks_like_claude_code(first):
            return read_claude_code(chain(head, lines), path=path)
        if refused is None:
            raise BadInput(f"unknown format; {_SUPPORTED}. Seen: {_describe(first)}", field="path")
    if refused is None:
        raise BadInput("the file is empty", field="path")
    seen = _describe_text(b"".join(head) + stream.read(MAX_LINE_BYTES))
    raise BadInput(f"unknown format; {_SUPPORTED}. Seen: {seen}", field="path") from refused


def _read_array(head: list[bytes], stream: BinaryIO, *, path: str) -> Recording:
    body = b"".join(head) + stream.read(MAX_ARRAY_BYTES)
    if stream.read(1):
        raise BadInput(f"a JSON array of more than {MAX_ARRAY_BYTES >> 20} MiB; split it", field="path")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise BadInput(f"line {line}: not UTF-8 at byte {error.start + 1} of the file", field="path") from error
    parsed = parse_json(text, where="the array")
    if not looks_like_tau_bench(parsed.value):
        raise BadInput(f"unknown format; {_SUPPORTED}. Seen: {_describe(parsed.value)}", field="path")
    return read_tau_bench(parsed.value, path=path, remarks=parsed.remarks)


def _read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines with their ends, one at a time; a byte order mark is dropped."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.lstrip().startswith(b"["):
            raise BadInput(f"line {number}: longer than {MAX_LINE_BYTES >> 20} MiB", field=f"line {number}")
        yield raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw


def _describe(value: Json) -> str:
    match value:
        case []:
            return "an empty JSON array"
        case [first, *_]:
            return f"a JSON array whose first element is {_describe(first)}"
        case dict():
            keys = ", ".join(ascii(key[:40]) for key in list(value)[:8])
            return f"a JSON object with the keys {keys}" if keys else "a JSON object without keys"
        case _:
            return f"a JSON {'text' if isinstance(value, str) else 'value'}"


def _describe_text(body: bytes) -> str:
    """Say what a file holds whose first line is no JSON: one value over many lines, or no JSON at all."""
    try:
        return _describe(parse_json(body.decode("utf-8"), where="the file").value)
    except (UnicodeDecodeError, BadInput):
        start = body[:60].decode("utf-8", errors="replace").strip()
        return f"no JSON, but text that starts with {start[:40]!a}"
