"""Every arrow of the state machines moves exactly as states.py says, and from every other status nothing moves.

The arrows are read from the machines, so a verb that is added there without an operation fails here, unless it stands
in NOT_YET. What a test observes is the rows before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from perdure.errors import BadInput, IllegalTransition, LeaseLost, NotFound
from perdure.model.question import Question, QuestionKind
from perdure.model.task import Fence
from perdure.states import ATTEMPT, INSTANCE, QUESTION, TASK, Machine
from perdure.store import ends, instances, questions, tasks
from tests.world import BOOM, World, outcome_of, packed, timer

# Arrows whose verbs come with sessions, pausing, swapping, importing and foreign instances.
NOT_YET = {
    *((machine, verb) for machine in ("task", "attempt") for verb in ("pause", "resume", "swap_out", "swap_in")),
    ("task", "import"),
    ("instance", "restart"),
}
# A heartbeat makes an instance active; nothing reports the other statuses yet.
UPDATES = {("update", source, "active") for source in INSTANCE.sources("update")}


@dataclass
class Scene:
    """A task that stands somewhere, and the fence of whoever owned it last."""

    world: World
    task_id: str
    fence: Fence

    @property
    def status(self) -> str:
        return self.world.task(self.task_id).status


# -- how a task gets where it stands ---------------------------------------------------------


def _pending(world: World) -> Scene:
    task = world.admit()
    return Scene(world, task.id, Fence(task.id, "nobody's", 0))


def _running(world: World) -> Scene:
    claim = world.start()
    return Scene(world, claim.task.id, claim.fence)


def _waiting(world: World) -> Scene:
    claim = world.start()
    world.wait_for(claim, *timer(world.clock.now_ms() + 1000))
    return Scene(world, claim.task.id, claim.fence)


def _set_aside(world: World) -> Scene:
    claim = world.start()
    assert not world.set_aside(claim, *timer(world.clock.now_ms() + 1000))
    return Scene(world, claim.task.id, claim.fence)


def _idle(world: World) -> Scene:
    scene = _pending(world)
    world.execute("UPDATE tasks SET status = 'idle' WHERE id = :id", id=scene.task_id)
    return scene


def _swapped(world: World) -> Scene:
    scene = _idle(world)
    world.execute("UPDATE tasks SET status = 'swapped' WHERE id = :id", id=scene.task_id)
    return scene


def _interrupted(world: World) -> Scene:
    claim = world.start()
    world.interrupt(claim)
    return Scene(world, claim.task.id, claim.fence)


def _completed(world: World) -> Scene:
    claim = world.start()
    world.complete(claim)
    return Scene(world, claim.task.id, claim.fence)


def _failed(world: World) -> Scene:
    claim = world.start()
    world.fail(claim)
    return Scene(world, claim.task.id, claim.fence)


def _timed_out(world: World) -> Scene:
    scene = _running(world)
    assert world.store.call(ends.time_out, scene.task_id)
    return scene


def _cancelled(world: World) -> Scene:
    scene = _running(world)
    assert world.store.call(ends.cancel, scene.task_id)
    return scene


STANDS: dict[str, Callable[[World], Scene]] = {
    "pending": _pending,
    "running": _running,
    "waiting": _waiting,
    "idle": _idle,
    "swapped": _swapped,
    "interrupted": _interrupted,
    "completed": _completed,
    "failed": _failed,
    "timed_out": _timed_out,
    "cancelled": _cancelled,
}


# -- the verbs of a task ---------------------------------------------------------------------


def _claim(scene: Scene) -> object:
    who = scene.world.worker
    return scene.world.store.call(tasks.claim_this, scene.task_id, instance_id=who.id, generation=who.generation)


def _wait(scene: Scene) -> object:
    return scene.world.store.call(tasks.wait, scene.fence, timer(scene.world.clock.now_ms() + 1))


def _release(scene: Scene) -> object:
    return scene.world.store.call(tasks.release, scene.fence, reason="shutdown")


def _restore(scene: Scene) -> object:
    return scene.world.store.call(tasks.restore, scene.fence)


def _suspend(scene: Scene) -> object:
    return scene.world.store.call(tasks.suspend, scene.fence)


def _wake(scene: Scene) -> object:
    return scene.world.store.call(tasks.wake, scene.task_id)


def _interrupt(scene: Scene) -> object:
    return scene.world.store.call(tasks.interrupt, scene.task_id, scene.fence.execution_id, reason="its worker is gone")


def _recover(scene: Scene) -> object:
    return scene.world.store.call(lambda tx: tasks.recover(tx, tasks.get(tx, scene.task_id), revision=9, counts=True))


def _abandon(scene: Scene) -> object:
    return scene.world.store.call(
        lambda tx: ends.abandon(tx, tasks.get(tx, scene.task_id), revision=9, denied=True, by="ada", reason="")
    )


def _retry(scene: Scene) -> object:
    later = scene.world.clock.now_ms() + 1000
    return scene.world.store.call(tasks.retry, scene.fence, available_at=later, error=BOOM)


def _complete(scene: Scene) -> object:
    return scene.world.store.call(ends.complete, scene.fence, packed("late"), risk_seen="low")


def _fail(scene: Scene) -> object:
    return scene.world.store.call(ends.fail, scene.fence, BOOM)


def _refuse(scene: Scene) -> object:
    return scene.world.store.call(ends.refuse, scene.task_id, BOOM)


def _time_out(scene: Scene) -> object:
    return scene.world.store.call(ends.time_out, scene.task_id)


def _cancel(scene: Scene) -> object:
    return scene.world.store.call(ends.cancel, scene.task_id, reason="no need")


VERBS: dict[str, Callable[[Scene], object]] = {
    "claim": _claim,
    "wait": _wait,
    "release": _release,
    "restore": _restore,
    "suspend": _suspend,
    "wake": _wake,
    "interrupt": _interrupt,
    "recover": _recover,
    "abandon": _abandon,
    "retry": _retry,
    "complete": _complete,
    "fail": _fail,
    "refuse": _refuse,
    "time_out": _time_out,
    "cancel": _cancel,
}


def _arrows(machine: Machine, verb: str) -> list[tuple[str, str]]:
    return [(source, t.target) for t in machine.transitions if t.verb == verb for source in t.sources]


def test_every_verb_has_its_operation_or_is_named_as_not_there_yet() -> None:
    declared = {(machine.name, t.verb) for machine in (TASK, ATTEMPT) for t in machine.transitions}

    exercised = {(machine, verb) for machine in ("task", "attempt") for verb in (*VERBS, "admit")} & declared

    assert exercised | (NOT_YET & declared) == declared
    assert not exercised & NOT_YET


def test_admit_makes_a_pending_task_and_claim_a_running_attempt(world: World) -> None:
    assert TASK.initial == ("pending", "completed", "failed")  # the last two by import

    scene = _pending(world)
    assert (scene.status, world.kinds(scene.task_id)) == ("pending", ["task_admitted"])
    assert world.attempts(scene.task_id) == []

    _claim(scene)
    assert [one.status for one in world.attempts(scene.task_id)] == list(ATTEMPT.initial) == ["running"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_a_task_moves_it_from_each_of_its_sources(world: World, verb: str) -> None:
    assert _arrows(TASK, verb)
    for source, target in _arrows(TASK, verb):
        # Only a task that no attempt holds is woken; one that waits in memory notices by itself.
        scene = _set_aside(world) if verb == "wake" else STANDS[source](world)
        if (verb, target) == ("suspend", "pending"):
            world.clock.advance(1000)  # what it waited for has happened already
        before = world.task(scene.task_id)
        assert before.status == source

        VERBS[verb](scene)

        after = world.task(scene.task_id)
        assert (after.status, after.updated_at) == (target, world.clock.now_ms())
        assert world.feed(scene.task_id)[-1 if verb != "claim" else -2].kind == TASK.event(verb)
        assert after.event_seq == before.event_seq + (2 if verb == "claim" else 1)
        assert (after.execution_id is None) == (target != "running" and verb != "wait")
        expected = next(t.attempt for t in TASK.transitions if t.verb == verb)
        if before.execution_id is not None and expected:
            (attempt,) = world.attempts(scene.task_id)
            assert (attempt.status, attempt.ended_at) == (expected, world.clock.now_ms())
            assert ("running", attempt.status) in ATTEMPT.moves


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_changes_nothing_from_any_other_status(world: World, verb: str) -> None:
    others = [status for status in STANDS if status not in TASK.sources(verb)]
    scenes = [STANDS[status](world) for status in others]
    if "waiting" in TASK.sources(verb) and verb not in ("wake", "time_out", "cancel"):
        scenes.append(_set_aside(world))  # waiting, but no attempt owns it any more
    before = world.dump()

    for scene in scenes:
        owned = world.task(scene.task_id).execution_id is not None

        outcome = outcome_of(VERBS[verb], scene)

        if not any(t.fenced for t in TASK.transitions if t.verb == verb):
            assert outcome in (None, False), (scene.status, outcome)
        elif owned:
            assert isinstance(outcome, IllegalTransition), (scene.status, outcome)
            assert (outcome.id, outcome.verb, outcome.status) == (scene.task_id, verb, scene.status)
        else:
            assert isinstance(outcome, LeaseLost), (scene.status, outcome)
            assert (outcome.task_id, outcome.execution_id) == (scene.task_id, scene.fence.execution_id)
    assert world.dump() == before


def test_a_verb_on_a_task_that_is_not_there_says_so(world: World) -> None:
    scene = Scene(world, "nowhere", Fence("nowhere", "nobody's", world.worker.generation))
    before = world.dump()

    for verb, act in VERBS.items():
        outcome = outcome_of(act, scene)

        assert isinstance(outcome, NotFound) or (verb in ("claim", "wake", "interrupt") and not outcome), outcome
    assert world.dump() == before


# -- questions -------------------------------------------------------------------------------


def _opened(world: World, kind: QuestionKind = QuestionKind.ASK) -> Question:
    return world.ask(world.start(), kind, step_key="ask", expires_at_ms=world.clock.now_ms() + 1000)


def _approve(world: World, question: Question) -> object:
    return world.store.call(questions.approve, question.id, by="ada")


def _deny(world: World, question: Question) -> object:
    return world.store.call(questions.deny, question.id, by="ada", reason="too risky")


def _answer(world: World, question: Question) -> object:
    return world.store.call(questions.answer, question.id, by="ada", value=packed("blue"))


def _expire(world: World, question: Question) -> object:
    world.clock.advance(1000)
    return world.expire()


def _cancel_with_its_task(world: World, question: Question) -> object:
    return world.store.call(ends.cancel, question.task_id)


QUESTION_VERBS: dict[str, Callable[[World, Question], object]] = {
    "approve": _approve,
    "deny": _deny,
    "answer": _answer,
    "expire": _expire,
    "cancel": _cancel_with_its_task,
}


def _kind_for(verb: str) -> QuestionKind:
    return QuestionKind.CALL if verb in ("approve", "deny") else QuestionKind.ASK


def test_every_verb_of_a_question_is_exercised() -> None:
    assert {t.verb for t in QUESTION.transitions} == {"open", *QUESTION_VERBS}


@pytest.mark.parametrize("verb", QUESTION_VERBS)
def test_a_verb_of_a_question_moves_it_from_open(world: World, verb: str) -> None:
    ((source, target),) = _arrows(QUESTION, verb)
    opened = _opened(world, _kind_for(verb))
    assert (opened.status, world.kinds(opened.task_id)[-1]) == (source, QUESTION.event("open"))

    QUESTION_VERBS[verb](world, opened)

    settled = world.store.read(questions.get, opened.id)
    assert (settled.status, settled.answered_at) == (target, world.clock.now_ms())
    assert world.kinds(opened.task_id).count(QUESTION.event(verb)) == 1


@pytest.mark.parametrize("verb", QUESTION_VERBS)
def test_a_question_that_is_settled_never_moves_again(world: World, verb: str) -> None:
    for first, settle in QUESTION_VERBS.items():
        if _kind_for(first) is not _kind_for(verb) and "cancel" not in (first, verb):
            continue
        kind = _kind_for(verb if first == "cancel" else first)
        opened = _opened(world, kind)
        settle(world, opened)
        settled = world.store.read(questions.get, opened.id)

        # A task that ends later must not touch the answer either; it changes rows of its own.
        if verb == "cancel":
            QUESTION_VERBS[verb](world, opened)
        else:
            outcome = world.unchanged_by(QUESTION_VERBS[verb], world, opened)
            assert outcome in (settled, [])

        assert world.store.read(questions.get, opened.id) == settled


def test_a_verb_on_a_question_that_is_not_there_says_so(world: World) -> None:
    call = world.store.call

    assert isinstance(world.unchanged_by(call, questions.approve, "Q77", by="ada"), NotFound)
    assert isinstance(world.unchanged_by(call, questions.deny, "Q77", by="ada", reason=""), NotFound)
    assert isinstance(world.unchanged_by(call, questions.answer, "Q77", by="ada", value=packed(1)), NotFound)


def test_a_yes_or_no_is_not_answered_and_an_open_question_is_not_approved(world: World) -> None:
    call, ask = _opened(world, QuestionKind.CALL), _opened(world)

    assert isinstance(world.unchanged_by(_answer, world, call), BadInput)
    assert isinstance(world.unchanged_by(_approve, world, ask), BadInput)
    assert isinstance(world.unchanged_by(_deny, world, ask), BadInput)


# -- instances -------------------------------------------------------------------------------


def _instance_in(world: World, status: str) -> str:
    worker = world.new_worker()
    stopped_at = world.clock.now_ms() if status == "stopped" else None
    if status != "starting":
        world.execute(
            "UPDATE instances SET status = :status, stopped_at = :stopped_at WHERE id = :id",
            status=status,
            stopped_at=stopped_at,
            id=worker.id,
        )
    return worker.id


def _beat(world: World, instance_id: str) -> object:
    found = world.store.read(instances.get, instance_id)
    return world.store.call(instances.beat, instance_id, generation=found.generation, held=()).alive


def _crash(world: World, instance_id: str) -> object:
    found = world.store.read(instances.get, instance_id)
    return world.store.call(instances.mark_crashed, instance_id, heartbeat=found.heartbeat)


def _stop(world: World, instance_id: str) -> object:
    return world.store.call(instances.mark_stopped, instance_id)


INSTANCE_VERBS: dict[str, Callable[[World, str], object]] = {"update": _beat, "crash": _crash, "stop": _stop}


def test_every_verb_of_an_instance_is_exercised_or_named_as_not_there_yet() -> None:
    not_yet = {verb for machine, verb in NOT_YET if machine == "instance"}

    assert {t.verb for t in INSTANCE.transitions} == {"register", *INSTANCE_VERBS, *not_yet}


@pytest.mark.parametrize("verb", INSTANCE_VERBS)
def test_a_verb_of_an_instance_moves_it_from_each_of_its_sources(world: World, verb: str) -> None:
    for source, target in _arrows(INSTANCE, verb):
        if verb == "update" and (verb, source, target) not in UPDATES:
            continue
        instance_id = _instance_in(world, source)
        assert world.store.read(instances.get, instance_id).status == source

        assert INSTANCE_VERBS[verb](world, instance_id) is True

        assert world.store.read(instances.get, instance_id).status == target


@pytest.mark.parametrize("verb", INSTANCE_VERBS)
def test_a_verb_of_an_instance_changes_nothing_from_any_other_status(world: World, verb: str) -> None:
    for status in INSTANCE.statuses:
        if status in INSTANCE.sources(verb):
            continue
        instance_id = _instance_in(world, status)

        outcome = world.unchanged_by(INSTANCE_VERBS[verb], world, instance_id)

        assert outcome is False
