"""A world in which an agent plays: in memory, in virtual time, with stand-ins for its tools and answers to its questions."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast

from perdure import codec
from perdure.definitions import AgentCall, AgentDefinition, Startable, Tool, ToolDefinition, definition_of, returns
from perdure.errors import BadInput, Error
from perdure.runtime.durable import failure
from perdure.runtime.threads import start_thread
from perdure.states import TaskStatus
from perdure.testing.acting import Cast
from perdure.testing.answers import Answer, Answers
from perdure.testing.line import Death, Moment
from perdure.testing.stage import Record, Stage

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Play(Generic[R]):
    """How a play ended. `questions` are the texts of those that nobody answered; `death` says where a worker died."""

    status: TaskStatus
    error: Error | None
    questions: tuple[str, ...]
    death: str
    record: Record
    value: R | None

    @property
    def result(self) -> R:
        """What the agent returned. Raises TaskFailed when it failed, AssertionError when it has not ended."""
        if self.status is TaskStatus.COMPLETED:
            return cast("R", self.value)
        if self.status.is_terminal:
            raise failure("of this play", self.status, self.error)
        asked = "; ".join(self.questions) or "nothing that this world could give"
        raise AssertionError(f"the task has not ended, it is {self.status} and waits for: {asked}")

    def calls(self, tool: Tool[..., Any], /) -> list[Mapping[str, Any]]:
        """The arguments of every run of a tool's function or stand-in, in order, by parameter name."""
        definition = definition_of(tool)
        if not isinstance(definition, ToolDefinition):
            raise BadInput(f"{tool!r} is no tool", field="tool")
        return [effect.arguments for effect in self.record.ledger.effects if effect.fn is definition.fn]


class World:
    """Plays agents without the real world: nothing is stored on disk, nothing takes time, nobody is asked.

    `tools` gives stand-ins; a tool above low risk without one is refused, one of low risk really runs. A stand-in has
    its effect where it returns. `answers` are found by tool, or by words in the question: "approve" or "deny" for
    calls, a Verdict for calls in doubt (without one the world answers what it saw), any value for `ask`; NOBODY lets
    the question expire. May be used for many plays.
    """

    def __init__(
        self,
        *,
        tools: Mapping[Tool[..., Any], Callable[..., Any]] | None = None,
        answers: Mapping[Tool[..., Any] | str, Answer] | None = None,
    ) -> None:
        self._stand_ins = {_tool(tool).fn: fn for tool, fn in (tools or {}).items()}
        self._answers = Answers.of(answers or {})

    async def play(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Play[R]:
        """Run the agent to its end, or to where nothing moves it on any more: see `Play.questions`.

        Raises BadInput when it calls a tool above low risk without a stand-in, AssertionError when the store breaks
        a promise, when a high-risk call runs twice, or when the agent never comes to an end.
        """
        play = await self._play(_call(agent, args, kwargs), None)
        _check(play.record.wrong, "played without a crash")
        return play

    async def crash_everywhere(self, agent: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[Play[R]]:
        """Play once without a crash, then once for each commit with a death just before and just after it.

        Another worker goes on each time. Returns the plays with a death. Raises AssertionError naming the commit when
        one ended otherwise than the whole one, ran a high-risk call twice, or left something stuck.
        """
        call = _call(agent, args, kwargs)
        whole: Play[R] = await self._play(call, None)
        _check(whole.record.wrong, "played without a crash")
        plays = []
        for number in range(1, len(whole.record.commits) + 1):
            for moment in Moment:
                play: Play[R] = await self._play(call, Death(number, moment))
                place = f"killed {moment} commit {number} of {len(whole.record.commits)} ({_at(whole, number)})"
                _check([*play.record.wrong, *_differences(whole, play)], place)
                plays.append(play)
        return plays

    async def _play(self, call: AgentCall, death: Death | None) -> Play[Any]:
        troupe = Cast(self._stand_ins)
        stage = Stage(call, troupe=troupe, answers=self._answers, death=death)
        try:
            record = await start_thread(stage.run, context=contextvars.copy_context(), name="play")
        except BaseException:
            stage.loop.turns_left = 0  # Whoever waited has gone; the thread ends at its next turn.
            raise
        if troupe.problems:
            raise troupe.problems[0]
        value = None
        if record.status is TaskStatus.COMPLETED:
            assert record.result is not None
            value = codec.decode(record.result, annotation=returns(call.definition.fn))
        died = "" if death is None else f"{death.moment} commit {death.commit}"
        return Play(record.status, record.error, record.questions, died, record, value)


def _differences(whole: Play[Any], crashed: Play[Any]) -> list[str]:
    found = []
    if crashed.status is not whole.status or crashed.questions != whole.questions:
        found.append(f"the task ended {_ended(crashed)}, without a crash {_ended(whole)}")
    elif crashed.record.result != whole.record.result or _error(crashed) != _error(whole):
        found.append(f"the outcome was {_outcome(crashed)}, without a crash {_outcome(whole)}")
    ran, wanted = crashed.record.ledger.dangerous_effects(), whole.record.ledger.dangerous_effects()
    for call in sorted((ran - wanted) | (wanted - ran)):
        found.append(f"{call} happened {ran[call]} times, without a crash {wanted[call]} times")
    return found


def _check(wrong: list[str] | tuple[str, ...], place: str) -> None:
    if wrong:
        raise AssertionError(f"{place}: " + "\n".join(wrong))


def _ended(play: Play[Any]) -> str:
    return str(play.status) + (f" and asks {'; '.join(play.questions)}" if play.questions else "")


def _error(play: Play[Any]) -> tuple[str, str] | None:
    return None if play.error is None else (play.error.type, play.error.message)


def _outcome(play: Play[Any]) -> str:
    return repr(play.value) if play.error is None else str(play.error)


def _at(whole: Play[Any], number: int) -> str:
    return whole.record.commits[number - 1]


def _tool(tool: object) -> ToolDefinition:
    definition = definition_of(tool)
    if not isinstance(definition, ToolDefinition):
        raise BadInput(f"tools: {tool!r} is no tool; decorate it with @perdure.tool", field="tools")
    return definition


def _call(agent: Startable[P, R], args: Any, kwargs: Any) -> AgentCall:
    if not isinstance(definition_of(agent), AgentDefinition):
        raise BadInput(f"{agent!r} is no agent; decorate it with @perdure.agent", field="agent")
    call = agent.bind(*args, **kwargs).call
    assert isinstance(call, AgentCall)
    return call
