"""A key that already belongs to other work: the refusal names what differs, and nothing is admitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.errors import KeyConflict
from perdure.model.task import Mode
from perdure.store import admission
from perdure.store.admission import Admission, NewTask
from tests.world import World, new_task


def _admit(world: World, new: NewTask) -> Admission:
    return world.store.call(admission.admit, [new])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (new_task("painter", key="k"), "agent 'painter' instead of 'writer'"),
        (new_task(work="other", key="k"), "other arguments (digest "),
        (new_task(key="k", mode=Mode.BACKGROUND), "mode background instead of foreground"),
    ],
)
def test_the_same_key_for_other_work_is_a_conflict_that_names_the_difference(
    world: World, other: NewTask, named: str
) -> None:
    first = world.admit(key="k")

    outcome = world.unchanged_by(_admit, world, other)

    assert isinstance(outcome, KeyConflict)
    assert named in str(outcome)
    assert (outcome.key, outcome.existing) == ("k", (first.id,))


def test_a_conflict_of_arguments_names_each_that_differs_and_both_values_cut_short(world: World) -> None:
    first = new_task(work={"topic": "sea", "n": 1, "text": "x" * 500, "since": "1900"}, key="k")
    _admit(world, first)
    other = new_task(work={"topic": "sea", "n": 2, "text": "y" * 500, "until": "2000"}, key="k")
    elsewhere = replace(first, work_digest="of another plan item")

    outcome = str(world.unchanged_by(_admit, world, other))
    of_item = str(world.unchanged_by(_admit, world, elsewhere))

    named = outcome.partition("other work: other arguments: ")[2]
    assert "n=2 instead of 1, " in named
    assert 'text="yyyy' in named and len(named) < 400
    assert 'until="2000", which was not given, no since, which was "1900". Nothing was admitted' in named
    assert "topic" not in named
    assert "another plan item or context (digest of anoth instead of " in of_item
