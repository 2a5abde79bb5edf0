"""A follower gets all that a task tells and streams, each thing once, in order, and ends with the task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

import perdure
from perdure.client import Client
from perdure.model.event import Event
from perdure.runtime.pulse import PulseBuffer
from perdure.settings import Settings
from tests.theatre import Theatre

TEXTS = [f"word {n}" for n in range(12)]
SETTINGS = Settings(sweep_s=0.5, poll_ms=500, pulse_batch=5)


class Beside(Client):
    """A client in the process of a worker, as an app is one."""

    house: Theatre

    @property
    def pulses(self) -> PulseBuffer | None:
        return self.house.actors[-1].worker.pulses


@pytest.fixture
def settings() -> Settings:
    """Packs of a few words, so that some are stored and some wait when the task ends."""
    return SETTINGS


async def talk(pause_s: float) -> str:
    for text in TEXTS:
        perdure.stream(text)
        await asyncio.sleep(pause_s)
    return "said"


@perdure.agent
async def talker(pause_s: float = 0.01, rest_s: float = 0.0) -> str:
    await perdure.event("began")
    await perdure.model(talk, pause_s)
    await perdure.event("between")
    said = await perdure.model(talk, pause_s)
    await asyncio.sleep(rest_s)
    return said


def client_of(house: Theatre, *, is_beside: bool) -> Client:
    if not is_beside:
        return house.client
    client = Beside(store=house.store)
    client.house = house
    return client


def texts(events: list[Event]) -> list[str]:
    return [str(one.payload["text"]) for one in events if one.kind == "ai_streaming"]


async def collected(following: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in following]


@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.parametrize("rest_s", [0.0, 2.0])
async def test_every_word_of_a_stream_is_told_once_and_before_the_end(
    house: Theatre, is_beside: bool, rest_s: float
) -> None:
    await house.hire(talker)
    client = client_of(house, is_beside=is_beside)
    task = await client.start(talker, rest_s=rest_s)

    told = await collected(task.follow())

    assert texts(told) == TEXTS * 2
    assert [one.seq for one in told if one.is_structural] == list(range(1, house.row(task).event_seq + 1))
    assert told[-1].kind == "task_completed"
    assert {type(one.kind) for one in told} == {str}


async def test_a_follower_beside_the_worker_hears_each_word_at_once_and_in_its_place(house: Theatre) -> None:
    await house.hire(talker)
    task = await client_of(house, is_beside=True).start(talker, pause_s=0.1)
    heard: list[tuple[float, str]] = []
    told: list[Event] = []

    async for event in task.follow():
        told.append(event)
        if event.kind == "ai_streaming":
            heard.append((house.loop.time(), str(event.payload["text"])))

    gaps = [after[0] - before[0] for before, after in pairwise(heard[1:12])]
    assert all(0.05 < gap < 0.15 for gap in gaps)
    assert [one.seq for one in told] == sorted(one.seq for one in told)


@perdure.agent
async def babbler(count: int) -> None:
    async def babble(count: int) -> None:
        for n in range(count):
            perdure.stream(str(n))
            await asyncio.sleep(0.01)

    await perdure.model(babble, count)


@pytest.mark.parametrize("is_beside", [True, False])
@pytest.mark.parametrize("late_s", [0.0, 0.135, 1.0, 6.0])
async def test_who_joins_in_the_middle_of_a_stream_gets_its_words_in_the_order_they_were_said(
    house: Theatre, is_beside: bool, late_s: float
) -> None:
    await house.hire(babbler)
    task = await client_of(house, is_beside=is_beside).start(babbler, 800)  # more packs than a page of the store has
    await asyncio.sleep(late_s)

    told = await collected(task.follow())

    assert texts(told) == [str(n) for n in range(800)]


async def test_who_comes_after_the_end_gets_the_stream_in_its_places(house: Theatre) -> None:
    await house.hire(talker)
    task = await house.client.start(talker)
    await task.result()

    told = await collected(task.follow())

    assert texts(told) == TEXTS * 2
    assert [one.seq for one in told] == sorted(one.seq for one in told)
    between = next(index for index, one in enumerate(told) if one.kind == "between")
    assert texts(told[:between]) == TEXTS
    # From the place where a reader was: what was streamed since then, and nothing twice.
    rest = await collected(task.follow(after=told[between].seq))
    assert texts(rest) == TEXTS
    assert [one for one in rest if one.is_structural] == [one for one in told[between + 1 :] if one.is_structural]


async def test_a_long_stream_is_read_in_pages(house: Theatre) -> None:
    @perdure.agent
    async def long() -> int:
        for number in range(300):
            await perdure.event("chapter", {"number": number})
            perdure.stream(f"word {number}")
        return 1

    await house.hire(long)
    task = await house.client.start(long)
    await task.result()

    told = await collected(task.follow())

    assert texts(told) == [f"word {number}" for number in range(300)]
    assert [one.seq for one in told] == sorted(one.seq for one in told)


async def test_after_a_crash_the_stream_of_the_new_attempt_is_told_behind_its_start(house: Theatre) -> None:
    reached = asyncio.Event()

    @perdure.agent
    async def restarted() -> str:
        if len(house.actors) == 1:
            perdure.stream("lost")
            reached.set()
            await asyncio.sleep(1e6)
        perdure.stream("kept")
        return "ok"

    first = await house.hire(restarted)
    task = await house.client.start(restarted)
    following = asyncio.ensure_future(collected(task.follow()))
    await reached.wait()
    house.kill(first)
    await house.hire(restarted)

    told = await following
    assert texts(told)[-1] == "kept"
    assert texts(told[[one.kind for one in told].index("task_recovered") :]) == ["kept"]
