"""Promotion: state and sinks of a branch become those of the job, in one commit.

    log of the job       0 --- 1 --- 2 --- 3 --- 4       5, 6, 7 promotion --- 8
                                     |                   |
                                     +-------------------+
    log of the branch                2 --- 3 fork --- 4 --- 5                      forked at 2

The lineage of the promotion goes back to the fork through copies of the branch's checkpoints (5 and 6). Their ids are those on the branch,
shifted by the number of checkpoints that the job had made since the fork. They have no state of their own. The job's own checkpoints
since the fork (3 and 4) are no longer on the lineage; restoring one of them undoes the promotion.

    claim      take the job's lease, then that of the branch
    refuse     raise errors if the promotion would lose changes: see `Promotion.refuse_unless_safe`
    begin      mark the branch with this attempt
    stage      stage the branch's rows, with their new ids, and files for the sinks
    prepare    take each state table back to the fork, and add the branch's rows
    commit     commit the branch's checkpoints and the promotion to `checkpoints`, at once. The promotion counts from here on
    publish    publish to the sinks like any checkpoint
    remove     remove the branch with its tables

A crash before the commit leaves tables ahead of the last checkpoint; the next fence undoes that. After a crash behind the commit, the
next opening of the job publishes and removes.

Sinks of a promotion: stage files before its commit, to be published like those of any checkpoint.

An append sink gets the rows of the branch; its publication removes the rows that the job has added since the fork. A merge sink gets
changes of the primary keys that either lineage has written since the fork:

    rows of the branch        as the branch has them
    rows of the job           as the sink had them at the fork, unless the branch has written the key; deleted if it had none
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace import clock, crash_points
from headrace.commit.branch_code import (
    check_forked,
    code_differences,
    differences_to_file,
    listed,
    on_branch,
    runs_in,
    uncompared_code,
)
from headrace.commit.job_tables import Versions
from headrace.commit.protocol import OpenJob, open_job, sinks_of
from headrace.commit.restore_check import RestoreCheck
from headrace.config import JobConfig
from headrace.edits.edit import Rewrite
from headrace.edits.fork import WITHOUT_STATE, linked, log_of
from headrace.edits.waiting import DUE_NOW
from headrace.errors import ConfigError, FencedError, SinkMismatchError
from headrace.log.branches import Branch, Branches, finish_promotion
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import to_schemas
from headrace.log.facts import Edited, Promoted
from headrace.log.intervals import position_of
from headrace.log.lease import Notify, silent
from headrace.log.lineage import Lineage
from headrace.sinks.layout import folders_of
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NO_WRITERS, OUTPUTS, OutputFile, SparkWriters
from headrace.sources.interval import timestamp_text
from headrace.storage.delta_commits import APPEND_ONLY
from headrace.storage.file_rows import partition_of, rows_of_files
from headrace.storage.files import StagedFile, partition_text
from headrace.storage.overlay import DELETED, OverlaySnapshot, own_rows, without
from headrace.storage.refusals import doing
from headrace.storage.storage import Storage
from headrace.storage.table import ROW_KIND, Snapshot, TableMissingError
from headrace.tables.schemas import tables_in

_ROW: Final = "_row"


def promoted_sinks(job: OpenJob, own: OpenJob, checkpoint_id: int) -> dict[str, list[OutputFile]]:
    """Stage the files of a promotion, by sink. `own` is the open branch, `checkpoint_id` the promotion's."""
    outputs = {}
    for name, table in own.last.sink_tables.items():
        if name not in job.config.sinks:
            continue
        with doing(f"to read sink '{name}' of branch '{own.config.branch}'"):
            try:
                of_branch = own.folder.at(own.config.sinks[name].table_path).table().latest()
            except TableMissingError:
                continue
            written = to_schemas({name: table})[name]
            if job.config.sinks[name].mode == "append":
                outputs[name] = [*_added_files(job, name, of_branch, written, checkpoint_id)]
            else:
                outputs[name] = [*_changes_file(job, name, of_branch, written, checkpoint_id)]
    return outputs


