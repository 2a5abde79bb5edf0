"""Options and arguments that several commands share."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

Db = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="The database: a path or postgresql://…; else the app's, $PERDURE_DB."),
]
AppName = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The app, such as app:app; also $PERDURE_APP.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="A task's id, or any unique ending of it.")]
QuestionId = Annotated[str, typer.Argument(metavar="QUESTION", help="A question's id, such as Q19.")]
By = Annotated[str, typer.Option("--by", help="Who says so.  [default: the user of this system]")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=200, help="So many rows at most.")]
After = Annotated[str | None, typer.Option("--after", help="Go on where an earlier page ended.")]


def who(by: str) -> str:
    """Who answers: as said, else the user that the system knows."""
    if by:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # No such user: in a container, for example.
        return "somebody"
