"""Rows that Spark's step over a source has made, landed as files of the job.

The step is applied to each file of the source by itself, once, and its rows are landed (as a topic's messages are, see
`headrace.sources.landed`) before any of them is taken in. Tasks read the landed file in place of the source's, so a micro-batch that
is tried again has the same rows in the same order. Its name is that of the source's file and a digest of the step:

    2026-03-01.json~1f3a9c2e.parquet    landed in    <job folder>/landed/<source>/2026-03-01.json~1f3a9c2e.parquet

Rows of the source that do not fit its own record never reach the step. They are behind the others, with the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Protocol
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api import SourceNode
from headrace.errors import SourceError
from headrace.plan.raw_row import raw_row
from headrace.plan.source_columns import arrival_order, event_times
from headrace.sources.dimension_tables import DimensionTables, Versions
from headrace.sources.file_format import UNREADABLE, FileRows, unreadable
from headrace.sources.interval import Interval
from headrace.sources.kafka import KafkaPartition
from headrace.sources.offset import SourceOffset, TableVersion
from headrace.sources.parquet_files import count_rows
from headrace.sources.source import Ahead, Source, SourceFile, TakenIn
from headrace.sources.step_rows import Refused
from headrace.tables.files import SMALL, Storage, file_system, is_file, make_folder_of, read_parquet

ERROR: Final = "_headrace_error"
RAW: Final = "_headrace_raw"
"""Columns of a landed file: why a row of the source was refused before the step, and its text."""

ORIGIN: Final = b"headrace.origin"
"""In the metadata of a landed file: its `Origin`, as JSON."""

_NAME: Final = re.compile(r"(.+)~([0-9a-f]{8})\.parquet", re.DOTALL)
_LONGEST: Final = 180


class Origin(msgspec.Struct, frozen=True):
    """Of what derived rows were made, besides the source: the versions of dimension tables, in the micro-batch that begins at `place`."""

    tables: dict[str, int] = {}
    place: str = ""


class Derivation(Protocol):
    """Spark's step over one source, as the driver sees it."""

    @property
    def tables(self) -> DimensionTables:
        """The dimension tables."""
        ...

    def digest(self) -> str:
        """Return 8 hexadecimal digits that another step would not have.

        Raises `ConfigError` for a step that Spark cannot plan, that does not say of each row by itself what becomes of it, or
        whose columns do not fit the record.
        """
        ...

    def derive(self, files: Mapping[str, SourceFile], origin: Origin) -> None:
        """Land what the step makes of each of the source's files, at the path that is its key, in their order.

        A file is there whole or not at all, also when this raises. Raises `SourceError` for a file that cannot be read,
        and where a value makes the step fail.
        """
        ...


def derived_name(stored: str, digest: str) -> str:
    """Return the name under which the rows of a source's file are taken in."""
    return f"{stored}~{digest}.parquet"


def stored_name(name: str) -> str:
    """Return the name of the source's file that rows were made of; a name that is no derived one stays."""
    match = _NAME.fullmatch(name)
    return name if match is None else match[1]


def landed_file(name: str) -> str:
    """Return the name of the landed file, which is part of a path: short enough, and without slashes."""
    match = _NAME.fullmatch(name)
    stored, digest = (name, "") if match is None else match.groups()
    text = quote(stored, safe="")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}-{blake2b(stored.encode(), digest_size=8).hexdigest()}"
    return derived_name(text, digest)


def write_derived(
    uri: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    refused: Sequence[Refused] = (),
    origin: Origin = Origin(),  # noqa: B008 - frozen
    storage: Storage = None,
) -> None:
    """Write derived rows of `schema`, in the order in which they come, and behind them those that were refused before the step.

    They are written as they come: only one batch is in memory. Raises `OSError`.
    """
    stored = pa.schema([*schema, pa.field(ERROR, pa.string()), pa.field(RAW, pa.string())])
    store, path = file_system(uri, storage)
    make_folder_of(uri, storage)
    metadata = {ORIGIN: msgspec.json.encode(origin)}
    with pq.ParquetWriter(
        path, stored.with_metadata(metadata), filesystem=store, compression=SMALL.compression
    ) as writer:
        for batch in batches:
            if batch.num_rows:
                nothing = pa.nulls(batch.num_rows, pa.string())
                columns = (column.cast(each.type) for column, each in zip(batch.columns, schema, strict=True))
                writer.write_table(pa.Table.from_arrays([*columns, nothing, nothing], schema=writer.schema))
        if refused:
            texts = ([row.error for row in refused], [row.raw for row in refused])
            empty = (pa.nulls(len(refused), each.type) for each in schema)
            arrays = [*empty, *(pa.array(text, pa.string()) for text in texts)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=writer.schema))


