"""Other processes for tests: forked ones that start together, and scripts that talk in lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self

_SOURCE = Path(__file__).resolve().parent.parent


def run_together(count: int, work: Callable[[int], None]) -> list[str]:
    """Fork `count` children, let all of them into `work` at one moment, and return the tracebacks of those that failed.

    The calling process must have no store open.
    """
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    pids, outputs = [], []
    for number in range(count):
        output_read, output_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_child(number, work, go=(go_read, go_write), ready=ready_write, output=output_write)
        os.close(output_write)
        pids.append(pid)
        outputs.append(output_read)
    for _ in range(count):
        os.read(ready_read, 1)
    for end in (go_read, go_write, ready_read, ready_write):
        os.close(end)
    texts = []
    for pid, output in zip(pids, outputs, strict=True):
        with os.fdopen(output) as stream:
            texts.append(stream.read())
        os.waitpid(pid, 0)
    return [text for text in texts if text]


def _be_child(number: int, work: Callable[[int], None], *, go: tuple[int, int], ready: int, output: int) -> NoReturn:
    # Never back into pytest: it would run the other tests a second time.
    try:
        os.close(go[1])
        os.write(ready, b"r")
        os.read(go[0], 1)  # ends for all children when the parent closes the other end
        work(number)
    except BaseException:  # noqa: BLE001  # the test shows it
        os.write(output, traceback.format_exc().encode()[:60_000])
    finally:
        os._exit(0)


class Script:
    """A Python process that runs a text and talks with the test in lines. Killed when the block ends."""

    def __init__(self, text: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_SOURCE / "src"), str(_SOURCE)])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", text, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid
        self._unheard = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hear(self) -> str:
        """The next line it says; "" when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, line: str = "") -> None:
        """Say a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Stop it where it is, like Ctrl-Z, and wait until it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Wait for its end; the exit status."""
        return self._process.wait()

    def rest(self) -> list[str]:
        """After its death: the lines it had said and nobody heard. A line that was cut off is left out."""
        return [line.strip() for line in self._unheard.splitlines(keepends=True) if line.endswith("\n")]

    def kill_alone(self) -> None:
        """End it without a chance to clean up; its own children live on and still hear us."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """End it without a chance to clean up. Safe to repeat."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # What was still to be said.
        # Ends when its own children, if it has any, have ended, too: they hear that nobody speaks any more.
        if not self._process.stdout.closed:
            self._unheard = self._process.stdout.read()
            self._process.stdout.close()
