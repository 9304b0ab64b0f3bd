"""The pieces of sources that meet: a topic's partitions are sources of their own in the merge, other sources are one piece each.

Outside of the merge a topic is one source: its offset holds those of its partitions, and its files are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from headrace.sources.derived import DerivedSource
from headrace.sources.kafka import KafkaPartition, KafkaSource
from headrace.sources.offset import PartitionOffset, SourceOffset, last_number
from headrace.sources.source import Source
from headrace.sources.wanted import Part


def with_partitions(sources: Mapping[str, Source], offsets: Mapping[str, SourceOffset]) -> dict[str, SourceOffset]:
    """Return the offsets of sources, where topics have all their partitions. New partitions get numbers that no source ever had.

    Raises what `KafkaSource.with_partitions` does.
    """
    result = dict(offsets)
    for name, source in sources.items():
        topic = topic_of(source)
        if topic is not None:
            result[name] = topic.with_partitions(result[name], last_number(result.values()) + 1)
    return result


def topic_of(source: Source) -> KafkaSource | None:
    """Return the topic that a source reads, be it by a step of Spark's; None for one that reads none."""
    stored = source.stored if isinstance(source, DerivedSource) else source
    return stored if isinstance(stored, KafkaSource) else None


class Pieces:
    """The pieces of a group of sources: `sources`, `offsets`, and the source that each is of (`owners`), by name of the piece."""

    def __init__(
        self,
        names: Sequence[str],
        sources: Mapping[str, Source],
        offsets: Mapping[str, SourceOffset],
        recorded: Mapping[str, SourceOffset],
    ) -> None:
        """`recorded` are the offsets of the last checkpoint."""
        self._names = tuple(names)
        self.sources: dict[str, Source] = {}
        self.offsets: dict[str, SourceOffset] = {}
        self.owners: dict[str, str] = {}
        for name in names:
            source, offset = sources[name], offsets[name]
            topic = topic_of(source)
            if topic is not None:
                is_drawn = topic.is_drawn(recorded.get(name, SourceOffset()))
                for one in offset.partitions:
                    partition = KafkaPartition(topic, one.partition, is_drawn=is_drawn)
                    piece = source.over(partition) if isinstance(source, DerivedSource) else partition
                    self._add(f"{name}[{one.partition}]", name, piece, _apart(offset, one))
            else:
                self._add(name, name, source, offset)

    def _add(self, piece: str, owner: str, source: Source, offset: SourceOffset) -> None:
        self.sources[piece], self.offsets[piece], self.owners[piece] = source, offset, owner

    def joined(self, part: Part, offsets: Mapping[str, SourceOffset]) -> Part:
        """Return the part of a slice with sources in place of their pieces; `offsets` are those before it."""
        moved: dict[str, SourceOffset] = {}
        for name in self._names:
            own = [piece for piece, owner in self.owners.items() if owner == name]
            moved[name] = (
                part.offsets[name]
                if own == [name]
                else _together(offsets[name], [part.offsets[piece] for piece in own])
            )
        return replace(
            part,
            line=replace(part.line, sources=self._names),
            files=tuple(msgspec.structs.replace(file, source=self.owners[file.source]) for file in part.files),
            offsets=moved,
        )


def _apart(offset: SourceOffset, one: PartitionOffset) -> SourceOffset:
    """Return the offset of a partition as that of a source."""
    return msgspec.structs.replace(
        offset,
        number=one.number,
        version=one.position,
        last_file=one.last_file,
        unread=one.unread,
        rows_taken=one.rows_taken,
        taken_at=one.taken_at,
        idle=one.idle,
        partitions=(),
    )


def _together(offset: SourceOffset, moved: Sequence[SourceOffset]) -> SourceOffset:
    """Return the offset of a topic, whose partitions have `moved`, in their order."""
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
        unread=tuple(name for one in partitions for name in one.unread),
        taken_at=max((one.taken_at for one in partitions if one.taken_at is not None), default=None),
        watermark=moved[0].watermark,
        tables=next((after.tables for after in moved if after.tables != offset.tables), offset.tables),
        idle=all(one.idle for one in partitions),
        names=(),
    )
