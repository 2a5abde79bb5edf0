"""Agents that are drawn at random: a program is data, one agent runs any of them, and what must come of it is known.

Every call has a number of its own, so that a result given to another call shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

import perdure
from tests.simulation.outside import Outside

Program = list[list[Any]]


@perdure.tool(risk="low")
async def look_up(number: int) -> int:
    return await perdure.deps(Outside).look_up(number)


@perdure.tool(risk="low")
async def fail(number: int) -> int:
    raise ValueError(f"{number} is not there")


@perdure.tool(risk="medium", idempotent=True)
async def note(number: int) -> str:
    return await perdure.deps(Outside).note(number, perdure.current().token)


@perdure.tool(approve=lambda number: number % 4 == 0, to="cashier", timeout=20)
async def pay(number: int) -> str:
    return await perdure.deps(Outside).pay(number, perdure.current().token)


@perdure.agent
async def actor(program: Program) -> list[Any]:
    return [await _act(step) for step in program]


async def _act(step: list[Any]) -> Any:
    match step:
        case ["look_up", number]:
            return await look_up(number)
        case ["fail", number]:
            try:
                return await fail(number)
            except ValueError as error:
                return str(error)
        case ["note", number]:
            return await note(number)
        case ["pay", number]:
            return await pay(number)
        case ["sleep", duration_s]:
            await perdure.sleep(duration_s)
        case ["child", program]:
            return await actor(program)
        case ["all", program]:
            return await perdure.gather(*(_act(one) for one in program))
        case ["ask", number]:
            return await perdure.ask(f"What is {number}?", type=int)
        case ["receive", number]:
            return await perdure.receive(f"m{number}", type=int)
        case ["say", number]:
            await perdure.message("user", number)
        case ["save", number]:
            await perdure.checkpoint({"number": number})
        case ["tell", number]:
            await perdure.event("told", {"number": number})
        case ["clock"]:
            return (await perdure.now()).year >= 2026 and (await perdure.uuid()).version == 4
        case _:
            raise AssertionError(step)
    return None


def expected(program: Program) -> list[Any]:
    """What the agent must return, whatever happens to its workers."""
    return [_expected(step) for step in program]


def _expected(step: list[Any]) -> Any:
    match step:
        case ["look_up", number]:
            return number * 3
        case ["fail", number]:
            return f"{number} is not there"
        case ["note", number]:
            return f"n{number}"
        case ["pay", number]:
            return f"p{number}"
        case ["child" | "all", program]:
            return expected(program)
        case ["ask", number]:
            return answer_to(number)
        case ["receive", number]:
            return number
        case ["clock"]:
            return True
        case _:
            return None


def answer_to(number: int) -> int:
    """What a person answers to the question of this number."""
    return number * 7


def numbers(program: Program, kind: str) -> list[int]:
    """The numbers of all steps of a kind, in the program and below it."""
    return [step[1] for step in walk(program) if step[0] == kind]


def own_numbers(program: Program, kind: str) -> list[int]:
    """The same without those of children."""
    return [step[1] for step in walk(program, into_children=False) if step[0] == kind]


def walk(program: Program, *, into_children: bool = True) -> Iterator[list[Any]]:
    """Every step, those below others too."""
    for step in program:
        yield step
        if step[0] == "all" or (step[0] == "child" and into_children):
            yield from walk(step[1], into_children=into_children)


class Author:
    """Writes programs."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = itertools.count(1)

    def write(self, *, depth: int = 0) -> Program:
        """A program with children and branches, but not too many."""
        return [self._step(depth) for _ in range(self._random.randint(2, 5 - depth))]

    def _step(self, depth: int) -> list[Any]:
        kinds = ["look_up", "look_up", "pay", "pay", "note", "fail", "sleep", "say", "save", "tell", "clock"]
        kinds += [] if depth == 0 else ["look_up"]
        kinds += ["ask", "receive"] if depth == 0 else []
        kinds += ["child", "all", "all"] if depth < 2 else []
        match self._random.choice(kinds):
            case "child":
                return ["child", self.write(depth=depth + 1)]
            case "all":
                # Branches of one kind each: what waits must not keep the others from going on.
                return ["all", [self._step(depth + 1) for _ in range(self._random.randint(2, 3))]]
            case "sleep":
                return ["sleep", self._random.choice((1, 20, 300))]
            case "clock":
                return ["clock"]
            case kind:
                return [kind, next(self._numbers)]
