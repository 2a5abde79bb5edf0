"""The recovery table: which row wins, what a person is asked, and what counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadInput
from perdure.policy.recovery import Case, Decision, DoubtfulStep, Rule, Verdict, decide
from perdure.policy.risk import Risk

CASE = Case(task_id="t1", agent="billing", now_ms=1_000_000, declared_risk=Risk.LOW, record_count=7)
REFUND = DoubtfulStep(step_index=4, name="refund", key="refund:ab:0", risk=Risk.HIGH)

RISKS = st.sampled_from(list(Risk))
TEXTS = st.lists(st.text(max_size=10), max_size=15).map(tuple)
DOUBTS = st.builds(
    DoubtfulStep,
    step_index=st.integers(0, 99),
    name=st.text(max_size=10),
    key=st.text(max_size=10),
    risk=RISKS,
    reconcilable=st.booleans(),
)
CASES = st.builds(
    Case,
    task_id=st.text(max_size=10),
    agent=st.text(max_size=10),
    now_ms=st.integers(0, 100),
    deadline_at=st.none() | st.integers(0, 100),
    declared_risk=RISKS,
    resume=st.sampled_from(["auto", "ask"]),
    trace_error=st.none() | st.text(max_size=10),
    record_count=st.integers(0, 3),
    recoveries_without_progress=st.integers(0, 5),
    recovery_limit=st.integers(0, 4),
    in_doubt=st.lists(DOUBTS, max_size=3).map(tuple),
    was_waiting=st.booleans(),
    crash_history=TEXTS,
    last_steps=TEXTS,
    recorded_calls=TEXTS,
)


def test_a_passed_deadline_ends_the_task() -> None:
    decision = decide(replace(CASE, deadline_at=988_000))

    assert (decision.verdict, decision.rule) == (Verdict.TIMED_OUT, Rule.DEADLINE_PASSED)
    assert decision.reasons == ("Its deadline passed 12.0 s ago, which ends a task in whatever state it is.",)
    assert decision.question is None
    assert not decision.counts


def test_a_deadline_is_passed_from_its_own_millisecond_on() -> None:
    assert decide(replace(CASE, deadline_at=1_000_000)).verdict is Verdict.TIMED_OUT
    assert decide(replace(CASE, deadline_at=1_000_001)).verdict is Verdict.AUTO_RESUME


def test_a_trace_that_cannot_be_read_is_skipped_with_its_error_and_a_question() -> None:
    case = replace(CASE, trace_error="step 3 is missing", recorded_calls=("refund(order=9)", "mail(to=a)"))

    decision = decide(case)

    assert (decision.verdict, decision.rule) == (Verdict.SKIP, Rule.TRACE_UNREADABLE)
    assert "step 3 is missing" in decision.reasons[0]
    assert decision.question is not None
    assert decision.question.kind == "resume"
    assert "step 3 is missing" in decision.question.text
    assert "may then run twice: refund(order=9); mail(to=a)." in decision.question.text
    assert not decision.counts


def test_an_error_without_a_text_is_still_an_error() -> None:
    assert decide(replace(CASE, trace_error="")).rule is Rule.TRACE_UNREADABLE


def test_no_trace_at_all_is_skipped_with_a_question() -> None:
    decision = decide(replace(CASE, record_count=0))

    assert (decision.verdict, decision.rule) == (Verdict.SKIP, Rule.NO_TRACE)
    assert "no execution traces available" in decision.reasons[0]
    assert decision.question is not None
    assert "any of them may then run twice" in decision.question.text


def test_the_third_recovery_without_progress_is_the_last_by_itself() -> None:
    assert decide(replace(CASE, recoveries_without_progress=2)).verdict is Verdict.AUTO_RESUME

    decision = decide(replace(CASE, recoveries_without_progress=3, crash_history=("host b died", "killed by signal 9")))

    assert (decision.verdict, decision.rule) == (Verdict.PARK, Rule.TOO_MANY_RECOVERIES)
    assert decision.question is not None
    assert "host b died; killed by signal 9" in decision.question.text
    assert "3 times" in decision.question.text
    assert not decision.counts


def test_a_high_step_in_doubt_is_reached_by_replay_and_asked_there() -> None:
    decision = decide(replace(CASE, in_doubt=(REFUND,)))

    assert (decision.verdict, decision.rule) == (Verdict.AUTO_RESUME, Rule.STEP_IN_DOUBT)
    assert decision.question is None
    assert decision.reasons[0] == (
        "Step 4, refund (high), had begun and has no recorded outcome; "
        "it does not run again until a person says what happened."
    )


@pytest.mark.parametrize("risk", [Risk.HIGH, Risk.CRITICAL])
def test_the_doubt_is_asked_instead_of_the_resume_question(risk: Risk) -> None:
    decision = decide(replace(CASE, declared_risk=risk, in_doubt=(REFUND,)))

    assert (decision.verdict, decision.rule) == (Verdict.AUTO_RESUME, Rule.STEP_IN_DOUBT)
    assert decision.question is None
    assert any("asked instead" in reason for reason in decision.reasons)


def test_the_doubt_is_also_asked_instead_when_resume_is_ask() -> None:
    assert decide(replace(CASE, resume="ask", in_doubt=(REFUND,))).rule is Rule.STEP_IN_DOUBT


@pytest.mark.parametrize(
    "doubt", [replace(REFUND, risk=Risk.MEDIUM), replace(REFUND, reconcilable=True), replace(REFUND, risk=Risk.LOW)]
)
@pytest.mark.parametrize(
    ("declared", "rule"),
    [(replace(CASE, declared_risk=Risk.HIGH), Rule.DECLARED_RISK), (replace(CASE, resume="ask"), Rule.RESUME_ASKS)],
)
def test_a_doubt_that_opens_no_question_leaves_the_declared_one(
    doubt: DoubtfulStep, declared: Case, rule: Rule
) -> None:
    decision = decide(replace(declared, in_doubt=(doubt,)))

    assert (decision.verdict, decision.rule) == (Verdict.PENDING_CONFIRMATION, rule)
    assert decision.question is not None


@pytest.mark.parametrize("doubt", [replace(REFUND, risk=Risk.MEDIUM), replace(REFUND, reconcilable=True)])
def test_a_doubt_that_settles_itself_resumes(doubt: DoubtfulStep) -> None:
    decision = decide(replace(CASE, in_doubt=(doubt,)))

    assert (decision.verdict, decision.rule) == (Verdict.AUTO_RESUME, Rule.STEP_IN_DOUBT)


def test_a_low_step_in_doubt_is_no_doubt() -> None:
    assert decide(replace(CASE, in_doubt=(replace(REFUND, risk=Risk.LOW),))).rule is Rule.RESUME


def test_a_critical_step_is_never_reconciled_by_the_machine() -> None:
    critical = replace(REFUND, risk=Risk.CRITICAL, reconcilable=True)

    decision = decide(replace(CASE, declared_risk=Risk.CRITICAL, in_doubt=(critical,)))

    assert decision.rule is Rule.STEP_IN_DOUBT
    assert "until a person says" in decision.reasons[0]


def test_one_doubt_for_a_person_among_others_decides() -> None:
    doubts = (replace(REFUND, risk=Risk.MEDIUM), replace(REFUND, step_index=5, reconcilable=True), REFUND)

    assert decide(replace(CASE, declared_risk=Risk.HIGH, in_doubt=doubts)).rule is Rule.STEP_IN_DOUBT


def test_a_task_declared_high_asks_with_its_last_steps() -> None:
    decision = decide(replace(CASE, declared_risk=Risk.HIGH, last_steps=("6 mail(to=a)",)))

    assert (decision.verdict, decision.rule) == (Verdict.PENDING_CONFIRMATION, Rule.DECLARED_RISK)
    assert decision.question is not None
    assert "declared high" in decision.question.text
    assert "6 mail(to=a)" in decision.question.text
    assert decision.counts


def test_resume_ask_asks_whatever_the_risk() -> None:
    decision = decide(replace(CASE, resume="ask"))

    assert (decision.verdict, decision.rule) == (Verdict.PENDING_CONFIRMATION, Rule.RESUME_ASKS)


def test_both_causes_are_told() -> None:
    assert len(decide(replace(CASE, declared_risk=Risk.HIGH, resume="ask")).reasons) == 2


@pytest.mark.parametrize("risk", [Risk.LOW, Risk.MEDIUM])
def test_anything_else_resumes_and_counts(risk: Risk) -> None:
    decision = decide(replace(CASE, declared_risk=risk))

    assert (decision.verdict, decision.rule) == (Verdict.AUTO_RESUME, Rule.RESUME)
    assert decision.counts


def test_interrupted_while_waiting_is_recovered_without_counting() -> None:
    assert not decide(replace(CASE, was_waiting=True)).counts
    assert not decide(replace(CASE, was_waiting=True, declared_risk=Risk.HIGH)).counts


def test_a_long_list_is_cut_in_the_question_and_whole_in_the_evidence() -> None:
    calls = tuple(f"call {n}" for n in range(1_200))

    decision = decide(replace(CASE, record_count=0, recorded_calls=calls))

    assert decision.question is not None
    assert "call 9; and 1,190 more" in decision.question.text
    assert decision.evidence["recorded_calls"] == list(calls)


def test_a_risk_that_is_not_known_makes_no_case() -> None:
    with pytest.raises(BadInput):
        replace(CASE, declared_risk="harmless")  # type: ignore[arg-type]  # the door is tested with what types forbid
    with pytest.raises(BadInput):
        replace(REFUND, risk="harmless")  # type: ignore[arg-type]  # the door is tested with what types forbid


def test_a_case_that_says_nothing_about_risk_is_not_low() -> None:
    assert Case(task_id="t", agent="a", now_ms=0, record_count=1).declared_risk is Risk.HIGH


@pytest.mark.parametrize("field", ["record_count", "recoveries_without_progress", "recovery_limit"])
def test_a_negative_count_is_refused(field: str) -> None:
    with pytest.raises(BadInput) as refused:
        replace(CASE, **{field: -1})  # type: ignore[arg-type]  # the door is tested with what types forbid

    assert refused.value.field == field


def test_an_unknown_resume_word_is_refused() -> None:
    with pytest.raises(BadInput):
        replace(CASE, resume="maybe")  # type: ignore[arg-type]  # the door is tested with what types forbid


# -- for every case -------------------------------------------------------------------------


@given(case=CASES)
def test_the_same_case_gets_the_same_decision_with_reasons_and_storable_evidence(case: Case) -> None:
    decision = decide(case)

    assert decide(replace(case)) == decision
    assert decision.reasons
    assert all(reason.strip() for reason in decision.reasons)
    assert json.loads(json.dumps(decision.evidence)) == decision.evidence


@given(case=CASES)
def test_the_deadline_always_wins(case: Case) -> None:
    late = replace(case, deadline_at=case.now_ms)

    assert decide(late).verdict is Verdict.TIMED_OUT


@given(case=CASES)
def test_nothing_times_out_without_a_passed_deadline(case: Case) -> None:
    assert decide(replace(case, deadline_at=None)).verdict is not Verdict.TIMED_OUT


@given(case=CASES)
def test_no_task_is_left_alone(case: Case) -> None:
    decision = decide(case)

    waits = decision.verdict in {Verdict.SKIP, Verdict.PARK, Verdict.PENDING_CONFIRMATION}
    assert waits == (decision.question is not None)


@given(case=CASES)
def test_only_what_goes_on_counts_and_never_from_a_wait(case: Case) -> None:
    decision = decide(case)

    goes_on = decision.verdict in {Verdict.AUTO_RESUME, Verdict.PENDING_CONFIRMATION}
    assert decision.counts == (goes_on and not case.was_waiting)


@given(case=CASES)
def test_the_rows_are_tried_in_the_order_of_the_table(case: Case) -> None:
    rows: list[tuple[bool, Rule]] = [
        (case.deadline_at is not None and case.now_ms >= case.deadline_at, Rule.DEADLINE_PASSED),
        (case.trace_error is not None, Rule.TRACE_UNREADABLE),
        (case.record_count == 0, Rule.NO_TRACE),
        (case.recoveries_without_progress >= case.recovery_limit, Rule.TOO_MANY_RECOVERIES),
        (any(_opens_a_question(step) for step in case.in_doubt), Rule.STEP_IN_DOUBT),
        (case.declared_risk in {Risk.HIGH, Risk.CRITICAL}, Rule.DECLARED_RISK),
        (case.resume == "ask", Rule.RESUME_ASKS),
        (any(step.risk is not Risk.LOW for step in case.in_doubt), Rule.STEP_IN_DOUBT),
        (True, Rule.RESUME),
    ]

    assert decide(case).rule is next(rule for applies, rule in rows if applies)


@given(case=CASES)
def test_a_rule_has_one_verdict(case: Case) -> None:
    verdicts = {
        Rule.DEADLINE_PASSED: Verdict.TIMED_OUT,
        Rule.TRACE_UNREADABLE: Verdict.SKIP,
        Rule.NO_TRACE: Verdict.SKIP,
        Rule.TOO_MANY_RECOVERIES: Verdict.PARK,
        Rule.STEP_IN_DOUBT: Verdict.AUTO_RESUME,
        Rule.DECLARED_RISK: Verdict.PENDING_CONFIRMATION,
        Rule.RESUME_ASKS: Verdict.PENDING_CONFIRMATION,
        Rule.RESUME: Verdict.AUTO_RESUME,
    }
    decision: Decision = decide(case)

    assert decision.verdict is verdicts[decision.rule]


def _opens_a_question(step: DoubtfulStep) -> bool:
    return step.risk is Risk.CRITICAL or (step.risk is Risk.HIGH and not step.reconcilable)
