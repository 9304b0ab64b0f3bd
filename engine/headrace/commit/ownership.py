"""Owner of a sink's table: one sink of one job, recorded in the table itself.

A table that two jobs write to has the rows of neither. So a job claims each table before its first publication, by a commit that is a
compare-and-set: of two jobs that begin at the same moment, one gets the table, and the other is refused.

    number of an owner    hash of the job's uid and of the sink's name; 0: nobody owns the table
    in the table          the transaction `headrace.owner` has the number. A RESTORE of the table keeps it
    in the commit         the names of job and sink, for messages

The uid of a job is the incarnation that it had first: its checkpoint 0 has made it. Restores, reconciliations, promotions and another name
of the job's file keep it; a copy of the job's folder has it as well, and is told from the job by incarnations (`sink_position`).
"""

from __future__ import annotations

from hashlib import blake2b

from headrace.commit.lineage import Lineage
from headrace.config import JobConfig
from headrace.sinks.sink import Sink
from headrace.tables.store import Claim, Snapshot

_BITS = 60
"""Length of an owner's number, which must fit into a transaction of Delta."""


def owner_number(uid: int, sink: str) -> int:
    """Return the number of an owner: a sink of a job."""
    digest = blake2b(f"{uid:x}/{sink}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) or 1


def claim_of(config: JobConfig, sink: str, lineage: Lineage, *, is_empty: bool = False) -> Claim | None:
    """Return the claim that a job makes on the table of a sink.

    None: sinks of a branch claim nothing, and a job without checkpoints has no uid yet.
    """
    if config.branch is not None or lineage.uid is None:
        return None
    return Claim(owner_number(lineage.uid, sink), config.job, sink, is_empty)


def last_claim(table: Snapshot, owner: int) -> Claim | None:
    """Return the last claim of an owner on a table. None: it has none, or the table's log has lost it."""
    claims = (commit.info.claim for commit in table.history())
    return next((claim for claim in claims if claim is not None and claim.owner == owner), None)


def names_of_owner(table: Snapshot, owner: int, job: str) -> str:
    """Return the names of a table's other owner for a message to a `job`. The table's log may have lost them."""
    claim = last_claim(table, owner)
    if claim is None:
        return "another job"
    return f"sink '{claim.sink}' of {'another life of ' if claim.job == job else ''}job '{claim.job}'"


def other_sink_of(lineage: Lineage, owner: int) -> str | None:
    """Return the sink of this job that owns a table; None if it is another job's."""
    if lineage.uid is None:
        return None
    uid = lineage.uid
    return next((name for name in sorted(lineage.sinks) if owner_number(uid, name) == owner), None)


def foreign_owner(sink: Sink, table: Snapshot, claim: Claim | None) -> int | None:
    """Return the number of another owner of a sink's table; None where it is free, or the claim's own."""
    owner = sink.owner(table)
    return None if owner is None or (claim is not None and owner == claim.owner) else owner
