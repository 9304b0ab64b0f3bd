"""Publishing: write a committed checkpoint's outputs to its sinks, idempotently.

Every publication has the transaction (job and sink, checkpoint id): publishing a checkpoint again does nothing. It also has the
checkpoint's id in the commit's information: a restore finds the version that belongs to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from headrace import crash_points
from headrace.config import JobConfig
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import SinkSchemas
from headrace.log.facts import Promoted
from headrace.log.lineage import Lineage
from headrace.log.sink_history import claim_of, foreign_owner, names_of_owner, version_at_fork, version_of
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NEVER, NO_WRITERS, Delivery, Publication, Sink, SparkWriters
from headrace.sinks.table_fit import Staging
from headrace.storage.refusals import doing
from headrace.storage.table import Claim, Correction, Snapshot, TableMissingError, VersionTakenError


class SinkStatus(NamedTuple):
    """Position of a sink: the version of its table, and the last checkpoint that was published to it (None without one)."""

    version: int
    checkpoint: int | None


class Publisher:
    """Sinks of one job, to publish to."""

    def __init__(self, config: JobConfig, schemas: SinkSchemas, writers: SparkWriters = NO_WRITERS) -> None:
        """`schemas` has the Arrow schema and the primary key of each sink."""
        self._config, self._writers = config, writers
        self._sinks: Mapping[str, Sink] = {
            name: sink_of(config, name, schema, keys, writers) for name, (schema, keys) in sorted(schemas.items())
        }

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """Return the sinks by name."""
        return self._sinks

    def writing(self, schemas: SinkSchemas) -> Publisher:
        """Return a publisher that writes the sinks with other columns."""
        return Publisher(self._config, schemas, self._writers)

    def check_columns(self, recorded: SinkSchemas) -> None:
        """Raise `ConfigError` for sinks whose existing tables do not fit the pipeline's columns. `recorded` are those written so far."""
        if problems := [*self.column_problems(recorded)]:
            raise ConfigError("\n".join(problems))

    def column_problems(self, recorded: SinkSchemas) -> Iterator[str]:
        """Yield a sentence for each sink whose existing table does not fit the columns that the pipeline writes."""
        for name, sink in self._sinks.items():
            yield from sink.column_problems(recorded[name][0].names if name in recorded else ())

    def stagings(self) -> dict[str, Staging]:
        """Return how tasks stage rows, by sink, so that they fit the tables as they are now."""
        return {name: self._sinks[name].staging(table) for name, table in self.tables().items()}

    def needs_spark(self) -> Iterator[str]:
        """Yield a sentence for each sink whose table only Spark can write."""
        for name, table in self.tables().items():
            if features := self._sinks[name].needs_spark(table):
                yield f"sink '{name}': only Spark can write the table at {self._sinks[name].uri}: it has {', '.join(features)}"

    def unfit(self) -> set[str]:
        """Return the sinks whose tables are missing, or have other columns than these."""
        there = self.tables()
        return {name for name, sink in self._sinks.items() if name not in there or [*sink.column_problems()]}

    def new_columns(self) -> dict[str, pa.Schema]:
        """Return the columns that the next publication adds, by sink. Raises `StorageError` when a sink cannot be read."""
        columns_by_sink = {name: sink.new_columns() for name, sink in self._sinks.items()}
        return {name: columns for name, columns in columns_by_sink.items() if len(columns)}

    def check_places(self) -> None:
        """Raise `SinkMismatchError` for a missing sink that must not be created at its location."""
        if problems := [*filter(None, (sink.place_problem() for sink in self._sinks.values()))]:
            raise SinkMismatchError("\n".join(problems))

    def check_rules(self, tables: Mapping[str, Snapshot]) -> None:
        """Raise `SinkMismatchError` for sinks whose tables refuse each write of them. `tables` are those of the sinks, by name."""
        if problems := [*self.rule_problems(tables)]:
            raise SinkMismatchError("\n".join(problems))

    def tables(self) -> dict[str, Snapshot]:
        """Return the latest version of each sink's table, by the sink's name; missing tables are left out."""
        tables = {}
        for name, sink in self._sinks.items():
            with suppress(TableMissingError):
                tables[name] = sink.latest()
        return tables

    def rule_problems(self, tables: Mapping[str, Snapshot]) -> Iterator[str]:
        """Yield a sentence for each sink whose table refuses each write of it."""
        for name, table in tables.items():
            sink = self._sinks[name]
            if (rule := sink.rule_problem(table)) is not None:
                yield (
                    f"the table of sink '{sink.name}' at {sink.uri} has the rule {rule}, and a merge updates rows. Nothing was taken in. "
                    f"{_ways_on(sink, self._config.job)}"
                )

    def create_sinks(self, lineage: Lineage) -> dict[str, Snapshot]:
        """Create missing sinks, and claim all that have no owner; return their tables, by the sinks' names.

        Raises `SinkMismatchError` when another job has claimed one meanwhile, and `StorageError` when a sink cannot be created or
        read. Jobs claim tables in one order, so that of two jobs with the same ones, one gets all of them.
        """
        tables = {}
        for sink in sorted(self._sinks.values(), key=lambda sink: sink.uri):
            claim = claim_of(self._config, sink.name, lineage)
            # Its version is taken where another job has created it meanwhile.
            with suppress(VersionTakenError):
                sink.create(claim)
            crash_points.reached("claim.created")
            tables[sink.name] = _claimed(sink, claim)
        return tables

    def statuses(self) -> dict[str, SinkStatus]:
        """Return the position of each sink, except missing or unreadable sinks."""
        statuses = {}
        for name, sink in self._sinks.items():
            with suppress(TableMissingError, StorageError):
                table = sink.latest()
                published = sink.published(table)
                statuses[name] = SinkStatus(table.version, None if published == NEVER else published)
        return statuses

    def publish(self, checkpoint: Checkpoint, lineage: Lineage) -> int:
        """Bring all sinks up to `checkpoint`, the head of `lineage`; return the number of sinks written.

        Raises `SinkMismatchError` when a sink's table has a rule that rows break, and `StorageError` when its storage refuses.
        """
        written = 0
        for position, sink in enumerate(self._sinks.values()):
            if position == 1:
                crash_points.reached("publish.half")
            try:
                written += _publish(sink, checkpoint, lineage, claim_of(self._config, sink.name, lineage))
            except SinkMismatchError as error:
                if not error.is_refusal:
                    raise
                raise SinkMismatchError.of_refusal(self._refusal(sink, checkpoint, error.__cause__)) from error
            _deliver(sink, checkpoint, lineage)
        return written

    def _refusal(self, sink: Sink, checkpoint: Checkpoint, reason: BaseException | None) -> str:
        number, job = checkpoint.checkpoint_id, self._config.job
        rules = "; ".join(sink.rules(_open(sink))) or "none that Headrace knows"
        back = "" if checkpoint.parent_id is None else f"headrace restore {job} --to {checkpoint.parent_id} --why ..."
        return (
            f"sink '{sink.name}' at {sink.uri} refused the rows of checkpoint {number}: {reason}\nRules of the table: {rules}. Nothing was "
            f"written to this sink. The checkpoint is committed, and the next run publishes it first. {_ways_on(sink, job)} To take the "
            f"input in again, by other code: {back}"
        )


