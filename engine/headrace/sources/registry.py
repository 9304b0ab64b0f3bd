"""Kinds of sources, by their formats in a job's file: each makes a source, and reads its files in tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from headrace.api.graph import SourceNode
from headrace.config import CorrectedInput, JobConfig
from headrace.errors import ConfigError
from headrace.sources.corrected import CorrectedSource, connection_name
from headrace.sources.delta.source import DeltaSource
from headrace.sources.folder.format import FileRows
from headrace.sources.folder.formats import FORMATS
from headrace.sources.folder.source import FolderSource
from headrace.sources.kafka.landed import Topic, landed_folder
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.source import InputFile, Source, SourceFile, SourceKind
from headrace.sources.transformed.source import TRANSFORMED, Derivation, TransformedSource
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

KINDS: Final[Mapping[str, type[SourceKind]]] = {
    **dict.fromkeys(FORMATS, FolderSource),
    "delta": DeltaSource,
    "kafka": KafkaSource,
}

_READERS: Final[Mapping[str, Callable[[SourceFile | InputFile, SourceNode, Storage], FileRows]]] = {
    **{name: kind.read for name, kind in KINDS.items()},
    TRANSFORMED: TransformedSource.read,
}


def source_of(
    node: SourceNode, job: JobConfig, connection: Topic | None = None, step: Derivation | None = None
) -> Source:
    """Make the source that the pipeline declares as `node`, of its kind in the job's file. Read nothing.

    Without a `connection`, a source whose files the job lands has only those that are landed. `step` runs the Spark transform over
    the source; without it, the source has only the results that are landed.
    """
    if node.transform is not None:
        below = node.stored if step is not None else replace(node, transform=None)
        stored = source_of(below, job, connection)
        return TransformedSource(node, stored, landed_folder(JobFolder.of(job), node.name), step)
    return KINDS[job.sources[node.name].format].of(node, job, connection)


def corrected_source(
    own: Source, node: SourceNode, job: JobConfig, given: CorrectedInput, topics: Mapping[str, Topic]
) -> Source:
    """Make the source that has the rows `given` in place of those of `own`, which the pipeline declares as `node`.

    `topics` are the connections of sources that need one, by their names. Raises `ConfigError` for a topic without one.
    """
    name, other = node.name, job.sources[node.name].corrected_by(given)
    connection = topics.get(connection_name(name))
    if other.kind.has_partitions and name in topics:
        connection = topics[name].beside(other)
    if other.kind.has_partitions and connection is None:
        msg = (
            f"source '{name}' had {other.place} as corrected input before, and nothing connects to its brokers now. Nothing was taken in. Name it again "
            f"with --source '{name}={{format: kafka, servers: {other.servers}, topic: {other.topic}}}' for these days."
        )
        raise ConfigError(msg)
    as_own = msgspec.structs.replace(job, sources={**job.sources, name: other})
    return CorrectedSource(name, own, source_of(node, as_own, connection))


def read_rows_of(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
    """Read all rows of a file of any kind of source.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    return _READERS[file.format](file, node, storage)
