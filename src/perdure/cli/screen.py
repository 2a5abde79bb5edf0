"""What a command prints: plain lines for programs, the same lines with a little colour on a terminal, or JSON.

Nothing is cut to the width of the screen and nothing drawn around. Text from the store cannot steer the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Final, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from perdure import phrases
from perdure.cli.shapes import Json

_STDOUT: Final = 1
_STDERR: Final = 2
# Only on a terminal, and only for what a person must not overlook.
_STYLES: Final[Mapping[str, str]] = {
    "running": "green",
    "completed": "green",
    "failed": "red",
    "timed out": "red",
    "interrupted": "yellow",
    "in doubt": "bold red",
    "nobody knows": "bold red",
    "waiting": "cyan",
    "paused": "dim",
    "cancelled": "dim",
    "critical": "bold red",
    "high": "yellow",
}


class Advance(Protocol):
    """Moves a progress bar on."""

    def __call__(self, label: str, steps: int = 1) -> None: ...


class _Line:
    """Whether the cursor stands behind a piece of text: what is printed next begins a line of its own."""

    is_open = False


class _Results:
    """Standard output while it is kept for JSON alone."""

    kept: TextIO | None = None


def open_closed() -> None:
    """Make each standard stream that this process was started without lead nowhere, as who closed it wants.

    Else what is printed has no stream, and the next file to be opened would be taken for standard output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # Takes the lowest number that is free: that of the closed one.
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


def give_up() -> None:
    """Have standard output lead nowhere: what could not be printed Python must not try to print again."""
    with suppress(OSError):  # A stream in memory has no descriptor.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def json_alone() -> Iterator[None]:
    """Keep standard output for JSON: what agents, their modules and the processes they start print meanwhile goes to
    standard error.
    """
    with _descriptor_apart() as kept:
        _Results.kept = kept
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _Results.kept = None


@contextmanager
def _descriptor_apart() -> Iterator[TextIO]:
    """A stream to where standard output leads, while its descriptor, which other processes inherit, leads to standard
    error. Standard output itself where that is no descriptor of this process, as inside a test.
    """
    stdout = sys.stdout
    try:
        is_own = (stdout.fileno(), sys.stderr.fileno()) == (_STDOUT, _STDERR)
    except (OSError, AttributeError):  # A stream in memory, or none.
        is_own = False
    if not is_own:
        yield stdout
        return
    stdout.flush()
    with os.fdopen(os.dup(_STDOUT), "w", encoding=stdout.encoding, errors=stdout.errors) as kept:
        os.dup2(_STDERR, _STDOUT)
        try:
            yield kept
        finally:
            try:
                stdout.flush()
            finally:
                os.dup2(kept.fileno(), _STDOUT)


def results() -> TextIO:
    """Where the results of this command go."""
    return _Results.kept or sys.stdout


def put(text: str = "") -> None:
    """Print a line (or several) on standard output."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Print a line beside the result, on standard error."""
    _write(sys.stderr, text)


def put_piece(text: str) -> None:
    """Print a piece of text beside the result as it comes; the next piece goes on behind it."""
    piece = phrases.safe(text)
    sys.stderr.write(piece)
    sys.stderr.flush()
    if piece:
        _Line.is_open = not piece.endswith("\n")


def put_result(value: Json) -> None:
    """Print a task's result: text as it is, all else as JSON. Only a terminal is protected from what stands in it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if sys.stdout.isatty():
        put(text)
    else:
        _end_piece()
        sys.stdout.write(text + "\n")


def put_json(value: object, *, lines: bool = False) -> None:
    """Print one JSON value; `lines`: on a line of its own, for whoever reads along."""
    out = results()
    on_terminal = out.isatty()
    indent = 2 if on_terminal and not lines else None
    out.write(json.dumps(value, ensure_ascii=on_terminal, indent=indent) + "\n")
    out.flush()


def put_rows(
    rows: Sequence[Sequence[str]],
    *,
    head: Sequence[str] = (),
    styled: int | None = None,
    below: Sequence[Sequence[str]] = (),
) -> None:
    """Print rows with their columns aligned; the last one is as long as it is.

    `head` names the columns, where there are rows. `styled` is coloured by its words. `below` are lines to stand
    under each row.
    """
    lines = [[_cell(cell) for cell in row] for row in ([head, *rows] if head and rows else rows)]
    widths = [_width(column) for column in zip(*lines, strict=True)]
    console = _console(sys.stdout)
    first = len(lines) - len(rows)
    quiet = "" if console.no_color else "dim"
    for number, line in enumerate(lines, -first):
        text = Text(style=quiet if number < 0 else "")
        for place, cell in enumerate(line):
            text.append(cell, _STYLES.get(cell, "") if place == styled else "")
            if place < len(line) - 1:
                text.append(" " * (max(0, widths[place] - cell_len(cell)) + 2))
        _put_text(console, text)
        for more in below[number] if below and number >= 0 else ():
            _put_text(console, Text(f"    {_cell(more)}", style=quiet))


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A progress bar for long work, on a terminal only; it disappears when the work is done."""
    console = _console(sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def advance(label: str, steps: int = 1) -> None:
            bar.update(task, description=phrases.safe(phrases.one_line(label, limit=60)), advance=steps)

        yield advance


def _cell(text: str) -> str:
    return " ".join(phrases.safe(text).splitlines())


def _width(column: Sequence[str]) -> int:
    """How wide a column is: as its widest cell, but a few far longer than the rest do not push all others aside."""
    lengths = sorted(map(cell_len, column))
    usual = 2 * lengths[len(lengths) // 2] + 8
    return max(length for length in lengths if length <= usual)


def _put_text(console: Console, text: Text) -> None:
    if console.is_terminal:
        console.print(text, soft_wrap=True)
    else:
        sys.stdout.write(text.plain.rstrip() + "\n")


def _end_piece() -> None:
    if _Line.is_open:
        sys.stderr.write("\n")
        sys.stderr.flush()
        _Line.is_open = False


def _write(stream: TextIO, text: str) -> None:
    _end_piece()
    stream.write(phrases.safe(text) + "\n")
    stream.flush()


def _console(stream: TextIO) -> Console:
    # NO_COLOR is Rich's own to honour.
    return Console(file=stream, highlight=False, markup=False, emoji=False)
