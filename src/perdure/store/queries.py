"""Named SQL from `sql/*.sql`, one text for two databases.

A file holds queries that start with `-- name: NAME`, a comment that says why, and one statement; fragments
that start with `-- fragment: NAME` are shared pieces such as a list of columns. Braces are filled once, at load,
from words of states.py, from the dialect and from policy; values are always parameters (`:name`). Nothing else is put
into SQL.

    {from:claim} {to:claim}     sources as a list of literals, target as a literal, of task verbs
    {from:question.answer}      the same for another machine
    {status:question.open}      one status
    {set:task.terminal}         a group: terminal, open, initial
    {statuses:task}             that `status` is one of the machine's, or of one of its groups (`task.terminal`)
    {risks:risk_seen}           that a column is one of the risks
    {priority_step_ms}          how much earlier one more of priority is worth
    {columns}                   a fragment of the same file
    {now}                       the transaction's time
    {bytes:2}                   a value of an element of :rows, text in UTF-8 (`r` is its alias)
    {rows}                      the elements of :rows, a JSON array of arrays, as `value`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Any

import msgspec

from perdure.policy.lanes import PRIORITY_STEP_MS
from perdure.policy.risk import Risk
from perdure.states import BY_NAME, TASK, Machine

_HOLE = re.compile(r"\{([a-z_]+)(?::([a-z_.0-9]+))?\}")
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)\b")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words in which two databases differ."""

    name: str
    words: dict[str, str]

    def word(self, name: str, argument: str | None) -> str | None:
        """The dialect's word for a hole, or None when it is none."""
        if name == "fill":
            return f"WITH (fillfactor = {int(argument or 100)})" if self.name == "postgres" else ""
        if name == "bytes":
            text = f"r.value ->> {int(argument or 0)}"
            return f"convert_to({text}, 'UTF8')" if self.name == "postgres" else f"CAST({text} AS BLOB)"
        return self.words.get(name)


SQLITE = Dialect(
    "sqlite",
    {
        "int": "INTEGER",
        "real": "REAL",
        "text": "TEXT",
        "string": "TEXT",
        "blob": "BLOB",
        "rowid": "INTEGER PRIMARY KEY",
        "strict": "STRICT",
        "skip_locked": "",
        "for_update": "",
        "hold_session": "",
        "now": ":now",
        "rows": "json_each(:rows)",
        "least": "min",
        "greatest": "max",
    },
)
POSTGRES = Dialect(
    "postgres",
    {
        "int": "BIGINT",
        "real": "DOUBLE PRECISION",
        "text": 'TEXT COLLATE "C"',
        "string": "TEXT",  # for CAST, which takes no collation
        "blob": "BYTEA",
        "rowid": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "strict": "",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "for_update": "FOR UPDATE",
        "hold_session": "FOR UPDATE OF s",
        "now": ":now",
        "rows": "jsonb_array_elements(CAST(:rows AS JSONB))",
        "least": "LEAST",
        "greatest": "GREATEST",
    },
)


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """One statement, ready for both databases."""

    name: str
    sqlite: str
    postgres: str
    parameters: tuple[str, ...]  # in the order of their numbers in the text for SQLite
    wants_now: bool = field(init=False)
    in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wants_now", "now" in self.parameters)
        object.__setattr__(self, "in_order", _in_order(self.parameters))


class Queries:
    """The queries of one aggregate, as attributes."""

    def __init__(self, aggregate: str, queries: dict[str, Query]) -> None:
        self._aggregate = aggregate
        self._queries = queries
        # Found as plain attributes, which costs a tenth of a look-up by __getattr__.
        self.__dict__.update(queries)

    def __getattr__(self, name: str) -> Query:
        raise AttributeError(f"sql/{self._aggregate}.sql has no query {name}")

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


def as_rows(rows: Iterable[Sequence[object]]) -> str:
    """Values for `:rows`, an array for each row."""
    return msgspec.json.encode(rows).decode()


@cache
def load(aggregate: str) -> Queries:
    """The queries of `sql/AGGREGATE.sql`. Raises KeyError for a hole that nothing fills."""
    text = (files("perdure.store") / "sql" / f"{aggregate}.sql").read_text(encoding="utf-8")
    fragments: dict[str, str] = {}
    queries: dict[str, Query] = {}
    for kind, name, body in _blocks(text):
        if kind == "fragment":
            fragments[name] = _fill_fragments(body, fragments)
            continue
        body = _fill_fragments(body, fragments)
        names = tuple(dict.fromkeys(_PARAMETER.findall(fill(body, SQLITE))))
        queries[name] = Query(
            f"{aggregate}.{name}",
            _shortened(fill(body, SQLITE), names),
            _PARAMETER.sub(r"%(\1)s", fill(body, POSTGRES).replace("%", "%%")),
            names,
        )
    return Queries(aggregate, queries)


def fill(text: str, dialect: Dialect) -> str:
    """`text` with its holes filled. Raises KeyError for an unknown one."""

    def one(match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        word = dialect.word(name, argument)
        if word is not None:
            return word
        if name == "priority_step_ms":
            return str(PRIORITY_STEP_MS)
        if name == "statuses" and argument:
            of, _, group = argument.partition(".")
            return _one_of("status", _group(BY_NAME[of], group) if group else BY_NAME[of].statuses)
        if name == "risks" and argument:
            return _one_of(argument, tuple(str(risk) for risk in Risk))
        if argument is None:
            raise KeyError(f"nothing fills {{{name}}}")
        machine, verb = _machine(argument)
        match name:
            case "from":
                return _literals(machine.sources(verb))
            case "to":
                return _literals((machine.target(verb),))
            case "status":
                return _literals((next(status for status in machine.statuses if status == verb),))
            case "set":
                return _literals(_group(machine, verb))
            case _:
                raise KeyError(f"nothing fills {{{name}:{argument}}}")

    return _HOLE.sub(one, text)


def _shortened(text: str, names: tuple[str, ...]) -> str:
    """The text for SQLite with numbers for names and no space to spare: at each use the driver reads all of it."""
    numbers = {name: f"?{number}" for number, name in enumerate(names, 1)}
    return _PARAMETER.sub(lambda match: numbers[match[1]], " ".join(text.split()))


def _in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """How values by name become values by place. Raises KeyError for one that is missing."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


def _machine(argument: str) -> tuple[Machine, str]:
    name, _, verb = argument.rpartition(".")
    return (BY_NAME[name] if name else TASK), verb


def _group(machine: Machine, name: str) -> tuple[str, ...]:
    return {"terminal": machine.terminal, "open": machine.open, "initial": machine.initial}[name]


def _literals(words: tuple[str, ...]) -> str:
    assert words and all(word.isidentifier() for word in words), words
    return ", ".join(f"'{word}'" for word in words)


def _one_of(column: str, words: tuple[str, ...]) -> str:
    """That a column holds one of some words. For IN with more than two, SQLite makes a table at each use (15 us)."""
    assert column.isidentifier() and all(word.isidentifier() for word in words), words
    return " OR ".join(f"{column} = '{word}'" for word in words)


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    parts = re.split(r"^-- (name|fragment): ([a-z_]+)$", text, flags=re.MULTILINE)
    for kind, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        yield kind, name, "\n".join(lines).strip().rstrip(";")


def _fill_fragments(body: str, fragments: dict[str, str]) -> str:
    for name, text in fragments.items():
        body = body.replace("{" + name + "}", text)
    return body
