"""What a command prints: plain lines for programs, the same lines with a little colour on a terminal, or JSON.

Nothing is cut to the width of the screen and nothing drawn around. Text from the store cannot steer the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from perdure import phrases
from perdure.cli.shapes import Json

# Only on a terminal, and only for what a person must not overlook.
_STYLES: Final[Mapping[str, str]] = {
    "running": "green",
    "completed": "green",
    "failed": "red",
    "timed out": "red",
    "interrupted": "yellow",
    "in doubt": "bold red",
    "waiting": "cyan",
    "paused": "dim",
    "cancelled": "dim",
    "critical": "bold red",
    "high": "yellow",
}


class Advance(Protocol):
    """Moves a progress bar on."""

    def __call__(self, label: str, steps: int = 1) -> None: ...


def put(text: str = "") -> None:
    """Print a line (or several) on standard output."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Print a line beside the result, on standard error."""
    _write(sys.stderr, text)


def put_result(value: Json) -> None:
    """Print a task's result: text as it is, all else as JSON. Only a terminal is protected from what stands in it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if sys.stdout.isatty():
        put(text)
    else:
        sys.stdout.write(text + "\n")


def put_json(value: object) -> None:
    """Print one JSON value."""
    on_terminal = sys.stdout.isatty()
    sys.stdout.write(json.dumps(value, ensure_ascii=on_terminal, indent=2 if on_terminal else None) + "\n")


def put_rows(rows: Sequence[Sequence[str]], *, styled: int | None = None) -> None:
    """Print rows with their columns aligned; the last one is as long as it is. `styled` is coloured by its words."""
    lines = [[" ".join(phrases.safe(cell).splitlines()) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    console = _console(sys.stdout)
    for line in lines:
        text = Text()
        for place, cell in enumerate(line):
            style = _STYLES.get(cell, "") if place == styled else ""
            text.append(cell, style)
            if place < len(line) - 1:
                text.append(" " * (widths[place] - cell_len(cell) + 2))
        if console.is_terminal:
            console.print(text, soft_wrap=True)
        else:
            sys.stdout.write(text.plain.rstrip() + "\n")


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


def _write(stream: TextIO, text: str) -> None:
    stream.write(phrases.safe(text) + "\n")
    stream.flush()


def _console(stream: TextIO) -> Console:
    # NO_COLOR is Rich's own to honour.
    return Console(file=stream, highlight=False, markup=False, emoji=False)
