"""The four risks: one order, one door, and what they alone say about resuming."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BadInput
from perdure.policy.risk import Risk, highest, needs_resume_confirmation, should_auto_resume

RISKS = st.sampled_from(list(Risk))


def test_the_order_goes_from_low_to_critical() -> None:
    shuffled = [Risk.HIGH, Risk.CRITICAL, Risk.LOW, Risk.MEDIUM]

    assert sorted(shuffled) == [Risk.LOW, Risk.MEDIUM, Risk.HIGH, Risk.CRITICAL]
    assert [risk.rank for risk in sorted(shuffled)] == [0, 1, 2, 3]


def test_comparison_is_by_severity_and_not_by_the_alphabet() -> None:
    assert Risk.CRITICAL > Risk.HIGH
    assert Risk.CRITICAL >= Risk.CRITICAL
    assert Risk.HIGH < "critical"
    assert Risk.MEDIUM <= Risk.MEDIUM
    assert not Risk.LOW > Risk.CRITICAL


def test_comparison_with_another_word_is_refused() -> None:
    with pytest.raises(BadInput):
        assert Risk.LOW < "banana"


@pytest.mark.parametrize("word", ["low", "medium", "high", "critical"])
def test_a_risk_is_read_from_its_word_and_written_as_it(word: str) -> None:
    assert Risk.parse(word).value == word
    assert json.dumps(Risk.parse(word)) == f'"{word}"'
    assert {Risk.parse(word): 1}[Risk(word)] == 1


@given(text=st.text())
def test_an_unknown_risk_is_refused_and_never_low(text: str) -> None:
    if text in list(Risk):
        return

    with pytest.raises(BadInput) as refused:
        Risk.parse(text)

    assert refused.value.field == "risk"


@pytest.mark.parametrize("text", ["", "LOW", " low", "low\n", "lo", "none"])
def test_a_near_miss_is_refused_with_the_words_that_are_known(text: str) -> None:
    with pytest.raises(BadInput, match="low, medium, high, critical"):
        Risk.parse(text)


@given(risks=st.lists(RISKS, min_size=1))
def test_the_highest_is_one_of_them_and_none_is_above_it(risks: list[Risk]) -> None:
    top = highest(*risks)

    assert top in risks
    assert all(risk <= top for risk in risks)


def test_the_highest_of_none_is_refused() -> None:
    with pytest.raises(BadInput):
        highest()


def test_only_low_resumes_by_itself_and_every_other_risk_asks() -> None:
    assert [risk for risk in Risk if should_auto_resume(risk)] == [Risk.LOW]
    assert [risk for risk in Risk if needs_resume_confirmation(risk)] == [Risk.MEDIUM, Risk.HIGH, Risk.CRITICAL]
