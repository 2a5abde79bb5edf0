"""What really ran in a play, noted outside the store: the witness when a record is missing.

A call counts as happened once its function has returned. One that raised, or was cut off before it returned, did not
happen: a stand-in has its effect where it returns.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from msgspec import structs

from perdure import ambient
from perdure.codec import evidence
from perdure.errors import NotApplied
from perdure.policy.risk import Risk
from perdure.runtime.attempt import Attempt
from perdure.runtime.call import Call
from perdure.runtime.doubts import Doubt, Verdict, happened, not_happened


class Fate(StrEnum):
    """How far a function came."""

    STARTED = "started"
    RETURNED = "returned"
    RAISED = "raised"


@dataclass(slots=True)
class Effect:
    """One run of a function. `place` is the task and the key of its step, `token` that of the call."""

    fn: Callable[..., Any]
    name: str
    risk: Risk
    arguments: Mapping[str, Any]
    place: tuple[str, str]
    token: str
    fate: Fate = Fate.STARTED
    result: Any = None
    not_applied: bool = False


@dataclass(slots=True)
class Ledger:
    """Every run of a tool's function, or of its stand-in, in order.

    `allowed_again` counts by place how often somebody said that it did not happen, so that it may run once more;
    `answered`, how often anything was said of it.
    """

    effects: list[Effect] = field(default_factory=list)
    allowed_again: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)

    def watch(self, call: Call, stand_in: Callable[..., Any] | None) -> Call:
        """The call with its function, or the stand-in for it, noted down whenever it runs.

        A stand-in runs on the event loop, whatever the tool's own function does.
        """
        fn = call.fn if stand_in is None else stand_in

        async def run_on_loop(*args: Any, **kwargs: Any) -> Any:
            with self._note(call) as effect:
                result = fn(*args, **kwargs)
                effect.result = await result if inspect.isawaitable(result) else result
            return effect.result

        def run_in_thread(*args: Any, **kwargs: Any) -> Any:
            with self._note(call) as effect:
                effect.result = fn(*args, **kwargs)
            return effect.result

        on_loop = stand_in is not None or call.is_async
        return structs.replace(call, fn=run_on_loop if on_loop else run_in_thread, is_async=on_loop)

    def last_at(self, place: tuple[str, str]) -> Effect | None:
        """The last run of one step's function."""
        return next((one for one in reversed(self.effects) if one.place == place), None)

    def reconcile(self, doubt: Doubt) -> Verdict[Any]:
        """What became of a call, in place of the tool's own word: that would ask the real world."""
        effect = next((one for one in reversed(self.effects) if one.token == doubt.token), None)
        if effect is None:
            return not_happened()
        if effect.fate is Fate.RETURNED:
            return happened(effect.result)
        self.allowed_again[effect.place] += 1
        return not_happened()

    def dangerous_effects(self) -> Counter[str]:
        """Calls from high risk up that happened, by tool and arguments."""
        return Counter(
            f"{one.name}({evidence(one.arguments).decode()})"
            for one in self.effects
            if one.risk >= Risk.HIGH and one.fate is Fate.RETURNED
        )

    def run_wrongly(self) -> list[str]:
        """Calls from high risk up that ran more often than allowed, and calls with two tokens, as sentences."""
        by_place: dict[tuple[str, str], list[Effect]] = {}
        for one in self.effects:
            if not one.not_applied:
                by_place.setdefault(one.place, []).append(one)
        wrong = []
        for place, runs in by_place.items():
            ended = sum(one.fate is Fate.RETURNED for one in runs)
            if len({one.token for one in runs}) > 1:
                wrong.append(f"{runs[0].name} of task {place[0]} was called with two tokens")
            if runs[0].risk < Risk.HIGH:
                continue
            if ended > 1 or len(runs) > 1 + self.allowed_again[place]:
                wrong.append(
                    f"{runs[0].name} was begun {len(runs)} times and happened {ended} times in task {place[0]}"
                )
        return wrong

    @contextmanager
    def _note(self, call: Call) -> Iterator[Effect]:
        scope = ambient.require(call.name)
        place = (cast("Attempt", scope.runner).task.id, scope.parent_key)
        effect = Effect(call.fn, call.name, call.risk, call.input, place, scope.token)
        self.effects.append(effect)
        try:
            yield effect
        except BaseException as error:
            effect.fate, effect.not_applied = Fate.RAISED, isinstance(error, NotApplied)
            raise
        effect.fate = Fate.RETURNED