def read_derived(uri: str, storage: Storage = None) -> FileRows:
    """Read a landed file of derived rows; those that were refused before the step are its faults."""
    table = read_parquet(uri, storage)
    errors, raw = table[ERROR].to_pylist(), table[RAW].to_pylist()
    faults = {number: error for number, error in enumerate(errors) if error is not None}
    columns = table.drop_columns([ERROR, RAW])
    return FileRows(columns, faults, lambda number: raw[number] if number in faults else raw_row(columns, number))


class DerivedSource:
    """A source whose files are those of another one, with the rows that Spark's step makes of theirs."""

    def __init__(
        self, node: SourceNode, stored: Source, folder: str, storage: Storage = None, step: Derivation | None = None
    ) -> None:
        """`stored` is the source below, `folder` that of the landed files. Without a `step` the rows of `stored` are taken as they are."""
        self.node, self.stored, self._folder, self._storage, self._step = node, stored, folder, storage, step
        self._below: dict[str, SourceFile] = {}
        self._ahead: tuple[SourceFile, ...] = ()
        self._landed: set[str] = set()

    def over(self, stored: Source) -> DerivedSource:
        """Return the same step over a part of the source, such as a partition."""
        return DerivedSource(self.node, stored, self._folder, self._storage, self._step)

    def begin(self, offset: SourceOffset, recorded: Sequence[TableVersion]) -> None:
        """Begin a micro-batch; see `DimensionTables.begin`."""
        if self._step is not None:
            self._step.tables.begin(offset, recorded)

    def derive(self, files: Sequence[SourceFile]) -> None:
        """Land the rows of these files, unless they are there."""
        if self._step is None:
            return
        missing = [file for file in files if file.derived and not self._is_landed(file)]
        if not missing:
            return
        for file in missing:
            if file.name != derived_name(stored_name(file.name), self._step.digest()):
                raise self._gone(file)
            if isinstance(self.stored, KafkaPartition):
                self.stored.land(stored_name(file.name))
        tables = self._step.tables
        origin = Origin({**tables.fix(self._tried())}, tables.place)
        self._step.derive({file.path: self._below[file.name] for file in missing}, origin)
        self._landed |= {file.name for file in missing}

    # ------------------------------------------------------------------------------------------------ as a `Source`

    def latest(self) -> str | None:
        """See `Source.latest`."""
        return self.stored.latest()

    def ahead(
        self,
        offset: SourceOffset,
        taken_in: TakenIn,
        *,
        interval: Interval | None = None,
        until: str | None = None,
        meets: bool = False,
    ) -> Ahead:
        """See `Source.ahead`. Rows of the files may not be landed yet. Raises what `Derivation.digest` does."""
        digest = None if self._step is None else self._step.digest()
        unread = {stored_name(name): name for name in offset.unread}
        below = msgspec.structs.replace(offset, unread=tuple(unread))
        look = self.stored.ahead(below, taken_in, interval=interval, until=until, meets=meets)
        if digest is None:
            return look
        names = [unread.get(file.name) or derived_name(file.name, digest) for file in look.files]
        self._below = dict(zip(names, look.files, strict=True))
        self._ahead = tuple(self._file(name, file.modified) for name, file in self._below.items())
        return Ahead(self._ahead, look.listed, look.reach)

    def listed(self) -> Sequence[SourceFile]:
        """See `Source.listed`: the files of the source itself."""
        return self.stored.listed()

    def named(self, names: Collection[str]) -> dict[str, SourceFile]:
        """See `Source.named`. The landed files of these names; files of the source itself where their rows were taken as they are."""
        derived = {name: self._file(name) for name in names if _NAME.fullmatch(name)}
        found = {name: file for name, file in derived.items() if is_file(file.path, self._storage)}
        others = [name for name in names if name not in derived]
        return found | (self.stored.named(others) if others else {})

    def within_limits(self, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
        """See `Source.within_limits`: limits count files and rows of the source, not what is made of them."""
        below = [self._below.get(file.name, file) for file in files]
        return files[: len(self.stored.within_limits(below))]

    def rows(self, file: SourceFile) -> int:
        """See `Source.rows`. Lands the rows if they are not there."""
        if not file.derived:
            return self.stored.rows(file)
        self.derive([file])
        try:
            return count_rows(file.path, self._storage)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def event_times(self, file: SourceFile) -> pa.Int64Array:
        """See `Source.event_times`. Lands the rows if they are not there, with those of the files that come next."""
        if not file.derived:
            return self.stored.event_times(file)
        if not self._is_landed(file):
            behind = self._ahead[self._ahead.index(file) :] if file in self._ahead else (file,)
            self.derive(self.within_limits(behind) or [file])
        try:
            table = read_derived(file.path, self._storage).table
            order = arrival_order(table, self.node)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error
        return event_times(table if order is None else table.take(order), self.node).combine_chunks()

    def passed(
        self,
        offset: SourceOffset,
        look: Ahead,
        files: Sequence[SourceFile],
        taken_in: TakenIn,
        interval: Interval | None = None,
    ) -> SourceOffset:
        """See `Source.passed`. The offset names files of the source, and the versions of dimension tables."""
        below = Ahead(tuple(self._below.get(file.name, file) for file in look.files), look.listed, look.reach)
        passed = self.stored.passed(
            offset, below, [self._below.get(file.name, file) for file in files], taken_in, interval
        )
        if self._step is None or not self._step.tables.paths or not files or not self._is_landed(files[-1]):
            return passed
        versions = sorted(self._origin(files[-1]).tables.items())
        return msgspec.structs.replace(passed, tables=tuple(TableVersion(*one) for one in versions))

    def interval_of(self, name: str) -> Interval | None:
        """See `Source.interval_of`."""
        return self.stored.interval_of(stored_name(name))

    def check_intervals(self, taken_in: TakenIn) -> None:
        """See `Source.check_intervals`."""
        self.stored.check_intervals(taken_in)

    def count_missing(self, names: frozenset[str]) -> int:
        """See `Source.count_missing`."""
        return self.stored.count_missing(names)

    # ------------------------------------------------------------------------------------------------ how it's done

    def _file(self, name: str, modified: int = 0) -> SourceFile:
        return SourceFile(name, f"{self._folder}/{landed_file(name)}", modified, derived=True)

    def _is_landed(self, file: SourceFile) -> bool:
        if file.name not in self._landed and is_file(file.path, self._storage):
            self._landed.add(file.name)
        return file.name in self._landed

    def _tried(self) -> Versions | None:
        """Return the versions that an earlier try of this micro-batch has read; None if it has landed nothing."""
        assert self._step is not None  # noqa: S101 - asked where rows are made
        if self._step.tables.paths:
            for file in itertools.takewhile(self._is_landed, self._ahead):
                origin = self._origin(file)
                if origin.place == self._step.tables.place:
                    return origin.tables
        return None

    def _origin(self, file: SourceFile) -> Origin:
        store, path = file_system(file.path, self._storage)
        try:
            metadata = pq.read_schema(path, filesystem=store).metadata or {}
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error
        return msgspec.json.decode(metadata.get(ORIGIN, b"{}"), type=Origin)

    def _gone(self, file: SourceFile) -> SourceError:
        return SourceError(
            f"source '{self.node.name}': {file.path} is gone, the step that made its rows has changed since, and not all of them were "
            "taken in yet. Nothing was taken in. Put the file back, go back to the former step, or restore a checkpoint before it."
        )
