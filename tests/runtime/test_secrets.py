"""Arguments declared secret never reach the database: not in a record, a question, an event or an error."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.settings import Settings
from tests import nasty
from tests.theatre import Theatre

KEY = 'sk-test-0123456789abcdef"\\\n\u00e9\u2603'
WRITTEN = (KEY, KEY.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"), "sk-test-0123456789abcdef")
QUICK = Settings(poll_ms=20, sweep_s=0.05, pulse_flush_ms=20)


class Refused(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was refused")
        self.key = key
        self.details = {"header": f"Bearer {key}"}


@perdure.tool(secret=["api_key"])
async def give(what: str, api_key: str) -> Any:
    return {"echo": f"{what} {api_key}", "in": [api_key, {"deep": api_key}], "raw": api_key.encode(), api_key: 1}


@perdure.tool(secret=["api_key"])
async def fail(api_key: str) -> None:
    raise Refused(api_key)


@perdure.tool(secret=["api_key"], approve=True)
async def ask_first(note: str, api_key: str) -> str:
    return note


@perdure.tool(secret=["api_key"], timeout=0.05, ambiguous=(Refused,))
async def unclear(note: str, api_key: str) -> str:
    raise Refused(api_key)


@perdure.tool(risk="low")
async def inner(header: str) -> str:
    return header


@perdure.tool(risk="low", secret=["api_key"])
async def outer(api_key: str) -> str:
    return await inner(f"Bearer {api_key}")


@perdure.agent
async def child(header: str) -> str:
    return header


@perdure.tool(risk="low", secret=["api_key"])
async def tell(api_key: str) -> list[Any]:
    """Say the secret in every way that code inside a call can say something."""
    perdure.stream(f"streamed {api_key}")
    await perdure.message("tool", [f"said {api_key}", api_key.encode()])
    await perdure.event(f"kind {api_key}", {"with": api_key, api_key: 1})
    found = [await perdure.artifact(f"name {api_key}", data) for data in (f"x {api_key}", b"y " + api_key.encode())]
    read = [await perdure.read_artifact(sha256) for sha256 in found]
    asked = await perdure.ask(f"may {api_key}?", to=f"the owner of {api_key}")
    heard = await child.options(tags={"for": api_key})(f"Bearer {api_key}")
    keyed = await inner.options(key=f"key {api_key}")("keyed")
    named = await perdure.read(f"name {api_key}", lambda: "named")
    return [*read, asked, heard, keyed, named]


def files_of(folder: Path) -> bytes:
    """Everything that lies beside a database, read by another process: closing a file here would drop its locks."""
    paths = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    return subprocess.run(["cat", *paths], capture_output=True, check=True).stdout


def test_no_file_of_the_database_holds_the_text_of_a_secret(tmp_path: Path) -> None:
    seen: list[Any] = []

    @perdure.agent
    async def host() -> None:
        seen.append(await give("a", KEY))
        try:
            await fail(KEY)
        except Refused as refused:
            seen.append((str(refused), refused.key, refused.details))
        seen.append(await ask_first(f"note {KEY}", KEY))
        seen.append(await unclear(f"note {KEY}", KEY))
        seen.append(await outer(KEY))
        seen.append(await tell(KEY))
        await perdure.sleep(0.2)  # longer than streamed text takes to be stored

    told: list[Any] = []
    said: list[Any] = []

    async def main() -> None:
        nonlocal told, said
        app = perdure.App(str(tmp_path / "secrets.db"), agents=[host, child], settings=QUICK)
        async with app, app.worker():
            task = await app.start(host)
            answering = asyncio.ensure_future(_answer_all(app))
            await task.result()
            answering.cancel()
            told = [event.payload async for event in task.follow() if event.kind == "kind [secret]"]
            said = [(one.role, one.content) for one in await task.messages()]
            found = files_of(tmp_path)  # while the log is still there
            assert [form for form in WRITTEN if form.encode() in found] == []
        found = files_of(tmp_path)
        assert b"[secret]" in found
        assert all(form.encode() not in found for form in WRITTEN)

    asyncio.run(main())
    assert seen[0] == {
        "echo": "a [secret]",
        "in": ["[secret]", {"deep": "[secret]"}],
        "raw": b"[secret]",
        "[secret]": 1,
    }
    assert seen[1] == ("[secret] was refused", "[secret]", {"header": "Bearer [secret]"})
    assert seen[2] == "note [secret]"
    assert seen[4] == "Bearer [secret]"
    assert seen[5] == [b"x [secret]", b"y [secret]", "yes", "Bearer [secret]", "keyed", "named"]
    assert told == [{"with": "[secret]", "[secret]": 1}]
    assert said == [("tool", ["said [secret]", b"[secret]"])]


async def _answer_all(app: perdure.App) -> None:
    while True:
        for question in await app.questions():
            assert KEY not in question.text
            if question.kind == "call":
                await question.approve(by="ana")
            elif question.kind == "ask":
                await question.answer("yes", by="ana")
            else:
                await question.resolve(perdure.happened("found"), by="ana")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("secret", [*nasty.SECRETS.values(), "true", "1", "a", '"', "\\", "{", "$perdure", "null"])
async def test_a_secret_of_any_form_is_masked_without_breaking_the_record(house: Theatre, secret: str) -> None:
    @perdure.tool(secret=["api_key"])
    async def echo(what: Any, api_key: str) -> Any:
        return [what, f"key {api_key}", True, None, 1, {"a": 1.5}]

    @perdure.agent
    async def host() -> Any:
        return await echo({"n": 1}, secret)

    found = await house.play(host)

    assert len(found) == 6
    assert secret not in str(found[1]).removeprefix("key ")
    assert found[2:5] == [True, None, 1]


async def test_a_call_with_another_secret_finds_its_record_again(house: Theatre) -> None:
    made: list[str] = []
    reached = asyncio.Event()

    @perdure.tool(secret=["api_key"])
    async def act(n: int, api_key: str) -> int:
        made.append(api_key)
        return n

    @perdure.agent
    async def host() -> int:
        found = await act(7, f"key of today {len(house.actors)}")
        if len(house.actors) == 1:
            reached.set()
            await asyncio.sleep(1e6)
        return found

    first = await house.hire(host)
    task = await house.client.start(host)
    await reached.wait()
    house.kill(first)
    await house.hire(host)

    assert await task.result() == 7
    assert made == ["key of today 1"]
