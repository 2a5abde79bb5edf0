"""One trial: tasks are admitted, workers do them and are killed and stopped meanwhile, a person answers.

What is random is drawn from the seed, though not all that happens is: processes run as the machine lets them. A trial
always ends: when every task has ended, or at a deadline that grows with the work.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from perdure import phrases
from perdure.client import Client
from perdure.demo.crew import Crew, Member
from perdure.demo.harm import Harm, Moments
from perdure.demo.ledger import CONFIRMED, Reader
from perdure.demo.person import Person
from perdure.demo.play import replay_run
from perdure.demo.scripts import COPY_MARK
from perdure.demo.telling import Teller
from perdure.demo.worker import SETTINGS
from perdure.errors import StoreBusy, StoreClosed
from perdure.policy.recovery import Verdict
from perdure.states import TaskStatus
from perdure.store import Store, aio, task_lists

_LOOK_S = 0.01
_ANSWER_S = 0.1
_TELL_S = 0.25
_ASKED_CHARACTERS = 160
_ADMITTED_AT_ONCE = 100
_AGAIN = SETTINGS.permits  # runs for each worker that are played again
# Kills and stops happen before this share of the work is done, so that there is work left to recover.
_SHARE = 0.8
# More than so many workers that end by themselves, and there is no use in starting more.
_MAX_ENDED = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What a trial does: which runs are played, with how many steps each puts on record, its children's among them.

    `tasks` are those of one round: a run is one, and each of its children.
    """

    runs: Mapping[str, int]
    tasks: int
    copies: int
    kills: int
    zombies: int
    workers: int
    seed: int

    @property
    def deadline_s(self) -> float:
        """When a trial is given up: far later than it ever takes."""
        return 60 + 0.2 * sum(self.runs.values()) * self.copies + 2 * self.kills + 20 * self.zombies


