"""Which records `why` tells of a task that has many."""

from __future__ import annotations

from perdure import why
from perdure.clock import FakeClock, SeededIds
from perdure.model.step import Note
from perdure.runtime.doubts import Verdict
from perdure.runtime.settling import as_outcome
from perdure.store import MEMORY, ends, open_store
from tests.world import World, packed


def test_evidence_keeps_the_call_that_nobody_knows_of_and_counts_no_record_that_is_no_call() -> None:
    with open_store(MEMORY, clock=FakeClock(), ids=SeededIds(1)) as store:
        world = World(store, FakeClock())
        claim = world.start()
        gave_up = as_outcome(Verdict("give_up"), tool="pay", reason="no trace of it")
        world.record(claim, "pay", gave_up, name="pay", risk="high")
        for number in range(7):
            world.record(claim, f"s{number}", name="look")
        notes = [Note("turn_state_entered", b"{}"), Note("text_emitted", b"{}")] * 3
        store.call(ends.complete, claim.fence, packed(1), notes=notes, risk_seen="low")

        page = store.read(why.explain, claim.task.id).splitlines()

    first = page.index("evidence") + 1
    assert page[first] == f"  2 earlier records: perdure show {claim.task.id}"
    assert "pay(" in page[first + 1]
    assert "nobody knows" in page[first + 1]
    assert sum("look(" in line for line in page) == 5
