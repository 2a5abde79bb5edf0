"""Instances: which worker processes live. A generation proves identity; only silence or a free lock proves death."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perdure.errors import NotFound
from perdure.model.instance import Instance, InstanceType
from perdure.store import last_words, order
from perdure.store import tasks as task_ops
from perdure.store.database import Transaction
from perdure.store.last_words import LastWord
from perdure.store.queries import as_rows, load
from perdure.store.sessions import check_id

Q = load("instances")
T = load("tasks")
Sets = load("sets")


@dataclass(frozen=True, slots=True)
class Registration:
    """What a process learns when it registers: its row, id and generation."""

    n: int
    id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Held:
    """A task that the database says this instance owns."""

    task_id: str
    execution_id: str
    status: str
    deadline_at: int | None
    pause_requested_at: int | None


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat tells: whether the instance still counts as alive, and what it owns."""

    alive: bool
    status: str
    owned: tuple[Held, ...]


def register(
    tx: Transaction,
    *,
    instance_id: str,
    type: InstanceType,
    host: str,
    boot_id: str,
    pid: int,
    killable: bool,
    agents: Collection[tuple[str, str]] = (),
) -> Registration:
    """Take a new generation and begin to beat. `agents` are (name, version) pairs this process can run."""
    check_id(instance_id, "instance")
    for agent, _version in agents:
        check_id(agent, "agent")
    row = tx.one(Q.next_generation)
    assert row is not None
    generation = int(row[0])
    row = tx.one(
        Q.insert,
        id=instance_id,
        type=type,
        host=host,
        boot_id=boot_id,
        pid=pid,
        generation=generation,
        killable=int(killable),
    )
    assert row is not None
    for agent, version in sorted(agents):
        tx.run(Q.insert_agent, instance=row[0], agent=agent, version=version)
    return Registration(row[0], instance_id, generation)


def beat(tx: Transaction, instance_id: str, *, generation: int, held: Collection[str]) -> Beat:
    """Raise the counter and reconcile: attempts the database has open here but `held` (execution ids) does not
    name are interrupted, for nobody runs them. A crashed or stopped instance stays so and learns it.
    """
    row = tx.one(Q.beat, id=instance_id)
    if row is None:
        return Beat(False, get(tx, instance_id).status, ())
    owned = [Held(*found) for found in tx.all(T.owned_by_generation, generation=generation)]
    kept = []
    for one in owned:
        if one.execution_id in held:
            kept.append(one)
        else:
            task_ops.interrupt(tx, one.task_id, one.execution_id, reason="its worker no longer holds it")
    return Beat(True, row[1], tuple(kept))


def owned(tx: Transaction, *, generation: int) -> list[Held]:
    """What the database says a generation owns."""
    return [Held(*found) for found in tx.all(T.owned_by_generation, generation=generation)]


def get(tx: Transaction, instance_id: str) -> Instance:
    """The instance. Raises NotFound."""
    row = tx.one(Q.get, id=check_id(instance_id, "instance"))
    if row is None:
        raise NotFound(f"there is no instance {instance_id}")
    return Instance.from_row(row)


def alive(tx: Transaction) -> list[Instance]:
    """Instances that count as alive, oldest first."""
    return [Instance.from_row(row) for row in tx.all(Q.alive)]


def crashed(tx: Transaction, *, host: str, boot_id: str, skip: int = 0, limit: int = 100) -> list[Instance]:
    """Instances of this machine that fell silent and have not been proven dead, oldest first, but the first `skip`."""
    return [Instance.from_row(row) for row in tx.all(Q.crashed, host=host, boot_id=boot_id, skip=skip, limit=limit)]


def listing(tx: Transaction, *, limit: int = 100) -> list[Instance]:
    """Instances, newest first."""
    return [Instance.from_row(row) for row in tx.all(Q.list, limit=limit)]


def mark_crashed(tx: Transaction, instance_id: str, *, heartbeat: int) -> bool:
    """Declare an instance silent, unless it has beaten since the observer looked. True if this call did it."""
    won = tx.run(Q.crash, id=instance_id, heartbeat=heartbeat) == 1
    if won:
        tx.hint()
    return won


def mark_stopped(tx: Transaction, *instance_ids: str, words: Sequence[LastWord] = ()) -> bool:
    """A process has ended, or has acknowledged that it no longer owns anything, under one identity or several.

    Who sees that it is dead also sees its last words. True if it was not stopped yet; idempotent. Locks the instances,
    then tasks, then the counter of everybody.
    """
    stopped = [one for one in sorted(instance_ids) if tx.run(Q.stop, id=one) == 1]
    last_words.tell(tx, words)
    for instance_id in stopped:
        tx.run(Q.place_stop, id=instance_id, order=order.take(tx))
    if stopped:
        tx.hint()
    return bool(stopped)


def interrupt_orphans(tx: Transaction, *, limit: int = 100) -> list[str]:
    """End the open attempts of instances that are silent or dead. Returns the ids of their tasks; a second pass
    finds none.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for task_id, execution_id, instance_id in tx.all(T.orphans, limit=limit):
        found.setdefault(instance_id, []).append((task_id, execution_id))
    if len(found) > 1:
        # All in the order of their ids: a pass holds many tasks at once, as a cascading end does.
        tx.lock(Sets.lock_owned, rows=as_rows([one for owned in found.values() for one in owned]))
    done = []
    for instance_id, owned in found.items():
        done += task_ops.interrupt_all(tx, owned, reason=f"worker {instance_id} is silent or dead")
    return sorted(done)


def alive_with_agent(tx: Transaction, agent: str, version: str) -> list[Instance]:
    """Instances that count as alive and can run an agent. Version "" is any."""
    return [Instance.from_row(row) for row in tx.all(Q.alive_with_agent, agent=agent, version=version)]


def last_with_agent(tx: Transaction, agent: str, version: str) -> tuple[str, int] | None:
    """Who could run an agent last: (host, last heartbeat), or None when nobody ever could. Version "" is any."""
    row = tx.one(Q.last_with_agent, agent=agent, version=version)
    return None if row is None else (row[0], row[1])
