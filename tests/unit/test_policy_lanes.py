"""Lanes: who goes first, and that background work never takes what is kept for a person."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadInput, InvariantError
from perdure.model.task import Lane
from perdure.policy.lanes import Permits, rank_ms

TIMES = st.integers(0, 2**63 - 1)
PRIORITIES = st.integers(0, 9)


def test_the_rank_is_thirty_seconds_earlier_for_each_point_of_priority() -> None:
    assert rank_ms(1_000_000, 0) == 1_000_000
    assert rank_ms(1_000_000, 1) == 970_000
    assert rank_ms(1_000_000, 9) == 730_000


def test_a_task_that_waited_long_enough_goes_before_a_newer_one_of_higher_priority() -> None:
    old_and_low = rank_ms(1_000_000, 0)

    assert old_and_low > rank_ms(1_000_000 + 29_999, 1)
    assert old_and_low < rank_ms(1_000_000 + 30_001, 1)


@given(at=TIMES, later_ms=st.integers(0, 10**9), first=PRIORITIES, second=PRIORITIES)
def test_the_rank_rises_with_time_and_falls_with_priority(at: int, later_ms: int, first: int, second: int) -> None:
    at = min(at, 2**63 - 1 - later_ms)

    assert rank_ms(at, first) <= rank_ms(at + later_ms, first)
    assert (rank_ms(at, first) < rank_ms(at, second)) == (first > second)
    assert -(2**63) <= rank_ms(at, first) < 2**63


@pytest.mark.parametrize("priority", [-1, 10, True, 1.0, "1", None])
def test_a_priority_outside_0_to_9_is_refused(priority: object) -> None:
    with pytest.raises(BadInput) as refused:
        rank_ms(0, priority)  # type: ignore[arg-type]  # the door is tested with what types forbid

    assert refused.value.field == "priority"


@pytest.mark.parametrize("at", [-1, 2**63, True, 1.5])
def test_a_time_outside_its_range_is_refused(at: object) -> None:
    with pytest.raises(BadInput) as refused:
        rank_ms(at, 0)  # type: ignore[arg-type]  # the door is tested with what types forbid

    assert refused.value.field == "available_at_ms"


def test_sixteen_permits_of_which_two_are_for_main_alone() -> None:
    permits = Permits()

    taken = sum(permits.acquire(Lane.SUBAGENT) for _ in range(20))

    assert taken == 14
    assert permits.free(Lane.SUBAGENT) == 0
    assert permits.free(Lane.MAIN) == 2
    assert permits.acquire(Lane.MAIN)
    assert permits.acquire(Lane.MAIN)
    assert not permits.acquire(Lane.MAIN)


def test_main_work_uses_its_own_permits_before_those_of_all() -> None:
    permits = Permits(total=4, main_only=2)

    permits.acquire(Lane.MAIN)
    permits.acquire(Lane.MAIN)

    assert permits.free(Lane.SUBAGENT) == 2


def test_main_work_may_take_every_permit() -> None:
    permits = Permits(total=4, main_only=1)

    assert all(permits.acquire(Lane.MAIN) for _ in range(4))
    assert not permits.acquire(Lane.SUBAGENT)


@pytest.mark.parametrize("lane", list(Lane))
def test_giving_back_a_permit_that_nobody_holds_is_an_error_and_changes_nothing(lane: Lane) -> None:
    permits = Permits(total=3, main_only=1)
    free = [permits.free(each) for each in Lane]

    with pytest.raises(InvariantError):
        permits.release(lane)

    assert [permits.free(each) for each in Lane] == free


def test_one_lane_cannot_give_back_the_permit_of_the_other() -> None:
    permits = Permits()
    permits.acquire(Lane.MAIN)

    with pytest.raises(InvariantError):
        permits.release(Lane.SUBAGENT)

    assert permits.held(Lane.MAIN) == 1


@pytest.mark.parametrize(
    ("total", "main_only", "field"), [(0, 0, "total"), (True, 0, "total"), (4, 5, "main_only"), (4, -1, "main_only")]
)
def test_permits_that_cannot_be_are_refused(total: int, main_only: int, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        Permits(total, main_only)

    assert refused.value.field == field


@given(
    total=st.integers(1, 8),
    main_only=st.integers(0, 8),
    moves=st.lists(st.tuples(st.sampled_from(["acquire", "release"]), st.sampled_from(list(Lane))), max_size=60),
)
def test_permits_hold_their_bounds_under_any_moves(total: int, main_only: int, moves: list[tuple[str, Lane]]) -> None:
    main_only = min(main_only, total)
    permits = Permits(total, main_only)
    held = dict.fromkeys(Lane, 0)

    for move, lane in moves:
        if move == "acquire":
            free = permits.free(lane)
            got = permits.acquire(lane)
            assert got == (free > 0)
            held[lane] += got
        elif held[lane]:
            permits.release(lane)
            held[lane] -= 1

        assert {each: permits.held(each) for each in Lane} == held
        assert held[Lane.MAIN] + held[Lane.SUBAGENT] + permits.free(Lane.MAIN) == total
        assert held[Lane.SUBAGENT] <= total - main_only
        assert 0 <= permits.free(Lane.SUBAGENT) <= permits.free(Lane.MAIN)
        # However much background work there is, main gets what is kept for it.
        assert held[Lane.MAIN] + permits.free(Lane.MAIN) >= main_only
