"""Arguments and annotations of functions: how a call is written down, and durations and instants as people give them.

Equal calls look equal however they are written, so that a record is found again.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from perdure.callables import Duration
from perdure.codec import ANY
from perdure.errors import BadInput

_POSITIONAL_ONLY: Final = inspect.Parameter.POSITIONAL_ONLY
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLACED: Final = (_POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def bind_arguments(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, so that equal calls look equal however they are written."""
    found = _bind_plainly(fn, args, kwargs)
    if found is not None:
        return found
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and _has_signature(fn):
            raise BadInput(f"{called(fn)}: {error}", field="arguments") from None
        return {"args": list(args), **kwargs}  # Some C functions tell no signature.
    found = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
    return found


def unbind_arguments(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reverse of `bind_arguments`: what to call the function with."""
    if _takes_by_name(fn, arguments):
        return (), dict(arguments)
    signature = _signature(fn)
    rest = dict(arguments)
    bound = signature.bind_partial()
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in rest:
            value = rest.pop(name)
            bound.arguments[name] = tuple(value) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else value
    return bound.args, {**bound.kwargs, **rest}


def _takes_by_name(fn: Callable[..., Any], names: Iterable[str]) -> bool:
    """Whether it surely has parameters of these names that may be given by name; read off the code, as below."""
    if type(fn) is not types.FunctionType or fn.__dict__:
        return False
    code = fn.__code__
    if code.co_posonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return False
    return set(names) <= set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _bind_plainly(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same for the commonest calls: a plain function of plain parameters, and arguments that fit it. Else None.

    Read off the code object, since `inspect.signature` takes 25 us and this 1; not kept by function, for that would
    keep alive whatever a lambda holds.
    """
    if type(fn) is not types.FunctionType or fn.__dict__:
        return None  # `__wrapped__` and `__signature__` lie in the dict, and may say something else.
    code, defaults = fn.__code__, fn.__defaults__
    takes_more = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount
    if takes_more or code.co_posonlyargcount or len(args) > code.co_argcount:
        return None
    names = code.co_varnames[: code.co_argcount]
    given = dict(zip(names, args, strict=False))
    if len(given) == len(names) and not kwargs:
        return given
    if kwargs:
        left = names[len(args) :]
        if not all(name in left for name in kwargs):
            return None
        given |= {name: kwargs[name] for name in left if name in kwargs}
    least = code.co_argcount - (0 if defaults is None else len(defaults))
    return given if len(given) == len(names) or all(name in given for name in names[:least]) else None


def check_takes_arguments_of(fn: Callable[..., Any], given: Callable[..., Any], name: str) -> None:
    """Refuse a function that is to be called with the arguments of `fn` and cannot take them, before the first call.

    Raises BadInput where it cannot take all of them, or only those without a default, neither by place nor by name.
    What tells no signature is not judged.
    """
    if not _has_signature(given):
        return
    parameters = list(inspect.signature(fn).parameters.values())
    needed = [one for one in parameters if one.default is one.empty and one.kind not in _MANY]
    for call in (needed, parameters):
        by_place, by_name = _misfit(given, call, _PLACED), _misfit(given, call, (_POSITIONAL_ONLY, _MANY[0]))
        if by_place and by_name:
            given_as = ", ".join(one.name for one in call) or "nothing"
            how = f"when it is called as the tool may be, with {given_as}: give it the parameters of the tool"
            raise BadInput(f"{name} does not fit {called(fn)}: {by_place} {how}", field=name)


def _misfit(fn: Callable[..., Any], call: Sequence[inspect.Parameter], placed: Collection[object]) -> str:
    """Why a function cannot be called with a value for each of these, those of some kinds by place; "" if it can."""
    places = [one.name for one in call if one.kind in placed]
    try:
        inspect.signature(fn).bind(*places, **{one.name: None for one in call if one.kind not in placed})
    except TypeError as error:
        return str(error)
    return ""


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call of it gives a coroutine. Read off the code object of a plain function, for `inspect` is slow."""
    if type(fn) is types.FunctionType and not fn.__dict__:
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(fn)


@functools.lru_cache(maxsize=4096)
def hints(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """A function's annotations, or none when they cannot be resolved."""
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001  # Names that exist only for type checkers: then the recorded class decides.
        return {}


def returns(fn: Callable[..., Any]) -> Any:
    """What a function says it returns; ANY when it does not say."""
    if type(fn) is types.FunctionType and not fn.__annotations__ and not fn.__dict__:
        return ANY  # Most lambdas: not looked up, since `hints` would keep alive whatever they hold.
    try:
        return hints(fn).get("return", ANY)
    except TypeError:  # Not hashable.
        return ANY


def seconds(duration: Duration, name: str) -> float:
    """A duration as seconds. Raises BadInput for what is none."""
    value: object = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise BadInput(f"{name} is {duration!r}; give seconds, not below 0, or a timedelta", field=name)
    return float(value)


def instant_ms(moment: datetime, name: str) -> int:
    """An aware datetime as milliseconds UTC. Raises BadInput for a naive one."""
    if moment.tzinfo is None:
        raise BadInput(f"{name} is a naive datetime; give it a zone, for example datetime.now(UTC)", field=name)
    return int(moment.astimezone(UTC).timestamp() * 1000)


def called(thing: object) -> str:
    """What to call a thing in messages."""
    return str(getattr(thing, "__qualname__", type(thing).__name__))


@functools.lru_cache(maxsize=1024)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Kept, for it is asked for the function of an agent, which lives as long as its module."""
    return inspect.signature(fn)


def _has_signature(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn)
    except (TypeError, ValueError):
        return False
    return True
