"""Calls above low risk that may still be inside their function, over all attempts of this process.

A call that timed out, or whose attempt was cancelled, may still be running in its thread: until it has returned,
nobody may run it again. How it ended after its caller had left is kept, as the last word about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from perdure.errors import StoreError
from perdure.store.last_words import LastWord, WordKind

Place = tuple[str, str]
Tell = Callable[[asyncio.Future[Any]], tuple[WordKind, bytes]]


class InFlightCalls:
    """The running calls by task and key. Belongs to one event loop. `take_order` takes a place (order.py)."""

    def __init__(self, take_order: Callable[[], Awaitable[int]]) -> None:
        self._take_order = take_order
        self._running: dict[Place, set[asyncio.Future[Any]]] = {}
        self._words: dict[Place, LastWord] = {}
        self._placing: dict[Place, asyncio.Task[None]] = {}
        self._settled: WeakSet[asyncio.Future[Any]] = WeakSet()  # they run on, with nothing to add

    def add(self, task_id: str, key: str, running: asyncio.Future[Any]) -> None:
        """A call has started; it counts until `running` is done, which a thread is only when it has returned."""
        place = (task_id, key)
        self._words.pop(place, None)
        self._running.setdefault(place, set()).add(running)

        def returned(done: asyncio.Future[Any]) -> None:
            left = self._running.get(place, set())
            left.discard(done)
            if not left:
                self._running.pop(place, None)
            if not done.cancelled():
                done.exception()  # Looked at here too: its caller may be gone.

        running.add_done_callback(returned)

    def leave(self, word: LastWord, running: asyncio.Future[Any], tell: Tell) -> None:
        """The caller goes away without an outcome; `tell` says later how the call ended, if that is still wanted."""

        def returned(done: asyncio.Future[Any]) -> None:
            if done not in self._settled:
                kind, body = tell(done)
                self.keep(word._replace(kind=kind, body=body))

        running.add_done_callback(returned)

    def keep(self, word: LastWord) -> None:
        """What is known of a call whose outcome could not be put on record."""
        place = (word.task_id, word.key)
        self._words[place] = word
        if word.kind is WordKind.CUT_OFF:  # It says nothing: only what a person says later counts.
            self._placing[place] = asyncio.get_running_loop().create_task(self._place(word))

    async def word(self, task_id: str, key: str) -> LastWord | None:
        """How a call that its caller had left has ended, if that is known."""
        place = (task_id, key)
        known = self._words.get(place)
        if known is not None and known.kind is WordKind.CUT_OFF and known.order is None:
            if place not in self._placing:
                self.keep(known)  # It could not be placed when it was left.
            await asyncio.wait({self._placing[place]})
        return self._words.get(place)

    def forget(self, task_id: str, key: str) -> None:
        """The call's outcome is on record: no word about it is wanted, not even of a thread that is still inside."""
        place = (task_id, key)
        self._words.pop(place, None)
        self._settled.update(self._running.get(place, ()))

    def words(self) -> list[LastWord]:
        """Every last word so far, for whoever goes on with those tasks."""
        return list(self._words.values())

    def told(self, words: Iterable[LastWord]) -> None:
        """These words are on record, where they are found from now on."""
        for word in words:
            place = (word.task_id, word.key)
            known = self._words.get(place)
            if known is not None and (known.attempt, known.kind) == (word.attempt, word.kind):
                del self._words[place]

    def holds(self, task_id: str, key: str) -> bool:
        """Whether the call may still be running."""
        return (task_id, key) in self._running

    async def until_returned(self, task_id: str, key: str) -> None:
        """Wait until the call has returned."""
        while running := self._running.get((task_id, key)):
            await asyncio.wait(running)

    def all(self) -> frozenset[asyncio.Future[Any]]:
        """Everything that runs now."""
        return frozenset(future for futures in self._running.values() for future in futures)

    async def _place(self, word: LastWord) -> None:
        place = (word.task_id, word.key)
        try:
            with suppress(StoreError):  # Until it is placed, it counts as later than any answer.
                order = await self._take_order()
                if self._words.get(place) is word:
                    self._words[place] = word._replace(order=order)
        finally:
            if self._placing.get(place) is asyncio.current_task():
                del self._placing[place]
