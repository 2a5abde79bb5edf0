"""A task that fails says where: the place in the code on record, and the traceback in the log, without secrets."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any

import pytest

import perdure
from perdure.errors import Error, TaskFailed
from perdure.store import task_lists
from tests.runtime import test_errors
from tests.theatre import Theatre

KEY = "sk-12345"
FILE = "tests/runtime/test_failures_told.py"


@perdure.tool(risk="low")
async def look(what: str) -> str:
    known: dict[str, str] = {}
    return known[what]


@perdure.tool(risk="low", secret=["api_key"])
async def log_in(api_key: str) -> None:
    raise ValueError(f"{api_key} is refused") from KeyError(api_key)


@perdure.agent
async def looks(what: str) -> str:
    return await look(what)


@perdure.agent
async def fails(what: str) -> str:
    raise LookupError(what)


@perdure.agent
async def hands_on(what: str) -> str:
    return await fails(what)


@perdure.agent
async def logs_in() -> None:
    await log_in(KEY)


def line_of(agent: Any, words: str) -> int:
    """The line of this file at which a function has these words."""
    lines, first = inspect.getsourcelines(inspect.unwrap(agent))
    return first + next(number for number, line in enumerate(lines) if words in line)


async def failure_of(house: Theatre, *agents: Any, args: tuple[Any, ...] = ("x",)) -> Error:
    await house.hire(*agents)
    task = await house.client.start(agents[0], *args)
    with pytest.raises(TaskFailed) as failed:
        await task.result(timeout=3600)
    attempt = house.store.read(task_lists.attempts, task.id)[-1]
    stored = house.store.read(task_lists.outcome, task.id)
    assert stored is not None and stored.error is not None and attempt.error is not None
    assert stored.error.place == failed.value.error.place
    assert stored.error.place in str(failed.value)
    return stored.error


async def test_the_place_in_the_agent_is_on_record(house: Theatre) -> None:
    error = await failure_of(house, fails)

    assert error.place == f"{FILE}:{line_of(fails, 'raise')} in fails"


async def test_the_place_of_a_tools_error_is_in_the_tool(house: Theatre) -> None:
    error = await failure_of(house, looks)

    assert error.place == f"{FILE}:{line_of(look, 'return')} in look"


async def test_a_parent_names_the_place_in_its_child_and_its_own(house: Theatre) -> None:
    error = await failure_of(house, hands_on, fails)

    assert f"({FILE}:{line_of(fails, 'raise')} in fails)" in error.message
    assert error.place == f"{FILE}:{line_of(hands_on, 'await')} in hands_on"


async def test_the_traceback_is_logged_once_without_perdures_own_frames(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    await failure_of(house, looks)

    (told,) = [one for one in caplog.records if one.name.startswith("perdure") and one.levelno >= logging.ERROR]
    assert "return await look(what)" in told.getMessage()
    assert "return known[what]" in told.getMessage()
    assert told.getMessage().endswith("KeyError: 'x'")
    assert "src/perdure" not in told.getMessage()


async def test_a_secret_is_not_in_the_log(house: Theatre, caplog: pytest.LogCaptureFixture) -> None:
    await failure_of(house, logs_in, args=())

    assert "is refused" in caplog.text
    assert KEY not in caplog.text


async def test_each_retry_of_a_call_and_of_a_task_is_logged_with_its_cause(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    @perdure.tool(risk="low", retries=1, secret=["api_key"])
    async def fetch(api_key: str) -> None:
        raise ConnectionError(f"{api_key} hung up")

    @perdure.agent(retries=1)
    async def host() -> None:
        await fetch(KEY)

    await failure_of(house, host, args=())

    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    place = re.escape(f"({FILE}:{line_of(fetch, 'raise')} in fetch)")
    call = rf"fetch of task \w+ failed; try 2 of 2 in [\d.]+ s: ConnectionError: \[secret\] hung up {place}"
    task = rf"attempt 1 of task \w+ of agent host failed; attempt 2 begins in [\d.]+ s: ConnectionError: .* {place}"
    assert len(warned) == 3
    assert [bool(re.fullmatch(one, said)) for one, said in zip([call, task, call], warned, strict=True)] == [True] * 3
    assert KEY not in caplog.text


@pytest.mark.parametrize("error", test_errors.ERRORS, ids=lambda error: type(error).__name__)
async def test_any_error_can_be_told(house: Theatre, error: Exception) -> None:
    @perdure.agent
    async def host(_what: str) -> None:
        raise error.with_traceback(None)  # It may have been raised by another test.

    assert (await failure_of(house, host)).place.startswith(f"{FILE}:")
