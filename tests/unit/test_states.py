"""The machines: what the table says, what is made from it, and that SQL, trigger and enums all come from it."""

from __future__ import annotations

from enum import StrEnum

import pytest

from perdure import states
from perdure.states import ATTEMPT, BY_NAME, INBOX, INSTANCE, MACHINES, PLAN_ITEM, QUESTION, SESSION, TASK, Machine
from perdure.store.migrate import guard
from perdure.store.queries import POSTGRES, SQLITE

ENUMS: dict[str, type[StrEnum]] = {
    "task": states.TaskStatus,
    "attempt": states.AttemptStatus,
    "question": states.QuestionStatus,
    "instance": states.InstanceStatus,
    "session": states.SessionStatus,
    "plan_item": states.PlanItemStatus,
    "inbox": states.InboxStatus,
}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_machine_speaks_only_of_its_own_statuses(machine: Machine) -> None:
    assert machine.statuses == tuple(ENUMS[machine.name])
    for one in machine.transitions:
        assert {*one.sources, one.target} <= set(machine.statuses), one


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_status_can_be_reached(machine: Machine) -> None:
    reached = set(machine.initial)
    for _ in machine.statuses:
        reached |= {target for source, target in machine.moves if source in reached}

    assert reached == set(machine.statuses)
    assert machine.initial


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_status_is_open_or_terminal(machine: Machine) -> None:
    assert set(machine.open) | set(machine.terminal) == set(machine.statuses)
    assert not set(machine.open) & set(machine.terminal)
    for status in machine.terminal:
        assert not any(source == status and target != status for source, target in machine.moves)


def test_the_terminal_statuses_are_these() -> None:
    assert TASK.terminal == ("completed", "failed", "timed_out", "cancelled")
    assert ATTEMPT.terminal == ("completed", "failed", "timed_out", "cancelled", "interrupted", "suspended")
    assert QUESTION.terminal == ("approved", "denied", "answered", "expired", "cancelled")
    assert INSTANCE.terminal == ("stopped",)
    assert SESSION.terminal == ("closed",)
    assert PLAN_ITEM.terminal == ("completed", "skipped")
    assert INBOX.terminal == ("consumed", "superseded")


def test_a_status_knows_itself_what_it_is() -> None:
    assert [status for status in states.TaskStatus if status.is_terminal] == list(TASK.terminal)
    assert [status for status in states.TaskStatus if status.is_recoverable] == ["running", "interrupted"]


def test_sources_and_targets_of_a_verb() -> None:
    assert TASK.sources("claim") == ("pending",)
    assert TASK.sources("complete") == TASK.sources("fail") == ("running", "waiting")
    assert TASK.sources("cancel") == TASK.sources("time_out") == TASK.open
    assert TASK.target("wake") == "pending"
    assert TASK.sources("admit") == ()


def test_an_unknown_verb_and_a_target_in_doubt_are_errors() -> None:
    for machine, verb in ((TASK, "fly"), (QUESTION, "claim")):
        with pytest.raises(KeyError):
            machine.sources(verb)
    for verb in ("suspend", "import", "fly"):
        with pytest.raises(KeyError):
            TASK.target(verb)


def test_every_verb_of_a_task_tells_its_event_and_no_two_tell_the_same() -> None:
    told: dict[str, set[str]] = {}
    for one in TASK.transitions:
        assert one.event.startswith("task_"), one
        told.setdefault(one.event, set()).add(one.verb)

    # A refused task has failed, for everyone who listens.
    assert {kind: verbs for kind, verbs in told.items() if len(verbs) > 1} == {"task_failed": {"fail", "refuse"}}


def test_the_owners_verbs_are_fenced_and_nobody_elses() -> None:
    fenced = {one.verb for one in TASK.transitions if one.fenced}

    assert fenced == {"wait", "release", "restore", "suspend", "retry", "complete", "fail"}


def test_an_attempt_ends_by_every_verb_that_takes_its_task_away() -> None:
    keeps = {"wait", "restore", "claim"}
    for one in TASK.transitions:
        if {"running", "waiting"} & set(one.sources) and one.verb not in keeps:
            # Only wake finds a task that no attempt holds.
            assert bool(one.attempt) == (one.verb != "wake"), one


def test_the_same_verb_and_source_never_lead_two_ways_but_where_it_is_said() -> None:
    for machine in (TASK, ATTEMPT, QUESTION, PLAN_ITEM, SESSION):
        ways: dict[tuple[str, str], set[str]] = {}
        for one in machine.transitions:
            for source in one.sources:
                ways.setdefault((one.verb, source), set()).add(one.target)
        forks = {key for key, targets in ways.items() if len(targets) > 1}
        assert forks == ({("suspend", "waiting")} if machine is TASK else set())


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_diagram_has_every_arrow(machine: Machine) -> None:
    drawn = states.to_mermaid(machine).splitlines()

    assert drawn[0] == "stateDiagram-v2"
    for one in machine.transitions:
        for source in one.sources or ("[*]",):
            assert f"    {source} --> {one.target}: {one.verb}" in drawn
    assert sum(line.endswith("--> [*]") for line in drawn) == len(machine.terminal)


@pytest.mark.parametrize("machine", [TASK, ATTEMPT, QUESTION, INSTANCE], ids=lambda machine: machine.name)
def test_the_databases_own_refusal_is_made_from_the_table(machine: Machine) -> None:
    for dialect in (SQLITE, POSTGRES):
        text = "\n".join(guard(machine, dialect))
        for source in machine.statuses:
            for target in machine.statuses:
                assert (f"'{source}>{target}'" in text) == ((source, target) in machine.moves)


def test_machines_are_found_by_their_names() -> None:
    assert list(BY_NAME) == list(ENUMS)
    assert all(BY_NAME[machine.name] is machine for machine in MACHINES)
    assert len({machine.table for machine in MACHINES}) == len(MACHINES)
