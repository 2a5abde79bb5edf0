"""What is called wrongly is refused by a BadInput that says what to give, and errors read as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import perdure
import perdure.sync
from perdure.errors import Error


def named_in_vain(read: Any) -> list[tuple[Callable[[], Any], str, str]]:
    return [
        (lambda: read(lambda: 3), "name", "give a name, then a function, then its arguments"),
        (lambda: read("three"), "fn", "give a function, then its arguments"),
        (read, "name", "give a name, then a function, then its arguments"),
    ]


@pytest.mark.parametrize(
    ("give", "field", "says"),
    [
        case
        for verb in (perdure.read, perdure.step, perdure.sync.read, perdure.sync.step)
        for case in named_in_vain(verb)
    ]
    + [(one, "fn", "give a function, then its arguments") for one in (perdure.model, perdure.sync.model)],
)
def test_a_verb_without_what_it_needs_says_what_to_give(give: Callable[[], Any], field: str, says: str) -> None:
    with pytest.raises(perdure.BadInput, match=says) as refused:
        give()

    assert refused.value.field == field


async def test_an_agent_that_is_named_wants_its_arguments_by_name_whoever_starts_it() -> None:
    @perdure.agent
    async def ag(number: int) -> None: ...

    app = perdure.App("memory:", agents=[ag])

    for start in (app.run, app.start):
        with pytest.raises(perdure.BadInput, match=r"'ag'.* give them as name=value") as refused:
            await start("ag", 1)  # type: ignore[arg-type]  # run takes no name
        assert "start(" not in str(refused.value)


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            perdure.TaskFailed("T", Error("ValueError", "boom", place="a.py:7 in act")),
            "failed: ValueError: boom (a.py:7 in act)",
        ),
        (perdure.TaskTimedOut("T", Error("TimedOut", "deadline exceeded")), "timed out: deadline exceeded"),
        (perdure.TaskCancelled("T", Error("Cancelled", "cancelled")), "was cancelled"),
        (perdure.TaskCancelled("T", Error("Cancelled", "too late")), "was cancelled: too late"),
    ],
)
def test_how_a_task_ended_reads_as_a_sentence(failure: perdure.TaskFailed, said: str) -> None:
    assert str(failure) == f"task T {said}"
