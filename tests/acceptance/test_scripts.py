"""An app in a script: what `python shop.py` has begun goes on under `perdure run shop:…`, and the other way round.

Python calls a script's module `__main__`, so its classes would be others on record.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import SOURCE

SHOP = """
import asyncio, os, signal, sys
from dataclasses import dataclass
from enum import Enum
import perdure

class Size(Enum):
    SMALL = "s"

@dataclass
class Order:
    name: str
    size: Size

class SoldOut(Exception):
    pass

def paid(what):
    print("paid", what, flush=True)

@perdure.tool
async def pay(order, how):
    paid(order.name)
    return order

@perdure.tool(risk="low", retries=0)
async def fetch(order):
    if "die" in os.environ.get("AT", ""):
        raise SoldOut(order.name)
    return "in store"

@perdure.agent
async def shop(name: str) -> str:
    order = await pay(Order(name, Size.SMALL), paid)
    assert type(order) is Order and order.size is Size.SMALL, order
    try:
        found = await fetch(order)
    except SoldOut as error:
        found = f"sold out: {error}"
    if "die" in os.environ.get("AT", ""):
        await perdure.event("here")
        os.kill(os.getpid(), signal.SIGKILL)
    return found

app = perdure.App("shop.db", agents=[shop])

if __name__ == "__main__":
    print(asyncio.run(app.run(shop.options(key="o"), "tea")))
"""

SCRIPT = (sys.executable, "shop.py")
MODULE = (sys.executable, "-m", "shop")
COMMAND = (sys.executable, "-m", "perdure.cli", "run", "shop:shop", "tea", "--key", "o")


@pytest.mark.parametrize(
    ("first", "then"), [(SCRIPT, COMMAND), (COMMAND, SCRIPT), (MODULE, COMMAND)], ids=["script", "command", "module"]
)
def test_what_a_script_has_begun_goes_on_under_its_modules_name(
    tmp_path: Path, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")

    begun = _run(first, tmp_path, "die")
    assert (begun.returncode, begun.stdout) == (-signal.SIGKILL, "paid tea\n")

    ended = _run(then, tmp_path, "")
    assert (ended.returncode, ended.stdout) == (0, "sold out: tea\n"), ended.stderr


def _run(command: tuple[str, ...], folder: Path, at: str) -> subprocess.CompletedProcess[str]:
    environment = {"PERDURE_HEARTBEAT_S": "0.2", "PERDURE_LEASE_S": "1", "PYTHONPATH": str(SOURCE), "AT": at}
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=60
    )
