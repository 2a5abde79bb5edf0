"""Every code block of the README and of the documentation runs, and prints what the page says."""

from __future__ import annotations

import pkgutil
import re
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, Block, PageRun, _fits, blocks, commands, pages
from tests.world import World

_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TYPED = ("", "text", "console", "sh", "bash")


def _as_case(page: Path) -> object:
    """A page with commands starts a dozen processes, which takes its time on a busy machine."""
    has_commands = any(block.language == "console" for block in blocks(page))
    marks = [pytest.mark.slow(timeout_s=300)] if has_commands else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [_as_case(page) for page in pages()])
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    run = PageRun(tmp_path)

    for block in blocks(page):
        run.run(block)

    assert page.stat().st_size > 0


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_the_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))

    missing = [one for one in targets if "://" not in one and not (page.parent / one).exists()]

    assert missing == []


def test_the_index_names_every_page() -> None:
    docs = ROOT / "docs"
    linked = re.findall(r"\]\(([^)#\s]+)", (docs / "index.md").read_text(encoding="utf-8"))

    written = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "adr"}

    assert written - set(linked) == {"index.md"}


def test_each_new_name_of_a_renamed_thing_exists(world: World) -> None:
    text = (ROOT / "docs/reference/renamed.md").read_text("utf-8")
    rows = [row for row in re.findall(r"^\|[^|]+\| ([^|]+) \|", text, re.MULTILINE) if row != "here"]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}

    for name in sorted(names):
        if name.startswith("perdure."):
            pkgutil.resolve_name(name)
        else:
            table, _, column = name.partition(".")
            assert world.rows(f"SELECT {column or 'count(*)'} FROM {table} WHERE 1 = 0") in ([], [(0,)]), name

    assert len(rows) > 50 and all("`" in row for row in rows)


def test_a_command_that_prints_something_else_is_found(tmp_path: Path) -> None:
    block = Block("console", "$ echo one\ntwo\n", 1)

    with pytest.raises(AssertionError, match="printed"):
        PageRun(tmp_path).run(block)


def test_a_command_is_killed_once_it_says_so(tmp_path: Path) -> None:
    block = Block("console", "# kill -9 it once it says: at 1\n$ sh -c 'echo at 1; sleep 60; echo at 2'\n", 1)

    PageRun(tmp_path).run(block)

    assert (tmp_path / ".killed").read_text() == "at 1\n"


def test_a_command_is_killed_once_it_has_said_so_twice(tmp_path: Path) -> None:
    block = Block("console", "# kill -9 it once it says twice: at\n$ sh -c 'echo at; echo at; sleep 60; echo end'\n", 1)

    PageRun(tmp_path).run(block)

    assert (tmp_path / ".killed").read_text() == "at\nat\n"


def test_blocks_of_a_page_share_names_and_find_its_files(tmp_path: Path) -> None:
    run = PageRun(tmp_path)

    run.run(Block("python", "# numbers_of_page.py\nONE = 1\n", 1))
    run.run(Block("python", "from numbers_of_page import ONE\n", 1))
    run.run(Block("python", "import asyncio\nawait asyncio.sleep(0)\nassert ONE == 1\n", 1))

    assert "numbers_of_page" not in sys.modules


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *pages()], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_of_a_page_stands_alone_on_its_line(page: Path) -> None:
    """At the prompt of zsh a `#` begins no remark: what follows it would be arguments."""
    text = page.read_text(encoding="utf-8")
    lines = [line for language, block in _FENCED.findall(text) if language in _TYPED for line in block.splitlines()]

    assert [line for line in lines if re.search(r"\S +#", line)] == []


def test_lines_with_dots_stand_for_anything() -> None:
    assert _fits(["a 12 b", "x", "y", "end"], ["a … b", "…", "end"])
    assert not _fits(["a 12 b", "x"], ["a … b", "end"])
    found = list(commands("$ a\n1\n2\n# kill -9 it\n$ b\n$ c\n"))
    assert found == [("a", "", ["1", "2"]), ("b", "# kill -9 it", []), ("c", "", [])]
