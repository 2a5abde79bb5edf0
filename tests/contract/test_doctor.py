"""The doctor finds nothing in a sound database, and names the rows of every kind of damage that is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import codec, doctor
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Usage, Wait, WaitKind
from perdure.store import health, instances, messages, questions
from tests.world import World, done, packed, timer

END = "UPDATE tasks SET status = 'completed', finished_at = 1, execution_id = NULL, instance_id = NULL, "
END += "waiting_for = '[]' WHERE id = :id"


def say(world: World, claim: Claim, key: str) -> None:
    world.store.call(messages.append, claim.fence, NewMessage("user", codec.encode(key)), step_key=key)


def deliver(world: World, task_id: str) -> None:
    world.store.call(messages.send, task_id, name="paid", key="k", payload=packed(1), unread_limit=10)


@pytest.fixture
def busy(world: World) -> World:
    """A world in which everything has happened that a sound database may hold."""
    claim = world.start(key="k")
    world.record(claim, "model", done(usage=Usage(5, 7)), kind="model_call")
    world.begin(claim, "send", risk="high")
    world.end_step(claim, "send", risk="high")
    say(world, claim, "hello")
    world.store.call(messages.save_checkpoint, claim.fence, packed({"at": 1}), step_key="c")
    world.spawn(claim, "child")
    world.ask(claim)
    failed = world.start()
    world.begin(failed, "pay", risk="high")
    world.interrupt(failed)
    world.recover(failed.task.id)
    sleeper = world.start()
    world.set_aside(sleeper, *timer(world.clock.now_ms() + 10_000))
    waiter = world.start()
    world.set_aside(waiter, Wait(WaitKind.RECEIVE, ("paid",)))
    deliver(world, waiter.task.id)
    ended = world.start()
    world.complete(ended, {"big": "x" * 50_000})
    return world


def invariants(world: World) -> set[str]:
    return {one.invariant for one in world.store.read(health.broken)}


def test_a_sound_database_has_no_finding(busy: World) -> None:
    assert busy.store.read(health.broken) == []


def _lose_the_attempt(world: World, claim: Claim) -> None:
    world.execute(
        "UPDATE attempts SET status = 'interrupted', ended_at = 1 WHERE execution_id = :id", id=claim.execution_id
    )


def _lose_the_owner(world: World, claim: Claim) -> None:
    world.execute("UPDATE tasks SET execution_id = 'other' WHERE id = :id", id=claim.task.id)


def _forget_an_orphan(world: World, claim: Claim) -> None:
    seen = world.store.read(instances.get, world.worker.id)
    world.store.call(instances.mark_crashed, world.worker.id, heartbeat=seen.heartbeat)


def _keep_the_slot(world: World, claim: Claim) -> None:
    world.complete(claim)
    world.execute("UPDATE tasks SET completion_reserved = 1 WHERE id = :id", id=claim.task.id)


def _leave_a_question(world: World, claim: Claim) -> None:
    world.ask(claim)
    world.execute(END, id=claim.task.id)


def _leave_a_child(world: World, claim: Claim) -> None:
    world.spawn(claim)
    world.execute(END, id=claim.task.id)


def _lose_a_record(world: World, claim: Claim) -> None:
    world.record(claim, "a")
    world.record(claim, "b")
    world.execute("DELETE FROM steps WHERE key = 'a'")


def _lose_an_event(world: World, claim: Claim) -> None:
    world.execute("DELETE FROM events WHERE task = :n AND seq = 1", n=claim.task.n)


def _lose_a_message(world: World, claim: Claim) -> None:
    say(world, claim, "a")
    say(world, claim, "b")
    world.execute("DELETE FROM messages WHERE step_key = 'b'")


def _miscount(world: World, claim: Claim) -> None:
    world.record(claim, "a")
    world.execute("UPDATE tasks SET tool_calls = 7 WHERE id = :id", id=claim.task.id)


def _miscount_tokens(world: World, claim: Claim) -> None:
    world.record(claim, "a", done(usage=Usage(5, 7)))
    world.execute("UPDATE tasks SET prompt_tokens = 0 WHERE id = :id", id=claim.task.id)


def _take_a_delivery(world: World, claim: Claim) -> None:
    deliver(world, claim.task.id)
    world.execute("UPDATE deliveries SET step_key = 'nowhere'")


def _double_a_call(world: World, claim: Claim) -> None:
    world.record(claim, "a")
    world.record(claim, "b")
    world.execute("UPDATE steps SET key = 'a' WHERE key = 'b'")


def _let_it_sleep(world: World, claim: Claim) -> None:
    child = world.spawn(claim)
    world.set_aside(claim, Wait(WaitKind.CHILDREN, (child.id,)))
    world.execute("UPDATE tasks SET status = 'cancelled', finished_at = 1 WHERE id = :id", id=child.id)


def _garble(world: World, claim: Claim) -> None:
    world.record(claim, "a")
    world.execute("UPDATE steps SET output = :blob WHERE key = 'a'", blob=b"Xnonsense")


def _garble_a_result(world: World, claim: Claim) -> None:
    world.complete(claim)
    world.execute("UPDATE tasks SET result = :blob WHERE id = :id", blob=b"", id=claim.task.id)


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [
        (_lose_the_attempt, "owners"),
        (_lose_the_owner, "attempts"),
        (_forget_an_orphan, "orphans"),
        (_keep_the_slot, "slots"),
        (_leave_a_question, "questions"),
        (_leave_a_child, "children"),
        (_lose_a_record, "step_gaps"),
        (_lose_an_event, "seq_gaps"),
        (_lose_a_message, "message_gaps"),
        (_miscount, "counters"),
        (_miscount_tokens, "counters"),
        (_take_a_delivery, "deliveries"),
        (_double_a_call, "doubled_calls"),
        (_let_it_sleep, "unwoken"),
        (_garble, "unreadable"),
        (_garble_a_result, "unreadable"),
    ],
)
def test_planted_damage_is_found_and_its_row_named(
    world: World, plant: Callable[[World, Claim], None], invariant: str
) -> None:
    claim = world.start()

    plant(world, claim)

    found = {one.invariant: one for one in world.store.read(health.broken)}
    assert invariant in found
    named = " ".join(str(value) for row in found[invariant].rows for value in row)
    assert claim.task.id in named


def test_a_status_without_its_end_is_found(world: World) -> None:
    if world.store.database.dialect != "sqlite":
        pytest.skip("PostgreSQL has no way around a check")
    claim = world.start()
    world.execute("PRAGMA ignore_check_constraints = ON")

    world.execute("UPDATE tasks SET finished_at = 1 WHERE id = :id", id=claim.task.id)

    assert "ends" in invariants(world)


def test_every_invariant_has_a_meaning_and_an_advice() -> None:
    named = {query.name.partition(".")[2] for query in health.Q} | {"unwoken", "unreadable"}
    helping = {"asleep", "newest_payloads", "newest_messages", "newest_results", "schema_version"}

    assert doctor.MEANINGS.keys() == named - helping


def test_the_report_names_facts_and_findings(busy: World) -> None:
    assert doctor.examine(busy.store).findings == ()
    busy.execute("UPDATE tasks SET tool_calls = 70 WHERE tool_calls > 0")

    report = doctor.examine(busy.store)

    facts = dict(report.facts)
    assert facts["schema"].startswith("version ")
    assert "1 completed" in facts["tasks"]
    (finding,) = report.findings
    assert finding.check == "counters"
    assert finding.rows and finding.do


def test_a_silent_worker_is_a_fact_not_a_finding(busy: World) -> None:
    busy.clock.advance(60_000)

    report = doctor.examine(busy.store)

    assert "1 silent for up to 1 min" in dict(report.facts)["workers"]
    assert report.findings == ()


def test_files_that_others_can_read_are_found(world: World, tmp_db: Path) -> None:
    if not tmp_db.exists():
        pytest.skip("only a SQLite file has modes")
    tmp_db.parent.chmod(0o700)
    assert doctor.examine(world.store).findings == ()
    tmp_db.chmod(0o644)

    (finding,) = doctor.examine(world.store).findings

    assert (finding.check, finding.rows) == ("modes", (f"{tmp_db} has mode 0644",))


def test_a_folder_in_which_others_may_write_is_found(world: World, tmp_db: Path) -> None:
    if not tmp_db.exists():
        pytest.skip("only a SQLite file has a folder")
    tmp_db.parent.chmod(0o777)

    (finding,) = doctor.examine(world.store).findings

    assert finding.check == "modes"
    assert "0777" in finding.rows[0]


def test_a_damaged_structure_is_found(world: World, tmp_db: Path) -> None:
    if not tmp_db.exists():
        pytest.skip("only a SQLite file has a structure")
    world.start()
    # An index that lost an entry: SQLite itself can tell.
    world.execute("PRAGMA writable_schema = ON")
    world.execute("UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'tasks_created'")

    found = [one for one in doctor.examine(world.store).findings if one.check == "structure"]

    assert found
    assert found[0].rows


def test_a_question_is_answered_after_all_and_nothing_is_found(world: World) -> None:
    claim = world.start()
    asked = world.ask(claim, QuestionKind.ASK)
    world.set_aside(claim, Wait(WaitKind.QUESTION, (asked.id,)))

    world.store.call(questions.answer, asked.id, by="ana", value=packed("yes"))

    assert world.task(claim.task.id).status == "pending"
    assert world.store.read(health.broken) == []