@dataclass(eq=False)
class Trial:
    """Runs a plan against a store that is open and empty."""

    plan: Plan
    store: Store
    url: str
    folder: Path
    teller: Teller
    _copies: int = 0
    _steps_due: int = 0
    _steps_done: int = 0
    _ended_by_themselves: int = 0
    _rounds_again: int = 0
    _recovered: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        random = Random(self.plan.seed)
        self.kills, self.zombies = Moments(random, self.plan.kills), Moments(random, self.plan.zombies)
        self._random = random
        self._client = Client(store=self.store)
        self._person = Person(self._client, self.folder)
        self._crew = Crew(self.url, self.folder, self.plan.seed, self._hear)
        self._harm = Harm(
            self._crew, self.store, self.teller, random, self.kills, self.zombies, lambda: self._steps_done
        )

    async def run(self) -> bool:
        """Run it; True when every task has ended, False when the deadline came first.

        Raises StoreError when the database fails, or when no worker can be kept alive.
        """
        try:
            async with self._crew:
                for _ in range(self.plan.workers):
                    await self._start_worker()
                for _ in range(self.plan.copies):
                    await self._admit(list(self.plan.runs))
                self._spread()
                async with asyncio.timeout(self.plan.deadline_s):
                    await self._go_on()
        except TimeoutError:
            return False
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tell_recovered()
            self._person.close()
        return True

    async def _go_on(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(loop)
                for loop in (
                    self._follow(),
                    self._keep_alive(),
                    self._harm.kill_always(),
                    self._harm.stop_always(),
                    self._answer(),
                    self._tell(),
                )
            ]
            await self._until_ended()
            for one in loops:
                one.cancel()

    # -- what goes on -------------------------------------------------------------------------

    async def _admit(self, runs: Sequence[str]) -> None:
        """Admit runs, as copies of their own when they were admitted before."""
        mark = f"{COPY_MARK}{self._copies + 1}" if self._copies else ""
        for start in range(0, len(runs), _ADMITTED_AT_ONCE):
            batch = [run + mark for run in runs[start : start + _ADMITTED_AT_ONCE]]
            await self._client.start_all(replay_run.options(key=run).bind(run) for run in batch)
        self._copies += 1
        self._steps_due += sum(self.plan.runs[run] for run in runs)

    def _spread(self) -> None:
        """Spread what is left to be done to the workers over the work that is left."""
        end = self._steps_done + _SHARE * (self._steps_due - self._steps_done)
        for moments in (self.kills, self.zombies):
            moments.spread(self._steps_done, end)

    async def _until_ended(self) -> None:
        """Until every task has ended. While kills or stops are left, runs are played again before the work runs out."""
        while True:
            await asyncio.sleep(5 * _LOOK_S)
            counts = await aio.read(self.store, task_lists.counts_by_status)
            open_count = sum(count for status, count in counts.items() if not TaskStatus(status).is_terminal)
            if not (self.kills.left or self.zombies.left):
                if not open_count:
                    return
            elif open_count <= self.plan.workers and not self._harm.has_one_stopped:
                again = self._random.sample(list(self.plan.runs), min(len(self.plan.runs), _AGAIN * self.plan.workers))
                with suppress(StoreBusy):
                    await self._admit(again)
                    self._spread()
                    self._tell_again(len(again))

    async def _follow(self) -> None:
        """Follow the ledger of what was confirmed: how far the work has come."""
        with Reader(self.folder / CONFIRMED) as reader:
            while True:
                for line in reader.news():
                    self._steps_done += line[0] == "step" and isinstance(line[2], str) and line[4] != ""
                await asyncio.sleep(_LOOK_S)

    async def _keep_alive(self) -> None:
        while self._ended_by_themselves <= _MAX_ENDED:
            if len(self._crew.alive) < self.plan.workers:
                await self._start_worker()
            await asyncio.sleep(_LOOK_S)
        raise StoreClosed(f"the workers end by themselves; {self.folder / 'workers.log'} says why")

    async def _start_worker(self) -> None:
        # One that others may end is no use for a zombie, so there is always one that they may not.
        is_covered = any(not one.killable for one in self._crew.alive)
        await self._crew.start(killable=is_covered and self._random.random() < 0.7)

    async def _answer(self) -> None:
        while True:
            for question, said in await self._person.answer_all():
                self.teller.say("asks", f"{question.id} {phrases.one_line(question.text, limit=_ASKED_CHARACTERS)}")
                self.teller.say("answered", f"{question.id} {said}")
            await asyncio.sleep(_ANSWER_S)

    # -- news -----------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            self._tell_recovered()
            self.teller.progress(
                f"step {self._steps_done} of {self._steps_due}, kill {self.kills.done} of {self.plan.kills}"
            )
            await asyncio.sleep(_TELL_S)

    def _hear(self, member: Member, what: str, facts: Mapping[str, Any]) -> None:
        match what:
            case "ready":
                self.teller.say("started", str(member))
            case "recovered":
                self._recovered[str(member), str(facts["verdict"])].add(str(facts["task"]))
            case "gone" if not member.is_ended and facts["code"] == -signal.SIGKILL:
                self.teller.say("ended", f"{member} was silent for a lease, so another worker has ended it")
            case "gone" if not member.is_ended and facts["code"] != 0:
                self._ended_by_themselves += 1
                self.teller.say("fault", f"{member} ended by itself with code {facts['code']}; see workers.log")
            case _:
                return

    def _tell_again(self, runs: int) -> None:
        """Say once that runs are played again; that it goes on is seen by the progress, and told at the end."""
        self._rounds_again += 1
        if self._rounds_again == 1:
            left = f"{phrases.count(self.kills.left, 'kill')} and {phrases.count(self.zombies.left, 'stop')}"
            self.teller.say("again", f"{phrases.count(runs, 'run')} once more, as often as it takes for {left}")

    def _tell_recovered(self) -> None:
        for member in sorted({name for name, _ in self._recovered}):
            resumed = len(self._recovered.pop((member, str(Verdict.AUTO_RESUME)), ()))
            asking = len(set[str]().union(*(self._recovered.pop((member, str(one)), ()) for one in Verdict)))
            parts = [f"{resumed} {'goes' if resumed == 1 else 'go'} on from the record"] if resumed else []
            parts += [f"{asking} {'waits' if asking == 1 else 'wait'} for an answer"] if asking else []
            self.teller.say("recovered", f"tasks of dead workers: {', '.join(parts)} (found by {member})")
