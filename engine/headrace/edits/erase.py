"""Erasure of one key for good: its rows leave the state, and their bytes the job's folder.

    erase     the state tables are rewritten without the key's rows, as a checkpoint of kind `erasure`
    purge     files and log entries that still have them are deleted, committed as those of a vacuum are

A tombstone is not enough: tables are changelogs, and keep deleted rows until files are rewritten. Without a purge,
earlier versions keep the rows until retention ends, and restores to them are refused meanwhile
(`erased_checkpoints`). Changes of other keys are not modified. Sinks and sources are not touched.

Purge: delete at once all files with rows of an erased key: data files, entries of logs, and remains of runs.

An entry of a table's log has the smallest and the largest key of each file that it adds. So a purge also deletes entries that name a
file with rows of the key, and all entries between the first and the last of them. Kept versions in that gap get a log checkpoint.

    versions of a table     0 --- 1 --- 2 --- 3 --- 4 --- 5 --- 6
    rows of the key                     x     x           x (erased with 6)
    log                     0     1                 4           6
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock, crash_points
from headrace.commit.branch_code import refuse_on_branch, refuse_with_branches
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.edits.edit import BlindEdit, Rewrite, carry_out
from headrace.edits.erase_survey import ErasureSurvey, survey, traces_of
from headrace.edits.erased_key import LEFTOVERS, ErasedKey
from headrace.edits.vacuum import KeptCheckpoints, LogCleanup, LogCut, commit_intent, unneeded_landed
from headrace.errors import ConfigError
from headrace.log.branches import remove_ended_branches
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import JobWork
from headrace.log.log import CheckpointLog
from headrace.log.marks import complete, id_ranges, open_intents
from headrace.sources.kafka.landed import LANDED
from headrace.storage.storage import Storage
from headrace.storage.table import COMMIT_SUFFIX, LOG, FileTrace
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, ASYNC_REQUESTS

_HOUR = 3_600_000
_MADE_MEANWHILE = "the files of the key cannot be deleted"


def purge_files(job: OpenJob, survey: ErasureSurvey, why: str) -> int:
    """Delete the files of a survey that the present state does not need; return their number.

    Also deletes files that an earlier vacuum or purge has committed and not deleted.

    Raises `FencedError` when another run has taken the job before the list was committed; then nothing was deleted.
    """
    config = job.config
    cuts = [*_cuts(job, survey)]
    files = {file for cut in cuts for file in cut.files}
    for table, names in survey.files.items():
        files |= {f"{table}/{name}" for name in names - job.view(table).files()}
    for folder in (*LEFTOVERS, *(table for table in ALL_TABLES if table not in job.versions)):
        files |= {f"{folder}/{name}" for name in job.folder.files(folder) if not name.startswith(f"{LOG}/")}
    landed = {f"{LANDED}/{name}" for name in job.folder.files(LANDED)}
    files |= unneeded_landed(landed, KeptCheckpoints.of(job.checkpoints, _oldest(config)), job.last)
    files = files.difference(*(intent.files for intent in open_intents(config, job.checkpoints)))
    crash_points.reached("purge.listed")
    if files:
        LogCleanup(config, KeptCheckpoints([], []), 0).keep(cuts)
        ids = {holder.checkpoint_id for holder in survey.holders}
        commit_intent(job, files, erased=id_ranges(ids), note=why)
    intents = open_intents(config, job.checkpoints)
    crash_points.reached("purge.committed")
    refuse_with_branches(config, _MADE_MEANWHILE, "The erasure is committed, and the list of its files")
    for intent in intents:
        complete(config, intent)
    return len(frozenset().union(*(intent.files for intent in intents)))


def _oldest(config: JobConfig) -> int:
    """Return when the retention began (ms)."""
    return clock.now() - config.retention.hours * _HOUR


def _cuts(job: OpenJob, survey: ErasureSurvey) -> Iterator[LogCut]:
    """Yield the cuts of the logs of the tables that have rows of the key."""
    config = job.config
    kept = KeptCheckpoints.of(job.checkpoints, _oldest(config))
    for table, trace in traces_of(config, survey.files).items():
        store = job.folder.table(table)
        entries = store.log_as_of(0).entries
        tainted = {*trace.versions, *(entries[name] for name in trace.entries)}
        if tainted:
            yield _cut(table, entries, tainted, trace, kept.versions(table))


def _cut(table: str, entries: Mapping[str, int], tainted: set[int], trace: FileTrace, needed: set[int]) -> LogCut:
    """Return the cut from the first to the last version whose entries name a file with rows of the key."""
    begin, end = min(tainted), max(tainted) + 1
    spared = {version for version in needed - trace.versions if begin <= version < end}
    files = {
        f"{table}/{name}"
        for name, version in entries.items()
        if begin <= version < end and (version not in spared or name.endswith(COMMIT_SUFFIX))
    }
    return LogCut(table, end, frozenset(spared), frozenset(files))


@dataclass(frozen=True, slots=True)
class Erasure:
    """Result of an erasure."""

    survey: ErasureSurvey
    """Rows and files of the key before the erasure."""

    checkpoint: Checkpoint | None = None
    """Checkpoint of kind `erasure`; None if neither the state nor earlier checkpoints had rows of the key."""

    files_deleted: int = 0
    """By a purge."""


def find_key(config: JobConfig, key: ErasedKey, *, in_all_texts: bool = False) -> ErasureSurvey:
    """Return the rows and files of a key that an erasure would remove now. Writes nothing, needs no lease.

    With `in_all_texts`, also looks for the key in the text of all other rows of all files. Raises `ConfigError` when the job has no checkpoint, and `StorageError` when its tables cannot be read.
    """
    log = CheckpointLog(JobFolder.of(config))
    last = log.resolve(config)
    return survey(config, log.checkpoints, last.versions, key, in_all_texts=in_all_texts)


def erase(config: JobConfig, run_id: str, key: ErasedKey, *, why: str, purge: bool = False) -> Erasure:
    """Erase a key from the state in a separate checkpoint; with `purge`, also delete all files with its rows at once.

    After a purge, checkpoints that had rows of the key can be neither read nor restored; others can. Raises `ConfigError` when
    `why` names the key (reasons are kept for ever), when the job has branches, and, with `purge`, when a savepoint has rows of the
    key; `FencedError` when another run holds the job, or takes it. Nothing has changed then, unless somebody has made a branch
    meanwhile: the message says so. Folders of branches that were dropped or promoted are removed.
    """
    refuse_on_branch(config, "erase a key")
    refuse_with_branches(config, "no key can be erased")
    if key.is_named_in(why):
        msg = "the reason names the key, and is kept for ever: give another reason, such as the number of the request. Nothing was changed."
        raise ConfigError(msg)
    with open_job(config, run_id) as job:
        refuse_with_branches(config, "no key can be erased")
        remove_ended_branches(config)
        key_survey = survey(config, [*job.checkpoints], job.versions, key)
        if purge:
            _refuse_savepoints(key_survey)
        checkpoint = carry_out(job, _EraseKey(key, key_survey, why))
        crash_points.reached("erasure.committed")
        # A fork needs no lease. It reads the log after it is listed: one that is not listed by now sees this checkpoint.
        refuse_with_branches(
            config, "the erasure is not complete", f"The job itself is at checkpoint {job.last.checkpoint_id}"
        )
        for folder in key_survey.local_folders:
            Storage(str(folder)).remove_folder()
        # Without a file that has the key, a purge only finishes one that was interrupted: the key may be misspelt.
        purges = purge and not (key_survey.is_empty and not open_intents(config, job.checkpoints))
        return Erasure(key_survey, checkpoint, purge_files(job, key_survey, why) if purges else 0)


def _refuse_savepoints(key_survey: ErasureSurvey) -> None:
    if key_survey.savepoints:
        drops = "; ".join(
            f"headrace savepoint {key_survey.config.job} {name} --drop --why ..."
            for name in dict.fromkeys(savepoint.name for savepoint in key_survey.savepoints)
        )
        ids = ", ".join(
            f"'{savepoint.name}' (checkpoint {savepoint.checkpoint_id})" for savepoint in key_survey.savepoints
        )
        msg = f"savepoints have rows of the key: {ids}. Nothing was changed. Drop them first: {drops}"
        raise ConfigError(msg)


@dataclass(frozen=True, slots=True)
class _EraseKey(BlindEdit):
    """Edit that keeps all changes but those of a key. Without such rows, now or in earlier checkpoints, there is nothing to commit."""

    key: ErasedKey
    survey: ErasureSurvey
    why: str

    kind: ClassVar[Kind] = Kind.ERASURE
    crash_point: ClassVar[str] = "erasure.prepared"

    def rewrites(self, job: OpenJob, effect: None) -> Iterator[Rewrite]:  # noqa: ARG002 - it looks for nothing
        """See `StateEdit.rewrites`."""
        for table in dict.fromkeys(rows.table for rows in self.survey.rows):
            kept = partial(self._kept, table)
            yield Rewrite(table, "erasure", job.view(table), kept, of_changes=True, replaces=True)

    def facts(self, job: OpenJob, effect: None, rows: int) -> dict[str, Any] | None:  # noqa: ARG002 - the survey has counted
        """See `StateEdit.facts`."""
        survey = self.survey
        if not survey.rows and not survey.unrecorded:
            return None
        refuse_with_branches(job.config, "no key can be erased")
        return {
            "base": job.last.without_copies({rows.operator for rows in survey.rows}),
            "work": _work(job, survey),
            "metrics": {"rows_erased": sum(rows.rows for rows in survey.rows)},
            "erased": id_ranges({holder.checkpoint_id for holder in survey.holders}),
            "note": self.why,
        }

    def _kept(self, table: str, changes: pa.Table) -> pa.Table:
        return changes.filter(pc.invert(self.key.erased(table, changes)))


def _work(job: OpenJob, key_survey: ErasureSurvey) -> JobWork:
    """Return the work without the erased elements. Held records are not counted: the next run finds fewer of them."""
    erased = sum(rows.live for rows in key_survey.rows if rows.table == ASYNC_REQUESTS)
    work = job.last.work
    return work.with_pending(work.pending - erased, work.due)
