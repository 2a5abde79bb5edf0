"""Admission: a batch becomes rows, all or none; the same key is the same work; a refusal names what it rests on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure import codec
from perdure.errors import BadInput, KeyConflict, LeaseLost, NotFound, Refused
from perdure.model.instance import InstanceType
from perdure.model.message import NewMessage
from perdure.model.question import QuestionKind
from perdure.model.step import Note, StepKind
from perdure.model.task import Claim, Lane, Mode, Usage
from perdure.policy.budget import Budget
from perdure.store import admission, ends, events, instances, messages, questions, sessions, steps, task_lists, tasks
from perdure.store.admission import Admission, NewTask
from tests.nasty import IDS, SURROGATES
from tests.world import World, done, ids, new_step, new_task, packed

BROKEN_IDS = ("", "a\x00b", "x" * 513, "\u00e9" * 257, *SURROGATES)


def _admit(world: World, *new: NewTask) -> Admission:
    return world.store.call(admission.admit, new)


def _children(world: World, parent: Claim, *keys: str, **fields: Any) -> Admission:
    batch = [(new_step(key, kind=StepKind.CHILD), new_task(key=key, **fields)) for key in keys]
    return world.store.call(admission.admit_children, parent.fence, batch)


# -- what is admitted ------------------------------------------------------------------------


def test_an_admitted_task_waits_for_an_owner_and_can_be_listed(world: World) -> None:
    (task,) = _admit(world, new_task()).tasks

    assert (task.status, task.attempt, task.execution_id, task.instance_id) == ("pending", 0, None, None)
    assert (task.lane, task.mode, task.depth, task.priority) == (Lane.SUBAGENT, Mode.FOREGROUND, 1, 0)
    assert (task.caller_agent_id, task.caller_scope_id) == ("ROOT", "client")
    assert (task.root_task_id, task.turn_id, task.session_id) == (task.id, task.id, task.root_session_id)
    assert world.store.read(task_lists.recent) == [task]


def test_a_batch_is_admitted_in_its_order(world: World) -> None:
    admitted = _admit(world, *(new_task(work=number) for number in range(5)))

    assert not admitted.existing
    prompts = [world.store.read(tasks.get_input, task.id).prompt for task in admitted.tasks]
    assert prompts == [b"0", b"1", b"2", b"3", b"4"]


def test_a_task_without_session_or_key_has_a_session_of_its_own(world: World) -> None:
    first, second = _admit(world, new_task(), new_task()).tasks

    assert first.root_session_id != second.root_session_id


def test_every_admission_raises_the_revision_of_its_session(world: World) -> None:
    admitted = _admit(world, *(new_task(work=number, session_id="chat") for number in range(3)))

    assert [task.revision for task in admitted.tasks] == [1, 2, 3]
    assert world.store.read(sessions.get, "chat").revision == 3


@pytest.mark.parametrize("relative", [True, False])
def test_a_deadline_is_kept_whether_given_as_an_instant_or_from_now(world: World, relative: bool) -> None:
    now = world.clock.now_ms()

    task = world.admit(deadline_ms=1000) if relative else world.admit(deadline_at=now + 1000)

    assert task.deadline_at == now + 1000


# -- keys ------------------------------------------------------------------------------------


def test_the_same_key_and_work_is_the_same_task(world: World) -> None:
    first = _admit(world, new_task(key="k"))

    again = world.unchanged_by(_admit, world, new_task(key="k"))

    assert again == Admission(first.tasks, True)


def test_a_hundred_identical_calls_at_once_make_one_row(world: World) -> None:
    callers = 100
    found: list[Admission] = []
    start = threading.Barrier(callers)

    def call() -> None:
        start.wait()
        found.append(_admit(world, new_task(key="k")))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == callers
    assert len({task.id for one in found for task in one.tasks}) == 1
    assert sum(not one.existing for one in found) == 1
    assert world.rows("SELECT count(*) FROM tasks") == [(1,)]


def test_a_key_stays_known_after_its_task_has_ended(world: World) -> None:
    claim = world.start(key="k")
    world.complete(claim)

    again = _admit(world, new_task(key="k"))

    assert again.existing
    assert again.tasks[0].status == "completed"


def test_a_batch_of_which_only_a_part_is_known_is_a_conflict(world: World) -> None:
    first = world.admit(key="a", session_id="chat")

    for rest in (new_task(key="b", session_id="chat"), new_task(session_id="chat")):
        outcome = world.unchanged_by(_admit, world, new_task(key="a", session_id="chat"), rest)

        assert isinstance(outcome, KeyConflict)
        assert outcome.existing == (first.id,)


def test_a_batch_that_is_known_as_a_whole_is_found_again(world: World) -> None:
    batch = [new_task(work=key, key=key, session_id="chat") for key in "abc"]
    first = _admit(world, *batch)

    assert world.unchanged_by(_admit, world, *batch) == Admission(first.tasks, True)


def test_a_batch_is_admitted_as_a_whole_or_not_at_all(world: World) -> None:
    world.admit(key="c", work="other", session_id="chat")

    outcome = world.unchanged_by(_admit, world, *(new_task(key=key, session_id="chat") for key in "abc"))

    assert isinstance(outcome, KeyConflict)


def test_a_key_without_a_session_is_unique_in_the_database_and_else_in_its_session(world: World) -> None:
    alone = world.admit(key="k")
    in_one = world.admit(key="k", session_id="one")
    in_two = world.admit(key="k", session_id="two")

    assert len({alone.id, in_one.id, in_two.id}) == 3
    assert _admit(world, new_task(key="k")).tasks[0].id == alone.id
    assert _admit(world, new_task(key="k", session_id="two")).tasks[0].id == in_two.id


def test_names_joined_by_a_colon_never_collide(world: World) -> None:
    one = world.admit(session_id="a", key="b:c")
    other = world.admit(session_id="a:b", key="c")
    by_agent = world.admit(new_task("a", work="b:c")), world.admit(new_task("a:b", work="c"))

    assert one.id != other.id
    assert by_agent[0].work_digest != by_agent[1].work_digest


def test_an_empty_batch_and_a_doubled_key_are_refused(world: World) -> None:
    for batch, field in (((), "tasks"), ((new_task(key="k"), new_task(key="k", work="other")), "key")):
        outcome = world.unchanged_by(_admit, world, *batch)

        assert isinstance(outcome, BadInput)
        assert outcome.field == field


IMPOSSIBLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"priority": 10}, "priority"),
    ({"priority": -1}, "priority"),
    ({"risk": "hgih"}, "risk"),
    ({"resume": "maybe"}, "resume"),
    ({"execution": "both"}, "execution"),
    ({"delay_ms": -1}, "delay_ms"),
    ({"deadline_at": 1 << 63}, "deadline_at"),
    ({"deadline_ms": -1}, "deadline_ms"),
    ({"metadata": {"n": float("nan")}}, "metadata"),
    ({"metadata": {"when": object()}}, "metadata"),
    ({"version": "v\x00"}, "version"),
)


def test_what_no_task_can_have_is_refused_by_name(world: World) -> None:
    for fields, field in IMPOSSIBLE:
        outcome = world.unchanged_by(_admit, world, new_task(**fields))

        assert isinstance(outcome, BadInput), (fields, outcome)
        assert outcome.field == field


# -- ids at every door -----------------------------------------------------------------------


def test_a_nasty_id_comes_back_as_it_was(world: World) -> None:
    for nasty in (one for one in IDS if len(one.encode()) <= 512):
        task = world.admit(new_task(nasty, key=nasty, session_id=nasty, version=nasty))
        claim = world.claim(task.id, worker=world.new_worker((nasty, nasty)))
        world.record(claim, nasty, name=nasty, tool_call_id=nasty)
        world.store.call(messages.send, task.id, name=nasty, key=nasty, payload=packed(nasty), unread_limit=10)

        assert (claim.task.agent, claim.task.idempotency_key, claim.task.session_id) == (nasty, nasty, nasty)
        assert claim.task.version == nasty
        step = world.step(task.id, nasty)
        assert step is not None
        assert (step.key, step.name, step.tool_call_id) == (nasty, nasty, nasty)
        assert world.store.read(messages.oldest_unread, task.id, nasty) is not None
        assert _admit(world, new_task(nasty, key=nasty, session_id=nasty)).existing
        assert ids(world.store.read(task_lists.recent, session_id=nasty)) == [task.id]


def test_an_id_that_is_too_long_is_refused(world: World) -> None:
    for nasty in (one for one in IDS if len(one.encode()) > 512):
        assert isinstance(world.unchanged_by(_admit, world, new_task(nasty)), BadInput)
        assert isinstance(world.unchanged_by(_admit, world, new_task(key=nasty)), BadInput)


def test_ids_that_look_alike_are_different(world: World) -> None:
    alike = ("\u00e9", "e\u0301", "E\u0301", "a", "A", " a", "a ")

    admitted = [world.admit(key=text, session_id="chat", work=text) for text in alike]

    assert len({task.id for task in admitted}) == len(alike)


DOORS: dict[str, Callable[[World, Claim, str], object]] = {
    "agent": lambda world, _, text: _admit(world, new_task(text)),
    "key": lambda world, _, text: _admit(world, new_task(key=text)),
    "session": lambda world, _, text: _admit(world, new_task(session_id=text)),
    "forked_from": lambda world, _, text: _admit(world, new_task(forked_from=text)),
    "child key": _children,
    "step key": lambda world, claim, text: world.begin(claim, text * 2),
    "step key at once": lambda world, claim, text: world.record(claim, text * 2),
    "message key": lambda world, claim, text: world.store.call(
        messages.append, claim.fence, NewMessage("user", b'"hi"'), step_key=text * 2
    ),
    "checkpoint key": lambda world, claim, text: world.store.call(
        messages.save_checkpoint, claim.fence, packed(1), step_key=text * 2
    ),
    "delivery name": lambda world, claim, text: world.store.call(
        messages.send, claim.task.id, name=text, key="k", payload=packed(1), unread_limit=10
    ),
    "delivery key": lambda world, claim, text: world.store.call(
        messages.send, claim.task.id, name="n", key=text, payload=packed(1), unread_limit=10
    ),
    "worker": lambda world, _, text: world.store.call(
        instances.register,
        instance_id=text,
        type=InstanceType.EXECUTOR,
        host="h",
        boot_id="b",
        pid=1,
        killable=False,
    ),
    "worker's agent": lambda world, _, text: world.new_worker((text, "")),
    "task to look at": lambda world, _, text: world.task(text),
    "task to cancel": lambda world, _, text: world.store.call(ends.cancel, text),
    "task to send to": lambda world, _, text: world.store.call(
        messages.send, text, name="n", key="k", payload=packed(1), unread_limit=10
    ),
    "task to find": lambda world, _, text: world.store.read(task_lists.find, text),
    "question": lambda world, _, text: world.store.call(questions.approve, text, by="ada"),
    "session to look at": lambda world, _, text: world.store.read(sessions.get, text),
    "instance to look at": lambda world, _, text: world.store.read(instances.get, text),
}


def test_what_cannot_be_an_id_is_refused_at_every_door(world: World) -> None:
    claim = world.start()
    before = world.dump()

    for door, knock in DOORS.items():
        for text in BROKEN_IDS:
            with pytest.raises((BadInput, NotFound)):
                knock(world, claim, text)
        assert world.dump() == before, door


TEXT_DOORS: dict[str, Callable[[World, Claim, str], object]] = {
    "step name": lambda world, claim, text: world.record(claim, "k", name=text),
    "tool call id": lambda world, claim, text: world.begin(claim, "k", tool_call_id=text),
    "note kind": lambda world, claim, text: world.record(claim, "k", done(notes=[Note(text, b"{}")])),
    "note name": lambda world, claim, text: world.store.call(
        steps.note, claim.fence, [Note("reasoning", b"{}", name=text)], risk_seen="low"
    ),
    "role": lambda world, claim, text: world.store.call(
        messages.append, claim.fence, NewMessage(text, b"1"), step_key="k"
    ),
    "question": lambda world, claim, text: world.ask(claim, text=text),
    "asked person": lambda world, claim, text: world.ask(claim, to=text),
    "reason": lambda world, claim, text: world.store.call(
        questions.deny, world.ask(claim, QuestionKind.CALL).id, by="ada", reason=text
    ),
}


def test_text_that_no_column_can_hold_is_refused_by_both_databases(world: World) -> None:
    claim = world.start()
    world.ask(claim, QuestionKind.CALL)
    before = world.dump()

    for door, knock in TEXT_DOORS.items():
        for text in ("a\x00b", *SURROGATES):
            with pytest.raises(BadInput):
                knock(world, claim, text)
        assert world.dump() == before, door


def test_payloads_hold_what_no_column_of_text_can(world: World) -> None:
    nasty = {"a\x00b": ["\x00", "\u2028", "'; drop table tasks;--", "%s %(x)s :id {now}"]}
    claim = world.start(work=nasty, metadata=nasty, tags={"t": "\x00"})
    world.record(claim, "k", done(nasty))
    reasoning = NewMessage("assistant", codec.encode(nasty), reasoning="so\x00so")
    world.store.call(messages.append, claim.fence, reasoning, step_key="m")
    asked = world.ask(claim, evidence=packed(nasty))
    world.store.call(messages.emit_owned, claim.fence, "my kind", nasty)
    world.fail(claim)

    step = world.step(claim.task.id, "k")
    (message,) = world.store.read(messages.listing, claim.task.id)
    assert codec.decode(claim.input.prompt) == nasty
    assert (claim.input.metadata, claim.input.tags) == (nasty, {"t": "\x00"})
    assert step is not None
    assert step.output is not None
    assert codec.decode(step.output) == nasty
    assert (message.content, message.reasoning) == (nasty, "so\x00so")
    assert world.store.read(questions.evidence, asked) == nasty
    assert nasty in [event.payload for event in world.store.read(events.feed, claim.task.id, after=0)]


# -- children --------------------------------------------------------------------------------


def test_a_child_hangs_below_its_parent_with_the_step_that_stands_for_it(world: World) -> None:
    parent = world.start(session_id="chat")

    child = world.spawn(parent, "first")

    assert (child.parent_task_id, child.root_task_id, child.turn_id) == (parent.task.id, parent.task.id, parent.task.id)
    assert (child.depth, child.root_session_id) == (2, "chat")
    assert (child.caller_agent_id, child.caller_scope_id) == ("writer", parent.task.id)
    step = world.store.read(steps.by_key, parent.task.id, "first")
    assert step is not None
    assert (step.child_task_id, step.is_open) == (child.id, True)
    assert world.store.read(task_lists.children, parent.task.id) == [child]


def test_a_replay_spawns_once(world: World) -> None:
    parent = world.start()
    child = world.spawn(parent, "first")

    again = world.unchanged_by(_children, world, parent, "first")

    assert isinstance(again, Admission)
    assert (ids(again.tasks), again.existing) == ([child.id], True)


def test_another_parent_may_use_the_same_step_key(world: World) -> None:
    one, other = world.start(session_id="chat"), world.start(session_id="chat")

    assert world.spawn(one, "first").id != world.spawn(other, "first").id


def test_a_child_is_not_admitted_by_who_lost_the_parent(world: World) -> None:
    parent = world.start()
    world.interrupt(parent)

    outcome = world.unchanged_by(_children, world, parent, "first")

    assert isinstance(outcome, LeaseLost)


def test_a_child_that_is_waited_for_takes_the_lane_of_its_parent(world: World) -> None:
    parent = world.start(lane=Lane.MAIN)

    waited_for = world.spawn(parent, "a", lane=Lane.SUBAGENT)
    on_its_own = world.spawn(parent, "b", lane=Lane.SUBAGENT, mode=Mode.BACKGROUND)

    assert (waited_for.lane, on_its_own.lane) == (Lane.MAIN, Lane.SUBAGENT)


def test_a_child_must_be_done_when_its_parent_must(world: World) -> None:
    now = world.clock.now_ms()
    parent = world.start(deadline_ms=1000)

    assert world.spawn(parent, "none").deadline_at == now + 1000
    assert world.spawn(parent, "later", deadline_at=now + 5000).deadline_at == now + 1000
    assert world.spawn(parent, "from now", deadline_ms=5000).deadline_at == now + 1000
    assert world.spawn(parent, "earlier", deadline_at=now + 500).deadline_at == now + 500


def test_the_budget_of_a_child_is_the_smaller_of_what_is_left_and_what_it_asks(world: World) -> None:
    parent = world.start(budget=Budget(tokens=1000, runs=5, cost=1.0))
    world.record(parent, "m", done(usage=Usage(prompt_tokens=300, completion_tokens=100, cost=0.25)))

    generous = world.spawn(parent, "a", budget=Budget(tokens=5000, tool_calls=7))
    modest = world.spawn(parent, "b", budget=Budget(tokens=10))

    def budget_of(task_id: str) -> dict[str, Any]:
        found = codec.decode(world.store.read(tasks.get_input, task_id).budget.encode())
        assert isinstance(found, dict)
        return found

    assert budget_of(generous.id) == {"tokens": 600, "tool_calls": 7, "runs": 4, "cost": 0.75}
    assert budget_of(modest.id) == {"tokens": 10, "runs": 3, "cost": 0.75}


def test_a_refusal_names_every_violated_limit_and_the_chain_of_parents(world: World) -> None:
    root = world.start(budget=Budget(depth=2, runs=1))
    child = world.claim(world.spawn(root, "a", budget=Budget(concurrent=0)).id)

    outcome = world.unchanged_by(_children, world, child, "b")

    assert isinstance(outcome, Refused)
    assert outcome.chain == (child.task.id, root.task.id)
    # The child's own limits first, then its parent's; the child has no run left of the one that its parent had.
    assert outcome.limits == (
        "concurrent 1 of 0 (limit of writer)",
        "runs 1 of 0 (limit of writer)",
        "depth 3 of 2 (limit of writer)",
        "runs 2 of 1 (limit of writer)",
    )
    assert all(limit in str(outcome) for limit in outcome.limits)


def test_children_at_the_same_time_are_counted_and_the_ended_ones_are_not(world: World) -> None:
    parent = world.start(budget=Budget(concurrent=2))
    first = world.spawn(parent, "a")
    world.spawn(parent, "b")

    assert isinstance(world.unchanged_by(_children, world, parent, "c"), Refused)

    world.complete(world.claim(first.id))
    world.spawn(parent, "c")


def test_runs_are_counted_over_all_generations_and_never_given_back(world: World) -> None:
    root = world.start(budget=Budget(runs=3))
    child = world.claim(world.spawn(root, "a").id)
    world.complete(world.claim(world.spawn(child, "b").id))

    assert isinstance(world.unchanged_by(_children, world, root, "c", "d"), Refused)

    world.spawn(root, "c")
    assert isinstance(world.unchanged_by(_children, world, root, "d"), Refused)
    assert isinstance(world.unchanged_by(_children, world, child, "d"), Refused)


def test_a_chain_of_parents_that_runs_in_a_circle_is_refused(world: World) -> None:
    root = world.start(budget=Budget(runs=100))
    child = world.claim(world.spawn(root, "a").id)
    world.execute("UPDATE tasks SET parent_task_id = :child WHERE id = :root", child=child.task.id, root=root.task.id)

    outcome = world.unchanged_by(_children, world, child, "b")

    assert isinstance(outcome, Refused)
    assert outcome.limits == ("cycle",)


def test_a_batch_of_children_is_all_or_nothing(world: World) -> None:
    parent = world.start(budget=Budget(concurrent=2))

    outcome = world.unchanged_by(_children, world, parent, "a", "b", "c")

    assert isinstance(outcome, Refused)
    assert len(_children(world, parent, "a", "b").tasks) == 2
