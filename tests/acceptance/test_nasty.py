"""Values, names and keys that broke real systems, through everything an agent and a client can say, on both stores."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import BadInput, NotSerializable
from perdure.settings import Settings
from perdure.store import task_lists
from tests import nasty

QUICK = Settings(poll_ms=20, sweep_s=0.05)
GOOD = [*nasty.JSON_VALUES, *nasty.ENCODABLE]


@perdure.tool(risk="low")
async def echo(value: Any) -> Any:
    return value


@perdure.tool
async def echo_high(value: Any) -> Any:
    return value


class Nasty(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__("nasty")
        self.value = value


@perdure.tool(risk="low", retries=0)
async def fail(value: Any) -> None:
    raise Nasty(value)


@perdure.agent
async def child(value: Any) -> Any:
    return value


@perdure.agent
async def say_everything(value: Any) -> list[Any]:
    found = [value, await echo(value), await echo_high(value), await child(value)]
    try:
        await fail(value)
    except Nasty as nasty_error:
        if hasattr(nasty_error, "value"):
            found.append(nasty_error.value)
        else:
            assert len(str(value)) > 100_000  # An attribute that large is not kept.
    await perdure.message("user", value)
    await perdure.checkpoint({"state": value})
    await perdure.event("custom", {"value": value})
    found.append(await perdure.model(_model, value))
    return found


async def _model(value: Any) -> Any:
    return {"value": value}


@perdure.agent
async def listen() -> list[Any]:
    return [await perdure.receive("x"), await perdure.ask("What?", type=Any)]


@pytest.fixture(params=["sqlite", "postgres"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[perdure.App]:
    """An app that works, on each store."""
    where = str(tmp_path / "agents.db")
    if request.param == "postgres":
        where = request.getfixturevalue("postgres_url")
    opened = perdure.App(where, agents=[say_everything, child, listen, named], settings=QUICK)
    async with opened, opened.worker():
        yield opened


def same(found: Any, value: Any) -> bool:
    """Equal in value and in kind, at every depth."""
    if isinstance(value, list | tuple) and not isinstance(value, str):
        return isinstance(found, list | tuple) and len(found) == len(value) and all(map(same, found, value))
    if isinstance(value, dict):
        return isinstance(found, dict) and found.keys() == value.keys() and all(same(found[k], value[k]) for k in value)
    return type(found) is type(value) and bool(found == value)


@pytest.mark.slow(timeout_s=120)
async def test_every_value_comes_back_from_everything_that_is_said(app: perdure.App) -> None:
    started = [await app.start(say_everything, value) for value in GOOD]
    wrong: list[str] = []
    for value, task in zip(GOOD, started, strict=True):
        *found, answered = await task.result(timeout=60)
        if not all(same(one, value) for one in found) or not same(answered["value"], value):
            wrong.append(nasty.describe(value))
        (message,) = await task.messages()
        if not same(message.content, value):
            wrong.append(f"message {nasty.describe(value)}")

    assert wrong == []


@pytest.mark.slow(timeout_s=120)
async def test_every_value_comes_back_from_a_delivery_and_an_answer(app: perdure.App) -> None:
    wrong: list[str] = []
    for value in GOOD[::4]:
        task = await app.start(listen)
        await app.send(task.id, "x", value)
        question = await _question(app, task.id)
        await question.answer(value, by="ana")
        found = await task.result(timeout=60)
        if not all(same(one, value) for one in found):
            wrong.append(nasty.describe(value))

    assert wrong == []


async def _question(app: perdure.App, task_id: str) -> perdure.Question:
    async with asyncio.timeout(30):
        while True:
            for question in await app.questions():
                if question.task_id == task_id:
                    return question
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("place", range(len(nasty.REFUSED)))
async def test_a_value_that_no_store_can_hold_is_refused_before_anything_is_written(
    app: perdure.App, place: int
) -> None:
    value = nasty.REFUSED[place]
    before = app.store.read(task_lists.counts_by_status)

    with pytest.raises(NotSerializable) as refused:
        await app.start(say_everything, value)
    with pytest.raises(NotSerializable):
        await app.send("any task", "x", value)

    assert refused.value.path.startswith("$")
    assert app.store.read(task_lists.counts_by_status) == before


@perdure.agent
async def named(key: str) -> list[Any]:
    try:
        keyed = await echo.options(key=key)("keyed")
    except BadInput as refused:
        keyed = refused.field
    try:
        received = await perdure.receive(key, timeout=0)
    except TimeoutError:
        received = "nothing"
    except BadInput as refused:
        received = refused.field
    return [key, keyed, received]


@pytest.mark.slow(timeout_s=120)
async def test_every_name_is_kept_as_it_is_or_refused_at_the_door(app: perdure.App) -> None:
    by_key: dict[str, str] = {}
    for text in (*nasty.IDS, *nasty.TEXTS[:-1]):
        try:
            task = await app.start(named.options(key=text), text)
        except BadInput:
            continue
        assert (await app.start(named.options(key=text), text)).id == task.id
        found, keyed, received = await task.result(timeout=60)
        assert found == text
        assert keyed in ("keyed", "key")
        assert received in ("nothing", "name", "key")
        by_key[text] = task.id

    assert len(set(by_key.values())) == len(by_key) > 20


@pytest.mark.slow(timeout_s=120)
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_thousand_timeouts_leave_the_worker_as_it_was(tmp_path: Path, is_sync: bool) -> None:
    @perdure.tool(risk="low", timeout=0.001, retries=0)
    async def slow() -> None:
        await asyncio.sleep(10)

    @perdure.tool(risk="low", timeout=0.001, retries=0)
    def slow_in_a_thread() -> None:
        time.sleep(0.1)

    @perdure.agent
    async def host() -> int:
        late = 0
        for n in range(100):
            calls = [perdure.call((slow_in_a_thread if is_sync else slow).options(key=f"{n} {m}")) for m in range(10)]
            found = await perdure.gather(*calls, return_exceptions=True)
            late += sum(isinstance(one, TimeoutError) for one in found)
        return late

    opened = perdure.App(str(tmp_path / "agents.db"), agents=[host, child], settings=QUICK)
    async with opened, opened.worker():
        assert await opened.run(child, 1) == 1
        before = threading.active_count()
        late = await opened.run(host)
        async with asyncio.timeout(10):
            while threading.active_count() > before:
                await asyncio.sleep(0.01)
        assert await opened.run(child, 2) == 2

    assert late >= 900  # Some are back before it is looked at.
