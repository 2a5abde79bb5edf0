"""What becomes of an interrupted task: one table, read from the top, as one pure function.

Exists so that the decision can be stored, shown and asked for without acting. Does not find interrupted tasks, does not
change a row and opens no question: it drafts one, and whoever acts stores it with its expiry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from perdure.errors import BadInput
from perdure.policy.risk import Risk


class Verdict(StrEnum):
    """What to do, in the words that are stored."""

    TIMED_OUT = "timed_out"  # end it
    SKIP = "skip"  # its records cannot carry it on; ask a person
    PARK = "park"  # it goes round in circles; ask a person
    AUTO_RESUME = "auto_resume"  # replay, then go on live
    PENDING_CONFIRMATION = "pending_confirmation"  # it could go on, and a person is asked first


class Rule(StrEnum):
    """Which row of the table decided. These names are stored: never rename one."""

    DEADLINE_PASSED = "deadline_passed"
    TRACE_UNREADABLE = "trace_unreadable"
    NO_TRACE = "no_trace"
    TOO_MANY_RECOVERIES = "too_many_recoveries"
    STEP_IN_DOUBT = "step_in_doubt"
    DECLARED_RISK = "declared_risk"
    RESUME_ASKS = "resume_asks"
    RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulStep:
    """A step that had begun and has no recorded outcome. `reconcilable`: its tool can find out what happened."""

    step_index: int
    name: str
    key: str
    risk: Risk
    reconcilable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "risk", Risk.parse(self.risk))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything the decision looks at. Raises BadInput naming the field that no task can have.

    `trace_error` says why the trace cannot be read or where its gap is; None when it is whole.
    `recoveries_without_progress` counts recoveries since the last newly completed step, those that count.
    `last_steps` are shown to a person who is asked. `recorded_calls` are calls above low that the trace holds and that
    a start from the beginning may run twice.
    """

    task_id: str
    agent: str
    now_ms: int
    deadline_at: int | None = None
    declared_risk: Risk = Risk.HIGH  # undeclared is decided by whoever builds the case; forgotten is never low
    resume: Literal["auto", "ask"] = "auto"
    trace_error: str | None = None
    record_count: int
    recoveries_without_progress: int = 0
    recovery_limit: int = 3
    in_doubt: tuple[DoubtfulStep, ...] = ()
    was_waiting: bool = False
    crash_history: tuple[str, ...] = ()
    last_steps: tuple[str, ...] = ()
    recorded_calls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared_risk", Risk.parse(self.declared_risk))
        if self.resume not in ("auto", "ask"):
            raise BadInput(f"resume: {self.resume!r} is not known; write auto or ask", field="resume")
        for field in ("record_count", "recoveries_without_progress", "recovery_limit"):
            value: int = getattr(self, field)
            if value < 0:
                raise BadInput(f"{field}: {value} is below 0; it is a count", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionDraft:
    """A question for a person, not yet stored: yes and no mean what `text` says."""

    kind: Literal["resume"] = "resume"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict with its rule, the reasons as sentences, and the evidence as plain JSON values.

    `counts` says whether a recovery that follows from this counts toward the limit. For a verdict that waits for a
    yes, it holds for the recovery after the yes.
    """

    verdict: Verdict
    rule: Rule
    reasons: tuple[str, ...]
    evidence: Mapping[str, object]
    question: QuestionDraft | None = None
    counts: bool = False


def decide(case: Case) -> Decision:
    """Decide what becomes of this interrupted task. Total and deterministic: the first row that applies wins."""
    dangerous = tuple(step for step in case.in_doubt if step.risk > Risk.LOW)
    if case.deadline_at is not None and case.deadline_at <= case.now_ms:
        return _time_out(case, case.deadline_at)
    if case.trace_error is not None:
        return _skip(case, Rule.TRACE_UNREADABLE, f"The trace cannot be read: {case.trace_error or 'no cause given'}.")
    if case.record_count == 0:
        # Claim writes the first record, so this task was not run by perdure, or its records are lost.
        return _skip(case, Rule.NO_TRACE, "There are no execution traces available.")
    if case.recoveries_without_progress >= case.recovery_limit:
        return _park(case)
    if any(_asks_a_person(step) for step in dangerous):
        return _resume(case, Rule.STEP_IN_DOUBT, dangerous)
    # A doubt that settles itself opens no question, so it must not talk the task out of the one it declared.
    if case.declared_risk >= Risk.HIGH or case.resume == "ask":
        return _confirm(case, dangerous)
    if dangerous:
        return _resume(case, Rule.STEP_IN_DOUBT, dangerous)
    return _resume(case, Rule.RESUME, dangerous)


def for_another(decision: Decision, task_id: str) -> Decision:
    """What was decided, for a task that differs in nothing but its id. Not with a question, which names its task."""
    assert decision.question is None, decision
    return replace(decision, evidence={**decision.evidence, "task_id": task_id})


# -- one function a verdict -----------------------------------------------------------------


def _time_out(case: Case, deadline_at: int) -> Decision:
    late_s = (case.now_ms - deadline_at) / 1000
    reason = f"Its deadline passed {late_s:,.1f} s ago, which ends a task in whatever state it is."
    return Decision(
        verdict=Verdict.TIMED_OUT, rule=Rule.DEADLINE_PASSED, reasons=(reason,), evidence=_evidence(case), counts=False
    )


def _skip(case: Case, rule: Rule, cause: str) -> Decision:
    reasons = (cause, "Nothing can be replayed, so it does not go on by itself.")
    if case.recorded_calls:
        twice = f"These recorded calls may then run twice: {_listed(case.recorded_calls)}."
    else:
        twice = "Which calls it made before is not known, so any of them may then run twice."
    text = (
        f"Task {case.task_id} ({case.agent}) was interrupted and cannot go on. {cause} "
        f"Start it again from the beginning (approve), or give it up (deny)? {twice}"
    )
    return Decision(
        verdict=Verdict.SKIP,
        rule=rule,
        reasons=(*reasons, twice),
        evidence=_evidence(case),
        question=QuestionDraft(text=text),
    )


def _park(case: Case) -> Decision:
    cause = (
        f"It was recovered {_times(case.recoveries_without_progress)} without a newly completed step; "
        f"the limit is {case.recovery_limit}."
    )
    history = f" Its attempts ended so: {_listed(case.crash_history)}." if case.crash_history else ""
    text = (
        f"Task {case.task_id} ({case.agent}) was interrupted again. {cause}{history} "
        "Let it try again, counting from 0 (approve), or give it up (deny)?"
    )
    return Decision(
        verdict=Verdict.PARK,
        rule=Rule.TOO_MANY_RECOVERIES,
        reasons=(cause, "Another try would most likely end the same way, so a person is asked."),
        evidence=_evidence(case),
        question=QuestionDraft(text=text),
    )


def _confirm(case: Case, dangerous: Sequence[DoubtfulStep]) -> Decision:
    causes: list[str] = []
    if case.declared_risk >= Risk.HIGH:
        causes.append(f"Agent {case.agent} is declared {case.declared_risk}, so a person agrees before it goes on.")
    if case.resume == "ask":
        causes.append(f"Agent {case.agent} has resume set to ask, so a person agrees before it goes on.")
    reasons = (*causes, *(_sentence(step) for step in dangerous))
    last = f" Its last steps: {_listed(case.last_steps)}." if case.last_steps else ""
    text = (
        f"Task {case.task_id} ({case.agent}) was interrupted after {_records(case.record_count)}. "
        f"{' '.join(reasons)}{last} Let it go on (approve), or give it up (deny)?"
    )
    return Decision(
        verdict=Verdict.PENDING_CONFIRMATION,
        rule=Rule.DECLARED_RISK if case.declared_risk >= Risk.HIGH else Rule.RESUME_ASKS,
        reasons=reasons,
        evidence=_evidence(case),
        question=QuestionDraft(text=text),
        counts=not case.was_waiting,
    )


def _resume(case: Case, rule: Rule, dangerous: Sequence[DoubtfulStep]) -> Decision:
    reasons = [_sentence(step) for step in dangerous]
    if any(_asks_a_person(step) for step in dangerous) and (case.declared_risk >= Risk.HIGH or case.resume == "ask"):
        reasons.append("The question about that call is asked instead of the one whether to resume.")
    if not dangerous:
        reasons.append("Nothing above low risk is in doubt, and no rule asks a person first.")
    reasons.append(f"Recorded results answer the first {_records(case.record_count)}; after that it goes on live.")
    if case.was_waiting:
        reasons.append("It was waiting when it was interrupted, so this recovery does not count.")
    return Decision(
        verdict=Verdict.AUTO_RESUME,
        rule=rule,
        reasons=tuple(reasons),
        # Its last steps are for a person who is asked.
        evidence={name: told for name, told in _evidence(case).items() if name != "last_steps"},
        counts=not case.was_waiting,
    )


# -- a step in doubt ------------------------------------------------------------------------


def _asks_a_person(step: DoubtfulStep) -> bool:
    match step.risk:
        case Risk.LOW | Risk.MEDIUM:
            return False
        case Risk.HIGH:
            return not step.reconcilable
        case Risk.CRITICAL:  # never settled by the machine, whatever its tool could find out
            return True


def _sentence(step: DoubtfulStep) -> str:
    begun = f"Step {step.step_index}, {step.name} ({step.risk}), had begun and has no recorded outcome"
    if _asks_a_person(step):
        return f"{begun}; it does not run again until a person says what happened."
    if step.risk is Risk.HIGH:
        return f"{begun}; its tool is asked what happened, and a person if it does not know."
    return f"{begun}; it is idempotent and runs again with the same token."


# -- evidence and wording -------------------------------------------------------------------


def _evidence(case: Case) -> dict[str, object]:
    return {
        "task_id": case.task_id,
        "agent": case.agent,
        "now_ms": case.now_ms,
        "deadline_at": case.deadline_at,
        "declared_risk": case.declared_risk.value,
        "resume": case.resume,
        "trace_error": case.trace_error,
        "record_count": case.record_count,
        "recoveries_without_progress": case.recoveries_without_progress,
        "recovery_limit": case.recovery_limit,
        "in_doubt": [
            {
                "step_index": step.step_index,
                "name": step.name,
                "key": step.key,
                "risk": step.risk.value,
                "reconcilable": step.reconcilable,
            }
            for step in case.in_doubt
        ],
        "was_waiting": case.was_waiting,
        "crash_history": list(case.crash_history),
        "last_steps": list(case.last_steps),
        "recorded_calls": list(case.recorded_calls),
    }


_LISTED_MAX: Final = 10


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _LISTED_MAX
    shown = "; ".join(texts[:_LISTED_MAX])
    return f"{shown}; and {more:,} more" if more > 0 else shown


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
