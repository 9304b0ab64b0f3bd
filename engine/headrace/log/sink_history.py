"""Owner of a sink's table, and history of the sink: which version belongs to a checkpoint.

A table that two jobs write to has the rows of neither. So a job claims each table before its first publication, by a
commit that is a compare-and-set: of two jobs that begin at the same time, one gets the table, and the other is refused.
The table itself records its owner, one sink of one job:

    number of an owner    hash of the job's uid and of the sink's name; 0: nobody owns the table
    in the table          the transaction `headrace.owner` has the number. A RESTORE of the table keeps it
    in the commit         the names of job and sink, for messages

The uid of a job is the incarnation that it had first: its checkpoint 0 has made it. Restores, reconciliations,
promotions and another name of the job's file keep it; a copy of the job's folder has it as well, and is told from the
job by incarnations (`sink_position`).

Each publication is a commit of the sink that names its checkpoint, and the incarnation of the job that published it.
Ids of checkpoints are unique within an incarnation only, so a commit belongs to a job's checkpoint when both fit:

    log of the job       0 -- 1 -- 2 (all of incarnation a)
    commits of a sink    1 a,  2 a,  3 a,  4 b      3 is lost from the log, and 4 was published by another incarnation
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

from headrace.config import JobConfig
from headrace.errors import SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint
from headrace.log.lineage import Lineage
from headrace.sinks.sink import Sink
from headrace.storage.table import Claim, Commit, Snapshot

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
    return f"sink '{claim.sink}' of {'another incarnation of ' if claim.job == job else ''}job '{claim.job}'"


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


class ShortHistoryError(StorageError):
    """The history of a sink's table no longer reaches back to a publication."""


class SinkHistory:
    """Publications of a job to a sink, as of construction. A sink that is gone has an empty history."""

    def __init__(self, table: Snapshot | None, sink: str, lineage: Lineage) -> None:
        """Read the commits that the log of `table` still has. `lineage` knows all checkpoints of the job."""
        self.table = table
        self._sink = sink
        commits = [] if table is None else table.history()
        self._first = commits[-1].version if commits else 0
        self._start = self._begins_at(commits, lineage)
        self._published: dict[int, int] = {}
        self._is_known = any(not lineage.incarnations.keys().isdisjoint(commit.info.published_by) for commit in commits)
        for commit, incarnation in _publications(commits[::-1]):
            number = commit.info.checkpoint_id
            checkpoint = None if number is None else lineage.get(number)
            if checkpoint is not None and incarnation in {None, checkpoint.incarnation}:
                self._published.setdefault(checkpoint.checkpoint_id, commit.version)
        self._is_known = self._is_known or bool(self._published)
        oldest = min(self._published.values(), default=None)
        if oldest is not None and self._start is not None and oldest < self._start:  # the claim came later
            self._start = oldest - 1 if oldest > self._first else None

    def _begins_at(self, newest_first: Sequence[Commit], lineage: Lineage) -> int | None:
        """Return the version with which the sink began: the last take-over, without rows, else the first claim, with those of others."""
        names = {self._sink, *lineage.sinks}  # it may have had another name
        own = set() if lineage.uid is None else {owner_number(lineage.uid, name) for name in names}
        pairs = ((commit.version, commit.info.claim) for commit in newest_first)
        claims = [(version, claim) for version, claim in pairs if claim is not None and claim.owner in own]
        taken = (version for version, claim in claims if claim.is_empty)
        begun = (version for version, claim in claims[::-1] if not claim.moved)
        first = next(begun, None if self._first else 0)
        return next(taken, first)

    @property
    def is_known(self) -> bool:
        """Return whether this job, or a later incarnation of it, has published to the sink."""
        return self._is_known

    def version_of(self, lineage: Lineage) -> int:
        """Return the version that belongs to the head of a lineage: the publication of the head, or of its nearest ancestor that published.

        Raises `SinkMismatchError` when that was never published, and `StorageError` when the table's history does not reach back
        that far.
        """
        for checkpoint in lineage.newest_first():
            number = checkpoint.checkpoint_id
            if number in self._published:
                return self._published[number]
            if not self._has(checkpoint, lineage):
                msg = (
                    f"what checkpoint {number} wrote never reached {self._name}, so the sink cannot be brought there. "
                    "Nothing was committed: restore a checkpoint before it, and run again."
                )
                raise SinkMismatchError(msg)
        if self._start is None:
            msg = (
                f"the history of {self._name} begins at version {self._first}, after what belongs to checkpoint "
                f"{lineage.head.checkpoint_id if lineage.head else 0}. Nothing was committed: restore a later checkpoint."
            )
            raise ShortHistoryError(msg)
        return self._start

    def others_since(self, version: int) -> list[int]:
        """Return later versions that changed rows and were not published by a job."""
        commits = [] if self.table is None else self.table.history()
        return [
            commit.version
            for commit in reversed(commits)
            if commit.version > version
            and not commit.keeps_rows
            and commit.info.checkpoint_id is None
            and commit.info.claim is None
            and not commit.info.published_by
        ]

    def versions(self, lineage: Lineage) -> dict[int, int]:
        """Return the versions of the sink for all checkpoints of a lineage that it can be brought to, by checkpoint id."""
        versions: dict[int, int] = {}
        current = self._start
        for checkpoint in lineage.checkpoints:
            number = checkpoint.checkpoint_id
            if number in self._published:
                current = self._published[number]
            elif not self._has(checkpoint, lineage):
                current = None
            if current is not None:
                versions[number] = current
        return versions

    @property
    def _name(self) -> str:
        return f"sink '{self._sink}'" + (f" at {self.table.uri}" if self.table is not None else "")

    def _has(self, checkpoint: Checkpoint, lineage: Lineage) -> bool:
        """Return whether the sink has all outputs of a checkpoint, which may be none."""
        return not checkpoint.outputs.get(self._sink) or lineage.was_published(checkpoint, self._published)


def version_of(table: Snapshot, sink: str, lineage: Lineage) -> int:
    """Return the version of a sink that belongs to the head of a lineage; see `SinkHistory.version_of`."""
    return SinkHistory(table, sink, lineage).version_of(lineage)


def version_at_fork(table: Snapshot, sink: str, lineage: Lineage) -> int:
    """Return the version of a sink that belongs to the fork of the branch that the head of a lineage promotes."""
    return SinkHistory(table, sink, lineage).version_of(_to_fork(lineage))


def _to_fork(lineage: Lineage) -> Lineage:
    head = lineage.head
    fork = None if head is None or head.restored_from is None else lineage.get(head.restored_from)
    assert fork is not None  # noqa: S101 - a promotion names it, and rows of `checkpoints` stay
    return lineage.to(fork)


def _publications(oldest_first: Sequence[Commit]) -> list[tuple[Commit, int | None]]:
    """Return the commits that published a checkpoint, each with the job's incarnation.

    Spark's MERGE does not record the incarnation. After its first MERGE, an incarnation makes a commit for the same checkpoint that
    does; later ones of Spark belong to the same incarnation.
    """
    commits = [commit for commit in oldest_first if commit.info.checkpoint_id is not None]
    following = {
        first.version: second.info.published_by[0]
        for first, second in pairwise(commits)
        if first.info.checkpoint_id == second.info.checkpoint_id and second.info.published_by
    }
    publications: list[tuple[Commit, int | None]] = []
    incarnation: int | None = None
    for commit in commits:
        publication = commit.info.published_by
        incarnation = publication[0] if publication else following.get(commit.version, incarnation)
        publications.append((commit, incarnation))
    return publications
