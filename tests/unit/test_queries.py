"""The SQL: every query compiles on both databases, every name that Python uses exists, and nothing is put together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import apsw
import psycopg
import pytest

from perdure.clock import FakeClock, SeededIds
from perdure.settings import Settings
from perdure.states import ATTEMPT, INSTANCE, QUESTION, TASK
from perdure.store import open_store
from perdure.store.database import Transaction
from perdure.store.queries import POSTGRES, SQLITE, Queries, Query, fill, load

STORE = Path(str(files("perdure.store")))
AGGREGATES = sorted(path.stem for path in (STORE / "sql").glob("*.sql"))
QUERIES = [query for aggregate in AGGREGATES for query in load(aggregate)]
MODULES = sorted(STORE.glob("*.py"))


def test_there_are_queries_to_look_at() -> None:
    assert len(AGGREGATES) >= 9
    assert len(QUERIES) >= 90
    assert len({query.name for query in QUERIES}) == len(QUERIES)


def test_every_query_compiles_on_sqlite() -> None:
    store = open_store("memory:", clock=FakeClock(), ids=SeededIds())

    def explain_all(tx: Transaction) -> list[str]:
        return [query.name for query in QUERIES if not _explain(tx, query)]

    with store:
        assert store.call(explain_all) == []


def test_every_query_compiles_on_postgres(postgres_url: str) -> None:
    open_store(postgres_url, settings=Settings(busy_s=5)).close()

    with psycopg.connect(postgres_url) as connection:
        for query in QUERIES:
            # A generic plan is made without values, so that nothing runs and every type must be clear.
            positions = {name: f"${number}" for number, name in enumerate(sorted(query.parameters), 1)}
            text = query.postgres
            for name, position in positions.items():
                text = text.replace(f"%({name})s", position)
            text = text.replace("%%", "%")
            connection.execute(f"PREPARE checked AS {text}".encode())
            connection.execute("DEALLOCATE checked")


def _explain(tx: Transaction, query: Query) -> bool:
    explained = Query(query.name, f"EXPLAIN {query.sqlite}", query.postgres, query.parameters)
    values: dict[str, int] = dict.fromkeys(set(query.parameters) - {"now"}, 0)
    return len(tx.all(explained, **values)) > 0


def test_no_hole_is_left_unfilled() -> None:
    for query in QUERIES:
        assert not re.search(r"[{}]", query.sqlite + query.postgres), query.name
        assert not re.search(r"(?<!:):[a-z_]+", query.postgres), query.name


def test_both_texts_have_the_same_parameters() -> None:
    for query in QUERIES:
        assert set(re.findall(r"%\((\w+)\)s", query.postgres)) == set(query.parameters), query.name


def test_sqlite_takes_as_many_values_as_there_are_parameters(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    open_store(str(path)).close()
    cursor = apsw.Connection(str(path)).cursor()

    for query in QUERIES:
        cursor.execute(f"EXPLAIN {query.sqlite}", (0,) * len(query.parameters))
        assert cursor.bindings_count == len(query.parameters), query.name
        assert set(re.findall(r"[?](\d+)", query.sqlite)) == {str(n + 1) for n in range(len(query.parameters))}


def test_a_hole_that_nothing_fills_is_an_error() -> None:
    for text in ("{nonsense}", "{from:fly}", "{to:suspend}", "{set:task.warm}", "{from:robot.claim}"):
        with pytest.raises((KeyError, StopIteration)):
            fill(text, SQLITE)


def test_holes_are_filled_with_the_words_of_the_machines() -> None:
    assert fill("{from:complete}", SQLITE) == "'running', 'waiting'"
    assert fill("{to:claim}", SQLITE) == "'running'"
    assert fill("{to:question.expire}", SQLITE) == "'expired'"
    assert fill("{status:instance.active}", SQLITE) == "'active'"
    assert fill("{statuses:attempt}", SQLITE) == " OR ".join(f"status = '{status}'" for status in ATTEMPT.statuses)
    assert fill("{risks:risk}", SQLITE) == "risk = 'low' OR risk = 'medium' OR risk = 'high' OR risk = 'critical'"
    assert fill("{set:task.terminal}", SQLITE) == "'completed', 'failed', 'timed_out', 'cancelled'"
    assert fill("{text} {blob}", POSTGRES) == 'TEXT COLLATE "C" BYTEA'
    assert (fill("{fill:70}", SQLITE), fill("{fill:70}", POSTGRES)) == ("", "WITH (fillfactor = 70)")


def test_an_unknown_query_is_an_attribute_error_that_names_the_file() -> None:
    with pytest.raises(AttributeError, match=r"sql/tasks\.sql has no query fly"):
        _ = load("tasks").fly


def _used() -> Iterator[tuple[str, str]]:
    """(aggregate, query) for each `Q.name` in the store, where Q is a name of that module for the queries of a file."""
    for path in MODULES:
        module = import_module(f"perdure.store.{path.stem}" if path.stem != "__init__" else "perdure.store")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=query):
                    queries = getattr(module, name, None)
                    if isinstance(queries, Queries):
                        yield next(iter(queries)).name.partition(".")[0], query
                case _:
                    continue


def test_every_query_that_is_used_exists_and_none_lies_unused() -> None:
    used = set(_used())
    there = {(aggregate, name) for aggregate, _, name in (query.name.partition(".") for query in QUERIES)}

    assert used - there == set()
    assert there - used == set()


def test_every_query_says_what_it_reads_and_lists_have_an_end() -> None:
    for query in QUERIES:
        assert not re.search(r"SELECT\s+(\w+\.)?\*", query.sqlite), query.name
        if re.search(r"\bLIMIT\b", query.sqlite):
            assert "ORDER BY" in query.sqlite, query.name


def test_no_text_is_put_together_where_it_is_executed() -> None:
    # The migration writes its own record and the guards; both hold numbers, digests and words of states.py only.
    for path in MODULES:
        if path.name == "migrate.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="execute" | "executemany"), args=[text, *_]):
                    built = [one for one in ast.walk(text) if isinstance(one, ast.JoinedStr | ast.BinOp)]
                    constants = {"_PAGE_BYTES", "_APPLICATION_ID"}
                    names = {name.id for one in built for name in ast.walk(one) if isinstance(name, ast.Name)}
                    assert not built or names <= constants, (path.name, node.lineno)
                case _:
                    continue


def test_a_query_names_no_status_itself() -> None:
    words = {word for machine in (TASK, ATTEMPT, QUESTION, INSTANCE) for word in machine.statuses}
    # What a step's outcome is called is no status, though the words are the same.
    outcomes = {"completed", "failed"}
    for path in (STORE / "sql").glob("*.sql"):
        text = re.sub(r"--[^\n]*", "", path.read_text("utf-8"))
        found = set(re.findall(r"'([a-z_]+)'", text)) & words
        assert found <= (outcomes if path.stem == "steps" else set()), path.name


def test_sqlite_is_new_enough_for_the_schema() -> None:
    assert tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) >= (3, 51, 3)
