"""A topic of Apache Kafka as a source. Each of its partitions is a source of its own in the merge.

The driver fixes ranges of offsets and lands them (`headrace.sources.landed`); a landed file is a file of its partition, so arrival
order within a partition is that of offsets. It does not depend on how offsets are cut into ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from headrace.api import SourceNode
from headrace.config import SourceConfig, StartKind
from headrace.errors import EngineBug
from headrace.sources.file_format import UNREADABLE, unreadable
from headrace.sources.interval import Interval
from headrace.sources.kafka_faults import KafkaFaults
from headrace.sources.landed import LandedName, OffsetRange, digest_of, landed_name, list_landed, parse_landed
from headrace.sources.messages import Messages, message_times, read_messages
from headrace.sources.offset import PartitionOffset, SourceOffset
from headrace.sources.parquet_files import count_rows
from headrace.sources.source import Ahead, SourceFile, TableReach, TakenIn
from headrace.sources.topic import Topic, TopicState
from headrace.tables.files import Storage, is_file

OFFSETS_AT_ONCE: Final = 100_000
"""Offsets of a partition that one micro-batch reads, unless the job's file says otherwise."""


class KafkaSource:
    """The driver's view of a topic as a whole: its partitions, and its landed files."""

    def __init__(
        self, source: SourceNode, config: SourceConfig, storage: Storage, folder: str, topic: Topic | None = None
    ) -> None:
        """`folder` is that of the landed files. Without a `topic` only these can be read. Nothing is read yet."""
        self.node, self.config, self.storage, self.folder = source, config, storage, folder
        self.faults = KafkaFaults(source.name, config)
        self._topic = topic
        self._state: TopicState | None = None
        self._landed: dict[str, LandedName] | None = None
        self._next: dict[str, OffsetRange] = {}
        """Files that are not landed yet, and that the next micro-batch begins with: one of a partition at most."""

    # --------------------------------------------------------------------------------------------------- partitions

    def with_partitions(self, offset: SourceOffset, number: int) -> SourceOffset:
        """Look at the topic; return the offset with all its partitions. New ones get numbers from `number` on.

        At the first look partitions begin where `start` says, later ones at their first message. Raises `SourceError` for another
        topic than the one that was read, and for partitions that are gone.
        """
        self._next = {}
        state = self._state = self._reader().state()
        if offset.table is not None and offset.table != state.topic_id:
            raise self.faults.replaced(state.topic_id, offset.table)
        known = {one.partition: one for one in offset.partitions}
        if gone := sorted(known.keys() - state.partitions.keys()):
            raise self.faults.without(gone[0])
        new = sorted(state.partitions.keys() - known.keys())
        starts = self._starts(state) if not known else {}
        for place, partition in enumerate(new):
            first = starts.get(partition, state.partitions[partition].first)
            known[partition] = PartitionOffset(partition, number + place, first)
        ordered = tuple(known[partition] for partition in sorted(known))
        return msgspec.structs.replace(offset, partitions=ordered, table=state.topic_id)

    def _starts(self, state: TopicState) -> Mapping[int, int]:
        start = self.config.begins_at
        if start.kind is StartKind.LATEST:
            return {partition: bounds.end for partition, bounds in state.partitions.items()}
        return self._reader().offsets_at(start.value) if start.kind is StartKind.TIME else {}

    def is_drawn(self, offset: SourceOffset) -> bool:
        """Tell whether a later first look would begin elsewhere; `offset` is the one in the last checkpoint."""
        return not offset.partitions and self.config.begins_at.kind is not StartKind.EARLIEST

    def _reader(self) -> Topic:
        if self._topic is None:
            msg = f"source '{self.node.name}' is asked for new messages where nobody can ask the brokers"
            raise EngineBug(msg)
        return self._topic

    # ------------------------------------------------------------------------------------------------- landed files

    def file(self, name: str) -> SourceFile:
        """Return a landed file, or one that is to be landed."""
        return SourceFile(name, f"{self.folder}/{name}", 0, messages=Messages(self.config.on_tombstone))

    def ranges(self, partition: int, position: int) -> list[str]:
        """Return the names of the files from `position` on, up to the partition's end: those that are landed already first.

        Raises `SourceError` for messages that are gone, where none come before them.
        """
        assert self._state is not None  # noqa: S101 - `with_partitions` is called first
        bounds, names = self._state.partitions[partition], list[str]()
        while (position := self._behind_skipped(partition, position)) < bounds.end:
            landed = self._landed_from(partition, position)
            if landed is not None:
                names.append(landed.name)
                position = landed.range.end
            elif position < bounds.first:
                if names:
                    break
                raise self.faults.expired(partition, position, bounds.first)
            else:
                end = min(position + self._step(), self._next_skipped(partition, position), bounds.end)
                offsets = OffsetRange(partition, position, end)
                names.append(landed_name(self.config.topic or "", self._state.topic_id, offsets))
                position = end
        if position > bounds.end and not names and not self._is_skipped_to(partition, position):
            raise self.faults.behind(partition, bounds.end, position)
        return names

    def comes_next(self, name: str) -> None:
        """Land a file together with others of this call: the next micro-batch begins with it."""
        if name not in self._known_files() and (landed := parse_landed(name)) is not None:
            self._next[name] = landed.range

    def land(self, name: str) -> None:
        """Land a file, unless it is there; together with those that come next in other partitions."""
        landed = parse_landed(name)
        if landed is None or name in self._known_files():
            return
        ranges = {landed.range: name}
        if name in self._next:
            ranges = {offsets: other for other, offsets in self._next.items()}
            self._next = {}
        self._reader().land(ranges, self.folder, self.storage)
        self._known_files().update({name: one for name in ranges.values() if (one := parse_landed(name)) is not None})

    def _landed_from(self, partition: int, position: int) -> LandedName | None:
        """Return the landed file whose range begins here; None where there is none, or `skip_offsets` passes over a part of it."""
        assert self._state is not None  # noqa: S101 - `with_partitions` is called first
        topic_id = digest_of(self._state.topic_id)
        for one in self._known_files().values():
            if (one.range.partition, one.range.first, one.topic_id) == (partition, position, topic_id):
                return one if one.range.end <= self._next_skipped(partition, position) else None
        return None

    def _known_files(self) -> dict[str, LandedName]:
        if self._landed is None:
            self._landed = {one.name: one for one in list_landed(self.folder, self.storage)}
        return self._landed

    def _step(self) -> int:
        assert self._state is not None  # noqa: S101 - `with_partitions` is called first
        limit = self.config.max_rows_per_batch
        return OFFSETS_AT_ONCE if limit is None else max(1, limit // len(self._state.partitions))

    def _behind_skipped(self, partition: int, position: int) -> int:
        skipped = sorted(self.config.skipped_offsets.get(partition, ()), key=lambda offsets: offsets.start)
        for offsets in skipped:
            position = offsets.stop if position in offsets else position
        return position

    def _is_skipped_to(self, partition: int, position: int) -> bool:
        return any(offsets.stop == position for offsets in self.config.skipped_offsets.get(partition, ()))

    def _next_skipped(self, partition: int, position: int) -> int:
        starts = (offsets.start for offsets in self.config.skipped_offsets.get(partition, ()))
        return min((start for start in starts if start > position), default=1 << 63)

    # ------------------------------------------------------------------------------------------------ as a `Source`

    def latest(self) -> str | None:
        """See `Source.latest`: partitions have no common last file."""
        return None

    def ahead(
        self,
        offset: SourceOffset,  # noqa: ARG002 - never answered
        taken_in: TakenIn,  # noqa: ARG002 - as above
        *,
        interval: Interval | None = None,  # noqa: ARG002 - as above
        until: str | None = None,  # noqa: ARG002 - as above
        meets: bool = False,  # noqa: ARG002 - as above
    ) -> Ahead:
        """See `Source.ahead`: partitions are asked, never the topic."""
        raise EngineBug(f"source '{self.node.name}' was read as a whole, not by partition")

    def listed(self) -> Sequence[SourceFile]:
        """See `Source.listed`: offsets tell what was taken in."""
        return ()

    def named(self, names: Collection[str]) -> dict[str, SourceFile]:
        """See `Source.named`: the landed files of these names."""
        files = {name: self.file(name) for name in names if parse_landed(name) is not None}
        return {name: file for name, file in files.items() if is_file(file.path, self.storage)}

    def within_limits(self, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
        """See `Source.within_limits`: a range is never larger than they say."""
        return files[:1]

    def rows(self, file: SourceFile) -> int:
        """See `Source.rows`."""
        try:
            return count_rows(file.path, self.storage)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def event_times(self, file: SourceFile) -> pa.Int64Array:
        """See `Source.event_times`. Lands the file if it is not there."""
        self.land(file.name)
        try:
            return message_times(read_messages(file.path, self.storage), self.node)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def passed(
        self,
        offset: SourceOffset,  # noqa: ARG002 - never answered
        look: Ahead,  # noqa: ARG002 - as above
        files: Sequence[SourceFile],  # noqa: ARG002 - as above
        taken_in: TakenIn,  # noqa: ARG002 - as above
        interval: Interval | None = None,  # noqa: ARG002 - as above
    ) -> SourceOffset:
        """See `Source.passed`: partitions are asked, never the topic."""
        raise EngineBug(f"source '{self.node.name}' was read as a whole, not by partition")

    def interval_of(self, name: str) -> Interval | None:  # noqa: ARG002 - of no file
        """See `Source.interval_of`: offsets have no intervals."""
        return None

    def check_intervals(self, taken_in: TakenIn) -> None:  # noqa: ARG002 - none will do
        """Raise `ConfigError`: offsets have no intervals."""
        raise self.faults.no_intervals()

    def count_missing(self, names: frozenset[str]) -> int:  # noqa: ARG002 - checkpoints record none
        """See `Source.count_missing`: offsets tell what was taken in, not names."""
        return 0


class KafkaPartition:
    """One partition of a topic, as a source of the merge. The `version` of its offset is the next offset to read."""

    def __init__(self, whole: KafkaSource, partition: int, *, is_drawn: bool) -> None:
        """`is_drawn`: a later first look would begin elsewhere, so a checkpoint has to record this one."""
        self._whole, self._partition, self._is_drawn = whole, partition, is_drawn

    def land(self, name: str) -> None:
        """Land a file, unless it is there."""
        self._whole.land(name)

    def latest(self) -> str | None:
        """See `Source.latest`."""
        return None

    def ahead(
        self,
        offset: SourceOffset,
        taken_in: TakenIn,  # noqa: ARG002 - offsets tell what was taken in
        *,
        interval: Interval | None = None,
        until: str | None = None,
        meets: bool = False,  # noqa: ARG002 - as above
    ) -> Ahead:
        """See `Source.ahead`. Files that are not landed yet are among them."""
        if interval is not None or until is not None:
            raise self._whole.faults.no_intervals()
        position = offset.version or 0
        names = [*offset.unread, *self._whole.ranges(self._partition, position)]
        if gone := sorted({*offset.unread} - self._whole.named(offset.unread).keys()):
            raise self._whole.faults.gone(self._whole.folder, gone)
        if names and not offset.unread:
            self._whole.comes_next(names[0])
        files = tuple(self._whole.file(name) for name in names)
        return Ahead(files, files, TableReach(offset.table or "", position, is_drawn=self._is_drawn))

    def listed(self) -> Sequence[SourceFile]:
        """See `Source.listed`: offsets tell what was taken in."""
        return ()

    def named(self, names: Collection[str]) -> dict[str, SourceFile]:
        """See `Source.named`."""
        return self._whole.named(names)

    def within_limits(self, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
        """See `Source.within_limits`."""
        return self._whole.within_limits(files)

    def rows(self, file: SourceFile) -> int:
        """See `Source.rows`."""
        return self._whole.rows(file)

    def event_times(self, file: SourceFile) -> pa.Int64Array:
        """See `Source.event_times`."""
        return self._whole.event_times(file)

    def passed(
        self,
        offset: SourceOffset,
        look: Ahead,  # noqa: ARG002 - names of files say it all
        files: Sequence[SourceFile],
        taken_in: TakenIn,  # noqa: ARG002 - as above
        interval: Interval | None = None,  # noqa: ARG002 - as above
    ) -> SourceOffset:
        """See `Source.passed`."""
        ends = [landed.range.end for file in files if (landed := parse_landed(file.name)) is not None]
        return msgspec.structs.replace(
            offset,
            version=max([*ends, offset.version or 0]),
            last_file=files[-1].name if files else offset.last_file,
        )

    def interval_of(self, name: str) -> Interval | None:
        """See `Source.interval_of`."""
        return self._whole.interval_of(name)

    def check_intervals(self, taken_in: TakenIn) -> None:
        """See `Source.check_intervals`."""
        self._whole.check_intervals(taken_in)

    def count_missing(self, names: frozenset[str]) -> int:
        """See `Source.count_missing`."""
        return self._whole.count_missing(names)
