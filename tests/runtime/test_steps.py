"""Calls that are recorded: what is used again, what runs again, and what nobody but a person may decide."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure.runtime import answers
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre

# -- recorded results -----------------------------------------------------------------------


@dataclass
class Receipt:
    """What a tool of these tests returns, which no other process knows."""

    number: int


async def test_a_recorded_result_is_used_and_not_bought_again(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="low")
    async def search(q: str) -> list[str]:
        ledger.note(q)
        return [q]

    @perdure.tool(risk="low")
    async def wait_here() -> None:
        await ledger.hold()

    @perdure.agent
    async def host() -> list[str]:
        found = await search("a")
        await wait_here()
        return found + await search("b")

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)

    assert await task.result() == ["a", "b"]
    assert ledger.done == ["a", "b"]
    assert [one.name for one in house.steps(task)] == ["search", "wait_here", "search"]


@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_low_and_medium_run_again_after_a_crash_without_a_question(
    house: Theatre, ledger: Ledger, risk: Any
) -> None:
    @perdure.tool(risk=risk, idempotent=True)
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)

    assert await task.result() == "done"
    assert ledger.done == ["act", "act"]
    assert len(set(ledger.tokens)) == 1  # medium: the same token; low has none
    assert bool(ledger.tokens[0]) == (risk == "medium")


@pytest.mark.parametrize("risk", ["high", "critical"])
async def test_from_high_up_a_person_is_asked_after_a_crash_and_it_runs_once(
    house: Theatre, ledger: Ledger, risk: Any
) -> None:
    @perdure.tool(risk=risk)
    async def act(n: int) -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act(1)

    first = await house.hire(host)
    task = await house.client.start(host)
    if risk == "critical":
        asked = await house.question(kind="call")
        assert ledger.done == []
        await asked.approve(by="ana")
    await kill_inside(house, first, ledger)
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("as the bank says"), by="ana")

    assert doubt.kind == "step_in_doubt"
    assert doubt.args == {"n": 1}
    assert await task.result() == "as the bank says"
    assert ledger.done == ["act"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_it_happened_is_refused_with_a_result_that_the_tool_cannot_have_returned(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    @perdure.tool(name=f"act_{is_known}")  # a name that no other tool of this process has
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    if not is_known:  # As in a process that has not imported the module of the tool.
        monkeypatch.setattr(answers, "tools_named", lambda _: [])
    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    doubt = await house.question()
    for wrong in ({"x": 1}, None):
        with pytest.raises(perdure.BadInput, match=f"Q1: act_{is_known} returns str"):
            await doubt.resolve(perdure.happened(wrong), by="ana")
    await doubt.resolve(perdure.happened("r-1"), by="ana")

    assert await task.result() == "r-1"
    assert ledger.done == ["act"]


async def test_a_result_that_only_the_worker_can_judge_is_asked_for_again_with_the_reason(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    @perdure.tool
    async def act() -> Receipt:
        await ledger.hold()
        return Receipt(1)

    @perdure.agent
    async def host() -> int:
        return (await act()).number

    monkeypatch.setattr(answers, "tools_named", lambda _: [])  # As in a process that has not imported its module.
    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened({"x": 1}), by="ana")
    again = await house.question()
    await again.resolve(perdure.happened({"number": 7}), by="ana")

    assert again.text.startswith("did act() happen? (Q1 was answered, but act returns ")
    assert again.text.endswith('which {"x": 1} is not: Receipt has no field x: it has number; number is missing)')
    assert await task.result() == 7


async def test_it_did_not_happen_runs_it_again_with_the_same_token(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    await (await house.question()).resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "done"
    assert ledger.done == ["act", "act"]
    assert len(set(ledger.tokens)) == 1 and ledger.tokens[0]
    assert "call_run_again" in house.kinds(task)


async def test_a_second_crash_inside_the_same_call_asks_again(house: Theatre) -> None:
    ledgers = [Ledger(), Ledger()]
    runs: list[int] = []

    @perdure.tool
    async def act() -> str:
        runs.append(1)
        await ledgers[len(runs) - 1].hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledgers[0])
    second = await house.hire(host)
    one = await house.question()
    await one.resolve(perdure.not_happened(), by="ana")
    await kill_inside(house, second, ledgers[1])
    await house.hire(host)
    other = await house.question()
    await other.resolve(perdure.happened("at last"), by="ana")

    assert other.id != one.id
    assert await task.result() == "at last"
    assert len(runs) == 2


async def test_giving_up_raises_outcome_unknown_which_the_agent_may_catch(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool
    async def act() -> str:
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        try:
            return await act()
        except perdure.OutcomeUnknown as unknown:
            return f"gave up on {unknown.tool}"

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    await (await house.question()).resolve(perdure.unknown(), by="ana", reason="the bank is closed")

    assert await task.result() == "gave up on act"


async def test_giving_up_fails_the_task_when_nobody_catches_it_without_another_try(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool
    async def act() -> str:
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    await (await house.question()).resolve(perdure.unknown(), by="ana")

    with pytest.raises(perdure.TaskFailed):
        await task.result()
    assert house.outcome(task) == ("failed", "perdure.errors.OutcomeUnknown")
    assert house.row(task).failures == 0


async def test_the_other_branches_go_on_while_a_call_is_in_doubt(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool
    async def act() -> str:
        await ledger.hold()
        return "acted"

    @perdure.tool(risk="low")
    async def look() -> str:
        ledger.note("look")
        return "looked"

    @perdure.agent
    async def host() -> list[str]:
        async def other() -> str:
            await perdure.sleep(60)
            return await look()

        return list(await perdure.gather(act(), other()))

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    doubt = await house.question()
    await house.until(lambda: ledger.done)
    await doubt.resolve(perdure.happened("acted"), by="ana")

    assert await task.result() == ["acted", "looked"]


# -- reconcile ------------------------------------------------------------------------------


@dataclass
class Said:
    """What a tool's reconcile gives, and how often it was asked."""

    answer: Any
    asked: int = 0

    def __call__(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize(
    ("answer", "asks", "result", "runs"),
    [
        (perdure.happened("found"), False, "found", 1),
        (perdure.not_happened(), False, "ran", 2),
        (perdure.unknown("not listed yet"), True, "told", 1),
        (RuntimeError("no route"), True, "told", 1),
        ("yes", True, "told", 1),
        (None, True, "told", 1),
        (perdure.happened(object()), True, "told", 1),
        (perdure.happened(7), True, "told", 1),
    ],
)
async def test_reconcile_answers_in_place_of_a_person(  # noqa: PLR0917  # Parameters of a table.
    house: Theatre, ledger: Ledger, answer: Any, asks: bool, result: str, runs: int, is_sync: bool
) -> None:
    said, doubts = Said(answer), []

    async def find(doubt: perdure.Doubt) -> Any:
        doubts.append(doubt)
        return said()

    def find_blocking(doubt: perdure.Doubt) -> Any:
        doubts.append(doubt)
        return said()

    @perdure.tool(reconcile=find_blocking if is_sync else find)
    async def act(n: int) -> str:
        ledger.note("act")
        await ledger.hold()
        return "ran"

    @perdure.agent
    async def host() -> str:
        return await act(7)

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)
    if asks:
        await (await house.question()).resolve(perdure.happened("told"), by="ana")

    assert await task.result() == result
    assert len(ledger.done) == runs
    assert said.asked == 1
    assert doubts[0].token == ledger.tokens[0]
    assert doubts[0].args == {"n": 7}
    assert "attempt 1" in doubts[0].cause


