"""A task's recorded history as a replay uses it: find a call by its key, tell what is left, notice drift. Pure.

A key is the call's name, the digest of its input and an occurrence number among equal pairs, under the key of the
call it was made in. So a recorded result is only ever given to the same call, in whatever order branches run.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import structs

from perdure.model.step import Step
from perdure.policy.risk import Risk

ROOT = ""


def call_key(parent: str, name: str, digest: str, occurrence: int) -> str:
    """The key of a call by its input. Unique: digest and occurrence have a fixed form at the end."""
    scope = "" if parent == ROOT else _scope(parent)
    return f"{scope}={name}:{digest}#{occurrence}"


def named_key(parent: str, key: str, occurrence: int) -> str:
    """The key of a call whose caller gave `key=`, which replaces name and digest."""
    return f"{_scope(parent)}@{key}#{occurrence}"


def scope_of(key: str) -> str:
    """What distinguishes the parents of two calls, read off a key."""
    # A key at the top begins with a mark of its own, whatever slashes its name has.
    return "" if key[:1] in ("=", "@") else key[:17]


def scope_under(parent: str) -> str:
    """The scope of calls made inside the call with this key."""
    return _scope(parent)


def _scope(parent: str) -> str:
    return "" if parent == ROOT else hashlib.sha256(parent.encode()).hexdigest()[:16] + "/"


class Occurrences:
    """Numbers equal calls of one attempt in the order they are made."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)

    def number(self, parent: str, name: str, digest: str) -> int:
        """0 for the first call of its kind, then 1, 2, …"""
        counts, call = self._counts[parent], (name, digest)
        number = counts.get(call, 0)
        counts[call] = number + 1
        return number

    def take_back(self, parent: str, name: str, digest: str) -> None:
        """The call that was numbered last is not made: its number is the next one's."""
        self._counts[parent][name, digest] -= 1

    def go_on_after(self, keys: Iterable[str]) -> None:
        """Calls at the top that were made before: the next equal one is another call, and not one of these again."""
        counts = self._counts[ROOT]
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
            counts[call] = max(counts.get(call, 0), int(number) + 1)

    def restart(self, parent: str) -> None:
        """The call with this key begins anew: the calls inside it are counted from 0 again."""
        self._counts.pop(parent, None)


class Records:
    """The recorded steps of a task, by key; the newest try of each."""

    def __init__(self, steps: Iterable[Step] = (), *, replay_from: int = 0) -> None:
        self._by_key: dict[str, Step] = {}
        self._unused: dict[tuple[str, str], dict[str, Step]] = defaultdict(dict)
        self._unused_above_low: dict[str, dict[str, Step]] = defaultdict(dict)  # the same by name, wherever it was made
        # Inside calls that have been answered: no code comes to them any more, unless such a call runs again.
        self._left_inside: set[str] = set()
        self._under: dict[str, list[str]] = defaultdict(list)
        for step in steps:
            if step.key is None or step.step_index < replay_from:
                continue
            self._by_key[step.key] = step  # Tries come in order: the last one counts.
        for key, step in self._by_key.items():
            self._under[scope_of(key)].append(key)
            self._lies_unused(key, step)

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, step: Step) -> None:
        """A record that this attempt has made itself: found when the call around it runs again, no sign of drift."""
        assert step.key is not None
        if step.key not in self._by_key:
            self._under[scope_of(step.key)].append(step.key)
        self._by_key[step.key] = step

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
        step = self._by_key.get(key)
        if step is None:
            return
        self._unused[scope_of(key), step.name].pop(key, None)
        if step.risk != Risk.LOW:
            self._unused_above_low[step.name].pop(key, None)
        self._left_inside.discard(key)
        self.use_inside(key)

    def use_inside(self, key: str) -> None:
        """The call with this key has its outcome: the records of calls made inside it count as used."""
        if self._has_inner:
            for inner in self._under.get(scope_under(key), ()):
                self.use(inner)
                self._left_inside.add(inner)

    def begin_anew(self, key: str) -> bool:
        """The call with this key runs again: what it had made above low risk lies unused until it makes that again.

        That at any depth, for a call in between may be made with another input. Whether there is any.
        """
        if not self._has_inner:
            return False
        has_any = False
        for inner in self._under.get(scope_under(key), ()):
            step = self._by_key[inner]
            if step.risk != Risk.LOW:
                self._lies_unused(inner, step)
                has_any = True
            has_any = self.begin_anew(inner) or has_any
        return has_any

    def unused_like(self, name: str, *, parent: str, is_dangerous: bool) -> list[Step]:
        """Records of this name that no call has asked for yet, a sign of drift: those under the same parent.

        For a dangerous call also those above low risk under any other: the call around it may have changed instead.
        """
        found = dict(self._unused.get((scope_under(parent), name), {}))
        if is_dangerous:
            found |= self._unused_above_low.get(name, {})
        return [self._by_key[key] for key in found]

    def has_unused_like(self, name: str, *, parent: str, is_dangerous: bool) -> bool:
        """Whether there are any."""
        if is_dangerous and self._unused_above_low.get(name):
            return True
        return bool(self._unused) and bool(self._unused.get((scope_under(parent), name)))

    def _lies_unused(self, key: str, step: Step) -> None:
        self._unused[scope_of(key), step.name][key] = step
        if step.risk != Risk.LOW:
            self._unused_above_low[step.name][key] = step

    @property
    def _has_inner(self) -> bool:
        """Whether any call was made inside another. Otherwise there is no need to work out what lies where."""
        return len(self._under) > (ROOT in self._under)

    def use_before(self, step_index: int) -> list[str]:
        """The agent goes on from a checkpoint: what was recorded before it is not asked for again. Its keys."""
        before = [key for key, step in self._by_key.items() if step.step_index < step_index]
        for key in before:
            if not self._by_key[key].is_in_doubt:
                self.use(key)
        return before

    def scopes_under(self, key: str) -> set[str]:
        """The scopes of calls inside the call with this key, at any depth of recorded ones."""
        found = {scope_under(key)}
        for inner in self._under.get(scope_under(key), ()):
            found |= self.scopes_under(inner)
        return found

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
        for inner in self._under.get(scope_under(key), ()):
            yield from self.in_doubt_under(inner)
            if (step := self._by_key[inner]).is_in_doubt:
                yield step
