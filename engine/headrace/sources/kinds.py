"""Which kind of source a job's file names, and how a file of each kind is read."""

from __future__ import annotations

import pyarrow as pa

from headrace.api import SourceNode
from headrace.config import JobConfig, SourceConfig
from headrace.sources.delta_rows import read_rows
from headrace.sources.delta_table import DeltaSource
from headrace.sources.kafka import KafkaSource
from headrace.sources.landed import landed_folder
from headrace.sources.messages import read_messages
from headrace.sources.parquet_folder import ParquetFolder
from headrace.sources.source import InputFile, Source, SourceFile
from headrace.sources.topic import Topic
from headrace.tables.files import Storage


def source_of(node: SourceNode, bound: SourceConfig, job: JobConfig, topic: Topic | None = None) -> Source:
    """Return the driver's view of a source: `node` is what the pipeline says of it, `bound` what the job says. Nothing is read.

    Without a `topic`, a source of the format kafka has the files that are landed, and nothing else.
    """
    if bound.format == "kafka":
        return KafkaSource(node, bound, job.storage_options, landed_folder(job.job_folder, node.name), topic)
    kind = DeltaSource if bound.format == "delta" else ParquetFolder
    return kind(node, bound, job.storage_options)


def read_file(file: SourceFile | InputFile, storage: Storage = None) -> pa.Table:
    """Read all rows of a source's file, as they are stored."""
    if file.messages is not None:
        return read_messages(file.path, storage)
    return read_rows(file.path, file.delta, storage)
