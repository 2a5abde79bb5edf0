"""Tests of the runtime run in virtual time: an hour takes no time, and a test that is stuck fails at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from perdure.settings import Settings
from perdure.testing.virtual_loop import VirtualLoop
from tests.held_calls import Ledger
from tests.theatre import Theatre, theatre

SETTINGS = Settings(sweep_s=0.5, poll_ms=500, drift_settle_ms=50, question_expiry_s=120)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test of this folder has a loop with a time of its own."""
    return {"virtual": lambda: VirtualLoop(quiet_after_s=1.1)}


@pytest.fixture
def settings() -> Settings:
    """What the workers of a test go by; a module may have its own."""
    return SETTINGS


@pytest.fixture
async def house(settings: Settings) -> AsyncIterator[Theatre]:
    """A store in memory with room for workers."""
    async with theatre(settings) as one:
        yield one


@pytest.fixture
async def ledger() -> Ledger:
    """What the tools of a test really did."""
    return Ledger()
