"""Every state machine, declared once.

A machine is a table of transitions. From it come the guards in the SQL (`{from:claim}`, `{to:claim}`), the
trigger by which the database itself refuses an illegal move, the diagrams of the documentation, the coverage
check of the contract suite and the property tests. Nothing else in the code may name a status in SQL.

    Task     admit -> pending -> claim -> running -> complete
    Attempt  one execution of a task; its status is written by the task's verb

This module knows nothing of databases and imports nothing of perdure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "pending"  # admitted, or due again at available_at; nobody owns it
    RUNNING = "running"  # owned by exactly one attempt
    WAITING = "waiting"  # set aside for what waiting_for names; holds no permit
    IDLE = "idle"  # paused by its session; context kept
    SWAPPED = "swapped"  # paused, context moved to disk
    INTERRUPTED = "interrupted"  # its attempt ended without an outcome; recovery decides
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True for a status that never changes again."""
        return self in TASK.terminal

    @property
    def is_recoverable(self) -> bool:
        """True for running and interrupted: what a crash leaves behind."""
        return self in (TaskStatus.RUNNING, TaskStatus.INTERRUPTED)


class AttemptStatus(StrEnum):
    """How one execution of a task stands or ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    SUSPENDED = "suspended"  # handed back or set aside on purpose; costs nothing


class QuestionStatus(StrEnum):
    """Whether a person has answered."""

    OPEN = "open"
    APPROVED = "approved"
    DENIED = "denied"
    ANSWERED = "answered"
    EXPIRED = "expired"  # nobody said no, nobody said yes
    CANCELLED = "cancelled"  # its task ended first


class InstanceStatus(StrEnum):
    """The life of one worker process."""

    STARTING = "starting"
    ACTIVE = "active"
    IDLE = "idle"
    ERROR = "error"
    CRASHED = "crashed"
    STOPPED = "stopped"


class SessionStatus(StrEnum):
    """Whether a session's context is in use, kept, on disk, or gone."""

    ACTIVE = "active"
    IDLE = "idle"
    SWAPPED = "swapped"
    CLOSED = "closed"
    LOST = "lost"


