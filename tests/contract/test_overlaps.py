"""Two units at once: the second begins while the first has done its work and has not committed.

What the second has read before it waits for a row must not decide what it writes after.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from perdure import codec
from perdure.model.question import QuestionKind
from perdure.model.task import Claim, Wait, WaitKind
from perdure.runtime.zombies import Dead
from perdure.store import ends, last_words, order, questions, tasks
from perdure.store.database import Transaction
from perdure.store.last_words import LastWord, WordKind
from tests.world import World, done, packed

A = TypeVar("A")
B = TypeVar("B")

# SQLite has one writer: there the second unit begins when the first has ended.
pytestmark = pytest.mark.parametrize("store_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)

NOT_HAPPENED = packed({"verdict": "not_happened"})
LIMIT_S = 10.0
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def overlap(world: World, first: Callable[[Transaction], A], second: Callable[[Transaction], B]) -> tuple[A, B]:
    """Run the second while the first is not committed yet; what they return."""
    is_done, commit = threading.Event(), threading.Event()

    def held(tx: Transaction) -> A:
        found = first(tx)
        is_done.set()
        assert commit.wait(LIMIT_S)
        return found

    with ThreadPoolExecutor() as pool:
        one = pool.submit(world.store.call, held)
        assert is_done.wait(LIMIT_S)
        other = pool.submit(world.store.call, second)
        while not other.done() and world.rows(WAITING) == [(0,)]:
            time.sleep(0.005)
        commit.set()
        return one.result(LIMIT_S), other.result(LIMIT_S)


def in_doubt(world: World) -> tuple[Claim, str]:
    """An owned task with a call in doubt, and the question about it."""
    claim = world.start()
    world.begin(claim, "pay", risk="high")
    return claim, world.ask(claim, QuestionKind.STEP_IN_DOUBT, step_key="pay").id


def word_of(claim: Claim, kind: WordKind = WordKind.CUT_OFF, body: bytes = b"") -> LastWord:
    return LastWord(claim.task.id, "pay", claim.task.attempt, kind, body)


@pytest.mark.parametrize("told", [True, False])
def test_an_answer_given_while_the_call_ran_does_not_count_as_given_after_it(world: World, told: bool) -> None:
    claim, question = in_doubt(world)

    def cut_off(tx: Transaction) -> LastWord | None:
        if not told:  # As a worker notes it that goes on with the task itself.
            return word_of(claim)._replace(order=order.take(tx))
        last_words.tell(tx, [word_of(claim)])
        return last_words.last(tx, claim.task.id, "pay", claim.task.attempt)

    _, word = overlap(world, lambda tx: questions.answer(tx, question, by="ana", value=NOT_HAPPENED), cut_off)

    assert word is not None
    assert not Dead(word.order, word).came_before(world.store.read(questions.get, question))


def test_a_last_word_told_while_its_task_is_cancelled_settles_its_call(world: World) -> None:
    claim, _ = in_doubt(world)
    word = word_of(claim, WordKind.COMPLETED, codec.encode("paid"))

    overlap(world, lambda tx: ends.cancel(tx, claim.task.id), lambda tx: last_words.tell(tx, [word]))

    step = world.step(claim.task.id, "pay")
    assert step is not None
    assert step.outcome == "completed"


def test_a_parent_set_aside_while_its_child_ends_is_due_again(world: World) -> None:
    parent = world.start()
    child = world.claim(world.spawn(parent).id)
    world.wait_for(parent, Wait(WaitKind.CHILDREN, (child.task.id,)))

    overlap(
        world,
        lambda tx: ends.complete(tx, child.fence, packed("result"), risk_seen="low"),
        lambda tx: tasks.suspend(tx, parent.fence),
    )

    assert world.task(parent.task.id).status == "pending"


def test_of_two_answers_at_once_the_first_one_counts(world: World) -> None:
    claim, question = in_doubt(world)
    happened = packed({"verdict": "happened", "result": 1})

    first, second = overlap(
        world,
        lambda tx: questions.answer(tx, question, by="ana", value=NOT_HAPPENED),
        lambda tx: questions.answer(tx, question, by="ben", value=happened),
    )

    assert (first.answered_by, second.answered_by) == ("ana", "ana")
    assert world.kinds(claim.task.id).count("question_answered") == 1


def test_of_two_people_who_settle_one_call_at_once_the_first_one_counts(world: World) -> None:
    claim, _ = in_doubt(world)
    step = world.step(claim.task.id, "pay")
    assert step is not None
    world.end(claim.task.id, "cancel")

    first, second = overlap(
        world,
        lambda tx: ends.settle_call(tx, claim.task.id, step.step_index, done("ana's"), by="ana"),
        lambda tx: ends.settle_call(tx, claim.task.id, step.step_index, done("ben's"), by="ben"),
    )

    assert (first, second) == (True, False)
    assert world.kinds(claim.task.id).count("call_settled") == 1


def test_an_interrupt_tells_whether_the_task_was_waiting_when_it_came(world: World) -> None:
    claim = world.start()
    timer = Wait(WaitKind.TIMER, (), until_ms=world.clock.now_ms() + 1000)

    overlap(
        world,
        lambda tx: tasks.wait(tx, claim.fence, [timer]),
        lambda tx: tasks.interrupt(tx, claim.task.id, claim.execution_id, reason="gone"),
    )

    (told,) = [one.payload for one in world.feed(claim.task.id) if one.kind == "task_interrupted"]
    assert told["was_waiting"] is True
