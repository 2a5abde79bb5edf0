"""Time, ids and randomness, injected so that every test can own them.

Instants are integer milliseconds UTC. Leases are never judged by comparing two clocks:
`boot_ms` (which goes on while the machine sleeps and never jumps) measures them on one.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O, U
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """The wall clock, in milliseconds UTC."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since some fixed moment; only ever grows, also while the machine sleeps."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return int(time.clock_gettime(_BOOT) * 1000)


@dataclass(slots=True)
class FakeClock:
    """A clock that moves only when told. `jump` moves the wall clock alone, as an operator would."""

    wall_ms: int = 1_790_000_000_000
    steady_ms: int = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def boot_ms(self) -> int:
        return self.steady_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        assert ms >= 0
        self.wall_ms += ms
        self.steady_ms += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock forward or back by `ms`; the steady clock does not notice."""
        self.wall_ms += ms


class Ids(Protocol):
    """Where ids, tokens and random numbers come from."""

    def new(self, now_ms: int) -> str:
        """A new id: 26 characters, sortable by time, unique without asking anyone."""
        ...

    def token(self) -> str:
        """32 random hexadecimal digits that nobody can guess."""
        ...

    def random(self) -> Random:
        """A source of random numbers, seeded from this one."""
        ...


def _sortable(now_ms: int, low: int) -> str:
    number = (now_ms & (1 << 48) - 1) << 80 | low
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


class RandomIds:
    """Ids and randomness from the operating system; safe to use from any thread and after fork."""

    def new(self, now_ms: int) -> str:
        return _sortable(now_ms, int.from_bytes(os.urandom(10), "big"))

    def token(self) -> str:
        return secrets.token_hex(16)

    def random(self) -> Random:
        return Random(int.from_bytes(os.urandom(16), "big"))


@dataclass(slots=True)
class SeededIds:
    """The same ids in every run with the same seed."""

    seed: int = 0
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def new(self, now_ms: int) -> str:
        return _sortable(now_ms, self._random.getrandbits(80))

    def token(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def random(self) -> Random:
        return Random(self._random.getrandbits(128))
