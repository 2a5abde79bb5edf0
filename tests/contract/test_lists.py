"""Lists: newest first, a strict cursor, clamped limits, and what people type finds one thing or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.client import Client
from perdure.errors import BadInput, NotFound
from perdure.model.task import Mode, Task
from perdure.store import admission, ends, sessions, steps, task_lists
from perdure.store.task_lists import Cursor
from tests.world import World, done, ids, new_step, new_task


def _many(world: World, count: int, **fields: Any) -> list[Task]:
    """Tasks of which each two were admitted in the same millisecond."""
    found = []
    for number in range(count):
        found.append(world.admit(work=number, **fields))
        if number % 2:
            world.clock.advance(1)
    return sorted(found, key=lambda task: (task.created_at, task.id), reverse=True)


def _pages(world: World, *, limit: int, **filters: object) -> list[str]:
    found: list[Task] = []
    after = None
    while page := world.store.read(task_lists.recent, after=after, limit=limit, **filters):  # type: ignore[arg-type]  # filters of any kind
        found += page
        after = Cursor(page[-1].created_at, page[-1].id)
    return ids(found)


def test_tasks_are_listed_newest_first_by_time_and_id(world: World) -> None:
    newest_first = _many(world, 7)

    assert ids(world.store.read(task_lists.recent)) == ids(newest_first)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_never_repeat_and_never_leave_out(world: World, limit: int) -> None:
    newest_first = _many(world, 7, session_id="chat")
    world.admit(session_id="other")

    assert _pages(world, limit=limit, session_id="chat") == ids(newest_first)
    assert len(_pages(world, limit=limit)) == 8
    assert len(_pages(world, limit=limit, open_only=True)) == 8
    assert len(_pages(world, limit=limit, status="pending")) == 8


def test_a_cursor_survives_being_text(world: World) -> None:
    tasks = _many(world, 3)
    cursor = Cursor.parse(str(Cursor(tasks[0].created_at, tasks[0].id)))

    assert ids(world.store.read(task_lists.recent, after=cursor)) == ids(tasks[1:])


@pytest.mark.parametrize("text", ["", "-", "x-1", "12", "\u00b2-a", "-1-a", "9" * 30 + "-a", "1-a\x00b"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        Cursor.parse(text)

    assert refused.value.field == "after"


@pytest.mark.parametrize("limit", [0, 200, 500])
async def test_a_clients_pages_leave_nothing_out_whatever_limit_was_asked_for(world: World, limit: int) -> None:
    rows = 201 if limit else 3
    world.ask(world.start())
    world.admit()
    world.multiply("questions", {"id": "'X' || k", "step_key": "'s' || k"}, rows - 1)
    world.multiply("tasks", {"id": "'task-' || k"}, rows - 2)
    client = Client(store=world.store)

    asked, admitted = [await client.questions(limit=limit)], [await client.tasks(limit=limit)]
    while asked[-1].after is not None:
        asked.append(await client.questions(limit=limit, after=asked[-1].after))
    while admitted[-1].after is not None:
        admitted.append(await client.tasks(limit=limit, after=admitted[-1].after))

    assert len({one.id for page in asked for one in page}) == sum(map(len, asked)) == rows
    assert len({one.id for page in admitted for one in page}) == sum(map(len, admitted)) == rows


async def test_a_client_that_finds_nothing_has_no_further_page(world: World) -> None:
    client = Client(store=world.store)

    for page in (await client.questions(limit=0), await client.tasks(limit=0)):
        assert (list(page), page.after) == ([], None)
    assert (await client.task(world.admit().id).steps(limit=0)).after is None


def test_a_limit_outside_its_range_is_clamped(world: World) -> None:
    world.store.call(admission.admit, [new_task(work=number) for number in range(205)])

    assert len(world.store.read(task_lists.recent, limit=0)) == 1
    assert len(world.store.read(task_lists.recent, limit=-5)) == 1
    assert len(world.store.read(task_lists.recent, limit=1000)) == 200


def test_filters_only_ever_narrow(world: World) -> None:
    done = world.start(session_id="chat")
    world.complete(done)
    running = world.start(session_id="chat")
    painter = world.admit(new_task("painter"))

    def listed(**filters: object) -> set[str]:
        return set(ids(world.store.read(task_lists.recent, **filters)))  # type: ignore[arg-type]  # filters of any kind

    assert listed(status="completed") == {done.task.id}
    assert listed(status="running") == {running.task.id}
    assert listed(open_only=True) == {running.task.id, painter.id}
    assert listed(agent="painter") == {painter.id}
    assert listed(agent="painter", session_id="chat") == set()
    assert listed(session_id="chat", open_only=True) == {running.task.id}
    assert listed(session_id="nowhere") == set()
    with pytest.raises(BadInput) as refused:
        listed(status="finished")
    assert refused.value.field == "status"


def test_a_rare_task_is_found_behind_many_others(world: World) -> None:
    rare = world.admit(new_task("painter"))
    world.clock.advance(1)
    world.admit()
    world.multiply("tasks", {"id": "'task-' || k"}, 3000)

    assert ids(world.store.read(task_lists.recent, agent="painter", limit=1)) == [rare.id]


def test_what_changed_since_a_revision_is_one_query(world: World) -> None:
    first = world.admit(session_id="chat", work=1)
    second = world.admit(session_id="chat", work=2)
    seen = world.store.read(sessions.get, "chat").revision
    assert world.store.read(task_lists.changed_since, "chat", revision=seen) == []

    world.store.call(ends.cancel, first.id)
    changed = world.store.read(task_lists.changed_since, "chat", revision=seen)

    assert [(task.id, task.status) for task in changed] == [(first.id, "cancelled")]
    assert ids(world.store.read(task_lists.changed_since, "chat", revision=0)) == [second.id, first.id]


def test_a_change_of_many_tasks_is_paged_without_losing_any(world: World) -> None:
    root = world.start(session_id="chat")
    family = {root.task.id, *(world.spawn(root, f"c{number}").id for number in range(6))}
    seen = world.store.read(sessions.get, "chat").revision
    world.store.call(ends.cancel, root.task.id)

    found: list[Task] = []
    revision, after_id = seen, None
    while page := world.store.read(task_lists.changed_since, "chat", revision=revision, after_id=after_id, limit=2):
        found += page
        revision, after_id = page[-1].revision, page[-1].id

    assert len(found) == len(family)
    assert set(ids(found)) == family


def test_a_task_is_found_by_the_ending_of_its_id(world: World) -> None:
    tasks = _many(world, 20)

    for task in tasks:
        assert world.store.read(task_lists.find, task.id) == task.id
        assert world.store.read(task_lists.find, task.id[-12:]) == task.id
        assert world.store.read(task_lists.find, "\u2026" + task.id[-12:].lower()) == task.id


def test_an_ending_that_fits_several_tasks_or_none_is_refused(world: World) -> None:
    _many(world, 40)  # more than the 32 letters of an id's alphabet: two of them end alike

    endings = [task.id[-1] for task in world.store.read(task_lists.recent)]
    twice = next(ending for ending in endings if endings.count(ending) > 1)
    with pytest.raises(BadInput):
        world.store.read(task_lists.find, twice)
    with pytest.raises(NotFound):
        world.store.read(task_lists.find, "no such ending")
    with pytest.raises(BadInput):
        world.store.read(task_lists.find, "\u2026")


def test_like_patterns_in_an_ending_are_plain_text(world: World) -> None:
    world.admit()

    for text in ("%", "_", "%%", "*"):
        with pytest.raises(NotFound):
            world.store.read(task_lists.find, text)


def test_children_are_listed_oldest_first(world: World) -> None:
    root = world.start()
    children = []
    for key in "abc":
        children.append(world.spawn(root, key))
        world.clock.advance(1)

    assert world.store.read(task_lists.children, root.task.id) == children
    assert world.store.read(task_lists.children, children[0].id) == []


def test_open_children_in_the_foreground_are_found_however_many_others_there_are(world: World) -> None:
    root = world.start()
    world.end(world.spawn(root, "cancelled").id, "cancel")
    world.multiply("tasks", {"id": "'task-' || k", "idempotency_key": "'key-' || k"}, 300)  # of the cancelled one
    world.clock.advance(1)
    world.spawn(root, "elsewhere", mode=Mode.BACKGROUND)
    last = world.spawn(root, "last")

    assert world.store.read(task_lists.open_foreground_children, root.task.id) == [last.id]


def test_tasks_are_counted_where_they_stand(world: World) -> None:
    world.admit()
    world.admit()
    world.complete(world.start())

    assert world.store.read(task_lists.counts_by_status) == {"pending": 2, "completed": 1}


def test_the_next_due_task_is_known(world: World) -> None:
    assert world.store.read(task_lists.next_due) is None
    world.admit()
    assert world.store.read(task_lists.next_due) is None  # due already

    world.admit(delay_ms=5000)
    world.admit(delay_ms=1000)

    assert world.store.read(task_lists.next_due) == world.clock.now_ms() + 1000


def test_the_newest_open_task_of_the_same_work_is_found(world: World) -> None:
    old = world.admit(work="same")
    world.clock.advance(1)
    new = world.admit(work="same")
    world.clock.advance(1)
    world.admit(work="other")

    def like() -> Task | None:
        return world.store.read(task_lists.newest_open_like, agent="writer", work_digest=old.work_digest)

    assert like() == new
    world.store.call(ends.cancel, new.id)
    assert like() == old
    world.store.call(ends.cancel, old.id)
    assert like() is None


def test_an_outcome_is_given_once_a_task_has_ended(world: World) -> None:
    open_one, claim = world.admit(), world.start()
    world.complete(claim, "result")

    assert world.store.read(task_lists.outcome, open_one.id) is None
    outcome = world.store.read(task_lists.outcome, claim.task.id)
    assert outcome is not None
    assert (outcome.status, outcome.result, outcome.error) == ("completed", b'"result"', None)
    with pytest.raises(NotFound):
        world.store.read(task_lists.outcome, "nowhere")


def test_what_a_task_and_those_below_it_have_done_is_known_as_soon_as_it_is_begun(world: World) -> None:
    def danger() -> tuple[bool, bool, bool, bool, bool]:
        found = world.store.read(task_lists.danger, top.task.id)
        return found.is_declared, found.has_begun, found.is_open, found.is_open_below, found.forbids_another

    top = world.start()
    assert danger() == (False, False, True, False, False)
    middle = world.claim(world.spawn(top).id)
    world.record(middle, "look")
    below = world.claim(world.spawn(middle, mode=Mode.BACKGROUND).id)
    assert danger() == (False, False, True, True, False)
    world.complete(middle)
    world.complete(top)
    assert danger() == (False, False, False, True, True)
    world.store.call(steps.begin, below.fence, new_step("pay", risk="high"))
    assert danger() == (False, True, False, True, True)
    world.store.call(steps.complete, below.fence, new_step("pay", risk="high"), done(), begun=True)
    world.complete(below)
    assert danger() == (False, True, False, False, True)


def test_a_task_is_dangerous_as_it_or_one_below_it_is_declared(world: World) -> None:
    top = world.start()
    world.spawn(top, risk="medium")

    assert world.store.read(task_lists.danger, top.task.id).is_declared
