"""Pydantic AI inside a task: `Agent(…, capabilities=[PerdureDurability()])`, and nothing else changes.

Model requests are recorded at low risk and not bought again on resume. Tools decorated with `@perdure.tool` record
themselves, as everywhere. What nobody declared, a plain function or a tool of an MCP server, is recorded as a call of
high risk; `metadata={"perdure": {"risk": "low"}}` on the tool says otherwise. Outside a task the capability does
nothing. The names under which calls are recorded are found again after a restart: they never change.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

try:
    import pydantic_ai.durable_exec  # noqa: F401  # Old versions lack it.
except ModuleNotFoundError as missing:
    needed = "perdure.integrations.pydantic_ai needs Pydantic AI: pip install 'pydantic-ai-slim>=2.68'"
    raise ModuleNotFoundError(needed, name=missing.name) from missing

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool

from perdure import ambient
from perdure.definitions import ToolDefinition, definition_of
from perdure.errors import BadInput
from perdure.model.step import StepKind
from perdure.policy.risk import Risk
from perdure.runtime import calls, context
from perdure.runtime.attempt import Attempt
from perdure.runtime.call import Call

R = TypeVar("R")
METADATA = "perdure"
# What differs each time the same code runs again, and says nothing about what is asked.
_VOLATILE = frozenset({"timestamp", "run_id", "conversation_id"})
_MADE_UP_ID = "pyd_ai_"
_ENVELOPE = "pydantic_ai"


class PerdureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Records an agent's model requests, and its tools that do not record themselves.

    `name` replaces the agent's name in the records. `models` are models that a run may be switched to, by key.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="perdure",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=METADATA,
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model[Any]] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
    ) -> None:
        super().__init__(name=name, models=models, event_stream_handler=event_stream_handler)
        self._runs: WeakKeyDictionary[Attempt, Counter[str]] = WeakKeyDictionary()

    @property
    def in_durable_context(self) -> bool:
        """Whether this code runs inside a task."""
        return ambient.scope() is not None

    def get_durable_operation_backend(self) -> _Backend:
        """How operations become calls of the task."""
        return _Backend(self.name, default_model_id=self.default_model_id)

    def get_default_run_id(self) -> str | None:
        """The task and a count of the runs in it: the same on every replay."""
        scope = ambient.scope()
        if scope is None:
            return None
        attempt = cast("Attempt", scope.runner)
        counts = self._runs.setdefault(attempt, Counter())
        counts[scope.parent_key] += 1
        return f"{attempt.task.id}:{scope.parent_key}:{counts[scope.parent_key]}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Follows from the run's id."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002  # The record knows its run.
        """When the run first started, from which its `timeout=` counts."""
        scope = ambient.scope()
        return None if scope is None else await _on_its_loop(cast("Attempt", scope.runner), context.now)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Keep answers from the record out of traces and metrics: they are in there already."""
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        with replay_scope():
            return await super().wrap_run(ctx, handler=handler)


class _Backend(CallableOperationBackend[Risk]):
    """Runs each operation as a recorded call. The configuration of an operation is its risk."""

    def __init__(self, agent: str, *, default_model_id: str | None) -> None:
        super().__init__(
            namer=JournalOperationNamer(agent, default_model_id=default_model_id or "default"),
            config=RoleBasedOperationConfig(
                model=Risk.LOW, event=Risk.LOW, capability=Risk.HIGH, tool=Risk.HIGH, resolve_tool=_risk_of_tool
            ),
        )

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Risk,
    ) -> object:
        """Answer the operation from the record, or run it and record what it gave."""
        attempt = cast("Attempt", ambient.require(name).runner)
        is_tool = isinstance(operation_id, ToolsetCallToolId)
        executed = False

        async def run() -> object:
            nonlocal executed
            executed = True
            payload = await body()
            return _unpacked(payload) if is_tool else payload

        described = Call(
            kind=StepKind.MODEL_CALL if isinstance(operation_id, ModelRequestId) else StepKind.TOOL_CALL,
            # A tool is called by its own name, for people are asked about it.
            name=str(cache_key[0]) if is_tool else name,
            fn=run,
            input=_input_of(operation_id, cache_key),
            risk=config,
        )
        found: object = await _perform(attempt, described)
        record_durable_unit(executed=executed)
        return _packed(found) if is_tool else found