async def test_reconcile_is_not_asked_again_once_a_question_is_open(house: Theatre, ledger: Ledger) -> None:
    said = Said(perdure.unknown("not listed yet"))

    @perdure.tool(reconcile=lambda _doubt: said())
    async def act() -> str:
        await ledger.hold()
        return "ran"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    second = await house.hire(host)
    doubt = await house.question()
    house.kill(second)
    await house.hire(host)
    await house.until(lambda: house.row(task).attempt == 3)
    await doubt.resolve(perdure.happened("told"), by="ana")

    assert await task.result() == "told"
    assert said.asked == 1
    assert doubt.evidence["reconcile"] == "not listed yet"


async def test_reconcile_works_on_what_the_lifespan_opened(house: Theatre, ledger: Ledger) -> None:
    class Bank:
        async def find(self, *, key: str) -> str:
            return f"found {bool(key)}"

    async def find(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        return perdure.happened(await perdure.deps(Bank).find(key=doubt.token))

    @perdure.tool(reconcile=find)
    async def act() -> str:
        await ledger.hold()
        return "ran"

    @perdure.agent
    async def host() -> str:
        return await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host, deps=[Bank()])

    assert await task.result() == "found True"


async def test_a_medium_call_that_runs_again_is_held_by_the_attempt_that_runs_it(house: Theatre) -> None:
    started: list[int] = []

    @perdure.tool(risk="medium", idempotent=True)
    async def put(n: int) -> int:
        started.append(n)
        await asyncio.sleep(1e6 if len(house.actors) == 1 else 100)
        return n

    @perdure.agent
    async def host() -> int:
        return await put(7)

    first = await house.hire(host)
    task = await house.client.start(host)
    await house.until(lambda: len(started) == 1)
    house.kill(first)
    await house.hire(host)
    await house.until(lambda: len(started) == 2)

    (held,) = house.steps(task, "put")
    assert (held.attempt, held.outcome) == (2, None)
    assert house.kinds(task).count("call_run_again") == 1
    assert await task.result() == 7


# -- how long it took -----------------------------------------------------------------------


@pytest.mark.parametrize("risk", ["low", "high"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_tells_when_its_call_began_and_when_it_ended(house: Theatre, risk: Any, fails: bool) -> None:
    began: list[int] = []

    @perdure.tool(risk=risk, retries=0)
    async def think() -> str:
        began.append(house.loop.now_ms())
        await asyncio.sleep(60)
        if fails:
            raise ValueError("nothing came of it")
        return "so"

    @perdure.agent(retries=0)
    async def host() -> str:
        try:
            return await think()
        except ValueError:
            return "failed"

    await house.hire(host)
    task = await house.client.start(host)
    await task.result()
    (step,) = house.steps(task, "think")

    assert [step.timestamp, step.ended_at] == [began[0], began[0] + 60_000]
