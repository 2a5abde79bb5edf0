"""A recorded call in the words of who made it: with its arguments in the order in which its function takes them.

A record keeps arguments by their names alone, so that equal calls are equal however they are written. They stand in
the order of their names where the function is not known here: its module is not imported, or it is no tool and no
agent but was given to `step`, `model` or `read`. So do those that it takes as `**more`, after those it declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from perdure import phrases
from perdure.definitions import functions_named


def call(name: str, given: object) -> str:
    """A recorded call as one would write it. The arguments of an imported one lie beside the batch it was asked in."""
    if isinstance(given, dict) and given.keys() == {"arguments", "batch"}:
        given = given["arguments"]
    return phrases.call(name, as_declared(name, given) if isinstance(given, Mapping) else given)


def as_declared(name: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Recorded arguments in the order in which the function of this name takes them, where it is known here."""
    for fn in functions_named(name):
        declared = inspect.signature(fn).parameters
        takes_more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in declared.values())
        if takes_more or arguments.keys() <= declared.keys():
            return {**{one: arguments[one] for one in declared if one in arguments}, **arguments}
    return arguments
