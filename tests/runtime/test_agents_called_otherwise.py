"""An agent called otherwise after a crash: whether its child may run beside the one on record."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

import perdure
import perdure.sync as psync
from perdure.client import TaskHandle
from perdure.settings import Settings
from perdure.store import questions
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre


@pytest.fixture
def settings() -> Settings:
    """One permit, so that whoever waits for a child must give it back."""
    return Settings(sweep_s=0.5, poll_ms=500, drift_settle_ms=50, question_expiry_s=120, permits=1, main_permits=0)


async def _restarted(house: Theatre, ledger: Ledger, *agents: Any) -> TaskHandle[Any]:
    """The first agent's task, its worker killed where the ledger holds it; another one has it now."""
    first = await house.hire(*agents)
    task = await house.client.start(agents[0])
    await kill_inside(house, first, ledger)
    await house.hire(*agents)
    return task


def _asked(house: Theatre, task: TaskHandle[Any]) -> list[Any]:
    return house.store.read(questions.of_task, task.id)


# -- what the child has done --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["child", "grandchild", "medium"])
@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_child_that_has_paid_is_not_run_otherwise_without_a_yes(
    house: Theatre, ledger: Ledger, where: str, answer: str
) -> None:
    @perdure.tool(risk="medium" if where == "medium" else "high", idempotent=where == "medium")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def teller() -> None:
        await pay()

    @perdure.agent
    async def cashier(at: int) -> int:
        await (teller() if where == "grandchild" else pay())
        return at

    @perdure.agent
    async def clerk() -> int:
        try:
            found = await cashier(len(house.actors))
        except perdure.Denied:
            return -1
        await ledger.hold()
        return found

    task = await _restarted(house, ledger, clerk, cashier, teller)
    asked = await house.question()
    (child,) = house.children(task)

    assert (asked.kind, asked.args, ledger.done) == ("call", {"at": 2}, ["pay"])
    assert f"lies unused: cashier(at=1), whose task {child.id} has begun calls above low risk" in asked.text
    await (asked.approve(by="ana") if answer == "approve" else asked.deny("it was paid", by="ana"))
    assert await task.result() == (2 if answer == "approve" else -1)
    assert ledger.done == (["pay", "pay"] if answer == "approve" else ["pay"])


