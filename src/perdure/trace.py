"""A task's recorded history as a replay uses it: find a call by its key, tell what is left, notice drift. Pure.

A key is the call's name, the digest of its input and an occurrence number among equal pairs, under the key of the
call it was made in. So a recorded result is given to the same call, in whatever order branches run; what that takes
where nothing recorded distinguishes two calls, ADR 14 says.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count

from msgspec import structs

from perdure.model.step import Step, StepKind
from perdure.policy.risk import Risk

ROOT = ""


def call_key(parent: str, name: str, digest: str, occurrence: int) -> str:
    """The key of a call by its input. Unique: digest and occurrence have a fixed form at the end."""
    scope = scope_under(parent)
    return f"{scope}={name}:{digest}#{occurrence}"


def named_key(parent: str, key: str, occurrence: int) -> str:
    """The key of a call whose caller gave `key=`, which replaces name and digest."""
    return f"{scope_under(parent)}@{key}#{occurrence}"


def scope_of(key: str) -> str:
    """What distinguishes the parents of two calls, read off a key."""
    # A key at the top begins with a mark of its own, whatever slashes its name has.
    return "" if key[:1] in ("=", "@") else key[:17]


def scope_under(parent: str) -> str:
    """The scope of calls made inside the call with this key."""
    return "" if parent == ROOT else hashlib.sha256(parent.encode()).hexdigest()[:16] + "/"


def _made_alike(one: str, other: str) -> bool:
    """Whether two keys are of calls with the same name and input, or of the same key."""
    return _without_place(one) == _without_place(other)


def _without_place(key: str) -> str:
    return key[len(scope_of(key)) :].rpartition("#")[0]


class Occurrences:
    """Numbers equal calls of one attempt in the order they are made."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
        self._taken: dict[tuple[str, str], set[int]] = {}  # at the top, beyond a number that is free

    def number(self, parent: str, name: str, digest: str) -> int:
        """0 for the first call of its kind, then 1, 2, …"""
        counts, call = self._counts[parent], (name, digest)
        number = counts.get(call, 0)
        if self._taken and parent == ROOT:
            while number in self._taken.get(call, ()):
                number += 1
        counts[call] = number + 1
        return number

    def take_back(self, parent: str, name: str, digest: str) -> None:
        """The call that was numbered last is not made: its number is the next one's."""
        self._counts[parent][name, digest] -= 1

    def go_on_after(self, keys: Iterable[str]) -> None:
        """Calls at the top that were made before: the next equal one is another call, and not one of these again.

        A number that is left out among them is of a call that is still to be made: the next equal one is that.
        """
        made: dict[tuple[str, str], set[int]] = defaultdict(set)
        for key in keys:
            head, _, number = key.rpartition("#")
            match key[:1]:
                case "=":
                    name, _, digest = head[1:].rpartition(":")
                    call = (name, digest)
                case "@":
                    call = ("", f"{ROOT}{head}")
                case _:
                    continue  # Made inside another call, whose own number tells it apart.
            made[call].add(int(number))
        counts = self._counts[ROOT]
        for call, numbers in made.items():
            free = next(number for number in count() if number not in numbers)
            counts[call] = max(counts.get(call, 0), free)
            if max(numbers) > free:
                self._taken[call] = numbers

    def restart(self, parent: str) -> None:
        """The call with this key begins anew: the calls inside it are counted from 0 again."""
        self._counts.pop(parent, None)


class Nesting:
    """Which call was made inside which: of recorded ones as their keys tell, of others as this attempt makes them."""

    def __init__(self) -> None:
        self._inside: dict[str, dict[str, None]] = defaultdict(dict)  # by scope, the keys of calls in it
        self._around: dict[str, str] = {}  # by scope, the key of the call whose scope it is

    @property
    def is_flat(self) -> bool:
        """Whether no call was made inside another. Then there is no need to work out what lies where."""
        return len(self._inside) == (ROOT in self._inside)

    def add(self, key: str) -> None:
        """There is a call with this key."""
        self._inside[scope_of(key)][key] = None

    def open(self, key: str, parent: str) -> None:
        """A call is made inside the one with the key `parent`, which may have no record yet."""
        self.add(key)
        self._around[scope_of(key)] = parent
        self._around[scope_under(key)] = key

    def inside(self, key: str) -> Iterable[str]:
        """Calls made right inside this one."""
        return () if self.is_flat else self._inside.get(scope_under(key), ())

    def all_inside(self, key: str) -> Iterator[str]:
        """Calls made inside this one at any depth, those inside each before it."""
        for inner in self.inside(key):
            yield from self.all_inside(inner)
            yield inner

    def owners(self, keys: Iterable[str]) -> dict[str, str]:
        """By scope, the call whose scope it is, as far as that is known or it is among these."""
        return {scope_under(key): key for key in keys} | self._around


