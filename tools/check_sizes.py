"""Keep files and functions short enough to be read in one go.

A file has at most 500 lines, a function at most 70, in src and tests. What is longer hides a noun: find it,
rather than raise the limit. An exception is written into ALLOWED with its reason; one that is no longer
needed fails the check too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests")

# "path" for a file, "path::Class.function" for a function -> why it may be longer.
ALLOWED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class TooLong:
    """A file or function over its limit."""

    place: str
    lines: int
    limit: int


def main() -> int:
    """Print what is too long; the exit status is 1 if there is anything."""
    found = [item for path in python_files(ROOT) for item in measure(path.relative_to(ROOT), path.read_text("utf-8"))]
    complaints = [
        f"{item.place}: {item.lines} lines, at most {item.limit}" for item in found if item.place not in ALLOWED
    ]
    complaints += [f"{place}: allowed but not too long, delete the entry" for place in unused(found, ALLOWED)]
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def python_files(root: Path) -> Iterator[Path]:
    """Every Python file of the folders under the rule, in a stable order."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))


def measure(path: Path, source: str) -> list[TooLong]:
    """What in this file is over its limit."""
    lines = source.count("\n")
    file = [TooLong(path.as_posix(), lines, MAX_FILE_LINES)] if lines > MAX_FILE_LINES else []
    return file + [
        TooLong(f"{path.as_posix()}::{name}", length, MAX_FUNCTION_LINES)
        for name, length in functions(ast.parse(source))
        if length > MAX_FUNCTION_LINES
    ]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each function with its dotted name and its lines, from `def` to its last; a nested one counts in both."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None  # set by ast.parse
            yield prefix + node.name, node.end_lineno - node.lineno + 1
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def unused(found: Iterable[TooLong], allowed: Mapping[str, str]) -> list[str]:
    """Entries of the allow list that nothing needs."""
    return sorted(set(allowed) - {item.place for item in found})


if __name__ == "__main__":
    sys.exit(main())
