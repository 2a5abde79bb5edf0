"""The port between the store's operations and a database.

An operation is a function `op(tx, *, ...)`; one call of it is one transaction. A database runs it, commits,
and only then answers. A unit that raises `PerdureError` before its first write is a refusal and costs nothing;
after a write its transaction is rolled back. A unit may be run twice, so it touches nothing but its transaction.

Driver errors become errors of `perdure.errors` in the adapter, by code and never by text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from perdure.clock import Clock
from perdure.store.queries import Query

T = TypeVar("T")
Item = TypeVar("Item")
Row = tuple[Any, ...]
Value = str | int | float | bytes | None


class Transaction(Protocol):
    """What an operation sees: one transaction, one time, one snapshot where it only reads."""

    @property
    def now(self) -> int:
        """The transaction's time in milliseconds UTC, also bound to `:now`."""
        ...

    def one(self, query: Query, /, **values: Value) -> Row | None:
        """The only row, or None. Also runs an UPDATE … RETURNING."""
        ...

    def all(self, query: Query, /, **values: Value) -> list[Row]:
        """Every row."""
        ...

    def run(self, query: Query, /, **values: Value) -> int:
        """Run a statement without rows; how many rows it changed."""
        ...

    def many(self, query: Query, rows: Iterable[Mapping[str, Value]], /) -> int:
        """Run a statement without rows once for each row of values, in this order; how many rows all have changed."""
        ...

    def lock(self, query: Query, /, **values: Value) -> None:
        """Lock the rows that a query finds, in its order, where more than one may write at a time."""
        ...

    def new_id(self) -> str:
        """A new sortable id."""
        ...

    def new_token(self) -> str:
        """A new token that nobody can guess."""
        ...

    def hint(self) -> None:
        """After the commit, tell whoever waits for work or news to look."""
        ...


Unit = Callable[[Transaction], T]


@dataclass(frozen=True, slots=True, eq=False)
class Joint(Generic[Item, T]):
    """An operation on one item that a database may run for many callers in one transaction with fewer statements.

    `together` answers for each of the items, in their order. Where one of them is not as it was thought to be, it
    returns None or raises: then all it has written is rolled back, and `alone` answers for each.
    """

    alone: Callable[[Transaction, Item], T]
    together: Callable[[Transaction, Sequence[Item]], Sequence[T] | None]


class JointUnit(Struct, Generic[Item, T], frozen=True, eq=False):
    """A unit of a joint operation."""

    joint: Joint[Item, T]
    item: Item

    def __call__(self, tx: Transaction) -> T:
        return self.joint.alone(tx, self.item)


class Waiter(Protocol):
    """Who waits for an answer. `loop` is None for a waiting thread."""

    loop: asyncio.AbstractEventLoop | None

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Hand over the answer, the first of which stands; called on `loop`, or on the database's thread if None."""
        ...


class Database(Protocol):
    """One opened database. Every method may be called from any thread."""

    url: str
    dialect: str
    clock: Clock  # whose `now_ms` is the time of every transaction

    def write(self, unit: Unit[Any], waiter: Waiter) -> None:
        """Run `unit` in a transaction that may write, commit durably, then answer."""
        ...

    def read(self, unit: Unit[Any], waiter: Waiter) -> None:
        """Run `unit` on one snapshot, then answer."""
        ...

    def write_softly(self, unit: Unit[Any], waiter: Waiter) -> None:
        """Like `write`, but power loss may take it: committed and visible at once, on disk with the next durable write.

        For what is no loss: streamed events, heartbeats, and a claim, which the first durable write of its attempt
        makes as durable as itself.
        """
        ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` (from any thread, soon, at most once per batch) when a commit hinted; returns how to stop.

        A hint may be lost; whoever listens also polls.
        """
        ...

    def check_place(self) -> None:
        """Look whether its file still lies where it was opened. Raises StoreClosed, as all that follows does, if not.

        Cheap, but not for each step: a worker asks with each heartbeat, and at its end.
        """
        ...

    def close(self) -> None:
        """Finish what was submitted, then close. May be called twice."""
        ...


Answer = tuple[Waiter, Any, BaseException | None]
