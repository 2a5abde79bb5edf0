"""One worker process of the demo: `python -m perdure.demo.worker`. Started, killed and stopped by the demo.

It is a worker like any other, but for its short heartbeat and the ledgers it writes. What happens in it goes to
standard output, one JSON object a line. It ends in good order on SIGTERM, and when the process that started it is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.config import database_url
from perdure.definitions import AgentDefinition, definition_of
from perdure.demo.confirmed import watched
from perdure.demo.ledger import CONFIRMED, Ledger
from perdure.demo.play import Stage, replay_run
from perdure.errors import StoreBusy
from perdure.runtime.worker import Worker
from perdure.settings import Settings
from perdure.store import Store, open_store

# Heartbeat and lease are short enough to watch; the defaults are 5 s and 30 s. Few tasks may wait in memory, so that
# some are set aside and replayed although nobody killed their worker.
SETTINGS = Settings(
    heartbeat_s=0.5,
    lease_s=2.0,
    sweep_s=0.1,
    poll_ms=50,
    permits=6,
    main_permits=0,
    busy_s=1.0,
    shutdown_grace_s=3.0,
    waiting_in_memory=2,
)


def main(arguments: Sequence[str]) -> int:
    """Work until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m perdure.demo.worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--killable", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(format=f"{os.getpid()} %(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(_work(database_url(), options.folder, seed=options.seed, killable=options.killable))
    return 0


async def _work(url: str, folder: Path, *, seed: int, killable: bool) -> None:
    definition = definition_of(replay_run)
    assert isinstance(definition, AgentDefinition)
    store = watched(await _open(url), Ledger(folder / CONFIRMED))
    worker = Worker(store, [definition], killable=killable, deps=[Stage(folder, seed)], on_event=_say)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    # Nobody ever writes to us: what can be read is the end, when the demo itself has ended.
    loop.add_reader(sys.stdin.fileno(), _mind_the_end, worker)
    ready = asyncio.Event()
    working = loop.create_task(worker.run(ready=ready))
    waiting = loop.create_task(ready.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if ready.is_set():
        _say("ready", {"instance": worker.instance_id})
    stopped = await working
    _say("ended", {"handed_back": stopped.handed_back, "interrupted": stopped.interrupted})
    await asyncio.to_thread(store.close)


async def _open(url: str) -> Store:
    """Open the store. A process that was stopped in the middle of a commit keeps it shut: then again."""
    while True:
        try:
            return await asyncio.to_thread(open_store, url, settings=SETTINGS)
        except StoreBusy:
            continue


def _mind_the_end(worker: Worker) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        worker.stop()


def _say(what: str, facts: Mapping[str, Any]) -> None:
    line = json.dumps({"what": what, **facts}) + "\n"
    try:
        os.write(sys.stdout.fileno(), line.encode())
    except BrokenPipeError:
        return  # Nobody listens any more; the work goes on until we are told to stop.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
