"""The verdict on a trial: what was lost, done twice, stuck or not as recorded. It reads, and trusts no counter.

The ledgers say what processes did and what the store confirmed; the database says what it holds; the scripts say what
should stand there. Four counts must be zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perdure import codec
from perdure.demo import scripts
from perdure.demo.confirmed import digest_of
from perdure.demo.ledger import CONFIRMED, EFFECTS, Effect, Reader, effects
from perdure.demo.scripts import Script
from perdure.model.message import Message
from perdure.model.step import Step
from perdure.model.task import Task
from perdure.states import TASK, QuestionStatus, TaskStatus
from perdure.store import Store, events, messages, questions, steps, task_lists, tasks
from perdure.store.database import Transaction

_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. Each fault is a sentence that names its rows."""

    tasks: int
    steps: int
    resumed: int
    asked: int
    answered: int
    confirmed: int
    effects: int
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    stuck: tuple[str, ...]
    unequal: tuple[str, ...]
    busiest: str = ""

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.twice or self.stuck or self.unequal)


@dataclass(slots=True)
class _Rows:
    """What the database holds, in the words of the ledger."""

    found: set[tuple[str | int, ...]] = field(default_factory=set)
    tasks: list[Task] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    resumed: int = 0
    asked: int = 0
    answered: int = 0
    waiting: set[str] = field(default_factory=set)
    said: dict[str, list[Message]] = field(default_factory=dict)


def judge(store: Store, folder: Path) -> Verdict:
    """Compare ledgers, database and scripts. Nothing may run meanwhile. Blocks the thread."""
    rows = _Rows()
    rows.tasks = store.read(_every_task)
    for task in rows.tasks:
        store.read(_read_task, task, rows)
    with Reader(folder / CONFIRMED) as reader:
        confirmed = [tuple(line) for line in reader.news()]
    done = effects(folder / EFFECTS)
    return Verdict(
        tasks=len(rows.tasks),
        steps=rows.steps,
        resumed=rows.resumed,
        asked=rows.asked,
        answered=rows.answered,
        confirmed=len(confirmed),
        effects=len(done),
        lost=tuple(find_lost(confirmed, rows.found)),
        twice=tuple(find_twice(done)),
        stuck=tuple(find_stuck(rows.tasks, rows.waiting)),
        unequal=tuple(_find_unequal(rows, folder, done)),
        busiest=max(rows.tasks, key=lambda task: task.attempt).id if rows.tasks else "",
    )


# -- the four faults ------------------------------------------------------------------------


def find_lost(confirmed: Iterable[tuple[str | int, ...]], found: set[tuple[str | int, ...]]) -> list[str]:
    """Lines of what was confirmed for which there is no row."""
    return [f"confirmed, but not in the database: {line}" for line in confirmed if line not in found]


def find_twice(done: Iterable[Effect]) -> list[str]:
    """Tokens with two effects; and calls that had effects under two tokens, which is the same to the world."""
    by_token = Counter(effect.token for effect in done)
    by_call: dict[tuple[str, str], set[str]] = defaultdict(set)
    for effect in done:
        by_call[effect.run, effect.call].add(effect.token)
    return [f"{count} effects under the token {token}" for token, count in by_token.items() if count > 1] + [
        f"call {call} of {run} had effects under {len(tokens)} tokens"
        for (run, call), tokens in by_call.items()
        if len(tokens) > 1
    ]


def find_stuck(found: Iterable[Task], waiting: set[str]) -> list[str]:
    """Tasks that have neither ended nor wait for an answer that somebody was asked for."""
    return [
        f"task {task.id} is {task.status}" for task in found if not task.status.is_terminal and task.id not in waiting
    ]


def find_unequal(script: Script, task: Task, said: Sequence[Message], *, run: str, done: set[tuple[str, str]]) -> str:
    """How a finished task differs from its script, or ""."""
    wanted = TaskStatus.COMPLETED if script.error is None else TaskStatus.FAILED
    if task.status is not wanted:
        return f"task {task.id} ({run}) is {task.status}, not {wanted}"
    recorded = {call.id: call.content for call in script.calls}
    lines = [(line.role, scripts.message_of(line, recorded)) for line in script.lines]
    have = [(message.role, message.content) for message in said]
    if have != lines:
        differs = (place for place, pair in enumerate(zip(have, lines, strict=False)) if pair[0] != pair[1])
        place = next(differs, min(len(have), len(lines)))
        return f"task {task.id} ({run}) has {len(have)} messages of {len(lines)}; number {place} is the first to differ"
    for call in script.calls:
        if call.child is None and not scripts.is_read(call.name) and (run, call.id) not in done:
            return f"task {task.id} ({run}) tells of {call.name} {call.id}, which never changed the world"
    return ""


def _find_unequal(rows: _Rows, folder: Path, done: Sequence[Effect]) -> Iterable[str]:
    happened = {(effect.run, effect.call) for effect in done}
    for run, count in Counter(rows.runs.values()).items():
        if count > 1:
            yield f"{count} tasks were admitted for {run}"
    for task in rows.tasks:
        if not task.status.is_terminal:
            continue
        run = rows.runs[task.id]
        script = scripts.fetch(folder / "scripts", run)
        fault = find_unequal(script, task, rows.said[task.id], run=run, done=happened)
        if fault:
            yield fault


# -- reading --------------------------------------------------------------------------------


def _every_task(tx: Transaction) -> list[Task]:
    found: list[Task] = []
    cursor = None
    while page := task_lists.recent(tx, after=cursor, limit=200):
        found += page
        cursor = task_lists.Cursor(page[-1].created_at, page[-1].id)
    return found


def _read_task(tx: Transaction, task: Task, rows: _Rows) -> None:
    rows.found.add(("task", task.id))
    rows.found |= {("end", task.id, str(task.status)), ("end", task.n, str(task.status))}
    prompt = codec.decode(tasks.get_input(tx, task.id).prompt)
    assert isinstance(prompt, Mapping), task.id
    rows.runs[task.id] = str(prompt["run"])
    _read_steps(tx, task, rows)
    for seq, _kind, content in _raw_messages(tx, task):
        rows.found.add(("message", task.n, seq, digest_of(content)))
    rows.said[task.id] = messages.listing(tx, task.id, limit=_ALL)
    after = 0
    while page := events.feed(tx, task.id, after=after):
        for event in page:
            rows.found.add(("event", task.n, event.seq, event.kind))
            rows.resumed += event.kind == TASK.event("recover")
        after = page[-1].seq
    for question in questions.of_task(tx, task.id):
        rows.found.add(("question", question.id, ""))
        rows.found.add(("question", question.id, str(question.status)))
        rows.asked += 1
        if question.status is QuestionStatus.OPEN:
            rows.waiting.add(task.id)
        rows.answered += question.answered_by is not None


def _read_steps(tx: Transaction, task: Task, rows: _Rows) -> None:
    for row in tx.all(steps.Q.trace, id=task.id, from_index=0, limit=_ALL):
        step = Step.from_row(row)
        place = step.step_index if step.key is None else step.key
        # Both what was confirmed when it began and what was confirmed when it ended.
        rows.found.add(("step", task.n, place, step.try_number, "", ""))
        rows.found.add(("step", task.n, place, step.try_number, step.outcome or "", digest_of(step.output)))
        rows.steps += step.key is not None


def _raw_messages(tx: Transaction, task: Task) -> Iterable[tuple[int, str, bytes]]:
    for row in tx.all(messages.Q.list, id=task.id, after=-1, limit=_ALL):
        yield row[1], row[2], row[3]
