"""The order of locks: session, then task rows by id in one go, then questions; so nobody waits for anybody in a circle.
Instances come before them all, and the counter that everybody shares is the last.

Each operation is run through a transaction that writes down which rows its statements lock, in order. A hot verb
touches one task row and no session at all.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from perdure.errors import IllegalTransition, InvariantError, LeaseLost, NotFound, Refused
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.step import Note
from perdure.model.task import Claim, Mode, Wait, WaitKind
from perdure.policy.budget import Budget
from perdure.states import TaskStatus
from perdure.store import (
    admission,
    completions,
    ends,
    instances,
    last_words,
    messages,
    questions,
    recovery,
    steps,
    task_lists,
    tasks,
)
from perdure.store.database import Row, Transaction, Value
from perdure.store.last_words import LastWord, WordKind
from perdure.store.queries import Query
from tests.world import BOOM, World, done, new_step, new_task, packed, timer

# SQLite has one writer; there is nothing to wait for.
pytestmark = pytest.mark.parametrize("store_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)

LOCKING = re.compile(r"^(?:UPDATE|INSERT INTO) (\w+)")
ORDER = ("instances", "sessions", "tasks", "questions", "order")
# The statements that lock many rows, and the tables of these.
SETS = {
    "sets.lock_owned": "tasks",
    "sets.lock_sessions": "sessions",
    "sets.lock_plain": "tasks",
    "sets.lock_alone": "tasks",
}


@dataclass
class Recorder:
    """A transaction that writes down what it locks: (table, the ids of its rows)."""

    tx: Transaction
    log: list[tuple[str, list[str]]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)  # names of the statements that give no rows

    @property
    def now(self) -> int:
        return self.tx.now

    def one(self, query: Query, /, **values: Value) -> Row | None:
        row = self.tx.one(query, **values)
        self._note(query, values, [] if row is None else [row])
        return row

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        rows = self.tx.all(query, **values)
        self._note(query, values, rows)
        return rows

    def run(self, query: Query, /, **values: Value) -> int:
        self._note(query, values, [])
        self.writes.append(query.name)
        return self.tx.run(query, **values)

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        return self.tx.many(query, rows)

    def lock(self, query: Query, /, **values: Value) -> None:
        self.all(query, **values)

    def new_id(self) -> str:
        return self.tx.new_id()

    def new_token(self) -> str:
        return self.tx.new_token()

    def hint(self) -> None:
        self.tx.hint()

    def _note(self, query: Query, values: Mapping[str, Value], rows: list[Row]) -> None:
        if "FOR UPDATE" in query.postgres and not rows:
            return
        found = LOCKING.match(query.postgres)
        if query.name == "order.take":
            self.log.append(("order", [""]))
        elif "rows" in values:
            if query.name in SETS:  # Every other statement about a set writes what such a one has locked.
                self.log.append((SETS[query.name], [str(row[0]) for row in rows]))
        elif query.postgres.endswith("FOR UPDATE OF s"):
            self.log.append(("sessions", [str(row[0]) for row in rows]))
        elif query.postgres.endswith("FOR UPDATE"):
            table = query.name.partition(".")[0]
            ids = [str(row[1]) for row in rows] if query.name == "tasks.lock_family" else [str(values["id"])]
            assert ids == sorted(ids)
            self.log.append((table, ids))
        elif found is not None and found[1] in ORDER:
            self.log.append((found[1], [str(values.get("id", values.get("task", "")))]))


def _cut_off(claim: Claim, key: str = "pay") -> LastWord:
    return LastWord(claim.task.id, key, claim.task.attempt, WordKind.CUT_OFF)


def record(world: World, operation: Callable[..., object], *args: Any, **kwargs: Any) -> list[tuple[str, list[str]]]:
    """The locks of one operation, in the order they are taken for the first time."""

    def unit(tx: Transaction) -> list[tuple[str, list[str]]]:
        recorder = Recorder(tx)
        operation(recorder, *args, **kwargs)
        return recorder.log

    held: set[tuple[str, str]] = set()
    fresh = []
    for table, ids in world.store.call(unit):
        new = [one for one in ids if (table, one) not in held]
        held |= {(table, one) for one in ids}
        if new:
            fresh.append((table, new))
    return fresh


def tables(log: list[tuple[str, list[str]]]) -> list[str]:
    """The tables of a log, repeats in a row left out."""
    names = [table for table, _ in log]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


# -- the verbs that touch a session ----------------------------------------------------------


def _with_question(world: World) -> Claim:
    claim = world.start()
    world.ask(claim)
    return claim


def _resume_question(world: World) -> str:
    claim = world.start(risk="high")
    world.interrupt(claim)
    found = world.recover(claim.task.id)
    assert found is not None
    assert found.question_id is not None
    return found.question_id


def _family(world: World) -> Claim:
    root = world.start()
    for key in "abc":
        child = world.claim(world.spawn(root, key, mode=Mode.BACKGROUND).id)
        world.ask(child)
        world.spawn(child, "below")
    return root


SESSION_VERBS: dict[str, Callable[[World], list[tuple[str, list[str]]]]] = {
    "admit": lambda w: record(w, admission.admit, [new_task(key="k"), new_task(session_id="a")]),
    "spawn": lambda w: record(
        w, admission.admit_children, w.start().fence, [(new_step(key), new_task(key=key)) for key in "ab"]
    ),
    "complete": lambda w: record(w, ends.complete, _with_question(w).fence, packed(1), risk_seen="low"),
    "fail": lambda w: record(w, ends.fail, _family(w).fence, BOOM),
    "cancel": lambda w: record(w, ends.cancel, _family(w).task.id),
    "time_out": lambda w: record(w, ends.time_out, _family(w).task.id),
    "refuse": lambda w: record(w, ends.refuse, w.admit().id, BOOM),
    "ask": lambda w: record(
        w, questions.open_question, w.start().fence, questions.NewQuestion(QuestionKind.ASK, "?", packed({}))
    ),
    "answer": lambda w: record(w, questions.answer, w.ask(w.start()).id, by="ada", value=packed(1)),
    "approve": lambda w: record(w, questions.approve, _resume_question(w), by="ada"),
    "deny": lambda w: record(w, questions.deny, _resume_question(w), by="ada", reason=""),
    "begin within a budget": lambda w: record(
        w, steps.begin, w.start(budget=Budget(tool_calls=1)).fence, new_step("a"), counts=True
    ),
    "complete together": lambda w: record(
        w,
        completions.complete_all,
        [completions.Completion(w.start().fence, packed(1), Note("end", b"{}"), "low") for _ in range(3)],
    ),
    "recover together": lambda w: record(
        w, recovery.resume_plain, [_interrupted(w).task.id for _ in range(3)], recovery_limit=3
    ),
    "recover": lambda w: record(w, recovery.act, _interrupted(w).task.id, recovery_limit=3, question_expiry_ms=1000),
    "recover a declared risk": lambda w: record(
        w, recovery.act, _interrupted(w, risk="high").task.id, recovery_limit=3, question_expiry_ms=1000
    ),
}


def _interrupted(world: World, **fields: Any) -> Claim:
    claim = world.start(**fields)
    world.interrupt(claim)
    return claim


@pytest.mark.parametrize("verb", SESSION_VERBS)
def test_session_then_tasks_then_questions(world: World, verb: str) -> None:
    log = SESSION_VERBS[verb](world)

    names = tables(log)
    assert names == sorted(names, key=ORDER.index), log
    assert names[0] == "sessions", log
    assert "tasks" in names, log


@pytest.mark.parametrize("verb", ["cancel", "time_out", "fail"])
def test_all_task_rows_that_an_end_touches_are_locked_in_one_statement(world: World, verb: str) -> None:
    log = SESSION_VERBS[verb](world)

    (locked,) = [ids for table, ids in log if table == "tasks"]
    assert len(locked) == 7
    assert locked == sorted(locked)


# -- the hot verbs ---------------------------------------------------------------------------


HOT_VERBS: dict[str, Callable[[World, Claim], list[tuple[str, list[str]]]]] = {
    "begin": lambda w, c: record(w, steps.begin, c.fence, new_step("k", risk="high"), question_id=w.ask(c).id),
    "complete step": lambda w, c: record(
        w, steps.complete, c.fence, new_step("k"), done(question_id=w.ask(c).id), begun=False
    ),
    "begin again": lambda w, c: record(w, steps.begin_again, c.fence, "open", 0, question_id=w.ask(c).id),
    "wait": lambda w, c: record(w, tasks.wait, c.fence, timer(1)),
    "release": lambda w, c: record(w, tasks.release, c.fence, reason=""),
    "retry": lambda w, c: record(w, tasks.retry, c.fence, available_at=1, error=BOOM),
    "interrupt": lambda w, c: record(w, tasks.interrupt, c.task.id, c.execution_id, reason=""),
    "message": lambda w, c: record(w, messages.append, c.fence, NewMessage("user", b"1"), step_key="k"),
    "checkpoint": lambda w, c: record(w, messages.save_checkpoint, c.fence, packed(1), step_key="k"),
    "event": lambda w, c: record(w, messages.emit_owned, c.fence, "mine", {}),
    "send": lambda w, c: record(w, messages.send, c.task.id, name="n", key="k", payload=packed(1), unread_limit=10),
}
WAITING_VERBS: dict[str, Callable[[World, Claim], list[tuple[str, list[str]]]]] = {
    "restore": lambda w, c: record(w, tasks.restore, c.fence),
    "suspend": lambda w, c: record(w, tasks.suspend, c.fence),
}


@pytest.mark.parametrize("verb", [*HOT_VERBS, *WAITING_VERBS, "wake", "claim"])
def test_a_hot_verb_locks_one_task_row_and_no_session(world: World, verb: str) -> None:
    claim = world.start()
    world.begin(claim, "open", risk="high")
    if verb in HOT_VERBS:
        log = HOT_VERBS[verb](world, claim)
    elif verb in WAITING_VERBS:
        world.wait_for(claim, *timer(world.clock.now_ms() + 1000))
        log = WAITING_VERBS[verb](world, claim)
    elif verb == "wake":
        world.set_aside(claim, *timer(world.clock.now_ms() + 1000))
        log = record(world, tasks.wake, claim.task.id)
    else:
        other = world.admit()
        who = world.worker
        log = record(world, tasks.claim_this, other.id, instance_id=who.id, generation=who.generation)

    assert [table for table, _ in log if table != "questions"] == ["tasks"], log
    # What a step uses up is locked after the proof that it may.
    assert tables(log) in (["tasks"], ["tasks", "questions"])


def test_a_pass_over_many_attempts_takes_them_by_id(world: World) -> None:
    for _ in range(10):
        world.start()

    beat = record(world, instances.beat, world.worker.id, generation=world.worker.generation, held=())
    # Claimed from the last to the first, so that the attempts lie in the other order.
    for task_id in reversed([ids[0] for table, ids in beat if table == "tasks"]):
        world.recover(task_id)
        world.claim(task_id)
    world.store.call(instances.mark_stopped, world.worker.id)
    orphans = record(world, instances.interrupt_orphans)

    for log in (beat, orphans):
        locked = [one for table, ids in log if table == "tasks" for one in ids]
        assert len(locked) == 10
        assert locked == sorted(locked)
    assert tables(beat) == ["instances", "tasks"]


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_that_leaves_takes_a_place_last_of_all(world: World, told: bool) -> None:
    identities = [world.new_worker().id for _ in range(2)]
    claims = [world.start() for _ in range(3)]
    for claim in claims:
        world.begin(claim, "pay", risk="high")
    words = [_cut_off(claim) for claim in reversed(claims)] if told else []

    log = record(world, instances.mark_stopped, *reversed(identities), words=words)

    assert tables(log) == ["instances", *(["sessions", "tasks"] if told else []), "order"]
    for table in ("instances", "sessions", "tasks"):
        locked = [one for name, ids in log if name == table for one in ids]
        assert locked == sorted(locked)


def test_a_delivery_is_taken_after_the_owner_is_proven(world: World) -> None:
    lost = world.start()
    world.store.call(messages.send, lost.task.id, name="n", key="k", payload=packed(1), unread_limit=10)
    world.interrupt(lost)
    recorders: list[Recorder] = []

    def unit(tx: Transaction) -> None:
        recorders.append(Recorder(tx))
        steps.complete(recorders[-1], lost.fence, new_step("r"), done(delivery=1), begun=False)

    with pytest.raises(LeaseLost):
        world.store.call(unit)
    assert [recorder.writes for recorder in recorders] == [[]]


# -- all at once -----------------------------------------------------------------------------

_EXPECTED = (LeaseLost, IllegalTransition, NotFound, InvariantError, Refused)
STRESS_S = 5.0
THREADS = 8
# Also those after which a unit was run again and nobody noticed.
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@dataclass
class Crowd:
    """What threads do to a few families of tasks at once."""

    world: World
    claims: list[Claim]
    task_ids: list[str]
    question_ids: list[str]

    def act(self, random: Random) -> None:
        """One random verb on a random task; a refusal is fine, anything else is not."""
        call = self.world.store.call
        claim, task_id = random.choice(self.claims), random.choice(self.task_ids)
        who = random.choice(self.world._workers)
        match random.randrange(16):
            case 0 if random.random() < 0.1:
                call(ends.cancel, task_id)
            case 1:
                call(ends.complete, claim.fence, packed(1), risk_seen="low")
            case 2 if random.random() < 0.2:
                call(ends.fail, claim.fence, BOOM)
            case 3:
                key = f"{random.random()}"
                mode = random.choice(list(Mode))
                made = call(admission.admit_children, claim.fence, [(new_step(key), new_task(key=key, mode=mode))])
                self.task_ids.append(made.tasks[0].id)
            case 4:
                asked = self.world.ask(claim, step_key=f"{random.randrange(5)}")
                self.question_ids.append(asked.id)
            case 5:
                call(questions.answer, random.choice(self.question_ids), by="ada", value=packed(1))
            case 6:
                children = [one.id for one in self.world.store.read(task_lists.children, claim.task.id)]
                waits = [Wait(WaitKind.CHILDREN, tuple(children)), Wait(WaitKind.RECEIVE, ("mail",))]
                self.world.set_aside(claim, *waits)
            case 7 | 8:
                found = call(tasks.claim_this, task_id, instance_id=who.id, generation=who.generation)
                if found is not None:
                    self.claims.append(found)
            case 9 if random.random() < 0.5:
                for one in random.sample(self.claims, min(4, len(self.claims))):
                    call(tasks.interrupt, one.task.id, one.execution_id, reason="")
                some = random.sample(self.task_ids, min(9, len(self.task_ids)))
                call(recovery.resume_plain, some, recovery_limit=10**6)
            case 10 if random.random() < 0.3:
                some_claims = random.sample(self.claims, min(3, len(self.claims)))
                call(
                    completions.complete_all,
                    [completions.Completion(one.fence, packed(1), Note("end", b"{}"), "low") for one in some_claims],
                )
            case 9:
                call(tasks.interrupt, claim.task.id, claim.execution_id, reason="")
                call(recovery.act, claim.task.id, recovery_limit=10**6, question_expiry_ms=1000)
            case 10:
                call(instances.beat, who.id, generation=who.generation, held={one.execution_id for one in self.claims})
            case 11:
                call(messages.send, task_id, name="mail", key=None, payload=packed(1), unread_limit=1000)
            case 12:
                call(steps.complete, claim.fence, new_step(f"{random.random()}"), done(), begun=False)
            case 13:
                call(steps.begin, claim.fence, new_step(f"{random.random()}"), counts=True)
            case 14:
                key = f"{random.random()}"
                call(steps.begin, claim.fence, new_step(key, risk="high"))
                some_claims = random.sample(self.claims, min(3, len(self.claims)))
                call(last_words.tell, [_cut_off(one, key) for one in (claim, *some_claims)])
            case _:
                self.claims.append(self.world.start())
                self.task_ids.append(self.claims[-1].task.id)


@pytest.mark.slow(timeout_s=60)
def test_many_verbs_on_few_families_never_wait_in_a_circle(world: World) -> None:
    for _ in range(2):
        world.new_worker()
    roots = [world.start() for _ in range(4)]
    asked = [world.ask(root) for root in roots]
    crowd = Crowd(world, list(roots), [root.task.id for root in roots], [one.id for one in asked])
    before = world.rows(DEADLOCKS)
    stop = time.monotonic() + STRESS_S
    broken: list[BaseException] = []
    acted = [0] * THREADS

    def work(number: int) -> None:
        random = Random(number)
        while time.monotonic() < stop and not broken:
            try:
                crowd.act(random)
            except _EXPECTED:
                continue
            except BaseException as error:  # noqa: BLE001  # Shown by the test's own thread.
                broken.append(error)
            acted[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    if broken:
        raise broken[0]
    assert min(acted) > 10
    assert world.rows(DEADLOCKS) == before
    _check_what_is_left(world)


def _check_what_is_left(world: World) -> None:
    """However it went: nobody waits for what has happened, and what has ended left nothing open."""
    questions_of_the_dead = (
        "SELECT q.id FROM questions q JOIN tasks t ON t.n = q.task"
        " WHERE q.status = 'open' AND t.finished_at IS NOT NULL"
    )
    attempts_of_nobody = (
        "SELECT a.execution_id FROM attempts a JOIN tasks t ON t.n = a.task"
        " WHERE a.ended_at IS NULL AND (t.execution_id IS NULL OR t.execution_id <> a.execution_id)"
    )
    assert world.rows(questions_of_the_dead) == []
    assert world.rows(attempts_of_nobody) == []
    set_aside = [row[0] for row in world.rows("SELECT id FROM tasks WHERE status = 'waiting' AND execution_id IS NULL")]
    for task_id in set_aside:
        task = world.task(task_id)
        assert task.status is TaskStatus.WAITING
        assert not any(world.store.read(tasks.has_happened, task_id, wait) for wait in task.waiting_for), task
