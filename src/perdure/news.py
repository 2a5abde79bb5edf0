"""What a run tells a person while it goes on, in the same words for `perdure run`, `perdure worker` and `App.run`.

    resumed assistant …7Q2M at step 6: 3 model calls, 2 tool calls from the record (4,180 tokens not bought again)
    recovered 3 tasks: 2 resumed at step 7 and 4, 1 waits for you: did send_email(to="team@example.org") happen?
    waits for you: did send_email(to="team@example.org") happen?
      it happened, and JSON is what it returned: a str
        perdure answer Q19 --happened --result JSON
      it did not; it runs, once its old worker is proven dead
        perdure answer Q19 --not-happened
      nobody knows; the agent gets OutcomeUnknown
        perdure answer Q19 --give-up
    took up 2 tasks: 2 resumed at step 7 and 4
    took over 500: 493 running, 7 questions
    other tasks of this app: 2 taken up, 1 question (perdure questions)
    failed assistant …7Q2M after 12 s: KeyError: 'total' (shop.py:7 in pay)

It listens to a worker and gathers for a moment, so that what was recovered together is told as one line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from perdure import phrases
from perdure.commands import ANYTHING, Commands, Returns, as_lines
from perdure.errors import BadInput, PerdureError
from perdure.model.question import Question, QuestionKind
from perdure.model.task import tail
from perdure.people import wanted
from perdure.returned import returned
from perdure.store import questions
from perdure.store.database import Transaction

QUIET_S: Final = 0.3
"""So long nothing further must have happened before what was gathered is told."""

_LONGEST_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is told."""

    id: str
    kind: str
    text: str
    to: str
    task_id: str
    wants: str = ""
    returns: Returns = ANYTHING

    @classmethod
    def of(cls, question: Question, evidence: object) -> Asked:
        """The question of a row, with what it rests on."""
        wants = wanted(evidence) if question.kind is QuestionKind.ASK else ""
        told = question.id, question.kind, question.text, question.to, question.task_id
        return cls(*told, wants, returned(evidence))


