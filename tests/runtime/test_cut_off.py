"""Calls that were cut off, left or raised what says nothing: they are in doubt in the process that made them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

import perdure
import perdure.sync as blocking
from perdure import codec
from perdure.errors import Cancelled
from perdure.store import aio, steps
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre

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


@pytest.mark.parametrize("runs_again", [False, True])
async def test_reconcile_is_told_when_the_call_began_and_not_when_it_was_cut(house: Theatre, runs_again: bool) -> None:
    began: list[float] = []
    told: list[float] = []

    def find(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        told.append(doubt.started_at.timestamp())
        return perdure.not_happened() if runs_again and len(told) == 1 else perdure.happened("it did")

    @perdure.tool(timeout=60, reconcile=find)
    async def act() -> str:
        began.append(house.loop.now_ms() / 1000)
        await asyncio.sleep(1e6)
        return "late"

    @perdure.agent
    async def host() -> str:
        return await act()

    assert await house.play(host) == "it did"
    assert told == began
    assert len(began) == 1 + runs_again


async def test_a_call_that_returns_after_its_question_was_settled_has_nothing_to_add(house: Theatre) -> None:
    returned = asyncio.Event()

    @perdure.tool(timeout=2)
    async def act() -> str:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(60)  # as a thread does, which nobody can cut
        returned.set()
        return "late"

    @perdure.agent
    async def host() -> str:
        try:
            return await act()
        except perdure.OutcomeUnknown:
            return "gave up"

    actor = await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).resolve(perdure.unknown("nobody can tell"), by="ana")
    assert await task.result() == "gave up"
    was_over_first = not returned.is_set()
    await returned.wait()
    await asyncio.sleep(1)
    left = await actor.worker.in_flight.word(task.id, house.steps(task, "act")[0].key or "")
    await house.dismiss(actor)

    assert was_over_first
    assert left is None
    assert house.kinds(task)[-1] == "task_completed"


@pytest.mark.parametrize("stops", [False, True])
async def test_how_a_call_of_a_cancelled_task_ended_is_told_with_a_heartbeat(house: Theatre, stops: bool) -> None:
    inside, returned = asyncio.Event(), asyncio.Event()

    @perdure.tool
    async def act() -> str:
        try:
            inside.set()
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # as a thread does, which nobody can cut
        returned.set()
        return "late"

    @perdure.agent
    async def host() -> str:
        return await act()

    actor = await house.hire(host)
    task = await house.client.start(host)
    await inside.wait()
    await task.cancel("changed my mind")
    await returned.wait()
    if stops:
        await house.dismiss(actor)
    else:
        async with asyncio.timeout(4 * house.settings.heartbeat_s):
            await house.until(lambda: "call_settled" in house.kinds(task))
    (step,) = house.steps(task, "act")

    assert (step.outcome, codec.decode(step.output or b"")) == ("completed", "late")
    assert house.kinds(task)[-3:] == ["call_ended_late", "tool_call_completed", "call_settled"]
    assert not await task.settle(step.step_index, perdure.not_happened(), by="ana")
    assert stops or actor.worker.in_flight.words() == []


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


async def test_a_call_cancelled_while_its_intent_is_written_was_not_made_and_nobody_is_asked(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = aio.submit

    def tell_late(store: Any, operation: Any, /, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        done = submit(store, operation, *args, **kwargs)
        return asyncio.ensure_future(late(done)) if operation is steps.begin else done

    async def late(done: asyncio.Future[Any]) -> Any:
        written = await done
        await asyncio.sleep(5)
        return written

    @perdure.tool
    async def act() -> None:
        ledger.note("act")

    @perdure.agent
    async def host() -> str:
        try:
            async with asyncio.timeout(1):
                await act()
        except TimeoutError:
            return "gave up"
        return "made"

    monkeypatch.setattr(aio, "submit", tell_late)
    await house.hire(host)
    task = await house.client.start(host)

    assert await task.result() == "gave up"
    assert ledger.done == []
    assert await house.client.questions() == []
    (step,) = [one for one in house.steps(task) if one.name == "act"]
    assert step.outcome == "failed"


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


def _hangs_once(runs: list[int], lets_go: asyncio.Event) -> Any:
    """An agent whose call is cut off the first time, and then hangs until it is let go."""

    @perdure.tool(timeout=2)
    async def act() -> str:
        runs.append(len(runs))
        if len(runs) == 1:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await lets_go.wait()  # as a thread does, which nobody can cut
        return f"run {len(runs)}"

    @perdure.agent
    async def host() -> str:
        return await act()

    return host


async def test_a_person_may_say_not_to_wait_for_a_call_that_hangs_in_this_very_worker(house: Theatre) -> None:
    runs: list[int] = []
    lets_go = asyncio.Event()

    host = _hangs_once(runs, lets_go)

    actor = await house.hire(host)
    task = await house.client.start(host)
    doubt = await house.question()
    await doubt.resolve(perdure.not_happened(), by="ana")
    await asyncio.sleep(60)
    told, ran = await task.why(), len(runs)
    before = house.loop.time()
    await doubt.resolve(perdure.not_happened(), by="ana", anyway=True)
    result, took_s = await task.result(), house.loop.time() - before
    lets_go.set()
    await house.dismiss(actor)

    assert ran == 1
    assert "acts once the call has returned" in told
    assert f"perdure answer {doubt.id} --not-happened --anyway" in told
    assert (result, len(runs)) == ("run 2", 2)
    assert took_s < 2


async def test_an_answer_acts_as_soon_as_the_call_has_returned_that_hung_in_this_very_worker(house: Theatre) -> None:
    runs: list[int] = []
    lets_go = asyncio.Event()

    host = _hangs_once(runs, lets_go)

    await house.hire(host)
    task = await house.client.start(host)
    await (await house.question()).resolve(perdure.not_happened(), by="ana")
    await house.until_status(task, "waiting")
    await asyncio.sleep(61)
    before = house.loop.time()
    lets_go.set()

    assert await task.result() == "run 1"  # its own word, and no second run
    assert house.loop.time() - before < 2


async def test_a_thread_whose_call_was_cut_off_is_told_so_and_not_that_its_task_has_ended(house: Theatre) -> None:
    told: list[str] = []

    @perdure.tool(risk="low", timeout=1, retries=0)
    def slow() -> None:
        for _ in range(2):
            try:
                blocking.sleep(5)
            except Cancelled as cut:
                told.append(str(cut))

    @perdure.agent
    async def host() -> str:
        with suppress(TimeoutError):
            await perdure.call(slow)
        await asyncio.sleep(10)
        return "went on"

    assert await house.play(host) == "went on"
    assert set(told) == {"the call around this one has been cut off"}
