"""A world plays an agent: stand-ins, answers, virtual time, and what a play tells."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

import perdure
from perdure.testing import NOBODY, World

WEEK_S = 7 * 86_400


@perdure.tool(risk="low")
async def search(query: str) -> list[str]:
    return [query, query.upper()]


@perdure.tool(approve=lambda order, amount: amount > 100, to="finance", timeout=30)
async def refund(order: str, amount: int) -> str:
    raise AssertionError("the real tool must not run")


@perdure.tool
def wire(to: str) -> str:
    raise AssertionError("the real tool must not run")


@perdure.agent
async def support(order: str) -> str:
    if not await perdure.ask(f"Is the customer of {order} entitled?", type=bool, to="support"):
        return "not entitled"
    try:
        return await refund(order, 250)
    except perdure.Denied as no:
        return f"refused by {no.by}"


def world(**answers: bool | str) -> World:
    return World(
        tools={refund: lambda order, amount: f"r-{order}-{amount}"},
        answers={"entitled": answers.get("entitled", True), refund: answers.get("refund", "approve")},
    )


async def test_a_stand_in_runs_in_place_of_the_tool_and_its_arguments_are_told() -> None:
    played = await world().play(support, "o-7")

    assert played.status == "completed"
    assert played.result == "r-o-7-250"
    assert played.calls(refund) == [{"order": "o-7", "amount": 250}]
    assert played.calls(search) == []


async def test_a_no_is_respected_and_nothing_runs() -> None:
    played = await world(refund="deny").play(support, "o-7")

    assert played.result == "refused by world"
    assert played.calls(refund) == []


async def test_an_answer_is_found_by_words_of_the_question() -> None:
    assert (await world(entitled=False).play(support, "o-7")).result == "not entitled"


async def test_more_words_win_over_fewer_and_a_tool_over_words() -> None:
    answers: dict[object, object] = {"o-7": False, "customer of O-7 entitled": True, "may refund": "deny"}

    by_words = await World(tools={refund: lambda order, amount: "r"}, answers=answers).play(support, "o-7")  # type: ignore[arg-type]  # a dict is invariant
    answers[refund] = "approve"
    by_tool = await World(tools={refund: lambda order, amount: "r"}, answers=answers).play(support, "o-7")  # type: ignore[arg-type]  # a dict is invariant

    assert by_words.result == "refused by world"
    assert by_tool.result == "r"


async def test_an_unanswered_question_ends_the_play_and_is_named() -> None:
    played = await World(tools={refund: lambda order, amount: "r"}).play(support, "o-7")

    assert played.status == "waiting"
    assert played.questions == ("Is the customer of o-7 entitled?",)
    with pytest.raises(AssertionError, match="Is the customer of o-7 entitled"):
        _ = played.result


@pytest.mark.parametrize("deadline_s", [1, 600])
async def test_an_unanswered_question_ends_the_play_before_the_deadline_would(deadline_s: float) -> None:
    @perdure.agent(deadline=deadline_s)
    async def hurried() -> list[object]:
        return list(await perdure.gather(perdure.ask("Entitled?", type=bool), perdure.sleep(3600)))

    @perdure.agent
    async def lead() -> list[object]:
        return await hurried()

    for agent in (hurried, lead):
        played = await World(answers={"entilted": True}).play(agent)

        assert (played.status, played.questions) == ("waiting", ("Entitled?",))
        with pytest.raises(AssertionError, match=r"waits for: Entitled\? \(World\(answers=…\) has none that fits\)"):
            _ = played.result


async def test_a_question_left_to_nobody_lets_the_deadline_come() -> None:
    @perdure.agent(deadline=600)
    async def hurried() -> bool:
        return await perdure.ask("Entitled?", type=bool)

    assert (await World(answers={"entitled": NOBODY}).play(hurried)).status == "timed_out"


async def test_a_question_that_nobody_answers_expires() -> None:
    @perdure.agent
    async def patient() -> str:
        try:
            return await perdure.ask("Which one?", expires=3 * 86_400)
        except perdure.Expired:
            return (await perdure.now()).isoformat()

    played = await World(answers={"Which": NOBODY}).play(patient)

    asked_at = datetime.fromtimestamp(1_790_000_000, UTC)
    assert timedelta(days=3) <= datetime.fromisoformat(played.result) - asked_at < timedelta(days=3, seconds=5)


async def test_a_week_of_sleep_plays_at_once() -> None:
    @perdure.agent
    async def sleeper() -> float:
        before = await perdure.now()
        await perdure.sleep(WEEK_S)
        return (await perdure.now() - before).total_seconds()

    started = time.monotonic()
    played = await World().play(sleeper)

    assert WEEK_S <= played.result < WEEK_S + 5
    assert time.monotonic() - started < 5


async def test_branches_that_sleep_beside_a_working_one_are_woken_in_time() -> None:
    @perdure.tool(risk="low")
    async def work(hours: int) -> str:
        await asyncio.sleep(hours * 3600)
        return "worked"

    @perdure.agent
    async def branches() -> list[str]:
        order = []

        async def sleep_then_tell() -> None:
            await perdure.sleep(1800)
            order.append("slept")

        async def work_then_tell() -> None:
            order.append(await work(1))

        await perdure.gather(sleep_then_tell(), work_then_tell())
        return order

    assert (await World().play(branches)).result == ["slept", "worked"]


async def test_a_deadline_passes_in_virtual_time() -> None:
    @perdure.agent
    async def late() -> None:
        await perdure.sleep(WEEK_S)

    played = await World().play(late.options(deadline=60))

    assert played.status == "timed_out"
    with pytest.raises(perdure.TaskTimedOut):
        _ = played.result


async def test_a_message_that_never_comes_leaves_the_task_waiting() -> None:
    @perdure.agent
    async def waits() -> str:
        return await perdure.receive("paid", type=str)

    played = await World().play(waits)

    assert (played.status, played.questions) == ("waiting", ())


async def test_a_tool_above_low_risk_without_a_stand_in_is_refused_with_the_fix() -> None:
    @perdure.agent
    async def careless() -> str:
        try:
            return await perdure.call(wire, "me")
        except Exception:  # noqa: BLE001  # A careless agent.
            return "swallowed"

    with pytest.raises(perdure.BadInput, match=r"World\(tools=\{wire: fn\}\)") as refused:
        await World().play(careless)

    assert refused.value.field == "tools"


async def test_a_low_tool_without_a_stand_in_really_runs() -> None:
    @perdure.agent
    async def searches() -> list[str]:
        return await search("x")

    played = await World().play(searches)

    assert played.result == ["x", "X"]
    assert played.calls(search) == [{"query": "x"}]


async def test_a_tool_may_stand_in_for_itself() -> None:
    @perdure.tool
    async def send(to: str) -> str:
        return f"sent to {to}"

    @perdure.agent
    async def writer() -> str:
        return await send("ana")

    played = await World(tools={send: send}).play(writer)

    assert played.result == "sent to ana"
    assert played.calls(send) == [{"to": "ana"}]


async def test_a_synchronous_tool_and_a_stand_in_may_be_of_either_kind() -> None:
    async def later(to: str) -> str:
        await asyncio.sleep(10)
        return f"sent to {to}"

    @perdure.agent
    async def sends() -> list[str]:
        return [await perdure.call(wire, "a"), await refund("o", 1)]

    played = await World(tools={wire: later, refund: lambda order, amount: "r"}).play(sends)

    assert played.result == ["sent to a", "r"]


async def test_a_synchronous_agent_plays_in_a_thread_of_its_own() -> None:
    @perdure.agent
    def blocking(to: str) -> str:
        return f"{wire(to)} from {threading.current_thread().name}"

    played = await World(tools={wire: lambda to: to.upper()}).play(blocking, "a")

    assert played.result == "A from perdure-blocking"


async def test_a_child_is_met_when_it_is_called() -> None:
    @perdure.agent
    async def researcher(topic: str) -> str:
        await perdure.sleep(3600)
        return f"about {topic}"

    @perdure.agent
    async def lead() -> list[str]:
        return list(await perdure.gather(researcher("a"), researcher("b")))

    assert (await World().play(lead)).result == ["about a", "about b"]


async def test_a_result_comes_back_as_the_type_it_had() -> None:
    @perdure.agent
    async def finds() -> Found:
        return Found("a", 2)

    assert (await World().play(finds)).result == Found("a", 2)


async def test_a_failing_agent_raises_when_its_result_is_wanted() -> None:
    @perdure.agent
    async def fails() -> None:
        raise ValueError("no such order")

    played = await World().play(fails)

    assert played.status == "failed"
    with pytest.raises(perdure.TaskFailed, match="no such order"):
        _ = played.result


async def test_a_call_that_timed_out_is_answered_by_what_the_world_saw() -> None:
    started = 0

    async def slow_once(order: str, amount: int) -> str:
        nonlocal started
        started += 1
        await asyncio.sleep(60 if started == 1 else 1)
        return f"try {started}"

    @perdure.agent
    async def pays() -> str:
        return await refund("o", 1)

    assert (await World(tools={refund: slow_once}).play(pays)).result == "try 2"


async def test_a_call_that_times_out_for_ever_ends_as_an_open_question() -> None:
    @perdure.agent
    async def pays() -> str:
        return await refund("o", 1)

    played = await World(tools={refund: lambda order, amount: asyncio.sleep(60)}).play(pays)

    assert played.status == "waiting"
    assert "did refund" in played.questions[0]


async def test_a_verdict_of_the_test_goes_before_what_the_world_saw() -> None:
    @perdure.agent
    async def pays() -> str:
        return await refund("o", 1)

    slow = World(tools={refund: lambda order, amount: asyncio.sleep(60)}, answers={refund: perdure.happened("r-88")})

    assert (await slow.play(pays)).result == "r-88"


async def test_an_agent_without_an_end_is_an_error() -> None:
    @perdure.agent
    async def loops() -> None:
        while True:
            await asyncio.sleep(0)

    playing = asyncio.ensure_future(World().play(loops))
    await asyncio.sleep(0.05)
    playing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await gone("perdure-play")


async def test_two_plays_of_one_world_are_alike_and_side_by_side() -> None:
    stage = world()

    first, second = await asyncio.gather(stage.play(support, "a"), stage.play(support, "a"))

    assert (first.result, second.result) == ("r-a-250", "r-a-250")
    assert first.commits == second.commits


@pytest.mark.parametrize("field", ["tools", "answers"])
async def test_what_is_no_tool_is_refused(field: str) -> None:
    with pytest.raises(perdure.BadInput, match="is no tool"):
        World(**{field: {world: "approve"}})  # type: ignore[arg-type]  # that is the point


async def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(perdure.BadInput, match="is no agent"):
        await World().play(search, "x")


@dataclass(frozen=True)
class Found:
    name: str
    hits: int


async def gone(thread_name: str) -> bool:
    """Whether a thread ends within a few seconds."""
    for _ in range(500):
        if all(thread.name != thread_name for thread in threading.enumerate()):
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_tool_is_given_as_itself_and_answered_with_a_word_that_means_something() -> None:
    with pytest.raises(perdure.BadInput, match="the decorated function itself, not its name 'refund'"):
        World(tools={"refund": lambda order, amount: "r-1"})  # type: ignore[dict-item]  # What is wrong here.
    with pytest.raises(perdure.BadInput, match="'yes' is no answer about a call of refund; give 'approve' or 'deny'"):
        World(answers={refund: "yes"})


async def test_a_step_needs_a_stand_in_too_and_has_it_by_its_name() -> None:
    paid: list[str] = []

    def pay(order: str) -> str:
        paid.append(order)
        return "paid for real"

    @perdure.agent
    async def pays(order: str) -> str:
        return await perdure.step("pay", pay, order)

    with pytest.raises(perdure.BadInput, match=r"pay is above low risk and has no stand-in .*steps=\{'pay': fn\}"):
        await World().play(pays, "o-1")
    world = World(steps={"pay": lambda order: f"paid {order}"})
    played = await world.play(pays, "o-1")
    plays = await world.crash_everywhere(pays, "o-1")

    assert played.result == "paid o-1"
    assert played.calls("pay") == [{"order": "o-1"}]
    assert plays and not paid


@dataclass
class Lookup:
    """A callable that has no hash."""

    base: str

    async def __call__(self, query: str) -> str:
        return self.base + query


async def test_a_step_may_be_of_a_callable_without_a_hash_and_its_stand_in_too() -> None:
    @perdure.agent
    async def reads() -> str:
        return await perdure.read("look", Lookup("real/"), "q")

    assert (await World().play(reads)).result == "real/q"
    assert (await World(steps={"look": Lookup("played/")}).play(reads)).result == "played/q"


async def test_a_stand_in_of_a_step_is_none_of_a_tool_that_has_the_same_name() -> None:
    @perdure.agent
    async def searches() -> list[object]:
        return [await search("a"), await perdure.read("search", str.upper, "b")]

    played = await World(steps={"search": lambda text: f"played {text}"}).play(searches)

    assert played.result == [["a", "A"], "played b"]


class Bank:
    """What an app's lifespan opens."""

    async def balance(self) -> int:
        return 7


@perdure.tool(risk="low")
async def balance() -> int:
    return await perdure.deps(Bank).balance()


@perdure.agent
async def asks_the_bank() -> int:
    return await balance()


@pytest.mark.parametrize("deps", [Bank(), [object(), Bank()], (Bank(),)], ids=["one", "list", "tuple"])
async def test_a_tool_that_really_runs_finds_what_it_needs_in_the_world(deps: object) -> None:
    world = World(deps=deps)

    assert (await world.play(asks_the_bank)).result == 7
    assert all(play.result == 7 for play in await world.crash_everywhere(asks_the_bank))


async def test_what_a_tool_needs_and_its_world_has_not_is_named_with_the_fix() -> None:
    played = await World().play(asks_the_bank)

    assert played.error is not None
    assert played.error.message == "this world has no Bank for perdure.deps to find: World(deps=Bank(…))"


async def test_a_play_is_shown_by_how_it_ended() -> None:
    world = World(tools={refund: lambda order, amount: "r-1"}, answers={"entitled": True, refund: "approve"})

    played = await world.play(support, "o-7")

    assert repr(played) == f'<Play completed: "r-1", {len(played.commits)} commits>'
