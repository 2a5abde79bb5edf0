"""A recorded call in the words of who made it: with its arguments in the order in which its function takes them.

A record keeps arguments by their names alone, so that equal calls are equal however they are written. Where the code
of the function is not here, they stand in the order of their names.
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
    return phrases.call(name, _as_declared(name, given))


def _as_declared(name: str, arguments: object) -> object:
    if not isinstance(arguments, Mapping):
        return arguments
    for fn in functions_named(name):
        declared = inspect.signature(fn).parameters
        if arguments.keys() <= declared.keys():
            return {one: arguments[one] for one in declared if one in arguments}
    return arguments
