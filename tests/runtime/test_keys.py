"""How a call finds its record again: by name and input, whatever the order; and when the code has changed since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.errors import AmbiguousStep, BadInput
from tests.theatre import Theatre


class Cut:
    """A place at which the first attempt stands still, to be killed there."""

    def __init__(self, house: Theatre) -> None:
        self._house = house
        self.reached = asyncio.Event()

    async def here(self) -> None:
        """Stand still in the first worker; later ones pass."""
        if len(self._house.actors) == 1:
            self.reached.set()
            await asyncio.sleep(1e6)


@pytest.fixture
async def cut(house: Theatre) -> Cut:
    return Cut(house)


async def killed_and_resumed(house: Theatre, cut: Cut, host: Any, *args: Any) -> Any:
    """Run an agent whose first attempt dies at the cut; the task's handle."""
    first = await house.hire(host)
    task = await house.client.start(host, *args)
    await cut.reached.wait()
    house.kill(first)
    await house.hire(host)
    return task


async def test_branches_in_another_order_get_their_own_results(house: Theatre, cut: Cut) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n * 10

    @perdure.agent
    async def host() -> list[int]:
        order = [1, 2, 3] if len(house.actors) == 1 else [3, 1, 2]
        found = {n: await act(n) for n in order}
        await cut.here()
        return [found[n] for n in (1, 2, 3)]

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == [10, 20, 30]
    assert made == [1, 2, 3]


async def test_equal_calls_are_told_apart_by_their_number(house: Theatre, cut: Cut) -> None:
    made: list[int] = []

    @perdure.tool
    async def act() -> int:
        made.append(1)
        return len(made)

    @perdure.agent
    async def host() -> list[int]:
        first = [await act(), await act()]
        await cut.here()
        return [*first, await act()]

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == [1, 2, 3]


async def test_a_key_replaces_name_and_input(house: Theatre, cut: Cut) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> int:
        n = len(house.actors)  # an input that does not repeat
        found = await act.options(key="the act")(n)
        await cut.here()
        return found

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == 1
    assert made == [1]


async def test_one_key_for_two_calls_at_once_is_refused(house: Theatre) -> None:
    @perdure.tool(risk="low")
    async def act(n: int) -> int:
        await asyncio.sleep(1)
        return n

    @perdure.agent
    async def host() -> list[Any]:
        found = await perdure.gather(act.options(key="k")(1), act.options(key="k")(2), return_exceptions=True)
        return [type(one).__name__ if isinstance(one, AmbiguousStep) else one for one in found]

    assert await house.play(host) == [1, "AmbiguousStep"]


async def test_two_closures_without_input_at_once_are_refused_before_the_second_runs(house: Theatre) -> None:
    made: list[str] = []

    @perdure.agent
    async def host() -> list[Any]:
        def calling(what: str) -> Any:
            async def call() -> str:
                made.append(what)
                await asyncio.sleep(1)
                return what

            return call

        async def model(what: str) -> str:
            return await perdure.model(calling(what))

        found = await perdure.gather(model("a"), model("b"), return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else one for one in found]

    assert await house.play(host) == ["a", "AmbiguousStep"]
    assert made == ["a"]


async def test_closures_without_input_may_follow_each_other_and_overlap_under_keys(house: Theatre) -> None:
    @perdure.agent
    async def host() -> list[str]:
        async def a() -> str:
            await asyncio.sleep(1)
            return "a"

        first = await perdure.model(a), await perdure.model(a)
        keyed = (perdure.model.options(key="k1")(a), perdure.model.options(key="k2")(a))
        return [*first, *await perdure.gather(*keyed)]

    assert await house.play(host) == ["a"] * 4


@pytest.mark.parametrize("key", ["a\x00b", "x" * 600, "\ud83d"])
async def test_a_key_that_no_store_can_hold_is_refused_before_the_call_runs(house: Theatre, key: str) -> None:
    made: list[int] = []

    @perdure.tool(risk="low")
    async def act() -> None:
        made.append(1)

    @perdure.agent
    async def host() -> str:
        try:
            await act.options(key=key)()
        except BadInput as refused:
            return refused.field
        return "accepted"

    assert await house.play(host) == "key"
    assert made == []


async def test_a_name_with_slashes_is_no_parent(house: Theatre, cut: Cut) -> None:
    @perdure.tool(name="google_calendar/list", risk="high")  # A slash where the mark of an inner call ends.
    async def act(n: int) -> int:
        return n

    @perdure.agent
    async def host() -> int:
        found = await act(1 if len(house.actors) == 1 else 2)
        await cut.here()
        return found

    task = await killed_and_resumed(house, cut, host)
    drift = await house.question()
    await drift.approve(by="ana")

    assert "while step 1 lies unused: google_calendar/list(n=1)" in drift.text
    assert await task.result() == 2


# -- drift ----------------------------------------------------------------------------------


async def test_drift_says_of_an_unused_call_that_it_is_in_doubt(house: Theatre, cut: Cut) -> None:
    @perdure.tool
    async def act(n: int) -> int:
        await cut.here()
        return n

    @perdure.agent
    async def host() -> int:
        return await act(1 if len(house.actors) == 1 else 101)

    await killed_and_resumed(house, cut, host)
    drift = await house.question(kind="call")

    doubt = "while step 1 lies unused: act(n=1), which is in doubt and may have happened."
    assert doubt in drift.text and doubt in drift.evidence["why"]


