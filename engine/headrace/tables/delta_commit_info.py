"""What a commit of Headrace says of itself in Delta's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from deltalake import CommitProperties
from deltalake import Transaction as DeltaTransaction

from headrace.tables.store import CommitInfo

CHECKPOINT_METADATA = "headrace.checkpoint"
"""Key in a sink's commit information that names the checkpoint it was published for."""

RUN_METADATA, ATTEMPT_METADATA, INCARNATION_METADATA = "headrace.run", "headrace.attempt", "headrace.incarnation"


def commit_properties(info: CommitInfo) -> CommitProperties:
    """Return properties of a commit that must be exactly the next version, or fail.

    deltalake rebases a commit that finds its version taken, in silence; with no retries it fails
    instead, and that is the compare-and-set on which fencing rests.
    """
    metadata = {
        RUN_METADATA: info.run_id,
        ATTEMPT_METADATA: info.attempt_id,
        CHECKPOINT_METADATA: None if info.checkpoint_id is None else str(info.checkpoint_id),
        INCARNATION_METADATA: " ".join(map(str, info.published_by)) or None,
    }
    return CommitProperties(
        custom_metadata={key: value for key, value in metadata.items() if value is not None} or None,
        max_commit_retries=0,
        app_transactions=[DeltaTransaction(*transaction) for transaction in info.transactions] or None,
    )


def commit_info(entry: Mapping[str, Any]) -> CommitInfo:
    """Return what a commit says, from its entry in deltalake's history."""
    return CommitInfo(
        run_id=entry.get(RUN_METADATA),
        attempt_id=entry.get(ATTEMPT_METADATA),
        checkpoint_id=_checkpoint_of(entry),
        published_by=tuple(map(int, entry.get(INCARNATION_METADATA, "").split())),
    )


def _checkpoint_of(entry: Mapping[str, Any]) -> int | None:
    """Return the checkpoint that a commit published; Spark keeps it in `userMetadata`."""
    if CHECKPOINT_METADATA in entry:
        return int(entry[CHECKPOINT_METADATA])
    try:
        metadata = msgspec.json.decode(entry.get("userMetadata") or "{}")
    except msgspec.DecodeError:
        return None  # somebody else's text
    published = str(metadata.get(CHECKPOINT_METADATA)) if isinstance(metadata, dict) else ""
    return int(published) if published.isdecimal() else None
