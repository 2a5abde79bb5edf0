"""Classes of errors that no module has under their name, as libraries make them at run time: what `except` catches."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure.errors import Error
from perdure.runtime.stand_ins import describe, raise_again
from tests.theatre import Theatre


class ServiceError(Exception):
    """What a module has: the base of the classes that are made."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the service said {code}")
        self.code = code


class Oops(Exception):
    """What a module has under a name that a class made at run time has too."""


def made(base: type[Exception] = ServiceError, name: str = "NoSuchKey") -> type[Exception]:
    """A class as botocore makes those of a client, in a module that does not have it."""
    return type(name, (base,), {"__module__": __name__})


def raising(kind: Callable[[], type[Exception]]) -> perdure.Tool[[], Coroutine[Any, Any, None]]:
    @perdure.tool
    async def fetch() -> None:
        raise kind()(404)

    return fetch


async def replayed(house: Theatre, agent: perdure.Agent[[], str], caught: list[str]) -> str:
    """Run an agent to its first catch, and again on another worker, from the record."""
    first = await house.hire(agent)
    task = await house.client.start(agent)
    await house.until(lambda: caught)
    house.kill(first)
    await house.hire(agent)
    return await task.result()


@pytest.mark.parametrize("base", [ServiceError, ValueError])
async def test_a_class_made_at_run_time_is_caught_live_and_on_replay(house: Theatre, base: type[Exception]) -> None:
    kind = made(base)
    caught: list[str] = []
    fetch = raising(lambda: kind)

    @perdure.agent
    async def host() -> str:
        try:
            await fetch()
        except kind as error:
            caught.append(f"{type(error).__name__}: {error}")
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert len(caught) == 2
    assert caught[0] == caught[1]


async def test_a_class_made_inside_a_function_is_caught_live_and_on_replay(house: Theatre) -> None:
    caught: list[str] = []

    class Local(Exception):
        pass

    fetch = raising(lambda: Local)

    @perdure.agent
    async def host() -> str:
        try:
            await fetch()
        except Local as error:
            caught.append(str(error))
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert caught == ["404", "404"]


async def test_of_two_classes_of_one_name_each_is_caught_on_replay_where_it_was_live(house: Theatre) -> None:
    mine, another = made(), made()
    caught: list[str] = []
    fetch = raising(lambda: mine)

    @perdure.agent
    async def host() -> str:
        try:
            await fetch()
        except mine as error:
            caught.append(str(error))
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert another.__name__ == mine.__name__


@pytest.mark.parametrize("child_is_raised", [True, False])
async def test_of_a_made_class_and_one_of_its_name_that_derives_from_it_both_catch_on_replay(
    house: Theatre, child_is_raised: bool
) -> None:
    parent = made(LookupError, name="Twice")
    child = made(parent, name="Twice")
    raised = child if child_is_raised else parent
    caught: list[str] = []
    fetch = raising(lambda: raised)

    @perdure.agent
    async def host() -> str:
        try:
            await fetch()
        except raised as error:
            caught.append("the class" if isinstance(error, LookupError) else "no base")
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert caught == ["the class", "the class"]


async def test_a_made_class_that_has_the_name_of_another_class_of_its_module_is_caught_on_replay_as_it_was_live(
    house: Theatre,
) -> None:
    kind = made(KeyError, name="Oops")
    caught: list[str] = []
    fetch = raising(lambda: kind)

    @perdure.tool
    async def outer() -> None:
        await fetch()

    @perdure.agent
    async def host() -> str:
        for call in (fetch, outer):
            try:
                await call()
            except Oops:
                caught.append("the other class")
            except KeyError as error:
                caught.append("both" if isinstance(error, kind) else "the base")
        if len(house.actors) == 1:
            await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert caught == ["both"] * 4


def test_a_stand_in_that_is_recorded_keeps_what_the_class_derives_from() -> None:
    recorded = describe(made(KeyError, name="Oops")(404))
    gc.collect()
    again = describe(raise_again(recorded, tool="fetch"))

    stand_in = raise_again(again, tool="outer")

    assert (recorded.base, again.base) == ("KeyError", "KeyError")
    assert isinstance(stand_in, KeyError)
    assert not isinstance(stand_in, Oops)


async def test_an_error_that_passes_through_an_outer_tool_is_caught_there_and_outside(house: Theatre) -> None:
    kind = made()
    caught: list[str] = []
    fetch = raising(lambda: kind)

    @perdure.tool
    async def outer() -> None:
        try:
            await fetch()
        except kind:
            caught.append("inside")
            raise

    @perdure.agent
    async def host() -> str:
        try:
            await outer()
        except kind:
            caught.append("outside")
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
        return "caught"

    assert await replayed(house, host, caught) == "caught"
    assert caught == ["inside", "outside", "outside"]


def test_a_class_that_is_gone_is_caught_by_its_nearest_base_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded = describe(made(name="Gone")(404)).to_json()
    gc.collect()  # as a restart would

    with caplog.at_level(logging.WARNING, "perdure"):
        stand_in = raise_again(Error.from_json(recorded), tool="fetch")

    assert isinstance(stand_in, ServiceError)
    assert isinstance(stand_in, perdure.ToolError)
    assert (type(stand_in).__name__, stand_in.code, stand_in.type) == ("Gone", 404, f"{__name__}.Gone")
    assert [f"{__name__}.Gone is not to be found" in one for one in caplog.messages] == [True]


def test_a_class_that_is_made_again_before_the_record_is_read_catches_it(caplog: pytest.LogCaptureFixture) -> None:
    recorded = describe(made(name="MadeAgain")(404)).to_json()
    gc.collect()
    again = made(name="MadeAgain")

    with caplog.at_level(logging.WARNING, "perdure"):
        stand_in = raise_again(Error.from_json(recorded), tool="fetch")

    assert isinstance(stand_in, again)
    assert caplog.messages == []


def test_classes_that_cannot_be_joined_leave_it_to_what_the_recorded_one_derives_from() -> None:
    layouts = [type("Apart", (ServiceError, kind), {"__module__": __name__}) for kind in (OSError, SyntaxError)]
    recorded = Error(f"{__name__}.Apart", "404", "permanent", base=f"{__name__}.ServiceError")

    stand_in = raise_again(recorded, tool="fetch")

    assert isinstance(stand_in, ServiceError)
    assert isinstance(stand_in, perdure.ToolError)
    assert not isinstance(stand_in, tuple(layouts))
