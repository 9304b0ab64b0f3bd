"""Position of a sink compared with the job's log, and the messages that were sent to it.

A sink has the id of the last checkpoint that was published to it, as its Delta transaction; the log has all checkpoints
that were committed. A checkpoint is committed first, then published, then the next one is committed. So these are the
cases, for a log that ends at checkpoint 7, where 5, 6 and 7 write to the sink:

    sink at 7    they agree
    sink at 6    7 is not published yet: the next opening publishes its staged files
    sink at 5    6 was published, and is lost: the sink is an older copy
    sink at 9    the log has lost 8 and 9: the job's folder is an older copy. Delta would silently skip the next 8 and 9,
                 since it takes them for published

Each incarnation of a job counts ids from 0. So a sink, and each checkpoint, also records the number of the
incarnation that wrote it. If both are known and differ, ids cannot be compared:

    sink at 7 of another incarnation the job's folder was moved away and begun anew, or the sink was brought from elsewhere

A reconciliation (`reconcile`) is a restore that gives the job another incarnation, with an id above those of all sinks. For a log
with the checkpoints 0 to 5 of incarnation a, and 8, 9 and 10 of b, where 8 is the reconciliation:

    sink at 5 of a, or below     an older copy, which lacks 8
    sink at 6 of a, or above     it has what the job has left behind at 8. While 8 is the last checkpoint, and above the sink's,
                                 it is not published yet: the next opening publishes it

All this is compared for a table that belongs to this sink: see `ownership`.

A log may end later than its sink: savepoints, compactions and migrations write to no sink. This check does not see a manual Delta
RESTORE of a sink, which keeps the transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from headrace.config import JobConfig
from headrace.errors import SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.log.log import incarnation_of
from headrace.log.sink_history import SinkHistory, claim_of, foreign_owner, last_claim, names_of_owner, other_sink_of
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NEVER, Sink
from headrace.storage.table import Snapshot, TableMissingError
from headrace.tables.folder import JobFolder
from headrace.threads import read_once

T = TypeVar("T")


class MismatchKind(enum.Enum):
    """Kind of disagreement between a sink and its job."""

    OWNED = "owned by another"
    """Its table belongs to another sink, of this job or of another one."""

    COPIED = "owned by the original"
    """Its table belongs to the job that this job's folder is a copy of: both have one uid, and other names."""

    FOREIGN = "foreign"
    """Another incarnation of the job has written it."""

    AHEAD = "ahead"
    """It has checkpoints that the log has lost."""

    LEFT = "left behind"
    """It has checkpoints that the job left behind when it was reconciled."""

    BEHIND = "behind"
    """It has lost what was published to it."""

    GONE = "gone"
    """Its table is gone, with what was published to it."""

    UNPUBLISHED = "files lost"
    """The last checkpoint is not published to it, and its staged files are gone."""

    STUCK = "restore stuck"
    """The last checkpoint is a restore, not published to it, and its files of that time are gone."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Reason why a job cannot continue beside a sink: in a few words, and as a sentence without subject and full stop."""

    kind: MismatchKind
    short: str
    sentence: str


_OWNED = {MismatchKind.OWNED, MismatchKind.COPIED}
"""Kinds of a table of another owner."""

_REFUSED = {MismatchKind.OWNED, MismatchKind.COPIED, MismatchKind.FOREIGN, MismatchKind.AHEAD}
"""Kinds that a restore does not mend."""