def _claimed(sink: Sink, claim: Claim | None) -> Snapshot:
    """Return the latest version of a sink's table, which belongs to the claim's owner. Commits the claim if nobody owns it.

    Without a claim, the job is a branch. Raises `SinkMismatchError` when the table belongs to another owner.
    """
    while True:
        table = _open(sink)
        if claim is None or sink.owner(table) == claim.owner:
            return table
        _refuse_other_owner(sink, table, claim)
        with suppress(VersionTakenError):
            sink.claim(table, claim)


def _refuse_other_owner(sink: Sink, table: Snapshot, claim: Claim | None) -> None:
    """Raise `SinkMismatchError` for a table that another job has claimed, or taken over, while this one runs."""
    if claim is not None and (owner := foreign_owner(sink, table, claim)) is not None:
        msg = (
            f"sink '{sink.name}' at {sink.uri} belongs to {names_of_owner(table, owner, claim.job)}, which has claimed the table meanwhile. "
            f"Nothing was written to it. Give the sink another path, or run 'headrace check {claim.job}' for the ways out."
        )
        raise SinkMismatchError(msg)


def _publish(sink: Sink, checkpoint: Checkpoint, lineage: Lineage, claim: Claim | None) -> bool:
    """Bring a sink up to a checkpoint; return whether it had to be written. `claim` is the job's, None on a branch."""
    number = checkpoint.checkpoint_id
    publication = Publication(number, checkpoint.incarnation, lineage.ancestors, _correction(checkpoint, sink, claim))
    if not checkpoint.outputs.get(sink.name) and checkpoint.kind not in {Kind.RESTORE, Kind.PROMOTION}:
        return False
    table = _claimed(sink, claim)
    _refuse_sink_of_another(sink, table, checkpoint, lineage)
    if sink.published(table) >= number:
        _sync(sink, table)
        return False
    try:
        with doing(f"checkpoint {number} in sink '{sink.name}' at {sink.uri}", _is_committed(number)):
            sink.sync_commits(table)
            files = checkpoint.outputs.get(sink.name, [])
            if checkpoint.kind is Kind.RESTORE:
                sink.restore(table, version_of(table, sink.name, lineage), publication)
            elif checkpoint.kind is Kind.PROMOTION and sink.only_appends:
                sink.rewind(table, version_at_fork(table, sink.name, lineage), files, publication)
            elif files:
                sink.write(table, files, publication)
            table = sink.latest()
            _refuse_other_owner(sink, table, claim)
            _refuse_sink_of_another(sink, table, checkpoint, lineage)
            # A MERGE that changes nothing makes no commit, and Spark's MERGE records one transaction only.
            # Another run may have published later checkpoints meanwhile: the recorded id never decreases.
            published = sink.published(table)
            if published < number or (published == number and sink.incarnation(table) != publication.incarnation):
                sink.record(table, publication)
    except VersionTakenError as error:
        table = _open(sink)
        _refuse_other_owner(sink, table, claim)
        _refuse_sink_of_another(sink, table, checkpoint, lineage)
        if sink.published(table) < number:
            msg = (
                f"sink '{sink.name}' at {sink.uri} refused checkpoint {number}, since somebody else wrote to it meanwhile: {error}. "
                "The checkpoint is committed, and the next run publishes it first: run again when the other writer is done."
            )
            raise StorageError(msg) from error
        _sync(
            sink, table
        )  # another run has published this checkpoint meanwhile; or this run has, but did not receive the answer
    return True


