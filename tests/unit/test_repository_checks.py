"""The repository's own checks see what they are there for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.check_sizes import MAX_FILE_LINES, MAX_FUNCTION_LINES, TooLong, measure, unused
from tools.check_sql import built_statements, driver_imports, literal_statuses, only_of_status, statuses
from tools.check_words import forbidden_words

PLACE = Path("src/perdure/store/tasks.py")


def test_a_file_and_a_function_at_their_limit_pass_and_one_line_more_does_not() -> None:
    def method(lines: int) -> str:
        return "class A:\n    def f(self):\n" + "        pass\n" * (lines - 1)

    assert measure(PLACE, "x = 1\n" * MAX_FILE_LINES) == []
    assert measure(PLACE, method(MAX_FUNCTION_LINES)) == []
    assert measure(PLACE, "x = 1\n" * (MAX_FILE_LINES + 1)) == [TooLong(PLACE.as_posix(), 501, 500)]
    assert measure(PLACE, method(MAX_FUNCTION_LINES + 1)) == [TooLong(f"{PLACE.as_posix()}::A.f", 71, 70)]


def test_an_exception_that_nothing_needs_is_named() -> None:
    found = [TooLong("a.py", 501, 500)]

    assert unused(found, {"a.py": "reason", "b.py": "reason"}) == ["b.py"]


def test_a_status_in_a_query_is_found_and_one_in_a_comment_or_column_is_not() -> None:
    query = "-- the 'running' ones\nSELECT pending\nFROM tasks\nWHERE status = {from:claim} AND name = 'it''s';\n"

    assert literal_statuses(Path("q.sql"), query, statuses()) == []
    (complaint,) = literal_statuses(Path("q.sql"), query + "UPDATE tasks SET status = 'running';", statuses())
    assert complaint.startswith("q.sql:5: the status 'running'")


def test_the_schema_names_no_status_and_may_name_an_outcome() -> None:
    schema = (
        "CREATE TABLE t (\n    outcome TEXT CHECK (outcome IN ('completed')),\n    CHECK (status <> 'running')\n);\n"
    )

    (complaint,) = literal_statuses(Path("s.sql"), only_of_status(schema), statuses())

    assert complaint.startswith("s.sql:3: the status 'running'")


@pytest.mark.parametrize(
    "code",
    [
        "def f(c, t): c.execute(f'SELECT * FROM {t}')",
        "def f(c, t): c.execute('SELECT * FROM ' + t)",
        "def f(c, t): c.execute('SELECT * FROM %s' % t)",
        "def f(c, t): c.executemany('SELECT * FROM {}'.format(t), [])",
        "async def f(c, t):\n    await c.execute(f'SELECT {t}' if t else 'SELECT 1')",
        "def f(c, t):\n    text = 'SELECT 1'\n    text += t\n    c.execute(text)",
        "def f(c, t):\n    if (text := ' AND '.join(t)):\n        c.execute(statement=text)",
    ],
)
def test_a_statement_that_is_built_is_found(code: str) -> None:
    assert len(built_statements(PLACE, ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "def f(c, t): c.execute('SELECT :t', {'t': f'{t}!'})",
        "def f(c, q): c.execute(q.claim, ('a' + 'b',))",
        "def f(c):\n    c.execute('SELECT 1 '\n              'FROM tasks')",
        "def f(c, t):\n    def g():\n        x = f'{t}'\n        return x\n    x = 'SELECT 1'\n    c.execute(x)",
        "def f(log, t): log.info(f'{t}')",
    ],
)
def test_a_statement_with_parameters_passes(code: str) -> None:
    assert built_statements(PLACE, ast.parse(code)) == []


def test_a_driver_is_found_at_any_depth() -> None:
    code = "import json, apsw\n\ndef f():\n    from psycopg.rows import tuple_row\n    import sqlite3_like\n"

    complaints = driver_imports(Path("src/perdure/client.py"), ast.parse(code))

    assert [complaint.split(": ")[1].split(";")[0] for complaint in complaints] == [
        "imports apsw",
        "imports psycopg.rows",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "see /la~ir/x",
        "cd /d~en/main",
        "# TO~DO later",
        "raise NotImplemented~Error",
        "packages.acme.i~o/x",
        "https://my-example.o~rg",
        "--index-~url x",
    ],
)
def test_a_word_that_does_not_belong_is_found_with_its_line(text: str) -> None:
    word = text.replace("~", "")  # written apart, so that this file passes

    assert [line for line, _, _ in forbidden_words(f"fine\n{word}\n".encode())] == [2]


def test_words_that_only_look_alike_pass() -> None:
    text = b"tests/lair/x ~/lair/y except NotImplementedError, return NotImplemented; TODOS --no-emit-index-url"

    assert list(forbidden_words(text + b" /usr/bin/x db.example.org https://example.org/x")) == []