class SinkPosition:
    """Position of one sink in the lineage of a job's checkpoints, as of construction."""

    def __init__(
        self, config: JobConfig, sink: str, checkpoints: Sequence[Checkpoint], target: Sink | None = None
    ) -> None:
        """Read the sink's transaction. `checkpoints` has all of the job, oldest first, and may be empty.

        `target` is the sink, if the caller has opened it: its table is not opened again.

        Raises `StorageError` when the table cannot be read.
        """
        self._config, self._checkpoints = config, checkpoints
        self._lineage = Lineage(checkpoints)
        self.sink, self.path = sink, config.sinks[sink].path
        self.published = NEVER
        self.incarnation: int | None = None
        self._table: Snapshot | None = None
        self._has_owner = False
        self._owner: int | None = None
        """Another owner of the table."""
        try:
            target = target or sink_of(config, sink)
            self._table = target.latest()
            self.published, self.incarnation = target.published(self._table), target.incarnation(self._table)
            self._has_owner = target.owner(self._table) is not None
            self._owner = foreign_owner(target, self._table, claim_of(config, sink, self._lineage))
        except TableMissingError:
            return

    @property
    def exists(self) -> bool:
        """Return whether the sink's table exists."""
        return self._table is not None

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules of the table, such as constraints, in words."""
        return () if self._table is None else self._table.rules

    @cached_property
    def first_missing(self) -> int | None:
        """Return the first checkpoint that belongs into the sink and is not in it."""
        return min((number for number in self._belonging(self._checkpoints) if number > self._position), default=None)

    @property
    def wanted(self) -> int | None:
        """Return the last checkpoint of the job's lineage that belongs into the sink; None if none does."""
        return max(self._belonging(self._lineage.checkpoints), default=None)

    @read_once
    def mismatch(self) -> Mismatch | None:
        """Return why the job cannot continue with the sink; None if it can.

        The last checkpoint may be unpublished, as long as its staged files are there.
        """
        if self._is_foreign:
            return self._foreign()
        if self.published > self._last_id or (self._has_other_incarnation and self.published == self._last_id):
            return self._ahead()
        if self.owned_by_another is not None:
            return self.owned_by_another
        missing = self.first_missing
        if missing is None:
            return None
        last = self._checkpoints[-1]
        if last.kind is Kind.RESTORE:
            return self._stuck(last) if self._reaches_last else self._behind(missing)
        if not self.exists or missing < last.checkpoint_id:
            return self._behind(missing)
        return self._unpublished(last)

    def problem(self) -> str | None:
        """Return the disagreement of job and sink with the ways out; None if they agree."""
        if self.mismatch is None:
            return None
        if self.mismatch.kind in _OWNED:
            return self.owner_problem(self.mismatch)
        command = f"'headrace reconcile {self._config.job}'"
        way_out = (
            f"{command} shows how both can be brought together, and does it with --apply; docs/errors.md (10) has more ways."
            if self._checkpoints
            else f"Bring back a copy of that folder, of any age, and run {command}; or, to start anew, move all sinks of the job away."
        )
        if self.mismatch.kind is MismatchKind.STUCK:
            undo = f"'headrace restore {self._config.job} --to {self._checkpoints[-1].parent_id} --why ...'"
            way_out = f"Bring the files back and run again; or undo that restore: {undo}. {way_out}"
        return f"sink '{self.sink}' at {self.path} {self.mismatch.sentence}. No table was changed. {way_out}"

    def mends_by_restore(self) -> bool:
        """Return whether it is enough to restore the job to the sink's checkpoint, with ids that grow by one."""
        return self.mismatch is None or self.mismatch.kind not in _REFUSED

    @read_once
    def owned_by_another(self) -> Mismatch | None:
        """Return the mismatch of a table that belongs to another sink; None for one of this sink, of nobody, or of a branch.

        Releases before the claims left tables without an owner. One that others alone have published to is theirs.
        """
        if self._table is None or self._config.branch is not None:
            return None
        if self._owner is not None:
            own = self.own_owner
            of = (
                f"this job's sink '{own}'"
                if own
                else self._read_history(lambda table: names_of_owner(table, self._owner or 0, self._config.job))
            )
            return Mismatch(MismatchKind.OWNED, f"the table of {of}", f"is the table of {of}")
        if self._has_owner:
            return self._copied()
        if self.published != NEVER or not self._table.version or not self._read_history(_has_publication):
            return None
        return Mismatch(MismatchKind.OWNED, "has rows of another sink", "has rows of another sink, or of another job")

    def _copied(self) -> Mismatch | None:
        """Return the mismatch of a table that another name of the job has claimed and published to; None where this name has."""
        claim = claim_of(self._config, self.sink, self._lineage)
        if claim is None or self.published != NEVER:
            return None
        former = self._read_history(lambda table: last_claim(table, claim.owner))
        if former is None or former.job in {self._config.job, self._config.stored_name}:
            return None
        return Mismatch(
            MismatchKind.COPIED,
            f"the table of job '{former.job}'",
            f"is the table of job '{former.job}', of which the folder {self._config.job_folder} is a copy: two jobs would write to one table",
        )

    @property
    def own_owner(self) -> str | None:
        """Return the other sink of this job that owns the table; None where there is none."""
        return None if self._owner is None else other_sink_of(self._lineage, self._owner)

    def _read_history(self, reader: Callable[[Snapshot], T]) -> T:
        assert self._table is not None  # noqa: S101 - the caller has checked
        return reader(self._table)

    def owner_problem(self, mismatch: Mismatch) -> str:
        """Return the sentence on a table of another sink, with the ways out."""
        job, key = self._config.job, self._config.where(f"sinks.{self.sink}.path")
        if mismatch.kind is MismatchKind.COPIED:
            return (
                f"sink '{self.sink}' at {self.path} {mismatch.sentence}. No table was changed. If this job is that job under another name: "
                f"write its former name into the file (state.name). If it is to be a job of its own: begin with an empty job folder, and give "
                f"the sink another path ({key})."
            )
        own = self.own_owner
        ways = [f"Give the sink another path ({key})"]
        if own is not None and own not in self._config.sinks:
            ways.append(f"if sink '{own}' has this name now: headrace state rename {job} --sink {own} --to {self.sink}")
        if own is None and not self._checkpoints:
            ways.append("if this job is that job under another name: write its former name into the file (state.name)")
        ways.append(
            f"if the table is to become this sink's, and begin empty: headrace sink take-over {job} {self.sink}"
        )
        return f"sink '{self.sink}' at {self.path} {mismatch.sentence}. No table was changed. {'. Or, '.join(ways)}."

    @property
    def _last_id(self) -> int:
        return self._checkpoints[-1].checkpoint_id if self._checkpoints else NEVER

    @property
    def _has_other_incarnation(self) -> bool:
        own = incarnation_of(self._checkpoints)
        return None not in {self.incarnation, own} and self.incarnation != own

    @property
    def _position(self) -> int:
        """Return the last checkpoint of the log up to which the sink has all publications."""
        if self.incarnation is None or not self._has_other_incarnation:
            return self.published
        return min(self.published, self._lineage.incarnations.get(self.incarnation, NEVER))

    @property
    def _is_foreign(self) -> bool:
        """Return whether another incarnation of the job has written the sink, as far as it is known. A reconciliation takes it over."""
        if not self._has_other_incarnation or self.incarnation in self._lineage.incarnations:
            return False
        last = self._checkpoints[-1]
        is_taken_over = self._lineage.begins_incarnation(last) and self.published < last.checkpoint_id
        return not (is_taken_over and self._history.is_known and self._reaches_last)

    @cached_property
    def _history(self) -> SinkHistory:
        return SinkHistory(self._table, self.sink, self._lineage)

    @property
    def _reaches_last(self) -> bool:
        """Return whether the sink can be brought to the last checkpoint, a restore, by its own history."""
        try:
            self._history.version_of(self._lineage)
        except (SinkMismatchError, StorageError):
            return False
        return True

    def _belonging(self, checkpoints: Sequence[Checkpoint]) -> list[int]:
        """Return ids of checkpoints that are published to the sink: those that write to it, and later restores and promotions."""
        written = [c.checkpoint_id for c in checkpoints if c.outputs.get(self.sink)]
        known = [*written[:1], *([self._position] if self.published != NEVER else [])]
        if not known:
            return []
        goes_back = {Kind.RESTORE, Kind.PROMOTION}
        back = [c.checkpoint_id for c in checkpoints if c.kind in goes_back and c.checkpoint_id > min(known)]
        return [*written, *back]

    def _foreign(self) -> Mismatch:
        own, folder = incarnation_of(self._checkpoints), self._config.job_folder
        return Mismatch(
            MismatchKind.FOREIGN,
            "written by another incarnation of the job",
            f"was written by another incarnation of job '{self._config.job}' than the one in {folder}: the ids of their checkpoints say "
            f"nothing about each other. The sink has checkpoint {self.published} of incarnation {self.incarnation:x}; the folder is of "
            f"incarnation {own:x} and ends at checkpoint {self._last_id}",
        )

    def _ahead(self) -> Mismatch:
        folder, published = self._config.job_folder, self.published
        log = (
            f"the log in {folder} ends at checkpoint {self._last_id}"
            if self._checkpoints
            else f"{folder} has no checkpoints"
        )
        return Mismatch(
            MismatchKind.AHEAD,
            f"ahead: the job has no checkpoint {published}",
            f"has what checkpoint {published} of this job published, but {log}",
        )

    def _behind(self, missing: int) -> Mismatch:
        if not self.exists:
            return Mismatch(MismatchKind.GONE, "gone", f"is gone, but checkpoint {missing} was published to it")
        if self.published > self._position:
            sentence = f"has checkpoint {self.published} of a lineage that the job has left at checkpoint {missing}"
            return Mismatch(MismatchKind.LEFT, f"not what the job has since checkpoint {missing}", sentence)
        had = f"up to checkpoint {self.published}" if self.published > NEVER else "before the first checkpoint"
        sentence = f"has what was published {had}, but checkpoint {missing} was published as well"
        return Mismatch(MismatchKind.BEHIND, f"behind: lacks checkpoint {missing}", sentence)

    def _stuck(self, last: Checkpoint) -> Mismatch | None:
        """Return the mismatch of a sink that lacks files to follow the last checkpoint, a restore; None if it has all."""
        if self._table is None:
            return None
        store = sink_of(self._config, self.sink).store
        needed = store.at(self._history.version_of(self._lineage)).files()
        lost = sorted(needed - JobFolder.of(self._config).at(store.uri).files())
        if not lost:
            return None
        return Mismatch(
            MismatchKind.STUCK,
            f"files of checkpoint {last.restored_from} are gone",
            f"cannot follow: checkpoint {last.checkpoint_id} takes the job back to checkpoint {last.restored_from}, and the sink has lost "
            f"files of that time since, such as {lost[0]}",
        )

    def _unpublished(self, last: Checkpoint) -> Mismatch | None:
        """Return the mismatch of a sink that lacks only the last checkpoint; None if its staged files exist."""
        lost = sink_of(self._config, self.sink).lost_files(last.outputs.get(self.sink, []))
        if not lost:
            return None
        number = last.checkpoint_id
        return Mismatch(
            MismatchKind.UNPUBLISHED,
            f"staged files of checkpoint {number} are gone",
            f"lacks checkpoint {number}, which is not published, and cannot be: staged file {lost[0]}",
        )


