"""A world in which an agent plays: in memory, in virtual time, with stand-ins for its tools and answers given."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast

from perdure import codec, phrases
from perdure.definitions import AgentCall, AgentDefinition, Startable, Tool, definition_of, returns
from perdure.errors import BadInput, Error
from perdure.runtime.durable import failure
from perdure.runtime.threads import start_thread
from perdure.runtime.verbs import check_named
from perdure.states import TaskStatus
from perdure.testing.acting import Cast
from perdure.testing.answers import Answer, Answers, tool_of
from perdure.testing.ledger import Effect
from perdure.testing.line import Death, Moment
from perdure.testing.stage import Record, Stage

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, repr=False)
class Play(Generic[R]):
    """How a play ended.

    `questions` are the texts of those that nobody answered, `commits` say in words what a worker wrote, and `death`
    where it died.
    """

    status: TaskStatus
    error: Error | None
    questions: tuple[str, ...]
    commits: tuple[str, ...]
    death: str
    _effects: tuple[Effect, ...]
    _value: R | None

    def __repr__(self) -> str:
        told = "" if self.error is None else f": {self.error}"
        if self.status is TaskStatus.COMPLETED:
            told = f": {phrases.shown(self._value)}"
        asked = f", waits for {phrases.listed(self.questions)}" if self.questions else ""
        death = f", {self.death}" if self.death else ""
        return f"<Play {self.status}{told}{asked}, {phrases.count(len(self.commits), 'commit')}{death}>"

    @property
    def result(self) -> R:
        """What the agent returned. Raises TaskFailed when it failed, AssertionError when it has not ended."""
        if self.status is TaskStatus.COMPLETED:
            return cast("R", self._value)
        if self.status.is_terminal:
            raise failure("of this play", self.status, self.error)
        none = " (World(answers=…) has none that fits)"
        asked = "; ".join(self.questions) + none if self.questions else "something that this world does not give"
        raise AssertionError(f"the task has not ended, it is {self.status} and waits for: {asked}")

    def calls(self, tool: Tool[..., Any] | str, /) -> list[Mapping[str, Any]]:
        """The arguments of every run of a tool's function or stand-in, in order, by parameter name.

        A `step` or `read` is asked for by its name.
        """
        if isinstance(tool, str):
            return [effect.arguments for effect in self._effects if effect.name == tool]
        fn = tool_of(tool, "tool").fn
        return [effect.arguments for effect in self._effects if effect.fn is fn]


class World:
    """Plays agents without the real world: nothing is stored on disk, nothing takes time, nobody is asked.

    `tools` gives stand-ins for tools, `steps` for `step` and `read` by their names; what is above low risk and has none
    is refused, what is low really runs. A tool that stands in for itself runs its own function. A stand-in has its
    effect where it returns. `deps` is what the app's lifespan would yield for `perdure.deps` to find: an object, or a
    list or tuple of some; the same in every play. `answers` are found by tool, or by words in the question: "approve"
    or "deny" for calls, a Verdict for calls in doubt (without one the world answers what it saw), any value for `ask`;
    NOBODY lets it expire. May be used for many plays.
    """

    def __init__(
        self,
        *,
        tools: Mapping[Tool[..., Any], Callable[..., Any]] | None = None,
        steps: Mapping[str, Callable[..., Any]] | None = None,
        answers: Mapping[Tool[..., Any] | str, Answer] | None = None,
        deps: Any = (),
    ) -> None:
        self._tools = {tool_of(tool, "tools").fn: _plain(fn) for tool, fn in (tools or {}).items()}
        self._steps = {check_named(name, fn): _plain(fn) for name, fn in (steps or {}).items()}
        self._deps = deps if isinstance(deps, list | tuple) else (deps,)
        self._answers = Answers.of(answers or {})

    async def play(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Play[R]:
        """Run the agent to its end, or to where nothing moves it on any more: see `Play.questions`.

        Raises BadInput when it calls a tool above low risk without a stand-in, AssertionError when the store breaks
        a promise, when a high-risk call runs twice, or when the agent never comes to an end.
        """
        record = await self._play(_call(agent, args, kwargs), None)
        _check(record.wrong, "played without a crash")
        return _play(record, agent, "")

    async def crash_everywhere(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[Play[R]]:
        """Play once without a crash, then twice for each commit: with a death just before it, and just after it.

        Another worker goes on each time. Returns the plays with a death. Raises AssertionError naming the commit when
        one ended otherwise than the whole one, ran a high-risk call twice, or left something stuck. The outcome must
        not depend on time or on random ids.
        """
        call = _call(agent, args, kwargs)
        whole = await self._play(call, None)
        _check(whole.wrong, "played without a crash")
        plays: list[Play[R]] = []
        for number, commit in enumerate(whole.commits, 1):
            for moment in Moment:
                record = await self._play(call, Death(number, moment))
                death = f"killed {moment} commit {number} of {len(whole.commits)} ({commit})"
                _check([*record.wrong, *_differences(whole, record)], death)
                plays.append(_play(record, agent, death))
        return plays

    async def _play(self, call: AgentCall, death: Death | None) -> Record:
        troupe = Cast(self._tools, self._steps, self._deps)
        stage = Stage(call, troupe=troupe, answers=self._answers, death=death)
        try:
            record = await start_thread(stage.run, context=contextvars.copy_context(), name="play")
        except asyncio.CancelledError:
            stage.loop.turns_left = 0  # Whoever waited has gone; the thread ends at its next turn.
            raise
        if troupe.problems:
            raise troupe.problems[0]
        return record


def _play(record: Record, agent: Startable[..., R], death: str) -> Play[R]:
    value: Any = None
    if record.status is TaskStatus.COMPLETED:
        assert record.result is not None
        value = codec.decode(record.result, annotation=returns(_definition(agent).fn))
    return Play(
        record.status, record.error, record.questions, record.commits, death, tuple(record.ledger.effects), value
    )


def _differences(whole: Record, crashed: Record) -> list[str]:
    found = []
    if (crashed.status, crashed.questions) != (whole.status, whole.questions):
        found.append(f"the task {_ended(crashed)}, without a crash it {_ended(whole)}")
    elif _outcome(crashed) != _outcome(whole):
        found.append(f"the outcome was {_outcome(crashed)}, without a crash {_outcome(whole)}")
    ran, wanted = crashed.ledger.dangerous_effects(), whole.ledger.dangerous_effects()
    found += (
        f"{call} happened {ran[call]} times, without a crash {wanted[call]} times"
        for call in sorted((ran - wanted) | (wanted - ran))
    )
    return found


def _check(wrong: list[str] | tuple[str, ...], place: str) -> None:
    if wrong:
        raise AssertionError(f"{place}: " + "\n".join(wrong))


def _ended(record: Record) -> str:
    asked = f" and asks {'; '.join(record.questions)}" if record.questions else ""
    return f"ended {record.status}{asked}" if record.status.is_terminal else f"is {record.status}{asked}"


def _outcome(record: Record) -> str:
    if record.error is not None:
        return str(record.error)
    return "nothing" if record.result is None else record.result.decode()


def _plain(stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in as a plain function: a decorated one would make the call that it stands for once more."""
    definition = definition_of(stand_in)
    return stand_in if definition is None else definition.fn


def _definition(agent: object) -> AgentDefinition:
    definition = definition_of(agent)
    if not isinstance(definition, AgentDefinition):
        raise BadInput(f"{agent!r} is no agent; decorate it with @perdure.agent", field="agent")
    return definition


def _call(agent: Startable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> AgentCall:
    _definition(agent)
    call = agent.bind(*args, **kwargs).call
    assert isinstance(call, AgentCall)
    return call
