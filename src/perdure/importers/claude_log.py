"""Decides which run each line of a Claude Code log belongs to, and links subagents to the calls that began them.

It looks at lines one by one and never back at one that was left out. It does not read files (claude_code.py) and
does not know how messages are put together (claude_runs.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from perdure.importers.claude_runs import Line, RunBuilder, as_content, as_text, blocks_of
from perdure.importers.recorded import CallEntry, Json, Role
from perdure.importers.strict import as_object, id_in, text_in
from perdure.importers.tally import Tally

AGENT = "claude-code"
SUBAGENT = "subagent"
"""The name of a subagent whose kind the log does not tell."""

ASIDE_TYPES = MappingProxyType(
    {
        "file-history-snapshot": "file-history-snapshot: copies of edited files",
        "summary": "summary: the title of a conversation",
        "queue-operation": "queue-operation: prompts waiting for their turn",
    }
)
"""Lines that stand beside the conversation, and the reason why they are left out."""

_TASK_TOOLS = frozenset({"Task", "Agent"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REWIND = "a prompt that goes back to an earlier message: both branches are kept, in the order of the lines"
_OWN_COPY = "toolUseResult, the program's own copy of a tool's result, is left out"
_TOTALS = ("status", "totalDurationMs", "totalTokens", "totalToolUseCount")


class Log:
    """The runs of one log and what links them, while lines are read."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._runs: dict[str, RunBuilder] = {}
        self._child_of_call: dict[tuple[str, str], RunBuilder] = {}
        self._sidechains: dict[str, str] = {}
        self._used_ancestor: dict[str, str | None] = {}
        self._prompted: set[tuple[str, str]] = set()
        self._rewinds: Counter[str] = Counter()
        self._followers: Counter[tuple[str, str]] = Counter()

    def read(self, number: int, record: dict[str, Json]) -> None:
        """Take one line; it is counted as used, or as unused with its reason."""
        uuid, parent_uuid = id_in(record, "uuid"), id_in(record, "parentUuid")
        session = id_in(record, "sessionId")
        if session is not None and parent_uuid is not None:
            self._followers[session, parent_uuid] += 1
        reason = self._route(number, record, session)
        if reason is None:
            self._tally.use()
        else:
            self._tally.leave(number, reason=reason)
        if uuid is not None:
            self._used_ancestor[uuid] = uuid if reason is None else self._used_ancestor.get(parent_uuid or "")

    def finish(self) -> Iterable[RunBuilder]:
        """The runs, each complete, in the order in which the log first speaks of them."""
        branch_points = Counter(session for (session, _), count in self._followers.items() if count > 1)
        for run in self._runs.values():
            if run.source_id == run.session:
                run.metadata["branch_points"] = branch_points[run.session]
                run.metadata["rewinds"] = self._rewinds[run.session]
        return self._runs.values()

    def _route(self, number: int, record: dict[str, Json], session: str | None) -> str | None:
        """Hand the line to its run; return why it is of no use, or None when it is used."""
        kind = text_in(record, "type")
        data = as_object(record.get("data"))
        match kind:
            case "user" | "assistant":
                if session is None:
                    return "a message without sessionId"
                return self._read_message(number, record, session)
            case "progress" if data.get("type") == "agent_progress":
                if session is None:
                    return "a subagent's message without sessionId"
                return self._read_progress(number, record, data, session)
            case "progress":
                return f"progress {text_in(data, 'type') or 'of unknown kind'}: a notice while something runs"
            case "system":
                return f"system {text_in(record, 'subtype') or 'notice'}: a notice of the program"
            case None:
                return "not an object with a type"
            case _:
                return ASIDE_TYPES.get(kind, f"unknown type {kind[:80]!a}")

    def _read_message(self, number: int, record: dict[str, Json], session: str) -> str | None:
        line = self._line(number, record, id_in(record, "uuid"))
        if line is None:
            return "a message without content"
        if record.get("isSidechain") is True:
            run = self._sidechain(record, line, session)
        else:
            run = self._main_run(record, session, number)
        line = replace(line, children=self._end_children(run, line, as_object(record.get("toolUseResult"))))
        if not run.add(line):
            return "a message that stands in the file before"
        if "toolUseResult" in record:
            self._tally.remark(number, reason=_OWN_COPY)
        self._note_rewind(run, line)
        return None

    def _read_progress(self, number: int, record: dict[str, Json], data: dict[str, Json], session: str) -> str | None:
        agent_id = id_in(data, "agentId")
        inner = as_object(data.get("message"))
        line = self._line(number, inner, id_in(inner, "uuid") or id_in(record, "uuid"))
        if agent_id is None or line is None:
            return "progress agent_progress: without a message"
        child = self._child(f"{session}/{agent_id}", session, number)
        call_id = text_in(record, "parentToolUseID")
        if child.parent_call is None and call_id is not None:
            found = self._find_call(session, call_id)
            if found is not None:
                self._link(child, *found)
        if child.prompt is None:
            child.prompt = data.get("prompt")
        return None if child.add(line) else "progress agent_progress: a message that stands in the file before"

    def _line(self, number: int, record: dict[str, Json], uuid: str | None) -> Line | None:
        message = as_object(record.get("message"))
        if record.get("type") not in ("user", "assistant") or not isinstance(message.get("content"), (str, list)):
            return None
        return Line(
            number=number,
            source_id=uuid or f"line-{number}",
            at_ms=read_instant_ms(text_in(record, "timestamp")),
            role=Role.ASSISTANT if record.get("type") == "assistant" else Role.USER,
            message=message,
            follows=self._used_ancestor.get(id_in(record, "parentUuid") or ""),
            is_meta=record.get("isMeta") is True,
            is_api_error=record.get("isApiErrorMessage") is True,
        )

    def _main_run(self, record: dict[str, Json], session: str, number: int) -> RunBuilder:
        run = self._runs.get(session)
        if run is None:
            run = RunBuilder(session, session, AGENT, self._tally, is_over=True, first_line=number)
            for key in ("version", "cwd", "gitBranch"):
                run.metadata[key] = text_in(record, key)
            self._runs[session] = run
        return run

    def _child(self, source_id: str, session: str, number: int) -> RunBuilder:
        child = self._runs.get(source_id)
        if child is None:
            child = RunBuilder(source_id, session, SUBAGENT, self._tally, parent_source_id=session, first_line=number)
            self._runs[source_id] = child
        return child

    def _sidechain(self, record: dict[str, Json], line: Line, session: str) -> RunBuilder:
        # Older logs give a subagent no id: then its first line names it, found by following parentUuid up.
        first = self._sidechains.get(id_in(record, "parentUuid") or "", line.source_id)
        self._sidechains[line.source_id] = first
        name = id_in(record, "agentId") or first
        source_id = f"{session}/{name}"
        if source_id in self._runs:
            return self._runs[source_id]
        child = self._child(source_id, session, line.number)
        begun = self._find_task(session, prompt=as_content(blocks_of(line.message)))
        if begun is not None:
            self._link(child, *begun)
        return child

    def _end_children(self, run: RunBuilder, line: Line, own_copy: dict[str, Json]) -> dict[str, str]:
        """For each result in the line that ends a subagent's work: end its run, and say which it was."""
        ended: dict[str, str] = {}
        results = [block for block in map(as_object, blocks_of(line.message)) if block.get("type") == "tool_result"]
        # The own copy is one a line and does not say which result it belongs to.
        agent_id = id_in(own_copy, "agentId") if len(results) == 1 else None
        for block in results:
            call_id = text_in(block, "tool_use_id") or ""
            call = run.open_call(call_id)
            if call is None:
                continue
            child = self._runs.get(f"{run.session}/{agent_id}") if agent_id else None
            child = child or self._child_of_call.get((run.source_id, call.source_id))
            if child is None and agent_id is not None:
                child = self._child(f"{run.session}/{agent_id}", run.session, line.number)
            if child is None or child is run:
                continue
            self._link(child, run, call)
            self._end_child(child, line, block, own_copy if agent_id else {})
            ended[call_id] = child.source_id
        return ended

    def _end_child(self, child: RunBuilder, line: Line, block: dict[str, Json], own_copy: dict[str, Json]) -> None:
        child.prompt = child.prompt if child.prompt is not None else own_copy.get("prompt")
        child.metadata.update({key: own_copy[key] for key in _TOTALS if key in own_copy})
        content = as_content(blocks_of(block))
        if block.get("is_error") is True:
            child.end(line.at_ms, error=as_text(content))
        elif own_copy.get("status", "completed") == "completed":
            own_content = own_copy.get("content")
            child.end(line.at_ms, result=as_content(own_content) if isinstance(own_content, list) else content)

    def _link(self, child: RunBuilder, run: RunBuilder, call: CallEntry) -> None:
        """Make the call the child's parent link, unless that would make the child its own ancestor."""
        ancestor: RunBuilder | None = run
        while ancestor is not None:
            if ancestor is child:
                return
            ancestor = ancestor.parent
        arguments = as_object(call.arguments)
        child.parent, child.parent_call = run, call
        child.agent = text_in(arguments, "subagent_type") or child.agent
        if child.prompt is None:
            child.prompt = arguments.get("prompt")
        if child.started_at_ms is None:
            child.started_at_ms = call.at_ms
        self._child_of_call[run.source_id, call.source_id] = child

    def _find_call(self, session: str, call_id: str) -> tuple[RunBuilder, CallEntry] | None:
        """The open call of this id in any run of the session."""
        for run in self._runs.values():
            call = run.open_call(call_id) if run.session == session else None
            if call is not None:
                return run, call
        return None

    def _find_task(self, session: str, *, prompt: Json) -> tuple[RunBuilder, CallEntry] | None:
        """The first call that gave a subagent this prompt and that no subagent is known for yet."""
        for run in self._runs.values():
            if run.session != session:
                continue
            for call in run.calls:
                is_task = call.name in _TASK_TOOLS and as_object(call.arguments).get("prompt") == prompt
                if is_task and (run.source_id, call.source_id) not in self._child_of_call:
                    return run, call
        return None

    def _note_rewind(self, run: RunBuilder, line: Line) -> None:
        """Count a person's prompt that follows a message which another prompt follows already."""
        is_prompt = (
            line.role is Role.USER
            and not line.is_meta
            and not any(as_object(block).get("type") == "tool_result" for block in blocks_of(line.message))
        )
        if not is_prompt or line.follows is None:
            return
        place = (run.source_id, line.follows)
        if place in self._prompted:
            self._rewinds[run.source_id] += 1
            self._tally.remark(line.number, reason=_REWIND)
        self._prompted.add(place)


def read_instant_ms(text: str | None) -> int | None:
    """An ISO 8601 instant in milliseconds UTC; None when it is missing, has no zone or is no instant."""
    try:
        instant = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if instant.tzinfo is None:
        return None
    return (instant - _EPOCH) // timedelta(milliseconds=1)
