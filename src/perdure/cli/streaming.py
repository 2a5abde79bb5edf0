"""What a task streams, as `perdure run` shows it: on a terminal the text as it comes, for a program an event a line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from perdure.app import App
from perdure.cli import screen
from perdure.model.event import EventKind
from perdure.model.task import Task
from perdure.runtime.blocks import beside

_LAST_WORDS_S: Final = 2.0


@asynccontextmanager
async def streamed(app: App, task: Task, *, as_json: bool) -> AsyncIterator[None]:
    """Show what the task streams while the block runs, here or on another worker; nothing of what it streamed before.

    Standard error that is no terminal gets nothing: a log is no place for pieces of words.
    """
    if not as_json and not sys.stderr.isatty():
        yield
        return
    show = _put_event if as_json else _put_text
    async with beside(_follow(app, task, show)) as following:
        yield
        now = await app.task(task.id).info()
        if now.status.is_terminal:  # Then the last of it is in the store, where whoever follows is about to read it.
            await asyncio.wait({following}, timeout=_LAST_WORDS_S)


async def _follow(app: App, task: Task, show: Callable[[str, str], None]) -> None:
    since = app.store.clock.now_ms()
    async for event in app.task(task.id).follow(after=task.event_seq):
        if event.kind == EventKind.AI_STREAMING and event.at >= since:
            show(task.id, str(event.payload.get("text", "")))


def _put_event(task_id: str, text: str) -> None:
    screen.put_json({"event": str(EventKind.AI_STREAMING), "task": task_id, "text": text}, lines=True)


def _put_text(_task_id: str, text: str) -> None:
    screen.put_piece(text)