async def test_a_low_call_that_fits_no_record_runs_and_says_so(house: Theatre, cut: Cut) -> None:
    made: list[int] = []

    @perdure.tool(risk="low")
    async def look(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> int:
        found = await look(len(house.actors))
        await cut.here()
        return found

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == 2
    assert made == [1, 2]
    assert "drift" in house.kinds(task)


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_high_call_that_fits_no_record_is_asked_about(house: Theatre, cut: Cut, answer: str) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> int:
        try:
            found = await act(len(house.actors))
        except perdure.Denied:
            return -1
        await cut.here()
        return found

    task = await killed_and_resumed(house, cut, host)
    asked = await house.question()
    made_before = list(made)
    await (asked.approve(by="ana") if answer == "approve" else asked.deny("no", by="ana"))

    assert (asked.kind, asked.args, made_before) == ("call", {"n": 2}, [1])
    assert await task.result() == (2 if answer == "approve" else -1)
    assert made == ([1, 2] if answer == "approve" else [1])


async def test_an_agent_may_want_an_error_in_place_of_the_question(house: Theatre, cut: Cut) -> None:
    @perdure.tool
    async def act(n: int) -> int:
        return n

    @perdure.agent(drift="error")
    async def host() -> int:
        found = await act(len(house.actors))
        await cut.here()
        return found

    task = await killed_and_resumed(house, cut, host)
    with pytest.raises(perdure.TaskFailed):
        await task.result()

    assert house.outcome(task) == ("failed", "perdure.errors.Drift")
    assert house.row(task).failures == 0
    assert await house.client.questions() == []


async def test_a_branch_that_is_still_on_its_way_to_its_record_is_no_drift(house: Theatre, cut: Cut) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        if n == 2:
            await cut.here()
        return n

    @perdure.tool(risk="low")
    async def think(n: int) -> int:
        return n

    @perdure.agent
    async def host() -> list[int]:
        async def one() -> int:
            for n in range(20):  # many records before the dangerous one
                await think(n)
                await asyncio.sleep(0)
            return await act(1)

        async def other() -> int:
            if len(house.actors) == 1:
                while not made:
                    await asyncio.sleep(0)
            return await act(2)

        return list(await asyncio.gather(one(), other()))

    task = await killed_and_resumed(house, cut, host)
    doubt = await house.question()
    await doubt.resolve(perdure.happened(2), by="ana")

    assert doubt.kind == "step_in_doubt"
    assert await task.result() == [1, 2]
    assert made == [1, 2]


async def test_the_first_new_call_of_a_replay_is_held_until_the_branches_have_come_to_their_records(
    house: Theatre, cut: Cut
) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> list[int]:
        async def recorded() -> int:
            await asyncio.sleep(0.01)  # what no record answers
            found = await act(1)
            await cut.here()
            return found

        async def new() -> int:
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
            return await act(2)

        return list(await asyncio.gather(recorded(), new()))

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == [1, 2]
    assert made == [1, 2]
    assert house.kinds(task).count("question_opened") == 0


async def test_a_branch_that_makes_new_calls_holds_up_no_question(house: Theatre, cut: Cut) -> None:
    amounts = [5]

    @perdure.tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @perdure.tool(risk="low")
    async def poll(i: int) -> int:
        await asyncio.sleep(0.04)
        return i

    @perdure.agent
    async def host() -> str:
        async def buy() -> str:
            paid = await pay(amounts[-1])
            await cut.here()
            return paid

        async def watch() -> None:
            for i in range(500 if len(house.actors) > 1 else 0):
                await poll(i)

        paid, _ = await asyncio.gather(buy(), watch())
        return paid

    first = await house.hire(host)
    task = await house.client.start(host)
    await cut.reached.wait()
    house.kill(first)
    amounts.append(6)
    await house.hire(host)
    question = await house.question(kind="call")
    polls = len(house.steps(task, "poll"))
    await question.approve(by="ana")

    assert polls < 10
    assert await task.result() == "paid 6"


async def test_records_under_an_answered_call_count_as_used(house: Theatre, cut: Cut) -> None:
    made: list[str] = []

    @perdure.tool
    async def send(to: str) -> str:
        made.append(to)
        return to

    @perdure.tool(risk="low")
    async def combined() -> str:
        return await send("a")

    @perdure.agent
    async def host() -> list[str]:
        first = await combined()
        await cut.here()
        return [first, await send("b")]

    task = await killed_and_resumed(house, cut, host)

    assert await task.result() == ["a", "b"]
    assert made == ["a", "b"]
    assert house.kinds(task).count("question_opened") == 0


async def test_a_question_about_drift_is_taken_back_when_a_branch_comes_to_its_record_after_all(
    house: Theatre, cut: Cut
) -> None:
    made: list[int] = []

    @perdure.tool
    async def act(n: int) -> int:
        made.append(n)
        return n

    @perdure.agent
    async def host() -> list[int]:
        async def slow() -> int:
            await asyncio.sleep(60)  # what no record answers, and so takes as long again
            found = await act(1)
            await cut.here()
            return found

        async def quick() -> int:
            if len(house.actors) == 1:
                await asyncio.sleep(1e6)
            return await act(2)

        return list(await asyncio.gather(slow(), quick()))

    task = await killed_and_resumed(house, cut, host)
    asked = await house.question()

    assert "lies unused" in asked.text
    assert await task.result() == [1, 2]
    assert made == [1, 2]
    assert (await house.client.question(asked.id)).status == "cancelled"
