"""Artifacts: content as it is, stored once under its SHA-256. Events of kind `artifact_created` tell who made it."""

from __future__ import annotations

import hashlib

from perdure.errors import Damaged, NotFound
from perdure.store.database import Transaction
from perdure.store.queries import load
from perdure.store.sessions import check_id

Q = load("artifacts")


def keep(tx: Transaction, content: bytes) -> str:
    """Store content, if it is not there yet; returns its SHA-256, 64 hexadecimal digits."""
    sha256 = hashlib.sha256(content).hexdigest()
    tx.run(Q.keep, digest=sha256, content=content)
    return sha256


def get(tx: Transaction, sha256: str) -> bytes:
    """The content with this SHA-256. Raises NotFound, and Damaged when it is no longer what its hash says."""
    row = tx.one(Q.get, digest=check_id(sha256, "sha256"))
    if row is None:
        raise NotFound(f"there is no artifact {sha256}; `artifact` returns the SHA-256 that it is found by")
    content = bytes(row[0])
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Damaged(f"the artifact {sha256} is not what its hash says; restore it from a backup")
    return content
