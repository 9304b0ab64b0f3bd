"""Apache Kafka topic as a source. The merge treats each partition as a separate source.

The driver chooses ranges of offsets and lands them (`headrace.sources.kafka.landed`); each landed file is a file of its partition. So
arrival order within a partition is the order of offsets. It does not depend on the ranges.

A branch also reads the files that its job has landed, and lands only what these lack. So it takes in the same messages as the job,
also where the topic has expired or compacted them since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import ClassVar, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.api.graph import SourceNode
from headrace.config import JobConfig, SourceConfig, StartKind
from headrace.errors import ConfigError, EngineBug, StorageError
from headrace.records.source_columns import EventTimeLimit
from headrace.records.watermarks import latest
from headrace.sources.folder.format import UNREADABLE, FileRows, unreadable
from headrace.sources.folder.parquet import count_rows
from headrace.sources.interval import Interval
from headrace.sources.kafka.errors import KafkaErrors
from headrace.sources.kafka.intervals import TopicIntervals
from headrace.sources.kafka.landed import (
    LandedName,
    OffsetRange,
    Topic,
    TopicState,
    digest_of,
    landed_folder,
    landed_name,
    list_landed,
    messages_name,
    parse_landed,
    publish_landed,
    temporary_name,
    write_messages,
)
from headrace.sources.kafka.messages import MessageReader, Messages, read_messages
from headrace.sources.kafka.registry import JobSchemas
from headrace.sources.kafka.schemas import schema_numbers
from headrace.sources.position import NO_FACTS, PartitionPosition, Position, SourceFacts, TopicPosition
from headrace.sources.row_check import event_times_of
from headrace.sources.source import Ahead, InputFile, Piece, Remark, Source, SourceFile, TableReach, Want
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

OFFSETS_AT_ONCE: Final = 100_000
"""Number of offsets of a partition that one micro-batch reads, unless the job's file sets another limit."""


