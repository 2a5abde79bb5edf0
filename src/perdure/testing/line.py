"""One worker's connection to the database of a play. It counts the commits, and dies at a chosen one.

Nothing of a dead worker comes to the database any more, and no answer comes back. A database behind a line must run
its units in the calling thread.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.clock import Clock
from perdure.errors import StoreClosed
from perdure.store.database import Database, Row, Transaction, Unit, Value, Waiter
from perdure.store.queries import Query
from perdure.testing.virtual_loop import VirtualLoop

_WRITES = ("INSERT", "UPDATE", "DELETE")
_HEARTBEAT = ["instances.beat"]


class Moment(StrEnum):
    """On which side of a commit a worker dies."""

    BEFORE = "before"  # what came before it has happened, the commit has not
    AFTER = "after"  # it is durable, but nobody hears of it


@dataclass(frozen=True, slots=True)
class Death:
    """At which commit of a worker, counted from 1, and on which side of it."""

    commit: int
    moment: Moment


class Line:
    """A database as one worker reaches it.

    `on_write` is told the names of the queries that changed something, `on_death` is called when `death` has come.
    """

    def __init__(
        self,
        database: Database,
        loop: VirtualLoop,
        *,
        death: Death | None = None,
        on_death: Callable[[], None] = lambda: None,
        on_write: Callable[[Sequence[str]], None] = lambda _names: None,
    ) -> None:
        self.url = database.url
        self.dialect = database.dialect
        self.clock: Clock = database.clock
        self.commits: list[str] = []
        self.identities: list[str] = []  # under which its worker has registered
        self._database = database
        self._loop = loop
        self._death = death
        self._on_death = on_death
        self._on_write = on_write
        self._is_dead = False
        self._is_cut = False

    # -- the port ---------------------------------------------------------------------------

    def write(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._run(self._database.write, unit, waiter)

    def write_softly(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._run(self._database.write_softly, unit, waiter)

    def read(self, unit: Unit[Any], waiter: Waiter) -> None:
        self._run(self._database.read, unit, waiter)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Hints come from other workers' commits, but what they set going belongs to who listens."""
        context = contextvars.copy_context()
        return self._database.listen(lambda: context.copy().run(wake))

    def check_place(self) -> None:
        self._database.check_place()

    def close(self) -> None:
        """The database stays open: it is not this worker's alone."""
        self._is_cut = True

    # -- the worker's end -------------------------------------------------------------------

    @property
    def is_dead(self) -> bool:
        """Whether its worker has died."""
        return self._is_dead

    def die(self) -> None:
        """Nothing goes through any more, in either direction."""
        self._is_dead = True

    def cut(self) -> None:
        """Every further call fails, so that what is left of the worker unwinds."""
        self._is_dead, self._is_cut = False, True

    # -- one call ---------------------------------------------------------------------------

    def _run(self, submit: Callable[[Unit[Any], Waiter], None], unit: Unit[Any], waiter: Waiter) -> None:
        if self._is_cut:
            raise StoreClosed("this worker is gone")
        if self._is_dead:
            return
        answer = _Answer()
        submit(lambda tx: self._watched(tx, unit), answer)
        if self._is_dead:
            self._on_death()
            return
        if waiter.loop is None:
            waiter.deliver(answer.result, answer.error)
        else:
            self._loop.call_soon(waiter.deliver, answer.result, answer.error)

    def _watched(self, tx: Transaction, unit: Unit[Any]) -> Any:
        if self._is_dead:
            raise _Died  # A unit that failed after a write is run once more.
        spy = _Spy(tx)
        result = unit(spy)
        if spy.hinted:
            self._loop.something_happened()
        self.identities += spy.identities
        if spy.writes and spy.writes != _HEARTBEAT:
            self._on_write(spy.writes)
            self.commits.append(", ".join(spy.told or spy.writes))
            if self._death is not None and len(self.commits) == self._death.commit:
                self._is_dead = True
                if self._death.moment is Moment.BEFORE:
                    raise _Died
        return result


class _Died(Exception):
    """The worker has died inside this transaction."""


class _Answer:
    """Takes what the database answers at once."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def deliver(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error = result, error


class _Spy:
    """A transaction that remembers what was written through it, in words."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.writes: list[str] = []
        self.told: list[str] = []
        self.identities: list[str] = []
        self.hinted = False

    @property
    def now(self) -> int:
        return self._tx.now

    def one(self, query: Query, /, **values: Value) -> Row | None:
        row = self._tx.one(query, **values)
        if row is not None:
            self._note(query, values)
        return row

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        rows = self._tx.all(query, **values)
        if rows:
            self._note(query, values)
        return rows

    def run(self, query: Query, /, **values: Value) -> int:
        changed = self._tx.run(query, **values)
        if changed:
            self._note(query, values)
        return changed

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        rows = list(rows)
        changed = self._tx.many(query, rows)
        if rows:
            self._note(query, {})
        return changed

    def lock(self, query: Query, /, **values: Value) -> None:
        self._tx.lock(query, **values)

    def new_id(self) -> str:
        return self._tx.new_id()

    def new_token(self) -> str:
        return self._tx.new_token()

    def hint(self) -> None:
        self.hinted = True
        self._tx.hint()

    def _note(self, query: Query, values: Mapping[str, Value]) -> None:
        if not query.sqlite.lstrip().startswith(_WRITES):
            return
        self.writes.append(query.name)
        match query.name:
            case "instances.insert":
                self.identities.append(str(values["id"]))
            case "events.insert":
                self.told.append(str(values["kind"]))
            case "steps.insert":
                self.told.append(f"{values['event_kind']!s} {values['name']!s}".strip())
            case "steps.end":
                self.told.append(f"outcome of {values['key']!s}")
            case _:
                return
