"""The lock of an instance with real processes: what frees it, what does not, and who may be killed by its word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import perdure
from perdure.model.instance import Instance, InstanceType
from perdure.runtime.liveness import Host, InstanceLock, end_process, is_dead, owner_of, whoami
from perdure.states import InstanceStatus

SLOT = 41
ME = whoami()
OWNER = owner_of("worker", ME.boot_id)

# Holds the byte, says what `then` prints, and lives until its input ends.
WORKER = """
import os, subprocess, sys
from pathlib import Path
from perdure.runtime.liveness import InstanceLock

path = Path(sys.argv[1])
lock = InstanceLock()
assert lock.hold(path, int(sys.argv[2]), owner=sys.argv[3])
{then}
sys.stdin.read()
"""
HOLD = "print(os.getpid(), flush=True)"
FORK = """
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
"""
SPAWN = """
child = subprocess.Popen([sys.executable, "-c", "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"])
"""
REOPEN = """
for _ in range(3):
    open(path, "rb").close()
    assert InstanceLock.is_free(path, int(sys.argv[2]), owner=sys.argv[3]) is False
print(os.getpid(), flush=True)
"""


@dataclass
class Worker:
    process: subprocess.Popen[str]
    said_pid: int
    side: Path

    def is_free(self) -> bool | None:
        return InstanceLock.is_free(self.side, SLOT, owner=OWNER)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def instance(self, *, killable: bool = True, host: str = ME.host) -> Instance:
        return Instance(
            id="worker",
            type=InstanceType.EXECUTOR,
            status=InstanceStatus.ACTIVE,
            host=host,
            boot_id=ME.boot_id,
            pid=self.process.pid,
            generation=SLOT,
            killable=killable,
            heartbeat=1,
            heartbeat_at=0,
            started_at=0,
            stopped_at=None,
        )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Worker]]:
    """Starts a worker that holds the byte when this returns."""
    workers: list[subprocess.Popen[str]] = []
    side = tmp_path / "agents.db-live"

    def run(then: str) -> Worker:
        source = str(Path(next(iter(perdure.__path__))).parent)
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(then=then), str(side), str(SLOT), OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        workers.append(process)
        assert process.stdout is not None
        return Worker(process, int(process.stdout.readline()), side)

    yield run
    for process in workers:
        process.kill()
        process.communicate()  # Closes the input, which ends the worker's children too.


def test_kill_9_frees_the_byte_at_once(start: Callable[[str], Worker]) -> None:
    worker = start(HOLD)
    before = worker.is_free()

    worker.kill()

    assert before is False
    assert worker.is_free() is True
    assert is_dead(worker.instance(), me=ME, path=worker.side)


def test_a_stopped_process_keeps_its_byte(start: Callable[[str], Worker]) -> None:
    worker = start(HOLD)

    os.kill(worker.process.pid, signal.SIGSTOP)
    os.waitpid(worker.process.pid, os.WUNTRACED)

    assert worker.is_free() is False
    assert not is_dead(worker.instance(), me=ME, path=worker.side)


@pytest.mark.parametrize("then", [FORK, SPAWN], ids=["fork", "spawn"])
def test_a_child_that_outlives_a_killed_worker_does_not_keep_its_byte(
    start: Callable[[str], Worker], then: str
) -> None:
    worker = start(then)
    while_both_live = worker.is_free()

    worker.kill()

    os.kill(worker.said_pid, 0)  # The child lives.
    assert worker.said_pid != worker.process.pid
    assert while_both_live is False
    assert worker.is_free() is True


def test_opening_and_closing_the_file_elsewhere_in_the_process_drops_nothing(start: Callable[[str], Worker]) -> None:
    worker = start(REOPEN)

    assert worker.is_free() is False


def test_a_worker_is_ended_only_by_its_own_host_and_only_if_it_is_killable(start: Callable[[str], Worker]) -> None:
    worker = start(HOLD)

    refused = [
        end_process(worker.instance(killable=False), me=ME, path=worker.side),
        end_process(worker.instance(host="elsewhere"), me=ME, path=worker.side),
        end_process(worker.instance(), me=Host(ME.host, "another boot", ME.pid), path=worker.side),
        end_process(worker.instance(), me=ME, path=worker.side.with_name("another-live")),
    ]

    assert refused == [False] * 4
    assert worker.process.poll() is None


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_killable_worker_past_its_lease_is_ended_and_then_proven_dead(
    start: Callable[[str], Worker], is_stopped: bool
) -> None:
    worker = start(HOLD)
    if is_stopped:
        os.kill(worker.process.pid, signal.SIGSTOP)
        os.waitpid(worker.process.pid, os.WUNTRACED)

    ended = end_process(worker.instance(), me=ME, path=worker.side)

    assert ended
    assert worker.process.wait() == -signal.SIGKILL
    assert is_dead(worker.instance(), me=ME, path=worker.side)
    assert not end_process(worker.instance(), me=ME, path=worker.side)
