"""`perdure import`: recorded runs into the store. A file may be given again; only what is new is added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure import phrases
from perdure.cli import screen
from perdure.cli.opening import made
from perdure.cli.options import AppName, Db, Json
from perdure.client import Client
from perdure.errors import BadInput
from perdure.importers import Recording, read_runs
from perdure.store import Store, imports


@dataclass(slots=True)
class Report:
    """What became of one file."""

    file: str
    format: str = ""
    runs: int = 0
    new_runs: int = 0
    grown_runs: int = 0
    messages: int = 0
    calls: int = 0
    results: int = 0
    records: int = 0
    used: int = 0
    unused: list[dict[str, Any]] = field(default_factory=list)
    remarks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="import")(import_)


def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of recorded runs, or folders of them.")],
    *,
    db: Db = None,
    app: AppName = None,
    as_json: Json = False,
) -> None:
    """Read recorded runs into the store.

    A file may be given again, and a longer copy of a log adds only its rest. What was added and what could not be
    used is printed exactly.
    """
    files = list(_files(paths))
    with made(db, app) as client, screen.progress(len(files)) as advance:
        reports = []
        for file in files:
            advance(file.name, steps=0)
            reports.append(_import_file(client, file))
            advance(file.name)
    if as_json:
        screen.put_json({"files": [asdict(report) for report in reports]})
    else:
        for report in reports:
            _put(report)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _files(paths: list[Path]) -> Iterator[Path]:
    """The files named, and those in the folders named, in order of their names."""
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
        else:
            yield path


def _import_file(client: Client, file: Path) -> Report:
    """Add one file. A file that cannot be read, or a run that cannot be stored, is a problem and stops nothing else.

    A database that is not there is made once something was read.
    """
    report = Report(str(file))
    try:
        recording = read_runs(file)
    except BadInput as error:
        report.problems.append(str(error))
        return report
    report.format = recording.format
    report.runs = len(recording.runs)
    report.records, report.used = recording.record_count, recording.used_count
    report.unused = [asdict(one) for one in recording.unused]
    report.remarks = [asdict(one) for one in recording.remarks]
    _add_runs(client.store, recording, report)
    return report


def _add_runs(store: Store, recording: Recording, report: Report) -> None:
    for run in imports.in_order(recording.runs):
        is_new, count = False, 0
        try:
            while True:
                added = store.call(imports.add, recording.format, run)
                is_new = is_new or added.is_new
                report.messages += added.messages
                report.calls += added.calls
                report.results += added.results
                count += added.messages + added.calls + added.results
                if added.is_whole:
                    break
        except BadInput as error:
            report.problems.append(f"run {run.source_id} cannot be stored: {error}")
            continue
        report.new_runs += is_new
        report.grown_runs += not is_new and count > 0
        if added.stays:
            report.problems.append(
                f"run {run.source_id} ({added.task_id}) was imported as {added.stays}, and this file says "
                f"{run.status}: what has ended stays as it is"
            )


def _put(report: Report) -> None:
    if report.format:
        screen.put(f"{report.file}: {report.format}, {phrases.count(report.runs, 'run')}")
        added = [
            phrases.count(number, noun)
            for number, noun in (
                (report.new_runs, "new run"),
                (report.messages, "message"),
                (report.calls, "tool call"),
                (report.results, "result"),
            )
            if number
        ]
        grown = f" ({phrases.count(report.grown_runs, 'run')} had grown)" if report.grown_runs else ""
        screen.put(f"  added {', '.join(added)}{grown}" if added else "  nothing new")
        screen.put(f"  {report.used:,} of {phrases.count(report.records, 'record')} are of use")
        for one in report.unused:
            screen.put(f"  not used: {one['count']:,} x {one['reason']} ({one['where']})")
        for one in report.remarks:
            screen.put(f"  remark: {one['count']:,} x {one['reason']} ({one['where']})")
    for problem in report.problems:
        screen.put(f"  problem: {problem}" if report.format else f"problem: {problem}")
