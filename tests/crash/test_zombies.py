"""A worker that is frozen in or before a dangerous call, taken for dead, and wakes: the call happens once.

A person says that it did not happen while the frozen worker still could go on. Workers that may be killed are killed
by the one that takes over; the others wake and find out.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.client import Client
from perdure.errors import StoreBusy
from perdure.settings import Settings
from perdure.states import AttemptStatus
from perdure.store import instances, task_lists
from perdure.testing.invariants import broken
from tests.crashing import Job, Nursery, client_of, counted, lines, note, tell_the_truth, until, wait_for, work

TRIES = 200 if os.environ.get("PERDURE_LONG") else 30
AT_ONCE = 6
SETTINGS = Settings(
    heartbeat_s=0.1,
    lease_s=0.6,
    sweep_s=0.05,
    poll_ms=20,
    permits=32,
    main_permits=1,
    recovery_limit=1000,
    shutdown_grace_s=2,
    busy_s=0.2,
)
MODULE = "tests.crash.test_zombies"


def agents_of(folder: Path) -> list[Any]:
    """One dangerous call, whose effect lies somewhere in the middle of it."""

    @perdure.tool
    async def pay(before_ms: int, after_ms: int) -> str:
        token = perdure.current().token
        note(folder / "inside", token)
        await asyncio.sleep(before_ms / 1000)
        note(folder / "ledger", f"paid {token}")
        await asyncio.sleep(after_ms / 1000)
        return token

    @perdure.tool
    def pay_in_a_thread(before_ms: int, after_ms: int) -> str:
        token = perdure.current().token
        note(folder / "inside", token)
        time.sleep(before_ms / 1000)
        note(folder / "ledger", f"paid {token}")
        time.sleep(after_ms / 1000)
        return token

    @perdure.agent
    async def payer(delay_ms: int, before_ms: int, after_ms: int, in_a_thread: bool) -> str:
        await asyncio.sleep(delay_ms / 1000)
        if in_a_thread:
            return await perdure.call(pay_in_a_thread, before_ms, after_ms)
        return await pay(before_ms, after_ms)

    return [payer]


async def be_worker(folder: Path, *, killable: bool, signal_file: str = "") -> None:
    """Work until told to stop."""
    await work(folder, agents_of(folder), SETTINGS, killable=killable, signal_file=signal_file)


@pytest.mark.slow(timeout_s=900 if os.environ.get("PERDURE_LONG") else 180)
@pytest.mark.parametrize("killable", [False, True])
def test_a_call_happens_once_whenever_its_worker_was_frozen_and_woken(tmp_path: Path, killable: bool) -> None:
    chance = random.Random(11)
    with Nursery() as nursery:
        for number in range(0, TRIES, AT_ONCE):
            folder = tmp_path / str(number)
            folder.mkdir()
            seen = _freeze_and_wake(nursery, folder, chance, killable=killable)

            assert set(seen.paid.values()) == {1}
            assert {f"paid {token}" for token in seen.results} == set(seen.paid)
            assert len(seen.paid) == AT_ONCE
            assert seen.statuses == {"completed"}
            assert seen.wrong == []
            # One that may be killed was ended by the other before it took the work.
            assert seen.first_lives is not killable


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a freeze and a waking left behind."""

    paid: Counter[str]
    results: set[str]
    statuses: set[str]
    wrong: list[str]
    first_lives: bool


def _freeze_and_wake(nursery: Nursery, folder: Path, chance: random.Random, *, killable: bool) -> _Seen:
    options = {"killable": killable}
    with client_of(folder, SETTINGS) as client:
        first = nursery.start(Job(MODULE, "be_worker", str(folder), options))
        # It has the file open already, as the first one may be frozen while it holds the lock of all who write.
        second = nursery.start(Job(MODULE, "be_worker", str(folder), {**options, "signal_file": "frozen"}))
        wait_for(lambda: lines(folder / "ready") and lines(folder / "opened"))
        payer = agents_of(folder)[0]
        calls = [
            payer.bind(chance.randint(0, 80), chance.randint(50, 400), chance.randint(0, 100), chance.random() < 0.4)
            for _ in range(AT_ONCE)
        ]
        started = asyncio.run(client.start_all(calls))
        wait_for(lambda: lines(folder / "inside"))
        time.sleep(chance.uniform(0, 0.06))
        nursery.stop(first)
        note(folder / "frozen", "now")
        asyncio.run(_answer_until_taken_over(client, folder, first))
        if not killable:
            nursery.go_on(first)
        asyncio.run(_answer_until_all_have_ended(client, folder))
        paid = counted(folder / "ledger")
        rows = client.store.read(task_lists.recent, limit=200)
        results = {asyncio.run(task.result()) for task in started}
        first_lives = Path(f"/proc/{first}").exists()
        for pid in {second} if killable else {first, second}:
            nursery.terminate(pid)
            nursery.until_gone(pid)
        wrong = [*client.store.read(broken), *lines(folder / "errors")]
        return _Seen(paid, results, {str(row.status) for row in rows}, wrong, first_lives)


