"""`crash_everywhere`: every agent of the usual shapes survives it, and what does not survive is found and named."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import perdure
from perdure import Startable
from perdure.testing import World


@perdure.tool(risk="low")
async def look_up(order: str) -> str:
    return f"details of {order}"


@perdure.tool(approve=True, to="finance")
async def refund(order: str, amount: int) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool
async def send(to: str) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool(risk="medium", idempotent=True)
async def note(text: str) -> str:
    raise AssertionError("the real tool must not run")


async def ask_the_bank(_doubt: perdure.Doubt) -> perdure.Verdict[str]:
    raise AssertionError("the real bank must not be asked")


@perdure.tool(reconcile=ask_the_bank)
async def transfer(amount: int) -> str:
    raise AssertionError("the real tool must not run")


def world() -> World:
    return World(
        tools={
            refund: lambda order, amount: f"r-{order}-{amount}",
            send: lambda to: f"m-{to}",
            note: lambda text: text.upper(),
            transfer: lambda amount: f"t-{amount}",
        },
        answers={"entitled": True, refund: "approve"},
    )


@perdure.agent
async def support(order: str) -> str:
    if not await perdure.ask(f"Is the customer of {order} entitled?", type=bool):
        return "not entitled"
    return await refund(order, 250)


@perdure.agent
async def parallel(count: int) -> list[str]:
    return [*await perdure.gather(*(send(str(number)) for number in range(count))), await note("done")]


@perdure.agent
async def child(number: int) -> str:
    await perdure.sleep(3600)
    return await send(str(number))


@perdure.agent
async def parent(count: int) -> list[str]:
    found = await perdure.gather(*(child(number) for number in range(count)))
    await perdure.message("assistant", found)
    await perdure.checkpoint({"found": len(found)})
    await perdure.event("counted", {"found": len(found)})
    return found


@perdure.agent
async def talkative(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        reply = await perdure.model(answer, [{"role": "user", "content": str(number)}])
        perdure.stream(reply["content"])
        total += len(await look_up(reply["content"]))
    seed = (await perdure.random()).random()
    return total if 0 <= seed < 1 else -1


async def answer(messages: list[dict[str, str]]) -> dict[str, str]:
    return {"role": "assistant", "content": f"echo {messages[-1]['content']}"}


@perdure.agent
async def bank() -> str:
    return f"{await transfer(1)} {await transfer(2)}"


@perdure.agent
async def frugal(order: str) -> str:
    return f"{await look_up(order)}, {await note(order)}"


@perdure.agent(budget=perdure.Budget(tool_calls=4))
async def sharing() -> list[str]:
    return list(await perdure.gather(frugal("a"), frugal("b")))


@perdure.agent(risk="high")
async def declared_high() -> str:
    return await send("me")


@perdure.agent
async def failing() -> str:
    await send("me")
    raise ValueError("that is all")


@perdure.agent
def blocking(count: int) -> list[str]:
    # Inside a task a synchronous agent calls tools through the loop it does not see.
    return [perdure_call(number) for number in range(count)]


@perdure.tool
def ring(number: int) -> str:
    raise AssertionError("the real tool must not run")


def perdure_call(number: int) -> str:
    return ring(number)


@pytest.mark.parametrize(
    ("agent", "argument", "result"),
    [
        (support, "o-7", "r-o-7-250"),
        (parallel, 3, ["m-0", "m-1", "m-2", "DONE"]),
        (parent, 2, ["m-0", "m-1"]),
        (talkative, 3, 3 * len("details of echo 0")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_killed_at_every_commit_it_ends_the_same(
    agent: Startable[[Any], Any], argument: object, result: object
) -> None:
    plays = await world().crash_everywhere(agent, argument)

    assert len(plays) >= 10
    assert [play.result for play in plays] == [result] * len(plays)
    assert plays[0].death.startswith("killed before commit 1 of ")


async def test_a_call_in_doubt_is_settled_by_the_world_where_the_tool_has_reconcile() -> None:
    plays = await world().crash_everywhere(bank)

    assert all(play.calls(transfer) == [{"amount": 1}, {"amount": 2}] for play in plays)


async def test_a_task_that_asks_before_it_resumes_is_told_to_go_on() -> None:
    assert {play.result for play in await world().crash_everywhere(declared_high)} == {"m-me"}


async def test_a_budget_with_room_for_each_call_once_has_it_wherever_a_crash_comes() -> None:
    plays = await world().crash_everywhere(sharing)

    assert len(plays) > 10
    assert [play.result for play in plays] == [["details of a, A", "details of b, B"]] * len(plays)


async def test_a_failure_stays_the_same_failure() -> None:
    plays = await world().crash_everywhere(failing)

    assert {str(play.error) for play in plays} == {"ValueError: that is all"}
    assert all(len(play.calls(send)) == 1 for play in plays)


async def test_a_synchronous_agent_dies_and_goes_on_too() -> None:
    plays = await World(tools={ring: lambda number: f"rang {number}"}).crash_everywhere(blocking, 2)

    assert [play.result for play in plays] == [["rang 0", "rang 1"]] * len(plays)


async def test_an_open_question_is_the_same_end_everywhere() -> None:
    plays = await World(tools={refund: lambda order, amount: "r"}).crash_everywhere(support, "o-7")

    assert {play.questions for play in plays} == {("Is the customer of o-7 entitled?",)}


async def test_an_outcome_that_changes_after_a_crash_names_the_commit() -> None:
    count = itertools.count()

    @perdure.agent
    async def forgetful() -> str:
        life = next(count)  # Memory that no crash survives.
        await look_up("o")
        return f"life {life}"

    with pytest.raises(AssertionError, match=r"killed before commit 1 of \d+ \(.*\): the outcome was") as found:
        await world().crash_everywhere(forgetful)

    assert "without a crash" in str(found.value)


async def test_a_call_that_a_crash_makes_twice_is_found() -> None:
    lives = itertools.count()

    @perdure.agent
    async def renames() -> str:
        life = next(lives)  # Another input is another call: perdure cannot know that they are meant to be one.
        await send(f"me, life {life or 'one'}")
        await look_up("o")
        return "ok"

    with pytest.raises(AssertionError, match="commit"):
        await world().crash_everywhere(renames)


async def test_what_a_killed_worker_was_streaming_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def llm() -> str:
        for number in range(5):
            perdure.stream(f"word {number}")
            await asyncio.sleep(0.3)
        return "said"

    @perdure.agent
    async def talks() -> str:
        await look_up("o")
        return await perdure.model(llm)

    plays = await world().crash_everywhere(talks)

    assert {play.result for play in plays} == {"said"}
    assert caplog.messages == []


async def test_a_stand_in_that_never_returned_did_not_happen() -> None:
    effects = []

    async def slow(to: str) -> str:
        await asyncio.sleep(5)
        effects.append(to)
        return to

    @perdure.agent
    async def beside() -> list[str]:
        return list(await perdure.gather(send("slow"), look_up_later()))

    async def look_up_later() -> str:
        await perdure.sleep(2)
        return await look_up("o")

    plays = await World(tools={send: slow}).crash_everywhere(beside)

    assert all(play.calls(send)[-1] == {"to": "slow"} for play in plays)
    assert len(effects) == 1 + len(plays)