class News:
    """Gathers what a worker tells and turns it into lines.

    `commands` are those it shows. `read` reads from the store what a question wants.
    `counts_only` is for a worker that runs anybody's tasks:
    what was taken over is counted, not told one by one, and each task that fails is told, for nobody else may be
    there to see it; with `tells_completed` each that completes, too. Once `about` has said whose news this is, that of
    other tasks is counted too.
    """

    def __init__(
        self,
        *,
        commands: Commands = Commands(),  # noqa: B008  # It never changes.
        read: Callable[..., Awaitable[Any]] | None = None,
        counts_only: bool = False,
        tells_completed: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._commands = commands
        self._read = read
        self._counts_only = counts_only
        self._tells_completed = tells_completed
        self._say = say or _print
        self._roots: list[str] = []
        self._left: list[str] = []
        self._root_of: dict[str, str] = {}
        self._begun_here: set[str] = set()
        self._taken: dict[str, int] = {}
        self._newly_taken: set[str] = set()
        self._recovered: set[str] = set()
        self._resumed: dict[str, Mapping[str, Any]] = {}
        self._asked: dict[str, Asked] = {}
        self._ended: list[Mapping[str, Any]] = []
        self._unmanned: dict[str, str] = {}
        self._is_unmanned = asyncio.Event()
        self._told: dict[str, set[str]] = {}  # questions by their task
        self._over: set[str] = set()
        self._changed = asyncio.Event()

    def about(self, root: str) -> None:
        """Tell of the tasks below this root session one by one, and only count those below none that was named."""
        self._roots.append(root)

    @contextmanager
    def telling_of(self, root: str) -> Iterator[None]:
        """The same until the block ends; what came meanwhile is still told so."""
        self.about(root)
        try:
            yield
        finally:
            self._left.append(root)
            self._changed.set()

    # -- listening --------------------------------------------------------------------------

    def hear(self, what: str, facts: Mapping[str, Any]) -> None:
        """Take one event of a worker."""
        task_id = str(facts.get("task", ""))
        if "root" in facts and not self._counts_only:
            self._root_of[task_id] = facts["root"]
        if what == "ended":
            self._over.add(task_id)
        if what == "recovered" and not self._counts_only:
            self._recovered.add(task_id)
        match what:
            case "started":
                self._begun_here.add(task_id)
            case "took_over" if task_id not in self._begun_here:
                # A later attempt that this process makes itself, after a failure or a wait, is no news.
                self._begun_here.add(task_id)
                self._taken[task_id] = int(facts["attempt"])
                self._newly_taken.add(task_id)
            case "resumed" if self._taken.get(task_id) == facts["attempt"]:
                self._resumed[task_id] = facts
            case "ended" if self._counts_only and (self._tells_completed or facts["status"] != "completed"):
                self._ended.append(facts)
            case "unmanned":
                self._unmanned[str(facts["session"])] = unmanned_line(facts)
                self._is_unmanned.set()
            case "question":
                self._note(Asked(facts["question"], facts["kind"], facts["text"], facts["to"], task_id))
            case "recovered" if facts["question"]:
                self._taken.setdefault(task_id, 0)
                self._newly_taken.add(task_id)
                self._note(Asked(facts["question"], "resume", facts["text"], "", task_id))
            case _:
                return
        self._changed.set()

    def ask(self, question: Question, evidence: object) -> None:
        """Take a question that was found in the store."""
        self._note(Asked.of(question, evidence))

    async def run(self) -> None:
        """Tell what was gathered whenever it has been quiet for a moment, until cancelled; then tell the rest."""
        try:
            while True:
                await self._changed.wait()
                await self._until_quiet()
                await self._look_up()
                self.tell()
        finally:
            await self._look_up()
            self.tell()

    async def until_unmanned(self, root_session_id: str) -> None:
        """Raise BadInput once a task of this session waits for an agent that no live worker has."""
        while root_session_id not in self._unmanned:
            self._is_unmanned.clear()
            await self._is_unmanned.wait()
        more = "Add it to App(agents=[…]), or start a worker that has it. The task is open, and goes on then"
        raise BadInput(f"{self._unmanned[root_session_id]}. {more}", field="agents")

    # -- telling ----------------------------------------------------------------------------

    def tell(self) -> None:
        """Say what was gathered since the last time."""
        for line in self.lines():
            self._say(line)
        self._resumed.clear()
        self._asked.clear()
        self._newly_taken.clear()
        self._ended.clear()
        if self._counts_only:
            self._unmanned.clear()
        self._forget_left()
        self._forget_ended()

    def tell_stopped(self, task: str, *, has_key: bool) -> None:
        """Say of a run that was cut off how its task goes on; nothing before there is one."""
        if task:
            ways = "the same line goes on with it" if has_key else "a worker goes on with it, or a run with a key would"
            self._say(f"stopped: {task} stays open; {ways}")

    def _forget_left(self) -> None:
        for root in self._left:
            self._roots.remove(root)  # Once: another run may wait for the same task.
            if root not in self._roots:
                self._unmanned.pop(root, None)
        self._left.clear()

    def _forget_ended(self) -> None:
        """Of a task that has ended nothing more is told: a worker that lives for long must not keep them all."""
        for task_id in self._over:
            self._begun_here.discard(task_id)
            self._taken.pop(task_id, None)
            self._recovered.discard(task_id)
            self._root_of.pop(task_id, None)
            self._told.pop(task_id, None)
        self._over.clear()

    def lines(self) -> list[str]:
        """What was gathered, as lines."""
        asked = [one for one in self._asked.values() if not self._is_other(one.task_id)]
        return [*self._own_lines(asked), *self._other_lines(len(self._asked) - len(asked))]

    def _own_lines(self, asked: list[Asked]) -> list[str]:
        questions = [line for one in asked for line in asked_lines(one, self._commands)]
        waiting: dict[str, Asked] = {}
        for one in asked:
            if one.task_id in self._taken:
                waiting.setdefault(one.task_id, one)
        if self._counts_only:
            taken = _took_over(len(self._newly_taken), len(waiting.keys() & self._newly_taken))
            return [*taken, *map(ended_line, self._ended), *self._unmanned.values(), *questions]
        ours = {task_id: facts for task_id, facts in self._resumed.items() if not self._is_other(task_id)}
        resumed = [facts for task_id, facts in ours.items() if task_id not in waiting]
        if len(resumed) + len(waiting) < 2:
            return [*map(resumed_line, ours.values()), *questions]
        parts = [f"{len(resumed):,} resumed at step {_steps(resumed)}"] if resumed else []
        if waiting:
            text = phrases.asked(next(iter(waiting.values())).text)
            parts.append(f"{len(waiting):,} {'waits' if len(waiting) == 1 else 'wait'} for you: {text}")
        # What was handed back, or has its answer now, is only taken up again.
        has_crashed = not self._recovered.isdisjoint([*ours, *waiting])
        verb = "recovered" if has_crashed else "took up"
        recovered = f"{verb} {phrases.count(len(resumed) + len(waiting), 'task')}: {', '.join(parts)}"
        saved = _saved(list(ours.values()))
        return [recovered, *([f"  {saved}"] if saved else []), *(f"  {line}" for line in questions)]

    def _other_lines(self, questions: int) -> list[str]:
        taken = sum(map(self._is_other, self._newly_taken))
        parts = [f"{taken:,} taken up"] if taken else []
        if questions:
            parts.append(f"{phrases.count(questions, 'question')} ({self._commands.line('questions')})")
        return [f"other tasks of this app: {', '.join(parts)}"] if parts else []

    async def _look_up(self) -> None:
        """Read what the gathered questions want. Where that fails, the run says why; they are told without it."""
        if self._read is not None and self._asked:
            with suppress(PerdureError):
                self._asked.update(await self._read(_looked_up, list(self._asked)))

    def _is_other(self, task_id: str) -> bool:
        return bool(self._roots) and self._root_of.get(task_id, self._roots[0]) not in self._roots

    def _note(self, one: Asked) -> None:
        told = self._told.setdefault(one.task_id, set())
        if one.id not in told:
            told.add(one.id)
            self._asked[one.id] = one

    async def _until_quiet(self) -> None:
        """Wait until nothing has come for a moment, or for so long that it must be told anyhow."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + _LONGEST_S
        while self._changed.is_set() and loop.time() < latest:
            self._changed.clear()
            await asyncio.sleep(QUIET_S)


def resumed_line(facts: Mapping[str, Any]) -> str:
    """How a task goes on, and what its records have saved."""
    saved = _saved([facts])
    where = f"resumed {facts['agent']} {tail(str(facts['task']))} at step {facts['step']:,}"
    return f"{where}: {saved}" if saved else where


def ended_line(facts: Mapping[str, Any]) -> str:
    """How a task ended, and where in the code it failed."""
    status = str(facts["status"]).replace("_", " ")
    why = f": {facts['error']}" if facts["error"] else ""
    return f"{status} {facts['agent']} {tail(str(facts['task']))} after {phrases.duration(facts['ms'])}{why}"


def unmanned_line(facts: Mapping[str, Any]) -> str:
    """Which agent is missing, and who waits for it."""
    return f"no live worker has agent {facts['child']}, which {facts['agent']} {tail(str(facts['task']))} waits for"


def asked_lines(one: Asked, commands: Commands) -> list[str]:
    """What is asked, of whom, and under it the commands that answer, each on a line of its own."""
    wants = f"  ({one.wants})" if one.wants else ""
    ways = commands.answer(one.id, one.kind, returns=one.returns)
    whole = [commands.whole(one.id)] if phrases.is_cut(one.text) else []
    return [
        f"waits for {one.to or 'you'}: {phrases.asked(one.text)}{wants}",
        *(f"  {way}" for way in as_lines([*whole, *ways])),
    ]


def _looked_up(tx: Transaction, ids: list[str]) -> dict[str, Asked]:
    found = [questions.get(tx, one) for one in ids]
    return {one.id: Asked.of(one, questions.evidence(tx, one)) for one in found}


def _saved(resumed: list[Mapping[str, Any]]) -> str:
    """What records have answered, over some tasks; "" when nothing."""
    models = sum(facts["model_calls"] for facts in resumed)
    tools = sum(facts["tool_calls"] for facts in resumed)
    tokens = sum(facts["tokens"] for facts in resumed)
    parts = [phrases.count(number, noun) for number, noun in ((models, "model call"), (tools, "tool call")) if number]
    if not parts:
        return ""
    bought = f" ({tokens:,} tokens not bought again)" if tokens else ""
    return f"{', '.join(parts)} from the record{bought}"


def _took_over(tasks: int, asked: int) -> list[str]:
    if tasks == asked:
        return []  # Nothing runs; the questions tell the rest.
    return [f"took over {tasks:,}: {tasks - asked:,} running, {phrases.count(asked, 'question')}"]


def _steps(resumed: list[Mapping[str, Any]]) -> str:
    """The steps at which some tasks go on: `7, 5 and 4`; of many the first few."""
    shown = [f"{facts['step']:,}" for facts in resumed[:5]]
    if len(resumed) > len(shown):
        return f"{', '.join(shown)}, …"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _print(line: str) -> None:
    sys.stderr.write(phrases.safe(line) + "\n")
    sys.stderr.flush()
