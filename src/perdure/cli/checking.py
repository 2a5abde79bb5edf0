"""`perdure doctor`: what is true of a database, and what is not as it must be."""

from __future__ import annotations

import typer

from perdure import doctor as doctor_
from perdure.cli import screen
from perdure.cli.opening import opened
from perdure.cli.options import AppName, Db, Json


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(*, db: Db = None, app: AppName = None, as_json: Json = False) -> None:
    """Check a database: versions, files, invariants.

    Changes nothing. Exit code 1 if anything is not as it must be; each finding names rows and what to do.
    """
    with opened(db, app) as client:
        report = doctor_.examine(client.store, client.commands)
    if as_json:
        findings = [
            {"check": one.check, "what": one.what, "rows": list(one.rows), "do": one.do} for one in report.findings
        ]
        screen.put_json({"facts": dict(report.facts), "findings": findings})
    else:
        screen.put_rows(report.facts)
        for one in report.findings:
            screen.put(f"\n{one.check}: {one.what}")
            for row in one.rows:
                screen.put(f"  {row}")
            screen.put(f"  do: {one.do}")
        if not report.findings:
            screen.put("all is well")
    if report.findings:
        raise typer.Exit(1)
