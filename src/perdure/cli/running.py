"""Commands that run tasks: `run` for one, `worker` for whatever is due."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer

from perdure import config, phrases
from perdure.app import App
from perdure.cli import screen
from perdure.cli.answering import doubts_below
from perdure.cli.arguments import read_arguments
from perdure.cli.opening import commands, load_agent, load_app
from perdure.cli.options import AppName, Db
from perdure.cli.shapes import end_shape, plain_body, question_shape, task_shape
from perdure.cli.streaming import streamed
from perdure.commands import Commands, as_lines
from perdure.definitions import AgentCall, AgentDefinition, AgentOptions
from perdure.errors import BadInput
from perdure.model.question import Question
from perdure.model.task import Lane, Outcome, Task, tail
from perdure.news import News
from perdure.people import ended_by, people_asked
from perdure.runtime import collector
from perdure.runtime.blocks import beside, unless
from perdure.runtime.durable import new_task
from perdure.runtime.liveness import Judge, judge
from perdure.runtime.worker import Worker
from perdure.states import TaskStatus
from perdure.store import admission, questions, task_lists, tasks
from perdure.store.admission import NewTask
from perdure.store.database import Transaction
from perdure.why import because, stays

_STILL_S: Final = 10.0

_Asked: TypeAlias = tuple[tuple[Question, object], ...]
_Seen: TypeAlias = tuple[Outcome | None, _Asked, str]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(run)
    app.command()(worker)


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="MODULE:AGENT, or an agent's name in the app.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT", help="JSON or text; NAME=VALUE names a parameter.")
    ] = None,
    *,
    key: Annotated[str | None, typer.Option("--key", help="The same key is the same task.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Start another one, though an equal one is open.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait so long, then stop here as on Ctrl-C."),
    ] = None,
    db: Db = None,
    app: AppName = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object; before it one a line for each text streamed. "
            "What the agents themselves print goes to standard error.",
        ),
    ] = False,
) -> None:
    """Run an agent as a task, here, and print its result.

    The same line again joins the newest open task of this agent with these arguments, or resumes it after a crash.
    Exit code 1 when the task failed or only a person is waited for; what to answer is printed then.
    On a terminal, what it streams is shown as it comes.
    While it runs, other open tasks of the app go on here too, as on any worker. What is inside a call when it stops has
    the grace time, and is cut off then; above low risk such a call is in doubt.
    """
    if key is not None and new:
        anew = "another key, or --new without a key, starts anew"
        raise BadInput(f"--key names one task, and --new wants another: give one of them; {anew}", field="key")
    ours, definition = load_agent(agent, app, db)
    positional, named = read_arguments(definition, words or [])
    wanted = _wanted(definition, positional, named, key)
    shown = commands(ours.url, db, app)
    raise typer.Exit(asyncio.run(_run(ours, wanted, shown, is_new=new, timeout_s=timeout, as_json=as_json)))


def worker(
    app: Annotated[str | None, typer.Argument(metavar="MODULE:APP", help="The app; else as configured.")] = None,
    *,
    permits: Annotated[int | None, typer.Option("--permits", min=1, help="Tasks that run at once.")] = None,
    db: Db = None,
    app_name: AppName = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object a line, for each event. What the agents print goes to standard error.",
        ),
    ] = False,
) -> None:
    """Run whatever is due for an app's agents, until stopped.

    Prints a line for each task that fails, and on a terminal for each that completes.
    The first signal hands back what runs, the second leaves at once. A worker that hangs past its lease may be ended
    by another one on this host.
    """
    if app is not None and app_name is not None:
        raise BadInput("the app is named twice: by its argument and by --app", field="app")
    ours = load_app(app or app_name, db)
    if permits is not None:
        main_permits = min(config.settings().main_permits, permits - 1)
        ours.use(settings={"permits": permits, "main_permits": main_permits})
    collector.calm_down()
    raise typer.Exit(asyncio.run(_work(ours, commands(ours.url, db, app or app_name), as_json=as_json)))


# -- one task -------------------------------------------------------------------------------


def _wanted(definition: AgentDefinition, args: list[Any], kwargs: dict[str, Any], key: str | None) -> NewTask:
    call = AgentCall(definition, AgentOptions(key=key), tuple(args), kwargs)
    return new_task(call, key=key, lane=Lane.MAIN)


async def _run(
    app: App, wanted: NewTask, shown: Commands, *, is_new: bool, timeout_s: float | None, as_json: bool
) -> int:
    async with app:
        task, is_known = await app.perform(_admit_or_join, wanted, is_new=is_new)
        if task.status.is_terminal:
            if task.status is not TaskStatus.COMPLETED:
                age = phrases.duration(app.store.clock.now_ms() - (task.finished_at or 0))
                screen.note(f"{tail(task.id)} has this key, and ended {age} ago; {stays(task.status)}")
            return await _finish(app, task.id, (), shown, as_json=as_json)
        if is_known:
            age = phrases.duration(app.store.clock.now_ms() - task.created_at)
            screen.note(f"joins {task.agent} {tail(task.id)}, admitted {age} ago")
        news = News(commands=shown, read=app.read, say=screen.note)
        news.about(task.root_session_id)
        stopped = asyncio.Event()
        async with (
            streamed(app, task, as_json=as_json),
            app.worker(on_event=news.hear) as worker,
            beside(news.run()),
            _signals(stopped.set) as caught,
            unless(news.until_unmanned(task.root_session_id)),
        ):
            await worker.adopt(task.id)
            look = partial(app.read, _look, task.id, judge(app.store), shown, lambda: worker.instance_id)
            asked = await _until_ended(app, look, stopped=stopped, timeout_s=timeout_s)
        for question, evidence in asked:
            news.ask(question, evidence)
        news.tell()
        if cut_off := worker.stopped.interrupted:
            tasks_cut = "a task" if cut_off == 1 else f"{cut_off:,} tasks"
            why = f"{tasks_cut} had to be cut off inside a call, for this worker stopped; what is in doubt now:"
            for line in as_lines([(shown.line("effects --in-doubt"), why)]):
                screen.note(line)
        same_line = "the same line without --new" if is_new else "the same line"
        code = await _finish(app, task.id, asked, shown, as_json=as_json, same_line=same_line)
        return 128 + caught[0] if caught and code != 0 else code


def _admit_or_join(tx: Transaction, wanted: NewTask, *, is_new: bool) -> tuple[Task, bool]:
    """The task of this key, else the newest open one of the same work, else a new one; whether it was there before."""
    if wanted.key is None and not is_new:
        known = task_lists.newest_open_like(tx, agent=wanted.agent, work_digest=wanted.work_digest)
        if known is not None:
            return known, True
    admitted = admission.admit(tx, [wanted])
    return admitted.tasks[0], admitted.existing


async def _until_ended(
    app: App, look: Callable[[], Awaitable[_Seen]], *, stopped: asyncio.Event, timeout_s: float | None
) -> _Asked:
    """Wait until the task has ended, only people are waited for (they are returned), time is over, or a signal came."""
    loop = asyncio.get_running_loop()
    ends_at = None if timeout_s is None else loop.time() + timeout_s
    said, before, says_next = "", "", loop.time() + _STILL_S
    async for outcome, asked, reason in app.watch(look):
        if outcome is not None or stopped.is_set() or asked:
            return asked
        if ends_at is not None and loop.time() >= ends_at:
            screen.note(f"not done after {phrases.duration((timeout_s or 0) * 1000)}: {reason}")
            return ()
        if loop.time() >= says_next and reason == before:  # One that is true for a moment only explains nothing.
            says_next = loop.time() + _STILL_S
            if reason != said:
                said = reason
                screen.note(f"still open because {reason}")
        before = reason
    raise AssertionError("the watch ends with an outcome")


def _look(tx: Transaction, task_id: str, judge: Judge, shown: Commands, here: Callable[[], str]) -> _Seen:
    outcome = task_lists.outcome(tx, task_id)
    if outcome is not None:
        return outcome, (), ""
    asked = tuple((one, questions.evidence(tx, one)) for one in people_asked(tx, task_id))
    return None, asked, because(tx, tasks.get(tx, task_id), judge=judge, commands=shown, here=here())


async def _finish(app: App, task_id: str, asked: _Asked, shown: Commands, *, as_json: bool, same_line: str = "") -> int:
    """Print what became of the task; the exit code. `same_line` goes on with it while it has not ended."""
    task, outcome, reason, by = await app.read(_state, task_id, judge(app.store), shown)
    result = None if outcome is None else plain_body(outcome.result)
    if as_json:
        error = end_shape(None if outcome is None else outcome.error, by)
        open_ones = [question_shape(one, evidence) for one, evidence in asked]
        screen.put_json({**task_shape(task, reason), "result": result, **error, "questions": open_ones})
    elif outcome is None:
        is_left = task.status in (TaskStatus.PENDING, TaskStatus.INTERRUPTED)
        stands = "stays open" if is_left else f"is {task.status}"
        screen.note(f"{task.agent} {tail(task.id)} {stands}: {same_line} goes on with it")
    elif outcome.status is TaskStatus.COMPLETED:
        screen.put_result(result)
    else:
        whose = f" by {phrases.one_line(by)}" if by else ""
        screen.note(f"{outcome.status.replace('_', ' ')}{whose}: {phrases.failure(outcome.error)}")
        for line in await app.read(doubts_below, task_id, shown):
            screen.note(line)
        screen.note(f"more: {shown.line(f'why {task.id}')}")
    return 0 if outcome is not None and outcome.status is TaskStatus.COMPLETED else 1


def _state(tx: Transaction, task_id: str, judge: Judge, shown: Commands) -> tuple[Task, Outcome | None, str, str]:
    task = tasks.get(tx, task_id)
    reason = because(tx, task, judge=judge, commands=shown)
    return task, task_lists.outcome(tx, task_id), reason, ended_by(tx, task)


# -- a worker -------------------------------------------------------------------------------


async def _work(app: App, shown: Commands, *, as_json: bool) -> int:
    async with app:
        told: dict[str, Any] = {"counts_only": True, "tells_completed": sys.stderr.isatty(), "say": screen.note}
        news = News(commands=shown, read=app.read, **told)
        stopped = asyncio.Event()
        hear = partial(_put_while_read, stopped.set) if as_json else news.hear
        ended: Worker | None = None
        began = 0.0
        loop = asyncio.get_running_loop()
        async with beside(news.run()):
            async with app.worker(killable=True, on_event=hear) as worker, _signals(stopped.set):
                names, where = sorted({name for name, _ in app.agents}), app.store.database.url
                if as_json:
                    _put_event("ready", {"instance": worker.instance_id, "agents": names, "database": where})
                else:
                    screen.note(f"{worker.instance_id} works for {', '.join(names)} on {where}")
                await stopped.wait()
                began, ended = loop.time(), worker
                worker.stop()
            handed_back, interrupted = ended.stopped.handed_back, ended.stopped.interrupted
        took_s = loop.time() - began
        if as_json:
            said = {"handed_back": handed_back, "interrupted": interrupted, "seconds": round(took_s, 3)}
            _put_event("stopped", {"instance": ended.instance_id, **said})
        else:
            took = phrases.duration(took_s * 1000)
            screen.put(f"{handed_back:,} handed back between two steps, {interrupted:,} interrupted ({took})")
        return 0


def _put_while_read(stop: Callable[[], None], what: str, facts: Mapping[str, Any]) -> None:
    try:
        _put_event(what, facts)
    except BrokenPipeError:  # Whoever read our output has gone.
        stop()


def _put_event(what: str, facts: Mapping[str, Any]) -> None:
    screen.put_json({"event": what, **facts}, lines=True)


@asynccontextmanager
async def _signals(stop: Callable[[], None]) -> AsyncIterator[list[int]]:
    """Call `stop` on the first SIGINT or SIGTERM, and leave at once on the second. Yields the signals that came."""
    loop = asyncio.get_running_loop()
    caught: list[int] = []

    def take(number: int) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        screen.note("stopping: what runs is handed back; the same signal again leaves at once")
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, take, number)
    yield caught
