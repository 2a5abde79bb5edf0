"""What a reader hands over: recorded runs as plain values, the same shape for every format.

Nothing here reads a file or knows a database. Whoever stores a recording keys each run by (format, source id) and
each entry by its source ids, and asks `entries_after` for what is new; so a file read twice adds nothing and a
longer copy of the same log adds only its rest.

What never changes when a log grows: the source ids, their order, and every entry except a message, which may gain
parts. What may change: a run's header (status, result, error, times, the link to a parent, metadata), for it says
how far things had come at the end of this file.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Format(StrEnum):
    """The formats that can be read."""

    TAU_BENCH = "tau-bench"
    CLAUDE_CODE = "claude-code"


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class RunStatus(StrEnum):
    """How a run stood at the end of the file: without a recorded failure it counts as completed."""

    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the assistant's message names it; `arguments` stays text when it was no JSON object."""

    call_id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class MessagePart:
    """The piece of a message that one record holds; it never changes.

    `content` is text, or the list of blocks as recorded when one of them is not text. `follows` is the source
    line this one was written after, among the lines that are used.
    """

    source_id: str
    content: Json = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    follows: str | None = None


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One message of the transcript, made of one part or more; `source_id` is that of its first part."""

    source_id: str
    at_ms: int | None
    role: Role
    parts: tuple[MessagePart, ...]
    tool_call_id: str | None = None
    tool_name: str | None = None

    @property
    def content(self) -> Json:
        """The parts' contents joined: text when all of it is text, else a list of blocks; None when there is none."""
        return join_content([part.content for part in self.parts])

    @property
    def reasoning(self) -> str | None:
        """The parts' reasoning joined, or None."""
        return "\n\n".join(part.reasoning for part in self.parts if part.reasoning) or None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All calls of the message, in order."""
        return tuple(call for part in self.parts for call in part.tool_calls)

    @property
    def source_ids(self) -> tuple[str, ...]:
        """One id a part: a message is known by its parts, for it may have been read half-written."""
        return tuple(part.source_id for part in self.parts)

    def rest(self, known: Container[str]) -> MessageEntry | None:
        """This message without the parts that are `known`; None when nothing is left."""
        parts = tuple(part for part in self.parts if part.source_id not in known)
        if not parts:
            return None
        return replace(self, source_id=parts[0].source_id, parts=parts)


@dataclass(frozen=True, slots=True)
class CallEntry:
    """A tool call began. Calls of one assistant message share `batch`: they were asked for together.

    Its end is an entry of its own, so that a call which was open when the file was copied needs no change later.
    """

    source_id: str
    at_ms: int | None
    call_id: str
    name: str
    arguments: Json
    batch: str

    @property
    def source_ids(self) -> tuple[str, ...]:
        """The id of this one entry."""
        return (self.source_id,)


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """A tool call ended: with `result`, or when it `failed` with `error`.

    `call_source_id` names the CallEntry, for call ids are used again within a run. `child_source_id` is the run
    of the subagent that did the work, when the record tells.
    """

    source_id: str
    at_ms: int | None
    call_id: str
    call_source_id: str
    name: str
    failed: bool
    result: Json = None
    error: str | None = None
    child_source_id: str | None = None

    @property
    def source_ids(self) -> tuple[str, ...]:
        """The id of this one entry."""
        return (self.source_id,)


Entry: TypeAlias = MessageEntry | CallEntry | ResultEntry


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One recorded run: a session, a subagent's work in it, or one trial of a benchmark.

    `parent_source_id` may name a run that this file does not hold. `ended_at_ms` is None when no end was recorded.
    Entries stand in the order of the file; source ids are unique within the run.
    """

    source_id: str
    session: str
    agent: str
    prompt: Json
    status: RunStatus
    entries: tuple[Entry, ...]
    result: Json = None
    error: str | None = None
    model: str | None = None
    parent_source_id: str | None = None
    parent_call_source_id: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)

    @property
    def source_ids(self) -> tuple[str, ...]:
        """Every id to remember so that nothing is added twice."""
        return tuple(source_id for entry in self.entries for source_id in entry.source_ids)

    def entries_after(self, known: Container[str]) -> tuple[Entry, ...]:
        """The entries that are not `known` yet, in order; a message known in part comes with its other parts."""
        rest: list[Entry] = []
        for entry in self.entries:
            if isinstance(entry, MessageEntry):
                more = entry.rest(known)
                if more is not None:
                    rest.append(more)
            elif entry.source_id not in known:
                rest.append(entry)
        return tuple(rest)


@dataclass(frozen=True, slots=True)
class Unused:
    """Whole records (lines, or a benchmark's messages) that add nothing to any run, and why."""

    where: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about records that are used: what was left out of them, changed, or is missing."""

    where: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Recording:
    """All that one file holds. `used_count` and the counts of `unused` add up to `record_count`."""

    format: Format
    path: str
    runs: tuple[RecordedRun, ...]
    record_count: int
    used_count: int
    unused: tuple[Unused, ...] = ()
    remarks: tuple[Remark, ...] = ()


def join_content(contents: list[Json]) -> Json:
    """Contents of one message as one: texts with a blank line between, blank ones left out unless alone."""
    given = [content for content in contents if content is not None]
    texts = [content for content in given if isinstance(content, str)]
    if len(texts) < len(given):
        return [block for content in given for block in _blocks(content)]
    if len(texts) < 2:
        return texts[0] if texts else None
    return "\n\n".join(text for text in texts if text.strip())


def _blocks(content: Json) -> list[Json]:
    match content:
        case list():
            return content
        case str():
            return [{"type": "text", "text": content}] if content.strip() else []
        case _:
            return [content]
