"""The worker processes of the demo: started, killed, stopped and woken. It ends no process that it did not start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import perdure

_LINE_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class Member:
    """One worker process."""

    number: int
    process: asyncio.subprocess.Process
    killable: bool
    is_ready: bool = False
    is_stopped: bool = False
    is_spared: bool = False  # not to be killed now
    is_ended: bool = False  # by this crew

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.process.pid})"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, as far as is known, and was not told to."""
        return self.process.returncode is None and not self.is_ended


@dataclass(eq=False)
class Crew:
    """Keeps a number of workers alive. What they say of themselves goes to `hear(member, what, facts)`."""

    url: str
    folder: Path
    seed: int
    hear: Callable[[Member, str, Mapping[str, Any]], None]
    members: list[Member] = field(default_factory=list)
    _listeners: set[asyncio.Task[None]] = field(default_factory=set)
    _started: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.end()

    @property
    def alive(self) -> list[Member]:
        """Everyone who has not ended and is not stopped."""
        return [one for one in self.members if one.is_alive and not one.is_stopped]

    async def start(self, *, killable: bool) -> Member:
        """Start another worker; it says `ready` once it works."""
        self._started += 1
        with (self.folder / "workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "perdure.demo.worker", str(self.folder), "--seed", str(self.seed)),
                *(["--killable"] if killable else []),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # An address may hold a password, and the arguments of a process are there for everybody to read.
                env={**os.environ, "PYTHONPATH": _path(), "PERDURE_DB": self.url},
                limit=_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its workers.
            )
        member = Member(self._started, process, killable)
        self.members.append(member)
        listener = asyncio.get_running_loop().create_task(self._listen(member))
        self._listeners.add(listener)
        listener.add_done_callback(self._listeners.discard)
        return member

    def kill(self, member: Member) -> bool:
        """End a process at once, without a chance to clean up. False when it had ended already."""
        was_sent = self._send(member, signal.SIGKILL)
        member.is_ended = True
        return was_sent

    def stop(self, member: Member) -> bool:
        """Stop a process where it is; it knows nothing of it."""
        member.is_stopped = self._send(member, signal.SIGSTOP)
        return member.is_stopped

    def wake(self, member: Member) -> bool:
        """Let a stopped process go on."""
        member.is_stopped = False
        return self._send(member, signal.SIGCONT)

    async def end(self, *, grace_s: float = 5.0) -> None:
        """End everyone in good order, and whoever does not within the grace time, without."""
        running = [member for member in self.members if member.process.returncode is None]
        for member in running:
            if member.is_alive:
                self.wake(member)
                self._send(member, signal.SIGTERM)
            member.is_ended = True
        waiting = [asyncio.ensure_future(member.process.wait()) for member in running]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=grace_s)
            for member in running if late else ():
                self._send(member, signal.SIGKILL)
            await asyncio.gather(*waiting)
        await asyncio.gather(*self._listeners)

    def _send(self, member: Member, number: signal.Signals) -> bool:
        if member.process.returncode is not None:
            return False
        try:
            member.process.send_signal(number)
        except ProcessLookupError:
            return False
        return True

    async def _listen(self, member: Member) -> None:
        assert member.process.stdout is not None
        async for line in member.process.stdout:
            if not line.endswith(b"\n"):
                continue  # Killed in the middle of a word.
            facts = json.loads(line)
            what = facts.pop("what")
            member.is_ready = member.is_ready or what == "ready"
            self.hear(member, what, facts)
        await member.process.wait()
        self.hear(member, "gone", {"code": member.process.returncode})


def _path() -> str:
    """Where the workers find this very perdure, installed or not."""
    here = str(Path(perdure.__file__).resolve().parent.parent)
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
