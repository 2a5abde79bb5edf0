"""Arguments are written down by the names of the parameters, as Python itself would bind them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from perdure.arguments import bind_arguments, unbind_arguments
from perdure.errors import BadInput


def _nothing() -> None: ...
def _one(a: int) -> None: ...
def _optional(a: int, b: int = 1) -> None: ...
def _four(a: int, b: int, c: int = 1, d: int = 2) -> None: ...
def _keyword_only(a: int, *, b: int = 1) -> None: ...
def _position_only(a: int, /, b: int = 1) -> None: ...
def _rest(a: int, *rest: int) -> None: ...
def _named_rest(a: int, **rest: int) -> None: ...


FUNCTIONS = (_nothing, _one, _optional, _four, _keyword_only, _position_only, _rest, _named_rest)
KEYWORDS = [names for count in range(4) for names in combinations("dcba", count)]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_every_call_is_bound_as_python_binds_it_or_refused_as_python_refuses_it(fn: Callable[..., None]) -> None:
    for count in range(5):
        for names in KEYWORDS:
            args, kwargs = tuple(range(count)), dict.fromkeys(names, 9)
            try:
                wanted = _by_python(fn, args, kwargs)
            except TypeError:
                with pytest.raises(BadInput):
                    bind_arguments(fn, args, kwargs)
                continue

            bound = bind_arguments(fn, args, kwargs)

            assert list(bound.items()) == list(wanted.items())


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_what_was_bound_calls_the_function_as_before(fn: Callable[..., None]) -> None:
    bound = {} if fn is _nothing else bind_arguments(fn, (1, 2) if fn is _four else (1,), {})

    args, kwargs = unbind_arguments(fn, bound)

    assert bind_arguments(fn, args, kwargs) == bound


def test_a_function_that_stands_for_another_is_bound_by_the_signature_it_shows() -> None:
    def wrapper(*args: int) -> None: ...

    wrapper.__wrapped__ = _optional  # type: ignore[attr-defined]  # as functools.wraps does

    assert bind_arguments(wrapper, (1, 2), {}) == {"a": 1, "b": 2}


def _by_python(fn: Callable[..., None], args: tuple[int, ...], kwargs: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in inspect.signature(fn).bind(*args, **kwargs).arguments.items():
        if isinstance(value, dict):
            found |= value
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found
