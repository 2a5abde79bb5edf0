"""The stores of the contract suite, on all three databases, for the tests of this folder."""

from tests.contract.conftest import (
    clock,
    lending,
    migrated_postgres_url,
    open_second,
    settings,
    store,
    store_url,
    world,
)

__all__ = [
    "clock",
    "lending",
    "migrated_postgres_url",
    "open_second",
    "settings",
    "store",
    "store_url",
    "world",
]
