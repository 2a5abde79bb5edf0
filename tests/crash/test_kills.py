"""kill -9 of real workers, again and again: nothing acknowledged is lost, nothing dangerous happens twice, nothing is
stuck.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.client import Client
from perdure.settings import Settings
from perdure.store import task_lists, tasks
from perdure.testing.invariants import broken
from tests.crashing import Job, Nursery, client_of, counted, lines, note, tell_the_truth, wait_for, work

ROUNDS = 10_000 if os.environ.get("PERDURE_LONG") else 200
WORKERS = 2
LONGEST_ROUND_S = 0.12
SETTINGS = Settings(
    heartbeat_s=0.2,
    lease_s=1,
    sweep_s=0.05,
    poll_ms=20,
    permits=8,
    main_permits=1,
    recovery_limit=1000,
    shutdown_grace_s=2,
)


# -- in the workers -------------------------------------------------------------------------


def agents_of(folder: Path) -> list[Any]:
    """The agents of a worker; what their tools do is a line in the ledger."""
    ledger = folder / "ledger"

    async def find(doubt: perdure.Doubt) -> perdure.Verdict[str]:
        done = f"paid {doubt.token}" in counted(ledger)
        return perdure.happened(doubt.token) if done else perdure.not_happened()

    async def act() -> str:
        token = perdure.current().token
        await asyncio.sleep(0)
        note(ledger, f"paid {token}")
        await asyncio.sleep(0)
        return token

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        return n + 1

    @perdure.tool(risk="medium", idempotent=True)
    async def remember(n: int) -> str:
        token = perdure.current().token
        note(folder / "remembered", token)
        return token

    @perdure.tool(reconcile=find)
    async def pay(n: int) -> str:
        return await act()

    @perdure.tool
    async def wire(n: int) -> str:
        return await act()

    @perdure.tool(risk="low")
    async def combined(n: int) -> str:
        return f"{await look(n)} {await pay(n)}"

    @perdure.agent
    async def child(n: int) -> str:
        return await combined(n)

    @perdure.agent
    async def job(n: int) -> list[str]:
        first = await look(n)
        second = await pay(n)
        third = await perdure.gather(child(n), wire(n), remember(first))
        await perdure.sleep(0.01)
        return [second, *third, await pay(n + 1)]

    return [job, child]


async def be_worker(folder: Path, *, first: int) -> None:
    """Work, and start tasks beside; tell what was acknowledged."""
    agents = agents_of(folder)

    async def start_tasks(client: Client) -> None:
        for n in range(first, first + 1000):
            task = await client.start(agents[0].options(key=f"job {n}"), n)
            note(folder / "acknowledged", f"admitted {task.id}")
            loop = asyncio.get_running_loop()
            following.append(loop.create_task(follow(client, task.id)))
            await asyncio.sleep(0.01)

    async def follow(client: Client, task_id: str) -> None:
        await client.task(task_id).result()
        note(folder / "acknowledged", f"completed {task_id}")

    following: list[asyncio.Task[None]] = []
    await work(folder, agents, SETTINGS, beside=start_tasks)


# -- the test -------------------------------------------------------------------------------


@pytest.mark.slow(timeout_s=4000 if os.environ.get("PERDURE_LONG") else 180)
def test_nothing_is_lost_doubled_or_stuck_by_killing_workers(tmp_path: Path) -> None:
    chance = random.Random(7)
    with client_of(tmp_path, SETTINGS):
        pass  # The file is there before the first of them opens it.
    with Nursery() as nursery:
        for number in range(ROUNDS):
            told = len(lines(tmp_path / "acknowledged"))
            jobs = [
                Job("tests.crash.test_kills", "be_worker", str(tmp_path), {"first": 100_000 * worker + 10 * number})
                for worker in range(WORKERS)
            ]
            pids = [nursery.start(job) for job in jobs]
            wait_for(lambda told=told: len(lines(tmp_path / "acknowledged")) > told)  # type: ignore[misc]  # this round's
            time.sleep(chance.uniform(0, LONGEST_ROUND_S))
            for pid in pids:
                nursery.kill(pid)
        pid = nursery.start(Job("tests.crash.test_kills", "be_last_worker", str(tmp_path), {}))
        with client_of(tmp_path, SETTINGS) as client:
            asked = asyncio.run(_until_all_have_ended(client, tmp_path))
            nursery.terminate(pid)
            nursery.until_gone(pid)
            _check(client, tmp_path)
    print(f"{ROUNDS * WORKERS} kills, {len(lines(tmp_path / 'acknowledged'))} acknowledged, {asked} questions")


async def be_last_worker(folder: Path) -> None:
    """Bring everything to its end."""
    await work(folder, agents_of(folder), SETTINGS)


async def _until_all_have_ended(client: Client, folder: Path) -> int:
    asked = 0
    async with asyncio.timeout(100):
        while await client.tasks(open=True, limit=1):
            asked += await tell_the_truth(client, folder / "ledger")
            await asyncio.sleep(0.02)
    return asked


def _check(client: Client, folder: Path) -> None:
    assert lines(folder / "errors") == []
    wrong = client.store.read(broken)
    assert wrong == []
    paid = counted(folder / "ledger")
    assert [line for line, count in paid.items() if count > 1] == []
    admitted = {line.split()[1] for line in lines(folder / "acknowledged") if line.startswith("admitted")}
    completed = {line.split()[1] for line in lines(folder / "acknowledged") if line.startswith("completed")}
    assert len(admitted) > ROUNDS / 2
    for task_id in admitted | completed:
        row = client.store.read(tasks.get, task_id)
        assert row.status == "completed", row
    counts = client.store.read(task_lists.counts_by_status)
    assert set(counts) == {"completed"}, counts
    client.store.close()
    with apsw.Connection(str(folder / "agents.db"), flags=apsw.SQLITE_OPEN_READONLY) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tokens = connection.execute(
            "SELECT token FROM steps WHERE name IN ('pay', 'wire') AND outcome = 'completed'"
        ).fetchall()
    assert sorted(f"paid {token}" for (token,) in tokens) == sorted(paid)
