"""How to test agents: in memory, in virtual time, with people and payments played."""

from __future__ import annotations

from assistant import search
from pay import refund, support

from perdure.testing import World


async def test_outside_a_task_a_tool_is_the_function() -> None:
    assert len(await search("owls")) == 2


def world(answer: str) -> World:
    """A world where the customer is entitled and finance answers like this."""
    return World(tools={refund: lambda order, amount: "r-1"}, answers={"entitled": True, refund: answer})


async def test_a_no_is_respected() -> None:
    played = await world("deny").play(support, "o-7")

    assert played.result.startswith("refused")
    assert played.calls(refund) == []


async def test_a_yes_pays_once() -> None:
    played = await world("approve").play(support, "o-7")

    assert played.result == "r-1"
    assert len(played.calls(refund)) == 1


async def test_killed_at_every_commit_it_still_pays_once() -> None:
    assert len(await world("approve").crash_everywhere(support, "o-7")) > 10
