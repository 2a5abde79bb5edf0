"""What a person answers or somebody sends is of the type that the agent wants, or is refused by its name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypedDict
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


async def test_an_answer_with_a_field_that_its_class_has_not_is_asked_for_again_and_told_all_that_is_wrong(
    house: Theatre,
) -> None:
    @dataclass
    class Sample:
        n: int
        colour: str = "red"

        def __post_init__(self) -> None:
            if self.n <= 0:
                raise ValueError("n must be positive")

    @perdure.agent
    async def host() -> str:
        return str(await perdure.ask("Which?", type=Sample))

    await house.hire(host)
    task = await house.client.start(host)
    texts, evidence = [], []
    for said in ({"color": "blue"}, {"n": 0}, {"n": 1, "colour": "blue"}):
        asked = await house.question()
        texts.append(asked.text)
        evidence.append(asked.evidence)
        await asked.answer(said, by="ana")

    unknown = 'not {"color": "blue"}: Sample has no field color: it has n, colour; n is missing'
    assert "colour='blue'" in await task.result()
    assert texts == [
        "Which?",
        f"Which? (Q1 was answered, but it wants a Sample, {unknown})",
        'Which? (Q2 was answered, but it wants a Sample, not {"n": 0}: n must be positive)',
    ]
    assert evidence == [{"wants": "Sample", "made_of": '{"n": int, "colour": str}'}] * 3


async def test_a_reason_holds_no_secret(house: Theatre) -> None:
    @dataclass
    class Code:
        digits: str

        def __post_init__(self) -> None:
            raise ValueError(f"{self.digits} is no code")

    @perdure.tool(risk="low", secret=["pin"])
    async def check(pin: str) -> str:
        return str(await perdure.ask("Which code?", type=Code))

    @perdure.agent
    async def host() -> str:
        return await check(pin="hunter2")

    await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).answer({"digits": "hunter2"}, by="ana")
    second = await house.question()

    assert second.text.endswith('it wants a Code, not {"digits": "[secret]"}: [secret] is no code)')
    assert "hunter2" not in str(house.events(task))


async def test_what_reconcile_gives_may_hold_more_than_the_type_names(house: Theatre) -> None:
    class Slip(TypedDict):
        number: int

    attempts: list[str] = []

    async def found(doubt: perdure.Doubt) -> Any:
        return perdure.happened({"number": 7, "made_at": "noon"})

    @perdure.tool(reconcile=found)
    async def send(order: str) -> Slip:
        attempts.append(order)
        await perdure.sleep(60)
        return {"number": 7}

    @perdure.agent
    async def host() -> int:
        return (await send("o-1"))["number"]

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: bool(attempts))
    house.kill(first)
    await house.hire(host)

    assert await task.result() == 7
    assert attempts == ["o-1"]


async def test_what_a_program_gives_is_told_wrong_for_what_is_wrong_with_it_alone(house: Theatre) -> None:
    class Slip(TypedDict):
        number: int

    @perdure.agent(retries=0)
    async def host() -> int:
        return (await perdure.receive("slip", type=Slip))["number"]

    await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "slip", {"number": "x", "made_at": "noon"})

    with pytest.raises(perdure.TaskFailed, match=r'"number": "x"\}: number: "x" is no int: give a number '):
        await task.result()


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


# -- what is sent ---------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 3600])
async def test_what_was_sent_and_does_not_fit_is_an_error_that_holds_it_and_the_next_one_is_read(
    house: Theatre, timeout: int | None
) -> None:
    told: list[tuple[str, str, Any]] = []

    @perdure.agent
    async def host() -> int:
        while True:
            try:
                pages = await perdure.receive("pages", type=int, timeout=timeout)
                await perdure.sleep(60)
                return pages
            except perdure.BadDelivery as bad:
                told.append((str(bad), bad.name, bad.payload))

    first = await house.hire(host)
    task = await house.client.start(host)
    for sent in (True, {"pages": 7}, 7):
        await house.client.send(task.id, "pages", sent)
    await house.until_status(task, "waiting")
    await house.until(lambda: "timer" in [one.event_kind for one in house.steps(task)])
    house.kill(first)
    await house.hire(host)

    assert await task.result() == 7
    live, replayed = told[:2], told[2:]
    assert live == replayed
    assert live[0] == ("what was sent under 'pages' must be an int, not true: give a number", "pages", True)
    assert live[1][2] == {"pages": 7}
    received = [one.outcome for one in house.steps(task) if one.event_kind == "receive"]
    assert received == ["failed", "failed", "completed"]


async def test_what_was_sent_and_does_not_fit_fails_a_task_that_does_not_catch_it_at_once(house: Theatre) -> None:
    @perdure.agent
    async def host() -> datetime:
        return await perdure.receive("due", type=datetime)

    await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "due", "tomorrow")

    with pytest.raises(perdure.TaskFailed, match='must be a datetime, not "tomorrow": give it with its zone') as failed:
        await task.result()

    assert failed.value.error.type == "perdure.errors.BadDelivery"
    assert house.kinds(task).count("task_retried") == 0


async def test_what_was_sent_as_json_becomes_what_the_agent_wants(house: Theatre) -> None:
    @perdure.agent
    async def host() -> str:
        return repr(await perdure.receive("at", type=list[Path]))

    await house.hire(host)
    task = await house.client.start(host)
    await house.client.send(task.id, "at", ["logs/today"])

    assert await task.result() == repr([Path("logs/today")])


@pytest.mark.parametrize("verb", ["ask", "receive"])
async def test_a_type_that_is_only_named_is_refused_at_once(house: Theatre, verb: str) -> None:
    @perdure.agent(retries=0)
    async def host() -> Any:
        if verb == "ask":
            return await perdure.ask("How many?", type="int")  # type: ignore[call-overload]  # as a newcomer may write
        return await perdure.receive("number", type="int")  # type: ignore[call-overload]

    with pytest.raises(perdure.TaskFailed, match="type must be a type, not the text 'int': write type=int"):
        await house.play(host)
