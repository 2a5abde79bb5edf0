"""Sessions: the row that orders every change under one root, and the first lock of each verb that touches one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from perdure.errors import BadInput, NotFound
from perdure.store.database import Transaction
from perdure.store.queries import as_rows, load

Q = load("sessions")
Sets = load("sets")


@dataclass(frozen=True, slots=True)
class Session:
    """A session's row."""

    id: str
    parent_session_id: str | None
    revision: int
    created_at: int


def ensure(tx: Transaction, session_id: str, *, parent_session_id: str | None = None) -> None:
    """Make the session if there is none with this id. Idempotent."""
    tx.run(Q.insert, id=check_id(session_id, "session"), parent_session_id=parent_session_id)


def get(tx: Transaction, session_id: str) -> Session:
    """The session. Raises NotFound."""
    row = tx.one(Q.get, id=check_id(session_id, "session"))
    if row is None:
        raise NotFound(f"there is no session {session_id}")
    return Session(*row)


def lock(tx: Transaction, session_id: str) -> None:
    """Hold the session until the transaction ends: nobody else changes what lies under it meanwhile."""
    if tx.one(Q.lock, id=session_id) is None:
        raise NotFound(f"there is no session {session_id}")


def raise_revision(tx: Transaction, session_id: str) -> int:
    """The next revision of a locked session, for the rows that change with it to carry."""
    row = tx.one(Q.raise_revision, id=session_id)
    assert row is not None, session_id
    return int(row[0])


def raise_revisions(tx: Transaction, session_ids: Sequence[str]) -> list[int]:
    """The next revision of a locked session for each time it is named, in this order."""
    times = Counter(session_ids)
    raised = tx.all(Sets.raise_revisions, rows=as_rows(list(times.items())))
    following = {session_id: count(revision - times[session_id] + 1) for session_id, revision in raised}
    return [next(following[session_id]) for session_id in session_ids]


def check_id(text: str, field: str, *, limit: int = 512) -> str:
    """`text`, if it can be an id: 1 to `limit` bytes of UTF-8 without NUL. Raises BadInput otherwise."""
    size = _size(text, field)
    if not 1 <= size <= limit or "\x00" in text:
        raise BadInput(f"{field} must be 1 to {limit} bytes of text without NUL; it has {size} bytes", field=field)
    return text


def check_text(text: str | None, field: str) -> str | None:
    """`text`, if both databases can hold it in a column of text: no NUL, no half of a surrogate pair."""
    if text is not None and _size(text, field) and "\x00" in text:
        raise BadInput(f"{field} holds a NUL, which no column of text can hold; clean it first", field=field)
    return text


def need_text(text: str, field: str) -> str:
    """`text` as `check_text` has it, where there must be one. Raises BadInput."""
    _size(text, field)
    check_text(text, field)
    return text


def _size(text: str, field: str) -> int:
    if not isinstance(text, str):
        raise BadInput(f"{field} must be text, not {type(text).__name__}", field=field)
    if text.isascii():
        return len(text)
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        broken = f"{field} holds half of a surrogate pair, which is no text; clean it first"
        raise BadInput(broken, field=field) from None
