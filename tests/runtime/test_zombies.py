"""A worker that was taken for dead and wakes: what it had begun is done at most once, whatever the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.settings import Settings
from perdure.store import instances
from perdure.testing.actor import Actor
from tests.theatre import Theatre

BRIEF = Settings(sweep_s=0.5, poll_ms=500, heartbeat_s=1, lease_s=6, question_expiry_s=10_000)
DAY_MS = 86_400_000


@pytest.fixture
def settings() -> Settings:
    return BRIEF


class Place:
    """Where the first worker stands when it is frozen."""

    def __init__(self, house: Theatre) -> None:
        self.house = house
        self.done: list[int] = []
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    @property
    def worker(self) -> int:
        """How many workers there are."""
        return len(self.house.actors)

    async def hold(self) -> None:
        """Stand here, in the first worker."""
        if self.worker == 1:
            self.reached.set()
            await self.go_on.wait()


@pytest.fixture
async def place(house: Theatre) -> Place:
    return Place(house)


async def freeze(place: Place, actor: Actor) -> None:
    """Stop a worker where it stands, like Ctrl-Z."""
    await place.reached.wait()
    actor.process.hold()


def thaw(place: Place, actor: Actor) -> None:
    """Let it go on."""
    place.go_on.set()
    actor.process.release(place.house.loop)


async def taken_over(house: Theatre, task: Any, agent: Any) -> Actor:
    """Another worker, once it has the task."""
    second = await house.hire(agent)
    await house.until(lambda: house.row(task).attempt == 2)
    return second


async def test_frozen_for_less_than_a_lease_it_keeps_its_task(house: Theatre, place: Place) -> None:
    @perdure.agent
    async def host() -> str:
        await place.hold()
        return "ran"

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await house.hire(host)
    await asyncio.sleep(5)
    thaw(place, first)

    assert await task.result() == "ran"
    assert len(house.attempts(task)) == 1


async def test_inside_a_low_call_it_is_taken_over_and_fenced(house: Theatre, place: Place) -> None:
    @perdure.tool(risk="low")
    async def look() -> int:
        await place.hold()
        place.done.append(place.worker)
        return place.worker

    @perdure.agent
    async def host() -> int:
        return await look()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    result = await task.result()
    thaw(place, first)
    await asyncio.sleep(30)

    assert result == 2
    assert [one.outcome for one in house.steps(task)] == ["completed"]
    assert house.store.read(instances.alive)[-1].id == first.worker.instance_id  # it has begun anew, as somebody else
    assert len(house.store.read(instances.alive)) == 2


@pytest.mark.parametrize("jump_ms", [0, -DAY_MS, DAY_MS])
@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_woken_inside_a_high_call_its_own_word_counts_and_not_the_answer_before(
    house: Theatre, place: Place, ends: str, jump_ms: int
) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        place.done.append(place.worker)
        if ends == "raises":
            raise ConnectionError("declined")
        return f"paid by worker {place.worker}"

    @perdure.agent
    async def host() -> str:
        try:
            return await pay()
        except ConnectionError as error:
            return str(error)

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    doubt = await house.question()
    await doubt.resolve(perdure.not_happened(), by="ana")
    await asyncio.sleep(60)
    done_before = list(place.done)
    house.loop.jump(jump_ms)
    thaw(place, first)
    result = await task.result()

    assert done_before == []  # The answer was stored, and waited for the worker that may still be inside.
    assert place.done == [2]  # Once: by the first worker, when there were two.
    assert result == ("paid by worker 2" if ends == "returns" else "declined")


async def test_woken_just_before_a_high_call_it_does_not_make_it(house: Theatre, place: Place) -> None:
    @perdure.tool
    async def pay() -> str:
        place.done.append(place.worker)
        return f"paid by worker {place.worker}"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    begun = asyncio.Event()
    write = first.line.write

    def stop_after_the_intent(unit: Any, waiter: Any) -> None:
        write(unit, waiter)
        if any("pay" in commit for commit in first.line.commits) and not begun.is_set():
            first.process.hold()
            begun.set()

    first.line.write = stop_after_the_intent  # type: ignore[method-assign]  # frozen between intent and call
    task = await house.client.start(host)
    await begun.wait()
    await taken_over(house, task, host)
    doubt = await house.question()
    await doubt.resolve(perdure.not_happened(), by="ana")
    await asyncio.sleep(60)
    first.process.release(house.loop)

    assert await task.result() == "paid by worker 2"
    assert place.done == [2]
    await asyncio.sleep(30)
    assert place.done == [2]


async def test_woken_and_cancelled_inside_a_high_call_the_person_is_asked_again(house: Theatre, place: Place) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        await asyncio.sleep(20)  # cut off in here, once it has learned that it was taken over
        place.done.append(place.worker)
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    early = await house.question()
    await early.resolve(perdure.not_happened(), by="ana")
    thaw(place, first)
    await house.until(lambda: "answer_voided" in house.kinds(task))
    late = await house.question()
    await late.resolve(perdure.happened("half of it"), by="ana")

    assert late.id != early.id
    assert "still alive" in late.evidence["cause"]
    assert await task.result() == "half of it"
    assert place.done == []


async def test_a_person_may_say_not_to_wait_for_proof(house: Theatre, place: Place) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        place.done.append(place.worker)
        return f"paid by worker {place.worker}"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    doubt = await house.question()
    await doubt.resolve(perdure.not_happened(), by="ana")
    await asyncio.sleep(60)
    assert place.done == []
    await doubt.resolve(perdure.not_happened(), by="ana", anyway=True)

    assert await task.result() == "paid by worker 2"
    assert (await house.client.question(doubt.id)).row.anyway


async def test_waiting_for_proof_costs_no_events_and_no_permit(house: Theatre, place: Place) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    await (await house.question()).resolve(perdure.not_happened(), by="ana")
    await house.until(lambda: any(wait.keys for wait in house.row(task).waiting_for if wait.kind == "timer"))
    events = house.row(task).event_seq
    await asyncio.sleep(100)

    assert house.row(task).status == "waiting"
    assert house.row(task).event_seq - events < 50
    house.kill(first)
    doubt = await house.question()  # It outlived the answer, and may have gone on before it died.
    await doubt.resolve(perdure.not_happened(), by="ana")
    assert await task.result() == "paid"


async def test_killed_after_its_effect_and_after_the_answer_the_person_is_asked_again_whatever_the_clock_says(
    house: Theatre, place: Place
) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        place.done.append(place.worker)
        await asyncio.sleep(1e6)
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    early = await house.question()
    await early.resolve(perdure.not_happened(), by="ana")
    house.loop.jump(-DAY_MS)
    thaw(place, first)
    await house.until(lambda: place.done)
    house.kill(first)
    late = await house.question()
    await late.resolve(perdure.happened("found"), by="ana")

    assert late.id != early.id
    assert await task.result() == "found"
    assert len(place.done) == 1


@pytest.mark.parametrize("jump_ms", [0, -DAY_MS])
async def test_proven_dead_before_the_answer_the_call_runs_again_at_once(
    house: Theatre, place: Place, jump_ms: int
) -> None:
    @perdure.tool
    async def pay() -> str:
        await place.hold()
        place.done.append(place.worker)
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await place.reached.wait()
    house.kill(first)
    await taken_over(house, task, host)
    doubt = await house.question()
    house.loop.jump(jump_ms)
    before = house.loop.time()
    await doubt.resolve(perdure.not_happened(), by="ana")

    assert await task.result() == "paid"
    assert place.done == [2]
    assert house.loop.time() - before < 2


@pytest.mark.parametrize(("dies", "times"), [(False, 1), (True, 2)])
async def test_reconcile_is_asked_once_more_when_the_worker_outlived_its_word_and_left_none(
    house: Theatre, place: Place, dies: bool, times: int
) -> None:
    asked: list[float] = []

    async def find(_doubt: perdure.Doubt) -> perdure.Verdict[str]:
        asked.append(house.loop.time())
        return perdure.happened("found") if place.done else perdure.not_happened()

    @perdure.tool(reconcile=find)
    async def pay() -> str:
        await place.hold()
        place.done.append(place.worker)
        return "paid"

    @perdure.agent
    async def host() -> str:
        return await pay()

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    await taken_over(house, task, host)
    await house.until(lambda: asked)
    await asyncio.sleep(30)
    if dies:
        house.kill(first)
    else:
        thaw(place, first)

    assert await task.result() in ("paid", "found")
    assert place.done == [2]
    assert len(asked) == times


async def test_a_zombie_claims_nothing_under_the_identity_it_has_lost(house: Theatre, place: Place) -> None:
    @perdure.agent
    async def host() -> str:
        await place.hold()
        return "ran"

    first = await house.hire(host)
    task = await house.client.start(host)
    await freeze(place, first)
    second = await taken_over(house, task, host)
    old = house.attempts(task)[0].instance_id
    await house.dismiss(second)
    later = [await house.client.start(host) for _ in range(20)]
    thaw(place, first)

    assert [await one.result() for one in later] == ["ran"] * 20
    assert old not in {attempt.instance_id for one in later for attempt in house.attempts(one)}
    assert all(len(house.attempts(one)) == 1 for one in later)


async def test_a_retired_identity_says_nothing_of_calls_that_its_process_may_still_make(
    house: Theatre, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    retired_in: list[list[str]] = []
    looks: list[None] = []

    async def until_may_call() -> None:
        looks.append(None)
        if len(looks) == 2:  # after the intent, before the call
            await asyncio.sleep(1e6)

    @perdure.tool
    async def hang() -> None:
        place.reached.set()
        while not place.go_on.is_set():
            try:
                await place.go_on.wait()
            except asyncio.CancelledError:
                continue  # as a thread does, which nobody can cut

    @perdure.agent
    async def old() -> None:
        await hang()

    @perdure.tool
    async def pay() -> str:
        place.done.append(place.worker)
        if place.worker == 2:
            house.kill(first)
        return "paid"

    @perdure.tool(risk="low")
    async def shop() -> str:
        try:
            async with asyncio.timeout(1 if place.worker == 2 else None):
                return await pay()
        except TimeoutError:
            # Its intent is on record, and it was not made. Now the last call of the old identity returns.
            place.go_on.set()
            await house.until(lambda: house.store.read(instances.get, identity).status == "stopped")
            retired_in.append(house.kinds(task))
            raise

    @perdure.agent
    async def host() -> str:
        return await shop()

    @perdure.agent
    async def other() -> None: ...

    first = await house.hire(old, host)
    identity = first.worker.instance_id
    await house.client.start(old)
    await freeze(place, first)
    second = await house.hire(other)
    await house.until(lambda: house.store.read(instances.get, identity).status == "crashed")
    first.process.release(house.loop)
    await house.until(lambda: first.worker.instance_id != identity)
    await house.dismiss(second)
    monkeypatch.setattr(first.worker, "until_may_call", until_may_call)
    task = await house.client.start(host)
    await house.until(lambda: place.done)
    await house.hire(host)
    await house.until(lambda: {"question_opened", "task_completed"} & set(house.kinds(task)))
    doubts = [one for one in await house.client.questions() if one.task_id == task.id]

    assert place.done == [2]
    assert [("tool_call_started" in kinds, "call_ended_late" in kinds) for kinds in retired_in] == [(True, False)]
    await doubts[0].resolve(perdure.happened("paid"), by="ana")
    assert await task.result() == "paid"
