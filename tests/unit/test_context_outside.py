"""Outside a task: calls just run, tellers do nothing, and what needs a task says so."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import perdure
from perdure import ambient
from perdure.errors import BadInput, NoTaskContext, NotInTask

made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    """What tools did, anew for each test."""
    made.clear()


@perdure.tool
async def send(to: str) -> str:
    made.append(to)
    return f"sent to {to}"


@perdure.tool
def post(to: str) -> str:
    made.append(to)
    return f"posted to {to}"


@perdure.agent
async def writer(topic: str) -> str:
    return topic.upper()


@perdure.agent
def clerk(topic: str) -> str:
    return topic.lower()


async def complete(prompt: str, *, model: str = "small") -> str:
    return f"{model}: {prompt}"


def complete_blocking(prompt: str) -> str:
    return f"{prompt} in {threading.current_thread().name}"


# -- calls just run ---------------------------------------------------------------------------


async def test_agents_and_tools_of_both_kinds_are_called() -> None:
    assert await writer("a") == "A"
    assert clerk("A") == "a"
    assert await send("ana") == "sent to ana"
    assert post("bob") == "posted to bob"
    assert made == ["ana", "bob"]


async def test_an_agent_that_runs_unrecorded_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    @perdure.agent
    async def novelist(topic: str) -> str:
        return topic

    await novelist("owls")
    await novelist("cats")
    await send("ana")

    (said,) = (record for record in caplog.records if record.name.startswith("perdure"))
    assert said.levelname == "WARNING"
    assert said.getMessage().startswith("agent novelist is called outside a task: nothing is recorded")


async def test_call_takes_agents_and_tools_of_both_kinds() -> None:
    assert await perdure.call(writer, "a") == "A"
    assert await perdure.call(clerk, "A") == "a"
    assert await perdure.call(send, "ana") == "sent to ana"
    assert await perdure.call(post, to="bob") == "posted to bob"


async def test_call_refuses_what_nobody_decorated() -> None:
    with pytest.raises(BadInput, match="neither an agent nor a tool"):
        await perdure.call(complete, "hi")


async def test_the_verbs_call_the_function_with_its_arguments() -> None:
    assert await perdure.model(complete, "hi", model="big") == "big: hi"
    assert await perdure.read("look", complete, "hi") == "small: hi"
    assert await perdure.step("do", complete, "hi") == "small: hi"
    assert await perdure.model.options(key="k")(complete, "hi") == "small: hi"


async def test_a_function_that_only_hands_on_a_coroutine_is_awaited() -> None:
    assert await perdure.model(functools.partial(complete, model="big"), "hi") == "big: hi"
    assert await perdure.read("look", lambda: complete("hi")) == "small: hi"


async def test_a_blocking_function_does_not_block_the_loop() -> None:
    said = await perdure.model(complete_blocking, "hi")

    assert threading.main_thread().name not in said


async def test_a_function_s_error_is_its_own() -> None:
    class Odd(Exception):
        pass

    async def fail() -> None:
        raise Odd

    with pytest.raises(Odd):
        await perdure.step("do", fail)


model: Any = perdure.model  # Typed loosely: not everybody runs a type checker.
read: Any = perdure.read
step: Any = perdure.step


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("fn", lambda: model("hi")),
        ("name", lambda: read(complete, "hi")),
        ("name", lambda: step("", complete)),
        ("fn", lambda: step("do", "hi")),
    ],
)
async def test_a_verb_without_its_function_is_refused(field: str, make: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(BadInput) as refused:
        await make()

    assert refused.value.field == field


# -- gather -------------------------------------------------------------------------------------


async def test_gather_takes_calls_and_bound_calls_and_keeps_their_order() -> None:
    found = await perdure.gather(writer("a"), writer.bind("b"), clerk.bind("C"), post.bind("d"))

    assert list(found) == ["A", "B", "c", "posted to d"]


async def test_gather_of_nothing_is_nothing() -> None:
    assert await perdure.gather() == []


async def test_gather_waits_for_all_before_it_raises_what_failed() -> None:
    late = asyncio.Event()

    async def fail() -> None:
        raise ValueError("early")

    async def end_late() -> None:
        await asyncio.sleep(0)
        late.set()

    with pytest.raises(ExceptionGroup) as raised:
        await perdure.gather(fail(), end_late(), fail())

    assert late.is_set()
    assert [str(one) for one in raised.value.exceptions] == ["early", "early"]


async def test_gather_hands_errors_back_if_asked_even_ones_that_count_as_false() -> None:
    class Empty(Exception):
        def __bool__(self) -> bool:
            return False

    async def fail() -> str:
        raise Empty

    found = await perdure.gather(fail(), writer("a"), return_exceptions=True)

    assert [type(one) for one in found] == [Empty, str]


async def test_a_branch_that_was_cancelled_is_one_failure_among_the_others() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def fail() -> None:
        raise ValueError("mine")

    found = await perdure.gather(writer("a"), cancelled(), return_exceptions=True)
    with pytest.raises(BaseExceptionGroup) as raised:
        await perdure.gather(fail(), cancelled(), writer("a"))

    assert isinstance(found[1], asyncio.CancelledError)
    assert [type(one) for one in raised.value.exceptions] == [ValueError, asyncio.CancelledError]


async def test_a_cancelled_gather_takes_its_branches_along() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def branch() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    gathering = asyncio.ensure_future(perdure.gather(branch()))
    await started.wait()
    gathering.cancel()

    with pytest.raises(asyncio.CancelledError):
        await gathering
    assert ended.is_set()


# -- time, values, telling --------------------------------------------------------------------------


async def test_time_and_randomness_are_the_real_ones() -> None:
    before = datetime.now(UTC)

    moment = await perdure.now()

    assert before <= moment <= datetime.now(UTC)
    assert isinstance(await perdure.uuid(), UUID)
    assert await perdure.uuid() != await perdure.uuid()
    assert (await perdure.random()).random() != (await perdure.random()).random()


async def test_sleep_sleeps() -> None:
    started = time.monotonic()

    await perdure.sleep(timedelta(milliseconds=20))

    assert time.monotonic() - started >= 0.019


@pytest.mark.parametrize("duration", [-1, True, float("inf")])
async def test_sleep_refuses_what_is_no_duration(duration: float) -> None:
    with pytest.raises(BadInput) as refused:
        await perdure.sleep(duration)

    assert refused.value.field == "duration"


async def test_tellers_do_nothing() -> None:
    perdure.stream("text")
    perdure.usage(input_tokens=3)
    await perdure.message("user", object())
    await perdure.event("mine", {"a": 1})
    await perdure.checkpoint({"a": 1})

    assert await perdure.last_checkpoint() is None
    assert await perdure.artifact("page", b"text") == await perdure.artifact("other name", b"text")


# -- what needs a task ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("ask", lambda: perdure.ask("really?")),
        ("receive", lambda: perdure.receive("paid")),
        ("current", perdure.current),
        ("deps", lambda: perdure.deps(object)),
    ],
)
async def test_what_needs_a_task_says_so(what: str, make: Callable[[], Any]) -> None:
    async def attempt() -> None:
        await make()

    with pytest.raises(NotInTask, match=what):
        await attempt()


# -- while this process runs tasks ---------------------------------------------------------------------


async def test_while_tasks_run_a_dangerous_call_without_one_is_refused() -> None:
    @perdure.tool(risk="low")
    async def look() -> str:
        return "seen"

    refused = []
    with ambient.running_attempts:
        for make in (
            lambda: send("ana"),
            lambda: perdure.call(send, "ana"),
            lambda: perdure.call(post, "ana"),
            lambda: perdure.gather(post.bind("ana")),
            lambda: perdure.step("do", complete, "hi"),
        ):
            with pytest.raises((NoTaskContext, ExceptionGroup)) as raised:
                await make()
            refused.append(raised.value)
        with pytest.raises(NoTaskContext, match=r"perdure\.carry\(post\)"):
            post("ana")
        harmless = [await look(), await perdure.model(complete, "hi"), await perdure.read("look", complete, "hi")]

    assert made == []
    assert len(refused) == 5
    assert harmless == ["seen", "small: hi", "small: hi"]
    assert await send("ana") == "sent to ana"


def test_carry_outside_a_task_changes_nothing() -> None:
    assert perdure.carry(post)("ana") == "posted to ana"
