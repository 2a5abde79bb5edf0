"""Recovery: one stored decision for each interruption, acted on once, and no task that is left alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perdure import codec
from perdure.errors import NotFound
from perdure.model.question import Question, QuestionKind
from perdure.model.step import StepKind
from perdure.model.task import Claim, Wait, WaitKind
from perdure.policy.recovery import Rule, Verdict
from perdure.store import Store, ends, instances, messages, questions, recovery, tasks
from perdure.store.recovery import Recovered
from tests.contract.conftest import OpenSecond
from tests.world import DAY_MS, RECOVERY_LIMIT, World, done, packed

WEEK_MS = 7 * DAY_MS


def _act(world: World, task_id: str) -> Recovered:
    found = world.recover(task_id)
    assert found is not None
    return found


def _rows(world: World, task_id: str) -> list[tuple[str, str]]:
    """Verdict and rule of what was decided for a task so far, newest first."""
    return [(one.verdict, one.rule) for one in world.store.read(recovery.decisions, task_id)]


def _crash(world: World, claim: Claim) -> Recovered:
    world.interrupt(claim)
    return _act(world, claim.task.id)


# -- the table, row by row -------------------------------------------------------------------


def test_a_passed_deadline_wins_over_everything(world: World) -> None:
    claim = world.start(deadline_ms=1000, risk="critical")
    world.begin(claim, "pay", risk="critical")
    world.interrupt(claim, trace_error="unreadable")
    world.clock.advance(1000)

    found = _act(world, claim.task.id)

    assert (found.decision.verdict, found.question_id) == (Verdict.TIMED_OUT, None)
    assert world.task(claim.task.id).status == "timed_out"
    assert _rows(world, claim.task.id) == [("timed_out", "deadline_passed")]


def test_a_trace_that_cannot_be_read_is_skipped_with_a_question(world: World) -> None:
    claim = world.start()
    world.record(claim, "pay", risk="high", name="pay")
    world.interrupt(claim, trace_error="the codec is unknown")

    found = _act(world, claim.task.id)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.SKIP, Rule.TRACE_UNREADABLE)
    assert found.question_id is not None
    asked = world.store.read(questions.get, found.question_id)
    assert (asked.kind, asked.status) == (QuestionKind.RESUME, "open")
    assert asked.expires_at == world.clock.now_ms() + WEEK_MS
    assert "the codec is unknown" in asked.text
    assert "step 1: pay" in asked.text
    assert world.task(claim.task.id).status == "interrupted"
    assert _rows(world, claim.task.id) == [("skip", "trace_unreadable")]


def test_a_trace_with_a_gap_is_skipped(world: World) -> None:
    claim = world.start()
    for key in "abc":
        world.record(claim, key)
    world.execute("DELETE FROM steps WHERE key = 'b'")

    found = _crash(world, claim)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.SKIP, Rule.TRACE_UNREADABLE)
    assert "3 of 4 records" in found.decision.reasons[0]


def test_a_task_without_any_trace_is_skipped(world: World) -> None:
    claim = world.start()
    world.execute("DELETE FROM steps")

    found = _crash(world, claim)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.SKIP, Rule.NO_TRACE)
    assert found.decision.reasons[0] == "There are no execution traces available."


def test_after_a_skip_a_yes_starts_anew_behind_the_damage(world: World) -> None:
    claim = world.start()
    for key in "abc":
        world.record(claim, key)
    world.execute("DELETE FROM steps WHERE key = 'b'")
    skipped = _crash(world, claim)
    assert skipped.question_id is not None

    world.store.call(questions.approve, skipped.question_id, by="ada")

    task = world.task(claim.task.id)
    assert (task.status, task.replay_from, task.recoveries) == ("pending", 4, 0)
    # Whatever is recorded from here on is whole: the old gap is never held against it again.
    again = world.claim(claim.task.id)
    for key in "abc":
        world.record(again, f"new {key}")
    found = _crash(world, again)
    assert (found.decision.verdict, found.decision.rule) == (Verdict.AUTO_RESUME, Rule.RESUME)
    # A new gap is.
    third = world.claim(claim.task.id)
    world.execute("DELETE FROM steps WHERE key = 'new b'")
    assert _crash(world, third).decision.verdict is Verdict.SKIP


def _take(world: World, claim: Claim, key: str, name: str, **fields: Any) -> None:
    """Complete a receive step with the oldest delivery of a name."""
    unread = world.store.read(messages.oldest_unread, claim.task.id, name)
    assert unread is not None
    world.record(claim, key, done(delivery=unread.n), kind=StepKind.RECEIVE, name="receive", **fields)


def test_after_a_skip_a_yes_gives_back_what_had_been_received(world: World) -> None:
    claim = world.start()
    for number in range(3):
        world.send(claim.task.id, "paid", number, key=f"evt_{number}")
    _take(world, claim, "r0", "paid")
    world.store.call(messages.save_checkpoint, claim.fence, packed("one is paid"), step_key="c")
    _take(world, claim, "r1", "paid")
    world.record(claim, "b")
    world.execute("DELETE FROM steps WHERE key = 'b'")
    skipped = _crash(world, claim)
    assert skipped.question_id is not None

    world.store.call(questions.approve, skipped.question_id, by="ada")

    # What lies before the checkpoint stays taken: the agent goes on from there.
    assert world.rows("SELECT key, step_key FROM deliveries ORDER BY n") == [
        ("evt_0", "r0"),
        ("evt_1", None),
        ("evt_2", None),
    ]
    again = world.claim(claim.task.id)
    world.send(claim.task.id, "paid", 1, key="evt_1")  # a webhook sent again is still a duplicate
    _take(world, again, "r1", "paid", try_number=world.task(claim.task.id).replay_from)
    assert world.rows("SELECT key FROM deliveries WHERE step_key IS NULL") == [("evt_2",)]


def test_what_was_taken_again_is_given_back_by_its_last_try(world: World) -> None:
    claim = world.start()
    world.send(claim.task.id, "paid", key="evt")
    _take(world, claim, "r", "paid")
    _give_back(world, claim, damaged=0)
    again = world.claim(claim.task.id)
    from_there = world.task(claim.task.id).replay_from
    # A checkpoint after the first try, which is read no more, and before the second.
    world.store.call(messages.save_checkpoint, again.fence, packed("nothing is paid"), step_key="c")
    _take(world, again, "r", "paid", try_number=from_there)

    _give_back(world, again, damaged=from_there)

    assert world.rows("SELECT key, step_key FROM deliveries") == [("evt", None)]
    last = world.claim(claim.task.id)
    _take(world, last, "r", "paid", try_number=world.task(claim.task.id).replay_from)
    world.store.call(messages.save_checkpoint, last.fence, packed("one is paid"), step_key="d")
    _give_back(world, last, damaged=world.task(claim.task.id).replay_from)
    assert world.rows("SELECT key, step_key FROM deliveries") == [("evt", "r")]


def _give_back(world: World, claim: Claim, *, damaged: int) -> None:
    """Lose a record of a task that has crashed, and say that it may begin behind that."""
    assert world.execute("DELETE FROM steps WHERE step_index = :damaged", damaged=damaged) == 1
    skipped = _crash(world, claim)
    assert skipped.question_id is not None
    world.store.call(questions.approve, skipped.question_id, by="ada")


def test_going_on_after_a_crash_gives_nothing_back(world: World) -> None:
    claim = world.start(resume="ask")
    world.send(claim.task.id, "paid")
    _take(world, claim, "r", "paid")
    asked = _crash(world, claim)
    assert asked.question_id is not None

    world.store.call(questions.approve, asked.question_id, by="ada")

    assert world.rows("SELECT step_key FROM deliveries") == [("r",)]


def test_a_task_that_goes_round_in_circles_is_parked_and_counts_anew_after_a_yes(world: World) -> None:
    claim = world.start()
    for _ in range(RECOVERY_LIMIT):
        assert _crash(world, claim).decision.verdict is Verdict.AUTO_RESUME
        claim = world.claim(claim.task.id)

    parked = _crash(world, claim)

    assert (parked.decision.verdict, parked.decision.rule) == (Verdict.PARK, Rule.TOO_MANY_RECOVERIES)
    assert parked.question_id is not None
    assert world.store.read(questions.get, parked.question_id).text.count("attempt ") == RECOVERY_LIMIT + 1
    assert world.task(claim.task.id).status == "interrupted"
    world.store.call(questions.approve, parked.question_id, by="ada")
    task = world.task(claim.task.id)
    assert (task.status, task.recoveries, task.replay_from) == ("pending", 0, 0)
    assert [verdict for verdict, _ in _rows(world, claim.task.id)] == ["park"] + ["auto_resume"] * RECOVERY_LIMIT


@pytest.mark.parametrize("risk", ["medium", "high", "critical"])
def test_a_call_in_doubt_is_replayed_up_to_and_its_question_is_left_to_the_attempt(world: World, risk: str) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk=risk, name="pay")

    found = _crash(world, claim)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.AUTO_RESUME, Rule.STEP_IN_DOUBT)
    assert found.question_id is None
    assert world.task(claim.task.id).status == "pending"
    (stored,) = world.store.read(recovery.decisions, claim.task.id)
    assert [(one["name"], one["risk"]) for one in stored.evidence["in_doubt"]] == [("pay", risk)]


def test_a_low_call_without_an_outcome_is_no_doubt(world: World) -> None:
    claim = world.start()
    world.begin(claim, "read")

    assert _crash(world, claim).decision.rule is Rule.RESUME


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"risk": "high"}, Rule.DECLARED_RISK),
        ({"risk": "critical"}, Rule.DECLARED_RISK),
        ({"resume": "ask"}, Rule.RESUME_ASKS),
    ],
)
def test_a_declared_risk_asks_before_it_goes_on(world: World, fields: dict[str, Any], rule: Rule) -> None:
    claim = world.start(**fields)

    found = _crash(world, claim)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.PENDING_CONFIRMATION, rule)
    assert found.question_id is not None
    assert world.task(claim.task.id).status == "interrupted"
    world.store.call(questions.approve, found.question_id, by="ada")
    task = world.task(claim.task.id)
    assert (task.status, task.recoveries) == ("pending", 1)


def test_one_that_is_asked_about_each_time_is_parked_in_the_end_too(world: World) -> None:
    claim = world.start(risk="high")
    verdicts = []
    for _ in range(RECOVERY_LIMIT + 1):
        found = _crash(world, claim)
        verdicts.append(found.decision.verdict)
        assert found.question_id is not None
        world.store.call(questions.approve, found.question_id, by="ada")
        claim = world.claim(claim.task.id)

    assert verdicts == [Verdict.PENDING_CONFIRMATION] * RECOVERY_LIMIT + [Verdict.PARK]


@pytest.mark.parametrize("risk", ["low", "medium"])
def test_anything_else_goes_on_by_itself_and_is_counted(world: World, risk: str) -> None:
    claim = world.start(risk=risk)
    world.record(claim, "pay", risk="critical")

    found = _crash(world, claim)

    assert (found.decision.verdict, found.decision.rule) == (Verdict.AUTO_RESUME, Rule.RESUME)
    task = world.task(claim.task.id)
    assert (task.status, task.recoveries, task.replay_from) == ("pending", 1, 0)
    assert world.kinds(claim.task.id)[-2:] == ["task_interrupted", "task_recovered"]


def test_who_was_waiting_is_recovered_without_counting(world: World) -> None:
    claim = world.start()
    world.wait_for(claim, Wait(WaitKind.RECEIVE, ("mail",)))

    assert _crash(world, claim).decision.verdict is Verdict.AUTO_RESUME

    assert world.task(claim.task.id).recoveries == 0


# -- the person's answer ---------------------------------------------------------------------


def _asked(world: World) -> tuple[Claim, str]:
    claim = world.start(risk="high")
    found = _crash(world, claim)
    assert found.question_id is not None
    return claim, found.question_id


def test_a_no_abandons_the_task(world: World) -> None:
    claim, question_id = _asked(world)

    world.store.call(questions.deny, question_id, by="ada", reason="too old")

    task = world.task(claim.task.id)
    error = world.store.read(tasks.read_error, task.error)
    assert error is not None
    assert (task.status, error.type) == ("failed", "denied")
    assert "ada" in error.message
    assert "too old" in error.message
    assert world.kinds(claim.task.id)[-1] == "task_abandoned"


def test_nobodys_answer_is_no_no(world: World) -> None:
    claim, _ = _asked(world)
    world.clock.advance(WEEK_MS)

    world.expire()

    task = world.task(claim.task.id)
    error = world.store.read(tasks.read_error, task.error)
    assert error is not None
    assert (task.status, error.type) == ("failed", "expired")


def test_an_abandoned_task_takes_along_who_was_waited_for_and_wakes_its_parent(world: World) -> None:
    parent = world.start()
    child = world.claim(world.spawn(parent, "a", risk="high").id)
    grandchild = world.spawn(child, "b")
    world.set_aside(parent, Wait(WaitKind.CHILDREN, (child.task.id,)))
    found = _crash(world, child)
    assert found.question_id is not None

    world.store.call(questions.deny, found.question_id, by="ada", reason="")

    assert world.task(grandchild.id).status == "cancelled"
    assert world.task(parent.task.id).status == "pending"


def test_an_answer_to_a_task_that_has_ended_meanwhile_moves_nothing(world: World) -> None:
    claim, question_id = _asked(world)
    world.store.call(ends.cancel, claim.task.id)

    settled = world.unchanged_by(world.store.call, questions.approve, question_id, by="ada")

    assert isinstance(settled, Question)
    assert settled.status == "cancelled"


def test_a_yes_is_used_up_so_that_the_next_interruption_asks_again(world: World) -> None:
    claim, question_id = _asked(world)
    world.store.call(questions.approve, question_id, by="ada")
    assert world.store.read(questions.get, question_id).spent_at == world.clock.now_ms()

    found = _crash(world, world.claim(claim.task.id))

    assert found.question_id not in (None, question_id)


# -- once ------------------------------------------------------------------------------------


def test_a_second_pass_finds_nothing(world: World) -> None:
    recovered = world.start()
    world.clock.advance(1)
    asked = world.start(risk="high")
    world.crash(world.worker)
    found = world.store.read(recovery.interrupted)
    assert found == [recovered.task.id, asked.task.id]
    for task_id in found:
        world.recover(task_id)

    assert world.store.read(recovery.interrupted) == []
    assert world.store.call(instances.interrupt_orphans) == []
    assert world.unchanged_by(world.recover, recovered.task.id) is None
    assert world.unchanged_by(world.recover, asked.task.id) is None


def test_of_two_workers_that_recover_one_task_one_does(world: World, request: pytest.FixtureRequest) -> None:
    other = world.store
    if world.store.database.url != "sqlite://":
        open_second: OpenSecond = request.getfixturevalue("open_second")
        other = open_second(world.store)
    claims = [world.start() for _ in range(40)]
    world.crash(world.worker)
    acted: dict[str, list[Recovered]] = {claim.task.id: [] for claim in claims}
    barrier = threading.Barrier(2)

    def work(store: Store) -> None:
        for task_id, found in acted.items():
            barrier.wait()
            one = store.call(recovery.act, task_id, recovery_limit=3, question_expiry_ms=1000)
            if one is not None:
                found.append(one)

    threads = [threading.Thread(target=work, args=(store,)) for store in (world.store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(found) for found in acted.values()] == [1] * len(claims)
    assert {world.task(task_id).recoveries for task_id in acted} == {1}
    assert world.rows("SELECT count(*), count(DISTINCT task) FROM recovery_decisions") == [(40, 40)]


def test_a_dry_run_says_what_would_be_decided_and_does_nothing(world: World) -> None:
    claim = world.start(risk="high")
    world.interrupt(claim)

    told = world.unchanged_by(lambda: world.store.read(recovery.examine, claim.task.id, recovery_limit=3))

    assert told == _act(world, claim.task.id).decision


def test_what_is_not_interrupted_is_not_recovered(world: World) -> None:
    running = world.start()

    assert world.unchanged_by(world.recover, running.task.id) is None
    assert isinstance(world.unchanged_by(world.recover, "nowhere"), NotFound)


def test_one_broken_task_of_ten_does_not_hold_up_the_others(world: World) -> None:
    claims = [world.start() for _ in range(10)]
    world.crash(world.worker)
    for claim, damage in ((claims[0], b"\xff"), (claims[1], b"Jx")):
        changed = world.execute(
            "UPDATE events SET payload = :damage WHERE kind = 'task_interrupted'"
            " AND task = (SELECT n FROM tasks WHERE id = :id)",
            damage=damage,
            id=claim.task.id,
        )
        assert changed == 1

    for task_id in world.store.read(recovery.interrupted):
        world.recover(task_id)

    assert [world.task(claim.task.id).status for claim in claims] == ["interrupted"] * 2 + ["pending"] * 8
    assert [one.kind for one in world.store.read(questions.open_list)] == [QuestionKind.RESUME] * 2
    assert world.store.read(recovery.interrupted) == []


def test_a_question_of_the_agents_own_does_not_keep_its_task_from_recovery(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim)
    world.wait_for(claim, Wait(WaitKind.QUESTION, (asked.id,)))
    world.crash(world.worker)

    assert world.store.read(recovery.interrupted) == [claim.task.id]
    assert _act(world, claim.task.id).decision.verdict is Verdict.AUTO_RESUME

    # Asked again by the replay, it is the same question.
    again = world.claim(claim.task.id, worker=world.new_worker())
    assert world.ask(again).id == asked.id


def test_only_the_attempts_of_who_is_gone_are_interrupted(world: World) -> None:
    gone, alive = world.new_worker(), world.new_worker()
    lost, waiting, kept = world.start(worker=gone), world.start(worker=gone), world.start(worker=alive)
    world.wait_for(waiting, Wait(WaitKind.RECEIVE, ("mail",)))

    assert sorted(world.crash(gone)) == sorted([lost.task.id, waiting.task.id])

    assert world.task(kept.task.id).status == "running"
    assert [one.status for one in world.attempts(lost.task.id)] == ["interrupted"]
    assert world.task(waiting.task.id).waiting_for == ()


def test_a_stored_decision_keeps_its_reasons_and_evidence(world: World) -> None:
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    found = _crash(world, claim)

    (stored,) = world.store.read(recovery.decisions, claim.task.id)

    assert (stored.execution_id, stored.at) == (claim.execution_id, world.clock.now_ms())
    assert stored.reasons == found.decision.reasons
    assert stored.evidence == codec.decode(codec.evidence(dict(found.decision.evidence)))


def test_a_question_about_resuming_tells_what_it_rests_on(world: World) -> None:
    claim = world.start(risk="critical", work="transfer")
    world.record(claim, "a", name="look up")
    found = _crash(world, claim)
    assert found.question_id is not None

    asked = world.store.read(questions.get, found.question_id)

    rests_on = world.store.read(questions.evidence, asked)
    assert isinstance(rests_on, dict)
    assert (rests_on["verdict"], rests_on["record_count"], rests_on["task_id"]) == (
        "pending_confirmation",
        2,
        claim.task.id,
    )
    assert "look up" in asked.text
