"""What agent code must not give is refused at the door, by a BadInput that names it, and the attempt goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

import perdure
from perdure.client import Client
from perdure.errors import BadInput
from tests.nasty import BrokenZone
from tests.theatre import Theatre

HALF = "\ud800"  # of a surrogate pair
BAD: list[tuple[str, Callable[[], Any]]] = [
    *[("role", lambda role=role: perdure.message(role, "hi")) for role in (None, 1, HALF, "bot", ["user"])],
    *[("kind", lambda kind=kind: perdure.event(kind, {})) for kind in (None, float("nan"), 2**70, HALF, "a\0")],
    *[("question", lambda text=text: perdure.ask(text)) for text in (None, 1, HALF, "a\0")],
    *[("to", lambda to=to: perdure.ask("Which?", to=to)) for to in (None, 1, HALF)],
    *[("name", lambda name=name: perdure.receive(name)) for name in (None, "", 2**70, HALF, "a" * 513)],
    *[("name", lambda name=name: perdure.step(name, lambda: 1)) for name in (None, "", HALF, "a\0")],
]
MOST = 2**63 - 1
NO_NUMBERS: list[Any] = [float("nan"), float("inf"), -1, 2**70, None, "1", 1j, Decimal("nan")]


@pytest.mark.parametrize(("field", "give"), BAD)
async def test_what_no_column_can_hold_is_refused_and_costs_no_attempt(
    house: Theatre, field: str, give: Callable[[], Any]
) -> None:
    refused: list[BadInput] = []

    @perdure.agent
    async def careless() -> str:
        try:
            await give()
        except BadInput as error:
            refused.append(error)
        return "went on"

    assert await house.play(careless) == "went on"
    assert [one.field for one in refused] == [field]


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cost"])
async def test_usage_that_is_no_number_is_refused_before_it_is_counted(house: Theatre, name: str) -> None:
    refused: list[str] = []

    @perdure.agent
    async def spender() -> None:
        async def ask_model() -> str:
            perdure.usage(**{name: 2})
            for value in NO_NUMBERS:
                try:
                    perdure.usage(**{name: value})
                except BadInput as error:
                    refused.append(error.field)
            return "text"

        await perdure.model(ask_model)

    await house.play(spender)
    (task,) = house.every_task()
    step = next(one for one in house.steps(house.client.task(task.id)) if one.key)

    assert refused == [name] * len(NO_NUMBERS)
    assert step.prompt_tokens + step.completion_tokens + step.cost == 2
    assert task.attempt == 1


async def test_what_a_result_says_of_its_usage_never_outgrows_a_column(house: Theatre) -> None:
    @perdure.agent
    async def spender() -> str:
        async def ask_model(n: int) -> dict[str, Any]:
            return {"n": n, "usage": {"input_tokens": MOST, "output_tokens": MOST}}

        for n in range(3):
            await perdure.model(ask_model, n)
        return "went on"

    assert await house.play(spender) == "went on"


def test_a_tool_that_asks_nobody_by_name_is_no_tool() -> None:
    async def pay() -> None: ...

    with pytest.raises(BadInput, match="to is None"):
        perdure.tool(to=None)(pay)  # type: ignore[call-overload]  # as an unchecked caller may


# -- from outside of a task -----------------------------------------------------------------------


@perdure.agent
async def echo(value: object = None) -> object:
    return value


DOORS: list[tuple[str, Callable[[Client, Any], Any], list[object]]] = [
    ("agent", lambda client, bad: client.start(bad), [HALF, "", "a\0", None, 1]),
    ("key", lambda client, bad: client.start(echo.options(key=bad)), [HALF, "", 1, []]),
    ("item", lambda client, bad: client.start(echo.options(item=bad)), [HALF, 1, b"x"]),
    ("tags", lambda client, bad: client.start(echo.options(tags=bad)), ["x", 1]),
    ("budget", lambda client, bad: client.start(echo.options(budget=bad)), ["x", 1]),
    ("calls", lambda client, bad: client.start_all([bad]), [None, "x", echo]),
    ("task", lambda client, bad: client.task(bad).info(), [HALF, "", None, 2**70, []]),
    ("session", lambda client, bad: client.tasks(session=bad), [HALF, 2**70, []]),
    ("limit", lambda client, bad: client.tasks(limit=bad), ["x", None, 1.5]),
    ("after", lambda client, bad: client.tasks(after=bad), ["", HALF, 1, b"x"]),
    ("session", lambda client, bad: client.questions(session=bad), [HALF, 2**70]),
    ("to", lambda client, bad: client.questions(to=bad), [HALF, 2**70]),
    ("limit", lambda client, bad: client.questions(limit=bad), ["x", None, 1.5]),
    ("after", lambda client, bad: client.questions(after=bad), ["", HALF, "-1", "1" * 30, 1, b"x"]),
    ("question", lambda client, bad: client.question(bad), [None, 1, HALF, b"x"]),
    ("limit", lambda client, bad: client.task("T").steps(limit=bad), ["x", None, 1.5, 2**70]),
    ("after", lambda client, bad: client.task("T").steps(after=bad), ["", "x", 2**70, []]),
    ("limit", lambda client, bad: client.task("T").messages(limit=bad), ["x", None, 1.5, 2**70]),
    ("after", lambda client, bad: anext(client.task("T").follow(after=bad)), ["x", None, 1.5, 2**70]),
    ("step", lambda client, bad: client.task("T").settle(bad, perdure.not_happened(), by="ana"), ["x", None, 10**30]),
]


@pytest.mark.parametrize(
    ("field", "knock", "bad"), [(field, knock, bad) for field, knock, values in DOORS for bad in values]
)
async def test_a_door_refuses_what_it_cannot_take_by_its_name(
    house: Theatre, field: str, knock: Callable[[Client, Any], Any], bad: object
) -> None:
    with pytest.raises(BadInput) as refused:
        await knock(house.client, bad)

    assert refused.value.field == field


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_a_dangerous_call_whose_outcome_cannot_be_written_has_one_on_record(house: Theatre, how: str) -> None:
    when = datetime(2026, 1, 1, tzinfo=BrokenZone())

    @perdure.tool
    async def pay() -> datetime:
        if how == "raises":
            raise ValueError(when)
        return when

    @perdure.agent
    async def buyer() -> str:
        try:
            await pay()
        except (perdure.NotSerializable, ValueError) as error:
            return str(error)
        return "paid"

    said = await house.play(buyer)

    assert said == (
        "ValueError"
        if how == "raises"
        else "the result of pay cannot be stored: writing the datetime raised RuntimeError; pass text in its place"
    )
    assert await house.client.questions() == []
