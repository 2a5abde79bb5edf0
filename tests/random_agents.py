"""Random agents built out of everything that makes the order of calls uncertain, and a loop that mixes it further.

A program is data made from a seed, so that the same agent can be run twice: once undisturbed, and once cut off and
taken up again while the loop runs its callbacks in another order.
"""

from __future__ import annotations

import asyncio
import collections
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import perdure
from perdure import ambient
from perdure.testing.virtual_loop import VirtualLoop

Program = tuple[Any, ...]


class ShuffledLoop(VirtualLoop):
    """Virtual time, and callbacks that are ready in the same turn run in an order of chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        super().__init__(quiet_after_s=1.1)

    def _run_once(self) -> None:
        ready: collections.deque[Any] = self._ready  # type: ignore[has-type]  # the base class has it
        if len(ready) > 1:
            mixed = list(ready)
            self._chance.shuffle(mixed)
            self._ready = collections.deque(mixed)
        super()._run_once()  # type: ignore[misc]  # so does this


def make_program(seed: int) -> Program:
    """A random program."""
    chance = random.Random(seed)
    return ("seq", *(_make(chance, 3) for _ in range(chance.randint(2, 4))))


def _make(chance: random.Random, depth: int) -> Program:
    if depth == 0 or chance.random() < 0.3:
        return _make_leaf(chance)
    kind = chance.choice(["seq", "gather", "asyncio_gather", "group", "completed", "queue", "nested", "child", "guard"])
    if kind == "queue":
        items = [chance.randint(0, 9) for _ in range(chance.randint(2, 6))]
        return ("queue", chance.choice(["low", "high"]), chance.randint(1, 3), *items)
    if kind == "guard":
        return ("guard", chance.randint(0, 99))
    count = 1 if kind == "child" else chance.randint(1, 3)
    return (kind, *(_make(chance, depth - 1) for _ in range(count)))


def _make_leaf(chance: random.Random) -> Program:
    # Few inputs, so that equal calls come up in different branches.
    kind = chance.choice(["low", "low", "medium", "high", "high", "thread", "flaky", "sleep", "turns"])
    return (kind, chance.randint(0, 5))


def outcome_of(name: str, n: int) -> str:
    """What a call gives: it follows from its name and input, so that a result given to another call is seen."""
    return f"{name}({n})"


@dataclass
class World:
    """What the tools have done, over all workers, and what went wrong."""

    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    results: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: set[tuple[str, str]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def act(self, name: str, n: int) -> str:
        """One effect of a call above medium risk."""
        place = self.place()
        with self._mutex:
            self.effects[place] += 1
            self.results[place] = outcome_of(name, n)
            if self.effects[place] > 1:
                self.wrong.append(f"{name}({n}) happened {self.effects[place]} times")
        return outcome_of(name, n)

    def place(self) -> tuple[str, str]:
        """Which call of which task this is."""
        scope = ambient.require("a tool of this world")
        return perdure.current().task_id, scope.parent_key

    def fails_now(self) -> bool:
        """True the first time a flaky call is made."""
        place = self.place()
        if place in self.failed:
            return False
        self.failed.add(place)
        return True

    def check(self, name: str, n: int, got: object) -> object:
        """Whether a call got its own result."""
        if got != outcome_of(name, n):
            self.wrong.append(f"{name}({n}) was given {got!r}")
        return got


def make_agents(world: World) -> tuple[Any, Any]:
    """The agents that run programs, over tools whose effects are counted."""
    tools = _make_tools(world)

    async def run(program: Program) -> Any:
        kind, *parts = program
        match kind:
            case "seq":
                return [await run(part) for part in parts]
            case "gather":
                return await perdure.gather(*(run(part) for part in parts))
            case "asyncio_gather":
                return list(await asyncio.gather(*(run(part) for part in parts)))
            case "group":
                async with asyncio.TaskGroup() as group:
                    made = [group.create_task(run(part)) for part in parts]
                return [one.result() for one in made]
            case "completed":
                return await _as_completed(run, parts)
            case "queue":
                return await _queue(tools, *parts)
            case "nested":
                return await tools["nested"](list(parts))
            case "child":
                return await child(list(parts))
            case "guard":
                return await _guard(tools, parts[0])
            case "thread":
                return world.check("thread", parts[0], await asyncio.to_thread(tools["thread"], parts[0]))
            case "sleep":
                await perdure.sleep(parts[0])
                return "slept"
            case "turns":
                for _ in range(parts[0]):
                    await asyncio.sleep(0)
                return "turned"
            case _:
                return world.check(kind, parts[0], await tools[kind](parts[0]))

    @perdure.tool(risk="low")
    async def nested(programs: list[Any]) -> list[Any]:
        found = [await run(_as_program(one)) for one in programs]
        if len(programs) > 1 and world.fails_now():
            raise ConnectionError("after all that is inside was done")
        return found

    @perdure.agent
    async def child(programs: list[Any]) -> list[Any]:
        return [await run(_as_program(one)) for one in programs]

    @perdure.agent
    async def host(program: list[Any]) -> Any:
        return await run(_as_program(program))

    tools["nested"] = nested
    return host, child


def _make_tools(world: World) -> dict[str, Any]:
    @perdure.tool(risk="low")
    async def low(n: int) -> str:
        await _turns(n)
        return outcome_of("low", n)

    @perdure.tool(risk="medium", idempotent=True)
    async def medium(n: int) -> str:
        await _turns(n)
        return outcome_of("medium", n)

    @perdure.tool
    async def high(n: int) -> str:
        await _turns(n)
        result = world.act("high", n)
        await _turns(n)
        return result

    @perdure.tool
    def thread(n: int) -> str:
        return world.act("thread", n)

    @perdure.tool(risk="low")
    async def flaky(n: int) -> str:
        await _turns(n)
        if world.fails_now():
            raise ConnectionError("not yet")
        return outcome_of("flaky", n)

    @perdure.tool
    async def broken(n: int) -> str:
        world.act("broken", n)
        raise ValueError(f"broken {n}")

    return {"low": low, "medium": medium, "high": high, "thread": thread, "flaky": flaky, "broken": broken}


async def _turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def _as_completed(run: Callable[[Program], Awaitable[Any]], parts: list[Any]) -> list[Any]:
    async def numbered(number: int, part: Program) -> tuple[int, Any]:
        return number, await run(part)

    found = {}
    for one in asyncio.as_completed([numbered(number, part) for number, part in enumerate(parts)]):
        number, value = await one
        found[number] = value
    return [found[number] for number in sorted(found)]


async def _queue(tools: dict[str, Any], kind: str, workers: int, *items: int) -> list[str]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for item in items:
        queue.put_nowait(item)
    found: list[str] = []

    async def work() -> None:
        while not queue.empty():
            item = queue.get_nowait()
            found.append(await tools[kind](item))
            await asyncio.sleep(0)

    await asyncio.gather(*(work() for _ in range(workers)))
    return sorted(found)


async def _guard(tools: dict[str, Any], n: int) -> str:
    try:
        return str(await tools["broken"](n))
    except (ValueError, perdure.OutcomeUnknown):  # the latter where a person gave up finding out
        return f"caught {n}"


def _as_program(value: Any) -> Program:
    """A program that has been JSON."""
    return tuple(_as_program(part) if isinstance(part, list | tuple) else part for part in value)
