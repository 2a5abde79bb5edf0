"""Builds one run from the lines of a Claude Code log: messages, calls, results, in the order of the file.

Which line belongs to which run is decided in claude_code.py. A builder only ever appends, with one exception: one
reply of the model is written as several lines with the same `message.id`, and such a message grows until another
message begins. The lines' order is kept: results of parallel calls may stand between the lines of one reply.

Why a message grows instead of being held back until it is closed: nothing closes the last reply of a finished
log, so holding back would lose exactly the answer. Each line is a part with an id of its own; whoever stored a
half-written reply asks for `rest` and gets the parts that came later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.importers.recorded import (
    CallEntry,
    Entry,
    Json,
    MessageEntry,
    MessagePart,
    RecordedRun,
    ResultEntry,
    Role,
    RunStatus,
    ToolCall,
    join_content,
)
from perdure.importers.strict import as_object, text_in
from perdure.importers.tally import Tally

NO_RESULT = "a call without a result: kept as begun and never ended"
NO_MESSAGES = "a subagent whose messages are not in this file: only its prompt, result and totals are"
_SYNTHETIC_MODEL = "<synthetic>"
_USAGE_KEYS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that holds a message: its number, ids and time, and the message as the model's API words it."""

    number: int
    source_id: str
    at_ms: int | None
    role: Role
    message: dict[str, Json]
    follows: str | None = None
    is_meta: bool = False
    is_api_error: bool = False
    children: Mapping[str, str] = field(default_factory=dict)
    """For the results in this line: call id -> the run of the subagent that did the work."""