class KafkaSource(Source):
    """Topic as a whole, read by the driver of a job: its partitions, and its landed files."""

    position: ClassVar[type[Position]] = TopicPosition

    @classmethod
    def of(cls, node: SourceNode, job: JobConfig, connection: Topic | None = None) -> Self:
        """Make the source that the pipeline declares as `node`. Without a `connection`, it has only the files that are landed."""
        folder = landed_folder(JobFolder.of(job), node.name)
        of_job = None if job.branch is None else landed_folder(JobFolder.of(job.itself), node.name)
        schemas = JobSchemas.of(job, node.name)
        return cls(node, job.sources[node.name], folder, connection, job_folder=of_job, job=job.job, schemas=schemas)

    def __init__(
        self,
        source: SourceNode,
        config: SourceConfig,
        folder: Storage,
        topic: Topic | None = None,
        *,
        job_folder: Storage | None = None,
        job: str = "JOB",
        schemas: JobSchemas | None = None,
    ) -> None:
        """Keep the `folder` of landed files and the `topic`; without a topic, only landed files can be read. Read nothing yet.

        On a branch, `job_folder` has the landed files of the job. `schemas` are those whose numbers the messages begin with.
        """
        self.node, self.config, self.folder = source, config, folder
        self.errors = KafkaErrors(source.name, config, is_branch=job_folder is not None, job=job)
        self._topic, self._job_folder, self._schemas = topic, job_folder, schemas
        self._state: TopicState | None = None
        self._landed: dict[str, LandedName] | None = None
        self._of_job: frozenset[str] = frozenset()
        """Landed files that only the job of a branch has."""
        self._with_schemas: set[str] = set()
        """Files whose schemas are stored."""
        self._next: dict[str, OffsetRange] = {}
        """Files that the next micro-batch begins with and that are not landed yet: at most one per partition."""
        self._intervals = self._intervals_of(config)
        self.ends: Mapping[int, int] | None = None
        """Offsets before which the wanted interval ends, by partition; None without one."""
        self.planned: dict[int, Sequence[str]] = {}
        """Files that the slice may take in, by partition."""
        self._times: dict[str, pa.Table] = {}
        """Offsets and timestamps of these files."""
        self._until: Mapping[int, PartitionPosition] = {}
        """Positions after the recorded micro-batch that the slice repeats; none without one."""

    def _intervals_of(self, config: SourceConfig) -> TopicIntervals | None:
        if config.intervals is None:
            return None
        idle_after = config.intervals.idle_after // timedelta(milliseconds=1)
        return TopicIntervals(self.errors, idle_after, self.ranges, self._times_of)

    @staticmethod
    def read(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
        """Read all messages of a landed file. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
        messages = MessageReader(node, msgspec.json.decode(file.facts, type=Messages), storage)
        table = read_messages(storage.at(file.path))
        return FileRows(table, texts=partial(messages.raw, table), decoder=messages)

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:  # noqa: ARG002 - as of any position
        """Yield that nobody looks at the topic before the first run."""
        yield Remark("ok", f"{self.config.place} (not looked at: the first run asks the brokers)")

    # --------------------------------------------------------------------------------------------------- partitions

    def with_pieces(
        self, facts: SourceFacts, number: int, until: SourceFacts | None = None, interval: Interval | None = None
    ) -> SourceFacts:
        """Ask the brokers for the topic's partitions; return the facts with all of them. New partitions get numbers from `number` on.

        At the first call, partitions begin where `start` says, and not before an `interval`; partitions that appear later begin at their first
        message. A slice that ends where a recorded micro-batch did, at the position in `until`, has the partitions of that micro-batch. Raises
        `SourceError` for a topic that was replaced, and for a partition that no longer exists; `OpenIntervalError` where more messages may come to
        the interval.
        """
        self._next, self.ends, self.planned, self._times = {}, None, {}, {}
        self._until = {} if until is None else until.partitions
        state = self._state = self._reader().state()
        read = facts.position_as(TopicPosition) or (None if until is None else until.position_as(TopicPosition))
        if read is not None and read.topic_id != state.topic_id:
            raise self.errors.replaced(state.topic_id, read.topic_id)
        known = dict(facts.partitions)
        recorded = {} if until is None else until.partitions
        if missing := sorted((known.keys() | recorded.keys()) - state.partitions.keys()):
            raise self.errors.without(missing[0])
        if until is not None:
            return _with(facts, {**{name: _beginning(own) for name, own in recorded.items()}, **known}, state)
        new = sorted(state.partitions.keys() - known.keys())
        starts = self._starts(state, interval) if not known else {}
        for place, partition in enumerate(new):
            first = starts.get(partition, state.partitions[partition].first)
            known[partition] = PartitionPosition(number=number + place, begins_at=first, next=first)
        if interval is not None and self._intervals is not None:
            self.ends = self._ends_of(self._intervals, known, interval)
        return _with(facts, known, self._state)

    def _starts(self, state: TopicState, interval: Interval | None) -> Mapping[int, int]:
        start = self.config.begins_at
        starts = {partition: bounds.first for partition, bounds in state.partitions.items()}
        if start.kind is StartKind.LATEST:
            return {partition: bounds.end for partition, bounds in state.partitions.items()}
        if start.kind is StartKind.TIME:
            first = self._reader().first_since(start.value)
            starts = {
                partition: first[partition].offset if partition in first else bounds.end
                for partition, bounds in state.partitions.items()
            }
        if interval is None or self._intervals is None:
            return starts
        begins = self._intervals.beginnings(self._reader().first_since(interval.start), starts, interval.start)
        return {
            partition: max(starts[partition], bounds.end) if (begin := begins[partition]) is None else begin
            for partition, bounds in state.partitions.items()
        }

    def _ends_of(
        self, intervals: TopicIntervals, positions: Mapping[int, PartitionPosition], interval: Interval
    ) -> Mapping[int, int]:
        """Return by partition the offset before which an interval ends, and look at the topic again where it got messages meanwhile."""
        places = {partition: own.next for partition, own in positions.items()}
        ends = intervals.ends(self._reader().first_since(interval.end), places, interval)
        assert self._state is not None  # noqa: S101 - `with_pieces` has set it
        bounds = self._state.partitions
        if any(end is not None and end > bounds[partition].end for partition, end in ends.items()):
            self._state = self._reader().state()
        return {
            partition: max(places[partition], bounds[partition].end) if end is None else end
            for partition, end in ends.items()
        }

    def interval_of(self, name: str) -> Interval | None:
        """Return the millisecond of the earliest message of a file; None without intervals, and without a message that has a time."""
        earliest = None if self._intervals is None else self._intervals.earliest(name)
        return None if earliest is None else Interval(earliest, earliest + 1)

    def _times_of(self, name: str) -> pa.Table:
        """Return offsets and timestamps of a file's messages, and land it first. Raises as `land` does."""
        if name not in self._times:
            self._land(name)
            path = self.file(name).path
            try:
                with self.folder.at(path).open() as file:
                    self._times[name] = pq.ParquetFile(file).read(["offset", "timestamp"])
            except UNREADABLE as error:
                raise unreadable(self.node.name, path, error) from error
        return self._times[name]

    def _latest(self, partition: int, before: PartitionPosition, after: PartitionPosition) -> int | None:
        """Return the time of the latest message of a partition that is taken in (ms); rows that wait for others are not."""
        if self._intervals is None:
            return None
        recorded = self._until.get(partition)
        if recorded is not None and (recorded.next, recorded.begun, recorded.rows) == (
            after.next,
            after.begun,
            after.rows,
        ):
            return recorded.latest  # as it was told then: a time that lay too far ahead may not do so any more
        taken = [before.latest, *(self._intervals.latest(*part) for part in self._taken(partition, before, after))]
        return latest(taken)

    def check_corrected(self, facts: SourceFacts, interval: Interval) -> None:
        """Raise `SourceError` where times of messages go back over an end of an interval: they would count for another one."""
        for number, own in facts.partitions.items():
            if self._intervals is None or self.ends is None:
                continue
            end = self.ends[number]
            until = msgspec.structs.replace(own, next=end, begun=())
            for name in (*self.recorded_ranges(number, own.next, until), *self.ranges(number, end)):
                if (offset := self._intervals.out_of(name, end, interval)) is not None:
                    raise self.errors.goes_back(number, offset, interval)

    def fingerprints_of(self, partition: int, files: Sequence[SourceFile]) -> dict[str, str]:
        """Return which messages of a partition the planned files have, by the partition's name."""
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        offsets = [offset for file in files for offset in self._times_of(file.name)["offset"].to_pylist()]
        taken = f"{min(offsets)} to {max(offsets)}, {len(offsets)} of them" if offsets else "none"
        return {f"partition {partition}": f"offsets {taken}, of topic {self._state.topic_id}"}

    def read_up_to(self, facts: SourceFacts) -> int | None:
        """Return the time behind all messages that were read, whether they wait or not (ms); None where the landed files of those are gone."""
        topic = facts.position_as(TopicPosition)
        if topic is None or self._intervals is None:
            return 0
        times = [topic.latest]
        for own in topic.partitions.values():
            if len(self.find(own.begun)) < len(own.begun):
                return None
            waiting = ((name, own.rows if place == 0 else 0) for place, name in enumerate(own.begun))
            times += [self._intervals.latest(name, slice(first, None)) for name, first in waiting]
        return max((time + 1 for time in times if time is not None), default=0)

    def _taken(
        self, partition: int, before: PartitionPosition, after: PartitionPosition
    ) -> Iterator[tuple[str, slice]]:
        """Yield the files of a partition that the slice took messages of, and which."""
        for name in self.planned.get(partition, ()):
            place = messages_name(name)
            first = before.rows if name in before.begun[:1] else 0
            if after.begun and place == messages_name(after.begun[0]):
                is_of_messages = place == name  # rows of a transform are no messages: none of them counts yet
                yield place, slice(first, after.rows if is_of_messages else first)
                return
            if _end_of(place) > after.next:
                return
            yield place, slice(first, None)

    def pieces(
        self, name: str, facts: SourceFacts, recorded: SourceFacts, until: SourceFacts | None = None
    ) -> Sequence[Piece]:
        """Return the partitions, with their facts."""
        is_drawn = not recorded.partitions and self.config.begins_at.kind is not StartKind.EARLIEST
        ends = {} if until is None else until.partitions
        return [
            Piece(
                f"{name}[{number}]",
                KafkaPartition(self, number, is_provisional=is_drawn, until=ends.get(number)),
                _of_partition(facts, own),
                None if until is None or number not in ends else _of_partition(until, ends[number]),
            )
            for number, own in facts.partitions.items()
        ]

    def joined(self, facts: SourceFacts, moved: Sequence[SourceFacts]) -> SourceFacts:
        """Return the facts of the topic from those of its partitions, in their order."""
        topic = facts.position_as(TopicPosition)
        assert topic is not None  # noqa: S101 - `with_pieces` has set it
        partitions = {
            number: msgspec.structs.replace(
                own := _position_of(after),
                taken_at=after.taken_at,
                idle=after.idle,
                latest=self._latest(number, before, own),
            )
            for (number, before), after in zip(facts.partitions.items(), moved, strict=True)
        }
        return msgspec.structs.replace(
            facts,
            position=msgspec.structs.replace(topic, partitions=partitions),
            taken_at=latest(partition.taken_at for partition in partitions.values()),
            tables=next((after.tables for after in moved if after.tables != facts.tables), facts.tables),
            file_tables=tuple(versions for after in moved for versions in after.file_tables),
            idle=all(partition.idle for partition in partitions.values()),
            taken=(),
        )

    def _reader(self) -> Topic:
        if self._topic is None:
            msg = f"source '{self.node.name}' was asked for new messages without a connection to the brokers"
            raise EngineBug(msg)
        return self._topic

    # ------------------------------------------------------------------------------------------------- landed files

    def file(self, name: str) -> SourceFile:
        """Return the file with this name, landed or to be landed."""
        folder = self.folder if self._job_folder is None or not self._is_of_job(name) else self._job_folder
        facts = msgspec.Raw(msgspec.json.encode(self._messages))
        return SourceFile(name, folder.within(name), 0, self.config.format, facts)

    @cached_property
    def _messages(self) -> Messages:
        """Settings for decoding messages. Raises `ConfigError` where the file with their schema cannot be read."""
        schemas = None if self._schemas is None else self._schemas.store.folder.uri
        return Messages.of(self.config, schemas, self._given_schema())

    def _given_schema(self) -> str | None:
        if (place := self.config.schema) is None:
            return None
        try:
            return self.folder.at(place).read().decode()
        except (StorageError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"source '{self.node.name}': the schema {place} cannot be read ({error}). Nothing was taken in. Correct "
                f"sources.{self.node.name}.schema."
            ) from error

    def ranges(self, partition: int, position: int) -> list[str]:
        """Return the names of the files from `position` to the partition's end; files that are landed already come first.

        Raises `SourceError` where the partition no longer has the next message, or ends before `position`.
        """
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        bounds, names = self._state.partitions[partition], list[str]()
        while (position := self._behind_skipped(partition, position)) < bounds.end:
            landed = self._landed_from(partition, position)
            if landed is None and position < bounds.first and names:
                break
            names.append(self._next_range(partition, position, bounds.end) if landed is None else landed.name)
            position = _end_of(names[-1])
        if position > bounds.end and not names and not self._is_skipped_to(partition, position):
            raise self.errors.behind(partition, bounds.end, position)
        return names

    def recorded_ranges(self, partition: int, position: int, until: PartitionPosition) -> list[str]:
        """Return the names of the files from `position` to where a recorded micro-batch came to.

        The files that it had begun are among them, under the names that it recorded: a file that no longer exists is landed again.
        Raises `SourceError` where neither the topic nor a landed file has the next message.
        """
        unread = {landed.range.first: landed for name in until.begun if (landed := parse_landed(messages_name(name)))}
        names = list[str]()
        while (position := self._behind_skipped(partition, position)) < until.next:
            end = min([first for first in unread if first > position], default=until.next)
            landed = unread.get(position) or self._landed_from(partition, position)
            fits = landed is not None and landed.range.end <= min(
                until.next if position in unread else end, self._next_skipped(partition, position)
            )
            names.append(landed.name if landed is not None and fits else self._next_range(partition, position, end))
            position = _end_of(names[-1])
        return names

    def _next_range(self, partition: int, position: int, end: int) -> str:
        """Return a name for a file that begins at `position`, to be landed.

        Raises `SourceError` where the messages are neither in the topic nor in a landed file.
        """
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        first, last = self._state.partitions[partition]
        end = min(position + self._step(), self._next_skipped(partition, position), end)
        if not first <= position < last:
            around = self._landed_around(partition, position)
            if around is None:
                raise (
                    self.errors.expired(partition, position, first)
                    if position < first
                    else self.errors.behind(partition, last, position)
                )
            end = min(end, around.range.end)
        else:
            end = min(end, last)
        return landed_name(self.config.topic or "", self._state.topic_id, OffsetRange(partition, position, end))

    def reaches_beyond(self, partition: int, offset: int) -> bool:
        """Return whether a partition has messages from an offset on."""
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        return self._state.partitions[partition].end > offset

    def schedule_landing(self, name: str) -> None:
        """Note that the next micro-batch begins with this file; `land` lands all noted files together."""
        if name not in self._known_files() and (landed := parse_landed(name)) is not None:
            self._next[name] = landed.range

    def land(self, name: str) -> None:
        """Land a file unless it is landed already, together with the scheduled files of other partitions, and have the schemas of its messages.

        Raises as the methods of `Topic` and `SchemaRegistry` do.
        """
        self._land(name)
        self._provide_schemas(name)

    def reader(self, messages: pa.Table) -> MessageReader:
        """Return a decoder of messages, and have their schemas first. Raises as the methods of `SchemaRegistry` do."""
        columns = self._messages.with_schemas
        if self._schemas is not None and columns:
            self._schemas.provide({number for name in columns for number in schema_numbers(messages[name])})
        return MessageReader(self.node, self._messages, self.folder)

    def _provide_schemas(self, name: str) -> None:
        """Store the schemas that messages of a landed file were written with, once in a run. Raises `SourceError` where it cannot be read."""
        columns = self._messages.with_schemas
        if not columns or name in self._with_schemas:
            return
        path = self.file(name).path
        try:
            with self.folder.at(path).open() as file:
                messages = pq.ParquetFile(file).read(columns)
        except UNREADABLE as error:
            raise unreadable(self.node.name, path, error) from error
        self.reader(messages)
        self._with_schemas.add(name)

    def _land(self, name: str) -> None:
        landed = parse_landed(name)
        if landed is None or name in self._known_files():
            return
        ranges = {landed.range: name}
        if name in self._next:
            ranges = {offsets: other for other, offsets in self._next.items()}
            self._next = {}
        in_topic = {offsets: other for offsets, other in ranges.items() if not self._copied(offsets, other)}
        if in_topic:
            self._reader().land(in_topic, self.folder)
        self._known_files().update({name: file for name in ranges.values() if (file := parse_landed(name)) is not None})

    def _copied(self, offsets: OffsetRange, name: str) -> bool:
        """Land a range from a landed file that has all of it; return whether there is one."""
        around = self._landed_around(offsets.partition, offsets.first)
        if around is None or around.range.end < offsets.end:
            return False
        messages = self.folder.at(self.file(around.name).path).parquet()
        within = pc.and_(pc.greater_equal(messages["offset"], offsets.first), pc.less(messages["offset"], offsets.end))
        temporary = temporary_name()
        write_messages(self.folder.below(temporary), messages.filter(within).to_batches())
        publish_landed(self.folder, temporary, name)
        return True

    def _landed_around(self, partition: int, position: int) -> LandedName | None:
        """Return the landed file with this offset that reaches furthest; None without one."""
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        topic_id = digest_of(self._state.topic_id)
        around = (
            file
            for file in self._known_files().values()
            if (file.range.partition, file.topic_id) == (partition, topic_id)
            and file.range.first <= position < file.range.end
        )
        return max(around, key=lambda file: file.range.end, default=None)

    def _landed_from(self, partition: int, position: int) -> LandedName | None:
        """Return the landed file whose range begins here; None without one, or if `skip_offsets` skips a part of it."""
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
        topic_id = digest_of(self._state.topic_id)
        for file in self._known_files().values():
            if (file.range.partition, file.range.first, file.topic_id) == (partition, position, topic_id):
                return file if file.range.end <= self._next_skipped(partition, position) else None
        return None

    def _known_files(self) -> dict[str, LandedName]:
        if self._landed is None:
            own = list_landed(self.folder)
            of_job = [] if self._job_folder is None else list_landed(self._job_folder)
            self._landed = {file.name: file for file in (*own, *of_job)}
            self._of_job = frozenset(file.name for file in of_job) - {file.name for file in own}
        return self._landed

    def _is_of_job(self, name: str) -> bool:
        self._known_files()
        return name in self._of_job

    def _step(self) -> int:
        assert self._state is not None  # noqa: S101 - `with_pieces` is called first
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

    def plan(self, since: SourceFacts, want: Want) -> Ahead:  # noqa: ARG002 - only partitions are read
        """Raise `EngineBug`: only partitions have input ahead, never the topic."""
        raise EngineBug(f"source '{self.node.name}' was read as a whole, not by partition")

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the landed files with these names."""
        files = {name: self.file(name) for name in names if parse_landed(name) is not None}
        return {name: file for name, file in files.items() if self.folder.at(file.path).has()}

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first file: no range is larger than the limits. Without a limit of rows, a begun file does not count."""
        return files[: 1 + (rows_taken > 0 and self.config.max_rows_per_batch is None)]

    def rows(self, file: SourceFile) -> int:
        """Count the messages of a landed file, which are to be taken in. Raises `SourceError` where it cannot be read, and as `land` does."""
        try:
            self._provide_schemas(file.name)
            return count_rows(self.folder.at(file.path))
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file's messages (ms), null for a refused one, also one beyond the `limit`; land the file first if necessary.

        Raises `SourceError` where the file cannot be read.
        """
        self.land(file.name)
        try:
            return event_times_of(self.read(file, self.node, self.folder), self.node, limit)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:  # noqa: ARG002
        """Raise `EngineBug`: only partitions have positions of their own, never the topic."""
        raise EngineBug(f"source '{self.node.name}' was read as a whole, not by partition")


class KafkaPartition(Source):
    """Partition of a topic, as a source of the merge. The position in its facts is that of the partition."""

    def __init__(
        self, whole: KafkaSource, partition: int, *, is_provisional: bool, until: PartitionPosition | None = None
    ) -> None:
        """Make a source of one partition. `is_provisional`: a later first look would begin elsewhere, so a checkpoint must record it.

        `until` is the position after the micro-batch that a slice repeats.
        """
        self._whole, self._partition, self._is_drawn, self._until = whole, partition, is_provisional, until

    def prepare(self, files: Sequence[SourceFile]) -> None:
        """Land files, unless they are landed already."""
        for file in files:
            self._whole.land(file.name)

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:  # noqa: ARG002 - as of any position
        """Yield the remarks on the topic."""
        return self._whole.remarks()

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return the files to take in next, also those that are not landed yet.

        `until` is no name of a file: with it, the files end at the recorded position. Raises `SourceError` where a landed file or the
        next message is gone.
        """
        position = _position_of(since)
        begun = position.begun
        names = [*begun, *self._next(position, is_recorded=want.until is not None)]
        self._whole.planned[self._partition] = names
        if missing := sorted({*begun} - self._whole.find(begun).keys()):
            raise self._whole.errors.not_landed(self._whole.folder.uri, missing)
        if names and not begun:
            self._whole.schedule_landing(names[0])
        files = tuple(self._whole.file(name) for name in names)
        reach = TableReach(position.next, is_provisional=self._is_drawn)
        return Ahead(want, files, files, reach, has_waiting=self._has_later(want))

    def _next(self, position: PartitionPosition, *, is_recorded: bool) -> list[str]:
        until, ends = self._until, self._whole.ends
        if not is_recorded and ends is None:
            return self._whole.ranges(self._partition, position.next)
        if not is_recorded and ends is not None:
            until = msgspec.structs.replace(position, next=ends[self._partition], begun=())
        if until is None:
            return []
        return self._whole.recorded_ranges(self._partition, position.next, until)

    def _has_later(self, want: Want) -> bool:
        """Return whether the partition has messages behind the wanted interval."""
        ends = self._whole.ends
        return (
            want.until is None
            and ends is not None
            and self._whole.reaches_beyond(self._partition, ends[self._partition])
        )

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the landed files with these names."""
        return self._whole.find(names)

    def fingerprints(self, files: Sequence[SourceFile]) -> dict[str, str]:
        """Return which messages the planned files have."""
        return self._whole.fingerprints_of(self._partition, files)

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take."""
        return self._whole.within_limits(files, rows_taken)

    def rows(self, file: SourceFile) -> int:
        """Count the messages of a landed file. Raises `SourceError` where it cannot be read."""
        return self._whole.rows(file)

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file's messages (ms), null for a refused one, also one beyond the `limit`; land the file first if necessary."""
        return self._whole.event_times(file, limit)

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after these files: their names hold the offsets. A repeated slice ends where it did, whatever is skipped since then."""
        ends = [landed.range.end for file in files if (landed := parse_landed(file.name)) is not None]
        if self._until is not None and len(files) == len(ahead.files):
            ends.append(self._until.next)
        position = _position_of(since)
        return msgspec.structs.replace(
            since, position=msgspec.structs.replace(position, next=max([*ends, position.next]))
        )


def _with(facts: SourceFacts, partitions: Mapping[int, PartitionPosition], state: TopicState) -> SourceFacts:
    ordered = {number: partitions[number] for number in sorted(partitions)}
    return msgspec.structs.replace(facts, position=TopicPosition(state.topic_id, ordered))


def _beginning(recorded: PartitionPosition) -> PartitionPosition:
    """Return the position in a partition before the micro-batch that recorded it first."""
    return PartitionPosition(number=recorded.number, begins_at=recorded.begins_at, next=recorded.begins_at)


def _of_partition(facts: SourceFacts, own: PartitionPosition) -> SourceFacts:
    """Return the facts of a partition as those of a source."""
    return msgspec.structs.replace(facts, number=own.number, position=own, taken_at=own.taken_at, idle=own.idle)


def _position_of(facts: SourceFacts) -> PartitionPosition:
    position = facts.position_as(PartitionPosition)
    assert position is not None  # noqa: S101 - `pieces` gives a partition these facts
    return position


def _end_of(name: str) -> int:
    landed = parse_landed(name)
    assert landed is not None  # noqa: S101 - this module names the files
    return landed.range.end
