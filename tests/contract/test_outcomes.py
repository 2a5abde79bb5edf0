"""The promises of outcomes that are recorded together: each is what it would have been alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from perdure.errors import BadInput, LeaseLost
from perdure.model.step import Note, StepKind
from perdure.model.task import Claim, Usage
from perdure.store import Transaction, messages, outcomes, steps, traces
from perdure.store.database import Joint, JointUnit, Value
from perdure.store.queries import Query
from perdure.store.waiters import ThreadWaiter
from tests.world import World, done, new_step, stale, usage_of

_TASKS = 6


def test_each_is_recorded_as_it_would_have_been_alone(world: World) -> None:
    alone, together = [[world.start() for _ in range(_TASKS)] for _ in range(2)]

    expected = [world.store.call(outcomes.RECORD.alone, _outcome(claim, number)) for number, claim in enumerate(alone)]
    written = _record(world, [_outcome(claim, number) for number, claim in enumerate(together)])

    assert written == expected == [steps.Written(1, 5)] * _TASKS
    for one, other in zip(alone, together, strict=True):
        assert _content(world, one) == _content(world, other)


def test_a_file_has_all_of_them_in_one_go(world: World) -> None:
    if world.store.database.dialect != "sqlite":
        pytest.skip("PostgreSQL records one at a time")
    sizes: list[int] = []

    def together(tx: Transaction, wanted: Sequence[outcomes.Outcome]) -> Sequence[steps.Written] | None:
        sizes.append(len(wanted))
        return outcomes.RECORD.together(tx, wanted)

    def alone(_tx: Transaction, _one: outcomes.Outcome) -> steps.Written:
        raise AssertionError("it was to be recorded with the others")

    _record(world, [_outcome(world.start(), number) for number in range(_TASKS)], by=Joint(alone, together))

    assert sizes == [_TASKS]


@pytest.mark.parametrize("error", [TypeError, ValueError, AssertionError, RecursionError])
def test_a_bug_in_what_is_done_together_harms_nobody(world: World, error: type[Exception]) -> None:
    def together(tx: Transaction, wanted: Sequence[outcomes.Outcome]) -> Sequence[steps.Written] | None:
        outcomes.RECORD.together(tx, wanted)
        raise error("a bug")

    claims = [world.start() for _ in range(_TASKS)]
    wanted = [_outcome(claim, number) for number, claim in enumerate(claims)]

    _record(world, wanted, by=Joint(outcomes.RECORD.alone, together))

    assert [world.task(claim.task.id).step_count for claim in claims] == [2] * _TASKS


@pytest.mark.parametrize("begun", [False, True])
def test_a_place_that_its_owner_forgets_in_the_middle_misleads_nobody(world: World, begun: bool) -> None:
    claim = world.start()
    place = _place_of(claim)
    if begun:
        world.store.call(steps.begin, claim.fence, new_step("a", risk="high"), place=place)

    def write(tx: Transaction) -> steps.Written:
        forgetful = _Forgetful(tx, place)
        step = new_step("a", risk="high" if begun else "low")
        return steps.complete(forgetful, claim.fence, step, done(), begun=begun, place=place)

    written = world.store.call(write)

    assert written.step_index == 1
    assert world.store.read(traces.read, claim.task.id).steps[-1].outcome == "completed"


class _Forgetful:
    """A transaction in the middle of whose first statement the owner writes something else."""

    def __init__(self, tx: Transaction, place: steps.Place) -> None:
        self._tx, self._place = tx, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def run(self, query: Query, /, **values: Value) -> int:
        changed = self._tx.run(query, **values)
        self._place.n = 0
        return changed


def test_calls_of_one_task_are_numbered_one_after_the_other(world: World) -> None:
    claim, other = world.start(), world.start()
    place = _place_of(claim)

    mine = [_outcome(claim, number, place) for number in range(3)]
    written = _record(world, [mine[0], _outcome(other, 0), mine[1], mine[2]])

    assert sorted(written) == [(1, 5), (1, 5), (2, 7), (3, 9)]
    assert [event.seq for event in world.feed(claim.task.id)] == list(range(1, 10))


def test_one_that_is_not_where_it_was_thought_to_be_is_recorded_all_the_same(world: World) -> None:
    claims = [world.start() for _ in range(_TASKS)]
    wanted = [_outcome(claim, number) for number, claim in enumerate(claims)]
    world.store.call(messages.emit_owned, claims[2].fence, "mine", {})

    written = _record(world, wanted)

    assert [one.last_seq for one in written] == [5, 5, 6, 5, 5, 5]
    assert [world.task(claim.task.id).step_count for claim in claims] == [2] * _TASKS
    for one, place in zip(written, (outcome.place for outcome in wanted), strict=True):
        assert (place.step_count, place.event_seq) == (one.step_index + 1, one.last_seq)


def test_who_has_lost_his_task_is_refused_and_the_others_are_recorded(world: World) -> None:
    claims = [world.start() for _ in range(_TASKS)]
    wanted = [_outcome(claim, number) for number, claim in enumerate(claims)]
    for index, fence in zip((1, 4), stale(claims[1].fence), strict=True):
        wanted[index] = structs.replace(wanted[index], fence=replace(fence, task_id=claims[index].task.id))

    answers = _answers(world, wanted)

    assert [type(one) for one in answers] == [
        LeaseLost if index in {1, 4} else steps.Written for index in range(_TASKS)
    ]
    assert [world.task(claim.task.id).step_count for claim in claims] == [2, 1, 2, 2, 1, 2]


@pytest.mark.parametrize("fields", [{"key": ""}, {"name": "a\x00b"}, {"tool_call_id": "\ud800"}])
def test_one_that_no_database_could_hold_is_refused_and_the_others_are_recorded(
    world: World, fields: dict[str, str]
) -> None:
    claims = [world.start() for _ in range(3)]
    wanted = [_outcome(claim, number) for number, claim in enumerate(claims)]
    wanted[1] = structs.replace(wanted[1], step=new_step(**{"key": "k", **fields}))

    answers = _answers(world, wanted)

    assert [type(one) for one in answers] == [steps.Written, BadInput, steps.Written]
    assert world.task(claims[1].task.id).step_count == 1


def test_a_key_that_is_on_record_is_refused_and_the_others_are_recorded(world: World) -> None:
    claims = [world.start() for _ in range(3)]
    # From medium up: a call of low risk that has ended stands in no index of keys.
    world.record(claims[1], "call 1", risk="high")
    wanted = [_outcome(claim, number) for number, claim in enumerate(claims)]
    wanted[1] = structs.replace(wanted[1], step=new_step("call 1", risk="high"))
    wanted[1].place.step_count, wanted[1].place.event_seq = 2, 5

    answers = _answers(world, wanted)

    assert [isinstance(one, steps.Written) for one in answers] == [True, False, True]
    assert world.task(claims[1].task.id).step_count == 2


@pytest.mark.parametrize(
    "result", [done(delivery=1), done(question_id="Q-1"), done(event=("mine", {})), done(notes=[Note("n", b"")])]
)
def test_what_uses_up_or_adds_something_is_not_plain(result: steps.Result) -> None:
    assert outcomes.is_plain(done(), steps.Place(n=1))
    assert not outcomes.is_plain(done(), steps.Place())
    assert not outcomes.is_plain(result, steps.Place(n=1))


def _place_of(claim: Claim) -> steps.Place:
    return steps.Place(claim.task.n, claim.task.event_seq, claim.task.step_count, claim.task.attempt)


def _outcome(claim: Claim, number: int, place: steps.Place | None = None) -> outcomes.Outcome:
    """One of several kinds, in turn."""
    step = new_step(
        f"call {number}", kind=(StepKind.TOOL_CALL, StepKind.MODEL_CALL, StepKind.VALUE)[number % 3], try_number=number
    )
    result = done(number, usage=Usage(number, 2 * number, number / 4)) if number % 2 else done({"big": "x" * 9000})
    return outcomes.Outcome(claim.fence, step, result, place or _place_of(claim))


def _record(
    world: World, wanted: Sequence[outcomes.Outcome], *, by: Joint[outcomes.Outcome, steps.Written] = outcomes.RECORD
) -> list[steps.Written]:
    answers = _answers(world, wanted, by=by)
    assert all(isinstance(one, steps.Written) for one in answers), answers
    return answers


def _answers(
    world: World, wanted: Sequence[outcomes.Outcome], *, by: Joint[outcomes.Outcome, steps.Written] = outcomes.RECORD
) -> list[Any]:
    """What comes of some that are submitted while the writer is held up, so that it finds them all at once."""
    database, begun, gate = world.store.database, threading.Event(), threading.Event()
    held: ThreadWaiter[None] = ThreadWaiter()

    def hold(_tx: Transaction) -> None:
        begun.set()
        gate.wait()

    database.write(hold, held)
    begun.wait()
    waiters: list[ThreadWaiter[steps.Written]] = [ThreadWaiter() for _ in wanted]
    for waiter, one in zip(waiters, wanted, strict=True):
        database.write(JointUnit(by, one), waiter)
    gate.set()
    held.wait()
    answers: list[Any] = []
    for waiter in waiters:
        try:
            answers.append(waiter.wait())
        except Exception as error:  # noqa: BLE001  # It is what is asked for.
            answers.append(error)
    return answers


def _content(world: World, claim: Claim) -> tuple[Any, ...]:
    """What a step leaves, but for what names its task and its moment."""
    task = world.task(claim.task.id)
    step = world.store.read(traces.read, task.id).steps[-1]
    return (
        (task.event_seq, task.step_count, task.tool_calls, task.iterations, usage_of(task), task.risk_seen),
        structs.replace(step, task_id="", timestamp=0, ended_at=0),
        [(event.kind, event.seq) for event in world.feed(task.id)],
    )
