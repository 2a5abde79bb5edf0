"""What `read_runs` accepts and refuses, whatever the format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.errors import BadInput
from perdure.importers import FORMATS, Format, MessageEntry, Recording, Unused, read_runs
from tests.claude_lines import call, prompt, reply, text, to_bytes


def write(folder: Path, body: bytes, *, name: str = "runs.txt") -> Path:
    path = folder / name
    path.write_bytes(body)
    return path


def unused(recording: Recording) -> dict[str, int]:
    return {item.reason: item.count for item in recording.unused}


def test_the_format_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    log = write(tmp_path, to_bytes([prompt("u1")]), name="misleading.json")
    array = write(tmp_path, json.dumps([{"task_id": 1, "traj": []}]).encode(), name="misleading.jsonl")

    assert read_runs(log).format is Format.CLAUDE_CODE
    assert read_runs(str(array)).format is Format.TAU_BENCH


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b'{"simulations": [], "info": {}}', "a JSON object with the keys 'simulations', 'info'"),
        (b'{\n  "steps": []\n}\n', "a JSON object with the keys 'steps'"),
        (b'{"type": "message", "id": "x"}\n', "a JSON object with the keys 'type', 'id'"),
        (b"interactions:\n- request\n", "no JSON, but text that starts with 'interactions:"),
        (b"[]", "an empty JSON array"),
        (b"[1, 2]", "a JSON array whose first element is a JSON value"),
        (b'[{"id": 1}]', "a JSON array whose first element is a JSON object with the keys 'id'"),
        (b"\xff\xfe{\x00", "no JSON"),
    ],
)
def test_an_unknown_format_is_refused_with_what_was_seen_and_what_is_supported(
    tmp_path: Path, body: bytes, seen: str
) -> None:
    path = write(tmp_path, body)

    with pytest.raises(BadInput) as refusal:
        read_runs(path)

    assert seen in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert all(name in str(refusal.value) for name in FORMATS)


@pytest.mark.parametrize("body", [b"", b"\n\n  \n"])
def test_an_empty_file_is_refused_as_empty(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(BadInput, match="the file is empty"):
        read_runs(write(tmp_path, body))


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file") as refusal:
        read_runs(tmp_path / "missing.jsonl")
    with pytest.raises(BadInput, match="cannot read"):
        read_runs(tmp_path)

    assert refusal.value.field == "path"


DAMAGED = [
    (b'{"type": "user", \n', "damaged: not JSON (Expecting property name enclosed in double quotes)"),
    (b'{"type": "us\xff"}\n', "damaged: not UTF-8"),
    (b'{"type": "user", "type": "system"}\n', "damaged: the key 'type' stands twice in one object"),
    (b'{"type": "user", "cost": NaN}\n', "damaged: NaN is not JSON"),
    (b'{"deep": ' + b"[" * 129 + b"]" * 129 + b"}\n", "damaged: nested deeper than 128 levels"),
    (b'{"deep": ' + b"[" * 200_000 + b"\n", "damaged: nested deeper than 128 levels"),
]


@pytest.mark.parametrize(("damaged", "reason"), DAMAGED)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_damaged_line_is_named_and_left_out(tmp_path: Path, damaged: bytes, reason: str, before: int) -> None:
    whole = [to_bytes([prompt("u1")]), to_bytes([prompt("u2")])]
    path = write(tmp_path, b"".join([*whole[:before], damaged, *whole[before:]]))

    recording = read_runs(path)

    assert [entry.source_id for entry in recording.runs[0].entries] == ["u1", "u2"]
    assert recording.unused == (Unused(f"line {before + 1}", reason, 1),)
    assert (recording.used_count, recording.record_count) == (2, 3)


def test_lines_with_the_same_damage_are_told_together(tmp_path: Path) -> None:
    path = write(tmp_path, to_bytes([prompt("u1")]) + b'{"type": \n{"type": "user", "text":\n')

    assert [(one.where, one.count) for one in read_runs(path).unused] == [("lines 2-3", 2)]


def test_nesting_up_to_the_limit_is_read(tmp_path: Path) -> None:
    deep = b'{"type": "note", "deep": ' + b"[" * 127 + b"]" * 127 + b"}\n"

    recording = read_runs(write(tmp_path, to_bytes([prompt("u1")]) + deep))

    assert (recording.record_count, recording.used_count) == (2, 1)


def test_every_cut_within_the_last_line_is_said_and_costs_only_that_line(tmp_path: Path) -> None:
    first, last = to_bytes([prompt("u1")]), to_bytes([reply("a1", text("gr\u00fc\u00df"))])
    last = last.replace(b"gr\\u00fc\\u00df", "gr\u00fc\u00df".encode())

    for end in range(1, len(last) - 1):
        recording = read_runs(write(tmp_path, first + last[:end]))
        assert unused(recording) == {"cut off: the file ends within this line": 1}, end
        assert recording.unused[0].where == "line 2"
        assert len(recording.runs[0].entries) == 1


def test_a_last_line_without_its_end_is_used_when_it_is_whole(tmp_path: Path) -> None:
    recording = read_runs(write(tmp_path, to_bytes([prompt("u1"), prompt("u2")]).rstrip(b"\n")))

    assert (recording.used_count, recording.unused) == (2, ())


def test_a_mark_at_the_start_carriage_returns_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    body = to_bytes([prompt("u1"), prompt("u2")]).replace(b"\n", b"\r\n\r\n")

    recording = read_runs(write(tmp_path, b"\xef\xbb\xbf" + b"\n" + body))

    assert recording.used_count == 2
    assert unused(recording) == {"blank": 3}
    assert recording.unused[0].where == "lines 1, 3, 5"
    assert recording.record_count == 5


def test_half_a_surrogate_pair_is_replaced_and_said_while_whole_pairs_stay(tmp_path: Path) -> None:
    body = to_bytes([prompt("u1", "cut \ud83d"), prompt("u2", "whole \U0001f600")])

    recording = read_runs(write(tmp_path, body))

    contents = [entry.content for entry in recording.runs[0].entries if isinstance(entry, MessageEntry)]
    assert contents == ["cut \ufffd", "whole \U0001f600"]
    assert [(item.where, item.count) for item in recording.remarks] == [("line 1", 1)]
    assert "surrogate" in recording.remarks[0].reason


def test_numbers_beyond_64_bits_are_kept_as_text_and_said(tmp_path: Path) -> None:
    block = call("c1", ok=2**63 - 1, low=-(2**63), big=2**63, real=1.5)
    body = to_bytes([reply("a1", block)]).replace(b"1.5", b"1e999")

    recording = read_runs(write(tmp_path, body))

    message = recording.runs[0].entries[0]
    assert isinstance(message, MessageEntry)
    assert message.tool_calls[0].arguments == {
        "ok": 2**63 - 1,
        "low": -(2**63),
        "big": "9223372036854775808",
        "real": "1e999",
    }
    assert recording.remarks[0].reason == "a number beyond 64 bits is kept as text"


def test_an_array_that_is_damaged_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"the array, line 3, column 1: not JSON"):
        read_runs(write(tmp_path, b'[\n{"traj": []},\n'))
    with pytest.raises(BadInput, match="line 2: not UTF-8"):
        read_runs(write(tmp_path, b'[\n"\xff"]'))
