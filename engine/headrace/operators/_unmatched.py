"""Reasons in the quarantine of retractions that match nothing."""

from __future__ import annotations

from typing import Final

from headrace.api import RowKind, StateTtl

OF_KEY: Final = "records of its key"
IN_WINDOW: Final = "records of its key in its window"


def unmatched(kind: RowKind, records: str, ttl: StateTtl | None = None) -> str:
    """Return the reason for a retraction that matches none of the `records`, which a TTL may have removed."""
    expired = "" if ttl is None else f" (a record is forgotten after state_ttl={ttl.ttl})"
    return f"a retraction ({kind.symbol}) that matches none of the {records}{expired}"
