"""What callers see: the types of calls and results, as two type checkers understand them.

The functions here are read by mypy and pyright; `assert_type` is an error for them where the type is another one.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, assert_type

import pytest

import perdure
import perdure.sync as blocking

ROOT = Path(__file__).resolve().parents[2]


async def complete(prompt: str, *, model: str = "small") -> str:
    return f"{model}: {prompt}"


def count(text: str) -> int:
    return len(text)


@perdure.tool(risk="low")
async def search(query: str) -> list[str]:
    return [query]


@perdure.tool
def send(to: str) -> bytes:
    return to.encode()


@perdure.agent
async def writer(topic: str) -> str:
    return topic


@perdure.agent(name="the clerk", retries=1)
def clerk(topic: str) -> int:
    return len(topic)


TOOLS: dict[str, perdure.AnyTool] = {"search": search, "send": send}


async def test_calls_have_the_types_of_what_they_call() -> None:
    assert_type(await search("a"), list[str])
    assert_type(send("a"), bytes)
    assert_type(await writer("a"), str)
    assert_type(clerk("a"), int)
    assert_type(await perdure.call(search, "a"), list[str])
    assert_type(await perdure.call(send, "a"), bytes)
    assert_type(await perdure.call(clerk, "a"), int)
    assert_type(await perdure.call(TOOLS["send"], to="a"), Any)
    assert_type(await perdure.model(complete, "a", model="big"), str)
    assert_type(await perdure.read("n", count, "a"), int)
    assert_type(await perdure.step("n", complete, "a"), str)


async def test_options_keep_the_types() -> None:
    assert_type(await search.options(key="k")("a"), list[str])
    assert_type(send.options(timeout=3)("a"), bytes)
    assert_type(await writer.options(priority=3)("a"), str)
    assert_type(await perdure.model.options(key="k")(complete, "a"), str)
    assert_type(await perdure.step.options(key="k")("n", count, "a"), int)


async def test_gather_has_the_type_of_its_results() -> None:
    assert_type(await perdure.gather(search("a"), search.bind("b")), tuple[list[str], list[str]])
    assert_type(await perdure.gather(clerk.bind("a"), writer("b"), search("c")), tuple[int, str, list[str]])
    number, text = await perdure.gather(clerk.bind("a"), writer("b"))
    assert_type((number, text), tuple[int, str])
    assert_type(await perdure.gather(*(writer(topic) for topic in "ab")), list[str])
    assert_type(await perdure.gather(send.bind("a")), list[bytes])
    assert_type(await perdure.gather(writer("a"), return_exceptions=True), list[str | BaseException])
    one, other = await perdure.gather(clerk.bind("a"), writer("b"), return_exceptions=True)
    assert_type((one, other), tuple[int | BaseException, str | BaseException])


def test_bound_calls_carry_the_type_of_the_result() -> None:
    assert_type(search.bind("a"), perdure.Bound[list[str]])
    assert_type(send.bind("a"), perdure.Bound[bytes])
    assert_type(writer.bind("a"), perdure.Bound[str])
    assert_type(clerk.options(key="k").bind("a"), perdure.Bound[int])


def test_the_blocking_names_have_the_same_types() -> None:
    assert_type(blocking.model(count, "a"), int)
    assert_type(blocking.model(complete, "a"), str)
    assert_type(blocking.call(search, "a"), list[str])
    assert_type(blocking.step.options(key="k")("n", count, "a"), int)
    assert_type(blocking.gather(*(send.bind(to) for to in "ab")), list[bytes])
    assert_type(blocking.gather(send.bind("a"), clerk.bind("b")), tuple[bytes, int])


async def only_read_by_type_checkers(client: perdure.Client, app: perdure.App, other: blocking.App) -> None:
    """What would need a database."""
    assert_type(await perdure.ask("?"), str)
    assert_type(await perdure.ask("?", type=bool), bool)
    assert_type(await perdure.ask("?", type=Literal["yes", "no"]), Any)
    assert_type(await perdure.receive("paid", type=int), int)
    assert_type(await perdure.receive("paid", type=list[int]), list[int])
    assert_type(await client.start(writer, "a"), perdure.TaskHandle[str])
    assert_type(await client.start("writer", topic="a"), perdure.TaskHandle[Any])
    assert_type(await app.run(clerk.options(key="k"), "a"), int)
    assert_type(other.run(clerk, "a"), int)
    assert_type(other.start(writer, "a").result(), str)
    assert_type(blocking.ask("?", type=bool), bool)
    assert_type(blocking.receive("paid", type=Literal[1, 2]), Any)


@pytest.mark.slow(timeout_s=300)
def test_mypy_and_the_examples_agree() -> None:
    checked = _run("mypy", "--follow-imports=silent", "examples", "tests/unit/test_types.py")

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs on node, which is not installed")
@pytest.mark.slow(timeout_s=300)
def test_pyright_and_the_examples_agree() -> None:
    checked = _run("pyright", "examples", "tests/unit/test_types.py")

    assert checked.returncode == 0, checked.stdout + checked.stderr


def _run(checker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", checker, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_public_names_survive_the_import_of_every_module() -> None:
    # The function perdure.model and the package perdure.model have one name: whoever comes last must be the function.
    expected = {name: getattr(perdure, name) for name in perdure.__all__}

    for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
        if not module.name.startswith(("perdure.integrations.", "perdure.cli")) and "__main__" not in module.name:
            importlib.import_module(module.name)

    assert {name: getattr(perdure, name) for name in perdure.__all__} == expected
