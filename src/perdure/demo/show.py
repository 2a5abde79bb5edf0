"""The demo from its first line to its last: prepares scripts and database, runs the trial, tells the verdict."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from perdure import phrases
from perdure.commands import as_lines
from perdure.demo import scripts
from perdure.demo.confirmed import watched
from perdure.demo.ledger import CONFIRMED, Ledger
from perdure.demo.scenario import scenario
from perdure.demo.scripts import Script
from perdure.demo.telling import Teller
from perdure.demo.trial import Plan, Trial
from perdure.demo.verdict import Verdict, judge
from perdure.demo.worker import SETTINGS
from perdure.errors import BadInput
from perdure.settings import Settings
from perdure.store import Store, open_store, sqlite_path, task_lists

_SHOWN_FAULTS = 10
_INTERRUPTED = 130


def show(
    *,
    sources: Sequence[Path],
    kills: int,
    workers: int,
    seed: int,
    url: str | None,
    as_json: bool,
    copies: int,
    zombies: int,
    out: TextIO | None,
) -> int:
    """See `perdure.demo.run_demo`."""
    for name, value, least in (
        ("kills", kills, 0),
        ("workers", workers, 1),
        ("copies", copies, 1),
        ("zombies", zombies, 0),
    ):
        if value < least:
            raise BadInput(f"{name} is {value}; give {least} or more", field=name)
    played = scripts.read_scripts(sources) if sources else scenario()
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    scripts.keep(folder / "scripts", played)
    plan = plan_for(played, kills=kills, workers=workers, seed=seed, copies=copies, zombies=zombies)
    url = url or str(folder / "demo.db")
    teller = Teller(as_json=as_json, out=out)
    ledger = Ledger(folder / CONFIRMED)
    with watched(open_store(url, settings=SETTINGS), ledger) as store:
        _refuse_used(store)
        _introduce(teller, plan, store, folder, own=not sources)
        trial = Trial(plan, store, url, folder, teller)
        try:
            in_time = asyncio.run(trial.run())
        except KeyboardInterrupt:
            return _INTERRUPTED
        finally:
            teller.close()
        verdict = judge(store, folder)
        if not in_time:
            teller.say("fault", f"given up after {plan.deadline_s:g} s")
        # The address of a server is shown without its password.
        _conclude(teller, trial, verdict, url if sqlite_path(url) else store.database.url)
    ledger.close()
    return 0 if verdict.is_good and in_time else 1


def plan_for(played: Sequence[Script], *, kills: int, workers: int, seed: int, copies: int, zombies: int) -> Plan:
    """What a trial of these scripts does: all of them are played but those that are children of others."""
    known = {script.id: script for script in played}
    children = {call.child for script in played for call in script.calls}

    def steps_of(script: Script) -> int:
        below = (known[call.child] for call in script.calls if call.child is not None)
        return script.step_count + sum(steps_of(child) for child in below)

    def tasks_of(script: Script) -> int:
        return 1 + sum(tasks_of(known[call.child]) for call in script.calls if call.child is not None)

    return Plan(
        runs={script.id: steps_of(script) for script in played if script.id not in children},
        tasks=sum(tasks_of(script) for script in played if script.id not in children),
        copies=copies,
        kills=kills,
        zombies=zombies,
        workers=workers,
        seed=seed,
    )


def _refuse_used(store: Store) -> None:
    if store.read(task_lists.counts_by_status):
        raise BadInput(
            f"{store.database.url} holds tasks already: the demo judges every task it finds. Name an empty database.",
            field="db",
        )


def _introduce(teller: Teller, plan: Plan, store: Store, folder: Path, *, own: bool) -> None:
    defaults = Settings()
    played = phrases.count(len(plan.runs), "run" if own else "recorded run")
    whose = " of an invented refund desk, travel agency and research team" if own else ""
    below = f", with their subagents {plan.tasks:,} tasks" if plan.tasks > len(plan.runs) else ""
    copies = f", each played {plan.copies} times" if plan.copies > 1 else ""
    workers = phrases.count(plan.workers, "worker process", "worker processes")
    teller.head(
        f"perdure demo: {played}{whose}{below}{copies}; {workers}, seed {plan.seed}",
        _disturbance(plan),
        "Tools that change the world write into a ledger outside the database. Whether a call that was cut off has",
        "happened, no machine can know: a person is asked, and here answers by that ledger.",
        f"heartbeat {SETTINGS.heartbeat_s:g} s and lease {SETTINGS.lease_s:g} s, to be quick"
        f" (the defaults are {defaults.heartbeat_s:g} s and {defaults.lease_s:g} s)",
        f"database {store.database.url}",
        f"ledgers  {folder}",
    )


def _disturbance(plan: Plan) -> str:
    if not (plan.kills or plan.zombies):
        return "No worker is killed: this is the work undisturbed."
    killed = f"{phrases.count(plan.kills, 'time')} a worker is killed with kill -9"
    frozen = f"{phrases.count(plan.zombies, 'time')} one is frozen until others have taken its work, and woken"
    return f"{killed}; {frozen}."


def _conclude(teller: Teller, trial: Trial, verdict: Verdict, url: str) -> None:
    faults = (*verdict.lost, *verdict.twice, *verdict.stuck, *verdict.unequal)
    for fault in faults[:_SHOWN_FAULTS]:
        teller.say("fault", fault)
    written = f"{phrases.count(verdict.confirmed, 'confirmed write')}, {len(verdict.lost)} of them not in the database"
    done = f"{phrases.count(verdict.effects, 'effect')} in the ledger, {len(verdict.twice)} of them twice"
    asked = f"a person was asked {phrases.count(verdict.asked, 'time')}"
    again = verdict.tasks - trial.plan.tasks * trial.plan.copies
    played = phrases.count(verdict.tasks, "task") + (f" ({again:,} of them played again)" if again > 0 else "")
    left = f"{played}, resumed {phrases.count(verdict.resumed, 'time')}; {len(verdict.stuck)} stuck"
    differ = f"{len(verdict.unequal)} other than recorded"
    teller.promises(
        (
            ("Nothing acknowledged is lost", written, not verdict.lost),
            ("Nothing dangerous runs twice", f"{done}; {asked}", not verdict.twice),
            ("Nothing is stuck or forgotten", f"{left}, {differ}", not (verdict.stuck or verdict.unequal)),
        )
    )
    teller.counts(
        {
            "tasks": verdict.tasks,
            "steps": verdict.steps,
            "kills": trial.kills.done,
            "zombies": trial.zombies.done,
            "resumed": verdict.resumed,
            "asked": verdict.asked,
            "answered": verdict.answered,
            "lost": len(verdict.lost),
            "twice": len(verdict.twice),
            "stuck": len(verdict.stuck),
            "unequal": len(verdict.unequal),
            "seconds": round(teller.elapsed_s, 1),
        }
    )
    command, where = command_here(), shlex.quote(url)
    looks = [(f"{command} ps --all --db {where}", "its tasks, each with how it ended")]
    if verdict.resumed:
        looks.append((f"{command} why {verdict.busiest} --db {where}", "the task that was taken up most often"))
    teller.tail("Look at what is left:", *(f"  {line}" for line in as_lines(looks)))


def command_here() -> str:
    """How this `perdure` is called from the folder one is in, whether its environment is active or not."""
    script = Path(sys.executable).parent / "perdure"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m perdure.cli"
    on_path = shutil.which("perdure")
    if on_path is not None and Path(on_path).samefile(script):
        return "perdure"
    is_below = script.is_relative_to(Path.cwd())
    return shlex.quote(str(script.relative_to(Path.cwd()) if is_below else script))
