"""Why a task stands where it stands: a clause for each status, a page with what moves it on, and who is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import people, phrases, why
from perdure.clock import FakeClock, SeededIds
from perdure.commands import Commands
from perdure.errors import Error, NotFound
from perdure.model.question import Question, QuestionKind
from perdure.model.task import Wait, WaitKind, tail
from perdure.runtime.liveness import Judge, judge
from perdure.settings import Settings
from perdure.store import MEMORY, ends, instances, open_store, questions, tasks
from tests.world import World, packed, timer


@pytest.fixture
def world() -> Iterator[World]:
    clock = FakeClock()
    with open_store(MEMORY, clock=clock, ids=SeededIds(1)) as store:
        yield World(store, clock)


def because(world: World, task_id: str, *, here: str = "") -> str:
    return world.store.read(lambda tx: why.because(tx, tasks.get(tx, task_id), here=here))


def explain(world: World, task_id: str, **more: Any) -> str:
    return world.store.read(why.explain, task_id, **more)


def asked(world: World, task_id: str) -> tuple[Question, ...]:
    return world.store.read(people.people_asked, task_id)


def test_a_task_that_ended_with_a_call_in_doubt_names_the_command_that_settles_it(world: World) -> None:
    claim = world.start()
    world.begin(claim, "look", name="look", risk="low")
    pay, ship = (world.begin(claim, key, name=key, risk="high").step_index for key in ("pay it", "ship it"))
    world.fail(claim)

    page = explain(world, claim.task.id, commands=Commands(" --db x.db"))

    ways = page[page.index("what moves it on\n") :].splitlines()[1:17]
    assert ways[1::2] == [
        f"    perdure settle {claim.task.id} {index} {verdict} --db x.db"
        for index in (pay, ship)
        for verdict in ("--happened --result JSON", "--happened", "--not-happened", "--give-up")
    ]
    assert [way.split(": ")[0] for way in ways[::2]] == ["  pay it"] * 4 + ["  ship it"] * 4


# -- one clause -----------------------------------------------------------------------------


def test_an_agent_that_no_worker_ever_had_is_said(world: World) -> None:
    task = world.admit(agent="nightly")

    assert (
        because(world, task.id)
        == "no live worker has agent nightly (none ever had): start one with perdure worker MODULE:APP"
    )


def test_a_worker_that_had_the_agent_is_named_with_when_it_was_seen(world: World) -> None:
    world.new_worker(("nightly", ""))
    task = world.admit(agent="nightly")
    assert because(world, task.id).startswith("it is due")

    world.clock.advance(60_000)

    assert because(world, task.id).startswith("no live worker has agent nightly (last seen ")
    assert because(world, task.id).endswith(" on host host): start one with perdure worker MODULE:APP")


def test_a_worker_of_another_version_is_no_worker_for_a_pinned_task(world: World) -> None:
    world.new_worker(("lead", "9"))
    task, pinned = world.admit(agent="lead"), world.admit(agent="lead", version="10")

    assert because(world, task.id).startswith("it is due")
    assert because(world, pinned.id) == (
        "no live worker has agent lead in version 10 (none ever had): start one with perdure worker MODULE:APP"
    )
    assert "perdure worker MODULE:APP" in explain(world, pinned.id)
    world.new_worker(("lead", "10"))
    assert because(world, pinned.id).startswith("it is due")


def test_a_task_that_is_tried_again_says_when_and_after_what(world: World) -> None:
    claim = world.start()
    at = world.clock.now_ms() + 12_000

    world.store.call(tasks.retry, claim.fence, available_at=at, error=Error("ValueError", "boom"))

    said = because(world, claim.task.id)
    assert said.startswith("it is tried again in 12 s, at ")
    assert said.endswith("after failure 1: ValueError: boom")


def test_a_delayed_task_says_when_it_starts(world: World) -> None:
    task = world.admit(delay_ms=120_000)

    assert because(world, task.id).startswith("it is to start in 2 min, at ")


def test_a_running_task_names_host_and_pid(world: World) -> None:
    claim = world.start()

    assert because(world, claim.task.id).startswith("host host, pid 1 runs it since ")
    assert because(world, claim.task.id, here=claim.task.instance_id or "").startswith("it runs here since ")


def test_a_silent_owner_is_said_to_be_silent(world: World) -> None:
    claim = world.start()

    seen_at = world.clock.now_ms()
    world.clock.advance(41 * 60_000)

    assert because(world, claim.task.id) == (
        "its worker (host host, pid 1) has been silent for 41 min: "
        f"no live worker has agent writer (last seen {phrases.moment(seen_at, world.clock.now_ms())} on host host): "
        "start one with perdure worker MODULE:APP"
    )


def test_a_worker_is_silent_after_the_lease_of_its_store(world: World) -> None:
    claim = world.start()
    world.clock.advance(100_000)

    patient = explain(world, claim.task.id, judge=Judge(silent_ms=200_000))

    assert "host host, pid 1 runs it since" in patient
    assert "has been silent for " in explain(world, claim.task.id)


def test_who_looks_knows_the_lease_of_the_store() -> None:
    with open_store(MEMORY, settings=Settings(heartbeat_s=60, lease_s=200)) as store:
        assert judge(store).silent_ms == 200_000


def test_a_dead_owner_is_said_to_be_dead_at_once(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")

    dead = world.store.read(lambda tx: why.because(tx, tasks.get(tx, claim.task.id), judge=Judge(lambda _: True)))
    page = explain(world, claim.task.id, judge=Judge(lambda _: True))

    assert dead.startswith("its worker (host host, pid 1) is dead: no live worker has agent writer (last seen ")
    assert "held by the worker on host host, pid 1, which is dead" in page
    assert "perdure worker MODULE:APP" in page
    assert "not ended, the worker on host host, pid 1" in page


def test_a_dead_owner_is_followed_by_another_worker_that_lives(world: World) -> None:
    claim = world.start()
    world.new_worker(("writer", ""))

    said = world.store.read(
        lambda tx: why.because(tx, tasks.get(tx, claim.task.id), judge=Judge(lambda one: one.id == world.worker.id))
    )

    assert said == "its worker (host host, pid 1) is dead: the next worker takes it over"


def test_an_answer_whose_worker_has_died_says_that_nobody_goes_on(world: World) -> None:
    claim = world.start()
    question = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (question.id,)))
    world.store.call(questions.answer, question.id, by="ana", value=packed("yes"))
    assert because(world, claim.task.id) == f"question {question.id} is answered: its worker goes on with it"

    page = explain(world, claim.task.id, judge=Judge(lambda _: True))

    assert f"question {question.id} is answered: its worker (host host, pid 1) is dead: no live worker has " in page
    assert "perdure worker MODULE:APP" in page


def test_children_that_are_not_done_are_counted_and_named(world: World) -> None:
    claim = world.start()
    children = [world.spawn(claim, f"c{number}") for number in range(3)]
    world.set_aside(claim, Wait(WaitKind.CHILDREN, tuple(child.id for child in children)))
    for child in children[:2]:
        world.store.call(ends.cancel, child.id)

    said = because(world, claim.task.id)

    assert said == f"1 of 3 children is not done: writer {tail(children[2].id)}"


def test_a_parent_that_was_handed_back_still_names_its_children(world: World) -> None:
    claim = world.start()
    child = world.spawn(claim)
    world.store.call(tasks.release, claim.fence, reason="stopping")
    world.clock.advance(60_000)

    said = because(world, claim.task.id)

    assert said.startswith(f"1 of 1 child is not done: writer {tail(child.id)}; no live worker has agent writer")


def test_an_open_question_is_quoted_with_whom_it_is_for(world: World) -> None:
    claim = world.start()
    question = world.ask(claim, text='did refund(order="o-9") happen?', to="finance")
    world.set_aside(claim, Wait(WaitKind.QUESTION, (question.id,)))

    said = because(world, claim.task.id)

    assert said == f'question {question.id} is open: did refund(order="o-9") happen?  (to finance)'


def test_each_open_question_of_a_task_that_was_handed_back_is_named(world: World) -> None:
    claim = world.start()
    asked = [world.ask(claim, text=f"which {key}?", step_key=key) for key in "abc"]
    world.store.call(tasks.release, claim.fence, reason="stopping")

    assert because(world, claim.task.id) == f"question {asked[0].id} is open: which a?; so are Q2, Q3"


def test_what_a_question_says_itself_is_not_said_again(world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.CALL, text="may it run? Others lie unused.", evidence=packed({"why": "Others lie"}))

    assert explain(world, claim.task.id).count("Others lie") == 1


def test_a_sleeper_says_until_when(world: World) -> None:
    claim = world.start()
    world.set_aside(claim, *timer(world.clock.now_ms() + 48 * 60_000))

    assert because(world, claim.task.id).startswith("it sleeps until ")
    assert because(world, claim.task.id).endswith("(in 48 min)")


def test_a_receiver_says_what_nobody_has_sent(world: World) -> None:
    claim = world.start()
    world.set_aside(claim, Wait(WaitKind.RECEIVE, ("paid",)))

    assert because(world, claim.task.id) == 'nobody has sent "paid" yet'


def test_an_answer_that_waits_for_a_worker_to_be_gone_says_so_and_what_to_do(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    question = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.store.call(questions.answer, question.id, by="ana", value=packed({"verdict": "not_happened"}))
    holder = f"dead:{world.worker.id}"
    world.set_aside(claim, Wait(WaitKind.TIMER, (holder,), "pay", world.clock.now_ms() + 1000))

    said = because(world, claim.task.id)

    assert said == "the answer is stored and acts once the worker on host host, pid 1 is proven dead"
    assert f"perdure answer {question.id} --not-happened --anyway" in explain(world, claim.task.id)


@pytest.mark.parametrize("is_dead", [False, True])
def test_run_it_says_whose_death_it_waits_for_though_nobody_works(world: World, is_dead: bool) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    question = world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay")
    world.crash(world.worker)
    world.recover(claim.task.id)
    if is_dead:
        world.store.call(instances.mark_stopped, world.worker.id)
    world.store.call(questions.answer, question.id, by="ana", value=packed({"verdict": "not_happened"}))

    told = "the answer is stored and acts once the worker on host host, pid 1 is proven dead"
    way = f"perdure answer {question.id} --not-happened --anyway"
    assert (told in because(world, claim.task.id)) is not is_dead
    assert (way in explain(world, claim.task.id)) is not is_dead


@pytest.mark.parametrize("verb", ["cancel", "time_out"])
def test_an_ended_task_says_how_many_calls_it_left_in_doubt(world: World, verb: str) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    world.end(claim.task.id, verb)

    assert because(world, claim.task.id).endswith(f"; 1 call in doubt: perdure why {claim.task.id}")


def test_several_waits_are_all_told(world: World) -> None:
    claim = world.start()
    world.set_aside(claim, Wait(WaitKind.RECEIVE, ("paid",)), *timer(world.clock.now_ms() + 60_000))

    assert because(world, claim.task.id).count("; ") == 1


def test_an_interrupted_task_says_what_ended_it_until_a_person_is_asked(world: World) -> None:
    claim = world.start(resume="ask")
    world.interrupt(claim)
    assert because(world, claim.task.id) == (
        "its attempt ended without an outcome (gone); the next worker decides whether it goes on"
    )

    world.recover(claim.task.id)

    assert because(world, claim.task.id).startswith("question Q1 is open: ")


def test_an_ended_task_says_how(world: World) -> None:
    claim, other = world.start(), world.start()
    world.complete(claim)
    world.fail(other)

    world.clock.advance(120_000)

    assert because(world, claim.task.id) == "completed 2 min ago"
    assert because(world, other.task.id) == "failed 2 min ago: ValueError: boom"


@pytest.mark.parametrize("status", ["idle", "swapped"])
def test_a_paused_task_says_so(world: World, status: str) -> None:
    task = world.admit()
    world.execute("UPDATE tasks SET status = 'idle' WHERE id = :id", id=task.id)
    world.execute("UPDATE tasks SET status = :status WHERE id = :id AND :status <> 'idle'", id=task.id, status=status)

    assert because(world, task.id) == "its session is paused"
    assert explain(world, task.id).startswith(f"writer {task.id} is paused because its session is paused")


# -- the page -------------------------------------------------------------------------------


def test_the_page_of_an_undecided_task_shows_what_a_worker_would_decide(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")
    world.interrupt(claim)

    page = explain(world, claim.task.id)

    assert "not decided yet; a worker would now decide auto_resume (rule step_in_doubt)" in page
    assert 'step 1, high: pay(key="pay")' in page
    assert "in doubt" in page
    assert f"perdure resume {claim.task.id}" in page
    assert world.task(claim.task.id).status == "interrupted"


def test_the_page_shows_the_stored_decision_the_attempts_and_the_commands(world: World) -> None:
    claim = world.start(resume="ask")
    world.interrupt(claim)
    world.recover(claim.task.id)

    page = explain(world, claim.task.id, commands=Commands(" --db x.db"))

    assert "pending_confirmation (rule resume_asks)" in page
    assert "attempt 1 from " in page
    assert "    perdure approve Q1 --db x.db\n" in page
    assert '    perdure deny Q1 --because "…" --db x.db\n' in page
    assert page.endswith(f"    perdure cancel {claim.task.id} --db x.db")


def test_the_page_tells_the_last_decision_whole_and_the_earlier_ones_in_a_line(world: World) -> None:
    claim = world.start()
    for _ in range(3):
        world.interrupt(claim)
        world.recover(claim.task.id)
        world.clock.advance(60_000)
        claim = world.claim(claim.task.id)

    lines = explain(world, claim.task.id).splitlines()

    rule = lines.index("rule")
    assert lines[rule + 1].startswith("  2 earlier decisions: auto_resume ")
    assert lines[rule + 2].startswith("  auto_resume (rule resume), decided ")
    assert sum("auto_resume (rule" in line for line in lines) == 1


def test_a_worker_is_called_by_its_host_and_pid_and_dead_when_it_is(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", name="pay", risk="high")
    world.store.call(instances.mark_stopped, world.worker.id)
    world.interrupt(claim)

    page = explain(world, claim.task.id)

    assert "held by the worker on host host, pid 1, which is dead" in page
    assert world.worker.id not in page


def test_the_page_of_an_ended_task_has_no_commands(world: World) -> None:
    claim = world.start()
    world.complete(claim)

    page = explain(world, claim.task.id)

    assert "what moves it on" not in page
    assert page.startswith(f"writer {claim.task.id} completed ")


def test_a_damaged_trace_is_part_of_the_answer(world: World) -> None:
    claim = world.start()
    world.record(claim, "a")
    world.execute("UPDATE steps SET output = :blob WHERE key = 'a'", blob=b"?")

    page = explain(world, claim.task.id)

    assert "the rest cannot be read: " in page
    assert "what moves it on" in page


def test_the_evidence_of_a_parent_tells_where_each_child_stands(world: World) -> None:
    claim = world.start()
    children = [world.spawn(claim, f"c{number}") for number in range(2)]
    world.set_aside(claim, Wait(WaitKind.CHILDREN, tuple(child.id for child in children)))
    world.complete(world.claim(children[0].id))

    page = explain(world, claim.task.id)

    begun = [line.rsplit(": ", 1)[-1] for line in page.splitlines() if line.startswith("  step ")]
    assert begun == ["child completed", "child pending"]


def test_evidence_that_leaves_out_the_oldest_records_says_so(world: World) -> None:
    claim = world.start()
    for number in range(7):
        world.record(claim, f"s{number}", name="look")

    page = explain(world, claim.task.id, commands=Commands(" --db x.db"))

    first = page.splitlines().index("evidence") + 1
    assert page.splitlines()[first] == f"  2 earlier records: perdure show {claim.task.id} --db x.db"


def test_an_unknown_task_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        explain(world, "01NOBODY")


# -- who alone is waited for ----------------------------------------------------------------


def test_a_task_that_waits_for_one_answer_waits_for_a_person(world: World) -> None:
    claim = world.start()
    question = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (question.id,)))

    assert [one.id for one in asked(world, claim.task.id)] == [question.id]


def test_questions_below_count_when_nothing_else_moves(world: World) -> None:
    claim = world.start()
    child, other = world.spawn(claim, "c"), world.spawn(claim, "d")
    below = world.claim(child.id)
    question = world.ask(below)
    world.wait_for(below, Wait(WaitKind.QUESTION, (question.id,)))
    world.wait_for(claim, Wait(WaitKind.CHILDREN, (child.id, other.id)))
    assert asked(world, claim.task.id) == ()

    world.store.call(ends.cancel, other.id)

    assert [one.id for one in asked(world, claim.task.id)] == [question.id]


@pytest.mark.parametrize("wait", [Wait(WaitKind.RECEIVE, ("paid",)), Wait(WaitKind.TIMER, (), until_ms=1 << 50)])
def test_a_task_that_something_else_may_wake_does_not_wait_for_people_alone(world: World, wait: Wait) -> None:
    claim = world.start()
    question = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (question.id,)), wait)

    assert asked(world, claim.task.id) == ()


def test_an_answered_question_is_no_longer_waited_for(world: World) -> None:
    claim = world.start()
    question = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (question.id,)))

    world.store.call(questions.answer, question.id, by="ana", value=packed("yes"))

    assert asked(world, claim.task.id) == ()


def test_an_interrupted_task_waits_for_the_yes_to_go_on(world: World) -> None:
    claim = world.start(resume="ask")
    world.interrupt(claim)
    assert asked(world, claim.task.id) == ()

    world.recover(claim.task.id)

    assert [one.kind for one in asked(world, claim.task.id)] == [QuestionKind.RESUME]


def test_a_running_or_ended_task_waits_for_nobody(world: World) -> None:
    claim = world.start()
    world.ask(claim)
    assert asked(world, claim.task.id) == ()

    world.complete(claim)

    assert asked(world, claim.task.id) == ()
