"""Permanent erasure of one key (GDPR, article 17): its rows leave the state, and their bytes the job's folder.

    erase     the state tables are rewritten without the key's rows, as a checkpoint of kind `erasure`
    purge     files and log entries that still have them are deleted, committed as those of a vacuum are

A tombstone is not enough: tables are changelogs, and keep deleted rows until files are rewritten. Without a purge,
earlier versions keep the rows until retention ends, and restores to them are refused meanwhile
(`erased_checkpoints`). Changes of other keys are not modified. Sinks and sources are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.compute as pc

from headrace import faults
from headrace.commit.branch_refusals import refuse_on_branch, refuse_with_branches
from headrace.commit.branches import remove_ended_branches
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.erased_checkpoints import id_ranges
from headrace.commit.erased_key import ErasedKey
from headrace.commit.erasure_survey import ErasureSurvey, chunks, survey
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.purge import purge_files
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.tables.files import StagedFile, remove_folder
from headrace.tables.schemas import ASYNC_REQUESTS
from headrace.tables.state_files import parts


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
    log = CheckpointLog(config.job_folder, config.storage_options)
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
        checkpoint = _erase(job, key, key_survey, why) if key_survey.rows or key_survey.unrecorded else None
        faults.reached("erasure.committed")
        # A fork needs no lease. It reads the log after it is listed: one that is not listed by now sees this checkpoint.
        refuse_with_branches(
            config, "the erasure is not complete", f"The job itself is at checkpoint {job.last.checkpoint_id}"
        )
        for folder in key_survey.local_folders:
            remove_folder(str(folder))
        return Erasure(key_survey, checkpoint, purge_files(job, key_survey, why) if purge else 0)


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


def _erase(job: OpenJob, key: ErasedKey, key_survey: ErasureSurvey, why: str) -> Checkpoint:
    versions = dict(job.versions)
    for table in dict.fromkeys(rows.table for rows in key_survey.rows):
        job.check_lease()
        versions[table] = job.replace_table(table, [*_rewritten(job, table, key)])
    faults.reached("erasure.prepared")
    refuse_with_branches(job.config, "no key can be erased")
    operators = {rows.operator for rows in key_survey.rows}
    copies = {name: copy for name, copy in job.last.local_copies.items() if name not in operators}
    return job.commit(
        Kind.ERASURE,
        versions=versions,
        local_copies=copies,
        offsets=_offsets(job, key_survey),
        metrics={"rows_erased": sum(rows.rows for rows in key_survey.rows)},
        erased=id_ranges({holder.checkpoint_id for holder in key_survey.holders}),
        note=why,
    )


def _rewritten(job: OpenJob, table: str, key: ErasedKey) -> Iterator[StagedFile]:
    """Stage files with all changes of a table that are not erased."""
    for number, changes in enumerate(chunks(job.view(table), job.last.max_parallelism)):
        kept = changes.filter(pc.invert(key.erased(table, changes)))
        for place, part in enumerate(parts(table, kept)):
            yield job.stage(table, f"erasure-{number}-{place}", part)


def _offsets(job: OpenJob, key_survey: ErasureSurvey) -> dict[str, Any]:
    """Return the offsets without the erased elements. Held records are not counted: the next run finds fewer of them."""
    erased = sum(rows.live for rows in key_survey.rows if rows.table == ASYNC_REQUESTS)
    return {
        name: msgspec.structs.replace(
            offset, pending=max(0, offset.pending - erased), due=offset.due if offset.pending > erased else None
        )
        for name, offset in job.last.offsets.items()
    }
