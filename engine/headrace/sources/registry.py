"""Choice of the kind of a source, and reading of a file of any kind."""

from __future__ import annotations

from dataclasses import replace

from headrace.api.graph import SourceNode
from headrace.config import FileOptions, JobConfig, SourceConfig
from headrace.sources.delta.source import DeltaSource
from headrace.sources.folder.format import FileRows
from headrace.sources.folder.formats import read_file
from headrace.sources.folder.source import FolderSource
from headrace.sources.kafka.landed import Topic, landed_folder
from headrace.sources.kafka.messages import read_messages
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.source import InputFile, Source, SourceFile
from headrace.sources.transformed.source import Derivation, DerivedSource, read_derived
from headrace.storage.files import Storage


def source_of(
    node: SourceNode,
    bound: SourceConfig,
    job: JobConfig,
    topic: Topic | None = None,
    step: Derivation | None = None,
) -> Source:
    """Make the source that the pipeline declares as `node` and the job's file configures as `bound`. Read nothing.

    Without a `topic`, a source of the format kafka has only the files that are landed. `step` runs the Spark step over the
    source; without it, the source has only the results that are landed.
    """
    if node.step is not None:
        below = node.stored if step is not None else replace(node, step=None)
        stored = source_of(below, bound, job, topic)
        return DerivedSource(node, stored, landed_folder(job.job_folder, node.name), job.storage_options, step)
    if bound.format == "kafka":
        folder = landed_folder(job.job_folder, node.name)
        of_job = None if job.branch is None else landed_folder(job.itself.job_folder, node.name)
        return KafkaSource(node, bound, job.storage_options, folder, topic, job_folder=of_job)
    kind = DeltaSource if bound.format == "delta" else FolderSource
    return kind(node, bound, job.storage_options)


def read_rows_of(
    file: SourceFile | InputFile, node: SourceNode, options: FileOptions, storage: Storage = None
) -> FileRows:
    """Read all rows of a file of any kind of source.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    if file.derived:
        return read_derived(file.path, storage)
    if file.messages is not None:
        return FileRows(read_messages(file.path, storage))
    return read_file(file.path, node, options, delta=file.delta, storage=storage)
