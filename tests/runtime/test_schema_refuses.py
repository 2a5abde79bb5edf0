"""What only the schema refuses is an error of who gave it: no attempt ends by it, and no call is made again for it."""

from __future__ import annotations

import pytest

import perdure
from tests.theatre import Theatre


def plant(house: Theatre, table: str, moment: str, when: str) -> None:
    """Have the schema refuse rows that a door lets through."""
    house.execute(
        f"CREATE TRIGGER planted BEFORE {moment} ON {table} WHEN {when} BEGIN SELECT RAISE(ABORT, 'not this'); END"
    )


async def test_an_agent_gets_it_where_it_made_the_call_and_goes_on(house: Theatre) -> None:
    said: list[str] = []

    @perdure.agent
    async def teller() -> str:
        await perdure.event("fine")
        try:
            await perdure.event("forbidden")
        except perdure.RefusedBySchema as refused:
            said.append(str(refused))
        await perdure.event("fine")
        return "went on"

    plant(house, "events", "INSERT", "NEW.kind = 'forbidden'")
    await house.hire(teller)
    task = await house.client.start(teller)

    assert await task.result() == "went on"
    assert said == ["the schema refused the write: not this; nothing was written"]
    assert house.kinds(task).count("fine") == 2
    assert len(house.attempts(task)) == 1


@pytest.mark.parametrize("give", ["event", "message", "note"])
async def test_a_task_that_does_not_catch_it_fails_by_it_at_once(house: Theatre, give: str) -> None:
    @perdure.agent
    async def teller() -> None:
        match give:
            case "event":
                await perdure.event("forbidden")
            case "message":
                await perdure.message("tool", "forbidden")
            case _:
                await perdure.read("look", lambda: perdure.usage(input_tokens=666))

    match give:
        case "event":
            plant(house, "events", "INSERT", "NEW.kind = 'forbidden'")
        case "message":
            plant(house, "messages", "INSERT", "NEW.role = 'tool'")
        case _:
            plant(house, "steps", "INSERT", "NEW.prompt_tokens = 666")
    await house.hire(teller)
    task = await house.client.start(teller)

    with pytest.raises(perdure.TaskFailed, match="the schema refused the write: not this") as failed:
        await task.result()

    assert failed.value.error.type == "perdure.errors.RefusedBySchema"
    assert len(house.attempts(task)) == 1


async def test_a_call_whose_outcome_it_refuses_was_made_once_and_nobody_is_asked(house: Theatre) -> None:
    ran: list[str] = []

    @perdure.tool(risk="high")
    async def pay() -> str:
        ran.append("paid")
        return "r-1"

    @perdure.agent
    async def payer() -> str:
        try:
            return await pay()
        except perdure.RefusedBySchema as refused:
            return f"caught: {refused}"

    plant(house, "steps", "UPDATE", "NEW.outcome = 'completed' AND NEW.name = 'pay'")

    assert await house.play(payer) == "caught: the schema refused the write: not this; nothing was written"
    assert ran == ["paid"]


async def test_an_intent_that_it_refuses_is_no_call(house: Theatre) -> None:
    ran: list[str] = []

    @perdure.tool(risk="high")
    async def pay() -> None:
        ran.append("paid")

    @perdure.agent
    async def payer() -> str:
        try:
            await pay()
        except perdure.RefusedBySchema:
            return "caught"
        return "paid"

    plant(house, "steps", "INSERT", "NEW.name = 'pay'")

    assert await house.play(payer) == "caught"
    assert ran == []


async def test_a_result_that_it_refuses_fails_the_task(house: Theatre) -> None:
    @perdure.agent
    async def worker() -> str:
        return "done"

    plant(house, "tasks", "UPDATE", "NEW.status = 'completed'")
    await house.hire(worker)
    task = await house.client.start(worker)

    with pytest.raises(perdure.TaskFailed, match="the schema refused the write: not this"):
        await task.result()

    assert house.row(task).attempt == 1
