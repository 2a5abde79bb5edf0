"""Invented lines of a Claude Code session log, for tests: one function a kind of line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from perdure.importers import Json

Record: TypeAlias = dict[str, Json]

SESSION = "5e551011-0000-4000-8000-000000000001"


def line(kind: str, uuid: str, *, second: int = 0, parent: str | None = None, **more: Json) -> Record:
    """A line of any kind."""
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": f"2026-03-04T05:06:{second:02d}.007Z",
        "isSidechain": False,
        **more,
    }


def prompt(uuid: str, text: str = "please look", *, second: int = 0, parent: str | None = None, **more: Json) -> Record:
    """What a person said."""
    return line("user", uuid, second=second, parent=parent, message={"role": "user", "content": text}) | more


def reply(uuid: str, *blocks: Json, message_id: str = "m1", second: int = 0, **more: Json) -> Record:
    """One line of the model's reply; lines with one `message_id` are one reply."""
    message: Record = {"id": message_id, "role": "assistant", "model": "model-x", "content": list(blocks)}
    return line("assistant", uuid, second=second, message=message) | more


def result(
    uuid: str, call_id: str, content: Json = "done", *, is_error: bool = False, second: int = 0, **more: Json
) -> Record:
    """The result of a tool call."""
    block: Record = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if is_error:
        block["is_error"] = True
    return line("user", uuid, second=second, message={"role": "user", "content": [block]}) | more


def progress(uuid: str, agent_id: str, call_id: str, inner: Record) -> Record:
    """A subagent's message inside the log of its parent."""
    data: Record = {"type": "agent_progress", "agentId": agent_id, "prompt": "dig", "message": inner}
    return line("progress", uuid, data=data, parentToolUseID=call_id)


def hook(uuid: str, *, parent: str | None = None) -> Record:
    """A notice that adds nothing."""
    return line("progress", uuid, parent=parent, data={"type": "hook_progress"})


def text(words: str) -> Record:
    """A block of text."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Record:
    """A block of reasoning, signed by the provider."""
    return {"type": "thinking", "thinking": words, "signature": "c2lnbmVk"}


def call(call_id: str, name: str = "Read", **arguments: Json) -> Record:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def to_lines(records: Iterable[Record]) -> list[bytes]:
    """The records as lines of a file, each with its end."""
    return [json.dumps(record).encode() + b"\n" for record in records]


def to_bytes(records: Sequence[Record]) -> bytes:
    """The records as a whole file."""
    return b"".join(to_lines(records))
