"""Every code block of the README and of the documentation runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import ROOT, Block, PageRun, _fits, blocks, commands, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    run = PageRun(tmp_path)

    for block in blocks(page):
        run.run(block)

    assert page.stat().st_size > 0


def test_a_command_that_prints_something_else_is_found(tmp_path: Path) -> None:
    block = Block("console", "$ echo one\ntwo\n", 1)

    with pytest.raises(AssertionError, match="printed"):
        PageRun(tmp_path).run(block)


def test_lines_with_dots_stand_for_anything() -> None:
    assert _fits(["a 12 b", "x", "y", "end"], ["a … b", "…", "end"])
    assert not _fits(["a 12 b", "x"], ["a … b", "end"])
    assert list(commands("$ a\n1\n2\n$ b\n")) == [("a", ["1", "2"]), ("b", [])]
