"""The third system's own tests of its run store, under their names.

Where a test differs from the original, a comment says which settled rule it follows. What belongs to plans and to the
inbox is tested where those are.
"""

from __future__ import annotations

import pytest

from perdure import codec
from perdure.errors import LeaseLost
from perdure.model.message import NewMessage
from perdure.model.task import Fence, Wait, WaitKind
from perdure.store import admission, ends, messages, sessions, task_lists, tasks
from perdure.store.task_lists import Cursor
from tests.world import TABLES, World, ids, new_task, packed

SESSION = "cli:test:d1"


def test_fresh_database_creates_current_agent_tables(world: World) -> None:
    # agent_runs is tasks, agent_session_state is the row of the session, agent_run_messages is messages. Versions of
    # the schema are our own.
    assert world.rows("SELECT max(version) FROM schema_versions") == [(1,)]
    for table in ("tasks", "sessions", "messages"):
        assert table in TABLES
        assert world.rows(f"SELECT count(*) FROM {table}") == [(0,)]


def test_single_run_admission_persists_queued_without_group(world: World) -> None:
    accepted = world.store.call(
        admission.admit, [new_task("researcher", session_id=SESSION, deadline_at=world.clock.now_ms() + 1000)]
    )

    assert not accepted.existing
    run = world.task(accepted.tasks[0].id)
    # Queued is called pending. The execution id is made by the claim, so an admitted task has none.
    assert (run.status, run.execution_id, run.attempt) == ("pending", None, 0)
    assert (run.root_session_id, run.caller_agent_id, run.depth) == (SESSION, "ROOT", 1)
    assert (run.agent, run.mode, run.completion_reserved) == ("researcher", "foreground", False)


def test_stale_execution_cannot_commit_terminal(world: World) -> None:
    run = world.admit(session_id=SESSION)

    # An owner's verb raises instead of returning nothing, so that a zombie stops.
    with pytest.raises(LeaseLost):
        world.store.call(ends.complete, Fence(run.id, "exec-other", 1), packed("late"), risk_seen="low")

    after = world.task(run.id)
    assert (after.status, after.result) == ("pending", None)
    # The same of one that is owned, by execution id and by generation.
    claim = world.claim(run.id)
    for fence in (
        Fence(run.id, "exec-other", claim.generation),
        Fence(run.id, claim.execution_id, claim.generation + 1),
    ):
        with pytest.raises(LeaseLost):
            world.store.call(ends.complete, fence, packed("late"), risk_seen="low")
    after = world.task(run.id)
    assert (after.status, after.result) == ("running", None)


def test_waiting_children_transitions_are_conditional(world: World) -> None:
    claim = world.start(session_id=SESSION)
    child = world.spawn(claim, "child")

    # waiting_children is waiting for children. It starts from running alone.
    world.wait_for(claim, Wait(WaitKind.CHILDREN, (child.id,)))
    assert world.task(claim.task.id).status == "waiting"
    world.store.call(tasks.restore, claim.fence)
    assert world.task(claim.task.id).status == "running"

    # A run that was cancelled in the meantime keeps its terminal state.
    world.wait_for(claim, Wait(WaitKind.CHILDREN, (child.id,)))
    world.store.call(ends.cancel, claim.task.id)
    for verb in (tasks.restore, tasks.suspend):
        with pytest.raises(LeaseLost):
            world.store.call(verb, claim.fence)
    assert world.task(claim.task.id).status == "cancelled"


def test_list_agent_runs_paginates_with_created_at_cursor(world: World) -> None:
    world.store.call(admission.admit, [new_task(work=number, session_id=SESSION) for number in range(5)])

    first_page = world.store.read(task_lists.recent, session_id=SESSION, limit=2)
    assert len(first_page) == 2
    last = first_page[-1]
    second_page = world.store.read(
        task_lists.recent, session_id=SESSION, after=Cursor(last.created_at, last.id), limit=10
    )
    assert len(second_page) == 3
    assert len({*ids(first_page), *ids(second_page)}) == 5


def test_cancel_agent_run_only_transitions_nonterminal_rows(world: World) -> None:
    run = world.admit(session_id=SESSION)

    assert world.store.call(ends.cancel, run.id, reason="stopped") is True
    assert world.store.call(ends.cancel, run.id, reason="stopped again") is False

    after = world.task(run.id)
    assert after.status == "cancelled"
    # The error is kept as data: class name, text and sort.
    error = world.store.read(tasks.read_error, after.error)
    assert error is not None
    assert error.message == "stopped"


def test_transcript_messages_round_trip_in_seq_order(world: World) -> None:
    # Messages are appended by the owner, under its fence; the store numbers them from 0.
    claim = world.start(session_id=SESSION)
    calls = [{"id": "call-1", "name": "bash", "arguments": {}}]
    assistant = NewMessage(
        "assistant", codec.encode("calling"), reasoning="thinking", tool_calls=codec.encode(calls), created_at_ms=200
    )
    tool = NewMessage("tool", codec.encode("output"), tool_call_id="call-1", tool_name="bash", created_at_ms=201)

    world.store.call(messages.append, claim.fence, assistant, step_key="m0")
    world.store.call(messages.append, claim.fence, tool, step_key="m1")

    found = world.store.read(messages.listing, claim.task.id, limit=10_000)
    assert len(found) == 2
    assert (found[0].seq, found[0].role, found[0].reasoning) == (0, "assistant", "thinking")
    assert (found[0].content, found[0].tool_calls) == ("calling", calls)
    assert (found[1].seq, found[1].role) == (1, "tool")
    assert (found[1].tool_call_id, found[1].tool_name) == ("call-1", "bash")
    assert [message.created_at for message in found] == [200, 201]


def test_an_admission_finds_its_existing_rows_by_their_keys(world: World) -> None:
    # The original looked them up by id and never found them by key: mended.
    batch = [new_task(work=key, key=key, session_id=SESSION) for key in ("a", "b")]
    first = world.store.call(admission.admit, batch)

    again = world.store.call(admission.admit, batch)

    assert again.existing
    assert again.tasks == first.tasks


def test_usage_is_kept_for_every_outcome(world: World) -> None:
    # The original dropped tool calls and iterations unless the run completed: mended.
    for verb in ("fail", "cancel", "time_out"):
        claim = world.start(session_id=SESSION)
        world.record(claim, "a")
        if verb == "fail":
            world.fail(claim)
        else:
            world.end(claim.task.id, verb)

        assert world.task(claim.task.id).tool_calls == 1


def test_changes_carry_the_revision_of_their_session(world: World) -> None:
    run = world.admit(session_id=SESSION)
    assert run.revision == world.store.read(sessions.get, SESSION).revision == 1

    world.store.call(ends.cancel, run.id)

    assert world.task(run.id).revision == world.store.read(sessions.get, SESSION).revision == 2
