"""One call that an agent makes, described before anything is looked up or run."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from perdure.arguments import is_async
from perdure.codec import ANY, OPAQUE, evidence
from perdure.definitions import ToolCall, bind_arguments, returns
from perdure.model.step import StepKind
from perdure.policy.risk import Risk


class Call(Struct, kw_only=True, eq=False):
    """What to record and what to run. `input` is evidence and makes the digest; `args` are what really goes in."""

    kind: StepKind
    name: str
    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    risk: Risk = Risk.LOW
    agent_risk: Risk = Risk.LOW  # of an agent, as it is declared; the call of it only waits
    key: str | None = None
    timeout_s: float | None = None
    retries: int | None = None
    ambiguous: tuple[type[BaseException], ...] = ()
    reconcile: Callable[..., Any] | None = None
    needs_approval: bool = False
    to: str = ""
    secrets: tuple[str, ...] = ()
    annotation: Any = ANY
    is_async: bool = True
    tells_apart: bool = True  # False where equal calls may swap their results: values, waits, what is told
    is_running: bool = False  # from the start of its function until its outcome is on record

    @property
    def is_dangerous(self) -> bool:
        """Whether its intent must be on record before it runs."""
        return self.risk is not Risk.LOW

    @property
    def may_be_dangerous(self) -> bool:
        """Whether it is, or runs an agent, which may make calls that are."""
        return self.is_dangerous or self.kind is StepKind.CHILD

    @property
    def is_alone(self) -> bool:
        """Whether no second one like it may be open beside it: what each comes to depends on more than is recorded."""
        return self.tells_apart and (not self.input or self.kind is StepKind.ANSWER)

    def hidden(self, body: bytes) -> tuple[object, ...]:
        """What may tell it from its like, and is not recorded: what its function holds, secrets, live objects."""
        live = (one for one in (*self.args, *self.kwargs.values()) if OPAQUE in evidence(one))
        return (*_held(self.fn), self.secrets, *(live if OPAQUE in body else ()))


def from_tool(call: ToolCall) -> Call:
    """The call of a decorated tool. Raises BadInput for arguments that do not fit or a risk that is none."""
    tool = call.definition
    arguments = bind_arguments(tool.fn, call.args, call.kwargs)
    secrets = tuple(_texts(arguments.pop(name, None) for name in tool.secret))
    risk = tool.risk_of(call.args, call.kwargs)
    approve = tool.approve(*call.args, **call.kwargs) if callable(tool.approve) else tool.approve
    return Call(
        kind=StepKind.TOOL_CALL,
        name=tool.name,
        fn=tool.fn,
        args=call.args,
        kwargs=call.kwargs,
        input=arguments,
        risk=risk,
        key=call.options.key,
        timeout_s=call.options.timeout_s if call.options.timeout_s is not None else tool.timeout_s,
        retries=call.options.retries if call.options.retries is not None else tool.retries,
        ambiguous=tool.ambiguous,
        reconcile=tool.reconcile,
        needs_approval=bool(approve) or risk is Risk.CRITICAL,
        to=tool.to,
        secrets=secrets,
        annotation=returns(tool.fn),
        is_async=tool.is_async,
    )


def from_function(
    kind: StepKind,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    risk: Risk,
    key: str | None,
) -> Call:
    """The call of an undecorated function: `model`, `read`, `step`."""
    return Call(
        kind=kind,
        name=name,
        fn=fn,
        args=args,
        kwargs=kwargs,
        input=bind_arguments(fn, args, kwargs),
        risk=risk,
        key=key,
        annotation=returns(fn),
        is_async=is_async(fn),
    )


def name_of(fn: Callable[..., Any]) -> str:
    """What a function is called in the trace."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__


def _held(fn: Callable[..., Any]) -> Iterator[object]:
    """What a function is beside its name: itself, or what it is bound to."""
    if isinstance(fn, functools.partial):
        yield from (*_held(fn.func), *fn.args, *fn.keywords, *fn.keywords.values())
        return
    if isinstance(fn, types.FunctionType):
        yield fn
    else:
        yield getattr(fn, "__self__", fn)
        yield getattr(fn, "__func__", None)


def _texts(values: Collection[Any] | Any) -> list[str]:
    """Every non-empty text in some values, longest first so that one that contains another goes as a whole."""
    found: set[str] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, bytes):
            found.add(value.decode("utf-8", "replace"))
        elif isinstance(value, Mapping):
            todo += list(value.values())
        elif isinstance(value, list | tuple | set):
            todo += list(value)
        elif callable(reveal := getattr(value, "get_secret_value", None)):
            todo.append(reveal())
    return sorted((text for text in found if text), key=lambda text: (-len(text), text))
