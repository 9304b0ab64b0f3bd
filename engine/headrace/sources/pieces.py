"""Pieces of sources for the merge: each partition of a topic is a piece, any other source is one piece.

Outside the merge a topic is one source, and its offset contains the offsets of its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from headrace.sources.derived import DerivedSource
from headrace.sources.kafka import KafkaPartition, KafkaSource
from headrace.sources.landed import messages_name, parse_landed
from headrace.sources.offset import PartitionOffset, SourceOffset, last_number
from headrace.sources.slice_request import GroupSlice, SliceRequest
from headrace.sources.source import Source


def with_partitions(
    sources: Mapping[str, Source],
    offsets: Mapping[str, SourceOffset],
    until: Mapping[str, SourceOffset] | None = None,
) -> dict[str, SourceOffset]:
    """Return the offsets of sources, with all partitions of topics. New partitions get numbers that no source ever had.

    For a slice that ends where a recorded micro-batch did, `until` are the offsets after that: it says which partitions are new, and
    where they begin. Raises `SourceError` for a topic that was replaced, and for a partition that no longer exists.
    """
    result = dict(offsets)
    for name, source in sources.items():
        topic = topic_of(source)
        if topic is not None:
            recorded = None if until is None else until.get(name, SourceOffset())
            result[name] = topic.with_partitions(result[name], last_number(result.values()) + 1, recorded)
    return result


def read_up_to(partition: PartitionOffset) -> int:
    """Return the first offset that may not be taken in yet; where a file is begun, as if it had no gaps between offsets."""
    begun = None if not partition.unread else parse_landed(messages_name(partition.unread[0]))
    return partition.position if begun is None else begun.range.first + partition.rows_taken


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
        until: Mapping[str, SourceOffset] | None = None,
    ) -> None:
        """Divide the sources `names` into pieces; `recorded` are the offsets of the last checkpoint.

        `until` are the offsets after the recorded micro-batch that the slice repeats, if any.
        """
        self._names = tuple(names)
        self._until = None if until is None else {**until}
        self.sources: dict[str, Source] = {}
        self.offsets: dict[str, SourceOffset] = {}
        self.owners: dict[str, str] = {}
        for name in names:
            source, offset = sources[name], offsets[name]
            topic = topic_of(source)
            if topic is not None:
                is_provisional = topic.is_provisional(recorded.get(name, SourceOffset()))
                ends = (until or {}).get(name, SourceOffset())
                end_of = {end.partition: end for end in ends.partitions}
                for partition in offset.partitions:
                    end = end_of.get(partition.partition)
                    kafka_partition = KafkaPartition(
                        topic, partition.partition, is_provisional=is_provisional, until=end
                    )
                    piece = source.over(kafka_partition) if isinstance(source, DerivedSource) else kafka_partition
                    self._add(piece_name(name, partition), name, piece, _partition_offset(offset, partition))
                    if self._until is not None and end is not None:
                        self._until[piece_name(name, partition)] = _partition_offset(ends, end)
            else:
                self._add(name, name, source, offset)

    def _add(self, piece: str, owner: str, source: Source, offset: SourceOffset) -> None:
        self.sources[piece], self.offsets[piece], self.owners[piece] = source, offset, owner

    def request(self, wanted: SliceRequest) -> SliceRequest:
        """Return a request whose recorded offsets are those of pieces."""
        return replace(wanted, until=self._until)

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


def piece_name(source: str, partition: PartitionOffset) -> str:
    """Return the name of the piece that is a partition of a topic."""
    return f"{source}[{partition.partition}]"


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
            before.begins_at,
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
        file_tables=tuple(versions for after in moved for versions in after.file_tables),
        idle=all(partition.idle for partition in partitions),
        names=(),
    )
