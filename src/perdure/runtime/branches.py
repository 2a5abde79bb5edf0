"""What the state that an agent saves cannot tell of: calls made in branches beside whoever saves it.

A branch is an asyncio task beside the one that runs the agent. After a restart an agent that goes on from a checkpoint
begins its branches anew, and they come again to what they had called. Of a branch that still went on, that is to be
found again. Where nobody knows whether the state tells of a call, a dangerous one that is equal is asked about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple
from weakref import ref


class Beside(NamedTuple):
    """Keys of calls at the top, as they stand to a state that is saved now."""

    going_on: list[str]  # of branches that are not at their end
    unsure: list[str]  # whether the state tells of them, nobody knows
    sure: list[str]  # that was said of these before, and is over


class _Branch:
    """One asyncio task, the branch that began it as far as that is known, and the keys of its calls."""

    __slots__ = ("keys", "of", "parent", "saves", "task")

    def __init__(self, of: Branches, task: asyncio.Task[object] | None, parent: _Branch | None) -> None:
        self.of, self.parent = of, parent
        self.task = None if task is None else ref(task)
        self.keys: list[str] = []
        self.saves = False  # states of its own

    @property
    def goes_on(self) -> bool:
        """Whether it, or a branch that it was begun in, is not at its end."""
        return any(_is_under_way(one) for one in self.line())

    def line(self) -> Iterator[_Branch]:
        """It, and the branches it was begun in, the next first."""
        one: _Branch | None = self
        while one is not None:
            yield one
            one = one.parent


# The branch whose code this is. One that has called nothing yet is not known, and its code is taken for its parent's.
_here: ContextVar[_Branch | None] = ContextVar("perdure_here", default=None)
# So many calls the agent's own task had made when this code's branch began.
_heard_of: ContextVar[tuple[Branches, int] | None] = ContextVar("perdure_heard_of", default=None)


class Branches:
    """The branches of one attempt's agent, and what they have called that is not harmless to call again."""

    def __init__(self) -> None:
        self._main = _Branch(self, None, None)
        self._made_by_main = 0
        self._unsure: dict[str, _Branch] = {}  # what a checkpoint has been saved with
        self._settled: list[str] = []
        self._known: list[_Branch] = []

    def enter(self, task: asyncio.Task[object] | None) -> _Branch:
        """The running branch, that is `task`; None: the agent's own task."""
        if task is None:
            return self._main
        here = _here.get()
        if here is not None and here.of is not self:
            here = None
        if here is None or here.task is None or here.task() is not task:
            here = _Branch(self, task, here)
            self._known.append(here)
            _here.set(here)
        return here

    def settle(self, key: str) -> None:
        """A person has said of a call that was unsure."""
        self._settled.append(key)

    def note(self, task: asyncio.Task[object] | None, key: str) -> None:
        """The branch, or the agent's own task, has made a call."""
        here = self.enter(task)
        here.keys.append(key)
        if here is self._main:
            self._made_by_main += 1
            _heard_of.set((self, self._made_by_main))

    def beside(self, saver: asyncio.Task[object] | None) -> Beside:
        """What the state cannot tell of that is saved now, in the branch `saver` or the agent's own task (None).

        The agent's own task is taken to know of branches that have ended; a branch of those that it had begun, and of
        what the agent's own task had called before. What a branch has called that saves states, too, may stand in a
        state that they share. Each call of which nobody can be sure is told of once; what goes on, each time.
        """
        here = self.enter(saver)
        here.saves = True
        here.keys.clear()
        found = Beside([], [], self._settled)
        self._settled = []
        for key in [key for key, one in self._unsure.items() if self._knows(here, one)]:
            del self._unsure[key]
            found.sure.append(key)
        if here is not self._main:
            heard_of = len(self._main.keys) - (self._made_by_main - self._heard_of_main())
            self._tell(found, self._main, self._main.keys[max(heard_of, 0) :])
        self._main.keys.clear()
        for one in self._known:
            if not self._knows(here, one):
                if one.goes_on and not one.saves:
                    found.going_on.extend(one.keys)
                    continue
                self._tell(found, one, one.keys)
            one.keys.clear()
        self._known = [one for one in self._known if one.keys or one.goes_on]
        return found

    def _knows(self, saver: _Branch, one: _Branch) -> bool:
        """Whether what this branch has called may be taken for known to the one that saves."""
        if one is saver or (saver in one.line() and not _is_under_way(one)):
            return True
        return saver is self._main and not one.goes_on

    def _tell(self, found: Beside, one: _Branch, keys: list[str]) -> None:
        found.unsure.extend(keys)
        self._unsure |= dict.fromkeys(keys, one)

    def _heard_of_main(self) -> int:
        known = _heard_of.get()
        return known[1] if known is not None and known[0] is self else 0


def _is_under_way(branch: _Branch) -> bool:
    task = None if branch.task is None else branch.task()
    return task is not None and not task.done()
