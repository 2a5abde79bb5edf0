"""What a cell measures with: rates, latencies, CPU, syncs and written bytes; and the payload that every cell stores."""

from __future__ import annotations

import json
import os
import resource
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

PAYLOAD_BYTES = 2048

Numbers = dict[str, float | None]


def make_payload(size_bytes: int = PAYLOAD_BYTES) -> dict[str, Any]:
    """What a model or a tool might answer: exactly `size_bytes` as JSON without whitespace, the same in every run."""
    random = Random(1)
    words = ["".join(random.choices(ascii_lowercase, k=random.randint(2, 9))) for _ in range(400)]
    answer: dict[str, Any] = {
        "role": "assistant",
        "model": "m-large",
        "usage": {"input_tokens": 1234, "output_tokens": 321, "cost": 0.00123},
        "tool_calls": [
            {"id": f"call_{i}", "name": "search", "args": {"q": " ".join(random.sample(words, 4)), "k": 5}}
            for i in range(3)
        ],
        "content": "",
    }
    left = size_bytes - len(json.dumps(answer, separators=(",", ":")))
    answer["content"] = " ".join(random.choices(words, k=size_bytes))[:left]
    return answer


@dataclass(frozen=True, slots=True)
class _Reading:
    wall_s: float
    cpu_s: float
    syncs: int
    written_bytes: int


class Meter:
    """What happened between `start` and `stop`, in this process and on the disk."""

    def __init__(self) -> None:
        self._counters = os.environ.get("SYNCSHIM_COUNT")
        self._begun = self._ended = self._read()

    def start(self) -> None:
        """Measure from here on."""
        self._begun = self._read()

    def stop(self) -> None:
        """Measure up to here."""
        self._ended = self._read()

    @property
    def counts(self) -> bool:
        """Whether syncs and bytes are known."""
        return self._counters is not None

    def syncs(self) -> int:
        """Syncs of all processes of this run so far."""
        return self._read().syncs

    @property
    def wall_s(self) -> float:
        """How long it took."""
        return self._ended.wall_s - self._begun.wall_s

    def per(self, count: int) -> Numbers:
        """Rate and cost of each of `count` operations; syncs and bytes are None where nothing counts them."""
        begun, ended, counts = self._begun, self._ended, self.counts
        return {
            "count": count,
            "per_s": count / self.wall_s,
            "cpu_us": (ended.cpu_s - begun.cpu_s) / count * 1e6,
            "syncs": (ended.syncs - begun.syncs) / count if counts else None,
            "written_bytes": (ended.written_bytes - begun.written_bytes) / count if counts else None,
        }

    def _read(self) -> _Reading:
        syncs = written = 0
        if self._counters is not None:
            syncs, _, written, _ = struct.unpack("4Q", Path(self._counters).read_bytes()[:32])
        used = resource.getrusage(resource.RUSAGE_SELF)
        return _Reading(time.perf_counter(), used.ru_utime + used.ru_stime, syncs, written)


def latencies(samples_s: Sequence[float]) -> Numbers:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(samples_s)
    return {"p50_ms": _at(ordered, 0.5), "p99_ms": _at(ordered, 0.99)}


def _at(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 if ordered else None
