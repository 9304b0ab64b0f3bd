"""Acknowledgement of input: from here on, files that changed, are gone or came late count as they are now. No row is taken in or out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from headrace.commit.input_changes import GONE, PASSED, recorded_files
from headrace.commit.input_report import InputKind, InputRemark, input_remarks
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.sources.folder.listing import UNKNOWN, FolderListing, content_digest, stamp
from headrace.sources.intake import numbered
from headrace.sources.position import SourceFacts, TakenFile, digest
from headrace.sources.source import SourceFile
from headrace.tables.folder import JobFolder

GONE_FILES: Final = "gone"
"""Word for all files that are gone: checkpoints have no names of them."""

ALL_FILES: Final = "all"

_KINDS_OF_GONE: Final = frozenset({InputKind.GONE, InputKind.CLEANED_UP})

_KINDS: Final = _KINDS_OF_GONE | {
    InputKind.CHANGED,
    InputKind.LATE,
    InputKind.ADDED,
    InputKind.CORRECTED,
    InputKind.TWIN,
}


def acknowledge(config: JobConfig, names: Sequence[str], why: str, run_id: str) -> Checkpoint:
    """Record files as they are now, so that runs and `status` no longer name them; return the checkpoint.

    `names` are file names, GONE_FILES or ALL_FILES. The rows in state and sinks stay, and a file that came late is never read. Raises
    `ConfigError` for a name that no remark has, and for a job that never ran; then nothing has changed.
    """
    with open_job(config, run_id) as job:
        remarks = [remark for remark in input_remarks(config, job.lineage.checkpoints) if remark.kind in _KINDS]
        chosen = [remark for remark in remarks if _is_named(remark, names)]
        _check_names(config, names, remarks)
        by_source = groupby(sorted(chosen, key=_source_of), key=_source_of)
        facts = {source: _acknowledged(job, source, list(of_source)) for source, of_source in by_source}
        return job.commit(
            Kind.ACKNOWLEDGEMENT,
            versions=job.versions,
            sources={**job.last.sources, **facts},
            note=why,
            metrics={"acknowledged": sum(remark.count for remark in chosen)},
        )


def _is_named(remark: InputRemark, names: Sequence[str]) -> bool:
    word = GONE_FILES if remark.kind in _KINDS_OF_GONE else remark.file
    return ALL_FILES in names or word in names


def _check_names(config: JobConfig, names: Sequence[str], remarks: Sequence[InputRemark]) -> None:
    unknown = [name for name in names if name != ALL_FILES and not any(_is_named(remark, [name]) for remark in remarks)]
    if unknown or not remarks:
        wrong = f"'{unknown[0]}' is none of them" if unknown else "there is none"
        msg = (
            f"job '{config.job}': only files that changed, are gone, came late or have a twin can be acknowledged, and {wrong}. Nothing was "
            f"changed. 'headrace input {config.job}' lists them."
        )
        raise ConfigError(msg)


def _acknowledged(job: OpenJob, source: str, remarks: Sequence[InputRemark]) -> SourceFacts:
    """Return the facts of a source with further records: of each remarked file as it is now."""
    config, facts = job.config, numbered([source], job.last.sources)[source]
    if not config.sources[source].kind.is_folder:  # its files never change
        return facts.with_records(TakenFile(digest(remark.file), PASSED, UNKNOWN) for remark in remarks)
    files = {
        file.name: file for file in FolderListing(source, config.sources[source], JobFolder.of(config)).content().files
    }
    named = [files[remark.file] for remark in remarks if remark.file in files]
    records = [_record(config, file) for file in named]
    if any(remark.kind in _KINDS_OF_GONE for remark in remarks):
        present = {digest(name) for name in files}
        missing = recorded_files(job.lineage.checkpoints, source).keys() - present
        records += [TakenFile(name, GONE, UNKNOWN) for name in sorted(missing)]
    return facts.with_records(records)


def _record(config: JobConfig, file: SourceFile) -> TakenFile:
    return TakenFile(digest(file.name), stamp(file), content_digest(JobFolder.of(config).at(file.path)))


def _source_of(remark: InputRemark) -> str:
    return remark.source
