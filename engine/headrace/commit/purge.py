"""Purge: delete at once all files with rows of an erased key: data files, entries of logs, and remains of runs.

An entry of a table's log has the smallest and the largest key of each file that it adds. So a purge also deletes entries that name a
file with rows of the key, and all entries between the first and the last of them. Kept versions in that gap get a log checkpoint.

    versions of a table     0 --- 1 --- 2 --- 3 --- 4 --- 5 --- 6
    rows of the key                     x     x           x (erased with 6)
    log                     0     1                 4           6

The list of files is committed before the first is deleted, like that of a vacuum (`vacuum_intents`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace import clock, faults
from headrace.commit.branch_refusals import refuse_with_branches
from headrace.commit.erased_checkpoints import id_ranges
from headrace.commit.erasure_scan import LEFTOVERS
from headrace.commit.erasure_survey import ErasureSurvey, traces_of
from headrace.commit.landed_cleanup import unneeded_landed
from headrace.commit.log_cleanup import KeptCheckpoints, LogCleanup, LogCut
from headrace.commit.protocol import OpenJob
from headrace.commit.vacuum_intents import commit_intent, complete, open_intents
from headrace.config import JobConfig
from headrace.sources.landed import LANDED
from headrace.tables.files import list_files
from headrace.tables.schemas import ALL_TABLES
from headrace.tables.store import COMMIT_SUFFIX, LOG, FileTrace, storage_errors
from headrace.tables.stores import table_store

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
        with storage_errors(f"to list {config.job_folder}/{folder}"):
            listed = list_files(f"{config.job_folder}/{folder}", config.storage_options)
        files |= {f"{folder}/{name}" for name in listed if not name.startswith(f"{LOG}/")}
    with storage_errors(f"to list {config.job_folder}/{LANDED}"):
        landed = {f"{LANDED}/{name}" for name in list_files(f"{config.job_folder}/{LANDED}", config.storage_options)}
    files |= unneeded_landed(landed, KeptCheckpoints.of(job.checkpoints, _oldest(config)), job.last)
    files = files.difference(*(intent.files for intent in open_intents(config, job.checkpoints)))
    faults.reached("purge.listed")
    if files:
        LogCleanup(config, KeptCheckpoints([], []), 0).keep(cuts)
        ids = {holder.checkpoint_id for holder in survey.holders}
        commit_intent(job, files, erased=id_ranges(ids), note=why)
    intents = open_intents(config, job.checkpoints)
    faults.reached("purge.committed")
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
        store = table_store(f"{config.job_folder}/{table}", config.storage_options)
        with storage_errors(f"to read the log of {store.uri}"):
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
