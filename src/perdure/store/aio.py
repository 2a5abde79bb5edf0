"""How asyncio code calls the synchronous store: the only way in.

Cancelling the awaiting task never splits a transaction: what was submitted is committed or refused as a whole,
and its effect is found again by its key.
"""

from __future__ import annotations

import asyncio
from typing import ParamSpec, TypeVar

from perdure.errors import StoreBusy, StoreError
from perdure.store import Operation, Store
from perdure.store.database import Joint, JointUnit, Unit
from perdure.store.waiters import LoopWaiter

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


BUSY_AGAIN_S = 0.05  # how soon a busy store is asked again


def submit(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Have `operation` run in a transaction; the future is done once it is durable. Raises nothing itself."""
    return _submit(store, lambda tx: operation(tx, *args, **kwargs))


def submit_joint(store: Store, joint: Joint[Item, T], item: Item) -> asyncio.Future[T]:
    """The same for an operation that may be run together with those of others."""
    return _submit(store, JointUnit(joint, item))


def _submit(store: Store, unit: Unit[T]) -> asyncio.Future[T]:
    waiter: LoopWaiter[T] = LoopWaiter.here()
    try:
        store.database.write(unit, waiter)
    except StoreError as error:
        waiter.deliver(None, error)
    return waiter.future


async def call(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `operation` in a transaction and return once it is durable."""
    return await submit(store, operation, *args, **kwargs)


async def call_patiently(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `call`, but while another process holds the write lock it asks again, until cancelled.

    For writes of the runtime, which are safe to repeat: nothing was written when the store was busy.
    """
    while True:
        try:
            return await submit(store, operation, *args, **kwargs)
        except StoreBusy:
            await asyncio.sleep(BUSY_AGAIN_S)


async def read(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a reading operation on one snapshot."""
    waiter: LoopWaiter[T] = LoopWaiter.here()
    store.database.read(lambda tx: operation(tx, *args, **kwargs), waiter)
    return await waiter.future


async def call_softly(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `call_patiently`, for what may be lost with the power: it is on disk with the next durable write."""
    while True:
        try:
            return await call_softly_once(store, operation, *args, **kwargs)
        except StoreBusy:
            await asyncio.sleep(BUSY_AGAIN_S)


async def call_softly_once(store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The same without patience. Raises StoreBusy."""
    waiter: LoopWaiter[T] = LoopWaiter.here()
    store.database.write_softly(lambda tx: operation(tx, *args, **kwargs), waiter)
    return await waiter.future
