"""Bugs as patches of the package's text, each with the cheapest checker that must find it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.mutants.plays import FOUND

TESTS_FAILED: Final = 1  # what pytest says; of a test that cannot be collected it says something else


@dataclass(frozen=True, slots=True)
class Check:
    """A checker: arguments of Python, and the exit status which means that it found something."""

    arguments: tuple[str, ...]
    found: int


@dataclass(frozen=True, slots=True)
class Patch:
    """What stands in a file of the package, once, and what shall stand there instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug."""

    name: str
    check: Check
    patches: tuple[Patch, ...]


def suite(*tests: str) -> Check:
    """Some tests of the suite."""
    return Check(("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=", *tests), TESTS_FAILED)


def contract(test: str) -> Check:
    """A promise of the store, in memory."""
    return suite(f"tests/contract/{test}[sqlite_memory]")


def killed(play: str) -> Check:
    """An agent that is killed at every commit."""
    return Check(("-m", "tests.mutants.plays", play), FOUND)


_POWER = suite("tests/crash/test_sqlite_writer.py::test_what_was_answered_survives_a_loss_of_power_at_any_call[1]")
_FENCE = "CASE WHEN execution_id = :execution_id AND generation = :generation THEN 1 END = 1"
_COMMIT = """            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            self._commit_failed"""
_EMIT = (
    '    events.emit(tx, proof.n, proof.event_seq, TASK.event(verb), {} if error is None else {"error": str(error)})\n'
)
_TELL = """LATE: list[tuple[int, int, str]] = []


def tell(tx: Transaction) -> None:
    while LATE:
        events.emit(tx, *LATE.pop())


"""
_WRITTEN = "            attempt.outcome = TaskStatus.COMPLETED, None\n"
_SPEND = "    _spend(tx, question_id)\n    return Written(count - 1, seq)\n"
_RECOVER = "revision = :revision, updated_at = {now}\nWHERE id = :id"

BUGS: Final = (
    Bug(
        "answers before the commit",
        _POWER,
        (Patch("store/sqlite.py", _COMMIT, f"            deliver_all(units.answers)\n{_COMMIT}"),),
    ),
    Bug(
        "commits without a sync",
        _POWER,
        (
            Patch("store/sqlite.py", 'execute("PRAGMA synchronous = FULL")', 'execute("PRAGMA synchronous = NORMAL")'),
            Patch("store/sqlite_file.py", 'pragma("synchronous") != 2', 'pragma("synchronous") != 1'),
        ),
    ),
    Bug(
        "keeps what a failed unit wrote",
        contract("test_database.py::test_a_failure_after_a_write_undoes_its_unit_alone"),
        (Patch("store/sqlite_units.py", 'self._connection.execute("ROLLBACK TO unit")', "pass"),),
    ),
    Bug(
        "takes writes from anybody",
        contract("test_steps.py::test_who_no_longer_owns_the_task_writes_nothing"),
        (Patch("store/sql/tasks.sql", _FENCE, "CASE WHEN :execution_id <> '' AND :generation >= 0 THEN 1 END = 1"),),
    ),
    Bug(
        "takes the worker for the fence instead of the execution",
        contract("test_steps.py::test_who_no_longer_owns_the_task_writes_nothing"),
        (Patch("store/sql/tasks.sql", _FENCE, _FENCE.replace("execution_id = :execution_id", ":execution_id <> ''")),),
    ),
    Bug(
        "runs a dangerous call again by itself",
        killed("sends"),
        (Patch("runtime/doubts.py", "if call.risk is Risk.MEDIUM:", "if call.risk is not Risk.LOW:"),),
    ),
    Bug(
        "gives a call another token when it runs again",
        killed("notes"),
        (Patch("runtime/journal.py", "return record.token if record is not None and record.token else ", "return "),),
    ),
    Bug(
        "tells calls apart by their position",
        killed("race"),
        (
            Patch(
                "runtime/journal.py",
                "key = call_key(parent, call.name, digest, self._occurrences.number(parent, call.name, digest))",
                'key = call_key(parent, call.name, "0" * 32, self._occurrences.number(parent, call.name, ""))',
            ),
        ),
    ),
    Bug(
        "writes the event in a second commit",
        killed("sends"),
        (
            Patch("store/ends.py", _EMIT, "    LATE.append((proof.n, proof.event_seq, TASK.event(verb)))\n"),
            Patch("store/ends.py", "DEADLINE_EXCEEDED =", f"{_TELL}DEADLINE_EXCEEDED ="),
            Patch("runtime/endings.py", _WRITTEN, f"{_WRITTEN}            await _write(attempt, ends.tell)\n"),
        ),
    ),
    Bug(
        "never wakes a parent that was set aside",
        suite("tests/contract/test_ends.py::test_the_end_of_its_last_child_wakes_a_parent_that_was_set_aside"),
        (Patch("store/ends.py", "            task_ops.wake(tx, parent.id)\n", "            pass\n"),),
    ),
    Bug(
        "leaves an approval to be used twice",
        contract("test_steps.py::test_an_approval_is_used_up_by_the_begin_it_allows"),
        (Patch("store/steps.py", _SPEND, "    return Written(count - 1, seq)\n"),),
    ),
    Bug(
        "buries who has beaten since it was looked at",
        contract("test_instances.py::test_who_has_beaten_since_it_was_looked_at_is_not_taken_for_dead"),
        (Patch("store/sql/instances.sql", "AND heartbeat = :heartbeat AND", "AND :heartbeat >= 0 AND"),),
    ),
    Bug(
        "recovers without compare-and-set",
        contract("test_recovery.py::test_a_second_pass_finds_nothing"),
        (
            Patch("store/recovery.py", "if status != TaskStatus.INTERRUPTED:", "if not status:"),
            Patch("store/recovery.py", "if task.status is not TaskStatus.INTERRUPTED or seen", "if seen"),
            Patch("store/sql/tasks.sql", f"{_RECOVER} AND status IN ({{from:recover}})\n", f"{_RECOVER}\n"),
        ),
    ),
    Bug(
        "recovers many without compare-and-set",
        contract("test_sets.py::test_what_was_recovered_together_is_done_once"),
        (
            Patch("store/sql/sets.sql", "t.status IN ({from:recover}) AND t.recoveries", "t.recoveries"),
            Patch("store/sql/sets.sql", "AS {int}) AND tasks.status IN ({from:recover})", "AS {int})"),
        ),
    ),
    Bug(
        "completes many for anybody",
        contract("test_sets.py::test_what_does_not_simply_complete_is_left_to_its_owner"),
        (Patch("store/sql/sets.sql", "AND t.execution_id = r.value ->> 1 AND t.generation =", "AND t.generation ="),),
    ),
    Bug(
        "lets an owner call at the end of its lease",
        suite("tests/unit/test_liveness.py::test_an_owner_may_call_until_four_fifths_of_a_lease_after_its_beat_began"),
        (Patch("runtime/liveness.py", "and now_boot_ms < self._until_ms", "and now_boot_ms <= self._until_ms"),),
    ),
)
