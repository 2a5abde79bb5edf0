"""What the demo prints: lines while it happens, and the closing table. Plain text where nobody watches a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

_STYLES: Mapping[str, str] = {
    "started": "green",
    "killed": "bold red",
    "frozen": "bold magenta",
    "woken": "magenta",
    "fenced": "magenta",
    "taken over": "cyan",
    "recovered": "cyan",
    "asks": "yellow",
    "answered": "yellow",
    "ended": "green",
    "fault": "bold white on red",
}


class Teller:
    """Tells what happens, with the seconds since the start. Silent when only the result is wanted."""

    def __init__(self, *, as_json: bool, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._as_json = as_json
        self._console = Console(file=self._out, highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._status: Status | None = None
        self.is_watched = self._console.is_terminal and not as_json

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def head(self, *lines: str) -> None:
        """What this is, before anything happens."""
        if not self._as_json:
            for line in lines:
                self._console.print(escape(line))
            self._console.print()
        if self.is_watched:
            self._status = self._console.status("starting")
            self._status.start()

    def say(self, what: str, text: str) -> None:
        """One line: what happened, and to whom."""
        if self._as_json:
            return
        style = _STYLES.get(what, "")
        label = f"{what:<10}"
        if self.is_watched:
            line = f"[dim]{self.elapsed_s:5.1f} s[/]  [{style}]{label}[/] {escape(text)}"
            self._console.print(line, soft_wrap=False, overflow="ellipsis", no_wrap=True)
        else:
            self._console.print(escape(f"{self.elapsed_s:5.1f} s  {label} {text}"))

    def progress(self, text: str) -> None:
        """How far it has come; only where somebody watches."""
        if self._status is not None:
            self._status.update(escape(text))

    def close(self) -> None:
        """Nothing goes on any more. Safe to repeat."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def promises(self, rows: Sequence[tuple[str, str, bool]]) -> None:
        """Each promise with what was found, and whether it was kept."""
        if self._as_json:
            return
        self._console.print()
        if not self.is_watched:
            for promise, found, is_kept in rows:
                self._console.print(escape(f"{'kept  ' if is_kept else 'BROKEN'}  {promise}: {found}"))
            return
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for promise, found, is_kept in rows:
            sign = "[bold green]kept[/]" if is_kept else "[bold white on red]BROKEN[/]"
            table.add_row(sign, f"[bold]{escape(promise)}[/]", escape(found))
        self._console.print(table)

    def counts(self, counts: Mapping[str, float]) -> None:
        """The closing numbers: a table, or one JSON object."""
        if self._as_json:
            print(json.dumps(counts), file=self._out)
            return
        self._console.print()
        if not self.is_watched:
            self._console.print("  ".join(f"{name} {value:g}" for name, value in counts.items()))
            return
        table = Table(show_edge=False, pad_edge=False)
        for name in counts:
            table.add_column(name, justify="right")
        table.add_row(*(f"{value:g}" for value in counts.values()))
        self._console.print(table)

    def tail(self, *lines: str) -> None:
        """What one can do next."""
        if not self._as_json:
            self._console.print()
            for line in lines:
                self._console.print(escape(line))
