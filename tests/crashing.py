"""Real workers in processes of their own, to be killed and frozen, with a ledger outside of the database.

Processes are forked from a clean one that has imported everything, so that hundreds of them start in seconds. What a
tool does to the world is a line in a file, written in one piece; what a process was told is another such line.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import perdure
from perdure.client import Client
from perdure.definitions import AgentDefinition, definition_of
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.store import open_store
from tests.children import Script

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do: a function of a module, with its arguments."""

    module: str
    function: str
    folder: str
    options: dict[str, Any]


class Nursery:
    """A process that forks others on demand. Killed with all of them when the block ends."""

    def __init__(self) -> None:
        self._script = Script("from tests.crashing import serve; serve()")
        self._pids: set[int] = set()
        assert self._script.hear() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._pids):
            self.kill(pid)
        self._script.kill()

    def start(self, job: Job) -> int:
        """Fork a process that does the job; its pid."""
        self._script.say(json.dumps(asdict(job)))
        pid = int(self._script.hear())
        self._pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End a process like the out-of-memory killer, and wait until it is gone."""
        _signal(pid, signal.SIGKILL)
        self.until_gone(pid)

    def stop(self, pid: int) -> None:
        """Freeze a process and wait until it stands still."""
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: _state(pid) in ("T", "t"))

    def go_on(self, pid: int) -> None:
        """Let a frozen process run again."""
        os.kill(pid, signal.SIGCONT)

    def terminate(self, pid: int) -> None:
        """Ask a process to end."""
        os.kill(pid, signal.SIGTERM)

    def until_gone(self, pid: int) -> None:
        """Wait until a process has ended."""
        wait_for(lambda: _state(pid) is None)
        self._pids.discard(pid)


def serve() -> None:
    """Fork a process for each line that comes in. Runs in the clean process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the children: the kernel buries them.
    print("ready", flush=True)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        importlib.import_module(job.module)  # Once, here, and not in every child.
        pid = os.fork()
        if pid == 0:
            _do(job)
        print(pid, flush=True)


def _do(job: Job) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    status = 1
    try:
        module = importlib.import_module(job.module)
        asyncio.run(getattr(module, job.function)(Path(job.folder), **job.options))
        status = 0
    except BaseException:  # noqa: BLE001  # Told to the parent, all of it.
        note(Path(job.folder) / "errors", traceback.format_exc())
    finally:
        os._exit(status)


# -- the world outside ----------------------------------------------------------------------


def note(path: Path, line: str) -> None:
    """Add a line to a file, in one piece and before anything that comes after."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    """Every whole line of such a file."""
    if not path.exists():
        return []
    return [line for line in path.read_text().split("\n")[:-1] if line]


def counted(path: Path) -> Counter[str]:
    """How often each line is there."""
    return Counter(lines(path))


def wait_for(is_so: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """Look every few milliseconds until something is so; a test that waits in vain fails."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, f"waited {limit_s:g} s in vain"
        time.sleep(0.003)


async def until(is_so: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """The same on an event loop."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.003)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


# -- in a worker's process ------------------------------------------------------------------


async def work(
    folder: Path,
    agents: list[Any],
    settings: Settings,
    *,
    killable: bool = False,
    signal_file: str = "",
    beside: Callable[[Client], Any] | None = None,
) -> None:
    """Be a worker until SIGTERM; a second one ends the process at once.

    `beside` runs meanwhile. With `signal_file` it opens the store and does not begin before that file is there.
    """
    store = open_store(str(folder / "agents.db"), settings=settings)
    if signal_file:
        note(folder / "opened", str(os.getpid()))
        await until((folder / signal_file).exists)
    worker = Worker(store, [_definition(one) for one in agents], killable=killable)
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stopping:
            os._exit(3)
        stopping.append(True)
        worker.stop()

    stopping: list[bool] = []
    loop.add_signal_handler(signal.SIGTERM, end)
    ready = asyncio.Event()
    running = loop.create_task(worker.run(ready=ready))
    await ready.wait()
    note(folder / "ready", f"{os.getpid()} {worker.instance_id}")
    working = None if beside is None else loop.create_task(beside(Client(store=store)))
    stopped = await running
    if working is not None:
        working.cancel()
    store.close()
    note(folder / "stopped", f"{os.getpid()} {stopped.handed_back} {stopped.interrupted}")


@contextmanager
def client_of(folder: Path, settings: Settings) -> Iterator[Client]:
    """A client of the same database, in the test's process."""
    store = open_store(str(folder / "agents.db"), settings=settings)
    try:
        yield Client(store=store)
    finally:
        store.close()


def _definition(agent: object) -> AgentDefinition:
    found = definition_of(agent)
    assert isinstance(found, AgentDefinition)
    return found


async def tell_the_truth(client: Client, ledger: Path) -> int:
    """Answer what is open by what the ledger says now. How many questions there were."""
    asked = await client.questions()
    for question in asked:
        token = str(question.evidence.get("token", ""))
        if question.kind == "step_in_doubt":
            done = f"paid {token}" in counted(ledger)
            await question.resolve(perdure.happened(token) if done else perdure.not_happened(), by="the test")
        else:
            await question.approve(by="the test")
    return len(asked)
