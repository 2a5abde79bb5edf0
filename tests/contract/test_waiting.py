"""Waiting: what wakes a task, that nothing which happens meanwhile is missed, and what is kept of it in the row."""

from __future__ import annotations

from perdure.errors import StoreError
from perdure.model.task import Wait, WaitKind
from perdure.policy.lanes import rank_ms
from perdure.store import messages, questions, task_lists, tasks
from tests.world import BOOM, World, packed, timer

HOUR_MS = 3_600_000


def test_a_task_set_aside_is_due_at_once_when_what_it_waits_for_has_happened(world: World) -> None:
    parent = world.start()
    child = world.spawn(parent, "c")
    asked = world.ask(parent)
    now = world.clock.now_ms()
    waits = {
        "children": Wait(WaitKind.CHILDREN, (child.id,)),
        "receive": Wait(WaitKind.RECEIVE, ("n",)),
        "question": Wait(WaitKind.QUESTION, (asked.id,)),
        "timer": Wait(WaitKind.TIMER, (), until_ms=now + 10),
    }

    def happened() -> dict[str, bool]:
        return {name: world.store.read(tasks.has_happened, parent.task.id, wait) for name, wait in waits.items()}

    assert not any(happened().values())
    world.complete(world.claim(child.id))
    world.store.call(messages.send, parent.task.id, name="n", key="k", payload=packed(1), unread_limit=10)
    world.store.call(questions.answer, asked.id, by="ada", value=packed(1))
    world.clock.advance(10)
    assert all(happened().values())

    assert world.set_aside(parent, waits["children"], Wait(WaitKind.RECEIVE, ("other",)))
    assert world.task(parent.task.id).status == "pending"


def test_a_gather_has_happened_when_all_its_children_have_ended(world: World) -> None:
    parent = world.start()
    children = [world.spawn(parent, key) for key in "ab"]
    gather = Wait(WaitKind.CHILDREN, tuple(child.id for child in children))

    assert not world.set_aside(parent, gather)
    world.complete(world.claim(children[0].id))
    assert world.task(parent.task.id).status == "waiting"

    world.fail(world.claim(children[1].id))
    woken = world.task(parent.task.id)
    assert (woken.status, woken.waiting_for) == ("pending", ())
    assert world.kinds(parent.task.id)[-1] == "task_woken"


def test_what_a_task_waits_for_comes_back_as_it_was_written(world: World) -> None:
    claim = world.start()
    waits = (Wait(WaitKind.RECEIVE, ("a\x00b", "'"), "key \u2028", 7), Wait(WaitKind.CHILDREN, ()))

    world.wait_for(claim, *waits)

    assert world.task(claim.task.id).waiting_for == waits
    assert world.task(claim.task.id).available_at == 7


def test_waiting_for_nothing_is_refused(world: World) -> None:
    claim = world.start()

    assert isinstance(world.unchanged_by(world.wait_for, claim), StoreError)


def test_only_who_waits_for_a_time_is_listed_as_set_aside_later_than_it_is_now(world: World) -> None:
    sleeper, receiver = world.start(), world.start()
    world.set_aside(sleeper, *timer(world.clock.now_ms() + 60_000))
    world.set_aside(receiver, Wait(WaitKind.RECEIVE, ("paid",)))
    before = world.store.read(task_lists.waiters_from_later)

    world.execute("UPDATE tasks SET updated_at = updated_at + 3600000")

    assert (before, world.store.read(task_lists.waiters_from_later)) == ([], [sleeper.task.id])
    assert world.store.read(task_lists.due_waiters) == []


def test_who_is_to_start_later_waits_all_of_it_again_once_the_clock_was_set_back(world: World) -> None:
    delayed, retried = world.admit(delay_ms=60_000, priority=2), world.start()
    now = world.clock.now_ms()
    world.store.call(tasks.retry, retried.fence, available_at=now + 20_000, error=BOOM)
    due, soon = world.admit(), world.admit(delay_ms=5_000)
    before = world.store.read(task_lists.starts_from_later)
    world.execute("UPDATE tasks SET updated_at = updated_at + 10000 WHERE id = :id", id=soon.id)  # It was due by then.

    world.clock.jump(-HOUR_MS)
    found = world.store.read(task_lists.starts_from_later)
    pages = [world.store.read(task_lists.starts_from_later, skip=skip, limit=2) for skip in (0, 2)]
    counted = [world.store.call(tasks.count_anew, one) for one in found]
    rows = [world.task(one) for one in found]

    now -= HOUR_MS
    assert before == []
    assert found == [soon.id, retried.task.id, delayed.id] == [*pages[0], *pages[1]]
    assert counted == [True, True, True]
    assert [one.available_at - now for one in rows] == [0, 20_000, 60_000]
    assert [one.updated_at - now for one in rows] == [0, 0, 0]
    assert [one.rank for one in rows] == [rank_ms(one.available_at, one.priority) for one in rows]
    assert world.store.read(task_lists.starts_from_later) == []
    assert world.store.read(task_lists.next_due) == now + 20_000
    assert world.task(due.id).available_at == tasks.AT_ONCE
    assert [one.id for one in [world.claim(due.id).task, world.claim(soon.id).task]] == [due.id, soon.id]


def test_nobody_waits_anew_whose_clock_goes_right(world: World) -> None:
    delayed, running = world.admit(delay_ms=60_000), world.start()
    world.clock.advance(30_000)

    ids = (delayed.id, running.task.id, "unknown")
    counted = [world.unchanged_by(world.store.call, tasks.count_anew, one) for one in ids]

    assert counted == [False, False, False]


def test_a_start_that_was_begun_or_counted_anew_meanwhile_is_left_alone(world: World) -> None:
    begun, counted = world.admit(delay_ms=60_000), world.admit(delay_ms=60_000)
    world.clock.advance(60_000)
    world.claim(begun.id)
    world.clock.jump(-HOUR_MS)
    assert world.store.call(tasks.count_anew, counted.id)

    again = [world.unchanged_by(world.store.call, tasks.count_anew, one) for one in (begun.id, counted.id)]

    assert again == [False, False]
