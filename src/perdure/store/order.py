"""One order over the whole database of what no clock may put in order: a process was dead, a person had answered.

Wall clocks step back. A number from here is taken in the commit of what it places, as the last row that it locks.
"""

from __future__ import annotations

from perdure.store.database import Transaction
from perdure.store.queries import load

Q = load("order")


def take(tx: Transaction) -> int:
    """The place of what this transaction writes: after all that has taken one before, which is waited for.

    So it is taken and not looked up: a look does not see one that is taken and not committed yet.
    """
    row = tx.one(Q.take)
    assert row is not None
    return int(row[0])
