"""A Pydantic AI agent in a process that dies: nothing it paid for is bought again, nothing dangerous happens twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import perdure
from perdure.integrations.pydantic_ai import PerdureDurability
from perdure.testing import World
from tests.children import Script

# -- the program -------------------------------------------------------------------------------------
# Runs in a process of its own, in a folder that outlives it: what happened is written down there.


def happened(what: str) -> None:
    """Write down an effect; die right after it if the test says so."""
    with Path("effects.txt").open("a", encoding="utf-8") as file:
        file.write(what + "\n")
    reach(f"after {what}")


def reach(point: str) -> None:
    """Die here if the test says so."""
    if os.environ.get("DIE") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def think(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """A model that searches twice at once, then sends and files at once, then says what came of it."""
    turn = sum(isinstance(one, ModelResponse) for one in messages)
    reach(f"before model {turn}")
    happened(f"model {turn}")
    match turn:
        case 0:
            return ModelResponse(parts=[ToolCallPart("search", {"query": query}) for query in ("owls", "cats")])
        case 1:
            return ModelResponse(parts=[ToolCallPart("send", {"to": "team"}), ToolCallPart("file", {"page": 3})])
        case _:
            said = [str(part.content) for one in messages for part in one.parts if isinstance(part, ToolReturnPart)]
            return ModelResponse(parts=[TextPart(", ".join(said))])


@perdure.tool(risk="low")
async def search(query: str) -> str:
    """Find a page."""
    reach(f"before search {query}")
    happened(f"search {query}")
    return f"a page about {query}"


@perdure.tool
async def send(to: str) -> str:
    """Send mail."""
    reach(f"before send {to}")
    happened(f"send {to}")
    return f"sent to {to}"


def file(page: int) -> str:
    """A tool nobody decorated: high, too."""
    reach(f"before file {page}")
    happened(f"file {page}")
    return f"filed {page}"


helper = Agent(FunctionModel(think), name="helper", tools=[search, send, file], capabilities=[PerdureDurability()])


@perdure.agent
async def helped(question: str) -> str:
    return str((await helper.run(question)).output)


async def tell_what_happened(question: perdure.Question) -> None:
    """A person who looks where the effects are."""
    assert question.kind == "step_in_doubt", question.text
    what = f"{question.tool} {next(iter(question.args.values()))}"
    result = {"send team": "sent to team", "file 3": "filed 3"}[what]
    effects = Path("effects.txt").read_text(encoding="utf-8").splitlines()
    print(f"asked {what}", flush=True)
    verdict = perdure.happened(result) if what in effects else perdure.not_happened()
    await question.resolve(verdict, by="ana")


# One process loads everything and forks for each run: what dies is a process that has only just begun.
PROGRAM = """
import asyncio, os, sys
import perdure
from tests.crash.test_pydantic_ai import helped, tell_what_happened

def run(folder, point):
    os.chdir(folder)
    os.environ["DIE"] = point
    app = perdure.App("perdure.db", agents=[helped], notify=tell_what_happened)
    print(asyncio.run(app.run(helped.options(key="k"), "who won?")), flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        status = 1
        try:
            run(*line.strip().split("|"))
            status = 0
        finally:
            os._exit(status)
    print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
"""


# -- the tests -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> Iterator[Script]:
    """Ready to run, in whatever folder it is told."""
    with Script(PROGRAM) as script:
        yield script


def run(program: Script, folder: Path, *, die: str = "") -> tuple[list[str], int]:
    """Run it until it ends or dies; what it said, and its exit status."""
    program.say(f"{folder}|{die}")
    said = []
    while not (line := program.hear()).startswith("ended"):
        assert line, "the program has gone"
        said.append(line)
    return said, int(line.split()[1])


WHOLE = ["model 0", "search cats", "search owls", "model 1", "file 3", "send team", "model 2"]
OUTCOME = "a page about owls, a page about cats, sent to team, filed 3"
POINTS = [f"{when} {what}" for what in WHOLE for when in ("before", "after")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_the_next_process_ends_it_as_if_nothing_had_been(
    program: Script, tmp_path: Path, point: str
) -> None:
    before, died = run(program, tmp_path, die=point)
    (*asked, outcome), ended = run(program, tmp_path)

    effects = (tmp_path / "effects.txt").read_text(encoding="utf-8").splitlines()
    when, _, what = point.partition(" ")
    twice = {one for one in effects if effects.count(one) > 1}
    is_model, is_dangerous = what.startswith("model"), what in ("send team", "file 3")
    assert (before, died, ended) == ([], -signal.SIGKILL, 0)
    assert outcome == OUTCOME
    assert set(effects) == set(WHOLE)
    # An answer that nobody had written down is bought again; searches that were under way may run again, too.
    assert {one for one in twice if one.startswith("model")} == ({what} if is_model and when == "after" else set())
    assert not twice & {"send team", "file 3"}
    # The two dangerous calls run side by side, so the other one may be in doubt as well.
    assert f"asked {what}" in asked if is_dangerous else asked == []


def test_undisturbed_it_does_everything_once(program: Script, tmp_path: Path) -> None:
    first, again = run(program, tmp_path), run(program, tmp_path)

    assert first == again == ([OUTCOME], 0)
    assert sorted((tmp_path / "effects.txt").read_text(encoding="utf-8").splitlines()) == sorted(WHOLE)


async def think_less(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """A model that searches, then sends, then says what came of it."""
    last = messages[-1].parts[-1]
    if not isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[ToolCallPart("look", {"query": "owls"}), ToolCallPart("look", {"query": "cats"})])
    if last.tool_name == "look":
        return ModelResponse(parts=[ToolCallPart("send", {"to": "team"})])
    return ModelResponse(parts=[TextPart(str(last.content))])


@perdure.tool(risk="low")
async def look(query: str) -> str:
    return f"a page about {query}"


careful = Agent(FunctionModel(think_less), name="careful", tools=[look, send], capabilities=[PerdureDurability()])


@perdure.agent
async def guarded(question: str) -> str:
    return str((await careful.run(question)).output)


async def test_killed_at_every_commit_it_ends_the_same() -> None:
    plays = await World(tools={send: lambda to: f"sent to {to}"}).crash_everywhere(guarded, "who won?")

    assert len(plays) > 10
    assert {play.result for play in plays} == {"sent to team"}
