"""`perdure demo`: real workers, killed at random and recovered. The demo itself is a package of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import screen
from perdure.cli.options import Json


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(demo)


def demo(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="More recorded runs, after --from.")
    ] = None,
    *,
    sources: Annotated[
        list[Path] | None, typer.Option("--from", metavar="PATH", help="Recorded runs to play: files or folders.")
    ] = None,
    kills: Annotated[int | None, typer.Option("--kills", min=0, help="How many times a worker is killed.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Worker processes at a time.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="One seed, one plan of kills.")] = None,
    copies: Annotated[int | None, typer.Option("--copies", min=1, help="How often each run is played.")] = None,
    url: Annotated[str | None, typer.Option("--db", metavar="URL", help="Where to play; else a new file.")] = None,
    as_json: Json = False,
) -> None:
    """Watch agents being killed and recovered.

    Real worker processes are killed at random; ledgers outside the database prove that nothing was lost or done twice.
    """
    from perdure.demo import run_demo

    if more and not sources:
        raise typer.BadParameter("say --from before the paths of recorded runs", param_hint="PATH")
    # A shell expands one pattern to many words: those after the first are paths too.
    paths = [*(sources or ()), *(more or ())] or None
    given = {"sources": paths, "kills": kills, "workers": workers, "seed": seed, "copies": copies, "url": url}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(run_demo(**chosen, as_json=as_json, out=screen.results()))
