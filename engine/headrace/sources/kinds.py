"""Which kind of source a job's file names, and how a file of each kind is read."""

from __future__ import annotations

from dataclasses import replace

from headrace.api import SourceNode
from headrace.config import FileOptions, JobConfig, SourceConfig
from headrace.sources.delta_table import DeltaSource
from headrace.sources.derived import Derivation, DerivedSource, read_derived
from headrace.sources.file_format import FileRows
from headrace.sources.file_formats import read_file
from headrace.sources.folder import FolderSource
from headrace.sources.kafka import KafkaSource
from headrace.sources.landed import landed_folder
from headrace.sources.messages import read_messages
from headrace.sources.source import InputFile, Source, SourceFile
from headrace.sources.topic import Topic
from headrace.tables.files import Storage


def source_of(
    node: SourceNode,
    bound: SourceConfig,
    job: JobConfig,
    topic: Topic | None = None,
    step: Derivation | None = None,
) -> Source:
    """Return the driver's view of a source: `node` is what the pipeline says of it, `bound` what the job says. Nothing is read.

    Without a `topic`, a source of the format kafka has the files that are landed, and nothing else. `step` is what runs Spark's
    step over the source; without it the source has the rows of the step's result.
    """
    if node.step is not None:
        below = node.stored if step is not None else replace(node, step=None)
        stored = source_of(below, bound, job, topic)
        return DerivedSource(node, stored, landed_folder(job.job_folder, node.name), job.storage_options, step)
    if bound.format == "kafka":
        return KafkaSource(node, bound, job.storage_options, landed_folder(job.job_folder, node.name), topic)
    kind = DeltaSource if bound.format == "delta" else FolderSource
    return kind(node, bound, job.storage_options)


def read_rows_of(
    file: SourceFile | InputFile, node: SourceNode, options: FileOptions, storage: Storage = None
) -> FileRows:
    """Read all rows of a file of a source, of whatever kind.

    Raises one of `headrace.sources.file_format.UNREADABLE`.
    """
    if file.derived:
        return read_derived(file.path, storage)
    if file.messages is not None:
        return FileRows(read_messages(file.path, storage))
    return read_file(file.path, node, options, delta=file.delta, storage=storage)
