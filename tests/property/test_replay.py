"""Random agents, cut off anywhere and taken up again in another order of the loop: every call gets its own result,
nothing dangerous happens twice, and the end is that of the run that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

import perdure
from perdure.client import Question
from perdure.settings import Settings
from perdure.testing.actor import Actor
from perdure.testing.line import Death, Moment
from tests.random_agents import ShuffledLoop, World, make_agents, make_program
from tests.theatre import Theatre, theatre

AGENTS = 5000 if os.environ.get("PERDURE_LONG") else 220
BLOCK = 20
SETTINGS = Settings(sweep_s=0.5, poll_ms=500, permits=6, main_permits=1, waiting_in_memory=3, heartbeat_s=5, lease_s=30)


@dataclass
class Run:
    """What came of one run."""

    result: Any
    commits: int
    asked: int = 0
    world: World = field(default_factory=World)


def play(seed: int, *, order: int, deaths: list[Death], is_dismissed: bool = False) -> Run:
    """Run the agent of a seed: each death ends one worker, and the next one takes over."""
    loop = ShuffledLoop(order)
    try:
        return loop.run_until_complete(_play(seed, deaths, is_dismissed=is_dismissed))
    finally:
        loop.close()


async def _play(seed: int, deaths: list[Death], *, is_dismissed: bool) -> Run:
    world = World()
    host, child = make_agents(world)
    async with theatre(SETTINGS) as house:
        task = await house.client.start(host, make_program(seed))
        run = Run(None, 0, world=world)
        watching = asyncio.ensure_future(_answer(house, run))
        for death in deaths:
            actor = await house.hire(host, child, death=death)
            await house.until(lambda actor=actor: actor.process.is_held or house.row(task).status.is_terminal)  # type: ignore[misc]  # bound to this round
            if actor.process.is_held:
                house.kill(actor)
        last = await house.hire(host, child)
        if is_dismissed:
            last = await _dismiss_often(house, last, host, child)
        run.result = await task.result()
        run.commits = sum(len(actor.line.commits) for actor in house.actors)
        watching.cancel()
        await asyncio.wait({watching})
    return run


async def _dismiss_often(house: Theatre, actor: Actor, *agents: Any) -> Actor:
    chance = random.Random(len(agents))
    for _ in range(3):
        await asyncio.sleep(chance.random())
        await house.dismiss(actor)
        actor = await house.hire(*agents)
    return actor


async def _answer(house: Theatre, run: Run) -> None:
    """Somebody who looks into the ledger and tells the truth."""
    while True:
        for question in await house.client.questions():
            run.asked += 1
            await _tell_the_truth(question, run.world)
        await asyncio.sleep(0.1)


async def _tell_the_truth(question: Question, world: World) -> None:
    if question.kind != "step_in_doubt":
        world.wrong.append(f"asked without need: {question.text}")
        await question.deny("no need", by="the test")
        return
    place = (question.task_id, question.row.step_key)
    if not world.effects[place]:
        await question.resolve(perdure.not_happened(), by="the test")
    elif question.tool == "broken":
        await question.resolve(perdure.unknown(), by="the test")
    else:
        await question.resolve(perdure.happened(world.results[place]), by="the test")


def check(seed: int) -> None:
    """Play one agent undisturbed, then cut off twice and handed over in another order."""
    chance = random.Random(seed)
    calm = play(seed, order=0, deaths=[])
    assert calm.world.wrong == []
    deaths = [
        Death(chance.randint(1, max(1, calm.commits)), chance.choice(list(Moment))) for _ in range(chance.randint(1, 3))
    ]
    cut = play(seed, order=seed + 1, deaths=deaths, is_dismissed=chance.random() < 0.3)
    assert cut.world.wrong == []
    assert cut.result == calm.result


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, AGENTS, BLOCK))
def test_random_agents_cut_off_anywhere_end_as_if_nothing_had_been(first: int) -> None:
    for seed in range(first, min(first + BLOCK, AGENTS)):
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"agent {seed}: {make_program(seed)}")
            raise
