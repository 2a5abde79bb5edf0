"""Agents about to become tasks: what an app may run, and calls of agents that are at hand or known by name only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.definitions import AgentCall, AgentDefinition, AgentOptions, Bound, Startable, call_of, definition_of
from perdure.errors import BadInput
from perdure.model.task import Task
from perdure.store import admission, task_lists
from perdure.store.database import Transaction

log = logging.getLogger(__name__)


def registry(agents: Sequence[Startable[..., Any]]) -> dict[tuple[str, str], AgentDefinition]:
    """Agents by name and version. Raises BadInput for what is no agent, and for two of one name."""
    given: object = agents
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadInput(f"agents is {given!r}; give a list of them: agents=[…]", field="agents")
    found: dict[tuple[str, str], AgentDefinition] = {}
    for one in agents:
        definition = definition_of(one)
        if not isinstance(definition, AgentDefinition):
            name = getattr(one, "__name__", type(one).__name__)
            raise BadInput(f"{name} is no agent; decorate it with @perdure.agent", field="agents")
        place = (definition.name, definition.version)
        if place in found and found[place].fn is not definition.fn:
            raise BadInput(f"two agents are called {definition.name!r}; give one another name=", field="agents")
        found[place] = definition
    return found


def call_to_start(agent: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AgentCall:
    """An agent, or the name of one that lives in another process, with its arguments. Raises BadInput."""
    if isinstance(agent, str):
        return _by_name(agent, args, kwargs)
    return agent_call(call_of(agent, args, kwargs))


def bound_call(bound: Any) -> AgentCall:
    """The call of `agent.bind(…)`. Raises BadInput for what is none."""
    if not isinstance(bound, Bound):
        raise BadInput(f"{bound!r} is no agent with its arguments; give agent.bind(…)", field="calls")
    return agent_call(bound.call)


def admit_one(tx: Transaction, new: admission.NewTask) -> tuple[admission.Admission, Task | None]:
    """Admit a task; with it the newest open one of the same work, which without a key is another one."""
    equal = None
    if new.key is None:
        equal = task_lists.newest_open_like(tx, agent=new.agent, work_digest=new.work_digest)
    return admission.admit(tx, [new]), equal


def warn_of_equal(task: Task, equal: Task | None, told: set[str]) -> None:
    """Say that a new task does what an open one is doing: more often a second start by mistake than meant.

    Once for each agent, as `told` remembers: where many equal ones are meant, they are started in a row.
    """
    if equal is not None and task.agent not in told:
        told.add(task.agent)
        log.warning(
            "task %s of agent %s does the same work as task %s, which is open: what that one has done is done again; "
            "to join it instead, give both a key: %s.options(key=…)",
            task.id,
            task.agent,
            equal.id,
            task.agent,
            extra={"task": task.id, "agent": task.agent, "equal": equal.id},
        )


def agent_call(call: object) -> AgentCall:
    """The call, if it is an agent's. Raises BadInput for a tool."""
    if not isinstance(call, AgentCall):
        raise BadInput("only agents become tasks; a tool is called from an agent", field="agent")
    return call


def _by_name(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AgentCall:
    """An agent that lives in another process: its arguments must be named, for nobody here knows their names."""
    if args:
        raise BadInput(
            f"an agent that is named, as {name!r} is here, takes its arguments by name: give them as name=value",
            field="arguments",
        )

    async def elsewhere(**_kwargs: Any) -> None:
        raise AssertionError("a stand-in for an agent of another process is not run")

    return AgentCall(AgentDefinition(name, elsewhere), AgentOptions(), (), kwargs)