def _around(key: str, owners: Mapping[str, str]) -> Iterator[str]:
    """The calls around this one, the next first."""
    while (parent := owners.get(scope_of(key))) is not None:
        yield parent
        key = parent


def _counts_anywhere(step: Step) -> bool:
    """Whether it may be what is not to be made twice, wherever it was made. Of an agent, its task tells that."""
    return step.risk != Risk.LOW or step.event_kind == StepKind.CHILD


class Records:
    """The recorded steps of a task, by key; the newest try of each."""

    def __init__(self, steps: Iterable[Step] = (), *, replay_from: int = 0) -> None:
        self._by_key: dict[str, Step] = {}
        self._unused: dict[tuple[str, str], dict[str, Step]] = defaultdict(dict)
        self._unused_anywhere: dict[str, dict[str, Step]] = defaultdict(dict)  # those of `_counts_anywhere`, by name
        # Inside calls that have been answered: no code comes to them any more, unless such a call runs again.
        self._left_inside: set[str] = set()
        self._nesting = Nesting()
        self._was_open: frozenset[str] = frozenset()  # at the checkpoint from which the agent goes on
        self._to_come: set[str] = set()  # of these, what no call has come to so far
        self._at_step = 0  # of that checkpoint
        # Dangerous calls before it that it may not stand for, by name and input.
        self._unsure: dict[str, dict[str, Step]] = defaultdict(dict)
        for step in steps:
            if step.key is None or step.step_index < replay_from:
                continue
            self._by_key[step.key] = step  # Tries come in order: the last one counts.
        for key, step in self._by_key.items():
            self._nesting.add(key)
            self._lies_unused(key, step)

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, step: Step) -> None:
        """A record that this attempt has made itself: found when the call around it runs again."""
        assert step.key is not None
        self._nesting.add(step.key)
        self._by_key[step.key] = step

    def open(self, key: str, parent: str) -> None:
        """A call is made inside another. Of the two neither may have a record yet."""
        self._nesting.open(key, parent)

    def unsure_like(self, key: str) -> Mapping[str, Step]:
        """Records of equal dangerous calls of which the checkpoint may not tell."""
        return self._unsure.get(_without_place(key), {})

    def is_another(self, key: str) -> str | None:
        """Of one equal call that was unsure this was asked. The key of the one that is unsure no more."""
        found = self._unsure.get(_without_place(key))
        return found.popitem()[0] if found else None

    def run_anew(self, step_index: int, *, now_ms: int) -> None:
        """The record no longer answers: its error is what made the call around it fail, which runs again."""
        for key, step in self._by_key.items():
            if step.step_index == step_index:
                self._by_key[key] = structs.replace(step, retried_at=now_ms)
                return

    def find(self, key: str) -> Step | None:
        """The record of this call, or None. Looking does not use it up."""
        return self._by_key.get(key)

    def use(self, key: str) -> None:
        """The record has answered its call; with it count as used the records of calls made inside it.

        But for those in doubt: whether they happened is still to be found out.
        """
        self._is_used(key)
        self._left_inside.discard(key)
        self._to_come.discard(key)
        self.use_inside(key)

    def use_inside(self, key: str) -> None:
        """The call with this key has ended: the records of calls made inside it count as used."""
        if self._nesting.is_flat:
            return
        for inner in self._nesting.all_inside(key):
            if self._is_used(inner):
                self._left_inside.add(inner)

    def begin_anew(self, key: str) -> bool:
        """The call with this key runs again: what it had made above low risk lies unused until it makes that again.

        So do the agents it had called, whose tasks may have. That at any depth, for a call in between may be made with
        another input. Whether there is any.
        """
        if self._nesting.is_flat:
            return False
        made = [step for inner in self._nesting.all_inside(key) if (step := self._by_key.get(inner)) is not None]
        counting = [step for step in made if _counts_anywhere(step)]
        for step in counting:
            self._lies_unused(step.key or "", step)
        return bool(counting)

    def unused_like(
        self, name: str, *, key: str, parent: str, is_dangerous: bool, open_keys: Collection[str]
    ) -> list[Step]:
        """Records of this name that no call has asked for yet, a sign of drift: those under the same parent.

        For a call that is or may be dangerous also those above low risk, and of agents, under any other: the call
        around it may have changed instead. But what was made inside a call that is open now (of `open_keys`), and not
        around this one, is for that to ask for; unless it is the very same call: of workers on one queue another one
        may have it now.
        """
        found = dict(self._unused.get((scope_under(parent), name), {}))
        if is_dangerous:
            found |= self.unsure_like(key)
        elsewhere = self._unused_anywhere.get(name) if is_dangerous else None
        if elsewhere:
            owners = self._nesting.owners((*self._by_key, *open_keys))
            around = {ROOT, parent, *_around(parent, owners)}
            for other, step in elsewhere.items():
                nearest = next((one for one in _around(other, owners) if one in open_keys), ROOT)
                if nearest in around or _made_alike(other, key):
                    found[other] = step
        now = (self._by_key[key] for key in found)
        return [step for step in now if not step.is_undone]  # Of one known not to have happened there is no doubt.

    def has_unused_like(self, name: str, *, key: str, parent: str, is_dangerous: bool) -> bool:
        """Whether there may be any."""
        if is_dangerous and (self._unused_anywhere.get(name) or self._unsure.get(_without_place(key))):
            return True
        return bool(self._unused) and bool(self._unused.get((scope_under(parent), name)))

    def _is_used(self, key: str) -> bool:
        """No longer unused. Whether there is such a record."""
        step = self._by_key.get(key)
        if step is None:
            return False
        self._unused[scope_of(key), step.name].pop(key, None)
        if _counts_anywhere(step):
            self._unused_anywhere[step.name].pop(key, None)
        return True

    def _lies_unused(self, key: str, step: Step) -> None:
        self._unused[scope_of(key), step.name][key] = step
        if _counts_anywhere(step):
            self._unused_anywhere[step.name][key] = step

    def leave_open(self, keys: frozenset[str]) -> None:
        """These calls were open at the checkpoint from which the agent goes on: for `use_before` they are to come."""
        self._was_open, self._to_come = keys, set(keys)

    @property
    def to_come(self) -> Collection[str]:
        """Calls at the top that have not been made again yet: on record, or open at that checkpoint."""
        unused = (step for (scope, _), found in self._unused.items() if scope == "" for step in found.values())
        return {*self._to_come, *(step.key or "" for step in unused if step.step_index >= self._at_step)}

    def has_dangerous_inside(self, key: str) -> bool:
        """Whether a call above low risk was made inside this one, at any depth."""
        if self._nesting.is_flat:
            return False
        found = (self._by_key.get(inner) for inner in self._nesting.all_inside(key))
        return any(step is not None and step.risk != Risk.LOW for step in found)

    def use_before(self, step_index: int, *, unsure: frozenset[str] = frozenset()) -> list[str]:
        """The agent goes on from a checkpoint: what was recorded before it is not asked for again.

        Returns the keys of what was made before, also of calls that left no record. What was open then is not among
        them: it and what was made inside it are found again. A dangerous call equal to one that was `unsure`, or was
        made inside one, is a sign of drift once.
        """
        self._at_step = step_index
        for key in {*unsure, *(inner for one in unsure for inner in self._nesting.all_inside(one))}:
            step = self._by_key.get(key)
            if step is not None and step.risk != Risk.LOW and step.step_index < step_index:
                self._unsure[_without_place(key)][key] = step
        still = self._was_open.union(*(self._nesting.all_inside(key) for key in self._was_open))
        before = [key for key, step in self._by_key.items() if step.step_index < step_index and key not in still]
        for key in before:
            if not self._by_key[key].is_in_doubt:
                self.use(key)
        highest: dict[str, int] = {}
        for key in (*before, *self._was_open):
            head, _, number = key.rpartition("#")
            highest[head] = max(highest.get(head, 0), int(number))
        made = (f"{head}#{number}" for head, last in highest.items() for number in range(last + 1))
        return [key for key in made if key not in self._was_open]

    def failed_inside(self, key: str) -> list[Step]:
        """Records of calls inside this one that failed and may be why it ended; not those already run anew.

        After an error that the call itself has handled it may have made a dangerous call, in place of another one: so
        none from before the last such record.
        """
        made = [step for inner in self._nesting.all_inside(key) if (step := self._by_key.get(inner)) is not None]
        since = max((step.step_index for step in made if _counts_anywhere(step)), default=0)
        failed = (step for step in made if step.outcome == "failed" and step.retried_at is None)
        return [step for step in failed if step.step_index >= since]

    def scopes_under(self, key: str) -> set[str]:
        """The scopes of calls inside the call with this key, at any depth that is known."""
        return {scope_under(one) for one in (key, *self._nesting.all_inside(key))}

    def unused(self) -> Iterator[Step]:
        """Every record that no call has asked for."""
        for keys in self._unused.values():
            for key in keys:
                yield self._by_key[key]

    @property
    def is_exhausted(self) -> bool:
        """True once every record has been used: from here on everything is live."""
        return not any(self._unused.values())

    def in_doubt(self) -> list[Step]:
        """Steps above low risk without an outcome that no call has come to, by index."""
        keys = self._left_inside.union(*self._unused.values())
        left = (step for key in keys if (step := self._by_key[key]).is_in_doubt)
        return sorted(left, key=lambda step: step.step_index)

    def in_doubt_under(self, key: str) -> Iterator[Step]:
        """Steps above low risk without an outcome inside the call with this key, the inner ones first."""
        for inner in self._nesting.all_inside(key):
            step = self._by_key.get(inner)
            if step is not None and step.is_in_doubt:
                yield step
