"""A worker of a play: the real one, but its tools are replaced as they are called, and it learns agents as they come.

Nothing is replaced in modules: two worlds may run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from perdure.definitions import AgentCall, AgentDefinition, ToolCall
from perdure.errors import BadInput, NotFound, StoreClosed
from perdure.model.step import StepKind
from perdure.policy.risk import Risk
from perdure.runtime.attempt import Attempt
from perdure.runtime.call import Call
from perdure.runtime.pulse import Pack
from perdure.runtime.worker import Worker
from perdure.store import Store
from perdure.store.database import Transaction
from perdure.store.queries import load
from perdure.testing.ledger import Ledger

I = load("instances")  # noqa: E741  # the aggregate's letter, as elsewhere
T = TypeVar("T")


@dataclass(slots=True)
class Cast:
    """Who plays: stand-ins for `tools` by their own function and for `steps` by their name, what the app's lifespan
    would yield, and the agents and tools met so far.
    """

    tools: Mapping[Callable[..., Any], Callable[..., Any]]
    steps: Mapping[str, Callable[..., Any]]
    deps: Sequence[Any] = ()
    agents: dict[tuple[str, str], AgentDefinition] = field(default_factory=dict)
    problems: list[BadInput] = field(default_factory=list)
    _met: dict[int, Callable[..., Any]] = field(default_factory=dict)  # functions of tools by identity, kept alive

    def prepare(self, call: ToolCall, ledger: Ledger) -> ToolCall:
        """The call as it may be made here: nothing of it reaches the real world.

        Raises BadInput for a tool above low risk that has no stand-in.
        """
        tool = call.definition
        self._met[id(tool.fn)] = tool.fn
        if tool.fn in self.tools:
            return replace(call, definition=replace(tool, reconcile=tool.reconcile and ledger.reconcile))
        if tool.risk_of(call.args, call.kwargs) is Risk.LOW:
            return call
        raise self.problem(tool.name, f"tools={{{tool.name}: fn}}")

    def stand_in(self, call: Call) -> Callable[..., Any] | None:
        """What stands in for a call; None where its own function may run. Raises BadInput for a step that has none."""
        if id(call.fn) in self._met:  # A step's function need not be hashable, and a tool may have a step's name.
            return self.tools.get(call.fn)  # One that needs a stand-in has been refused before.
        found = self.steps.get(call.name)
        if found is None and call.is_dangerous:
            raise self.problem(call.name, f"steps={{{call.name!r}: fn}}")
        return found

    def problem(self, name: str, wanted: str) -> BadInput:
        """A call has no stand-in and needs one: noted for whoever plays, since the agent may catch it."""
        what = f"{name} is above low risk and has no stand-in in this world: World({wanted})"
        self.problems.append(BadInput(what, field="tools"))
        return self.problems[-1]


class ActingAttempt(Attempt):
    """An attempt of a play."""

    @property
    def actor(self) -> ActingWorker:
        """The worker that runs it."""
        return cast("ActingWorker", self.host)

    async def call_tool(self, call: ToolCall) -> Any:
        """Record and run a tool, if it may run here."""
        return await super().call_tool(self.actor.cast.prepare(call, self.actor.ledger))

    async def call_agent(self, call: AgentCall) -> Any:
        """Know the agent from now on, then run it as a child task."""
        self.actor.meet(call.definition)
        return await super().call_agent(call)

    def as_run_here(self, call: Call) -> Call:
        """The stand-in, if there is one; what a tool does is noted down."""
        if call.kind is not StepKind.TOOL_CALL:
            return call
        return self.actor.ledger.watch(call, self.actor.cast.stand_in(call))


class ActingWorker(Worker):
    """A worker of a play."""

    attempt_type = ActingAttempt

    def __init__(self, store: Store, *, troupe: Cast, ledger: Ledger, backstage: Store) -> None:
        super().__init__(store, list(troupe.agents.values()), deps=troupe.deps)
        self.cast = troupe
        self.ledger = ledger
        self._backstage = backstage

    async def _write_pulses(self, packs: Sequence[Pack]) -> None:
        # A worker that has died loses what it streamed. Here that is what was wanted, and no news.
        with suppress(StoreClosed):
            await super()._write_pulses(packs)

    def dep(self, cls: type[T]) -> T:
        """What the world has in place of what the app's lifespan opens, by class."""
        try:
            return super().dep(cls)
        except NotFound:
            name = cls.__name__
            raise NotFound(f"this world has no {name} for perdure.deps to find: World(deps={name}(…))") from None

    def meet(self, agent: AgentDefinition) -> None:
        """Be able to run this agent too."""
        place = (agent.name, agent.version)
        if place not in self._agents and self._registration is not None:
            self.cast.agents[place] = self._agents[place] = agent
            self._backstage.call(_add_agent, self._registration.n, *place)


def _add_agent(tx: Transaction, instance: int, agent: str, version: str) -> None:
    tx.run(I.insert_agent, instance=instance, agent=agent, version=version)
