"""Errors of tools: stand-ins that are the same live and on replay, and values that cannot be kept."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.errors import NotSerializable, ToolError
from perdure.runtime import raised
from tests import nasty
from tests.theatre import Theatre


class Refusal(Exception):
    """An error of a user's own, with attributes."""

    def __init__(self, code: int, *, client: object) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.client = client


class Unspeakable(Exception):
    """An error whose text and repr fail."""

    def __str__(self) -> str:
        raise RuntimeError("str fails")

    def __repr__(self) -> str:
        raise RuntimeError("repr fails")


class Guarded(Exception):
    """An error that nobody may derive from, and whose attributes fight back."""

    def __init_subclass__(cls, **_: object) -> None:
        raise TypeError("no subclasses")

    @property
    def trap(self) -> str:
        raise RuntimeError("trap")


class Picky(Exception):
    """An error that is made in its own way."""

    def __new__(cls, code: int) -> Picky:
        return super().__new__(cls, code)


ERRORS: list[Exception] = [
    ValueError("text"),
    KeyError("missing"),
    FileNotFoundError(2, "No such file", "x.txt"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    json.JSONDecodeError("bad", "{", 1),
    subprocess.CalledProcessError(3, ["ls"]),
    socket.gaierror(-2, "Name or service not known"),
    TimeoutError("too late"),
    MemoryError("none left"),
    ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    StopAsyncIteration("odd"),
    RecursionError("deep"),
    ValueError("a\x00b \ud83d"),
    ValueError("x" * 100_000),
    Refusal(409, client=object()),
    nasty.BadError(1, 2),
    Unspeakable(),
    Guarded("guarded"),
    Picky(5),
    NotSerializable("no", path="$.x"),
    perdure.Denied("no", "ana"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_stand_in_is_the_same_live_and_on_replay(house: Theatre, error: Exception) -> None:
    seen: list[tuple[Any, ...]] = []
    reached = asyncio.Event()

    @perdure.tool
    async def fail() -> None:
        raise error

    @perdure.agent
    async def host() -> str:
        try:
            await fail()
        except ToolError as stand_in:
            attributes = {name: value for name, value in vars(stand_in).items() if not name.startswith("_")}
            caught = isinstance(stand_in, type(error))
            seen.append((type(stand_in).__name__, str(stand_in), repr(stand_in.args), repr(attributes), caught))
            if len(house.actors) == 1:
                reached.set()
                await asyncio.sleep(1e6)
        return "caught"

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "caught"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][0] == type(error).__name__


async def test_a_stand_in_is_caught_by_its_class_and_keeps_plain_attributes(house: Theatre) -> None:
    @perdure.tool
    async def fail() -> None:
        raise Refusal(409, client=object())

    @perdure.tool
    async def missing() -> None:
        raise FileNotFoundError(2, "No such file", "x.txt")

    @perdure.agent
    async def host() -> list[Any]:
        found: list[Any] = []
        try:
            await fail()
        except Refusal as refusal:
            found += [refusal.code, str(refusal), hasattr(refusal, "client")]
        try:
            await missing()
        except OSError as error:
            found += [error.errno, error.filename]
        return found

    assert await house.play(host) == [409, "refused with 409", False, 2, "x.txt"]


async def test_an_uncaught_error_of_a_tool_is_the_tasks_error_by_its_own_name(house: Theatre) -> None:
    @perdure.tool
    async def fail() -> None:
        raise Refusal(409, client=object())

    @perdure.agent
    async def host() -> None:
        await fail()

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed) as failed:
        await task.result()

    assert failed.value.error.type.endswith("test_errors.Refusal")
    assert failed.value.error.message == "refused with 409"
    assert failed.value.error.attributes["code"] == 409


# -- what cannot be kept --------------------------------------------------------------------


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "make", [float("nan").conjugate, object, lambda: math.sin, cyclic, deep, nasty.Impostor, nasty.SilentRepr]
)
@pytest.mark.parametrize("where", ["tool", "agent"])
async def test_a_result_that_cannot_be_kept_ends_the_task_with_the_reason(
    house: Theatre, make: Callable[[], Any], where: str
) -> None:
    value, ran = make(), list[int]()

    @perdure.tool
    async def give() -> Any:
        ran.append(1)
        return value

    @perdure.agent
    async def host() -> Any:
        if where == "tool":
            await give()
            return None
        return value

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert house.outcome(task) == ("failed", "perdure.errors.NotSerializable")
    assert len(house.attempts(task)) == 1
    assert len(ran) == (where == "tool")