def _correction(checkpoint: Checkpoint, sink: Sink, claim: Claim | None) -> Correction | None:
    """Return what a promotion corrects in a sink, for jobs that read it; None for other checkpoints."""
    cause = checkpoint.cause
    if not isinstance(cause, Promoted) or claim is None:
        return None
    return Correction(
        claim.job, checkpoint.checkpoint_id, cause.start, cause.end, cause.partitions.get(sink.name), cause.is_ahead
    )


def _is_committed(number: int) -> str:
    return f"Checkpoint {number} is committed, and the next run publishes it first"


def _ways_on(sink: Sink, job: str) -> str:
    return (
        f"Drop the rule from the table (ALTER TABLE), and run again. Or go on without this table: give the sink another path "
        f"(sinks.{sink.name}.path), and 'headrace reconcile {job} --apply' fills it from the start; or take the sink out of the pipeline and "
        "of the job's file."
    )


def _deliver(sink: Sink, checkpoint: Checkpoint, lineage: Lineage) -> None:
    """Deliver the content of the sink's table to its readers."""

    def behind(number: int) -> list[Delivery]:
        led_here = {later.checkpoint_id for later in lineage.checkpoints}
        return [
            Delivery(
                Publication(later.checkpoint_id, later.incarnation),
                later.outputs[sink.name],
                later.checkpoint_id in led_here,
            )
            for later in lineage.behind(number)
            if later.checkpoint_id <= checkpoint.checkpoint_id and later.outputs.get(sink.name)
        ]

    crash_points.reached("deliver.before")
    try:
        with doing(
            f"to deliver checkpoint {checkpoint.checkpoint_id} to the readers of sink '{sink.name}' at {sink.uri}",
            _is_committed(checkpoint.checkpoint_id),
        ):
            sink.deliver(behind)
    except TableMissingError as error:
        raise _gone(sink) from error


def _refuse_sink_of_another(sink: Sink, table: Snapshot, checkpoint: Checkpoint, lineage: Lineage) -> None:
    """Raise `SinkMismatchError` for a sink that another incarnation of the job has written.

    The job and its sinks may have been reconciled while this run continued with an abandoned copy. Its checkpoints
    may have higher ids than the sink's, so ids alone would let it publish. A restore may take over a sink of an
    earlier incarnation of its own job, and a reconciliation any sink: both bring it to a version that the job has
    published.
    """
    incarnation = sink.incarnation(table)
    own, number = checkpoint.incarnation, checkpoint.checkpoint_id
    if incarnation in {None, own}:
        return
    published = sink.published(table)
    is_own = incarnation in lineage.incarnations or lineage.begins_incarnation(checkpoint)
    if checkpoint.kind is Kind.RESTORE and is_own and published < number:
        return
    msg = (
        f"sink '{sink.name}' at {sink.uri} has checkpoint {published} of another copy of the job (incarnation {incarnation:x}, not "
        f"{own:x}): it was reconciled with that copy, or brought back. Checkpoint {number} was not published to it. "
        f"'headrace reconcile {sink.job}' shows how job and sinks can be brought together."
    )
    raise SinkMismatchError(msg)


def _sync(sink: Sink, table: Snapshot) -> None:
    """Make what is published survive a power failure. A file that is gone by then was deleted by somebody else."""
    with doing(f"to look for what is published in sink '{sink.name}' at {sink.uri}", _lost_files(sink)):
        sink.sync(table)


def _lost_files(sink: Sink) -> str:
    return (
        "What was committed is untouched. Where a file of the sink is gone for good, move the table away: 'headrace reconcile "
        f"{sink.job} --apply --why ...' then fills a new one from the next run on"
    )


def _open(sink: Sink) -> Snapshot:
    try:
        return sink.latest()
    except TableMissingError as error:
        raise _gone(sink) from error


def _gone(sink: Sink) -> SinkMismatchError:
    msg = f"the table of sink '{sink.name}' at {sink.uri} disappeared after the job was opened. Bring it back, then run again."
    return SinkMismatchError(msg)
