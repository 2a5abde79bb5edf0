"""Payloads: values as bytes in a column, big parts of them stored once by their hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure import codec
from perdure.store.database import Transaction
from perdure.store.queries import load

Q = load("payloads")


def keep(tx: Transaction, packed: codec.Packed) -> bytes:
    """Store the parts that are not there yet and return the bytes for the column.

    Parts are inserted in the order of their hashes, so that two writers of the same parts never wait in a circle.
    """
    if packed.parts:
        for digest, body in sorted(packed.parts):
            tx.run(Q.keep, hash=digest, body=body)
    return packed.blob


def as_text(packed: codec.Packed) -> str | None:
    """What `keep` returns, as text that a statement about many rows can carry; None where there is no such text."""
    if packed.parts or b"\x00" in packed.blob:
        return None
    try:
        return packed.blob.decode()
    except UnicodeDecodeError:
        return None


def body(tx: Transaction, blob: bytes) -> bytes:
    """The canonical JSON behind a column. Raises Damaged when a part is missing or the codec unknown."""

    def fetch(hashes: Sequence[bytes]) -> Mapping[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for digest in hashes:
            row = tx.one(Q.get, hash=digest)
            if row is not None:
                found[digest] = bytes(row[0])
        return found

    return codec.unpack(bytes(blob), fetch)


def small(tx: Transaction, value: object) -> bytes:
    """A value of perdure's own (an event's payload, evidence) stored; the bytes for the column."""
    return keep(tx, codec.pack(codec.evidence(value)))


def plain(tx: Transaction, blob: bytes | None) -> Any:
    """The value behind a column, as it was recorded; None for an empty column."""
    return None if blob is None else codec.decode(body(tx, blob))
