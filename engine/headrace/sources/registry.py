"""Kinds of sources, by their formats in a job's file: each makes a source, and reads its files in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from headrace.api.graph import SourceNode
from headrace.config import CorrectedInput, JobConfig
from headrace.errors import ConfigError
from headrace.sources.corrected import CorrectedSource, connection_name
from headrace.sources.delta.source import DeltaSource
from headrace.sources.folder.format import FileRows
from headrace.sources.folder.formats import FORMATS, options_of
from headrace.sources.folder.partitions import read_parts_in_folder
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
    connection = topics.get(name, topics.get(connection_name(name)))
    if other.kind.has_partitions and connection is not None:
        connection = connection.beside(other)  # another one than --source names now may be recorded
    if other.kind.has_partitions and connection is None:
        msg = (
            f"source '{name}' had {other.place} as corrected input before, and nothing connects to its brokers now. Nothing was taken in. Name it again "
            f"with --source '{name}={{format: kafka, servers: {other.servers}, topic: {other.topic}, interval: {{by: committed}}}}' for these days."
        )
        raise ConfigError(msg)
    return CorrectedSource(name, own, corrected_input(node, job, given, connection))


def corrected_input(node: SourceNode, job: JobConfig, given: CorrectedInput, connection: Topic | None = None) -> Source:
    """Make the source that has the rows `given` alone, as they take the place of those that the pipeline declares as `node`. Read nothing."""
    other = job.sources[node.name].corrected_by(given)
    as_own = msgspec.structs.replace(job, sources={**job.sources, node.name: other})
    return source_of(node, as_own, connection)


def read_rows_of(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
    """Read all rows of a file of any kind of source.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    return _READERS[file.format](file, node, storage)


def read_parts_of(file: InputFile, node: SourceNode, storage: Storage, limit: int) -> Iterator[FileRows]:
    """Yield the rows of a file of any kind of source, in parts of about `limit` bytes, where its format allows it, and else all at once.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    if KINDS.get(file.format) is not FolderSource:
        yield read_rows_of(file, node, storage)
        return
    options = options_of(file.format, file.facts)
    yield from read_parts_in_folder(storage.at(file.path), file.name, node, options, limit)
