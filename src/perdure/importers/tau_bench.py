"""Reads the result file of a tau-bench run: one JSON array, one recorded run an element.

The format has no ids and no times. A run is therefore known by its task, its trial and the digest of all it holds
(not by its place in the array, for the benchmark appends to the file), and an entry by its place in `traj`. A run
is written when it is over, so it never grows. Call ids repeat within a run: a result belongs to the latest open
call of its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from perdure.errors import BadInput
from perdure.importers.recorded import (
    CallEntry,
    Entry,
    Format,
    Json,
    MessageEntry,
    MessagePart,
    RecordedRun,
    Recording,
    ResultEntry,
    Role,
    RunStatus,
    ToolCall,
)
from perdure.importers.strict import as_list, as_object, parse_json, text_in
from perdure.importers.tally import Tally

AGENT = "tau-bench"
_ERROR_PREFIX = "Error"


def looks_like_tau_bench(value: Json) -> bool:
    """Whether a parsed file is an array in which a run of this format stands."""
    return any(isinstance(as_object(item).get("traj"), list) for item in as_list(value))


def read_tau_bench(value: Json, *, path: str, remarks: Sequence[str] = ()) -> Recording:
    """Turn the parsed array into runs; what cannot be used is said with its place, such as `runs[3].traj[7]`.

    `remarks` are what parsing had to change, to be reported with the rest.
    """
    tally = Tally()
    for reason in remarks:
        tally.remark("the array", reason=reason)
    runs: dict[str, RecordedRun] = {}
    places: dict[str, str] = {}
    for index, item in enumerate(as_list(value)):
        where = f"runs[{index}]"
        record = as_object(item)
        trajectory = record.get("traj")
        if not isinstance(trajectory, list):
            tally.leave(where, reason="no object with a list `traj`")
            continue
        source_id = _source_id(record)
        if source_id in runs:
            tally.leave(where, reason=f"the same run as {places[source_id]}", count=max(1, len(trajectory)))
            continue
        places[source_id] = where
        runs[source_id] = _read_run(record, trajectory, source_id=source_id, where=where, tally=tally)
    return tally.recording(Format.TAU_BENCH, path=path, runs=tuple(runs.values()))


def _source_id(record: dict[str, Json]) -> str:
    # Keys are sorted and spaces left out, so that the same run in a file written anew keeps its id.
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    numbers = [record.get(key) for key in ("task_id", "trial")]
    return "/".join([*(str(number) if isinstance(number, int) else "-" for number in numbers), digest])


def _read_run(
    record: dict[str, Json], trajectory: list[Json], *, source_id: str, where: str, tally: Tally
) -> RecordedRun:
    reader = _Trajectory(where, tally)
    for index, item in enumerate(trajectory):
        reader.read(index, as_object(item))
    if not trajectory:
        tally.use()
    for call in reader.open_calls:
        place = f"{where}.traj[{call.batch}]"
        tally.remark(place, reason="a call without a result: kept as begun and never ended")
    info = as_object(record.get("info"))
    task = as_object(info.get("task"))
    error = _failure(record, info)
    return RecordedRun(
        source_id=source_id,
        session=source_id,
        agent=AGENT,
        prompt=reader.first_prompt if reader.first_prompt is not None else task.get("instruction"),
        status=RunStatus.COMPLETED if error is None else RunStatus.FAILED,
        result=reader.last_answer,
        error=error,
        entries=tuple(reader.entries),
        metadata={key: item for key, item in record.items() if key != "traj"},
    )


def _failure(record: dict[str, Json], info: dict[str, Json]) -> str | None:
    """Why the run failed: what broke it, else that the benchmark gave it nothing."""
    if info.get("error"):
        error = info["error"]
        return error if isinstance(error, str) else json.dumps(error)
    reward = record.get("reward")
    return "the benchmark gave the reward 0" if isinstance(reward, (int, float)) and reward == 0 else None


class _Trajectory:
    """Collects the entries of one run, message by message."""

    def __init__(self, where: str, tally: Tally) -> None:
        self.entries: list[Entry] = []
        self.open_calls: list[CallEntry] = []
        self.first_prompt: Json = None
        self.last_answer: Json = None
        self._where = where
        self._tally = tally

    def read(self, index: int, message: dict[str, Json]) -> None:
        where = f"{self._where}.traj[{index}]"
        role = message.get("role")
        if role not in tuple(Role):
            self._tally.leave(where, reason="no message with the role system, user, assistant or tool")
            return
        self._tally.use()
        match Role(str(role)):
            case Role.TOOL:
                self._read_result(index, message, where=where)
            case Role.ASSISTANT:
                self._read_answer(index, message, where=where)
            case Role.SYSTEM | Role.USER as speaker:
                content = message.get("content")
                if speaker is Role.USER and self.first_prompt is None:
                    self.first_prompt = content
                part = MessagePart(str(index), content)
                self.entries.append(MessageEntry(part.source_id, None, speaker, (part,)))

    def _read_answer(self, index: int, message: dict[str, Json], *, where: str) -> None:
        calls = [self._read_call(as_object(item), where=where) for item in as_list(message.get("tool_calls"))]
        content = message.get("content")
        if content is not None:
            self.last_answer = content
        part = MessagePart(
            str(index), content, reasoning=text_in(message, "reasoning_content"), tool_calls=tuple(calls)
        )
        self.entries.append(MessageEntry(part.source_id, None, Role.ASSISTANT, (part,)))
        for number, call in enumerate(calls):
            entry = CallEntry(f"{index}:{number}:call", None, call.call_id, call.name, call.arguments, str(index))
            self.entries.append(entry)
            self.open_calls.append(entry)

    def _read_call(self, record: dict[str, Json], *, where: str) -> ToolCall:
        function = as_object(record.get("function"))
        return ToolCall(
            text_in(record, "id") or "",
            text_in(function, "name") or "unnamed",
            self._read_arguments(function.get("arguments"), where=where),
        )

    def _read_arguments(self, given: Json, *, where: str) -> Json:
        if not isinstance(given, str):
            return given
        try:
            parsed = parse_json(given, where=where)
        except BadInput:
            # A model wrote this text, so anything can stand in it; the words it wrote are the evidence.
            self._tally.remark(where, reason="arguments that are not JSON are kept as text")
            return given
        for reason in parsed.remarks:
            self._tally.remark(where, reason=reason)
        return parsed.value

    def _read_result(self, index: int, message: dict[str, Json], *, where: str) -> None:
        call_id = text_in(message, "tool_call_id") or ""
        content = message.get("content")
        call = next((call for call in reversed(self.open_calls) if call.call_id == call_id), None)
        name = text_in(message, "name") or (call.name if call else None)
        part = MessagePart(str(index), content)
        self.entries.append(
            MessageEntry(part.source_id, None, Role.TOOL, (part,), tool_call_id=call_id, tool_name=name)
        )
        if call is None:
            self._tally.remark(where, reason="a result that answers no open call is kept as a message only")
            return
        self.open_calls.remove(call)
        failed = isinstance(content, str) and content.startswith(_ERROR_PREFIX)
        self.entries.append(
            ResultEntry(
                f"{index}:result",
                None,
                call_id,
                call.source_id,
                call.name,
                failed,
                result=None if failed else content,
                error=str(content) if failed else None,
            )
        )