def _has_publication(table: Snapshot) -> bool:
    return any(commit.info.checkpoint_id is not None for commit in table.history())


def check_sinks(
    config: JobConfig,
    checkpoints: Sequence[Checkpoint],
    opened: Mapping[str, Sink] | None = None,
    *,
    restores: bool = False,
) -> bool:
    """Raise `SinkMismatchError` if job and sinks disagree; return whether the last checkpoint can be published.

    `opened` are the sinks that the caller has opened. With `restores`, a sink may have lost publications (the result is
    False then): a restore to a checkpoint that the sink has repairs it.
    """
    positions = [SinkPosition(config, sink, checkpoints, (opened or {}).get(sink)) for sink in sorted(config.sinks)]
    mismatched = [position for position in positions if position.mismatch is not None]
    for position in sorted(mismatched, key=SinkPosition.mends_by_restore):
        if not restores or not position.mends_by_restore():
            raise SinkMismatchError(position.problem())
    return not mismatched


@dataclass(frozen=True, slots=True)
class SentMessages:
    """Last checkpoint that a sink has sent, and last one with rows for it; `NEVER` for none."""

    sink: str
    place: str
    sent: int
    last: int

    @property
    def is_behind(self) -> bool:
        """Return whether rows wait to be sent."""
        return self.sent < self.last

    def __str__(self) -> str:
        """Return the progress as text for people."""
        if not self.is_behind:
            return "all is sent" if self.sent > NEVER else "nothing was to be sent yet"
        sent = f"sent up to checkpoint {self.sent} of {self.last}" if self.sent > NEVER else "nothing is sent"
        return f"{sent}; the next run sends the rest"


def sent_messages(config: JobConfig, checkpoints: Sequence[Checkpoint]) -> Iterator[SentMessages]:
    """Yield the progress of each sink that sends messages. Raises `StorageError` when an outbox cannot be read."""
    for name, bound in sorted(config.sinks.items()):
        if bound.kind.sends_messages:
            sink = sink_of(config, name)
            try:
                sent = sink.sent(sink.latest())
            except TableMissingError:
                sent = NEVER
            last = max(
                (checkpoint.checkpoint_id for checkpoint in checkpoints if checkpoint.outputs.get(name)), default=NEVER
            )
            yield SentMessages(name, bound.place, sent, last)
