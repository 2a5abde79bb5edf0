"""Room for recursion that does not depend on who calls.

A value that was stored by shallow code must be readable by deep code, and a step's input must give the same digest
from both: so work that runs out of stack runs again on an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def with_room(work: Callable[[], _T]) -> _T:
    """What `work` gives; if the stack is used up, from a second try in a thread, whose stack is empty.

    Raises RecursionError if even that is too little. `work` must be safe to run twice.
    """
    try:
        return work()
    except RecursionError:
        pass  # Leave the handler first: the second try needs none of the frames of the first.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()
