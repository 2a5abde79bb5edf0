"""Tools of a test that can be held inside a call, and what they really did."""

from __future__ import annotations

import asyncio

import perdure
from perdure.testing.actor import Actor
from tests.theatre import Theatre


class Ledger:
    """What tools really did, and where they can be held."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.tokens: list[str] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    def note(self, what: str) -> None:
        """One effect."""
        self.done.append(what)
        self.tokens.append(perdure.current().token)

    async def hold(self) -> None:
        """Stand still inside a call."""
        self.reached.set()
        await self.go_on.wait()


async def kill_inside(house: Theatre, actor: Actor, ledger: Ledger) -> None:
    """Kill a worker while a tool is held, and let tools run through from then on."""
    await ledger.reached.wait()
    house.kill(actor)
    ledger.go_on.set()