async def _answer_until_taken_over(client: Client, folder: Path, frozen: int) -> None:
    """Answer what is asked, truthfully at that moment, until nothing is left that moves."""
    began = quiet_since = time.monotonic()
    while time.monotonic() < quiet_since + 0.5:
        with suppress(StoreBusy):
            if await tell_the_truth(client, folder / "ledger") or not _is_taken_over(client, frozen):
                quiet_since = time.monotonic()
        if time.monotonic() > began + 5:
            # Frozen while it held the lock of all who write: nobody can take over before it wakes, or is ended.
            return
        await asyncio.sleep(0.02)


def _is_taken_over(client: Client, frozen: int) -> bool:
    owners = [one for one in client.store.read(instances.listing) if one.pid == frozen]
    return all(one.status in ("crashed", "stopped") for one in owners)


async def _answer_until_all_have_ended(client: Client, folder: Path) -> None:
    async with asyncio.timeout(60):
        while await client.tasks(open=True, limit=1):
            await tell_the_truth(client, folder / "ledger")
            await asyncio.sleep(0.02)


# -- a loop that is blocked -----------------------------------------------------------------

SLOW = Settings(heartbeat_s=0.1, lease_s=4, sweep_s=0.05, poll_ms=20, permits=4, main_permits=1)


def blocking_agents(folder: Path) -> list[Any]:
    """An agent that blocks its event loop, as careless code does, once the other worker is there to see it."""

    @perdure.tool(risk="low")
    async def after(n: int) -> int:
        note(folder / "after", str(os.getpid()))
        return n

    @perdure.agent
    async def blocker(blocked_ms: int) -> int:
        note(folder / "entered", str(os.getpid()))
        if len(lines(folder / "entered")) == 1:
            await until((folder / "watched").exists)
            time.sleep(blocked_ms / 1000)  # careless code is what is tested
        return await after(blocked_ms)

    return [blocker]


async def be_blocked(folder: Path) -> None:
    """Work until told to stop."""
    await work(folder, blocking_agents(folder), SLOW)


@pytest.mark.slow(timeout_s=60)
@pytest.mark.parametrize(("share", "attempts"), [(0.85, 1), (1.2, 2)])
def test_a_loop_blocked_for_less_than_a_lease_is_left_alone_and_for_longer_is_fenced(
    tmp_path: Path, share: float, attempts: int
) -> None:
    blocked_ms = int(share * SLOW.lease_s * 1000)
    with Nursery() as nursery, client_of(tmp_path, SLOW) as client:
        first = nursery.start(Job(MODULE, "be_blocked", str(tmp_path), {}))
        wait_for(lambda: lines(tmp_path / "ready"))
        (task,) = asyncio.run(client.start_all([blocking_agents(tmp_path)[0].bind(blocked_ms)]))
        wait_for(lambda: lines(tmp_path / "entered"))
        second = nursery.start(Job(MODULE, "be_blocked", str(tmp_path), {}))
        wait_for(lambda: len(lines(tmp_path / "ready")) == 2)
        note(tmp_path / "watched", "now")
        result = asyncio.run(task.result(timeout=30))
        tried = client.store.read(task_lists.attempts, task.id)
        wait_for(lambda: str(first) in lines(tmp_path / "after"))  # It wakes in either case, and may say it again.
        for pid in (first, second):
            nursery.terminate(pid)
            nursery.until_gone(pid)
        last = client.store.read(task_lists.attempts, task.id)

    assert result == blocked_ms
    assert len(tried) == attempts
    assert [one.status for one in tried].count(AttemptStatus.COMPLETED) == 1
    assert last == tried
    assert lines(tmp_path / "errors") == []
