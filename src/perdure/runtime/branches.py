"""Branches of an agent, and which of their calls a checkpoint cannot stand for.

A branch is an asyncio task beside the one that runs the agent. After a restart an agent that goes on from a checkpoint
begins its branches anew, and they come again to what they had called: unless the state that was saved knows of it,
that must be found again instead of being made a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from weakref import ref


class _Branch:
    """One asyncio task, the branch that began it as far as that is known, and the keys of its calls."""

    __slots__ = ("__weakref__", "keys", "of", "parent", "task")

    def __init__(self, of: Branches, task: asyncio.Task[object], parent: _Branch | None) -> None:
        self.of, self.task, self.parent = of, ref(task), parent
        self.keys: list[str] = []

    @property
    def has_ended(self) -> bool:
        task = self.task()
        return task is None or task.done()

    def all_around(self) -> Iterator[_Branch]:
        """The branches it was begun in, the next first."""
        around = self.parent
        while around is not None:
            yield around
            around = around.parent


# The branch whose code this is; one that has called nothing yet is not known, and its code is seen as its parent's.
_here: ContextVar[_Branch | None] = ContextVar("perdure_here", default=None)


class Branches:
    """The branches of one attempt's agent that have called something."""

    def __init__(self) -> None:
        self._known: list[_Branch] = []

    def enter(self, task: asyncio.Task[object]) -> _Branch:
        """The running branch, that is `task`."""
        here = _here.get()
        if here is not None and here.of is not self:
            here = None
        if here is None or here.task() is not task:
            here = _Branch(self, task, here)
            self._known.append(here)
            _here.set(here)
        return here

    def unheard_of(self, saver: asyncio.Task[object] | None) -> list[str]:
        """Keys of what the state cannot tell of that the branch `saver` saves, or the agent's own task (None).

        Of a branch that goes on, whatever it has called. Of one that has ended the agent's own task knows what came of
        it, and so does the branch that had begun it; no other does. What was called before a branch began, it knows.
        """
        if saver is None:
            self._known = [one for one in self._known if not one.has_ended]
            return [key for one in self._known for key in one.keys]
        here = self.enter(saver)
        known = {here, *here.all_around()}
        others = (one for one in self._known if one not in known)
        return [key for one in others if not (one.has_ended and here in one.all_around()) for key in one.keys]
