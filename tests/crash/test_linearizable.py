"""Claims, writes of owners, ends and admissions of many connections at once can be put in one order that explains
every answer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from perdure.errors import IllegalTransition, KeyConflict, LeaseLost
from perdure.model.instance import InstanceType
from perdure.model.task import Fence
from perdure.settings import Settings
from perdure.store import Store, admission, ends, instances, open_store, steps, tasks
from perdure.store.instances import Registration
from tests.faults.linear import Admission, History, Operation, Ownership, check, run_threads
from tests.world import new_step, new_task, packed

HISTORIES = 10_000 if os.environ.get("PERDURE_LONG") else 200
THREADS = 4
MOVES = 6


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """The same database, opened once for each thread."""
    where = str(tmp_path / "agents.db")
    if request.param == "postgres":
        where = request.getfixturevalue("postgres_url")
    with ExitStack() as stack:
        yield [stack.enter_context(open_store(where, settings=Settings())) for _ in range(THREADS)]


@pytest.mark.slow(timeout_s=3600 if os.environ.get("PERDURE_LONG") else 120)
def test_who_owns_a_task_is_one_story(stores: list[Store]) -> None:
    workers = [_register(store, number) for number, store in enumerate(stores)]
    for seed in range(HISTORIES):
        history = History()
        task_ids = [stores[0].call(admission.admit, [new_task(work=[seed, n])]).tasks[0].id for n in range(2)]

        def work(number: int, seed: int = seed, history: History = history, ids: list[str] = task_ids) -> None:
            _live(stores[number], workers[number], history, ids, random.Random(seed * 100 + number))

        run_threads(work, THREADS)
        assert check(history, Ownership()) is None, seed


def _live(store: Store, worker: Registration, history: History, task_ids: list[str], chance: random.Random) -> None:
    """Do what comes to mind with tasks that others hold too."""
    seen: dict[str, str] = {}  # the execution id that this thread believes to be the owner's
    for _ in range(MOVES):
        task_id = chance.choice(task_ids)
        execution_id = seen.get(task_id)
        if execution_id is None or chance.random() < 0.3:
            operation = history.call("claim", task_id)
            claim = store.call(tasks.claim_this, task_id, instance_id=worker.id, generation=worker.generation)
            history.answer(operation, None if claim is None else claim.execution_id)
            if claim is not None:
                seen[task_id] = claim.execution_id
            continue
        _write(store, history, Fence(task_id, execution_id, worker.generation), chance)


def _write(store: Store, history: History, fence: Fence, chance: random.Random) -> None:
    """One write of an owner, or of somebody who believes to be it."""
    task_id, execution_id = fence.task_id, fence.execution_id
    match chance.choice(["record", "complete", "interrupt", "cancel"]):
        case "record":
            operation = history.call("record", task_id, execution_id)
            step = new_step(f"{execution_id} {chance.random()}")
            history.answer(operation, _goes_through(lambda: store.call(steps.begin, fence, step)))
        case "complete":
            operation = history.call("complete", task_id, execution_id)
            result = packed("done")
            history.answer(operation, _goes_through(lambda: store.call(ends.complete, fence, result, risk_seen="low")))
        case "interrupt":
            _interrupt_and_recover(store, history, task_id, execution_id)
        case _:
            operation = history.call("cancel", task_id)
            history.answer(operation, store.call(ends.cancel, task_id))


def _interrupt_and_recover(store: Store, history: History, task_id: str, execution_id: str) -> None:
    """In one transaction, so that one answer tells both."""
    operation = history.call("interrupt", task_id, execution_id)

    def both(tx: object) -> bool:
        won = tasks.interrupt(tx, task_id, execution_id, reason="gone")  # type: ignore[arg-type]  # a transaction
        if won:
            row = tasks.get(tx, task_id)  # type: ignore[arg-type]  # the same
            assert tasks.recover(tx, row, revision=row.revision, counts=False)  # type: ignore[arg-type]  # the same
        return won

    history.answer(operation, store.call(both))


def _goes_through(write: Callable[[], object]) -> bool:
    try:
        write()
    except (LeaseLost, IllegalTransition):
        return False
    return True


@pytest.mark.slow(timeout_s=3600 if os.environ.get("PERDURE_LONG") else 120)
def test_a_key_is_one_story(stores: list[Store]) -> None:
    for seed in range(HISTORIES):
        history = History()

        def work(number: int, seed: int = seed, history: History = history) -> None:
            chance = random.Random(seed * 100 + number)
            for _ in range(3):
                _admit(stores[number], history, f"key {seed}", chance.randint(0, 1))

        run_threads(work, THREADS)
        assert check(history, Admission()) is None, seed


def _admit(store: Store, history: History, key: str, kind: int) -> None:
    operation: Operation = history.call("admit", key, kind)
    try:
        admitted = store.call(admission.admit, [new_task(work=kind, key=key)])
        history.answer(operation, admitted.tasks[0].id)
    except KeyConflict:
        history.answer(operation, "conflict")


def _register(store: Store, number: int) -> Registration:
    return store.call(
        instances.register,
        instance_id=f"worker-{number}",
        type=InstanceType.EXECUTOR,
        host="host",
        boot_id="boot",
        pid=1,
        killable=False,
        agents=[("writer", "")],
    )


def test_the_checker_finds_an_owner_that_two_believe_in() -> None:
    history = History()
    for execution_id in ("one", "other"):
        history.answer(history.call("claim", "task"), execution_id)

    assert check(history, Ownership()) is not None


def test_the_checker_finds_a_read_of_the_past() -> None:
    history = History()
    history.answer(history.call("claim", "task"), "one")
    history.answer(history.call("complete", "task", "one"), True)
    history.answer(history.call("record", "task", "one"), True)

    assert "record" in str(check(history, Ownership()))