async def test_a_synchronous_agent_runs_no_child_otherwise_that_has_paid(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def cashier(at: int) -> int:
        await pay()
        return at

    @perdure.tool(risk="low")
    async def hold() -> None:
        await ledger.hold()

    @perdure.agent
    def clerk() -> int:
        found = psync.call(cashier, len(house.actors))
        psync.call(hold)
        return found

    task = await _restarted(house, ledger, clerk, cashier)
    asked = await house.question()

    assert ledger.done == ["pay"]
    await asked.approve(by="ana")
    assert await task.result() == 2
    assert ledger.done == ["pay", "pay"]


async def test_the_yes_to_a_child_is_used_up_by_it(house: Theatre, ledger: Ledger) -> None:
    again = Ledger()

    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def cashier(at: int) -> int:
        await pay()
        return at

    @perdure.agent
    async def clerk() -> int:
        found = await cashier(1 if len(house.actors) == 1 else 2)
        await (again if ledger.done == ["pay", "pay"] else ledger).hold()
        return found

    task = await _restarted(house, ledger, clerk, cashier)
    await (await house.question()).approve(by="ana")
    await kill_inside(house, house.actors[1], again)
    await house.hire(clerk, cashier)

    assert await task.result() == 2
    assert ledger.done == ["pay", "pay"]
    (asked,) = _asked(house, task)
    assert (asked.status, asked.spent_at is None) == ("approved", False)


@pytest.mark.parametrize("drift", ["ask", "error"])
async def test_a_child_that_only_read_runs_otherwise_and_says_so(
    house: Theatre, ledger: Ledger, drift: Literal["ask", "error"]
) -> None:
    @perdure.tool(risk="low")
    async def look() -> None:
        ledger.note("look")

    @perdure.agent
    async def reader(at: int) -> int:
        await look()
        return at

    @perdure.agent(drift=drift)
    async def clerk() -> int:
        found = await reader(len(house.actors))
        await ledger.hold()
        return found

    task = await _restarted(house, ledger, clerk, reader)

    assert await task.result() == 2
    assert ledger.done == ["look", "look"]
    assert "drift" in house.kinds(task)
    assert _asked(house, task) == []


@pytest.mark.parametrize("declared", ["before", "now"])
async def test_a_child_declared_as_dangerous_is_asked_about_whatever_it_did(
    house: Theatre, ledger: Ledger, declared: str
) -> None:
    def made(risk: Literal["low", "high"]) -> Any:
        @perdure.agent(risk=risk, name="cashier")
        async def cashier(at: int) -> int:
            return at

        @perdure.agent(name="clerk")
        async def clerk() -> int:
            found: int = await cashier(len(house.actors))
            await ledger.hold()
            return found

        return clerk, cashier

    before = made("high" if declared == "before" else "low")
    first = await house.hire(*before)
    task = await house.client.start(before[0])
    await kill_inside(house, first, ledger)
    await house.hire(*made("high" if declared == "now" else "low"))
    asked = await house.question()

    assert "lies unused: cashier(at=1), which was task" in asked.text
    await asked.approve(by="ana")
    assert await task.result() == 2


async def test_a_child_in_doubt_is_asked_about_by_itself_and_before_another_runs(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")
        await ledger.hold()

    @perdure.agent
    async def cashier(at: int) -> int:
        await pay()
        return at

    @perdure.agent
    async def clerk() -> int:
        return await cashier(len(house.actors))

    task = await _restarted(house, ledger, clerk, cashier)
    asked = await house.question(kind="call")
    doubt = await house.question(kind="step_in_doubt")
    await doubt.resolve(perdure.happened(None), by="ana")
    await asked.deny("it was paid", by="ana")

    assert "cashier(at=1)" in asked.text
    with pytest.raises(perdure.TaskFailed, match="it was paid"):
        await task.result()
    assert ledger.done == ["pay"]


async def test_an_agent_may_want_an_error_where_a_child_has_paid(house: Theatre, ledger: Ledger) -> None:
    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def cashier(at: int) -> None:
        await pay()

    @perdure.agent(drift="error")
    async def clerk() -> None:
        await cashier(len(house.actors))
        await ledger.hold()

    task = await _restarted(house, ledger, clerk, cashier)
    with pytest.raises(perdure.TaskFailed, match="lies unused: cashier"):
        await task.result()

    assert house.outcome(task) == ("failed", "perdure.errors.Drift")
    assert ledger.done == ["pay"]
    assert _asked(house, task) == []


# -- a child that still runs ----------------------------------------------------------------------


@pytest.mark.parametrize("then", ["pays", "reads"])
@pytest.mark.parametrize("alone", [True, False])
async def test_a_child_that_still_runs_is_waited_for(house: Theatre, ledger: Ledger, then: str, alone: bool) -> None:
    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def cashier(at: int) -> int:
        await perdure.sleep(20)
        ledger.note(f"woke {at}")
        if then == "pays":
            await pay()
        return at

    @perdure.agent
    async def other() -> int:
        await perdure.sleep(90)
        return 0

    @perdure.agent
    async def clerk() -> int:
        if len(house.actors) == 1:
            asyncio.get_running_loop().call_later(5, ledger.reached.set)
        if alone:
            return await cashier(len(house.actors))
        return sum(await perdure.gather(cashier(len(house.actors)), other()))

    first = await house.hire(clerk, cashier, other)
    task = await house.client.start(clerk)
    await kill_inside(house, first, ledger)
    await house.hire(clerk, cashier, other)

    began_s = house.loop.time()
    if then == "pays":
        asked = await house.question()
        assert ledger.done == ["woke 1", "pay"]
        assert house.loop.time() - began_s < 60
        await asked.approve(by="ana")
    assert await task.result() == 2
    assert ledger.done == (["woke 1", "pay", "woke 2", "pay"] if then == "pays" else ["woke 1", "woke 2"])
    assert len(_asked(house, task)) == (then == "pays")


# -- children beside each other -------------------------------------------------------------------


@pytest.mark.parametrize("around", ["nothing", "tool"])
async def test_of_children_gathered_only_the_one_called_otherwise_is_asked_about(
    house: Theatre, ledger: Ledger, around: str
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> None:
        ledger.note(f"pay {n}")

    @perdure.agent
    async def cashier(n: int) -> int:
        await pay(n)
        return n

    @perdure.tool(risk="low")
    async def send(n: int) -> int:
        found = await cashier(n)
        await (ledger.hold() if len(ledger.done) == 3 else ledger.go_on.wait())
        return found

    @perdure.agent
    async def clerk() -> list[int]:
        second = 2 if len(house.actors) == 1 else 20
        call: Any = send if around == "tool" else cashier
        found = await perdure.gather(call(1), call(second), call(3))
        await ledger.hold()
        return list(found)

    task = await _restarted(house, ledger, clerk, cashier)
    asked = await house.question()

    assert asked.args == {"n": 20}
    assert "cashier(n=2)" in asked.text and "cashier(n=1)" not in asked.text
    await asked.approve(by="ana")
    assert await task.result() == [1, 20, 3]
    assert sorted(ledger.done) == ["pay 1", "pay 2", "pay 20", "pay 3"]
    assert len(_asked(house, task)) == 1


@pytest.mark.parametrize("drift", ["ask", "error"])
async def test_equal_children_in_another_order_hold_up_none(
    house: Theatre, ledger: Ledger, drift: Literal["ask", "error"]
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> None:
        ledger.note(f"pay {n}")

    @perdure.agent
    async def cashier(n: int) -> int:
        await pay(n)
        return n

    @perdure.agent(drift=drift)
    async def clerk() -> list[int]:
        is_first = len(house.actors) == 1

        async def branch(n: int) -> int:
            for _ in range(0 if is_first else 20 - n):
                await perdure.now()
                await asyncio.sleep(0)
            if n == 3 and is_first:
                await asyncio.sleep(1e6)  # Of all, it alone has not been called.
            found = await cashier(n)
            if n == 2:
                await ledger.hold()
            return found

        return list(await asyncio.gather(*(branch(n) for n in range(4))))

    task = await _restarted(house, ledger, clerk, cashier)

    assert await task.result() == [0, 1, 2, 3]
    assert sorted(ledger.done) == ["pay 0", "pay 1", "pay 2", "pay 3"]
    assert _asked(house, task) == []
    assert "drift" not in house.kinds(task)


async def test_a_question_about_a_child_is_taken_back_when_a_branch_comes_to_its_record(
    house: Theatre, ledger: Ledger
) -> None:
    @perdure.tool(risk="high")
    async def pay(n: int) -> None:
        ledger.note(f"pay {n}")

    @perdure.agent
    async def cashier(n: int) -> int:
        await pay(n)
        return n

    @perdure.agent
    async def clerk() -> list[int]:
        async def slow() -> int:
            await asyncio.sleep(60)  # What no record answers, and so takes as long again.
            found = await cashier(1)
            await ledger.hold()
            return found

        async def quick() -> int:
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
            return await cashier(2)

        return list(await asyncio.gather(slow(), quick()))

    task = await _restarted(house, ledger, clerk, cashier)
    asked = await house.question()

    assert "lies unused: cashier(n=1)" in asked.text
    assert await task.result() == [1, 2]
    assert ledger.done == ["pay 1", "pay 2"]
    assert (await house.client.question(asked.id)).status == "cancelled"


# -- a call around it -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raises", "hangs", "hangs inside"])
async def test_tried_again_a_call_does_not_run_a_child_otherwise_that_has_paid(
    house: Theatre, ledger: Ledger, how: str
) -> None:
    tries: list[int] = []

    @perdure.tool(risk="high")
    async def pay() -> None:
        ledger.note("pay")

    @perdure.agent
    async def cashier(at: int) -> int:
        await pay()
        if how == "hangs inside":
            await perdure.sleep(100)
        return at

    @perdure.tool(risk="low", timeout=50, retries=2)
    async def send() -> int:
        tries.append(1)
        found = await cashier(len(tries))
        if len(tries) == 1:
            if how == "raises":
                raise ConnectionError("once")
            await asyncio.sleep(1e6)
        return found

    @perdure.agent
    async def clerk() -> int:
        return await send()

    await house.hire(clerk, cashier)
    task = await house.client.start(clerk)
    asked = await house.question()

    assert ledger.done == ["pay"]
    assert "lies unused: cashier(at=1)" in asked.text
    await asked.deny("it was paid", by="ana")
    with pytest.raises(perdure.TaskFailed, match="it was paid"):
        await task.result()
    assert ledger.done == ["pay"]
