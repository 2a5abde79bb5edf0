"""What `perdure worker` asks of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from perdure.runtime import collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_it_looks_rarely_and_never_at_what_there_is_already() -> None:
    before = gc.get_threshold()

    collector.calm_down()

    assert gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() > 0


def test_an_app_that_has_set_it_knows_better() -> None:
    gc.set_threshold(1234, 5, 6)

    collector.calm_down()

    assert gc.get_threshold() == (1234, 5, 6)
    assert gc.get_freeze_count() == 0
