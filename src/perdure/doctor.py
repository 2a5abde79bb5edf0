"""What `perdure doctor` says: the facts about a database, and each thing that is not as it must be, with what to do.

It changes nothing. The invariants themselves are queries of the store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perdure import phrases
from perdure.commands import Commands
from perdure.model.instance import Instance
from perdure.runtime.liveness import Judge, judge
from perdure.settings import durability_note
from perdure.store import Store, effects, instances, sqlite_path, task_lists, tasks
from perdure.store.database import Row, Transaction
from perdure.store.file_health import FileHealth
from perdure.store.file_health import examine as examine_file
from perdure.store.health import Broken, broken, schema_version
from perdure.version import __version__

# The log is emptied at 64 MiB; much more than that means that something holds it.
_LOG_MAX_BYTES: Final = 128 << 20
_DOUBTS_READ: Final = 1000
_FREE_MIN_BYTES: Final = 64 << 20
# Before this, two processes could damage a file when its log was begun anew.
_SQLITE_MIN: Final = (3, 51, 3)
_RESTORE: Final = "restore a backup; until then leave the database as it is"
_REPORT: Final = "keep a copy of the database and report this as a bug of perdure"

MEANINGS: Final[Mapping[str, tuple[str, str]]] = {
    "owners": ("tasks whose owner and open attempt do not belong together", _REPORT),
    "attempts": ("open attempts whose task they do not own", _REPORT),
    "orphans": (
        "open attempts of workers that are silent or dead",
        "start a worker with {worker}: it ends them within a second",
    ),
    "ends": ("tasks whose status and end time contradict each other", _RESTORE),
    "slots": ("ended tasks that still hold a completion slot", _REPORT),
    "questions": ("open questions about tasks that have ended", "nothing waits for them; deny them, and report this"),
    "children": (
        "open children of ended tasks that waited for them",
        "cancel each with {cancel}, and report this",
    ),
    "step_gaps": ("traces with missing or doubled records", _RESTORE),
    "seq_gaps": ("tasks whose events and steps are not numbered without a gap", _RESTORE),
    "message_gaps": ("transcripts with missing messages", _RESTORE),
    "counters": ("tasks whose counters are not the sum of their steps", _REPORT),
    "deliveries": ("deliveries taken by a step that is not on record", _REPORT),
    "doubled_calls": ("calls that are on record twice", _REPORT),
    "unwoken": ("waiting tasks for whom it has happened and whom nobody woke", _REPORT),
    "unreadable": ("payloads that cannot be read", _RESTORE),
}
"""Each invariant of the store: what the rows it finds are, and what to do about them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be: what it is, which rows or files show it, and what to do."""

    check: str
    what: str
    rows: tuple[str, ...]
    do: str


@dataclass(frozen=True, slots=True)
class Report:
    """Facts for people to read, and findings; without findings all is well."""

    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


def examine(store: Store, commands: Commands = Commands()) -> Report:  # noqa: B008  # It never changes.
    """Look at everything. Reads the whole database on one snapshot, and for SQLite its file."""
    facts = [("perdure", f"{__version__}, Python {sys.version.split()[0]}"), ("database", store.database.url)]
    findings: list[Finding] = []
    path = sqlite_path(store.database.url)
    if path is not None:
        health = examine_file(path)
        facts += _file_facts(health)
        findings += _file_findings(health)
    workers, held = store.read(_workers, judge(store))
    facts += store.read(_table_facts, workers, commands)
    findings += _worker_findings(workers, held, commands)
    findings += [_finding(one, commands) for one in store.read(broken)]
    return Report(tuple(facts), tuple(findings))


# -- the file -------------------------------------------------------------------------------


def _file_facts(health: FileHealth) -> list[tuple[str, str]]:
    sizes = ", ".join(f"{one.path.name} {_bytes(one.size_bytes)}" for one in health.files)
    journal = health.journal_mode.upper()
    return [
        ("SQLite", f"{health.sqlite_version}, journal {journal}, pages of {health.page_bytes:,} bytes"),
        ("durability", durability_note()),
        ("files", sizes),
        (
            "log",
            f"{_bytes(health.log_bytes)}, {_bytes(health.free_bytes)} free on disk",
        ),
    ]


def _file_findings(health: FileHealth) -> Iterator[Finding]:
    if health.complaints:
        yield Finding("structure", "SQLite finds the file damaged", health.complaints, _RESTORE)
    wide = tuple(f"{one.path} has mode {one.mode:04o}" for one in health.files if not one.is_private)
    if wide:
        what = "files that others can read or write"
        yield Finding("modes", what, wide, "chmod 600 each of them: payloads are stored as they are")
    is_shared = health.folder_mode & 0o022 and not health.folder_mode & 0o1000
    if is_shared and health.files:
        rows = (f"{health.files[0].path.parent} has mode {health.folder_mode:04o}",)
        yield Finding("modes", "a folder in which others can replace the database", rows, "chmod go-w the folder")
    if health.journal_mode != "wal":
        rows = (f"journal mode is {health.journal_mode}",)
        yield Finding("journal", "the file does not use a write-ahead log", rows, "open it with perdure alone")
    if health.log_bytes > _LOG_MAX_BYTES:
        rows = (f"the log holds {_bytes(health.log_bytes)}",)
        yield Finding("log", "the log is not being emptied", rows, "end the program that keeps a read transaction open")
    if health.free_bytes < _FREE_MIN_BYTES:
        rows = (f"{_bytes(health.free_bytes)} are free",)
        yield Finding(
            "space", "the disk is almost full", rows, "free space; writes are refused, never lost, without it"
        )
    if tuple(int(part) for part in health.sqlite_version.split(".")) < _SQLITE_MIN:
        rows = (f"SQLite {health.sqlite_version}",)
        yield Finding("version", "this SQLite can damage a file that two processes write", rows, "install a newer apsw")


# -- the tables -----------------------------------------------------------------------------


def _table_facts(tx: Transaction, health: _WorkerHealth, commands: Commands) -> list[tuple[str, str]]:
    counts = task_lists.counts_by_status(tx)
    workers = f"{len(health.live)} live"
    if health.dead:
        workers += f", {len(health.dead)} dead: the next worker looks after them"
    if health.silent:
        oldest = max(tx.now - one.heartbeat_at for one in health.silent)
        workers += (
            f", {len(health.silent)} silent for up to {phrases.duration(oldest)}: the next worker looks after them"
        )
    facts = [
        ("schema", f"version {schema_version(tx)}"),
        ("tasks", ", ".join(f"{number:,} {status}" for status, number in counts.items()) or "none"),
        ("workers", workers),
    ]
    return [*facts, ("in doubt", left)] if (left := _left_in_doubt(tx, commands)) else facts


def _left_in_doubt(tx: Transaction, commands: Commands) -> str:
    """Calls that ended tasks left in doubt, which nobody is asked about any more."""
    found = [one.step for one in effects.open_list(tx, limit=_DOUBTS_READ)]
    left = [step for step in found if tasks.get(tx, step.task_id).status.is_terminal]
    if not left:
        return ""
    number = phrases.count(len(left), "call") + (" or more" if len(found) == _DOUBTS_READ else "")
    return f"{number} of ended tasks: {commands.line('effects --in-doubt')}"


@dataclass(frozen=True, slots=True)
class _WorkerHealth:
    """Workers that count as alive, by what is known of them here."""

    live: tuple[Instance, ...]
    silent: tuple[Instance, ...]
    dead: tuple[Instance, ...]


def _workers(tx: Transaction, judge: Judge) -> tuple[_WorkerHealth, tuple[str, ...]]:
    """The workers, and those that are dead while tasks of theirs are open."""
    alive = instances.alive(tx)
    dead = tuple(one for one in alive if judge.is_dead(one))
    silent = tuple(one for one in alive if one not in dead and judge.is_silent(one, now_ms=tx.now))
    live = tuple(one for one in alive if one not in dead and one not in silent)
    held = [(one, len(instances.owned(tx, generation=one.generation))) for one in dead]
    rows = tuple(
        f"{one.id} (host {one.host}, pid {one.pid}): {phrases.count(number, 'task')}" for one, number in held if number
    )
    return _WorkerHealth(live, silent, dead), rows


def _worker_findings(health: _WorkerHealth, rows: tuple[str, ...], commands: Commands) -> Iterator[Finding]:
    # A worker that lives takes over within a second what it can run.
    if rows and not health.live:
        again = "run the lines that began the tasks once more"
        do = f"start a worker with {commands.worker}, or {again}: they are taken over at once"
        yield Finding("dead", "workers that have died with open tasks, and none lives that takes them over", rows, do)


def _finding(one: Broken, commands: Commands) -> Finding:
    what, do = MEANINGS[one.invariant]
    do = do.format(worker=commands.worker, cancel=commands.line("cancel TASK"))
    return Finding(one.invariant, what, tuple(_shown(row) for row in one.rows), do)


def _shown(row: Row) -> str:
    """The id, and after it the values that show what is wrong."""
    rest = ", ".join("nothing" if value is None else str(value) for value in row[1:])
    return f"{row[0]} ({rest})" if rest else str(row[0])


def _bytes(size: int) -> str:
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f} {unit}"
    return f"{size} bytes"
