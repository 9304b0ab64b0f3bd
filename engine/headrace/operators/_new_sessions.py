"""Sessions of the records of one bundle, for a key that has no other session."""

from __future__ import annotations

from headrace.api import RowKind
from headrace.api.bundles import Bundle, BundledRecord
from headrace.operators._calendar import check_in_calendar


class NewSession:
    """Session of some records; `start` and `end` are those of its span (ms)."""

    __slots__ = ("end", "name", "records", "start")

    def __init__(self, start: int, end: int) -> None:
        """Start a session, which is named after its first record."""
        self.name = str(start)
        self.start, self.end = start, end
        self.records: list[BundledRecord] = []


def new_sessions(bundle: Bundle, gap: int) -> list[NewSession] | None:
    """Return the sessions of the records, in the order of their first ones; None if a record merges two. `gap` is in ms."""
    sessions: list[NewSession] = []
    for record in bundle.walk(bundle.records):
        if record.kind:
            check_kind(RowKind(record.kind))
        at, until = record.timestamp, record.timestamp + gap
        joined = None
        for session in sessions:
            if session.start < until and at < session.end:
                if joined is not None:
                    return None
                joined = session
        if joined is None:
            joined = NewSession(at, until)
            sessions.append(joined)
            check_in_calendar(at, at, until)
        elif at < joined.start or joined.end < until:
            joined.start, joined.end = min(at, joined.start), max(until, joined.end)
            check_in_calendar(at, joined.start, joined.end)
        joined.records.append(record)
    return sessions


def check_kind(kind: RowKind) -> None:
    """Raise `ValueError` for a retraction."""
    if kind.is_retraction:
        msg = f"sessions cannot take a record back, and this one is {kind.symbol}"
        raise ValueError(msg)
