"""Pydantic AI agents inside and outside a task: what is recorded, under which names, and at which risk."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import perdure
import perdure.sync as blocking
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.settings import Settings

BRIEFLY = Settings(poll_ms=20, call_retries=0)
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    """What tools and models did, anew for each test."""
    made.clear()


def durable(model: FunctionModel | TestModel, *tools: Any, **options: Any) -> Agent[None, str]:
    """An agent that is called helper and recorded."""
    return Agent(model, name="helper", tools=tools, capabilities=[PerdureDurability()], **options)


def calling(**arguments: Any) -> FunctionModel:
    """A model that calls the tools it has with these arguments, all at once, and then says what they gave."""

    async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        made.append("model")
        given = [str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if given:
            return ModelResponse(parts=[TextPart(", ".join(given))])
        return ModelResponse(parts=[ToolCallPart(tool.name, arguments) for tool in info.function_tools])

    return FunctionModel(think)


@perdure.tool(risk="low")
async def search(query: str) -> str:
    """Find a page."""
    made.append(f"search {query}")
    return f"a page about {query}"


def plain(query: str) -> str:
    """A tool nobody decorated."""
    made.append(f"plain {query}")
    return f"plainly {query}"


async def recorded(app: perdure.App) -> list[tuple[str, str, str]]:
    """Kind, name and risk of every call of the newest task."""
    (task, *_) = await app.tasks()
    return [(step.event_kind, step.name, str(step.risk)) for step, _ in await app.task(task.id).steps() if step.key]


def app_of(tmp_db: Path, *agents: perdure.Agent[..., Any] | perdure.SyncAgent[..., Any]) -> perdure.App:
    return perdure.App(str(tmp_db), agents=agents, settings=BRIEFLY)


async def test_model_requests_and_tools_are_recorded_under_names_that_never_change(tmp_db: Path) -> None:
    helper = durable(calling(query="owls"), search, plain)

    @perdure.agent
    async def helped(question: str) -> str:
        return (await helper.run(question)).output

    async with app_of(tmp_db, helped) as app:
        result = await app.run(helped.options(key="k"), "who?")
        done = list(made)
        again = await app.run(helped.options(key="k"), "who?")
        calls = await recorded(app)

    assert result == again == "a page about owls, plainly owls"
    assert made == done
    assert sorted(calls) == [
        ("model_call", "helper__model.request", "low"),
        ("model_call", "helper__model.request", "low"),
        ("tool_call", "plain", "high"),
        ("tool_call", "search", "low"),
    ]


async def test_what_a_tool_says_of_itself_is_its_risk(tmp_db: Path) -> None:
    harmless = Tool(plain, name="harmless", metadata={"perdure": {"risk": "low"}})
    helper = durable(calling(query="owls"), harmless)

    @perdure.agent
    async def helped(question: str) -> str:
        return (await helper.run(question)).output

    async with app_of(tmp_db, helped) as app:
        await app.run(helped, "who?")
        calls = await recorded(app)

    assert ("tool_call", "harmless", "low") in calls


async def test_a_tool_that_promises_more_than_metadata_can_say_is_refused(tmp_db: Path) -> None:
    helper = durable(calling(query="owls"), Tool(plain, metadata={"perdure": {"risk": "medium"}}))

    @perdure.agent(retries=0)
    async def helped(question: str) -> str:
        return (await helper.run(question)).output

    async with app_of(tmp_db, helped) as app:
        with pytest.raises(perdure.TaskFailed, match=r"decorate the function with @perdure\.tool"):
            await app.run(helped, "who?")

    assert made == ["model"]


async def test_outside_a_task_nothing_changes() -> None:
    helper = durable(calling(query="owls"), search, plain)

    result = await helper.run("who?")

    assert result.output == "a page about owls, plainly owls"
    assert sorted(made) == ["model", "model", "plain owls", "search owls"]


async def test_the_test_model_works_as_well(tmp_db: Path) -> None:
    helper = durable(TestModel(), search)

    @perdure.agent
    async def helped(question: str) -> str:
        return (await helper.run(question)).output

    async with app_of(tmp_db, helped) as app:
        result = await app.run(helped, "who?")

    assert result == '{"search":"a page about a"}'


async def test_runs_have_the_same_ids_when_the_code_runs_again(tmp_db: Path) -> None:
    helper = durable(TestModel(custom_output_text="hm"))
    seen: list[list[str]] = []

    @perdure.agent
    async def helped() -> None:
        results = [await helper.run("a"), await helper.run("b")]
        seen.append([identity for one in results for identity in (one.run_id, one.conversation_id)])
        await perdure.receive("go")

    async with app_of(tmp_db, helped) as app:
        async with app.worker():
            task = await app.start(helped)
            while (await task.info()).status != "waiting":
                await perdure.sleep(0.01)
        await app.send(task.id, "go")
        async with app.worker():
            await task.result(timeout=20)

    first, second = seen
    assert first == second
    assert len(set(first)) == 4


async def test_a_streamed_answer_is_recorded_whole(tmp_db: Path) -> None:
    async def stream(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        made.append("model")
        for word in ("one ", "two ", "three"):
            yield word

    helper = durable(FunctionModel(stream_function=stream))

    @perdure.agent
    async def helped(question: str) -> str:
        async with helper.run_stream(question) as run:
            return await run.get_output()

    async with app_of(tmp_db, helped) as app:
        first = await app.run(helped.options(key="k"), "who?")
        second = await app.run(helped.options(key="k"), "who?")
        calls = await recorded(app)

    assert first == second == "one two three"
    assert made == ["model"]
    assert calls == [("model_call", "helper__model.request_stream", "low")]


async def test_a_wish_to_be_called_again_is_recorded_too(tmp_db: Path) -> None:
    def picky(query: str) -> str:
        made.append(f"picky {query}")
        if query == "owls":
            raise ModelRetry("not owls again")
        return query

    async def think(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart) and last.outcome == "success":
            return ModelResponse(parts=[TextPart(f"found {last.content}")])
        return ModelResponse(parts=[ToolCallPart("picky", {"query": "owls" if len(messages) == 1 else "cats"})])

    helper = durable(FunctionModel(think), picky)

    @perdure.agent
    async def helped() -> str:
        return (await helper.run("who?")).output

    async with app_of(tmp_db, helped) as app:
        async with app.worker():
            result = await app.run(helped.options(key="k"))
        again = await app.run(helped.options(key="k"))

    assert result == again == "found cats"
    assert made == ["picky owls", "picky cats"]


async def test_a_model_s_error_is_caught_as_what_it_was(tmp_db: Path) -> None:
    async def refuse(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(400, "small", {"error": "too long"})

    helper = durable(FunctionModel(refuse))

    @perdure.agent
    async def helped() -> str:
        try:
            return (await helper.run("who?")).output
        except ModelHTTPError as error:
            return f"{error.status_code} of {error.model_name}"

    async with app_of(tmp_db, helped) as app:
        assert await app.run(helped) == "400 of small"


async def test_an_agent_inside_a_tool_is_recorded_under_it(tmp_db: Path) -> None:
    inner = Agent(TestModel(custom_output_text="inner"), name="inner", capabilities=[PerdureDurability()])

    @perdure.tool(risk="low")
    async def consult(query: str) -> str:
        return (await inner.run(query)).output

    helper = durable(calling(query="owls"), consult)

    @perdure.agent
    async def helped() -> str:
        return (await helper.run("who?")).output

    async with app_of(tmp_db, helped) as app:
        result = await app.run(helped)
        names = [name for _, name, _ in await recorded(app)]

    assert result == "inner"
    assert sorted(names) == ["consult", "helper__model.request", "helper__model.request", "inner__model.request"]


def test_a_synchronous_agent_may_use_run_sync(tmp_db: Path) -> None:
    @blocking.tool(risk="low")
    def look(query: str) -> str:
        made.append(f"look {query}")
        return query.upper()

    def with_context(ctx: RunContext[None], query: str) -> int:
        return len(query) + ctx.run_step

    helper = durable(calling(query="owls"), look, with_context)

    @blocking.agent
    def helped(question: str) -> str:
        return helper.run_sync(question).output

    app = blocking.App(str(tmp_db), agents=[helped], settings=BRIEFLY)

    first = app.run(helped.options(key="k"), "who?")
    done = list(made)
    second = app.run(helped.options(key="k"), "who?")

    assert first == second == "OWLS, 5"
    assert made == done == ["model", "look owls", "model"]


def test_without_pydantic_ai_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai.durable_exec", None)
    monkeypatch.delitem(sys.modules, "perdure.integrations.pydantic_ai")

    with pytest.raises(ModuleNotFoundError, match="pip install 'pydantic-ai-slim>="):
        importlib.import_module("perdure.integrations.pydantic_ai")