def _added_files(
    job: OpenJob, name: str, of_branch: Snapshot, written: tuple[pa.Schema, tuple[str, ...]], checkpoint_id: int
) -> Iterator[OutputFile]:
    """Copy the files that a branch has added to a sink into the folder of the job's sink, or their rows into the job's folder."""
    folder = job.folder.at(sink_of(job.config, name).store.uri)
    own = own_rows(of_branch)
    staging = job.stagings[name]
    if not staging.in_table:
        rows = own.read(_written_columns(of_branch, written))
        staged = job.folder.stage(f"{OUTPUTS}/{name}/{_file_name(job, name, checkpoint_id)}", rows)
        yield OutputFile(staged.path, staged.rows, staged.size, apart=True)
        return
    for number, action in enumerate(own.add_actions().to_pylist()):
        rows = folder.at(own.uri).parquet(unquote(action["path"]))
        values = partition_of(action)
        partition = {column: values[column] for column in of_branch.partition_columns}
        path = f"{folders_of(partition)}{_file_name(job, name, checkpoint_id, number)}"
        staged = folder.stage(path, rows)
        yield OutputFile(staged.path, staged.rows, staged.size, partition, staging.form)


def _written_columns(of_branch: Snapshot, written: tuple[pa.Schema, tuple[str, ...]]) -> pa.Schema:
    """Return the columns of a table that the job writes: others stay as they are."""
    return pa.schema([column for column in of_branch.schema if column.name in written[0].names])


def changed_partitions(job: OpenJob, own: OpenJob) -> dict[str, tuple[dict[str, str | None], ...]]:
    """Return the partitions of append sinks whose rows differ on a branch, by sink. A sink is left out where that is unknown, or many do.

    Jobs that read such a sink compute only these again. `own` is the open branch.
    """
    partitions = {}
    for name, table in own.last.sink_tables.items():
        if name not in job.config.sinks or job.config.sinks[name].mode != "append":
            continue
        with suppress(TableMissingError):
            of_branch = own.folder.at(own.config.sinks[name].table_path).table().latest()
            live = job.folder.at(job.config.sinks[name].table_path).table().latest()
            changed = _changed_partitions(live, of_branch, to_schemas({name: table})[name][0], job.folder)
            if changed is not None and len(changed) <= _MOST_PARTITIONS:
                partitions[name] = changed
    return partitions


_MOST_PARTITIONS: Final = 1_000
"""Most partitions that a commit names: with more, all count as changed."""


def _changed_partitions(
    live: Snapshot, of_branch: Snapshot, written: pa.Schema, storage: Storage
) -> tuple[dict[str, str | None], ...] | None:
    """Return the partitions that have other rows on a branch; None where they cannot be compared."""
    base = of_branch.base if isinstance(of_branch, OverlaySnapshot) else None
    by, schema = of_branch.partition_columns, pa.schema([own for own in of_branch.schema if own.name in written.names])
    is_plain = live.form.has_plain_files and (base is None or base.form.has_plain_files)
    if not is_plain or not by or any(pa.types.is_nested(own.type) for own in schema):
        return None
    added = live.files() - (base.files() if base is not None else set())
    sides = [(rows_of_files(live, added, schema, storage), 1), (own_rows(of_branch).read(schema), -1)]
    counted_rows = [rows.append_column(_ROW, pa.repeat(pa.scalar(count), len(rows))) for rows, count in sides]
    sums = pa.concat_tables(counted_rows).group_by(schema.names, use_threads=False).aggregate([(_ROW, "sum")])
    differing = sums.filter(pc.not_equal(sums[f"{_ROW}_sum"], 0)).select(by)
    values = differing.group_by(by, use_threads=False).aggregate([]).sort_by([(name, "ascending") for name in by])
    return tuple({name: partition_text(row[name]) for name in by} for row in values.to_pylist())


def _changes_file(
    job: OpenJob, name: str, of_branch: Snapshot, written: tuple[pa.Schema, tuple[str, ...]], checkpoint_id: int
) -> Iterator[OutputFile]:
    """Stage changes that make a merge sink of the job equal to the branch's; nothing if both are equal."""
    live = job.folder.at(job.config.sinks[name].table_path).table().latest()
    changes = _changes(live, of_branch, _written_columns(of_branch, written), [*written[1]], job.folder)
    if len(changes):
        path = f"{OUTPUTS}/{name}/{_file_name(job, name, checkpoint_id)}"
        staged = job.folder.stage(path, changes)
        yield OutputFile(staged.path, staged.rows, staged.size)


