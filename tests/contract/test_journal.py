"""What the runtime makes of a database's refusal, on every database."""

from __future__ import annotations

import pytest

from perdure.errors import RefusedBySchema, StoreError
from perdure.runtime.journal import Journal
from tests.rows import put
from tests.world import World


@pytest.mark.parametrize("how", ["write", "write_softly"])
async def test_what_the_schema_refuses_is_told_to_who_gave_it_and_ends_no_attempt(world: World, how: str) -> None:
    lost: list[StoreError] = []
    journal = Journal(world.store, world.start(), on_store_error=lost.append)
    write = getattr(journal, how)
    await write(put, "taken")

    with pytest.raises(RefusedBySchema):
        await write(put, "taken")

    assert lost == []
