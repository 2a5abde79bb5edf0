"""What the state that an agent saves cannot tell of: calls made in branches beside whoever saves it.

A branch is an asyncio task beside the one that runs the agent, or code of its in another thread. After a restart an
agent that goes on from a checkpoint begins its branches anew, and they come again to what they had called. Of an
asyncio task that still went on, that is to be found again. Where nobody knows whether the state tells of a call, a
dangerous one that is equal is asked about.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from typing import NamedTuple, ParamSpec, TypeVar
from weakref import ref

P = ParamSpec("P")
R = TypeVar("R")


class Beside(NamedTuple):
    """Keys of calls at the top, as they stand to a state that is saved now."""

    going_on: list[str]  # of branches that are not at their end
    unsure: list[str]  # whether the state tells of them, nobody knows
    sure: list[str]  # unsure at an earlier checkpoint, known to this one


class ThreadCode:
    """A function that runs in a thread of the agent's. Freed with its context, so one sees when it has returned."""

    __slots__ = ("__weakref__", "around", "branch", "is_agent", "task", "thread")

    def __init__(self, around: ThreadCode | None = None, *, is_agent: bool = False) -> None:
        self.around = around  # of the function in whose thread this one was begun
        self.is_agent = is_agent  # the agent itself, and no branch
        self.thread = threading.current_thread()
        self.task: ref[asyncio.Task[object]] | None = None  # makes its present call for it, on the loop
        self.branch: Branch | None = None

    def calls_by(self, task: asyncio.Task[object]) -> None:
        """This task makes its call."""
        self.task = ref(task)

    @property
    def is_branch_calling(self) -> bool:
        """Whether this code is a call that a branch makes in its thread."""
        return not self.is_agent and self.task is not None and self.task() is asyncio.current_task()


class Branch:
    """An asyncio task or a function in a thread, the branch that began it as far as that is known, and its keys."""

    __slots__ = ("keys", "mark", "message_keys", "of", "parent", "saves", "task")

    def __init__(
        self,
        of: Branches,
        parent: Branch | None,
        *,
        task: asyncio.Task[object] | None = None,
        mark: ThreadCode | None = None,
    ) -> None:
        self.of, self.parent = of, parent
        self.task = None if task is None else ref(task)
        self.mark = None if mark is None else ref(mark)
        self.keys: list[str] = []  # of its calls
        self.message_keys: list[str] = []
        self.saves = False  # states of its own

    @property
    def is_under_way(self) -> bool:
        """Whether it is not at its end."""
        if self.mark is not None:
            return self.mark() is not None
        task = None if self.task is None else self.task()
        return task is not None and not task.done()

    @property
    def goes_on(self) -> bool:
        """Whether it, or a branch that it was begun in, is not at its end."""
        return any(one.is_under_way for one in self.line())

    def line(self) -> Iterator[Branch]:
        """It, and the branches it was begun in, the next first."""
        one: Branch | None = self
        while one is not None:
            yield one
            one = one.parent


class _Cleared(NamedTuple):
    """What one branch had called and told before it was taken to be saved."""

    branch: Branch
    keys: list[str]
    message_keys: list[str]


# The branch whose code this is. One that has called nothing yet is not known, and its code is taken for its parent's.
_here: ContextVar[Branch | None] = ContextVar("perdure_here", default=None)
# So many calls the agent's own task had made when this code's branch began.
_heard_of: ContextVar[tuple[Branches, int] | None] = ContextVar("perdure_heard_of", default=None)
_mark: ContextVar[ThreadCode | None] = ContextVar("perdure_mark", default=None)


def mark_thread() -> ThreadCode:
    """In a thread beside the one that runs the agent: the function whose code makes a call now."""
    known = _mark.get()
    if known is None or known.thread is not threading.current_thread():
        known = ThreadCode(known)
        _mark.set(known)
    return known


