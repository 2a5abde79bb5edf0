"""`perdure.sync` has the names of `perdure` with the same parameters, and nothing in it is awaited."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import perdure
import perdure.sync

# What only the other side of the loop has, or has under another name.
PLUMBING = {"perform", "read", "watch", "store", "agents"}
TWINS = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
CLASSES = ("App", "Client", "TaskHandle", "Question")
FUNCTIONS = [
    name for name in perdure.__all__ if callable(getattr(perdure, name)) and not inspect.isclass(getattr(perdure, name))
]


def shape(function: Callable[..., Any]) -> list[tuple[str, str, object]]:
    """Names, kinds and defaults of the parameters; of `*name` only that it is there."""
    return [
        ("*" if one.kind is one.VAR_POSITIONAL else one.name, one.kind.name, one.default)
        for one in inspect.signature(function).parameters.values()
    ]


def methods(kind: type[Any]) -> dict[str, Any]:
    """What callers use of a class."""
    found = {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if callable(value) and name not in PLUMBING}


def test_both_have_the_same_names() -> None:
    assert set(perdure.sync.__all__) == set(perdure.__all__)
    assert all(hasattr(perdure.sync, name) for name in perdure.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_same_arguments_on_both_sides(name: str) -> None:
    assert shape(getattr(perdure.sync, name)) == shape(getattr(perdure, name))


@pytest.mark.parametrize("name", ["model", "read", "step"])
def test_the_verbs_take_the_same_options_on_both_sides(name: str) -> None:
    assert shape(getattr(perdure.sync, name).options) == shape(getattr(perdure, name).options)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_same_methods_on_both_sides(name: str) -> None:
    blocking, awaited = methods(getattr(perdure.sync, name)), methods(getattr(perdure, name))

    assert {TWINS.get(method, method): shape(value) for method, value in awaited.items()} == {
        method: shape(value) for method, value in blocking.items()
    }


@pytest.mark.parametrize("name", ["App", "Client"])
def test_a_class_is_made_with_the_same_arguments_on_both_sides(name: str) -> None:
    assert shape(getattr(perdure.sync, name)) == shape(getattr(perdure, name))


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_nothing_in_sync_is_awaitable(name: str) -> None:
    found = getattr(perdure.sync, name)
    functions = list(methods(found).values()) if inspect.isclass(found) else [found]

    for function in functions:
        if not inspect.isroutine(function):
            function = type(function).__call__  # A verb is an object, so that it can have options.
        assert not inspect.iscoroutinefunction(function)
        assert not inspect.isasyncgenfunction(function)


def test_data_and_errors_are_the_same_objects_on_both_sides() -> None:
    own = {"App", "Client", "TaskHandle", "Question"}
    classes = [name for name in perdure.__all__ if inspect.isclass(getattr(perdure, name)) and name not in own]

    assert len(classes) > 20
    assert all(getattr(perdure.sync, name) is getattr(perdure, name) for name in classes)
