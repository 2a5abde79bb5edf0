"""What must hold between two copies of one log, the longer beginning with the shorter."""

from __future__ import annotations

from perdure.importers import Entry, MessageEntry, Recording, ResultEntry


def assert_sound(recording: Recording, *, line_count: int) -> None:
    """Every line is counted once, ids are unique, and every link leads to an entry that stands before it."""
    assert recording.record_count == line_count
    assert recording.used_count + sum(item.count for item in recording.unused) == line_count
    assert len({run.source_id for run in recording.runs}) == len(recording.runs)
    for run in recording.runs:
        assert len(set(run.source_ids)) == len(run.source_ids)
        seen: set[str] = set()
        for entry in run.entries:
            if isinstance(entry, ResultEntry):
                assert entry.call_source_id in seen
                seen.remove(entry.call_source_id)
            seen.add(entry.source_id)


def assert_grows(shorter: Recording, longer: Recording) -> None:
    """Whoever stored the shorter one adds only the rest, and then has all that the longer one holds."""
    for old, new in zip(shorter.runs, longer.runs, strict=False):
        assert old.source_id == new.source_id
        for before, after in zip(old.entries, new.entries, strict=False):
            assert _begins(before, after)
        known = frozenset(old.source_ids)
        rest = new.entries_after(known)
        added = [source_id for entry in rest for source_id in entry.source_ids]
        assert not known.intersection(added)
        assert sorted([*old.source_ids, *added]) == sorted(new.source_ids)
        assert len(old.entries) <= len(new.entries)
    assert len(shorter.runs) <= len(longer.runs)


def _begins(before: Entry, after: Entry) -> bool:
    """Whether an entry is the same in the longer log, or the same message with more parts."""
    if isinstance(before, MessageEntry) and isinstance(after, MessageEntry):
        grown = MessageEntry(
            before.source_id,
            before.at_ms,
            before.role,
            after.parts[: len(before.parts)],
            before.tool_call_id,
            before.tool_name,
        )
        return before == grown and (before.source_id, before.role) == (after.source_id, after.role)
    return before == after