def of_agent(fn: Callable[P, R]) -> Callable[P, R]:
    """`fn`, a synchronous agent: the thread that runs it is no branch."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _mark.set(ThreadCode(is_agent=True))
        return fn(*args, **kwargs)

    return run


class Branches:
    """The branches of one attempt's agent, and what they have called that is not harmless to call again."""

    def __init__(self) -> None:
        self.main = Branch(self, None)
        self._made_by_main = 0
        self._unsure: dict[str, Branch] = {}  # what a checkpoint has been saved with
        self._settled: list[str] = []
        self._known: list[Branch] = []
        self._being_saved: list[Beside] = []

    def enter(self, task: asyncio.Task[object] | None) -> Branch:
        """The running branch, that is `task` or a thread for which it calls; None: the agent's own task, or thread."""
        mark, here = _mark.get(), _here.get()
        if here is not None and here.of is not self:
            here = None
        if mark is not None and mark.is_branch_calling:
            if mark.branch is None or mark.branch.of is not self:
                around = None if mark.around is None else mark.around.branch
                mark.branch = self._begun(Branch(self, here if around is None else around, mark=mark))
            _here.set(mark.branch)
            return mark.branch
        if task is None:
            return self.main
        if here is None or here.task is None or here.task() is not task:
            here = self._begun(Branch(self, here, task=task))
            _here.set(here)
        return here

    def settle(self, key: str) -> None:
        """A person has said of a call that was unsure."""
        self._settled.append(key)

    def note(self, task: asyncio.Task[object] | None, key: str) -> None:
        """The branch, or the agent's own task, has made a call."""
        here = self.enter(task)
        here.keys.append(key)
        if here is self.main:
            self._made_by_main += 1
            _heard_of.set((self, self._made_by_main))

    @contextmanager
    def beside(self, saver: Branch) -> Iterator[Beside]:
        """What the state cannot tell of that this branch, or the agent's own task, has now and saves inside.

        The agent's own task is taken to know of branches that have ended; a branch of those that it had begun, and of
        what the agent's own task had called before. What a branch has called that saves states, too, may stand in a
        state that they share. Each call of which nobody can be sure is told of once, unless saving fails; what goes
        on, each time.
        """
        saver.saves = True
        found = Beside([], [], self._settled)
        self._settled = []
        for key in [key for key, one in self._unsure.items() if _knows(saver, one)]:
            del self._unsure[key]
            found.sure.append(key)
        cleared: list[_Cleared] = []
        for one in (self.main, *self._known):
            if not self._add(found, saver, one):
                cleared.append(_Cleared(one, one.keys, one.message_keys))
                one.keys, one.message_keys = [], []
        self._known = [one for one in self._known if one.keys or one.goes_on]
        self._being_saved.append(found)
        try:
            yield found
        except BaseException:
            self._being_saved.remove(found)
            self._take_back(found, cleared)
            raise
        self._being_saved.remove(found)

    def _take_back(self, found: Beside, cleared: Sequence[_Cleared]) -> None:
        """Nobody knows whether a state was saved: those under way, and the next one, tell of what it was to tell of."""
        for one, keys, message_keys in cleared:
            one.keys, one.message_keys = keys + one.keys, message_keys + one.message_keys
            if one is not self.main and one not in self._known:
                self._known.append(one)
            for other in self._being_saved:
                self._tell(other, one, keys)
        self._settled = found.sure + self._settled

    def _add(self, found: Beside, saver: Branch, one: Branch) -> bool:
        """Add what the saver does not know of a branch, or not for certain. Whether it is to be told next time, too."""
        if one is self.main and saver is not one:
            unheard = one.keys[max(len(one.keys) - (self._made_by_main - self._heard_of_main()), 0) :]
            self._tell(found, one, unheard)
        elif not _knows(saver, one):
            if _is_found_again(saver, one):
                found.going_on.extend((*one.keys, *one.message_keys))
                return True
            self._tell(found, one, one.keys)
        return False

    def _begun(self, one: Branch) -> Branch:
        self._known.append(one)
        return one

    def _tell(self, found: Beside, one: Branch, keys: list[str]) -> None:
        found.unsure.extend(keys)
        self._unsure |= dict.fromkeys(keys, one)

    def _heard_of_main(self) -> int:
        known = _heard_of.get()
        return known[1] if known is not None and known[0] is self else 0


def _knows(saver: Branch, one: Branch) -> bool:
    """Whether what a branch has called may be taken for known to the one that saves: all between them have ended."""
    for begun in one.line():
        if begun is saver:
            return True
        if begun.is_under_way:
            return False
    return saver is saver.of.main


def _is_found_again(saver: Branch, one: Branch) -> bool:
    """Whether a branch certainly goes on, and what it has called stands in no state but perhaps its own.

    When exactly code in a thread has ended nobody knows.
    """
    beside = takewhile(lambda begun: begun is not saver, one.line())
    return (
        one.goes_on and one not in saver.line() and not any(begun.saves or begun.mark is not None for begun in beside)
    )
