"""The command line: `perdure run`, `ps`, `why`, `answer` and the rest, one file a group of commands.

It is handed a client and asks the store through it; it writes no SQL and knows no driver.
"""

from __future__ import annotations

from perdure.cli.main import app, main

__all__ = ["app", "main"]
