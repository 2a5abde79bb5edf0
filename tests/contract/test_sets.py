"""What is done to many tasks in one statement leaves the same rows as if each had been dealt with by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from perdure import codec
from perdure.errors import Damaged
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.step import Note, StepKind
from perdure.model.task import Claim, Usage
from perdure.store import Store, completions, ends, instances, messages, recovery, tasks, traces
from perdure.store.completions import Completion
from perdure.store.database import Transaction
from tests.rows import query
from tests.world import DAY_MS, RECOVERY_LIMIT, TABLES, World, columns_of, done, outcome_of, packed, stale, timer

Rows = dict[str, list[str]]


class _Undo(Exception):
    """Carries out what a unit has seen, and has all it wrote undone."""

    def __init__(self, seen: Rows) -> None:
        super().__init__("undone")
        self.seen = seen


def _seen(tx: Transaction) -> Rows:
    """Every row of every table but its number, which depends on who was first."""
    return {
        table: sorted(map(repr, tx.all(query(f"SELECT {', '.join(columns_of(table))} FROM {table}"))))
        for table in TABLES
    }


def _after(store: Store, act: Callable[[Transaction], object]) -> Rows:
    """What the database would hold after `act`; it is as before when this returns."""

    def unit(tx: Transaction) -> None:
        act(tx)
        raise _Undo(_seen(tx))

    try:
        store.call(unit)
    except _Undo as undo:
        return undo.seen
    raise AssertionError("the unit was not undone")


def _many(world: World) -> list[Claim]:
    """Owned tasks as a worker may leave them when it is killed: plain ones, and of each kind that is not."""
    found = [world.start() for _ in range(3)]  # with their first record alone
    for number in range(12):  # more records than a decision shows, some with usage and errors
        usage = Usage(prompt_tokens=number, completion_tokens=1, cost=0.25)
        world.record(found[0], f"k{number}", done(usage=usage), kind=StepKind.MODEL_CALL, name="ask")
    found += [world.start(session_id="chat") for _ in range(3)]  # their session has one revision
    found += [world.start(risk=risk) for risk in ("medium", "high", "critical")]
    found += [world.start(resume="ask"), world.start(deadline_ms=1)]
    waiting = world.start()
    world.wait_for(waiting, *timer(world.clock.now_ms() + DAY_MS))
    asking = world.start()
    world.ask(asking)
    doubtful = [world.start() for _ in range(2)]
    world.begin(doubtful[0], "write", risk="medium")
    world.begin(doubtful[1], "pay", risk="high")
    settled = world.start()
    world.record(settled, "pay", risk="high")
    parent = world.start()
    world.spawn(parent)
    gap = world.start()
    for key in "abc":
        world.record(gap, key)
    world.execute("DELETE FROM steps WHERE task = :task AND key = 'b'", task=gap.task.n)
    again = [world.start() for _ in range(3)]  # the second time, and so often that a person is asked
    for number, claim in enumerate(again):
        owner = claim
        for _ in range((1, 2, RECOVERY_LIMIT)[number]):
            world.record(owner, "k", done(usage=Usage(prompt_tokens=7))) if owner is claim else None
            world.interrupt(owner)
            assert world.recover(claim.task.id) is not None
            owner = world.claim(claim.task.id)
        found.append(owner)
    return [*found, waiting, asking, *doubtful, settled, parent, gap]


def test_attempts_of_a_dead_worker_end_together_as_each_would_by_itself(world: World) -> None:
    claims = _many(world)
    world.store.call(instances.mark_stopped, world.worker.id)
    reason = f"worker {world.worker.id} is silent or dead"

    def one_by_one(tx: Transaction) -> None:
        for claim in claims:
            assert tasks.interrupt(tx, claim.task.id, claim.execution_id, reason=reason)

    together = _after(world.store, instances.interrupt_orphans)

    assert together == _after(world.store, one_by_one)
    assert sorted(world.store.call(instances.interrupt_orphans)) == sorted(claim.task.id for claim in claims)


def _interrupted(world: World) -> list[str]:
    _many(world)
    world.store.call(instances.mark_stopped, world.worker.id)
    world.store.call(instances.interrupt_orphans)
    world.clock.advance(1)
    return world.store.read(recovery.interrupted)


def _act(tx: Transaction, task_ids: Sequence[str]) -> None:
    for task_id in task_ids:
        recovery.act(tx, task_id, recovery_limit=RECOVERY_LIMIT, question_expiry_ms=DAY_MS)


def test_tasks_that_simply_go_on_are_recovered_together_as_each_would_by_itself(world: World) -> None:
    found = _interrupted(world)
    plain: list[str] = []

    def together(tx: Transaction) -> None:
        resumed = recovery.resume_plain(tx, found, recovery_limit=RECOVERY_LIMIT)
        plain[:] = [one.task_id for one in resumed]
        _act(tx, [task_id for task_id in found if task_id not in plain])

    # The plain ones come first in both, for sessions and questions are numbered in the order of the acts.
    seen = _after(world.store, together)

    others = [task_id for task_id in found if task_id not in plain]
    assert seen == _after(world.store, lambda tx: _act(tx, [*plain, *others]))
    assert len(plain) == 13
    assert len(others) == 8


def test_what_was_recovered_together_is_done_once(world: World) -> None:
    found = _interrupted(world)

    first = world.store.call(recovery.resume_plain, found, recovery_limit=RECOVERY_LIMIT)
    again = world.unchanged_by(world.store.call, recovery.resume_plain, found, recovery_limit=RECOVERY_LIMIT)

    assert again == []
    assert all(world.task(one.task_id).status == "pending" for one in first)


def test_a_person_who_was_asked_is_not_passed_over(world: World) -> None:
    claims = [world.start() for _ in range(2)]
    asked = world.ask(claims[0], QuestionKind.RESUME)
    for claim in claims:
        world.interrupt(claim)

    found = world.store.call(recovery.resume_plain, [one.task.id for one in claims], recovery_limit=RECOVERY_LIMIT)

    assert [one.task_id for one in found] == [claims[1].task.id]
    assert asked.status == "open"


def test_damage_in_one_task_leaves_it_alone_to_be_looked_at(world: World) -> None:
    claims = [world.start() for _ in range(2)]
    for claim in claims:
        world.interrupt(claim)
    world.execute(
        "UPDATE events SET payload = :broken WHERE task = :task AND kind = 'task_interrupted'",
        broken=b"?",
        task=claims[0].task.n,
    )

    found = world.store.call(recovery.resume_plain, [one.task.id for one in claims], recovery_limit=RECOVERY_LIMIT)

    assert [one.task_id for one in found] == [claims[1].task.id]
    acted = world.recover(claims[0].task.id)
    assert acted is not None
    assert acted.question_id is not None


def test_tasks_that_are_claimed_together_each_have_their_own_attempt_and_first_record(world: World) -> None:
    claims = [world.start() for _ in range(3)]
    for claim in claims[:2]:
        world.interrupt(claim)
        world.recover(claim.task.id)
    world.store.call(ends.complete, claims[2].fence, packed(1), risk_seen="low")
    fresh = world.admit(session_id="chat")

    found = world.claim_any()

    assert [one.task.id for one in found] == [claims[0].task.id, claims[1].task.id, fresh.id]
    assert len({one.execution_id for one in found}) == 3
    for one in found:
        assert one.task == world.task(one.task.id)
        last = world.attempts(one.task.id)[-1]
        assert (last.execution_id, last.number, last.status) == (one.execution_id, one.task.attempt, "running")
        told = world.feed(one.task.id)[-2:]
        assert [event.kind for event in told] == ["task_started", "turn_started"]
        assert told[0].payload == {"attempt": one.task.attempt, "instance": world.worker.id}
        assert told[1].payload["input"] == {"attempt": one.task.attempt}
        assert [event.seq for event in told] == [one.task.event_seq - 1, one.task.event_seq]


def test_input_that_cannot_be_read_stops_none_of_those_claimed_with_it(world: World) -> None:
    admitted = [world.admit() for _ in range(3)]
    world.execute("UPDATE task_inputs SET prompt = :broken WHERE task = :task", broken=b"?", task=admitted[1].n)

    found = world.claim_any()

    assert [one.task.id for one in found] == [admitted[0].id, admitted[2].id]
    assert world.task(admitted[1].id).status == "interrupted"


def test_an_attempt_ends_with_what_it_alone_consumed(world: World) -> None:
    claim = world.start()
    world.record(claim, "a", done(usage=Usage(prompt_tokens=5, cost=0.5)))
    world.interrupt(claim)
    world.recover(claim.task.id)
    again = world.claim(claim.task.id)
    world.record(again, "b", done(usage=Usage(prompt_tokens=2, cost=0.25)))
    world.complete(again)

    assert [(one.prompt_tokens, one.cost, one.tool_calls) for one in world.attempts(claim.task.id)] == [
        (5, 0.5, 1),
        (2, 0.25, 1),
    ]


def test_a_task_that_stands_alone_completes_as_one_with_a_family_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [world.start(), world.start(session_id="chat")]
    world.record(claims[0], "a", done(usage=Usage(prompt_tokens=5, cost=0.5)))
    notes = [Note("said", b'"hm"'), Note("turn_completed", b"{}")]

    def complete(tx: Transaction) -> None:
        for claim in claims:
            ends.complete(tx, claim.fence, packed({"answer": 42}), notes=notes, risk_seen="medium")

    alone = _after(world.store, complete)
    monkeypatch.setattr(ends, "_complete_alone", lambda *_: False)

    assert alone == _after(world.store, complete)


CLOSED = Note("turn_completed", b'{"outcome":"completed"}')


def _result(number: int) -> codec.Packed:
    return packed({"number": number, "text": 'Grüße \x00 \\ "', "deep": [None, 1.5]})


def _end_each(tx: Transaction, claims: Sequence[Claim]) -> None:
    for number, claim in enumerate(claims):
        ends.complete(tx, claim.fence, _result(number), notes=[CLOSED], risk_seen="medium")


def test_tasks_that_complete_together_do_as_each_would_by_itself(world: World) -> None:
    claims = [world.start(), world.start(risk="high"), *(world.start(session_id="chat") for _ in range(3))]
    world.record(claims[0], "a", done(usage=Usage(prompt_tokens=5, cost=0.5)))
    world.record(claims[1], "b", risk="high")
    waiting = world.start()
    world.wait_for(waiting, *timer(world.clock.now_ms() + DAY_MS))
    first = world.start()
    world.record(first, "c", done(usage=Usage(prompt_tokens=3, cost=0.1)))
    world.interrupt(first)
    world.recover(first.task.id)
    claims += [waiting, world.claim(first.task.id)]
    claims.sort(key=lambda claim: claim.task.id)  # in the order in which they are locked
    wanted = [Completion(one.fence, _result(number), CLOSED, "medium") for number, one in enumerate(claims)]

    together = _after(world.store, lambda tx: completions.complete_all(tx, wanted))

    assert together == _after(world.store, lambda tx: _end_each(tx, claims))
    assert world.store.call(completions.complete_all, wanted) == {claim.execution_id for claim in claims}
    assert world.unchanged_by(world.store.call, completions.complete_all, wanted) == set()


def test_what_does_not_simply_complete_is_left_to_its_owner(world: World) -> None:
    parent, asking, doubtful, lost, big, plain = (world.start() for _ in range(6))
    child = world.claim(world.spawn(parent).id)
    world.ask(asking)
    world.begin(doubtful, "pay", risk="high")
    world.interrupt(lost)
    results = {big.execution_id: packed(["x" * 100 + str(number) for number in range(1000)])}
    claims = [parent, child, asking, doubtful, lost, big]
    wanted = [Completion(one.fence, results.get(one.execution_id, packed(1)), CLOSED, "low") for one in claims]
    stolen = [Completion(fence, packed(1), CLOSED, "low") for fence in stale(plain.fence)]

    assert world.unchanged_by(world.store.call, completions.complete_all, [*wanted, stolen[0]]) == set()
    assert world.unchanged_by(world.store.call, completions.complete_all, [*wanted, stolen[1]]) == set()
    mixed = [*wanted, Completion(plain.fence, packed(1), CLOSED, "low")]
    assert world.store.call(completions.complete_all, mixed) == {plain.execution_id}
    assert {world.task(one.task.id).status for one in claims} == {"running", "interrupted"}


def test_traces_read_together_are_those_read_one_by_one(world: World) -> None:
    claims = _many(world)
    world.store.call(messages.append, claims[0].fence, NewMessage("user", b"1"), step_key="m")
    spoiled = claims[-1]
    world.record(spoiled, "spoiled")
    world.execute("UPDATE steps SET output = :broken WHERE key = 'spoiled'", broken=b"?")
    wanted = [(claim.task.id, 0) for claim in claims] + [("nobody", 0)]

    found = world.store.read(traces.read_all, wanted)

    one_by_one = {claim.task.id: outcome_of(world.store.read, traces.read, claim.task.id) for claim in claims}
    whole = {task_id: trace for task_id, trace in one_by_one.items() if not isinstance(trace, Damaged)}
    assert found == whole
    assert len(whole) == len(claims) - 1  # that with the gap and the spoiled one are the same
    assert found[claims[0].task.id].message_keys == {"m"}
