"""The world outside the store: what tools do there, and what people can find out about it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random

from perdure.testing.virtual_loop import Process


class Outside:
    """A ledger of effects by the number of the call, and services that are slow or out of order."""

    def __init__(self, random: Random) -> None:
        self.paid: Counter[int] = Counter()
        self.tokens: dict[int, set[str]] = defaultdict(set)
        self._random = random
        self._inside: dict[int, list[Process | None]] = defaultdict(list)
        self._asked: Counter[int] = Counter()

    async def look_up(self, number: int) -> int:
        """A read that may fail twice before it works."""
        self._asked[number] += 1
        await asyncio.sleep(self._random.choice((0.0, 0.1, 2.0)))
        if number % 5 == 0 and self._asked[number] <= 2:
            raise TimeoutError("the service does not answer")
        return number * 3

    async def note(self, number: int, token: str) -> str:
        """An idempotent write: one token, one effect."""
        await asyncio.sleep(self._random.choice((0.0, 0.5)))
        self.tokens[number].add(token)
        return f"n{number}"

    async def pay(self, number: int, token: str) -> str:
        """A payment. The money has gone at the end of it, and the answer may take longer than anybody waits."""
        self._inside[number].append(Process.current())
        self._asked[number] += 1
        try:
            is_slow = number % 9 == 0 and self._asked[number] == 1
            await asyncio.sleep(25 if is_slow else self._random.choice((0.0, 0.2, 5.0)))
            self.paid[number] += 1
            self.tokens[number].add(token)
            await asyncio.sleep(self._random.choice((0.0, 0.2)))
        finally:
            self._inside[number].remove(Process.current())
        return f"p{number}"

    def standing_inside(self, number: int) -> list[Process]:
        """Processes in the middle of a payment: nobody can tell yet what becomes of it."""
        return [process for process in self._inside[number] if process is not None]
