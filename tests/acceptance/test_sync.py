"""Synchronous agents: the same promises as asynchronous ones, kept in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import perdure.sync as perdure
from perdure.errors import NotInTask, WrongThread
from perdure.settings import Settings

BRIEFLY = Settings(poll_ms=20, sweep_s=0.02)
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    """What tools did, anew for each test."""
    made.clear()


def new_app(tmp_db: Path, *agents: perdure.SyncAgent[..., object], settings: Settings = BRIEFLY) -> perdure.App:
    return perdure.App(str(tmp_db), agents=agents, settings=settings)


def ask_model(prompt: str) -> dict[str, object]:
    made.append(f"model {prompt}")
    return {"text": prompt.upper(), "usage": {"input_tokens": 7, "output_tokens": 2}}


@perdure.tool(risk="low")
def search(query: str) -> list[str]:
    made.append(f"search {query}")
    return [query, query + "!"]


@perdure.tool(risk="low")
def research(query: str) -> int:
    """A tool that only combines others."""
    return len(search(query)) + len(search(query + "2"))


@perdure.tool
def send(to: str) -> str:
    made.append(f"send {to}")
    return f"m-{perdure.current().token[:3]}"


@perdure.agent
def double(number: int) -> int:
    return number * 2


@perdure.agent
def everything(question: str) -> dict[str, object]:
    perdure.message("user", question)
    found = perdure.model(ask_model, question)
    perdure.event("noted", {"question": question})
    perdure.stream("partial")
    perdure.usage(input_tokens=1)
    perdure.checkpoint({"at": 1})
    return {
        "model": found["text"],
        "research": research(question),
        "twice": perdure.gather(double.bind(2), double.bind(3)),
        "sent": send("team")[:2],
        "read": perdure.read("limit", lambda: 5),
        "step": perdure.step("book", made.append, "booked"),
        "artifact": len(perdure.artifact("page", b"text")),
        "moment": perdure.now().isoformat(),
        "id": str(perdure.uuid()),
        "number": perdure.random().random(),
        "attempt": perdure.current().attempt,
    }


# -- the whole, inside and outside a task -----------------------------------------------------


def test_a_second_run_with_the_same_key_gives_the_same_result_and_calls_nothing(tmp_db: Path) -> None:
    app = new_app(tmp_db, everything, double)

    first = app.run(everything.options(key="k"), "owls")
    calls = list(made)
    second = app.run(everything.options(key="k"), "owls")

    assert first == second
    assert made == calls == ["model owls", "search owls", "search owls2", "send team", "booked"]
    assert first["twice"] == [4, 6]


def test_outside_a_task_it_just_runs_in_the_calling_thread() -> None:
    here = threading.current_thread()

    where = perdure.model(threading.current_thread)

    assert where is here
    assert perdure.read("name", threading.current_thread) is here
    assert perdure.step("name", threading.current_thread) is here
    assert perdure.call(research, "owls") == 4
    assert list(perdure.gather(search.bind("a"), search.bind("b"))) == [["a", "a!"], ["b", "b!"]]
    assert perdure.last_checkpoint() is None
    assert perdure.now().tzinfo is not None


def test_outside_a_task_an_asynchronous_function_is_waited_for() -> None:
    async def answer(text: str) -> str:
        return text + "!"

    assert perdure.model(answer, "hi") == "hi!"


def test_outside_a_task_nobody_can_be_asked() -> None:
    with pytest.raises(NotInTask):
        perdure.ask("really?")
    with pytest.raises(NotInTask):
        perdure.receive("paid")


# -- gather ----------------------------------------------------------------------------------


def test_gather_runs_everything_at_once(tmp_db: Path) -> None:
    together = threading.Barrier(3, timeout=2)

    @perdure.tool(risk="low")
    def meet(name: str) -> str:
        together.wait()
        return name

    @perdure.agent
    def host() -> list[str]:
        return list(perdure.gather(meet.bind("a"), meet.bind("b"), meet.options(key="c").bind("c")))

    assert new_app(tmp_db, host).run(host) == ["a", "b", "c"]


def test_gather_waits_for_all_and_then_raises_what_failed(tmp_db: Path) -> None:
    @perdure.tool(risk="low", retries=0)
    def fail(text: str) -> str:
        raise KeyError(text)

    @perdure.agent
    def host() -> list[str]:
        try:
            perdure.gather(fail.bind("a"), search.bind("b"), fail.bind("c"))
        except ExceptionGroup as group:
            # The same stand-ins as live and on replay: caught by the original class, and by ToolError.
            return [str(one) for one in group.exceptions if isinstance(one, KeyError)]
        return []

    assert new_app(tmp_db, host).run(host) == ["'a'", "'c'"]
    assert made == ["search b"]


def test_gather_can_hand_errors_back(tmp_db: Path) -> None:
    @perdure.tool(risk="low", retries=0)
    def fail() -> list[str]:
        raise ValueError("no")

    @perdure.agent
    def host() -> list[str]:
        found = perdure.gather(fail.bind(), search.bind("b"), return_exceptions=True)
        return [type(one).__name__ for one in found]

    assert new_app(tmp_db, host).run(host) == ["ValueError", "list"]


def test_gather_refuses_what_was_called_already() -> None:
    called: Any = search("a")

    with pytest.raises(perdure.BadInput, match=r"f\.bind"):
        perdure.gather(called)


def test_children_of_one_gather_are_waited_for_as_one(tmp_db: Path) -> None:
    @perdure.agent
    def child(name: str) -> str:
        return str(perdure.receive(name))

    @perdure.agent
    def parent() -> list[str]:
        return list(perdure.gather(child.bind("a"), child.bind("b")))

    app = new_app(tmp_db, parent, child)
    with app, app.worker():
        task = app.start(parent)
        waiting = _until_waiting(app, 3)

        for one in waiting:
            if one.agent == "child":
                app.send(one.id, "a", 1)
                app.send(one.id, "b", 2)
        result = task.result(timeout=20)

    (of_parent,) = [one.waiting_for for one in waiting if one.agent == "parent"]
    assert len(of_parent) == 1
    assert len(of_parent[0].keys) == 2
    assert result == ["1", "2"]


def _until_waiting(app: perdure.App, count: int) -> list[perdure.Task]:
    """Until so many tasks are set aside."""
    while True:
        found = app.tasks(status="waiting")
        if len(found) == count:
            return found
        threading.Event().wait(0.01)


# -- the client ------------------------------------------------------------------------------


def test_a_client_starts_asks_and_answers(tmp_db: Path) -> None:
    @perdure.tool(approve=True, to="finance")
    def pay(amount: int) -> str:
        made.append(f"pay {amount}")
        return "paid"

    @perdure.agent
    def buyer(amount: int) -> str:
        sure = perdure.ask("sure?", type=bool, to="support")
        news = perdure.receive("price", type=int)
        return f"{sure} {news} {pay(amount)}"

    app = new_app(tmp_db, buyer)
    with app, app.worker(), perdure.Client(str(tmp_db), settings=BRIEFLY) as client:
        task = client.start(buyer, 5)
        client.send(task.id, "price", 4, key="p-1")
        _question(client, "support").answer(True, by="ana")
        asked = _question(client, "finance")
        asked.approve(by="ana")
        kinds = [event.kind for event in task.follow()]

        assert task.result(timeout=20) == "True 4 paid"
        assert (asked.kind, asked.tool, asked.args, asked.task_id) == ("call", "pay", {"amount": 5}, task.id)
        assert client.question(asked.id).status == "approved"
        assert task.info().status == "completed"
        assert kinds[0] == "task_admitted"
        assert kinds[-1] == "task_completed"
        assert [step.name for step, _ in task.steps() if step.key] == ["ask", "receive", "pay"]
        assert client.task(task.id).messages() == []
        assert not client.task(task.id).cancel("too late")


def _question(client: perdure.Client, to: str) -> perdure.Question:
    while True:
        for question in client.questions(to=to):
            return question
        threading.Event().wait(0.01)


def test_lifespan_and_notify_are_ordinary_functions(tmp_db: Path) -> None:
    class Bank:
        is_open = True

    bank = Bank()
    told: list[str] = []

    @contextmanager
    def opened() -> Iterator[Bank]:
        yield bank
        bank.is_open = False

    def answer(question: perdure.Question) -> None:
        told.append(question.text)
        question.answer("fine", by="bot")

    @perdure.agent
    def customer() -> str:
        return f"{perdure.deps(Bank).is_open} {perdure.ask('how are you?')}"

    app = perdure.App(str(tmp_db), agents=[customer], lifespan=opened, notify=answer, settings=BRIEFLY)

    assert app.run(customer) == "True fine"
    assert set(told) == {"how are you?"}
    assert not bank.is_open


def test_a_failed_task_raises_its_error(tmp_db: Path) -> None:
    @perdure.agent(retries=0)
    def broken() -> None:
        raise ValueError("boom")

    with pytest.raises(perdure.TaskFailed, match="boom"):
        new_app(tmp_db, broken).run(broken)


def test_an_app_that_is_done_leaves_no_thread(tmp_db: Path) -> None:
    before = set(threading.enumerate())

    app = new_app(tmp_db, double)
    app.run(double, 2)

    assert {one for one in threading.enumerate() if one.name.startswith("perdure")} <= before


def test_threads_that_run_one_app_do_so_side_by_side(tmp_db: Path) -> None:
    together = threading.Barrier(3, timeout=20)
    may_end = {name: threading.Event() for name in "abc"}
    results: dict[str, object] = {}

    @perdure.tool
    def pay(name: str) -> str:
        made.append(name)
        together.wait()
        may_end[name].wait(20)
        return f"paid {name}"

    @perdure.agent
    def buyer(name: str) -> str:
        return pay(name)

    app = new_app(tmp_db, buyer)

    def run(name: str) -> None:
        try:
            results[name] = app.run(buyer, name)
        except BaseException as error:  # noqa: BLE001  # Whatever it is, it is none of the results below.
            results[name] = error

    threads = {name: threading.Thread(target=run, args=(name,)) for name in "abc"}
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        may_end[name].set()
        thread.join()

    assert results == {name: f"paid {name}" for name in "abc"}
    assert sorted(made) == ["a", "b", "c"]
    assert not [one for one in threading.enumerate() if one.name == "perdure-client"]


# -- on an event loop --------------------------------------------------------------------------


async def test_on_an_event_loop_the_line_to_write_is_named(tmp_db: Path) -> None:
    @perdure.agent
    async def confused() -> list[str]:
        found = []
        for attempt in (
            lambda: perdure.model(ask_model, "hi"),
            lambda: perdure.gather(search.bind("a")),
            lambda: perdure.sleep(1),
            lambda: search("a"),
            lambda: double(1),
        ):
            try:
                attempt()
            except WrongThread as error:
                found.append(str(error))
        return found

    import perdure as awaited

    messages = await awaited.App(str(tmp_db), agents=[confused]).run(confused)

    assert [text[text.index("await") :] for text in messages] == [
        "await perdure.model(…)",
        "await perdure.gather(…)",
        "await perdure.sleep(…)",
        "await perdure.call(search, …)",
        "await perdure.call(double, …)",
    ]
    assert made == []


async def test_an_app_is_not_run_on_an_event_loop(tmp_db: Path) -> None:
    app = new_app(tmp_db, double)

    with pytest.raises(WrongThread, match=r"await app\.run"):
        app.run(double, 1)


def test_a_loop_that_an_agent_starts_itself_is_told_what_to_write(tmp_db: Path) -> None:
    import perdure as awaited

    async def inner() -> list[str]:
        found = []
        attempts: list[Callable[[], Any]] = [
            lambda: perdure.model(ask_model, "hi"),
            lambda: awaited.model(ask_model, "hi"),
        ]
        for attempt in attempts:
            try:
                await attempt()
            except WrongThread as error:
                found.append(str(error))
        return [*found, str((await asyncio.to_thread(perdure.model, ask_model, "hi"))["text"])]

    @perdure.agent
    def host() -> list[str]:
        return asyncio.run(inner())

    blocking, twin, answer = new_app(tmp_db, host).run(host)

    assert "await asyncio.to_thread(perdure.model, …)" in blocking
    assert "await asyncio.to_thread" in twin
    assert answer == "HI"
    assert made == ["model hi"]
