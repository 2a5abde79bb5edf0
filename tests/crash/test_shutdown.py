"""SIGTERM with hundreds of tasks: everything is handed back or ends in time, goes on elsewhere, and nobody is asked."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.client import Client
from perdure.settings import Settings
from perdure.store import questions, task_lists, tasks, traces
from perdure.testing.invariants import broken
from tests.crashing import Job, Nursery, client_of, counted, lines, note, wait_for, work

TASKS = 500
MODULE = "tests.crash.test_shutdown"
SETTINGS = Settings(
    heartbeat_s=0.5,
    lease_s=5,
    sweep_s=0.1,
    poll_ms=50,
    permits=300,
    main_permits=2,
    waiting_in_memory=200,
    shutdown_grace_s=10,
)
BRIEF = Settings(heartbeat_s=0.2, lease_s=1, sweep_s=0.05, poll_ms=20, shutdown_grace_s=0.3)


def agents_of(folder: Path) -> list[Any]:
    """Each makes one dangerous call, and then stands between two steps: half of them wait, half of them think."""

    @perdure.tool
    async def pay(n: int) -> str:
        token = perdure.current().token
        note(folder / "ledger", f"paid {token}")
        return token

    @perdure.agent
    async def payer(n: int) -> str:
        token = await pay(n)
        if n % 2:
            await perdure.receive("go")
        elif not (folder / "second").exists():
            await asyncio.sleep(3600)
        return token

    @perdure.tool
    async def slow(ms: int) -> str:
        token = perdure.current().token
        note(folder / "inside", token)
        await asyncio.sleep(ms / 1000)
        note(folder / "ledger", f"paid {token}")
        return token

    @perdure.agent
    async def in_a_call(ms: int) -> str:
        return await slow(ms)

    return [payer, in_a_call]


async def be_worker(folder: Path, *, brief: bool = False) -> None:
    """Work until told to stop."""
    await work(folder, agents_of(folder), BRIEF if brief else SETTINGS)


@pytest.mark.slow(timeout_s=120)
def test_hundreds_of_tasks_are_handed_back_and_go_on_elsewhere_and_nobody_is_asked(tmp_path: Path) -> None:
    payer = agents_of(tmp_path)[0]
    with Nursery() as nursery, client_of(tmp_path, SETTINGS) as client:
        first = nursery.start(Job(MODULE, "be_worker", str(tmp_path), {}))
        started = asyncio.run(client.start_all(payer.bind(n) for n in range(TASKS)))
        wait_for(lambda: len(lines(tmp_path / "ledger")) == TASKS)
        before = time.monotonic()
        nursery.terminate(first)
        nursery.until_gone(first)
        took_s = time.monotonic() - before
        (stopped,) = lines(tmp_path / "stopped")
        counts = client.store.read(task_lists.counts_by_status)

        note(tmp_path / "second", "here")
        nursery.start(Job(MODULE, "be_worker", str(tmp_path), {}))
        asyncio.run(_send_all(client, [task.id for n, task in enumerate(started) if n % 2]))
        results = asyncio.run(_results(started))
        asked = client.store.read(lambda tx: [q for task in started for q in questions.of_task(tx, task.id)])
        rows = [client.store.read(tasks.get, task.id) for task in started]
        wrong = client.store.read(broken)

    _pid, handed_back, interrupted = stopped.split()
    assert int(interrupted) == 0
    # Those beyond the limit had given up their memory before, and belonged to nobody.
    assert int(handed_back) + counts.get("waiting", 0) >= TASKS - 1
    assert set(counts) <= {"pending", "waiting"}
    assert took_s < SETTINGS.shutdown_grace_s
    assert sorted(results) == sorted(line.split()[1] for line in lines(tmp_path / "ledger"))
    assert set(counted(tmp_path / "ledger").values()) == {1}
    assert asked == []
    assert {(row.recoveries, row.failures) for row in rows} == {(0, 0)}
    assert wrong == []
    assert lines(tmp_path / "errors") == []


async def _send_all(client: Client, task_ids: list[str]) -> None:
    for task_id in task_ids:
        await client.send(task_id, "go")


async def _results(started: list[Any]) -> list[str]:
    return [await task.result(timeout=60) for task in started]


@pytest.mark.slow(timeout_s=60)
def test_a_call_in_flight_ends_within_the_grace_time(tmp_path: Path) -> None:
    in_a_call = agents_of(tmp_path)[1]
    with Nursery() as nursery, client_of(tmp_path, SETTINGS) as client:
        first = nursery.start(Job(MODULE, "be_worker", str(tmp_path), {}))
        (task,) = asyncio.run(client.start_all([in_a_call.bind(700)]))
        wait_for(lambda: lines(tmp_path / "inside"))
        nursery.terminate(first)
        nursery.until_gone(first)
        (step,) = [s for s in client.store.read(_steps, task.id) if s.name == "slow"]
        status = client.store.read(tasks.get, task.id).status

    assert step.outcome == "completed"
    assert status in ("pending", "completed")  # Handed back, or it had nothing left to do.
    assert len(lines(tmp_path / "ledger")) == 1


def _steps(tx: Any, task_id: str) -> Any:

    return traces.read(tx, task_id).steps


@pytest.mark.slow(timeout_s=60)
@pytest.mark.parametrize("is_hurried", [False, True])
def test_a_call_beyond_the_grace_time_is_interrupted_and_found_out_about(tmp_path: Path, is_hurried: bool) -> None:
    in_a_call = agents_of(tmp_path)[1]
    options = {"brief": not is_hurried}
    with Nursery() as nursery, client_of(tmp_path, BRIEF) as client:
        first = nursery.start(Job(MODULE, "be_worker", str(tmp_path), options))
        (task,) = asyncio.run(client.start_all([in_a_call.bind(60_000)]))
        wait_for(lambda: lines(tmp_path / "inside"))
        before = time.monotonic()
        nursery.terminate(first)
        if is_hurried:
            _terminate_until_gone(nursery, first)  # The second signal leaves at once.
        nursery.until_gone(first)
        took_s = time.monotonic() - before
        nursery.start(Job(MODULE, "be_worker", str(tmp_path), {"brief": True}))
        question = asyncio.run(_question(client))
        asyncio.run(question.resolve(perdure.happened("so they say"), by="the test"))
        result = asyncio.run(task.result(timeout=30))

    assert result == "so they say"
    assert question.kind == "step_in_doubt"
    assert took_s < 5
    assert lines(tmp_path / "ledger") == []


def _terminate_until_gone(nursery: Nursery, pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        try:
            os.kill(pid, 15)
        except ProcessLookupError:
            return
        time.sleep(0.01)


async def _question(client: Client) -> Any:
    async with asyncio.timeout(30):
        while not (found := await client.questions()):
            await asyncio.sleep(0.02)
    return found[0]
