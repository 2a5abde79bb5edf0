"""The one agent of the demo: it plays a script through perdure's public API, as an agent of anybody's would run.

The model answers from the script, and so do the tools. What the agent says and returns is made of what its calls gave
back and of nothing else, so that a result that was lost, swapped or made up shows in the transcript.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import perdure
from perdure.demo import scripts
from perdure.demo.ledger import EFFECTS, Ledger
from perdure.demo.scripts import Call, Script

_SHORTEST_S, _LONGEST_S = 0.005, 0.050

# Which recorded call the running branch makes. It goes round the arguments, so that questions show these alone.
_call_at_hand: ContextVar[tuple[str, str]] = ContextVar("perdure_demo_call")


class RecordedFailure(ValueError):
    """An error that was recorded: doing it again would end the same way."""


@dataclass(slots=True)
class Stage:
    """What a worker of the demo needs beside the database: the scripts and the outside world."""

    folder: Path
    seed: int
    effects: Ledger = field(init=False)
    _tools: dict[str, perdure.AnyTool] = field(init=False, default_factory=dict)
    _scripts: dict[str, Script] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.effects = Ledger(self.folder / EFFECTS)

    def script(self, run: str) -> Script:
        """What a run says and does."""
        name = scripts.base_of(run)
        if name not in self._scripts:
            self._scripts[name] = scripts.fetch(self.folder / "scripts", name)
        return self._scripts[name]

    def tool(self, name: str) -> perdure.AnyTool:
        """The tool of this name: low risk when it only looks, high otherwise."""
        if name not in self._tools:
            self._tools[name] = _make_tool(name)
        return self._tools[name]

    def pauses_s(self, *place: str | int) -> tuple[float, float]:
        """How long a call takes before and after the moment at which it changes the world; the same in every run."""
        random = Random("/".join(map(str, (self.seed, *place))))
        whole_s = random.uniform(_SHORTEST_S, _LONGEST_S)
        before_s = whole_s * random.random()
        return before_s, whole_s - before_s


@perdure.agent
async def replay_run(run: str) -> Any:
    """Play a script, line by line, and return what it returned."""
    script = perdure.deps(Stage).script(run)
    outcomes: dict[str, object] = {}
    for place, line in enumerate(script.lines):
        if line.role != "assistant":
            await perdure.message(line.role, scripts.message_of(line, outcomes))
            continue
        answer = await perdure.model(ask_model, run, place)
        await perdure.message("assistant", answer)
        # Agents are handed to gather as they are: children awaited together wait as one.
        branches = [_branch(run, call) for call in line.calls]
        for call, outcome in zip(line.calls, await perdure.gather(*branches, return_exceptions=True), strict=True):
            outcomes[call.id] = _told(outcome)
    if script.error is not None:
        raise RecordedFailure(script.error)
    return script.result


async def ask_model(run: str, place: int) -> Mapping[str, object]:
    """What the model answered at this place of the script."""
    stage = perdure.deps(Stage)
    await asyncio.sleep(sum(stage.pauses_s(run, place)))
    line = stage.script(run).lines[place]
    return {"content": line.content, "tool_calls": list(line.tool_calls)}


def _branch(run: str, call: Call) -> Coroutine[Any, Any, Any]:
    if call.child is not None:
        return replay_run(scripts.like(run, call.child))
    return _use_tool(run, call)


async def _use_tool(run: str, call: Call) -> Any:
    _call_at_hand.set((run, call.id))
    return await perdure.call(perdure.deps(Stage).tool(call.name), **call.arguments)


def _make_tool(name: str) -> perdure.AnyTool:
    is_read = scripts.is_read(name)

    async def act(**_arguments: Any) -> Any:
        stage = perdure.deps(Stage)
        run, call_id = _call_at_hand.get()
        before_s, after_s = stage.pauses_s(run, call_id)
        await asyncio.sleep(before_s)
        if not is_read:
            stage.effects.append(perdure.current().token, run, call_id, os.getpid())
        await asyncio.sleep(after_s)
        call = next(one for one in stage.script(run).calls if one.id == call_id)
        if call.failed:
            raise RecordedFailure(str(call.content))
        return call.content

    return perdure.tool(name=name, risk="low" if is_read else "high")(act)


def _told(outcome: object) -> object:
    """What an agent learns of a call: its result, or the text of its error."""
    match outcome:
        case perdure.TaskFailed():
            return outcome.error.message
        case perdure.ToolError():
            return outcome.message
        case BaseException():
            return f"{type(outcome).__name__}: {outcome}"
        case _:
            return outcome