def _file_name(job: OpenJob, name: str, checkpoint_id: int, number: int = 0) -> str:
    return f"{checkpoint_id:010d}-{name}-promotion-{number}-{job.attempt_id[:12]}-{clock.unique_id()[:12]}.parquet"


def _changes(live: Snapshot, of_branch: Snapshot, schema: pa.Schema, key: list[str], storage: Storage) -> pa.Table:
    """Return changes by primary key that make `live` equal to the table of the branch, in the columns of `schema`.

    Reads only files that are not in both tables: they have all differences, unless one path can have other rows in each.
    """
    base = of_branch.base if isinstance(of_branch, OverlaySnapshot) else None
    own = own_rows(of_branch)
    written = own.read(pa.schema([*schema, pa.field(DELETED, pa.bool_())])) if base is not None else own.read(schema)
    if live.form.has_plain_files and (base is None or base.form.has_plain_files):
        common = live.files() & (base.files() if base is not None else set())
        now = rows_of_files(live, live.files() - common, schema, storage)
        then = rows_of_files(base, base.files() - common, schema, storage) if base is not None else schema.empty_table()
    else:
        now, then = live.read(schema), base.read(schema) if base is not None else schema.empty_table()
    if base is None:
        kept = written
    else:
        is_deleted = pc.fill_null(written[DELETED], fill_value=False)
        kept = written.filter(pc.invert(is_deleted)).select(schema.names)
    target = pa.concat_tables([kept, without(then, written.select(key))])
    deleted_keys = pa.concat_tables([now.select(key), written.select(key)])
    deleted_keys = without(deleted_keys.group_by(key, use_threads=False).aggregate([]), target.select(key))
    return pa.concat_tables(
        [_with_kind(_unequal(target, now, key), "+U"), _with_kind(_padded(deleted_keys, schema), "-D")]
    )


def _unequal(rows: pa.Table, others: pa.Table, key: list[str]) -> pa.Table:
    """Return the rows that `others` lacks or has with other values. `others` has one row for each key."""
    numbered = rows.select(key).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    theirs = others.select(key).append_column("_other", pa.array(range(len(others)), pa.int64()))
    pairs = numbered.join(theirs, keys=key, join_type="left outer", use_threads=False).sort_by(_ROW)
    is_same = pc.is_valid(pairs["_other"])
    beside = others.take(pairs["_other"].combine_chunks())
    for column in rows.schema.names:
        is_same = pc.and_(is_same, _equal(rows[column], beside[column]))
    return rows.filter(pc.invert(is_same))


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray | pa.BooleanArray:
    """Return a mask of the rows where two columns have the same value; null equals null."""
    if pa.types.is_nested(left.type):
        return pa.array([value == other for value, other in zip(left.to_pylist(), right.to_pylist(), strict=True)])
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), fill_value=False), both_null)