async def test_a_result_beyond_the_limit_is_one_typed_failure_that_names_size_and_limit(house: Theatre) -> None:
    runs: list[int] = []
    limit = house.settings.payload_limit_bytes

    @perdure.tool(risk="low")
    async def give() -> str:
        runs.append(1)
        return "x" * limit

    @perdure.agent
    async def host() -> str:
        try:
            return await give()
        except NotSerializable as refused:
            return str(refused)

    said = await house.play(host)

    assert said.startswith("the result of give cannot be stored: ")
    assert str(limit) in said.replace(",", "")
    assert len(runs) == 1


async def test_a_result_that_is_not_kept_is_not_kept_on_replay_either(house: Theatre) -> None:
    reached = asyncio.Event()
    ran: list[int] = []

    @perdure.tool
    async def give() -> Any:
        ran.append(1)
        return object()

    @perdure.agent
    async def host() -> str:
        try:
            await give()
        except NotSerializable:
            if len(house.actors) == 1:
                reached.set()
                await asyncio.sleep(1e6)
        return "caught"

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == "caught"
    assert ran == [1]


async def test_running_code_gets_the_value_as_it_comes_back(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def give() -> Any:
        return {"pair": (1, 2)}

    @perdure.agent
    async def host() -> str:
        return repr(await give())

    assert await house.play(host) == "{'pair': [1, 2]}"  # A tuple is a list, live as on replay.


async def test_memory_that_runs_out_in_a_tool_fails_the_task_and_frees_its_slot(house: Theatre) -> None:
    @perdure.tool(risk="low", retries=0)
    async def hungry() -> None:
        raise MemoryError

    @perdure.agent(retries=0)
    async def host() -> None:
        await hungry()

    @perdure.agent
    async def next_one() -> str:
        return "ran"

    await house.hire(host, next_one)
    tasks = [await house.client.start(host) for _ in range(3 * house.settings.permits)]
    for task in tasks:
        with pytest.raises(perdure.TaskFailed):
            await task.result()

    assert await house.run(next_one) == "ran"
    assert {house.outcome(task)[1] for task in tasks} == {"MemoryError"}


@pytest.mark.parametrize("mine", [ConnectionError, ValueError])
async def test_a_branch_that_the_agent_cancelled_hides_no_error_of_another_one(
    house: Theatre, mine: type[Exception]
) -> None:
    runs: list[int] = []

    async def fail() -> None:
        raise mine("of this branch")

    @perdure.agent
    async def host() -> None:
        runs.append(1)
        idle = asyncio.ensure_future(asyncio.sleep(1e6))
        idle.cancel()
        await perdure.gather(fail(), idle)

    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed, match="2 of 2 failed"):
        await task.result()

    assert len(runs) == (4 if mine is ConnectionError else 1)


async def test_the_text_of_a_group_names_what_it_holds(house: Theatre) -> None:
    @perdure.tool(risk="low", retries=0)
    async def act(n: int) -> int:
        if n > 1:
            raise ValueError(f"bad {n}")
        return n

    @perdure.agent(retries=0)
    async def host() -> list[int]:
        return list(await perdure.gather(act(1), act(2), act(3)))

    with pytest.raises(perdure.TaskFailed) as failed:
        await house.play(host)

    assert failed.value.error.message == "2 of 3 failed: ValueError: bad 2; ValueError: bad 3"


def test_a_group_in_a_group_is_named_and_a_deep_or_wide_one_is_cut() -> None:
    inner = ExceptionGroup("inner", [KeyError("x"), *(ValueError(str(n)) for n in range(9))])
    deep: Exception = ValueError("deepest")
    for _ in range(50):
        deep = ExceptionGroup("deep", [deep])

    named = raised.text_of(ExceptionGroup("outer", [inner, Unspeakable()]))

    held = "KeyError: 'x'; ValueError: 0; ValueError: 1; ValueError: 2; ValueError: 3; and 5 more"
    unspeakable = f"{raised.class_name(Unspeakable())}: Unspeakable"
    assert named == f"outer: ExceptionGroup: inner: {held}; {unspeakable}"
    assert raised.text_of(deep).endswith("ExceptionGroup: …")
