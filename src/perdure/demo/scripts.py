"""What the tasks of the demo say and do: recorded runs in the form in which a worker plays them.

A script is a run written down line by line: what was said, which tools the model called at once, what came back.
Scripts lie as files in a folder, outside the database, one a run; workers read them there, and so does the judge.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perdure.errors import BadInput
from perdure.importers import CallEntry, MessageEntry, RecordedRun, ResultEntry, Role, read_runs

COPY_MARK = "~"
_ERROR_CHARACTERS = 10_000  # what perdure keeps of an error's text
_SUFFIXES = (".json", ".jsonl")
_READS = frozenset("calculate think Read Grep Glob LS WebFetch WebSearch TodoWrite".split())
_READ_NAME = re.compile(r"(?:get|find|search|list)_")


def is_read(tool: str) -> bool:
    """Whether a tool of this name only looks. Every other one counts as high risk: nobody promised anything of it."""
    return tool in _READS or _READ_NAME.match(tool) is not None


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it was recorded. `content` came back, as the transcript shows it; `child` is the run that did the work.

    Values are plain JSON; `object` because nothing here looks into them.
    """

    id: str
    name: str
    arguments: dict[str, object]
    content: object = None
    failed: bool = False
    child: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One message of the transcript, with the calls it asks for, or with the call whose result it tells."""

    role: str
    content: object = None
    tool_calls: tuple[Mapping[str, object], ...] = ()
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A whole run. It returns `result`, or ends with `error`."""

    id: str
    title: str
    lines: tuple[Line, ...]
    result: object = None
    error: str | None = None

    @property
    def calls(self) -> Iterator[Call]:
        """Every call, in order."""
        return (call for line in self.lines for call in line.calls)

    @property
    def step_count(self) -> int:
        """How many outcomes a run of it puts on record: one for each answer of the model and each call."""
        return sum(line.role == Role.ASSISTANT for line in self.lines) + sum(1 for _ in self.calls)


def message_of(line: Line, outcomes: Mapping[str, object]) -> object:
    """The content under which a line joins the transcript; `outcomes` are what the calls returned, by their ids."""
    if line.answers is not None:
        said = {"tool_call_id": line.tool_call_id, "name": line.tool_name}
        return {**said, "content": outcomes[line.answers]}
    if line.role == Role.ASSISTANT:
        return {"content": line.content, "tool_calls": list(line.tool_calls)}
    return line.content


# -- on disk --------------------------------------------------------------------------------


def base_of(run: str) -> str:
    """The script that a run plays: several runs may play one."""
    return run.partition(COPY_MARK)[0]


def like(run: str, script: str) -> str:
    """`script` as a child of `run`: of the same copy."""
    return script + run[len(base_of(run)) :]


def keep(folder: Path, scripts: Iterable[Script]) -> None:
    """Write each script into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for script in scripts:
        _path(folder, script.id).write_bytes(msgspec.json.encode(script))


def fetch(folder: Path, run: str) -> Script:
    """The script of a run. Raises BadInput when the folder has none."""
    try:
        return msgspec.json.decode(_path(folder, base_of(run)).read_bytes(), type=Script)
    except OSError as error:
        raise BadInput(f"no script of {run} in {folder}: {error.strerror}", field="run") from error


def _path(folder: Path, script: str) -> Path:
    # Ids of recorded runs may hold anything, a slash among it.
    return folder / f"{hashlib.sha256(script.encode()).hexdigest()[:32]}.json"


# -- from recorded runs ---------------------------------------------------------------------


def read_scripts(sources: Sequence[Path]) -> list[Script]:
    """Every run that the files hold; folders stand for the files in them. Of copies of one run the longest counts.

    Raises BadInput for a file that cannot be read, or when there is no run at all.
    """
    longest: dict[str, RecordedRun] = {}
    for path in _files(sources):
        for run in read_runs(path).runs:
            known = longest.get(run.source_id)
            if known is None or len(run.entries) > len(known.entries):
                longest[run.source_id] = run
    if not longest:
        raise BadInput("no recorded runs were given", field="from")
    return [_script(run, longest) for run in longest.values()]


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if source.is_dir():
            yield from sorted(path for path in source.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
        else:
            yield source


def _script(run: RecordedRun, known: Mapping[str, RecordedRun]) -> Script:
    lines: list[Line] = []
    ends = {entry.call_source_id: entry for entry in run.entries if isinstance(entry, ResultEntry)}
    answered_by = _answers(run)
    contents = {call_id: entry.content for entry, call_id in answered_by}
    answers = {entry.source_id: call_id for entry, call_id in answered_by}
    children: dict[str, str] = {}  # of two calls that name one child the first is its caller
    for end in ends.values():
        child = known.get(end.child_source_id or "")
        if child is not None and child.parent_source_id == run.source_id:
            children.setdefault(child.source_id, end.call_source_id)
    child_of = {call_id: source_id for source_id, call_id in children.items()}
    asked: dict[int, list[Call]] = {}
    for entry in run.entries:
        match entry:
            case MessageEntry():
                lines.append(_line(entry, answers))
            case CallEntry() if entry.source_id in ends and entry.source_id in contents:
                asker = max(place for place, line in enumerate(lines) if line.role == Role.ASSISTANT)
                call = _call(
                    entry,
                    content=contents[entry.source_id],
                    failed=ends[entry.source_id].failed,
                    child=child_of.get(entry.source_id),
                )
                asked.setdefault(asker, []).append(call)
            case CallEntry() | ResultEntry():
                continue  # A call without a result has nothing to answer with; a result stands in its message.
    for place, calls in asked.items():
        line = lines[place]
        lines[place] = Line(line.role, line.content, line.tool_calls, tuple(calls))
    if not lines:
        lines = [Line(Role.USER, run.prompt), Line(Role.ASSISTANT, run.result)]
    as_child = _as_child(run, known)
    result, error = (run.result, None) if as_child is None else as_child
    return Script(run.source_id, run.agent, tuple(lines), result, error)


def _answers(run: RecordedRun) -> list[tuple[MessageEntry, str]]:
    """Each message that tells a result, with the call it answers: its end is the entry that follows it."""
    pairs = zip(run.entries, run.entries[1:], strict=False)
    return [
        (message, end.call_source_id)
        for message, end in pairs
        if isinstance(message, MessageEntry) and isinstance(end, ResultEntry) and message.role is Role.TOOL
    ]


def _line(entry: MessageEntry, answers: Mapping[str, str]) -> Line:
    calls = tuple({"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in entry.tool_calls)
    return Line(
        entry.role,
        entry.content,
        calls,
        answers=answers.get(entry.source_id),
        tool_call_id=entry.tool_call_id,
        tool_name=entry.tool_name,
    )


def _call(entry: CallEntry, *, content: object, failed: bool, child: str | None) -> Call:
    arguments = entry.arguments if isinstance(entry.arguments, dict) else {"arguments": entry.arguments}
    return Call(
        entry.source_id, entry.name, dict(arguments), _error_text(content) if failed else content, failed, child
    )


def _as_child(run: RecordedRun, known: Mapping[str, RecordedRun]) -> tuple[object, str | None] | None:
    """What a subagent's run handed to its caller: the result, or the error that the caller saw."""
    parent = known.get(run.parent_source_id or "")
    if parent is None:
        return None
    for message, call_id in _answers(parent):
        end = next(e for e in parent.entries if isinstance(e, ResultEntry) and e.call_source_id == call_id)
        if end.child_source_id == run.source_id:
            return (None, _error_text(message.content)) if end.failed else (message.content, None)
    return None


def _error_text(content: object) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text[:_ERROR_CHARACTERS]