class PlanItemStatus(StrEnum):
    """An item of a plan moves with the task that does it."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


class InboxStatus(StrEnum):
    """Durable mail of a session, from arrival to the turn that used it."""

    PENDING = "pending"
    LEASED = "leased"
    ADMITTED = "admitted"
    CONSUMED = "consumed"
    SUPERSEDED = "superseded"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Transition:
    """One verb: from which statuses to which. `sources` empty means a new row."""

    verb: str
    sources: tuple[str, ...]
    target: str
    fenced: bool = False  # only the owner, proven by execution id and generation
    event: str = ""  # kind of the skeleton event written in the same transaction
    attempt: str = ""  # status the verb writes into the attempt


@dataclass(frozen=True)
class Machine:
    """A named table of transitions over one column of one table. What every write asks of it is worked out once."""

    name: str
    table: str
    statuses: tuple[str, ...]
    transitions: tuple[Transition, ...]

    def sources(self, verb: str) -> tuple[str, ...]:
        """Every status from which `verb` may start, in declared order. Raises KeyError for an unknown verb."""
        if verb not in self._by_verb:
            raise KeyError(f"{self.name} has no verb {verb}")
        wanted = {source for t in self._by_verb[verb] for source in t.sources}
        return tuple(status for status in self.statuses if status in wanted)

    def target(self, verb: str) -> str:
        """The one status that `verb` leads to. Raises KeyError if there is none or more than one."""
        targets = self._targets.get(verb, ())
        if len(targets) != 1:
            raise KeyError(f"{self.name}.{verb} has {len(targets)} targets")
        return targets[0]

    def event(self, verb: str) -> str:
        """The kind of the event that `verb` writes."""
        return self._by_verb[verb][0].event

    @cached_property
    def moves(self) -> frozenset[tuple[str, str]]:
        """Every legal (source, target) pair; staying where one is counts only where it is declared."""
        return frozenset((source, t.target) for t in self.transitions for source in t.sources)

    @cached_property
    def initial(self) -> tuple[str, ...]:
        """Statuses a new row may have."""
        wanted = {t.target for t in self.transitions if not t.sources}
        return tuple(status for status in self.statuses if status in wanted)

    @cached_property
    def terminal(self) -> tuple[str, ...]:
        """Statuses without a way out."""
        leaving = {source for source, target in self.moves if source != target}
        return tuple(status for status in self.statuses if status not in leaving)

    @cached_property
    def open(self) -> tuple[str, ...]:
        """Statuses with a way out."""
        return tuple(status for status in self.statuses if status not in self.terminal)

    @cached_property
    def _targets(self) -> dict[str, tuple[str, ...]]:
        return {verb: tuple({t.target for t in some}) for verb, some in self._by_verb.items()}

    @cached_property
    def _by_verb(self) -> dict[str, list[Transition]]:
        found: dict[str, list[Transition]] = {}
        for t in self.transitions:
            found.setdefault(t.verb, []).append(t)
        return found


def _moves(verb: str, sources: Iterable[str], targets: Iterable[str] | str, **rest: str | bool) -> list[Transition]:
    targets = (targets,) if isinstance(targets, str) else targets
    return [Transition(verb, tuple(sources), target, **rest) for target in targets]  # type: ignore[arg-type]  # str|bool


_T, _A = TaskStatus, AttemptStatus
_LIVE = (_T.RUNNING, _T.WAITING)
_OPEN = (_T.PENDING, _T.RUNNING, _T.WAITING, _T.IDLE, _T.SWAPPED, _T.INTERRUPTED)

TASK = Machine(
    "task",
    "tasks",
    tuple(_T),
    (
        *_moves("admit", (), _T.PENDING, event="task_admitted"),
        *_moves("claim", (_T.PENDING,), _T.RUNNING, event="task_started", attempt=_A.RUNNING),
        *_moves("wait", (_T.RUNNING,), _T.WAITING, fenced=True, event="task_waited"),
        # Handed back between two steps (shutdown, a worker without this agent): no recovery is counted.
        *_moves("release", _LIVE, _T.PENDING, fenced=True, event="task_released", attempt=_A.SUSPENDED),
        # The attempt stayed in memory and has won a permit again.
        *_moves("restore", (_T.WAITING,), _T.RUNNING, fenced=True, event="task_restored"),
        # Gives up memory; becomes pending at once when what it waits for has already happened.
        *_moves(
            "suspend",
            (_T.WAITING,),
            (_T.WAITING, _T.PENDING),
            fenced=True,
            event="task_suspended",
            attempt=_A.SUSPENDED,
        ),
        *_moves("wake", (_T.WAITING,), _T.PENDING, event="task_woken"),
        # Pausing a running task only asks its owner; it takes effect at the next step.
        *_moves("pause", (_T.PENDING, *_LIVE), _T.IDLE, event="task_paused", attempt=_A.SUSPENDED),
        *_moves("resume", (_T.IDLE,), _T.PENDING, event="task_resumed"),
        *_moves("swap_out", (_T.IDLE,), _T.SWAPPED, event="task_swapped_out"),
        *_moves("swap_in", (_T.SWAPPED,), _T.IDLE, event="task_swapped_in"),
        *_moves("interrupt", _LIVE, _T.INTERRUPTED, event="task_interrupted", attempt=_A.INTERRUPTED),
        *_moves("recover", (_T.INTERRUPTED,), _T.PENDING, event="task_recovered"),
        # A person's no, or nobody's answer in time.
        *_moves("abandon", (_T.INTERRUPTED,), _T.FAILED, event="task_abandoned"),
        *_moves("retry", _LIVE, _T.PENDING, fenced=True, event="task_retried", attempt=_A.FAILED),
        *_moves("import", (), (_T.COMPLETED, _T.FAILED), event="task_imported"),
        *_moves("complete", _LIVE, _T.COMPLETED, fenced=True, event="task_completed", attempt=_A.COMPLETED),
        *_moves("fail", _LIVE, _T.FAILED, fenced=True, event="task_failed", attempt=_A.FAILED),
        # A budget or a policy refused it before anybody owned it.
        *_moves("refuse", (_T.PENDING,), _T.FAILED, event="task_failed"),
        *_moves("time_out", _OPEN, _T.TIMED_OUT, event="task_timed_out", attempt=_A.TIMED_OUT),
        *_moves("cancel", _OPEN, _T.CANCELLED, event="task_cancelled", attempt=_A.CANCELLED),
    ),
)

ATTEMPT = Machine(
    "attempt",
    "attempts",
    tuple(_A),
    (
        *_moves("claim", (), _A.RUNNING),
        *(
            Transition(t.verb, (_A.RUNNING,), t.attempt)
            for t in TASK.transitions
            if t.attempt and t.verb != "claim" and (t.verb, t.target) != ("suspend", _T.PENDING)
        ),
    ),
)

_Q = QuestionStatus
QUESTION = Machine(
    "question",
    "questions",
    tuple(_Q),
    (
        *_moves("open", (), _Q.OPEN, event="question_opened"),
        *_moves("approve", (_Q.OPEN,), _Q.APPROVED, event="question_approved"),
        *_moves("deny", (_Q.OPEN,), _Q.DENIED, event="question_denied"),
        *_moves("answer", (_Q.OPEN,), _Q.ANSWERED, event="question_answered"),
        *_moves("expire", (_Q.OPEN,), _Q.EXPIRED, event="question_expired"),
        *_moves("cancel", (_Q.OPEN,), _Q.CANCELLED, event="question_cancelled"),
    ),
)

_I = InstanceStatus
_ALIVE = (_I.STARTING, _I.ACTIVE, _I.IDLE, _I.ERROR)
INSTANCE = Machine(
    "instance",
    "instances",
    tuple(_I),
    (
        *_moves("register", (), _I.STARTING),
        *_moves("update", _ALIVE, _ALIVE),
        *_moves("crash", _ALIVE, _I.CRASHED),
        *_moves("restart", (_I.CRASHED,), _I.STARTING),
        *_moves("stop", (*_ALIVE, _I.CRASHED), _I.STOPPED),
    ),
)

_S = SessionStatus
SESSION = Machine(
    "session",
    "sessions",
    tuple(_S),
    (
        *_moves("create", (), _S.ACTIVE),
        *_moves("release", (_S.ACTIVE,), _S.IDLE, event="session_released"),
        *_moves("acquire", (_S.IDLE,), _S.ACTIVE, event="session_acquired"),
        *_moves("swap_out", (_S.IDLE,), _S.SWAPPED, event="session_swapped_out"),
        *_moves("swap_in", (_S.SWAPPED,), _S.IDLE, event="session_swapped_in"),
        *_moves("lose", (_S.SWAPPED,), _S.LOST, event="session_lost"),
        *_moves("close", (_S.ACTIVE, _S.IDLE, _S.SWAPPED, _S.LOST), _S.CLOSED, event="session_closed"),
    ),
)

_P = PlanItemStatus
PLAN_ITEM = Machine(
    "plan_item",
    "plan_items",
    tuple(_P),
    (
        *_moves("add", (), _P.PENDING),
        *_moves("claim", (_P.PENDING,), _P.IN_PROGRESS),
        *_moves("complete", (_P.IN_PROGRESS,), _P.COMPLETED),
        *_moves("block", (_P.IN_PROGRESS,), _P.BLOCKED),
        *_moves("reset", (_P.BLOCKED,), _P.PENDING),
        *_moves("skip", (_P.PENDING, _P.BLOCKED), _P.SKIPPED),
    ),
)

_B = InboxStatus
INBOX = Machine(
    "inbox",
    "inbox_events",
    tuple(_B),
    (
        *_moves("insert", (), (_B.PENDING, _B.CONSUMED)),
        *_moves("claim", (_B.PENDING, _B.LEASED), _B.LEASED),
        *_moves("admit", (_B.LEASED,), _B.ADMITTED),
        *_moves("consume", (_B.ADMITTED,), _B.CONSUMED),
        *_moves("retry", (_B.LEASED, _B.ADMITTED), _B.PENDING),
        *_moves("supersede", (_B.PENDING, _B.LEASED), _B.SUPERSEDED),
        *_moves("bury", (_B.PENDING, _B.LEASED, _B.ADMITTED), _B.DEAD_LETTER),
        *_moves("requeue", (_B.DEAD_LETTER,), _B.PENDING),
    ),
)

MACHINES = (TASK, ATTEMPT, QUESTION, INSTANCE, SESSION, PLAN_ITEM, INBOX)
BY_NAME = {machine.name: machine for machine in MACHINES}


def to_mermaid(machine: Machine) -> str:
    """The machine as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for t in machine.transitions:
        for source in t.sources or ("[*]",):
            lines.append(f"    {source} --> {t.target}: {t.verb}")
    lines += [f"    {status} --> [*]" for status in machine.terminal]
    return "\n".join(lines) + "\n"
