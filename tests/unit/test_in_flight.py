"""The last words about calls: kept until they are told or needed no more."""

from __future__ import annotations

import asyncio

import pytest

from perdure.runtime.in_flight import InFlightCalls
from perdure.store.last_words import LastWord, WordKind

PAY = LastWord("task", "pay", 1)


@pytest.fixture
def calls() -> InFlightCalls:
    async def take_order() -> int:
        return 7

    return InFlightCalls(take_order)


async def _left(calls: InFlightCalls) -> asyncio.Future[str]:
    """A call whose caller has gone away."""
    running: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    calls.add("task", "pay", running)
    calls.leave(PAY, running, lambda _: (WordKind.COMPLETED, b"1"))
    return running


async def _return(running: asyncio.Future[str]) -> None:
    running.set_result("paid")
    await asyncio.sleep(0)


async def test_how_a_call_ended_that_its_caller_had_left_is_known(calls: InFlightCalls) -> None:
    running = await _left(calls)
    assert calls.holds("task", "pay")

    await _return(running)

    assert not calls.holds("task", "pay")
    word = await calls.word("task", "pay")
    assert word is not None
    assert (word.kind, word.body) == (WordKind.COMPLETED, b"1")


async def test_a_call_that_was_settled_while_it_ran_leaves_no_word(calls: InFlightCalls) -> None:
    running = await _left(calls)

    calls.forget("task", "pay")
    await _return(running)

    assert calls.words() == []


async def test_what_has_been_told_is_kept_no_longer(calls: InFlightCalls) -> None:
    calls.keep(PAY)
    calls.keep(PAY._replace(key="mail"))
    told = calls.words()
    calls.keep(PAY._replace(attempt=2))

    calls.told(told)

    assert [(word.key, word.attempt) for word in calls.words()] == [("pay", 2)]
