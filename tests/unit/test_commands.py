"""The commands that people are shown: each is whole, and does alone what stands above it."""

from __future__ import annotations

import shlex

import pytest

from perdure.commands import Commands, as_lines
from perdure.model.question import QuestionKind

SHOWN = Commands(" --db x.db", "shop:app")


@pytest.mark.parametrize("kind", QuestionKind)
def test_every_kind_of_question_has_its_commands_each_whole(kind: QuestionKind) -> None:
    ways = SHOWN.answer("Q19", kind)

    assert all("Q19" in command and command.endswith(" --db x.db") for command, _ in ways)
    assert all(meaning for _, meaning in ways)


@pytest.mark.parametrize("kind", QuestionKind)
def test_no_command_is_a_pipe_of_the_shell(kind: QuestionKind) -> None:
    """Joined by a pipe, the shell would run all the alternatives."""
    ways = [*SHOWN.answer("Q19", kind), *SHOWN.settle("T1", 3), SHOWN.anyway("Q19")]

    for command, _ in ways:
        assert shlex.split(command).count("perdure") == 1
        assert not set("|;&<>#\n") & set(command)


def test_a_worker_is_named_with_its_app_where_it_does_not_know_it() -> None:
    assert SHOWN.worker == "perdure worker shop:app --db x.db"
    assert Commands().worker == "perdure worker MODULE:APP"
    assert Commands(app="").worker == "perdure worker"


@pytest.mark.parametrize("kind", QuestionKind)
def test_a_command_stands_alone_on_its_line(kind: QuestionKind) -> None:
    """A `#` begins no remark at the prompt of zsh: the words after it are arguments, and a `;` ends the command."""
    ways = [*SHOWN.answer("Q19", kind), *SHOWN.settle("T1", 3), SHOWN.anyway("Q19")]

    shown = [line.strip() for line in as_lines(ways) if "perdure" in line]

    assert shown == [command for command, _ in ways]


def test_what_a_command_does_stands_above_it() -> None:
    assert as_lines([("a", "one"), ("abc", "two")]) == ["one", "  a", "two", "  abc"]
    assert as_lines([]) == []
