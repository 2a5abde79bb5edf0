"""Starting tasks: what is no start is refused with how to write it, and a second start of open work is warned of."""

from __future__ import annotations

import logging

import pytest

import perdure
from perdure.errors import BadInput, NotSerializable
from tests.theatre import Theatre


@perdure.agent
async def waits(name: str) -> str:
    return await perdure.receive(name)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


async def test_a_call_in_place_of_an_agent_is_refused_with_how_to_write_it(house: Theatre) -> None:
    with pytest.raises(BadInput, match=r"waits\(…\) is a call already; .*: run\(waits, …\)"):
        await perdure.App(store=house.store, agents=[waits]).run(waits("a"))  # type: ignore[arg-type]  # as by mistake


async def test_arguments_that_cannot_be_stored_name_whose_they_are(house: Theatre) -> None:
    with pytest.raises(NotSerializable, match="the arguments of waits cannot be stored: ") as refused:
        await house.client.start(waits, object())  # type: ignore[call-overload]  # as by mistake

    assert refused.value.path == "$.name"


async def test_a_second_start_of_open_work_without_a_key_is_warned_of(
    house: Theatre, caplog: pytest.LogCaptureFixture
) -> None:
    first = await house.client.start(waits, "a")
    await house.client.start(waits, "b")
    assert warnings(caplog) == []

    second = await house.client.start(waits, "a")
    await house.client.start(waits, "a")

    (said,) = warnings(caplog)
    assert said.startswith(f"task {second.id} of agent waits does the same work as task {first.id}, which is open: ")
    assert said.endswith("give both a key: waits.options(key=…)")


async def test_a_start_with_a_key_is_not_warned_of(house: Theatre, caplog: pytest.LogCaptureFixture) -> None:
    first = await house.client.start(waits.options(key="k"), "a")

    second = await house.client.start(waits.options(key="k"), "a")

    assert first.id == second.id
    assert warnings(caplog) == []


async def test_a_wait_for_a_result_that_ends_too_early_says_that_the_task_is_open(house: Theatre) -> None:
    task = await house.client.start(waits, "a")

    with pytest.raises(TimeoutError, match=f"task {task.id} has not ended within 1 s; it is still open"):
        await task.result(timeout=1)
