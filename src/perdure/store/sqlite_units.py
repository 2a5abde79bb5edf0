"""The units of one batch, run in the transaction that the writer of a SQLite file has begun.

Units of one kind share their statements; of the others each has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from perdure.clock import Ids
from perdure.errors import StoreError
from perdure.store.database import Answer, Joint, JointUnit, Unit, Waiter
from perdure.store.sqlite_errors import translate
from perdure.store.sqlite_transaction import SqliteTransaction

Job = tuple[Unit[Any], Waiter]


class Batch:
    """Some units, and the transaction they share. Raises what ends the whole transaction."""

    __slots__ = ("_connection", "_cursor", "_ids", "_now", "answers", "hinted")

    def __init__(self, cursor: apsw.Cursor, now: int, ids: Ids) -> None:
        self._cursor, self._connection, self._now, self._ids = cursor, cursor.connection, now, ids
        self.answers: list[Answer] = []
        self.hinted = False  # one of the units did

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run them, those of one kind together. False when one has failed after a write, and all must be undone."""
        lone = self._run_joint(jobs)
        for job in lone or ():
            before = self._connection.total_changes()
            if not self._run_one(job) and self._connection.total_changes() != before:
                return False
        return lone is not None

    def run_apart(self, jobs: Sequence[Job]) -> None:
        """Run them so that each can fail by itself."""
        for job in jobs:
            self._connection.execute("SAVEPOINT unit")
            if not self._run_one(job):
                self._connection.execute("ROLLBACK TO unit")
            self._connection.execute("RELEASE unit")

    def _run_one(self, job: Job) -> bool:
        """Run one and note its answer; False when it has failed."""
        unit, waiter = job
        tx = SqliteTransaction(self._cursor, self._now, self._ids)
        try:
            answer = unit(tx)
        except BaseException as error:  # noqa: BLE001  # Whatever a unit raises is its caller's, never the writer's.
            self._raise_if_ended(error)
            self.answers.append((waiter, None, translate(error) if isinstance(error, apsw.Error) else error))
            return False
        self.answers.append((waiter, answer, None))
        self.hinted = self.hinted or tx.hinted
        return True

    def _run_joint(self, jobs: Sequence[Job]) -> list[Job] | None:
        """Run together what can be. The others, and those that could not; None when all must be undone."""
        lone: list[Job] = []
        groups: dict[Joint[Any, Any], list[Job]] = {}
        for job in jobs:
            unit = job[0]
            if type(unit) is JointUnit:
                groups.setdefault(unit.joint, []).append(job)
            else:
                lone.append(job)
        for joint, group in groups.items():
            before = self._connection.total_changes()
            if not self._run_together(joint, group):
                # No savepoint for so rare a case: for one, SQLite copies each page that is written.
                if self._connection.total_changes() != before:
                    return None
                lone += group
        return lone

    def _run_together(self, joint: Joint[Any, Any], group: Sequence[Job]) -> bool:
        tx = SqliteTransaction(self._cursor, self._now, self._ids)
        try:
            answers = joint.together(tx, [unit.item for unit, _ in group])  # type: ignore[attr-defined]  # joint units
        except BaseException as error:  # noqa: BLE001  # Each is told why when it runs alone.
            self._raise_if_ended(error)
            return False
        if answers is None:
            return False
        self.answers += [(waiter, answer, None) for (_, waiter), answer in zip(group, answers, strict=True)]
        self.hinted = self.hinted or tx.hinted
        return True

    def _raise_if_ended(self, error: BaseException) -> None:
        """A full disk or an I/O error ends the whole transaction inside SQLite: nothing of it is left."""
        if self._connection.in_transaction:
            return
        if isinstance(error, apsw.Error | StoreError):
            raise error
        raise StoreError(f"SQLite ended the transaction, and the unit hid why with {error!r}") from error
