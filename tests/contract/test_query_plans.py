"""Every hot query is answered by the index made for it; none reads all tasks, steps or events.

SQLite is asked without statistics, as it runs. PostgreSQL, whose planner likes to read small tables whole, is asked
which index it would use if it had to use one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from perdure.errors import StoreError
from perdure.store.database import Transaction
from perdure.store.queries import Query, load
from tests.world import World

ROWS = 10_000
FULL = ("tasks.", "steps.", "events.", "imports.", "messages.give_back_deliveries")
# Read by people once in a while, and by the loop of tests in which time is virtual.
MAY_SCAN = {"tasks.by_ending", "tasks.counts_by_status", "questions.by_ending", "tasks.next_moment"}
# Query -> its index, on SQLite and PostgreSQL where an unnamed constraint makes it.
INDEX: dict[str, str | tuple[str, str]] = {
    "tasks.get": ("sqlite_autoindex_tasks_1", "tasks_id_key"),
    "tasks.record_step": ("sqlite_autoindex_tasks_1", "tasks_id_key"),
    "tasks.record_step_at": ("INTEGER PRIMARY KEY", "tasks_pkey"),
    "sets.due": "tasks_claim",
    "tasks.next_due": "tasks_claim",
    "tasks.by_key": "tasks_idempotency",
    "tasks.list_session": "tasks_session_created",
    "tasks.list_all": "tasks_created",
    "tasks.list_status": "tasks_open",
    "tasks.children": "tasks_parent",
    "tasks.open_foreground_children": "tasks_parent",
    "tasks.count_open_children": "tasks_parent",
    "tasks.lock_family": "tasks_parent",
    "tasks.changed_since": "tasks_revision",
    "tasks.owned_by_generation": "tasks_recovery",
    "tasks.newest_open_like": ("tasks_work", "tasks_(work|created)"),  # in the test all do the same work
    "tasks.overdue": "tasks_deadline",
    "tasks.interrupted": "tasks_open",
    "tasks.due_waiters": "tasks_due",
    "tasks.waiters_from_later": "tasks_due",
    "tasks.starts_from_later": "tasks_claim",
    "tasks.budgets": "bindings_budget",
    "tasks.orphans": "attempts_open",
    "tasks.attempts": ("sqlite_autoindex_attempts_2", "attempts_task_number_key"),
    "steps.trace": ("sqlite_autoindex_steps_1", "steps_task_step_index_key"),
    "steps.by_key": "steps_key",
    "steps.newest_try": "steps_key",
    "steps.end": "steps_key",
    "steps.begin_again": "steps_key",
    "steps.raise_risk": "steps_key",
    "steps.in_doubt": "steps_in_doubt",
    "steps.effects": "steps_effects",
    "steps.open_effects": "steps_in_doubt",
    "events.feed": ("sqlite_autoindex_events_1", "events_task_seq_key"),
    "events.between": "events_at",
    "messages.list": ("sqlite_autoindex_messages_1", "messages_task_(seq|step_key)_key"),
    "messages.by_key": ("sqlite_autoindex_messages_2", "messages_task_step_key_key"),
    "messages.oldest_unread": "deliveries_unread",
    "messages.give_back_deliveries": "steps_key",
    "questions.open_list": ("questions_open", "questions_(unnotified|open)"),
    "questions.list": ("INTEGER PRIMARY KEY", "questions_pkey"),
    "questions.expired": "questions_expiry",
    "questions.live_for_step": "questions_task",
    "questions.unnotified": ("questions_unnotified", "questions_(unnotified|open)"),
    "imports.end_call": "steps_key",
    "imports.link_child": "steps_key",
    "instances.alive": "instances_alive",
    "instances.crashed": "instances_crashed",
    "recovery.look": ("sqlite_autoindex_steps_1", "steps_task_step_index_key"),
    "recovery.of_task": ("sqlite_autoindex_recovery_decisions_1", "recovery_decisions_task_execution_id_key"),
}


@pytest.fixture
def full(world: World) -> World:
    """A database with many tasks, and one task with many steps and events."""
    # Emptying so many rows again takes PostgreSQL long, and with its statistics fewer will do.
    rows = ROWS if world.store.database.dialect == "sqlite" else ROWS // 5
    claim = world.start()
    world.record(claim, "a", risk="medium")
    world.admit(deadline_ms=1000)
    world.multiply("sessions", {"id": "'session-' || k"}, 100)
    task = {"id": "'task-' || k", "created_at": "one.created_at + k", "rank": "one.rank + k"}
    world.multiply("tasks", {**task, "root_session_id": "'session-' || (1 + k % 100)"}, rows)
    step = {"key": "'key-' || k", "step_index": "1 + k", "started_seq": "10 * k", "ended_seq": "10 * k + 1"}
    world.multiply("steps", step, rows)
    world.multiply("events", {"seq": "one.seq + k", "at": "one.at + k"}, rows)
    ended = {"execution_id": "'e' || k", "number": "1 + k", "status": "'failed'", "ended_at": "1"}
    world.multiply("attempts", ended, rows)
    if world.store.database.dialect == "postgres":
        world.execute("ANALYZE")
    return world


def _plan(tx: Transaction, one: Query, dialect: str) -> str:
    if dialect == "sqlite":
        asked = Query(one.name, f"EXPLAIN QUERY PLAN {one.sqlite}", "", one.parameters)
        values = dict.fromkeys(set(one.parameters) - {"now"}, 0)
        return "\n".join(str(row[3]) for row in tx.all(asked, **values))
    text = one.postgres.replace("%%", "%")
    for number, name in enumerate(sorted(one.parameters), 1):
        text = text.replace(f"%({name})s", f"${number}")
    arguments = ", ".join("'0'" for _ in one.parameters)
    tx.run(Query("prepare", "", f"PREPARE asked AS {text}".replace("%", "%%"), ()))
    call = f"EXECUTE asked ({arguments})" if arguments else "EXECUTE asked"
    plan = tx.all(Query("explain", "", f"EXPLAIN {call}", ()))
    tx.run(Query("deallocate", "", "DEALLOCATE asked", ()))
    return "\n".join(str(row[0]) for row in plan)


def _plans(world: World, wanted: Iterator[Query]) -> dict[str, str]:
    dialect = world.store.database.dialect

    def ask(tx: Transaction) -> dict[str, str]:
        if dialect == "postgres":
            for setting in ("enable_seqscan = off", "enable_bitmapscan = off", "plan_cache_mode = force_generic_plan"):
                tx.run(Query("set", "", f"SET LOCAL {setting}", ()))
        return {one.name: _plan(tx, one, dialect) for one in wanted}

    return world.store.call(ask)


def _every_query() -> Iterator[Query]:
    for aggregate in ("tasks", "steps", "events", "questions", "messages", "instances", "recovery", "sets", "imports"):
        yield from load(aggregate)


def test_no_index_holds_what_every_step_changes_in_its_task(world: World) -> None:
    # Otherwise SQLite looks at it with each step, and PostgreSQL writes a row anew in every index.
    if world.store.database.dialect == "sqlite":
        sql = "SELECT c.name FROM pragma_index_list('tasks') i, pragma_index_info(i.name) c"
    else:
        sql = (
            "SELECT a.attname FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indrelid = 'tasks'::regclass"
        )
    indexed = {row[0] for row in world.rows(sql)}
    recorded = load("tasks").record_step.sqlite.partition(" SET ")[2].partition(" WHERE id ")[0]

    changed = set(re.findall(r"(\w+) = ", recorded))

    assert {"event_seq", "step_count", "updated_at"} <= changed
    assert "status" in indexed
    assert not changed & indexed


def test_each_hot_query_is_answered_by_its_index(full: World) -> None:
    dialect = full.store.database.dialect

    # Where there are few rows, PostgreSQL takes whatever index comes first.
    asked = {name: index for name, index in INDEX.items() if dialect == "sqlite" or name.startswith(FULL)}

    plans = _plans(full, (one for one in _every_query() if one.name in asked))

    assert plans.keys() == asked.keys()
    for name, index in asked.items():
        wanted = index if isinstance(index, str) else index[0 if dialect == "sqlite" else 1]
        assert re.search(rf"\b{wanted}\b", plans[name]), f"{name} does not use {wanted}:\n{plans[name]}"


@pytest.mark.parametrize("store_url", ["sqlite_memory"], indirect=True)
def test_no_query_reads_all_tasks_steps_or_events(world: World) -> None:
    aliases = r"SCAN (t|s|e|a|q|p|d|m|c)(?! USING)\b"

    plans = _plans(world, _every_query())

    scanning = {name for name, plan in plans.items() if re.search(aliases, plan)}
    sorted_whole = {
        name for name, plan in plans.items() if re.search(r"SCAN (t|s|e) USING (?!INDEX steps_in_doubt)", plan)
    }
    assert scanning | sorted_whole <= MAY_SCAN, plans


@pytest.mark.parametrize("store_url", ["sqlite_memory"], indirect=True)
def test_a_page_far_back_costs_no_more_than_the_first(world: World) -> None:

    plans = _plans(world, (one for one in load("tasks") if one.name.startswith("tasks.list_")))

    for name, plan in plans.items():
        assert "(created_at,id)<(?,?)" in plan, (name, plan)


def test_an_execution_and_a_key_are_unique(world: World) -> None:
    claim, other = world.start(key="k", session_id="chat"), world.start(key="l", session_id="chat")

    for change in (
        "UPDATE tasks SET execution_id = :execution_id WHERE id = :id",
        "UPDATE tasks SET idempotency_key = 'k', last_tool_call_id = :execution_id WHERE id = :id",
    ):
        outcome = world.unchanged_by(world.execute, change, execution_id=claim.execution_id, id=other.task.id)

        assert isinstance(outcome, StoreError)
