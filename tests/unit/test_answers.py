"""What a type is called to whoever answers, and what is refused where it is said."""

from __future__ import annotations

from typing import Any, Literal, Optional

import pytest

from perdure import codec
from perdure.errors import BadInput
from perdure.runtime import answers


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        (codec.ANY, "any"),
        (int, "int"),
        (list, "list"),
        (list[str], "list[str]"),
        (Literal["red", "blue"], "Literal['red', 'blue']"),
        (dict[str, Literal[1]], "dict[str, Literal[1]]"),
        (int | None, "int | None"),
        (BadInput, "BadInput"),
    ],
)
def test_a_type_is_called_what_its_author_wrote(annotation: Any, word: str) -> None:
    assert answers.type_word(annotation) == word


def test_an_optional_type_says_of_what() -> None:
    assert "str" in answers.type_word(Optional[str])  # noqa: UP045  # as older code writes it


def test_an_answer_is_refused_for_what_its_type_is_made_of() -> None:
    answers.check_answer(["a"], "list[str]", question_id="Q1")
    with pytest.raises(BadInput, match=r"Q1 wants a list\[str\], not 7"):
        answers.check_answer(7, "list[str]", question_id="Q1")
