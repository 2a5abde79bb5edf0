"""Calls that are recorded: what is used again, what runs again, and what nobody but a person may decide."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure.testing.actor import Actor
from tests.theatre import Theatre


class Ledger:
    """What tools really did, and where they can be held."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.tokens: list[str] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    def note(self, what: str) -> None:
        """One effect."""
        self.done.append(what)
        self.tokens.append(perdure.current().token)

    async def hold(self) -> None:
        """Stand still inside a call."""
        self.reached.set()
        await self.go_on.wait()


@pytest.fixture
async def ledger() -> Ledger:
    return Ledger()


async def kill_inside(house: Theatre, actor: Actor, ledger: Ledger) -> None:
    """Kill a worker while a tool is held, and let tools run through from then on."""
    await ledger.reached.wait()
    house.kill(actor)
    ledger.go_on.set()


# -- recorded results -----------------------------------------------------------------------


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

        return await perdure.gather(act(), other())

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


# -- timeouts and ambiguous errors ----------------------------------------------------------


async def test_a_high_call_that_its_timeout_cuts_off_is_in_doubt(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(timeout=2)
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "late"

    @perdure.agent
    async def host() -> str:
        return await act()

    await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("it did"), by="ana")

    assert "timeout of 2 s" in doubt.evidence["cause"]
    assert await task.result() == "it did"
    assert ledger.done == ["act"]


@pytest.mark.parametrize("risk", ["low", "medium"])
async def test_a_low_or_medium_call_that_its_timeout_cuts_off_runs_again(house: Theatre, risk: Any) -> None:
    runs: list[str] = []

    @perdure.tool(risk=risk, idempotent=True, timeout=2)
    async def act() -> str:
        runs.append(perdure.current().token)
        if len(runs) == 1:
            await asyncio.sleep(100)
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    assert await house.play(host) == "done"
    assert len(runs) == 2
    assert len(set(runs)) == 1


async def test_cut_off_again_after_a_no_it_is_in_doubt_again(house: Theatre) -> None:
    runs: list[int] = []

    @perdure.tool(timeout=2)
    async def act() -> str:
        runs.append(1)
        await asyncio.sleep(100)
        return "late"

    @perdure.agent
    async def host() -> str:
        return await act()

    await house.hire(host)
    task = await house.client.start(host)
    one = await house.question()
    await one.resolve(perdure.not_happened(), by="ana")
    await house.until(lambda: len(runs) == 2)
    other = await house.question()
    await other.resolve(perdure.happened("third time lucky"), by="ana")

    assert await task.result() == "third time lucky"
    assert len(runs) == 2


async def test_an_ambiguous_error_is_in_doubt_and_another_one_is_the_outcome(house: Theatre) -> None:
    @perdure.tool(ambiguous=(ConnectionError,))
    async def act(error: str) -> str:
        raise {"lost": ConnectionResetError, "refused": PermissionError}[error](error)

    @perdure.agent
    async def host() -> str:
        try:
            return await act("refused")
        except PermissionError:
            return await act("lost")

    await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened("it went through"), by="ana")

    assert doubt.args == {"error": "lost"}
    assert await task.result() == "it went through"


async def test_a_tool_that_says_that_nothing_happened_is_tried_again_at_any_risk(house: Theatre) -> None:
    runs: list[str] = []

    @perdure.tool
    async def act() -> str:
        runs.append(perdure.current().token)
        if len(runs) < 3:
            raise perdure.NotApplied("no connection yet")
        return "done"

    @perdure.agent
    async def host() -> str:
        return await act()

    assert await house.play(host) == "done"
    assert len(runs) == 3
    assert len(set(runs)) == 1


async def test_the_error_of_a_high_call_is_final_and_raised_again_on_replay(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool
    async def act() -> str:
        ledger.note("act")
        raise ConnectionError("reset")  # which a low call would be retried for

    @perdure.tool(risk="low")
    async def wait_here() -> None:
        await ledger.hold()

    @perdure.agent
    async def host() -> str:
        try:
            await act()
        except ConnectionError as error:
            await wait_here()
            return f"caught {error}"
        return "no error"

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    await house.hire(host)

    assert await task.result() == "caught reset"
    assert ledger.done == ["act"]


async def test_a_call_cancelled_by_its_agent_is_found_out_about_before_the_task_completes(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        try:
            async with asyncio.timeout(5):
                return await act()
        except TimeoutError:
            return "impatient"

    await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    assert house.row(task).status != "completed"
    await doubt.resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "impatient"
    assert ledger.done == ["act"]
    assert [one.outcome for one in house.steps(task, "act")] == ["failed"]


async def test_a_step_in_doubt_that_new_code_does_not_reach_is_asked_about_before_completion(
    house: Theatre, ledger: Ledger
) -> None:
    is_new = False

    @perdure.tool
    async def act() -> str:
        await ledger.hold()
        return "done"

    @perdure.agent
    async def host() -> str:
        return "new code" if is_new else await act()

    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    is_new = True
    await house.hire(host)
    doubt = await house.question()
    assert house.row(task).status != "completed"
    await doubt.resolve(perdure.happened("m-1"), by="ana")

    assert await task.result() == "new code"
    assert house.steps(task, "act")[0].outcome == "completed"


# -- threads --------------------------------------------------------------------------------


async def test_a_thread_that_timed_out_counts_as_running_until_it_has_returned(house: Theatre) -> None:
    inside, leave = threading.Event(), threading.Event()
    runs: list[int] = []

    @perdure.tool(timeout=0.05)
    def act() -> str:
        runs.append(1)
        inside.set()
        assert leave.wait(30)
        raise ValueError("it could not")

    @perdure.agent
    async def host() -> str:
        return await perdure.call(act)

    def release_when_asked() -> None:
        assert inside.wait(30)
        leave.set()

    # Time stands still while a thread works, so the thread is let go by another one.
    helper = threading.Thread(target=release_when_asked)
    helper.start()
    await house.hire(host)
    task = await house.client.start(host)
    with pytest.raises(perdure.TaskFailed) as failed:
        await task.result()
    helper.join()

    assert failed.value.error.type == "ValueError"  # its own word, not a guess
    assert len(runs) == 1


async def test_sys_exit_in_a_tool_is_its_error_and_not_the_end_of_the_worker(house: Theatre) -> None:
    @perdure.tool
    async def leave(code: int) -> None:
        raise SystemExit(code)

    @perdure.tool
    def leave_blocking(code: int) -> None:
        raise SystemExit(code)

    @perdure.agent
    async def host() -> list[str]:
        errors = await perdure.gather(leave(1), perdure.call(leave_blocking, 2), return_exceptions=True)
        return [str(error) for error in errors]

    assert await house.play(host) == ["sys.exit(1) was called", "SystemExit was raised: 2"]
