"""What a person answers or somebody sends is of the type that the agent wants, or is refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest

import perdure
from tests.theatre import Theatre


@pytest.mark.parametrize(
    ("wanted", "wrong", "right"),
    [(bool, "no", False), (int, True, 3), (float, "2.5", 2.5), (str, 7, "7"), (dict, ["a"], {"a": 1})],
)
async def test_an_answer_of_another_type_is_refused_and_the_question_stays_open(
    house: Theatre, wanted: Any, wrong: Any, right: Any
) -> None:
    @perdure.agent
    async def host() -> Any:
        return await perdure.ask("What is it?", type=wanted)

    await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    with pytest.raises(perdure.BadInput, match=rf"Q1 wants an? {wanted.__name__}, not ") as refused:
        await asked.answer(wrong, by="ana")
    await asked.answer(right, by="ben")

    assert refused.value.field == "answer"
    assert await task.result() == right


async def test_an_answer_that_only_the_agents_own_type_can_judge_is_asked_for_again(house: Theatre) -> None:
    class Colour(StrEnum):
        RED = "red"
        BLUE = "blue"

    @perdure.agent
    async def host() -> str:
        return (await perdure.ask("Which colour?", type=Colour, to="ana")).name

    await house.hire(host)
    task = await house.client.start(host)
    first = await house.question()
    await first.answer("green", by="ana")
    second = await house.question()
    await second.answer("blue", by="ana")

    assert await task.result() == "BLUE"
    assert (second.row.to, "Which colour?" in second.text, '"green"' in second.text) == ("ana", True, True)
    assert house.kinds(task).count("answer_voided") == 1


@pytest.mark.parametrize(
    ("wanted", "wrong", "right", "expected"),
    [
        (int | None, True, None, None),
        (Annotated[int, "pages"], True, 3, 3),
        (Path, 7, "logs/today", Path("logs/today")),
        (datetime, "tomorrow", "2026-01-31T09:00:00Z", datetime(2026, 1, 31, 9, tzinfo=UTC)),
        (UUID, "5f0e", "5f0e8b9c6f3d4c389a550d1a0e6f7b11", UUID("5f0e8b9c6f3d4c389a550d1a0e6f7b11")),
        (Decimal, "a lot", "1.50", Decimal("1.50")),
    ],
)
async def test_an_answer_becomes_what_was_asked_for_or_is_refused_by_the_name_of_its_type(
    house: Theatre, wanted: Any, wrong: Any, right: Any, expected: Any
) -> None:
    got: list[Any] = []

    @perdure.agent
    async def host() -> str:
        got.append(await perdure.ask("What is it?", type=wanted))
        await perdure.sleep(1)
        return repr(got[-1])

    await house.hire(host)
    task = await house.client.start(host)
    asked = await house.question()
    with pytest.raises(perdure.BadInput, match=r"Q1 wants an? (int|Path|datetime|UUID|Decimal)\b"):
        await asked.answer(wrong, by="ana")
    await asked.answer(right, by="ana")

    assert await task.result() == repr(expected)
    assert house.kinds(task).count("answer_voided") == 0
