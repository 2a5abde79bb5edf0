"""A call that was harmless or idempotent when it was cut off, and is declared dangerous by the code that takes the task
up: what may have happened then is asked of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from tests.held_calls import Ledger, kill_inside
from tests.theatre import Theatre


@dataclass
class Declared:
    """What the tool of a test says of itself, which a new version of the code changes."""

    risk: Any = "low"


def _host(ledger: Ledger, declared: Declared) -> Any:
    @perdure.tool(risk=lambda: declared.risk, idempotent=True)
    async def act() -> str:
        ledger.note("act")
        await ledger.hold()
        return "done"

    # A limited number of calls: each is on record before it runs, whatever its risk.
    @perdure.agent(budget=perdure.Budget(tool_calls=10))
    async def host() -> str:
        return await act()

    return host


@pytest.mark.parametrize("risk", ["high", "critical"])
async def test_a_call_that_is_dangerous_by_now_is_asked_about_and_not_run_again(
    house: Theatre, ledger: Ledger, risk: Any
) -> None:
    declared = Declared()
    host = _host(ledger, declared)
    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    declared.risk = risk

    second = await house.hire(host)
    doubt = await house.question()
    house.kill(second)
    await house.hire(host)
    await house.until_status(task, "waiting")
    assert ledger.done == ["act"]
    assert [(one.risk, one.is_in_doubt, bool(one.token)) for one in house.steps(task, "act")] == [(risk, True, True)]
    assert house.row(task).risk_seen == risk

    await doubt.resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "done"
    assert ledger.done == ["act", "act"]


async def test_a_call_that_is_medium_by_now_has_one_token_from_then_on(house: Theatre, ledger: Ledger) -> None:
    declared = Declared()
    host = _host(ledger, declared)
    first = await house.hire(host)
    task = await house.client.start(host)
    await kill_inside(house, first, ledger)
    declared.risk = "medium"
    ledger.reached.clear()
    ledger.go_on.clear()

    second = await house.hire(host)
    await kill_inside(house, second, ledger)
    await house.hire(host)

    assert await task.result() == "done"
    assert ledger.done == ["act", "act", "act"]
    _, then, later = ledger.tokens
    assert then == later != ""


async def test_what_a_second_attempt_has_not_made_the_first_one_may_have(
    house: Theatre, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = Declared("medium")
    host = _host(ledger, declared)
    looks: list[None] = []

    async def until_may_call() -> None:
        looks.append(None)
        if len(looks) == 2:  # It holds the call by now, and has not made it.
            await asyncio.sleep(1e6)

    first = await house.hire(host)
    task = await house.client.start(host)
    await ledger.reached.wait()
    second = await house.hire(host)
    monkeypatch.setattr(second.worker, "until_may_call", until_may_call)
    await kill_inside(house, first, ledger)
    await house.until(lambda: len(looks) == 2)
    await house.dismiss(second)
    declared.risk = "high"
    await house.hire(host)
    doubt = await house.question()

    assert ledger.done == ["act"]
    await doubt.resolve(perdure.happened("found"), by="ana")
    assert await task.result() == "found"
