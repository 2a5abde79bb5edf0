"""Modules by the name under which others import them: what `python m.py` has run is on record as m, not `__main__`."""

from __future__ import annotations

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
    if module not in _MAIN:
        return module
    name = _name_of_script()
    return module if name is None or name in sys.modules else name


def loaded(name: str) -> ModuleType | None:
    """The loaded module of this name, which may be the script that runs. Nothing is imported for it."""
    found = sys.modules.get(name)
    if found is None and name == _name_of_script():
        return sys.modules.get(_MAIN[0])
    return found


def _name_of_script() -> str | None:
    script = sys.modules.get(_MAIN[0])
    spec = getattr(script, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    path = PurePath(getattr(script, "__file__", None) or "")
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() else None
