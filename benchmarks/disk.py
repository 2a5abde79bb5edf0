"""Which disk a session measures on. The default is a model: files in memory, and each sync costs exactly 1.0 ms.

1.0 ms is a common flush of NVMe and of cloud volumes. The model needs Linux, a C compiler and /dev/shm; without
them, and with `--disk real`, the real disk is used. Where the compiler is missing nothing counts syncs and bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("syncshim.c")
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the files of a session lie, and what its processes must be told."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    remark: str

    @property
    def counts(self) -> bool:
        """Whether syncs and written bytes are known."""
        return bool(self.environment)


@contextmanager
def open_disk(wanted: str, *, sync_us: int) -> Iterator[Disk]:
    """A folder for one session, deleted afterwards, on the disk that is wanted or else on the real one."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as scratch:
        shim, reason = _build(Path(scratch))
        if wanted == "model" and not reason and not os.access(_MEMORY, os.W_OK):
            reason = f"{_MEMORY} is missing"
        is_model = wanted == "model" and not reason
        place = _MEMORY if is_model else Path.cwd()
        with tempfile.TemporaryDirectory(prefix=".perdure-bench-", dir=place) as folder:
            environment = {}
            if shim is not None:
                environment = {
                    "LD_PRELOAD": str(shim),
                    "SYNCSHIM_US": str(sync_us if is_model else -1),
                    "SYNCSHIM_COUNT": str(Path(scratch) / "counters"),
                }
            if is_model:
                remark = f"model disk: {sync_us / 1000:g} ms a sync, files in {_MEMORY}"
            else:
                remark = f"real disk under {place}" + (f" ({reason})" if reason else "")
            yield Disk("model" if is_model else "real", Path(folder), environment, remark)


def _build(scratch: Path) -> tuple[Path | None, str]:
    """The compiled shim, or None and why there is none."""
    if sys.platform != "linux":
        return None, "the model disk needs Linux"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None, "no C compiler for the model disk, nothing counts syncs and bytes"
    shim = scratch / "syncshim.so"
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(shim), str(_SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        return None, f"the model disk was not built: {built.stderr.strip()[:200]}"
    return shim, ""
