"""Tells whoever runs a worker what it does: which tasks it started or took over, what records saved, what is asked.

    started      a first attempt                            task, agent, attempt
    took_over    a later attempt                            task, agent, attempt
    resumed      its records have answered what they can    and step, model_calls, tool_calls, tokens
    recovered    decided about an interrupted task          task, agent, verdict, steps, question, text
    ended        an attempt ended its task                  and status, error (with its place), ms since admission
    unmanned     no live worker has a child's agent         and child (the agent), session
    question     an attempt opened or found a question      question, kind, text, to, task, agent

Told on the worker's event loop, by a plain call: whoever listens returns at once. An error of it is logged, and
touches nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perdure import phrases
from perdure.model.question import Question

if TYPE_CHECKING:
    from perdure.runtime.attempt import Attempt

log = logging.getLogger(__name__)
Listener = Callable[[str, Mapping[str, Any]], None]


class Announcer:
    """The news of one worker, for at most one listener."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._replaying: dict[Attempt, None] = {}

    def say(self, what: str, facts: Mapping[str, Any]) -> None:
        """Tell one thing. Raises nothing that the listener raises, unless it means to end the process."""
        if self._listener is None:
            return
        try:
            self._listener(what, facts)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # A cancellation too: in a plain call it is nobody's but the listener's.
            log.exception("whoever listens to this worker failed at %r", what)

    def started(self, attempt: Attempt) -> None:
        """An attempt was claimed."""
        if self._listener is None:
            return  # What is not looked back at needs no keeping.
        if attempt.task.attempt == 1:
            self.say("started", _facts(attempt))
        else:
            if not _began_too_late(attempt):
                self._replaying[attempt] = None
            self.say("took_over", _facts(attempt))

    def look(self) -> None:
        """See which attempts have gone past their records: they do something new, or wait."""
        # An attempt whose records have not been loaded yet has none either, and is not past them.
        for one in list(self._replaying):
            if one.waits.is_waiting or (len(one.journal.records) > 0 and one.journal.is_live):
                self.resumed(one)

    def resumed(self, attempt: Attempt) -> None:
        """Say, once, what the records of earlier attempts have saved; also when an attempt ends."""
        if attempt in self._replaying:
            del self._replaying[attempt]
            self.say("resumed", {**_facts(attempt), "step": attempt.task.step_count - 1, **asdict(attempt.saved)})

    def ended(self, attempt: Attempt, *, now_ms: int) -> None:
        """An attempt is over; said if its task is too."""
        if attempt.outcome is not None and self._listener is not None:
            status, error = attempt.outcome
            told = "" if error is None else phrases.failure(error)
            facts = {"status": str(status), "error": told, "ms": now_ms - attempt.task.created_at}
            self.say("ended", {**_facts(attempt), **facts})

    def unmanned(self, attempt: Attempt, agent: str) -> None:
        """A child waits for an agent that no live worker has. Logged too: a task must not hang quietly."""
        parent = attempt.task
        log.warning("no live worker has agent %s, which task %s of agent %s waits for", agent, parent.id, parent.agent)
        self.say("unmanned", {**_facts(attempt), "child": agent, "session": attempt.task.root_session_id})

    def asked(self, question: Question) -> None:
        """An attempt waits for a person. What its records saved is told before."""
        for attempt in [one for one in self._replaying if one.task.id == question.task_id]:
            self.resumed(attempt)
        facts = {"question": question.id, "kind": question.kind, "text": question.text, "to": question.to}
        self.say("question", {**facts, "task": question.task_id, "agent": question.agent})


def _began_too_late(attempt: Attempt) -> bool:
    """Whether the deadline had passed when it was claimed: it is told to end at once, and resumes nothing."""
    task = attempt.task
    return task.deadline_at is not None and task.deadline_at <= task.updated_at


def _facts(attempt: Attempt) -> dict[str, Any]:
    task = attempt.task
    return {"task": task.id, "root": task.root_session_id, "agent": task.agent, "attempt": task.attempt}
