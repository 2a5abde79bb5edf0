"""The whole life of tasks against a model small enough to be read: random verbs, late fences, a clock that goes back.

The model holds what each verb must do in plain dictionaries. After each step every row must be as the model has it;
at the end the story of every task must tell its row. PERDURE_MODEL_EXAMPLES multiplies how many lives are tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from perdure.clock import FakeClock, RandomIds
from perdure.errors import IllegalTransition, InvariantError, LeaseLost, PerdureError, Refused, StoreError
from perdure.model.step import StepKind
from perdure.model.task import Claim, Mode, Usage, Wait, WaitKind
from perdure.states import TASK
from perdure.store import MEMORY, Store, open_store, questions, tasks
from perdure.testing.invariants import broken
from tests.fold import assert_story_is_state
from tests.postgres import Server
from tests.world import BOOM, RECOVERY_LIMIT, World, done

FACTOR = float(os.environ.get("PERDURE_MODEL_EXAMPLES", "1"))
STEPS = 60
TERMINAL = frozenset(TASK.terminal)
OPEN = TASK.open
DANGEROUS = ("medium", "high", "critical")
# How often a verb is tried: what makes a task older often, what ends it seldom.
VERBS = (
    *("claim",) * 8,
    *("begin", "end_step", "record", "wait", "suspend", "interrupt", "recover", "answer") * 3,
    *("admit", "spawn", "send", "let_time_pass") * 2,
    *("restore", "release", "retry", "wake", "complete", "fail", "end", "set_the_clock", "reopen"),
)


@dataclass
class Model:
    """One task as it must be."""

    id: str
    risk: str
    parent: str | None
    mode: Mode
    deadline: int | None
    status: str = "pending"
    owner: str | None = None  # the execution id
    attempt: int = 0
    failures: int = 0
    recoveries: int = 0
    available_at: int = 0
    waits: tuple[Wait, ...] = ()
    was_waiting: bool = False
    asked: str | None = None  # the open question whether to resume
    is_parked: bool = False
    steps: dict[str, tuple[str, bool]] = field(default_factory=dict)  # key -> risk, ended
    unread: int = 0

    @property
    def is_open(self) -> bool:
        return self.status not in TERMINAL

    def in_doubt(self, *risks: str) -> bool:
        return any(risk in risks and not ended for risk, ended in self.steps.values())


class StoreMachine(RuleBasedStateMachine):
    """Random verbs on random tasks; `open_it` opens the store of this life, again when it is reopened."""

    def __init__(self, open_it: Callable[[FakeClock], Store], *, keeps: bool) -> None:
        super().__init__()
        self._open, self._keeps = open_it, keeps
        self.clock = FakeClock()
        self.world = World(open_it(self.clock), self.clock)
        self.models: dict[str, Model] = {}
        self.claims: list[Claim] = []
        self.keys: dict[str, str] = {}

    def teardown(self) -> None:
        try:
            for task_id in self.models:
                assert_story_is_state(self.world.store, task_id)
        finally:
            self.world.store.close()

    # -- picking ----------------------------------------------------------------------------

    def _task(self, random: Random, *wanted: str) -> Model:
        """A task, mostly in one of the wanted statuses, else mostly an open one."""
        models = list(self.models.values())
        fitting = [one for one in models if one.status in (wanted or OPEN)]
        return random.choice(fitting if fitting and random.random() < 0.85 else models)

    def _claim(self, random: Random, *wanted: str) -> tuple[Claim, Model, bool]:
        """A claim with its task and whether its fence holds; mostly it does, with the task in a wanted status."""
        live = [one for one in self.claims if self.models[one.task.id].owner == one.execution_id]
        fitting = [one for one in live if self.models[one.task.id].status in wanted] or live
        claim = random.choice(fitting if fitting and random.random() < 0.85 else self.claims)
        model = self.models[claim.task.id]
        return claim, model, model.owner == claim.execution_id

    def _refused(self, kind: type[PerdureError], act: Callable[[], object]) -> None:
        with pytest.raises(kind):
            act()

    def _moves(self, act: Callable[[], object], model: Model, holds: bool, *sources: str) -> bool:
        """Run a fenced verb: True when it had to work and did, False after the refusal that was due."""
        if not holds:
            self._refused(LeaseLost, act)
            return False
        if model.status not in (sources or ("running", "waiting")):
            self._refused(IllegalTransition, act)
            return False
        act()
        return True

    def _records(self, act: Callable[[], object], model: Model, holds: bool, key: str, step: tuple[str, bool]) -> bool:
        """Write a new step: True when it had to work and did."""
        # A call of low risk that has ended stands in no index: its owner does not give its key to another.
        is_known = model.steps.get(key, ("low", True)) != ("low", True)
        if not holds or is_known:
            self._refused(LeaseLost if not holds else StoreError, act)
            return False
        act()
        model.steps[key] = step
        return True

    # -- the model's own verbs --------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def _due(self, model: Model, at: int | None = None) -> None:
        model.status, model.owner, model.waits = "pending", None, ()
        model.available_at = 0 if at is None or at <= self.now else at

    def _happened(self, model: Model, wait: Wait) -> bool:
        if wait.until_ms is not None and wait.until_ms <= self.now:
            return True
        match wait.kind:
            case WaitKind.CHILDREN:
                return all(not self.models[key].is_open for key in wait.keys)
            case WaitKind.RECEIVE:
                return model.unread > 0
            case _:
                return False

    def _end(self, model: Model, status: str, *, all_children: bool | None) -> None:
        if all_children is not None:
            self._take_along(model, all_children=all_children, at_all=all_children)
        model.status, model.owner, model.waits, model.asked = status, None, (), None
        parent = None if model.parent is None else self.models[model.parent]
        if parent is not None and parent.status == "waiting" and parent.owner is None:
            waits = [one for one in parent.waits if one.kind is WaitKind.CHILDREN and model.id in one.keys]
            if any(self._happened(parent, one) for one in waits):
                self._due(parent)

    def _take_along(self, model: Model, *, all_children: bool, at_all: bool) -> None:
        for child in [one for one in self.models.values() if one.parent == model.id]:
            goes = child.is_open and (all_children or child.mode is Mode.FOREGROUND)
            if goes or at_all:
                self._take_along(child, all_children=all_children, at_all=at_all)
            if goes:
                child.status, child.owner, child.waits, child.asked = "cancelled", None, (), None

    # -- the verbs --------------------------------------------------------------------------

    @initialize()
    def start(self) -> None:
        self.world.new_worker()
        for risk in ("low", "medium", "high"):
            self._admit(risk, None, None)
            self.claim(Random(1))

    @rule(verb=st.sampled_from(VERBS), random=st.randoms(use_true_random=False))
    def act(self, verb: str, random: Random) -> None:
        """One verb, done to whatever is drawn. One rule for all, so that every life knows every verb."""
        self.act_on(verb, random)

    def act_on(self, verb: str, random: Random) -> None:
        """Run the method of this name."""
        getattr(self, verb)(random)

    def admit(self, random: Random) -> None:
        if len([one for one in self.models.values() if one.is_open]) < 12:
            deadline = random.choice((None, None, None, self.now + 1_000_000))
            self._admit(
                random.choice(("low", "low", "medium", "high")), random.choice((None, None, None, "k1")), deadline
            )

    def _admit(self, risk: str, key: str | None, deadline: int | None) -> None:
        known = self.keys.get(key) if key is not None else None
        task = self.world.admit(work=key, risk=risk, key=key, deadline_at=deadline)
        if known is not None:
            assert task.id == known
            return
        if key is not None:
            self.keys[key] = task.id
        self.models[task.id] = Model(task.id, risk, None, Mode.FOREGROUND, deadline)

    def spawn(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        key, mode = random.choice(("c1", "c2", "c3")), random.choice(list(Mode))
        if not holds:
            self._refused(LeaseLost, partial(self.world.spawn, claim, key, mode=mode))
            return
        known = self.keys.get(f"{model.id}/{key}")
        if known is not None:
            assert self.world.spawn(claim, key, mode=self.models[known].mode).id == known
            return
        child = self.world.spawn(claim, key, mode=mode)
        self.keys[f"{model.id}/{key}"] = child.id
        model.steps[key] = ("low", False)
        self.models[child.id] = Model(child.id, "low", model.id, mode, model.deadline)

    def claim(self, random: Random) -> None:
        model, who = self._task(random, "pending"), self.world.worker
        found = self.world.store.call(tasks.claim_this, model.id, instance_id=who.id, generation=who.generation)
        if model.status != "pending" or model.available_at > self.now:
            assert found is None
            return
        assert found is not None
        model.status, model.owner, model.attempt = "running", found.execution_id, model.attempt + 1
        self.claims.append(found)
        assert found.task.attempt == model.attempt

    def wait(self, random: Random) -> None:
        claim, model, holds = self._claim(random, "running")
        children = tuple(one.id for one in self.models.values() if one.parent == model.id)
        wait = random.choice(
            (
                Wait(WaitKind.TIMER, (), until_ms=self.now + random.choice((0, 10, 1000))),
                Wait(WaitKind.CHILDREN, children),
                Wait(WaitKind.RECEIVE, ("mail",)),
            )
        )
        if self._moves(partial(self.world.wait_for, claim, wait), model, holds, "running"):
            model.status, model.waits = "waiting", (wait,)

    def restore(self, random: Random) -> None:
        claim, model, holds = self._claim(random, "waiting")
        if self._moves(partial(self.world.store.call, tasks.restore, claim.fence), model, holds, "waiting"):
            model.status, model.waits = "running", ()

    def suspend(self, random: Random) -> None:
        claim, model, holds = self._claim(random, "waiting")
        if not self._moves(partial(self.world.store.call, tasks.suspend, claim.fence), model, holds, "waiting"):
            return
        if any(self._happened(model, one) for one in model.waits):
            self._due(model)
        else:
            model.owner = None

    def wake(self, random: Random) -> None:
        model = self._task(random, "waiting")
        woken = self.world.store.call(tasks.wake, model.id)
        assert woken is (model.status == "waiting" and model.owner is None)
        if woken:
            self._due(model)

    def release(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        if self._moves(partial(self.world.store.call, tasks.release, claim.fence, reason=""), model, holds):
            self._due(model)

    def retry(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        at = self.now + random.choice((0, 100))
        retry = partial(self.world.store.call, tasks.retry, claim.fence, available_at=at, error=BOOM)
        if self._moves(retry, model, holds):
            self._due(model, at)
            model.failures += 1

    def interrupt(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        won = self.world.store.call(tasks.interrupt, claim.task.id, claim.execution_id, reason="gone")
        assert won is holds
        if won:
            model.was_waiting = model.status == "waiting"
            model.status, model.owner, model.waits = "interrupted", None, ()

    def recover(self, random: Random) -> None:
        model = self._task(random, "interrupted")
        found = self.world.recover(model.id)
        if model.status != "interrupted" or model.asked is not None:
            assert found is None
            return
        assert found is not None
        if model.deadline is not None and model.deadline <= self.now:
            self._end(model, "timed_out", all_children=False)
        elif model.recoveries >= RECOVERY_LIMIT:
            model.asked, model.is_parked = found.question_id, True
        elif model.risk == "high" and not model.in_doubt("high", "critical"):
            model.asked, model.is_parked = found.question_id, False
        else:
            model.recoveries += 0 if model.was_waiting else 1
            self._due(model)
        assert model.asked == found.question_id

    def answer(self, random: Random) -> None:
        asked = [one for one in self.models.values() if one.asked is not None]
        if not asked:
            return
        model = random.choice(asked)
        assert model.asked is not None
        if random.random() < 0.8:
            self.world.store.call(questions.approve, model.asked, by="ada")
            model.recoveries = 0 if model.is_parked else model.recoveries + (0 if model.was_waiting else 1)
            model.asked = None
            self._due(model)
        else:
            self.world.store.call(questions.deny, model.asked, by="ada", reason="no")
            self._end(model, "failed", all_children=False)

    def begin(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        key, risk = random.choice("abcdefgh"), random.choice(("low", *DANGEROUS))
        self._records(partial(self.world.begin, claim, key, risk=risk), model, holds, key, (risk, False))

    def record(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        key, kind = f"own {len(model.steps)}", random.choice((StepKind.TOOL_CALL, StepKind.MODEL_CALL))
        used = done(usage=Usage(prompt_tokens=3, completion_tokens=2, cost=0.25))
        if self._records(partial(self.world.record, claim, key, used, kind=kind), model, holds, key, ("low", True)):
            model.recoveries = 0

    def end_step(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        begun = [key for key, (_, ended) in model.steps.items() if not ended]
        key = random.choice(begun) if begun and random.random() < 0.9 else random.choice("abc")
        risk, ended = model.steps.get(key, ("low", True))
        end = partial(self.world.end_step, claim, key, risk=risk)
        if not holds or ended:
            self._refused(LeaseLost, end)
            return
        end()
        model.steps[key] = (risk, True)
        model.recoveries = 0

    def send(self, random: Random) -> None:
        model = self._task(random, "waiting")
        send = partial(self.world.send, model.id, "mail")
        if not model.is_open:
            self._refused(Refused, send)
            return
        send()
        model.unread += 1
        is_set_aside = model.status == "waiting" and model.owner is None
        if is_set_aside and any(one.kind is WaitKind.RECEIVE for one in model.waits):
            self._due(model)

    def complete(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        if holds and model.in_doubt(*DANGEROUS):
            self._refused(InvariantError, partial(self.world.complete, claim))
        elif self._moves(partial(self.world.complete, claim), model, holds):
            self._end(model, "completed", all_children=None)

    def fail(self, random: Random) -> None:
        claim, model, holds = self._claim(random)
        if self._moves(partial(self.world.fail, claim), model, holds):
            self._end(model, "failed", all_children=False)

    def end(self, random: Random) -> None:
        model, how = self._task(random), random.choice(("cancel", "time_out"))
        was_open = model.is_open
        assert self.world.end(model.id, how) is was_open
        if was_open:
            self._end(model, "cancelled" if how == "cancel" else "timed_out", all_children=how == "cancel")

    def let_time_pass(self, random: Random) -> None:
        self.clock.advance(random.choice((1, 100, 10_000, 100_000)))

    def set_the_clock(self, random: Random) -> None:
        self.clock.jump(random.choice((-60_000, -5, 5, 60_000)))

    def reopen(self, _random: Random) -> None:
        if self._keeps:
            self.world.store.close()
            self.world.store = self._open(self.clock)

    @invariant()
    def every_row_is_as_the_model_has_it(self) -> None:
        rows = self.world.rows(
            "SELECT t.id, t.status, t.execution_id, t.attempt, t.failures, t.recoveries, q.id"
            " FROM tasks t LEFT JOIN questions q ON q.task = t.n AND q.status = 'open' ORDER BY t.id"
        )
        assert rows == [
            (one.id, one.status, one.owner, one.attempt, one.failures, one.recoveries, one.asked)
            for one in sorted(self.models.values(), key=lambda one: one.id)
        ]


Opener = Callable[[FakeClock], Store]


def _live_long(open_it: Opener, *, seed: int, acts: int, keeps: bool) -> list[str]:
    """One long life without a search: deeper than what hypothesis tries, and not made smaller when it fails.

    After each act every row is held against the model. Returns what `doctor` finds wrong at the end.
    """
    random, machine = Random(seed), StoreMachine(open_it, keeps=keeps)
    try:
        machine.start()
        for _ in range(int(acts * FACTOR)):
            machine.act_on(random.choice(VERBS), random)
            machine.every_row_is_as_the_model_has_it()
        assert machine.models, "a life without a task shows nothing"
        return machine.world.store.read(broken)
    finally:
        machine.teardown()


def _live(new_database: Callable[[], Opener], *, lives: int, keeps: bool) -> int:
    """Try so many lives, each in a database of its own, and hold every row against the model. How many tasks lived."""
    tasks = 0
    chosen = settings(
        max_examples=max(1, int(lives * FACTOR)),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    class Life(StoreMachine):
        def __init__(self) -> None:
            super().__init__(new_database(), keeps=keeps)

        def teardown(self) -> None:
            nonlocal tasks
            tasks += len(self.models)
            super().teardown()

    run_state_machine_as_test(Life, settings=chosen)
    return tasks


def _at(url: str) -> Opener:
    return lambda clock: open_store(url, clock=clock, ids=RandomIds())


@pytest.mark.slow(timeout_s=3600)
def test_a_store_in_memory_lives_as_the_model_says() -> None:
    assert _live(lambda: _at(MEMORY), lives=15, keeps=False) > 0


@pytest.mark.slow(timeout_s=3600)
@pytest.mark.parametrize("seed", range(4))
def test_a_store_in_memory_lives_long(seed: int) -> None:
    assert _live_long(_at(MEMORY), seed=seed, acts=2000, keeps=False) == []


@pytest.mark.slow(timeout_s=3600)
def test_a_store_in_a_file_lives_as_the_model_says(tmp_path: Path) -> None:
    numbers = count()

    assert _live(lambda: _at(str(tmp_path / f"{next(numbers)}.db")), lives=5, keeps=True) > 0
    assert _live_long(_at(str(tmp_path / "long.db")), seed=10, acts=800, keeps=True) == []


@pytest.mark.slow(timeout_s=3600)
def test_a_store_on_a_server_lives_as_the_model_says(session_postgres: Server) -> None:
    template = session_postgres.create_database()
    open_store(template).close()
    urls = [template]

    def new_database() -> Opener:
        urls.append(session_postgres.create_database(template=template.rpartition("/")[2]))
        return _at(urls[-1])

    try:
        assert _live(new_database, lives=2, keeps=True) > 0
        assert _live_long(new_database(), seed=11, acts=400, keeps=True) == []
    finally:
        for url in urls:
            session_postgres.drop_database(url)
