"""Agents that are killed at every commit, for bugs that were planted in a copy of perdure.

Run as a program: prints what it found and ends with 3, or with 0 when it found nothing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import perdure
from perdure import Startable
from perdure.testing import World

FOUND = 3


@perdure.tool
async def send(to: str) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool(risk="medium", idempotent=True)
async def note(text: str) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool(risk="low")
async def look_up(name: str) -> str:
    return f"details of {name}"


@perdure.agent
async def sends() -> str:
    return await send("me")


@perdure.agent
async def notes() -> str:
    return await note("this")


@perdure.agent
async def race() -> list[str]:
    """Two branches that reach their calls in another order once their sleeps are on record."""

    async def branch(name: str, duration_s: float) -> str:
        await asyncio.sleep(0 if perdure.current().attempt > 1 else duration_s)
        return await look_up(name)

    found = await perdure.gather(branch("slow", 5), branch("fast", 1))
    await look_up("last")
    return list(found)


PLAYS: dict[str, Startable[[], Any]] = {"sends": sends, "notes": notes, "race": race}


def main(name: str) -> int:
    """Play one agent; the exit status."""
    world = World(tools={send: lambda to: f"sent to {to}", note: lambda text: text.upper()})
    try:
        asyncio.run(world.crash_everywhere(PLAYS[name]))
    except AssertionError as found:
        print(found)
        return FOUND
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
