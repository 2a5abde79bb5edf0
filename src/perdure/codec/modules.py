"""Modules by the name under which others import them: what `python m.py` has run is on record as m, not `__main__`."""

from __future__ import annotations

import functools
import sys
from pathlib import PurePath
from types import ModuleType

# The second is what a process that multiprocessing has spawned calls its parent's script.
_MAIN = ("__main__", "__mp_main__")


def recorded_name(module: str) -> str:
    """The name a module goes by on record.

    A script keeps its own where none is known, as in a notebook, or where it has been imported beside, too: then there
    are two of each class.
    """
    return _script() or module if module in _MAIN else module


def loaded(name: str) -> ModuleType | None:
    """The loaded module of this name, which may be the script that runs. Nothing is imported for it."""
    return sys.modules.get(_MAIN[0] if name == _script() else name)


@functools.cache
def _script() -> str | None:
    """The name the script goes by in this process. Found once: what a tool imports later must not change it."""
    name = _importable_name()
    return None if name in sys.modules else name


def _importable_name() -> str | None:
    script = sys.modules.get(_MAIN[0])
    spec = getattr(script, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    path = PurePath(getattr(script, "__file__", None) or "")
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() else None
