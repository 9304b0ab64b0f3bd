"""Information about a commit of Headrace in Delta's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from deltalake import CommitProperties
from deltalake import Transaction as DeltaTransaction

from headrace.tables.store import Claim, CommitInfo

CHECKPOINT_METADATA = "headrace.checkpoint"
"""Key of the published checkpoint's id in a sink's commit information."""

CLAIM_METADATA = "headrace.claim"
"""Key of a claim on the table, as JSON."""

RUN_METADATA, ATTEMPT_METADATA, INCARNATION_METADATA = "headrace.run", "headrace.attempt", "headrace.incarnation"


def commit_properties(info: CommitInfo) -> CommitProperties:
    """Return properties of a commit that becomes exactly the next version, or fails.

    By default, deltalake silently rebases a commit whose version is taken. Without retries it fails instead: this is the
    compare-and-set that fencing needs.
    """
    metadata = {
        RUN_METADATA: info.run_id,
        ATTEMPT_METADATA: info.attempt_id,
        CHECKPOINT_METADATA: None if info.checkpoint_id is None else str(info.checkpoint_id),
        INCARNATION_METADATA: " ".join(map(str, info.published_by)) or None,
        CLAIM_METADATA: None if info.claim is None else msgspec.json.encode(info.claim).decode(),
    }
    return CommitProperties(
        custom_metadata={key: value for key, value in metadata.items() if value is not None} or None,
        max_commit_retries=0,
        app_transactions=[DeltaTransaction(*transaction) for transaction in info.transactions] or None,
    )


def commit_info(entry: Mapping[str, Any]) -> CommitInfo:
    """Return the information about a commit from its entry in deltalake's history."""
    return CommitInfo(
        run_id=entry.get(RUN_METADATA),
        attempt_id=entry.get(ATTEMPT_METADATA),
        checkpoint_id=_checkpoint_of(entry),
        published_by=tuple(map(int, entry.get(INCARNATION_METADATA, "").split())),
        claim=msgspec.json.decode(entry[CLAIM_METADATA], type=Claim) if CLAIM_METADATA in entry else None,
    )


def _checkpoint_of(entry: Mapping[str, Any]) -> int | None:
    """Return the id of the checkpoint that a commit published; commits of Spark have it in `userMetadata`."""
    if CHECKPOINT_METADATA in entry:
        return int(entry[CHECKPOINT_METADATA])
    try:
        metadata = msgspec.json.decode(entry.get("userMetadata") or "{}")
    except msgspec.DecodeError:
        return None  # text of another program
    published = str(metadata.get(CHECKPOINT_METADATA)) if isinstance(metadata, dict) else ""
    return int(published) if published.isdecimal() else None