async def _perform(attempt: Attempt, call: Call) -> Any:
    if not attempt.is_on_loop:
        here, work = asyncio.get_running_loop(), call.fn

        async def run_here() -> object:
            # The work itself stays on the loop where its clients were made.
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), here))

        call.fn = run_here
    return await _on_its_loop(attempt, lambda: calls.perform(attempt, call))


async def _on_its_loop(attempt: Attempt, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Keep the record on the task's loop: `agent.run_sync` in a synchronous agent has one of its own."""
    return await (make() if attempt.is_on_loop else asyncio.to_thread(attempt.block_on, make))


def _risk_of_tool(operation_id: DurableOperationId, tool: object | None, tool_name: str) -> Any:
    """The risk of a tool's operations; False for one that records itself. Listing and checking change nothing."""
    if isinstance(tool, ToolsetTool) and _records_itself(tool):
        return False
    if not isinstance(operation_id, ToolsetCallToolId):
        return Risk.LOW
    declared = (tool.tool_def.metadata or {}).get(METADATA) if isinstance(tool, ToolsetTool) else None
    if declared is None:
        return Risk.HIGH
    risk = Risk.parse(declared["risk"]) if isinstance(declared, Mapping) and "risk" in declared else None
    if risk not in (Risk.LOW, Risk.HIGH):
        raise BadInput(
            f"tool {tool_name} has metadata {METADATA}={declared!r}; give {{'risk': 'low'}} or {{'risk': 'high'}}, and "
            "for anything else decorate the function with @perdure.tool",
            field=f"metadata.{METADATA}",
        )
    return risk


def _records_itself(tool: ToolsetTool[Any]) -> bool:
    toolset = tool.toolset
    name = getattr(tool, "original_name", None) or tool.tool_def.name
    function = toolset.tools[name].function if isinstance(toolset, FunctionToolset) and name in toolset.tools else None
    return isinstance(definition_of(function), ToolDefinition)


# A tool's result is recorded as it is, so that a person who says that a call happened can give it by hand. What is not
# a result, a wish to be called again for one, stays in the envelope in which the framework sends it.


def _unpacked(payload: object) -> object:
    if isinstance(payload, dict) and payload.keys() == {"kind", "result"} and payload["kind"] == "tool_return":
        result: object = payload["result"]
        if not _is_envelope(result):
            return result
    return {_ENVELOPE: payload}


def _packed(found: object) -> object:
    if isinstance(found, dict) and _is_envelope(found):
        return found[_ENVELOPE]
    return {"kind": "tool_return", "result": found}


def _is_envelope(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {_ENVELOPE}


# -- what a call is recorded with ---------------------------------------------------------------


def _input_of(operation_id: DurableOperationId, cache_key: tuple[object, ...]) -> dict[str, Any]:
    """The input of an operation, without what differs each time the same code runs again."""
    parts = [_steady(part) for part in cache_key if not isinstance(part, RunContext)]
    match operation_id:
        case ModelRequestId():
            model_id, messages, settings, parameters = parts  # The run's context, the fifth, is left out.
            tools = [tool["name"] for tool in parameters.get("function_tools", ())]
            model = model_id or operation_id.model_name
            return {"model": model, "messages": messages, "settings": settings, "tools": tools}
        case ToolsetCallToolId():
            arguments = parts[1]
            return dict(arguments) if isinstance(arguments, dict) else {"arguments": arguments}
        case _:
            return {"arguments": parts}


def _steady(value: Any) -> Any:
    """A value of the framework as plain data that looks the same on every replay; other values as they are."""
    if isinstance(value, ToolsetTool):
        return value.tool_def.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_of_framework(value):
        return {
            field.name: steady
            for field in dataclasses.fields(value)
            if field.name not in _VOLATILE and (steady := _steady(getattr(value, field.name))) is not None
        }
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_steady(one) for one in value]
    if isinstance(value, str) and value.startswith(_MADE_UP_ID):
        return None
    return value


def _is_of_framework(value: object) -> bool:
    return type(value).__module__.split(".")[0] == "pydantic_ai"
