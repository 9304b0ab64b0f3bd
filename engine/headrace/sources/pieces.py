"""Pieces of sources for the merge: each partition of a topic is a piece, any other source is one piece.

Outside the merge a topic is one source, and its offset contains the offsets of its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from headrace.sources.derived import DerivedSource
from headrace.sources.kafka import KafkaPartition, KafkaSource
from headrace.sources.offset import PartitionOffset, SourceOffset, last_number
from headrace.sources.slice_request import GroupSlice
from headrace.sources.source import Source


def with_partitions(sources: Mapping[str, Source], offsets: Mapping[str, SourceOffset]) -> dict[str, SourceOffset]:
    """Return the offsets of sources, with all partitions of topics. New partitions get numbers that no source ever had.

    Raises `SourceError` for a topic that was replaced, and for a partition that no longer exists.
    """
    result = dict(offsets)
    for name, source in sources.items():
        topic = topic_of(source)
        if topic is not None:
            result[name] = topic.with_partitions(result[name], last_number(result.values()) + 1)
    return result


def topic_of(source: Source) -> KafkaSource | None:
    """Return the topic that a source reads, directly or below a Spark step; None for a source of another kind."""
    stored = source.stored if isinstance(source, DerivedSource) else source
    return stored if isinstance(stored, KafkaSource) else None


class Pieces:
    """Pieces of a group of sources. By name of the piece: `sources`, `offsets`, and the name of its source (`owners`)."""

    def __init__(
        self,
        names: Sequence[str],
        sources: Mapping[str, Source],
        offsets: Mapping[str, SourceOffset],
        recorded: Mapping[str, SourceOffset],
    ) -> None:
        """Divide the sources `names` into pieces; `recorded` are the offsets of the last checkpoint."""
        self._names = tuple(names)
        self.sources: dict[str, Source] = {}
        self.offsets: dict[str, SourceOffset] = {}
        self.owners: dict[str, str] = {}
        for name in names:
            source, offset = sources[name], offsets[name]
            topic = topic_of(source)
            if topic is not None:
                is_provisional = topic.is_provisional(recorded.get(name, SourceOffset()))
                for partition in offset.partitions:
                    kafka_partition = KafkaPartition(topic, partition.partition, is_provisional=is_provisional)
                    piece = source.over(kafka_partition) if isinstance(source, DerivedSource) else kafka_partition
                    self._add(f"{name}[{partition.partition}]", name, piece, _partition_offset(offset, partition))
            else:
                self._add(name, name, source, offset)

    def _add(self, piece: str, owner: str, source: Source, offset: SourceOffset) -> None:
        self.sources[piece], self.offsets[piece], self.owners[piece] = source, offset, owner

    def join(self, part: GroupSlice, offsets: Mapping[str, SourceOffset]) -> GroupSlice:
        """Return the part of a slice with its pieces joined to sources; `offsets` are those before the slice."""
        moved: dict[str, SourceOffset] = {}
        for name in self._names:
            own = [piece for piece, owner in self.owners.items() if owner == name]
            moved[name] = (
                part.offsets[name]
                if own == [name]
                else _topic_offset(offsets[name], [part.offsets[piece] for piece in own])
            )
        return replace(
            part,
            line=replace(part.line, sources=self._names),
            files=tuple(msgspec.structs.replace(file, source=self.owners[file.source]) for file in part.files),
            offsets=moved,
        )


def _partition_offset(offset: SourceOffset, partition: PartitionOffset) -> SourceOffset:
    """Return the offset of a partition as the offset of a source."""
    return msgspec.structs.replace(
        offset,
        number=partition.number,
        version=partition.position,
        last_file=partition.last_file,
        unread=partition.unread,
        rows_taken=partition.rows_taken,
        taken_at=partition.taken_at,
        idle=partition.idle,
        partitions=(),
    )


def _topic_offset(offset: SourceOffset, moved: Sequence[SourceOffset]) -> SourceOffset:
    """Return the offset of a topic from the offsets of its partitions, in their order."""
    partitions = tuple(
        PartitionOffset(
            before.partition,
            before.number,
            before.position if after.version is None else after.version,
            after.last_file,
            after.unread,
            after.rows_taken,
            after.taken_at,
            after.idle,
        )
        for before, after in zip(offset.partitions, moved, strict=True)
    )
    return msgspec.structs.replace(
        offset,
        partitions=partitions,
        unread=tuple(name for partition in partitions for name in partition.unread),
        taken_at=max((partition.taken_at for partition in partitions if partition.taken_at is not None), default=None),
        watermark=moved[0].watermark,
        tables=next((after.tables for after in moved if after.tables != offset.tables), offset.tables),
        idle=all(partition.idle for partition in partitions),
        names=(),
    )
