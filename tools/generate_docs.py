"""Writes the reference pages that come from the code; `--check` fails when one is out of date instead.

docs/reference/states.md     from states.py
docs/reference/settings.md   from settings.py
docs/reference/errors.md     from errors.py
docs/reference/names.md      what each public name promises
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure import errors, settings, states

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
NOTICE = "<!-- Made by tools/generate_docs.py; edit the source instead. -->\n"
# Declared so that the tables are whole; their verbs come later.
ALIASES = {"AnyTool": "Any decorated tool.", "Duration": "Seconds, or a `timedelta`."}
LATER = ("session", "plan_item", "inbox")


def main(arguments: list[str]) -> int:
    """Write or check every page; 1 when a check fails."""
    pages = {
        "states.md": states_page(),
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "names.md": names(),
    }
    REFERENCE.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, text in pages.items():
        path = REFERENCE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"out of date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


def states_page() -> str:
    """Every machine as a diagram and a table of verbs."""
    parts = [NOTICE, "# States\n", "Every move that exists; the database refuses any other.\n"]
    for machine in states.MACHINES:
        later = " (declared; its verbs come in a later version)" if machine.name in LATER else ""
        parts.append(f"## {machine.name.replace('_', ' ')}{later}\n")
        parts.append(f"```mermaid\n{states.to_mermaid(machine)}```\n")
        rows = [
            f"| {move.verb} | {', '.join(move.sources) or '(new)'} | {move.target} | {'yes' if move.fenced else ''} "
            f"| {move.event} |"
            for move in machine.transitions
        ]
        parts.append("| verb | from | to | only the owner | event |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def number(value: Any) -> str:
    """A setting's number as people write it: a whole one with all its digits."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def settings_page() -> str:
    """Every setting with its default, range and reason."""
    rows = [
        f"| `{item.name}` | {number(item.default)} | {number(item.metadata['low'])} to {number(item.metadata['high'])} "
        f"| {item.metadata['reason']} |"
        for item in dataclasses.fields(settings.Settings)
    ]
    head = "| name | default | range | what for |\n|---|---|---|---|\n"
    text = (
        "Given to `App(settings=perdure.Settings(…))`, in `[tool.perdure.settings]` of pyproject.toml, or in the "
        "environment as `PERDURE_NAME`. A name ends in its unit.\n"
    )
    return "\n".join([NOTICE, "# Settings\n", text, head + "\n".join(rows) + "\n"])


def errors_page() -> str:
    """The error tree and what each error means."""
    tree = inspect.getdoc(errors) or ""
    found = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, BaseException) and one.__module__ == errors.__name__
    ]
    rows = [f"| `{one.__name__}` | {first_sentence(one)} |" for one in dict.fromkeys(found)]
    return "\n".join(
        [NOTICE, "# Errors\n", f"```text\n{tree}\n```\n", "| error | means |\n|---|---|\n" + "\n".join(rows) + "\n"]
    )


def names() -> str:
    """The public names with the first sentence of what they promise."""
    rows = []
    for name in perdure.__all__:
        thing = getattr(perdure, name)
        promise = ALIASES.get(name) or first_sentence(thing)
        rows.append(f"| `perdure.{name}` | {promise} |")
    return "\n".join([NOTICE, "# Public names\n", "| name | promises |\n|---|---|\n" + "\n".join(rows) + "\n"])


def first_sentence(thing: object) -> str:
    """The first paragraph of a docstring on one line."""
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
