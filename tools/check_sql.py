"""Hold the store to its rules about SQL.

1. A query names no status: it says {from:verb} and {to:verb}, and `perdure.states` fills them in. So does the schema
   wherever it speaks of a status; the outcome of a step, which shares some words, has no machine.
2. No text is put into SQL in Python: what is executed comes whole from a .sql file or a literal, values go as
   parameters.
3. Only the store imports a database driver.

This reads the code; it does not run it. A text built in one function and executed in another is not seen.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/perdure")
STORE = PACKAGE / "store"
DRIVERS = frozenset({"apsw", "psycopg", "psycopg2", "sqlite3"})

# "path::function" that may execute a text it builds -> why no value can get into it.
ALLOWED: Mapping[str, str] = {
    # Statements of our own schema files and a digest and numbers of our own making; no value of a user's is near.
    "src/perdure/store/migrate.py::migrate": "records the step it has just applied: version, checksum, time",
    "src/perdure/store/migrate.py::_guard_moves": "records the digest of the triggers it has just made",
}

_SQL_TOKEN = re.compile(r"--[^\n]*|/\*.*?\*/|'(?P<literal>(?:[^']|'')*)'", re.DOTALL)


def main() -> int:
    """Print every break of a rule; the exit status is 1 if there is one."""
    complaints: list[str] = []
    words = statuses()
    for path in sorted((ROOT / STORE / "sql").rglob("*.sql")):
        place, text = path.relative_to(ROOT), path.read_text("utf-8")
        complaints += literal_statuses(place, only_of_status(text) if "schema" in place.parts else text, words)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        place, tree = path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))
        complaints += built_statements(place, tree) if place.is_relative_to(STORE) else driver_imports(place, tree)
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def statuses() -> frozenset[str]:
    """Every status of every machine in perdure.states."""
    sys.path.insert(0, str(ROOT / "src"))
    from perdure import states

    return frozenset(str(status) for machine in states.MACHINES for status in machine.statuses)


def only_of_status(text: str) -> str:
    """The same lines, empty where they do not speak of a status."""
    return "\n".join(line if "status" in line else "" for line in text.splitlines())


def literal_statuses(place: Path, text: str, words: frozenset[str]) -> list[str]:
    """Quoted status words in a query; comments may use any word."""
    return [
        f"{place.as_posix()}:{text.count(chr(10), 0, token.start()) + 1}: the status '{word}' is written out; "
        "use {from:verb}, {to:verb} or {status:machine.status}"
        for token in _SQL_TOKEN.finditer(text)
        if (word := token["literal"]) in words
    ]


def built_statements(place: Path, tree: ast.AST) -> list[str]:
    """Calls of execute() whose SQL is put together, directly or in a variable of the same function."""
    complaints = []
    for name, scope in scopes(tree):
        if f"{place.as_posix()}::{name}" in ALLOWED:
            continue
        built = {variable for node in own_nodes(scope) for variable in assigned_names(node)}
        for call in own_nodes(scope):
            if not isinstance(call, ast.Call) or not is_execute(call.func):
                continue
            statement = next(iter(call.args), None) or next((k.value for k in call.keywords), None)
            if statement is None:
                continue
            if is_built(statement) or (isinstance(statement, ast.Name) and statement.id in built):
                complaints.append(f"{place.as_posix()}:{call.lineno}: {name} executes a text that it builds")
    return complaints


def driver_imports(place: Path, tree: ast.AST) -> list[str]:
    """Imports of a database driver, at any depth of the file."""
    complaints = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        complaints += [
            f"{place.as_posix()}:{node.lineno}: imports {name}; only perdure.store knows a driver"
            for name in names
            if name.partition(".")[0] in DRIVERS
        ]
    return complaints


def scopes(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The module and each function in it, with a name."""
    yield "module", tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield getattr(node, "name", "lambda"), node


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the functions inside it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from own_nodes(node)


def assigned_names(node: ast.AST) -> Iterator[str]:
    """Variables that this node gives a text which is put together."""
    match node:
        case ast.Assign(targets=targets, value=value) if is_built(value):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if is_built(value):
            yield name
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()):
            yield name
        case ast.NamedExpr(target=ast.Name(id=name), value=value) if is_built(value):
            yield name


def is_execute(function: ast.expr) -> bool:
    """True for execute, executemany, executescript and the like, as a method or a plain name."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name.startswith("execute")


def is_built(expression: ast.expr) -> bool:
    """True for an f-string with a hole, %, +, .format, .join or .replace, also inside a conditional."""
    match expression:
        case ast.JoinedStr(values=values):
            return any(isinstance(value, ast.FormattedValue) for value in values)
        case ast.BinOp(op=ast.Mod() | ast.Add()):
            return True
        case ast.Call(func=ast.Attribute(attr="format" | "format_map" | "join" | "replace")):
            return True
        case ast.IfExp(body=body, orelse=orelse):
            return is_built(body) or is_built(orelse)
        case _:
            return False


if __name__ == "__main__":
    sys.exit(main())
