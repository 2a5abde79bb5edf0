"""Python's garbage collector in the process of `perdure worker`.

What an app has loaded stays, and what a task leaves behind is freed without the collector, as soon as nothing refers to
it. Left alone, the collector looks through all of it again and again: a tenth of the time that a recovery takes.
"""

from __future__ import annotations

import gc

_AS_PYTHON_HAS_IT = gc.get_threshold()  # read before the app is loaded
# New objects until it looks at these, and how often it does that until it looks at older ones.
_YOUNG, _MIDDLE, _OLD = 10_000, 20, 20


def calm_down() -> None:
    """Have it look rarely, and never at what there is by now; an app that has set it otherwise knows better."""
    if gc.get_threshold() != _AS_PYTHON_HAS_IT:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
