"""Runs the code blocks of a page, so that the documentation stays true.

    ```python with `# name.py` on its first line   written to the page's folder and compiled
    ```python                                      run in the page's folder, top-level await allowed, in one namespace
                                                   a page; files written before can be imported
    ```console                                     each `$ command` is run in the page's folder; the lines after it are
                                                   what it prints, `…` standing for anything
    `# kill -9 …`                                  the next command is started, and killed once a call of it is in
                                                   doubt; a line of its own, so that the command can be pasted whole
    `# kill -9 … says: TEXT`                       the same, once it has printed a line that ends in TEXT
    `# kill -9 … says twice: TEXT`                 the same, with two such lines
    TASK in a command                              the id of the newest task that has no parent

Blocks in other languages are pictures and tables, not promises.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perdure.errors import StoreError
from perdure.store import Store, effects, open_store, task_lists

T = TypeVar("T")

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_KILL = re.compile(r"# kill -9(?:.* says( twice)?: (.+)|.*)")
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Pages that people write; the generated reference holds no code to run."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.parent.name not in ("reference", "adr")]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that are run."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if match[1] in ("python", "console"):
            yield Block(match[1], match[2], text[: match.start()].count("\n") + 1)


class PageRun:
    """One page's folder and namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._page = types.ModuleType("page")
        self._modules = {"page": self._page}  # Classes of a page are found again by their module, as anybody's are.

    def run(self, block: Block) -> None:
        """Run a block. Raises what its code raises, AssertionError where a command prints something else."""
        if block.language == "console":
            for command, remark, expected in commands(block.text):
                self._run_command(command, remark, expected, block)
            return
        name = re.match(r"# (\w+\.py)\n", block.text)
        if name:
            (self.folder / name[1]).write_text(block.text, encoding="utf-8")
            compile(block.text, name[1], "exec")
            return
        code = compile(block.text, f"line {block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with self._inside():
            result = eval(code, vars(self._page))
            if inspect.isawaitable(result):
                asyncio.run(_await(result))

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """As if Python had been started in the page's folder; afterwards nothing of the page is left."""
        before = set(sys.modules)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()  # Files of a page are younger than what the import system remembers.
        try:
            with chdir(self.folder):
                yield
        finally:
            sys.path.remove(str(self.folder))
            for name in set(sys.modules) - before:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                if name in self._modules or Path(origin).is_relative_to(self.folder):
                    self._modules[name] = sys.modules.pop(name)

    def _run_command(self, command: str, remark: str, expected: list[str], block: Block) -> None:
        assert "  #" not in command, f"line {block.line}: $ {command}\nput the remark on a line of its own before it"
        kill = _KILL.fullmatch(remark)
        command = re.sub(r"\bTASK\b", lambda _: self._newest_task(), command.strip())
        if kill:
            self._run_and_kill(command, says=kill[2], times=2 if kill[1] else 1)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment(),
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        printed = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
        assert _fits(printed, expected), (
            f"line {block.line}: $ {command}\nprinted:\n" + "\n".join(printed) + "\nexpected:\n" + "\n".join(expected)
        )

    def _run_and_kill(self, command: str, *, says: str | None, times: int) -> None:
        output = self.folder / ".killed"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + _TIMEOUT_S
        try:
            while not (self._is_inside_a_call() if says is None else _has_said(output, says, times)):
                assert process.poll() is None, f"$ {command} ended before it was to be killed:\n{output.read_text()}"
                assert time.monotonic() < end, f"$ {command} never came to where it is to be killed"
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _is_inside_a_call(self) -> bool:
        return any(self._stores(lambda store: any(one.is_running for one in store.read(effects.open_list))))

    def _newest_task(self) -> str:
        found = [task for tasks in self._stores(lambda store: store.read(task_lists.recent)) for task in tasks]
        return max((task for task in found if task.parent_task_id is None), key=lambda task: task.created_at).id

    def _stores(self, look: Callable[[Store], T]) -> Iterator[T]:
        for path in self.folder.glob("*.db"):
            try:
                with open_store(str(path)) as store:
                    yield look(store)
            except StoreError:
                continue  # It is just being made.

    def _environment(self) -> Mapping[str, str]:
        home = Path(sys.executable).parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        python_path = os.pathsep.join([str(ROOT / "src"), str(self.folder)])
        path = f"{home}{os.pathsep}{kept['PATH']}"
        return {**kept, "PATH": path, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def commands(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each command of a console block with the remark before it and the lines it prints."""
    command, remark, coming, printed = "", "", "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, remark, printed
            command, remark, coming, printed = line[2:], coming, "", []
        elif line.startswith("# "):
            coming = line.rstrip()
        elif line.strip():
            printed.append(line.rstrip())
    if command:
        yield command, remark, printed


def _fits(printed: list[str], expected: list[str]) -> bool:
    """Whether what was printed is what a page says; a line that is only `…` stands for any lines."""
    if not expected:
        return True
    if expected[0].strip() == "…":
        return any(_fits(printed[start:], expected[1:]) for start in range(len(printed) + 1)) or len(expected) == 1
    if not printed or not _line_fits(printed[0], expected[0]):
        return False
    return _fits(printed[1:], expected[1:]) if len(expected) > 1 else len(printed) == 1


def _line_fits(printed: str, expected: str) -> bool:
    pattern = r"\s+".join(re.escape(word).replace("…", ".*") for word in expected.split())
    return re.fullmatch(r"\s*" + pattern + r"\s*", printed) is not None


def _has_said(output: Path, text: str, times: int) -> bool:
    lines = output.read_text(encoding="utf-8").splitlines()
    return sum(line.rstrip().endswith(text) for line in lines) >= times


async def _await(awaitable: object) -> None:
    if inspect.isawaitable(awaitable):
        await awaitable
