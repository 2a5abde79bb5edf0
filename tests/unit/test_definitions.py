"""`@agent` and `@tool` give back real functions, refuse what cannot be kept, and never take less risk than was said."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
import perdure.sync
from perdure.definitions import (
    AgentCall,
    AgentDefinition,
    ToolCall,
    ToolDefinition,
    bind_arguments,
    call_of,
    definition_of,
    is_agent_call,
    tools_named,
    unbind_arguments,
)
from perdure.errors import BadInput
from perdure.policy.risk import Risk


@perdure.tool(risk="low")
async def search(query: str, *, limit: int = 10) -> list[str]:
    """Find pages."""
    return [query] * limit


@perdure.tool
def send(to: str) -> str:
    """Send mail."""
    return to


@perdure.agent
async def writer(topic: str, *others: str, **more: int) -> str:
    """Write about it."""
    return f"{topic} {others} {more}"


@perdure.agent
def clerk(topic: str) -> str:
    """File it."""
    return topic


class Asks:
    """Methods as rules, and as tools."""

    def asks(self, a: int, b: int = 1, *, c: int) -> bool:
        return a + b > c

    def asks_more(self, a: int) -> None: ...


def tool_of(tool: object) -> ToolDefinition:
    found = definition_of(tool)
    assert isinstance(found, ToolDefinition)
    return found


def agent_of(agent: object) -> AgentDefinition:
    found = definition_of(agent)
    assert isinstance(found, AgentDefinition)
    return found


# -- real functions ----------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "is_async"), [(search, True), (send, False), (writer, True), (clerk, False)])
def test_a_decorated_function_is_still_the_kind_of_function_it_was(
    function: Callable[..., Any], is_async: bool
) -> None:
    assert inspect.isfunction(function)
    assert inspect.iscoroutinefunction(function) is is_async


def test_name_docstring_module_and_signature_are_kept() -> None:
    assert search.__name__ == "search"
    assert inspect.getdoc(search) == "Find pages."
    assert search.__module__ == __name__
    assert list(inspect.signature(search).parameters) == ["query", "limit"]
    assert inspect.signature(writer).return_annotation == "str"


def test_options_give_back_a_real_function_as_well() -> None:
    again = search.options(key="k").options(timeout=3)

    assert inspect.iscoroutinefunction(again)
    assert inspect.signature(again) == inspect.signature(search)


async def test_outside_a_task_it_is_the_function() -> None:
    assert await search("a", limit=2) == ["a", "a"]
    assert send("team") == "team"
    assert await writer("a", "b", c=1) == "a ('b',) {'c': 1}"
    assert clerk.options(key="k", deadline=5)("a") == "a"


def test_a_method_can_be_a_tool() -> None:
    class Bank:
        def pay(self, amount: int) -> int:
            return amount

    pay = perdure.tool(risk="low")(Bank().pay)

    assert pay(3) == 3
    assert tool_of(pay).name == "pay"


# -- risk ------------------------------------------------------------------------------------------


def test_undeclared_is_high() -> None:
    assert tool_of(send).risk_of(("team",), {}) is Risk.HIGH


def test_an_agent_is_low_unless_it_says_otherwise() -> None:
    assert agent_of(writer).risk is Risk.LOW
    assert agent_of(perdure.agent(name="grave", risk="critical")(_plain)).risk is Risk.CRITICAL


def test_medium_must_promise_to_be_idempotent() -> None:
    with pytest.raises(BadInput, match="idempotent=True") as refused:
        perdure.tool(risk="medium")(_plain)

    assert refused.value.field == "risk"
    assert tool_of(perdure.tool(risk="medium", idempotent=True)(_plain)).risk_of((), {}) is Risk.MEDIUM


def test_risk_may_be_a_function_of_the_arguments() -> None:
    @perdure.tool(risk=lambda amount, **_: "low" if amount < 10 else "high")
    def pay(amount: int, to: str = "") -> None: ...

    assert tool_of(pay).risk_of((5,), {}) is Risk.LOW
    assert tool_of(pay).risk_of((50,), {"to": "ana"}) is Risk.HIGH


def test_a_function_of_the_arguments_may_take_them_in_any_way_that_fits() -> None:
    for fits in (
        lambda a, b=1, *, c: True,
        lambda a, *more, c: True,
        lambda *_, **__: True,
        lambda x, y=2, /, **by_name: True,
        lambda a, **_: True,
        lambda *, a, b=1, c: True,
        functools.partial(lambda limit, a, b=1, *, c: True, 5),
        Asks().asks,
    ):
        assert tool_of(perdure.tool(approve=fits)(_sized)).approve is fits


def test_a_function_of_the_arguments_may_take_those_of_a_method_or_any() -> None:
    def of_method(self: object, a: int) -> bool:
        return bool(a)

    def of_any(*_: object, **__: object) -> bool:
        return True

    assert tool_of(perdure.tool(approve=of_method)(Asks.asks_more)).approve is of_method
    assert tool_of(perdure.tool(approve=of_any)(wrong(writer).__wrapped__)).approve is of_any


def test_who_is_asked_may_be_named_wherever_anything_may_be_asked() -> None:
    for options in ({}, {"risk": "critical"}, {"risk": "low", "approve": True}, {"risk": lambda: "low"}):
        assert tool_of(perdure.tool(to="finance", **wrong(options))(_plain)).to == "finance"


@pytest.mark.parametrize("word", ["medium", "Low", "none", ""])
def test_a_risk_function_with_a_word_that_cannot_be_kept_is_refused_at_the_call(word: str) -> None:
    tool = tool_of(perdure.tool(risk=wrong(lambda: word))(_plain))

    with pytest.raises(BadInput) as refused:
        tool.risk_of((), {})

    assert refused.value.field == "risk"


# -- options ------------------------------------------------------------------------------------------


def test_options_add_up_and_leave_the_original_alone() -> None:
    chained = writer.options(key="k", priority=3).options(
        deadline=timedelta(minutes=1), delay=2, tags={"team": "a"}, background=True, item="i"
    )

    options = agent_call(chained.bind("t")).options
    assert (options.key, options.priority, options.deadline, options.delay_s) == ("k", 3, 60.0, 2.0)
    assert (options.tags, options.background, options.item) == ({"team": "a"}, True, "i")
    assert agent_call(writer.bind("t")).options.key is None


def test_a_later_option_replaces_an_earlier_one_of_its_name() -> None:
    options = tool_call(send.options(key="a", retries=1).options(key="b").bind("x")).options

    assert (options.key, options.retries, options.timeout_s) == ("b", 1, None)


def test_an_instant_is_a_deadline_too() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    assert agent_call(writer.options(deadline=moment).bind("t")).options.deadline == moment


def agent_call(bound: perdure.Bound[Any]) -> AgentCall:
    assert isinstance(bound.call, AgentCall)
    return bound.call


def tool_call(bound: perdure.Bound[Any]) -> ToolCall:
    assert isinstance(bound.call, ToolCall)
    return bound.call


# -- refusals: what was wrong, by its name ------------------------------------------------------------


def _plain() -> None: ...


def _sized(a: int, b: int = 1, *, c: int) -> None: ...


async def _risk_told_later() -> str:
    return "low"


async def _generate() -> Any:
    yield 1


def wrong(value: object) -> Any:
    """A value that the type checkers would refuse: not everybody runs one."""
    return value


def refusals() -> list[tuple[str, Callable[[], object]]]:
    """What is refused, each with the name of what was wrong."""
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  # On purpose.
    return [
        ("risk", lambda: perdure.tool(risk=wrong(5))(_plain)),
        ("risk", lambda: perdure.tool(risk=wrong("Low"))(_plain)),
        ("risk", lambda: perdure.agent(risk=wrong("hihg"))(_plain)),
        ("risk", lambda: perdure.agent(risk=wrong(""))(_plain)),
        ("risk", lambda: perdure.tool(risk=wrong(lambda a: "low"))(_plain)),
        ("risk", lambda: perdure.tool(risk=wrong(_risk_told_later))(_plain)),
        ("approve", lambda: perdure.tool(approve=wrong("no"))(_plain)),
        ("approve", lambda: perdure.tool(approve=wrong(3))(_plain)),
        ("approve", lambda: perdure.tool(approve=wrong(None))(_plain)),
        ("approve", lambda: perdure.tool(approve=lambda: True)(_sized)),
        ("approve", lambda: perdure.tool(approve=lambda a, b: True)(_sized)),
        ("approve", lambda: perdure.tool(approve=lambda a, b=1: True)(_sized)),
        ("approve", lambda: perdure.tool(approve=lambda a, b=1, *, c, d: True)(_sized)),
        ("to", lambda: perdure.tool(risk="low", to="finance")(_plain)),
        ("idempotent", lambda: perdure.tool(idempotent=wrong("no"))(_plain)),
        ("timeout", lambda: perdure.tool(timeout=-1)(_plain)),
        ("timeout", lambda: perdure.tool(timeout=True)(_plain)),
        ("timeout", lambda: send.options(timeout=float("nan"))),
        ("retries", lambda: perdure.tool(retries=-1)(_plain)),
        ("retries", lambda: perdure.agent(retries=wrong("3"))(_plain)),
        ("retries", lambda: send.options(retries=2_000)),
        ("ambiguous", lambda: perdure.tool(ambiguous=wrong(("TimeoutError",)))(_plain)),
        ("ambiguous", lambda: perdure.tool(ambiguous=wrong(TimeoutError))(_plain)),
        ("secret", lambda: perdure.tool(secret=wrong(5))(_plain)),
        ("lifespan", lambda: perdure.App(agents=[writer], lifespan=wrong(5))),
        ("notify", lambda: perdure.App(agents=[writer], notify=wrong("me"))),
        ("aws", lambda: perdure.sync.gather(wrong([clerk.bind("a")]))),
        ("reconcile", lambda: perdure.tool(reconcile=wrong("find"))(_plain)),
        ("reconcile", lambda: perdure.tool(risk="critical", reconcile=lambda _doubt: None)(_plain)),
        ("secret", lambda: perdure.tool(secret=["api_key"])(_plain)),
        ("secret", lambda: perdure.tool(secret="api_key")(_plain)),
        ("resume", lambda: perdure.agent(resume=wrong("never"))(_plain)),
        ("drift", lambda: perdure.agent(drift=wrong("fine"))(_plain)),
        ("deadline", lambda: perdure.agent(deadline=-5)(_plain)),
        ("deadline", lambda: writer.options(deadline=naive)),
        ("deadline", lambda: writer.options(deadline=wrong("soon"))),
        ("delay", lambda: writer.options(delay=1e12)),
        ("priority", lambda: writer.options(priority=10)),
        ("budget", lambda: perdure.agent(budget=wrong({"tokens": 5}))(_plain)),
        ("budget", lambda: perdure.agent(budget=wrong(5))),
        ("version", lambda: perdure.agent(version=wrong(2))),
        ("name", lambda: perdure.agent(name=wrong(2))),
        ("name", lambda: perdure.tool(name=wrong(2))),
        ("name", lambda: perdure.agent(name="")),
        ("name", lambda: perdure.tool(name=" ")),
        ("url", lambda: perdure.App(wrong(42), agents=[writer])),
        ("url", lambda: perdure.App(agents=[writer]).use(wrong(Path("x.db")))),
        ("agents", lambda: perdure.App(agents=wrong(3))),
        ("agents", lambda: perdure.App(agents=wrong(writer))),
        ("agents", lambda: perdure.App(agents=wrong("writer"))),
        ("settings", lambda: perdure.App(agents=[writer], settings=wrong({"lease_s": 5}))),
        ("fn", lambda: perdure.tool(functools.partial(send, "a"))),
        ("fn", lambda: perdure.agent(len)),
        ("fn", lambda: perdure.tool(_generate)),
        ("fn", lambda: perdure.tool(wrong("search"))),
        ("fn", lambda: perdure.tool(search)),
        ("fn", lambda: perdure.tool(risk="low")(writer)),
        ("arguments", lambda: wrong(search).bind(limit=3)),
        ("arguments", lambda: wrong(search).bind("a", lmit=3)),
        ("arguments", lambda: wrong(clerk).bind("a", "b")),
        ("agent", lambda: call_of(_plain)),
        ("key", lambda: perdure.model.options(key="")),
    ]


@pytest.mark.parametrize(("field", "attempt"), refusals())
def test_a_bad_value_is_refused_with_its_name(field: str, attempt: Callable[[], object]) -> None:
    with pytest.raises(BadInput) as refused:
        attempt()

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("attempt", "text"),
    [
        (lambda: perdure.tool(wrong("search")), "to name it write @tool(name='search') above its def"),
        (lambda: perdure.agent(len), "write one that calls it: @agent above `async def …`"),
        (lambda: perdure.agent(budget=wrong(5)), "budget is 5; give a perdure.Budget"),
        (
            lambda: perdure.tool(approve=lambda a: True)(_sized),
            "unexpected keyword argument 'c' when it is called as the tool may be, with a, c: give it the parameters",
        ),
        (
            lambda: perdure.tool(risk="low", to="finance")(_plain),
            "nobody is ever asked about _plain, which is low risk and needs no approval: give approve=True too",
        ),
    ],
)
def test_a_refusal_says_what_to_write(attempt: Callable[[], object], text: str) -> None:
    with pytest.raises(BadInput) as refused:
        attempt()

    assert text in str(refused.value)


def test_an_unknown_option_is_told_by_the_name_of_what_it_was_given_to() -> None:
    with pytest.raises(TypeError, match=r"^writer\.options\(\) got an unexpected keyword argument 'ky'"):
        wrong(writer).options(ky=1)
    with pytest.raises(TypeError, match=r"^send\.options\(\) got an unexpected keyword argument 'ky'"):
        wrong(send).options(ky=1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([writer.bind("a")], "write gather(*calls)"),
        (writer, "writer is a function: give writer(…)"),
        ("writer", "'writer' is none: give f(…) or f.bind(…)"),
    ],
)
async def test_gather_says_how_it_is_called(given: object, text: str) -> None:
    with pytest.raises(BadInput) as refused:
        await perdure.gather(wrong(given))

    assert text in str(refused.value)
    assert refused.value.field == "aws"


# -- arguments ---------------------------------------------------------------------------------------


def test_equal_calls_look_equal_however_they_are_written() -> None:
    def fn(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    assert bind_arguments(fn, (1, 2), {}) == bind_arguments(fn, (), {"b": 2, "a": 1}) == {"a": 1, "b": 2}
    assert bind_arguments(fn, (1, 2, 3, 4), {"z": 5}) == {"a": 1, "b": 2, "rest": [3, 4], "z": 5}


def test_arguments_come_back_as_they_went_in() -> None:
    def fn(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> object:
        return (a, b, rest, c, more)

    args, kwargs = unbind_arguments(fn, bind_arguments(fn, (1, 5, 6), {"c": 7, "z": 8}))

    assert fn(*args, **kwargs) == (1, 5, (6,), 7, {"z": 8})


def test_a_function_without_a_signature_keeps_its_arguments() -> None:
    assert bind_arguments(dict.fromkeys, ([1],), {}) in ({"args": [[1]]}, {"iterable": [1]})


# -- definitions ---------------------------------------------------------------------------------------


async def test_the_coroutine_of_an_agent_is_known_before_it_is_awaited() -> None:
    from_agent, from_options = writer("a"), writer.options(key="k")("a")
    from_tool, plain = search("a"), asyncio.sleep(0)

    found = [is_agent_call(one) for one in (from_agent, from_options, from_tool, plain)]

    assert found == [True, True, False, False]
    await asyncio.gather(from_agent, from_options, from_tool, plain)


def test_a_changed_function_has_another_hash() -> None:
    def first() -> int:
        return len("a")

    def second() -> int:
        return hash("a")

    hashes = {agent_of(perdure.agent(name="a")(fn)).definition_hash for fn in (first, second)}

    assert len(hashes) == 2


def test_a_name_of_ones_own_replaces_the_function_s() -> None:
    assert agent_of(perdure.agent(name="bob")(_plain)).name == "bob"
    assert tool_of(perdure.tool(name="wire")(_plain)).name == "wire"


def test_a_tool_is_found_by_its_name_for_as_long_as_somebody_has_it() -> None:
    @perdure.tool(name="nowhere else")
    def act() -> str:
        return ""

    assert tools_named("nowhere else") == [definition_of(act.options(retries=1))]

    del act
    gc.collect()

    assert tools_named("nowhere else") == []
