"""Rows that a test writes and finds again, through the store's own port.

A row is a counter: its name is the key, so that writing it twice is refused by the schema. The operations are the
test's and stand for any operation of the store.
"""

from __future__ import annotations

import re

from perdure.errors import Refused
from perdure.store.database import Transaction
from perdure.store.queries import Query


def query(text: str) -> Query:
    """A query of the test's own, written like those in the store's files, with `:name` for a value."""
    names = re.findall(r"(?<!:):([a-z_]+)", text)
    postgres = re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", text.replace("%", "%%"))
    return Query("test", text, postgres, tuple(dict.fromkeys(names)))


INSERT = query("INSERT INTO counters (name, value) VALUES (:key, :value)")
ADD = query("UPDATE counters SET value = value + :value WHERE name = :key")
KEYS = query("SELECT name FROM counters WHERE name LIKE 'key-%' ORDER BY name")
VALUE = query("SELECT value FROM counters WHERE name = :key")
INSERT_BODY = query("INSERT INTO payloads (hash, body) VALUES (:hash, :body)")


def put(tx: Transaction, key: str, *, hint: bool = False) -> str:
    """Write one row; StoreError if it is there."""
    tx.run(INSERT, key=f"key-{key}", value=0)
    if hint:
        tx.hint()
    return key


def put_twice(tx: Transaction, key: str) -> str:
    """Write two rows that belong together."""
    put(tx, f"{key}-a")
    put(tx, f"{key}-b")
    return key


def put_once(tx: Transaction, key: str) -> bool:
    """Write one row if it is not there; True when this call did it. Safe to repeat."""
    if tx.one(VALUE, key=f"key-{key}") is not None:
        return False
    put(tx, key)
    return True


def put_body(tx: Transaction, key: str, body: bytes) -> None:
    """Write one payload."""
    tx.run(INSERT_BODY, hash=key.encode(), body=body)


def add(tx: Transaction, key: str) -> int:
    """Count a row up; how many rows there were."""
    return tx.run(ADD, key=f"key-{key}", value=1)


def value(tx: Transaction, key: str) -> int | None:
    """What a row counts, or None."""
    row = tx.one(VALUE, key=f"key-{key}")
    return None if row is None else int(row[0])


def keys(tx: Transaction) -> list[str]:
    """Every key that was put."""
    return [row[0].removeprefix("key-") for row in tx.all(KEYS)]


def refuse(_tx: Transaction) -> None:
    """Refuse before a write."""
    raise Refused("no")


def put_and_fail(tx: Transaction, key: str) -> None:
    """Write, then fail."""
    put(tx, key)
    raise Refused("too late")