def _padded(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the keys as rows of a schema, with null in all other columns."""
    columns = [
        keys[column.name].cast(column.type) if column.name in keys.schema.names else pa.nulls(len(keys), column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names)


def _with_kind(rows: pa.Table, kind: str) -> pa.Table:
    names: Sequence[str] = [*rows.schema.names, ROW_KIND]
    return pa.Table.from_arrays([*rows.columns, pa.repeat(pa.scalar(kind), len(rows))], names=names)


_LEAVES_ROWS: Final = frozenset(
    {
        Kind.BATCH,
        Kind.REQUEUE,
        Kind.COMPACTION,
        Kind.SAVEPOINT,
        Kind.SAVEPOINT_DROP,
        Kind.VACUUM,
        Kind.RESTORE,
        Kind.ACKNOWLEDGEMENT,
    }
)
"""Kinds of checkpoints since the fork that a branch may lack: it takes in the same input, or they change no state."""


@contextmanager
def promoting(
    config: JobConfig, name: str, run_id: str, *, writers: SparkWriters = NO_WRITERS, notify: Notify = silent
) -> Iterator[Promotion]:
    """Claim a job for the length of the block, to promote a branch in it; publish its last checkpoint first. The branch may still run.

    Raises `ConfigError` when the job has no such branch, or its fork was interrupted, `FencedError` while a run holds the job, and the errors of `open_job`.
    """
    branch_config = on_branch(config, name)
    with open_job(config, run_id, writers=writers, notify=notify) as job:
        branch = Branches(config).get(name)  # another run may have promoted or dropped it meanwhile
        check_forked(branch_config)
        yield Promotion(job, branch_config, branch)


def settle_promotion(config: JobConfig, name: str, run_id: str) -> None:
    """Publish and end a promotion that was committed and then interrupted. Raises the errors of `open_job`."""
    last = log_of(config).last
    if last is None or last.kind is not Kind.PROMOTION or last.name != name:
        return
    if Branches(config).promoted_by(last) is not None:
        with open_job(config, run_id):
            pass


@dataclass(frozen=True, slots=True)
class Promotion:
    """Promotion of a branch of a claimed job."""

    job: OpenJob
    on_branch: JobConfig
    branch: Branch

    @property
    def is_behind(self) -> bool:
        """Return whether the job has taken in input that the branch lacks."""
        return bool(behind(self._origin_lineage(), log_of(self.on_branch).lineage.checkpoints))

    @property
    def uncompared_code(self) -> str | None:
        """Return a sentence if the code cannot be compared with that of the branch; see `uncompared_code`."""
        return uncompared_code(self.job.config, self.branch)

    def promote(self, why: str | None = None, *, allow_other_code: bool = False) -> Checkpoint:
        """Make state and sinks of the branch those of the job, and remove the branch; return the checkpoint of the promotion.

        With `allow_other_code`, source files and packages may differ from those of the branch's runs.

        Raises `ConfigError` when the job has taken in input that the branch lacks, when the job has other code, or its file other
        settings, than the branch's runs, when the branch does not begin on the job's lineage, and when somebody changed the job's
        state by hand since the fork; `SinkMismatchError` when somebody else has written to a sink since the fork; `StorageError` when
        files of the fork are gone; `FencedError` while a run holds the branch, or takes it meanwhile. Nothing has changed then.
        """
        with open_job(self.on_branch, self.job.run_id) as own:
            self.refuse_unless_safe(own, allow_other_code=allow_other_code)
            if not allow_other_code:
                self._refuse_other_code(own)
            self.job.write_sinks_as(sinks_of(self.on_branch, own.log))
            Branches(self.job.config).begin_promotion(self.branch.name, self.job.attempt_id)
            crash_points.reached("promotion.begun")
            promoted = self._commit(own, why)
        finish_promotion(self.job.config, promoted)
        return promoted

    def refuse_unless_safe(self, own: OpenJob, *, allow_other_code: bool = False) -> None:
        """Raise the errors of `promote`. Writes nothing."""
        job, name = self.job.config.job, self.branch.name
        lineage, origin = self._origin_lineage(), self._origin
        again = _edited_again(lineage, own)
        by_hand = next((c for c in lineage if self._would_lose(c) and c.checkpoint_id not in again), None)
        if by_hand is not None:
            way_out = (
                f"Make the same edit on the branch (--branch {name}), and promote it then. Or: "
                if by_hand.kind is Kind.EDIT
                else ""
            )
            msg = (
                f"branch '{name}' cannot be promoted: checkpoint {by_hand.checkpoint_id} has changed the state of job '{job}' since the "
                f"fork ({by_hand.kind.value}{f': {by_hand.note}' if by_hand.note else ''}), and would be lost. Nothing was changed. "
                f"{way_out}{_anew(job, name)}"
            )
            raise ConfigError(msg)
        if own.last.format_version != origin.format_version:
            msg = (
                f"branch '{name}' cannot be promoted: its state has format {own.last.format_version}, and that of its fork has format "
                f"{origin.format_version}. Nothing was changed. {_anew(job, name)}"
            )
            raise ConfigError(msg)
        self._refuse_new_columns(own)
        check = RestoreCheck(self.job.config, self.job.checkpoints, self.branch.sinks)
        check.refuse_unless_restorable(origin)
        for sink, version in self.branch.sinks.items():
            if others := check.histories[sink].others_since(version):
                msg = (
                    f"branch '{name}' cannot be promoted: somebody else has written to sink '{sink}' at "
                    f"{self.job.config.sinks[sink].path} since the fork (version {others[0]}), and that would be lost. Nothing was changed. "
                    f"{_anew(job, name)}"
                )
                raise SinkMismatchError(msg)
            table = check.histories[sink].table
            if table is not None and APPEND_ONLY in table.rules:
                msg = (
                    f"branch '{name}' cannot be promoted: the table of sink '{sink}' at {table.uri} has the rule {APPEND_ONLY}, and a promotion "
                    "takes rows away. Nothing was changed. Drop the rule from the table (ALTER TABLE), and promote again."
                )
                raise SinkMismatchError(msg)
        if missing := behind(lineage, own.lineage.checkpoints):
            msg = (
                f"branch '{name}' is behind: job '{job}' has taken in more input ({listed(missing)}). Nothing was changed. Let the branch take "
                f"it in ({catch_up_call(self.job.config, self.branch)}), then promote it. If its last file is gone, put an empty one in "
                f"its place: nothing tells a file that is gone for good from one that is still to come.{_about_topics(self.job.config)}"
            )
            raise ConfigError(msg)
        self._refuse_other_settings(own, allow_other_code=allow_other_code)

    def _refuse_other_settings(self, own: OpenJob, *, allow_other_code: bool) -> None:
        config, branch, lineage = (
            self.job.config,
            Branches(self.job.config).get(self.branch.name),
            own.lineage.checkpoints,
        )
        if differences := differences_to_file(config, branch, lineage, allow_other_code=allow_other_code):
            bring_back = "" if runs_in(branch, lineage) else f"Write into {config.file} what the branch ran with, or "
            anew = f"{bring_back}compute the branch anew with what the file says: {_compute_anew(config, branch)}"
            msg = (
                f"branch '{branch.name}' cannot be promoted, since the job's next run would go on with other code or settings than the branch "
                f"had: {'; '.join(differences)}. Nothing was changed. {anew[0].upper()}{anew[1:]}."
            )
            raise ConfigError(msg)

    def _refuse_new_columns(self, own: OpenJob) -> None:
        """Raise `ConfigError` if the job has added a column to a sink since the fork, and the branch has not."""
        of_job, of_branch = (to_schemas(lineage.last.sink_tables) for lineage in (self.job, own))
        for sink in sorted(of_job.keys() & of_branch.keys()):
            if added := [name for name in of_job[sink][0].names if name not in of_branch[sink][0].names]:
                msg = (
                    f"branch '{self.branch.name}' cannot be promoted: sink '{sink}' of job '{self.job.config.job}' got the column "
                    f"{', '.join(added)} since the fork, and the branch's rows do not have it. Nothing was changed. Drop the branch, fork "
                    "it anew, and run it with the job's code of today."
                )
                raise ConfigError(msg)

    def _refuse_other_code(self, own: OpenJob) -> None:
        config, name = self.job.config, self.branch.name
        branch = Branches(config).get(name)
        if differences := code_differences(config, branch, own.lineage.checkpoints):
            msg = (
                f"branch '{name}' cannot be promoted: the code of job '{config.job}' is not what the branch ran with: "
                f"{listed(differences)}. Nothing was changed. Bring the former code back, or compute the branch anew: "
                f"{_compute_anew(config, branch)}. If the difference does no harm, promote it with --allow-other-code."
            )
            raise ConfigError(msg)

    def _would_lose(self, checkpoint: Checkpoint) -> bool:
        """Return whether the branch lacks the change that a checkpoint of the job after the fork has made.

        Checkpoints of an earlier promotion took in input, which the branch takes in as well.
        """
        is_input = checkpoint.kind is Kind.PROMOTION and checkpoint.checkpoint_id <= self.branch.made_at
        return not is_input and checkpoint.kind not in _LEAVES_ROWS

    @property
    def _origin(self) -> Checkpoint:
        return self.job.checkpoint(self.branch.fork_id)

    def _origin_lineage(self) -> list[Checkpoint]:
        """Return the job's lineage after the fork. Raises `ConfigError` when the fork is not on the lineage."""
        lineage = self.job.lineage.checkpoints
        ids = [checkpoint.checkpoint_id for checkpoint in lineage]
        if self.branch.fork_id not in ids:
            msg = (
                f"branch '{self.branch.name}' cannot be promoted: it begins at checkpoint {self.branch.fork_id}, which job "
                f"'{self.job.config.job}' has left behind since, by a restore or another promotion. Nothing was changed. "
                f"{_anew(self.job.config.job, self.branch.name)}"
            )
            raise ConfigError(msg)
        return lineage[ids.index(self.branch.fork_id) + 1 :]

    def _commit(self, own: OpenJob, why: str | None) -> Checkpoint:
        job, head = self.job, own.last
        shift = job.last.checkpoint_id - self.branch.fork_id
        brought = self._brought(own, shift)
        number = head.checkpoint_id + shift + 1
        staged = _stage_rows(job, own, shift)
        outputs = promoted_sinks(job, own, number)
        crash_points.reached("promotion.staged")
        self._confirm(own)
        origin = self._origin
        changed = {name: version for name, version in origin.versions.items() if job.last.versions[name] != version}
        versions: Versions = job.restore_tables(changed)
        versions = job.add_to_tables(staged, versions)
        crash_points.reached("promotion.prepared")
        return job.commit(
            Kind.PROMOTION,
            versions=versions,
            before=brought,
            base=head.without_copies(),
            checkpoint_id=number,
            parent_id=brought[-1].checkpoint_id if brought else origin.checkpoint_id,
            restored_from=origin.checkpoint_id,
            name=self.branch.name,
            note=why,
            cause=self._cause(own),
            outputs=outputs,
            metrics=_metrics(brought, outputs),
        )

    def _cause(self, own: OpenJob) -> Promoted:
        """Return what jobs have to know that read the sinks: which input was computed again, and where rows differ."""
        start = position_of(Lineage(self.job.checkpoints, self.branch.fork_id).checkpoints)
        requested = self.branch.requested
        if requested is not None:
            start = requested.start if start is None else max(start, requested.start)
        is_ahead = bool(_missing_input(own.last, self.job.last))
        return Promoted(start, own.last.interval_end, changed_partitions(self.job, own), is_ahead)

    def _confirm(self, own: OpenJob) -> None:
        """Check that the branch was read at its last checkpoint: this process may have slept, and its lease may have ended.

        Raises `FencedError` when another run has taken the branch since, or somebody has removed it.
        """
        own.confirm_lease()
        named = [branch for branch in Branches(self.job.config).open if branch.name == self.branch.name]
        if [branch.run_id for branch in named] != [self.job.attempt_id]:
            msg = (
                f"lost branch '{self.branch.name}' of job '{self.job.config.job}' before it was promoted: it was dropped, forked anew or "
                "run meanwhile. Nothing was committed: run the command again."
            )
            raise FencedError(msg)

    def _brought(self, own: OpenJob, shift: int) -> list[Checkpoint]:
        """Return the branch's checkpoints since its fork that record input, as they go into the job's log."""
        incarnation = self.job.last.incarnation
        moved = (
            replace(
                checkpoint,
                checkpoint_id=checkpoint.checkpoint_id + shift,
                incarnation=incarnation,
                **WITHOUT_STATE,
            )
            for checkpoint in own.lineage.checkpoints
            if checkpoint.has_state
        )
        return linked(moved, parent_id=self.branch.fork_id)


def _metrics(brought: Sequence[Checkpoint], outputs: Mapping[str, Sequence[OutputFile]]) -> dict[str, int]:
    # Not `rows_in`: the brought checkpoints have it, and sums over a lineage would count the rows twice.
    return {
        "checkpoints": len(brought),
        "rows_brought": sum(checkpoint.metrics.get("rows_in", 0) for checkpoint in brought),
        "rows_out": sum(file.rows for files in outputs.values() for file in files),
    }


def _edited_again(lineage: Iterable[Checkpoint], own: OpenJob) -> set[int]:
    """Return the edits of the job since the fork that somebody has made on the branch, too: of the same state, by the same command."""
    on_branch = Counter(checkpoint.cause for checkpoint in own.lineage.checkpoints if checkpoint.kind is Kind.EDIT)
    again = set()
    for checkpoint in lineage:
        if isinstance(checkpoint.cause, Edited) and checkpoint.cause.command == f"calls {DUE_NOW}":
            again.add(checkpoint.checkpoint_id)
        elif checkpoint.kind is Kind.EDIT and on_branch[checkpoint.cause]:
            on_branch[checkpoint.cause] -= 1
            again.add(checkpoint.checkpoint_id)
    return again


def _anew(job: str, name: str) -> str:
    """Return the sentence for a branch that can never be promoted."""
    return f"Drop the branch ('headrace branch drop {job} {name}'), fork one at a later checkpoint, and run it."


def catch_up_call(config: JobConfig, branch: Branch) -> str:
    """Return the command that lets a branch take in what its job has taken in. `config` is the job's."""
    if branch.requested is not None:
        interval = f"--from {timestamp_text(branch.requested.start)} --to {timestamp_text(branch.requested.end)}"
        return f"headrace backfill {config.job} {interval} --name {branch.name}"
    mode = "" if config.mode == "caught_up" else " --mode caught-up"
    return f"headrace run {config.job} --branch {branch.name}{mode}"


def _compute_anew(config: JobConfig, branch: Branch) -> str:
    """Return the commands that compute a branch with the code and the settings that its job has today. `config` is the job's."""
    job, name, run = config.job, branch.name, catch_up_call(config, branch)
    if branch.requested is not None:
        return f"'{run} --renew'"
    return f"'headrace branch drop {job} {name}', 'headrace branch create {job} {name} --at {branch.fork_id}', then '{run}'"


def _about_topics(config: JobConfig) -> str:
    """Return a sentence on branches that cannot catch up; empty for a job that reads no topic."""
    has_topic = any(source.kind.has_partitions for source in config.sources.values())
    sentence = " A branch that has read a topic further than its job cannot repeat a later requeue: drop it, and fork one behind the requeue."
    return sentence if has_topic else ""


def behind(job: Sequence[Checkpoint], branch: Sequence[Checkpoint]) -> list[str]:
    """Return the input since the fork that the job has and a branch lacks, as text: sources, an interval, requeued rows.

    `job` is the job's lineage after the fork, `branch` the whole lineage of the branch.
    """
    if not job:
        return []
    missing = _missing_input(job[-1], branch[-1])
    repeated = {checkpoint.repeats for checkpoint in branch}
    missing += [
        f"what checkpoint {checkpoint.checkpoint_id} requeued"
        for checkpoint in job
        if checkpoint.requeues and checkpoint.checkpoint_id not in repeated
    ]
    return missing


def _missing_input(last: Checkpoint, own: Checkpoint) -> list[str]:
    """Return the input that one line has taken in at its `last` checkpoint and another at its `own` has not, as text."""
    missing = [f"source '{name}'" for name, facts in last.sources.items() if facts.is_ahead_of(own.sources.get(name))]
    return [*missing, *(["an interval"] if (last.interval_end or 0) > (own.interval_end or 0) else [])]


def _stage_rows(job: OpenJob, own: OpenJob, shift: int) -> Mapping[str, Sequence[StagedFile]]:
    """Stage the rows that a branch has written to the state tables, with the ids of its checkpoints in the job's log."""
    rewrites = [
        Rewrite(name, "promotion", own.view(name).own, lambda rows: _shifted(rows, shift), of_changes=True)
        for name in tables_in(job.versions.keys() & own.versions)
    ]
    return {rewrite.table: rewrite.staged(job, own.last.max_parallelism) for rewrite in rewrites}


def _shifted(rows: pa.Table, shift: int) -> pa.Table:
    place = rows.schema.get_field_index("checkpoint_id")
    return rows.set_column(place, rows.schema.field(place), pc.add(rows["checkpoint_id"], shift))