@dataclass(slots=True)
class RunBuilder:
    """One run while its lines are read. The header fields may be set by the router at any time before `build`."""

    source_id: str
    session: str
    agent: str
    tally: Tally
    parent: RunBuilder | None = None
    parent_source_id: str | None = None
    parent_call: CallEntry | None = None
    prompt: Json = None
    result: Json = None
    error: str | None = None
    is_over: bool = False
    first_line: int = 0
    metadata: dict[str, Json] = field(default_factory=dict)
    model: str | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    calls: list[CallEntry] = field(default_factory=list)
    _last_answer: Json = None
    _entries: list[Entry] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)
    _open_calls: dict[str, list[tuple[int, CallEntry]]] = field(default_factory=dict)
    _open_message: tuple[str, int] | None = None
    _usage: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, line: Line) -> bool:
        """Add a line; False when it holds nothing new: its id was here before."""
        if line.source_id in self._known:
            return False
        self._known.add(line.source_id)
        if line.at_ms is not None:
            self.started_at_ms = line.at_ms if self.started_at_ms is None else min(self.started_at_ms, line.at_ms)
            self.ended_at_ms = line.at_ms if self.ended_at_ms is None else max(self.ended_at_ms, line.at_ms)
        if line.role is Role.ASSISTANT:
            self._add_reply(line)
        else:
            self._add_input(line)
        return True

    def open_call(self, call_id: str) -> CallEntry | None:
        """The latest call of this id that has no result yet."""
        calls = self._open_calls.get(call_id)
        return calls[-1][1] if calls else None

    def end(self, at_ms: int | None, *, result: Json = None, error: str | None = None) -> None:
        """The run is over, as whoever waited for it saw it."""
        self.is_over, self.result, self.error = True, result, error
        if at_ms is not None:
            self.ended_at_ms = at_ms if self.ended_at_ms is None else max(self.ended_at_ms, at_ms)

    def build(self) -> RecordedRun:
        """The run as far as it was read; calls that are still open are remarked upon."""
        for calls in self._open_calls.values():
            for number, _ in calls:
                self.tally.remark(number, reason=NO_RESULT)
        if not self._entries:
            self.tally.remark(self.first_line, reason=NO_MESSAGES)
        metadata = dict(self.metadata)
        if self._usage:
            metadata["usage"] = {key: sum(usage.get(key, 0) for usage in self._usage.values()) for key in _USAGE_KEYS}
        return RecordedRun(
            source_id=self.source_id,
            session=self.session,
            agent=self.agent,
            prompt=self.prompt,
            status=RunStatus.COMPLETED if self.error is None else RunStatus.FAILED,
            result=self.result if self.result is not None else self._last_answer,
            error=self.error,
            model=self.model,
            entries=tuple(self._entries),
            parent_source_id=self.parent.source_id if self.parent else self.parent_source_id,
            parent_call_source_id=self.parent_call.source_id if self.parent_call else None,
            started_at_ms=self.started_at_ms,
            ended_at_ms=self.ended_at_ms if self.is_over else None,
            metadata=metadata,
        )

    def _add_reply(self, line: Line) -> None:
        message = line.message
        message_id = text_in(message, "id") or line.source_id
        thinking: list[str] = []
        content: list[Json] = []
        calls: list[tuple[int, ToolCall]] = []
        for index, block in enumerate(blocks_of(message)):
            fields = as_object(block)
            match fields.get("type"):
                case "thinking":
                    # The signature goes: it is the provider's own state and of no use outside its conversation.
                    thinking.append(text_in(fields, "thinking") or "")
                case "redacted_thinking":
                    self.tally.remark(line.number, reason="reasoning that the provider encrypted is left out")
                case "tool_use":
                    name = text_in(fields, "name") or "unnamed"
                    calls.append((index, ToolCall(text_in(fields, "id") or "", name, fields.get("input"))))
                case _:
                    content.append(block)
        part = MessagePart(
            line.source_id,
            as_content(content),
            "\n\n".join(text for text in thinking if text) or None,
            tuple(call for _, call in calls),
            line.follows,
        )
        self._add_part(part, line, message_id=message_id)
        self._note_reply(part, line, message_id=message_id)
        for index, call in calls:
            source_id = f"{line.source_id}:{index}:call"
            entry = CallEntry(source_id, line.at_ms, call.call_id, call.name, call.arguments, batch=message_id)
            self._entries.append(entry)
            self.calls.append(entry)
            self._open_calls.setdefault(call.call_id, []).append((line.number, entry))

    def _add_part(self, part: MessagePart, line: Line, *, message_id: str) -> None:
        if self._open_message is not None and self._open_message[0] == message_id:
            index = self._open_message[1]
            begun = self._entries[index]
            assert isinstance(begun, MessageEntry)
            self._entries[index] = MessageEntry(begun.source_id, begun.at_ms, begun.role, (*begun.parts, part))
            return
        self._open_message = (message_id, len(self._entries))
        self._entries.append(MessageEntry(part.source_id, line.at_ms, Role.ASSISTANT, (part,)))

    def _note_reply(self, part: MessagePart, line: Line, *, message_id: str) -> None:
        model = text_in(line.message, "model")
        if self.model is None and model != _SYNTHETIC_MODEL:
            self.model = model
        if part.content is not None and not (isinstance(part.content, str) and not part.content.strip()):
            self._last_answer = part.content
        # Each line of a reply repeats the usage, the last one with the final count.
        usage = as_object(line.message.get("usage"))
        counts = {key: value for key in _USAGE_KEYS if type(value := usage.get(key)) is int}
        if counts:
            self._usage[message_id] = counts
        self.error = as_text(part.content) if line.is_api_error else None

    def _add_input(self, line: Line) -> None:
        """A line of the user's side: results of calls, and what a person or the program said."""
        said: list[Json] = []
        first_said = 0
        for index, block in enumerate(blocks_of(line.message)):
            fields = as_object(block)
            if fields.get("type") == "tool_result":
                self._add_result(fields, line, index=index)
                continue
            if not said:
                first_said = index
            said.append(block)
        if not said:
            return
        self._open_message = None
        content = as_content(said)
        if self.prompt is None and not line.is_meta:
            self.prompt = content
        part = MessagePart(_block_id(line, first_said), content, follows=line.follows)
        self._entries.append(MessageEntry(part.source_id, line.at_ms, Role.USER, (part,)))
        self.error = None

    def _add_result(self, block: dict[str, Json], line: Line, *, index: int) -> None:
        call_id = text_in(block, "tool_use_id") or ""
        call = self.open_call(call_id)
        result = block.get("content")
        content = as_content(result) if isinstance(result, list) else result
        part = MessagePart(_block_id(line, index), content if content is not None else "", follows=line.follows)
        name = call.name if call else None
        self._entries.append(MessageEntry(part.source_id, line.at_ms, Role.TOOL, (part,), call_id, name))
        if call is None:
            self.tally.remark(line.number, reason="a result that answers no open call is kept as a message only")
            return
        calls = self._open_calls[call_id]
        calls.pop()
        if not calls:
            del self._open_calls[call_id]
        failed = block.get("is_error") is True
        self._entries.append(
            ResultEntry(
                f"{_block_id(line, index)}:result",
                line.at_ms,
                call_id,
                call.source_id,
                call.name,
                failed,
                result=None if failed else result,
                error=as_text(content) if failed else None,
                child_source_id=line.children.get(call_id),
            )
        )


def blocks_of(message: dict[str, Json]) -> list[Json]:
    """The message's content as blocks; a plain text is one block."""
    match message.get("content"):
        case str() as text:
            return [{"type": "text", "text": text}]
        case list() as blocks:
            return blocks
        case _:
            return []


def as_content(blocks: list[Json]) -> Json:
    """Blocks as a message's content: text when all of them are text, else the blocks as recorded."""
    texts: list[Json] = []
    for block in blocks:
        fields = as_object(block)
        text = fields.get("text")
        if fields.get("type") != "text" or not isinstance(text, str):
            return blocks
        texts.append(text)
    return join_content(texts)


def as_text(content: Json) -> str:
    """Content as text, for an error: other blocks as JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _block_id(line: Line, index: int) -> str:
    return f"{line.source_id}:{index}" if index else line.source_id
