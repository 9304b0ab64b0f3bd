"""Results of a Spark transform over a source, landed as files of the job.

The transform runs once for each file of the source, separately. Its rows are landed (like a topic's messages, see
`headrace.sources.kafka.landed`) before any of them is taken in. Tasks read the landed file instead of the source's file, so a repeated
micro-batch has the same rows in the same order. A landed file is named after the source's file and a digest of the transform:

    2026-03-01.json~1f3a9c2e.parquet    landed in    <job folder>/landed/<source>/2026-03-01.json~1f3a9c2e.parquet

Rows of the source that do not fit its own record never reach the transform. They are at the end of the landed file, with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, Protocol
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.graph import SourceNode
from headrace.errors import SourceError
from headrace.records.foreign_values import raw_row
from headrace.records.source_columns import EventTimeLimit
from headrace.records.watermarks import Timeline
from headrace.sources.folder.format import UNREADABLE, FileRows, RowsBefore, unreadable
from headrace.sources.folder.parquet import count_rows
from headrace.sources.interval import Interval
from headrace.sources.position import (
    NO_FACTS,
    FileVersions,
    SourceFacts,
    TableVersion,
    derived_name,
    parts_of_derived,
    stored_name,
)
from headrace.sources.row_check import event_times_of
from headrace.sources.source import Ahead, InputFile, ListedFile, Piece, Remark, Source, SourceFile, TakenIn, Want
from headrace.sources.transformed.rows import DimensionTables, Refused, Versions
from headrace.storage.files import SMALL
from headrace.storage.storage import Storage

TRANSFORMED: Final = "transformed"
"""Format of landed files, for `headrace.sources.registry`."""

ERROR: Final = "_headrace_error"
RAW: Final = "_headrace_raw"
"""Columns of a landed file: the reason why a row was refused before the transform, and the row's text."""

ORIGIN: Final = b"headrace.origin"
"""Key of a landed file's `Origin` in the metadata, as JSON."""

_LONGEST: Final = 180


DOUBTFUL: Final = b"headrace.doubtful_times"
"""Key of the number of doubtful times that were found before the transform."""


class Origin(msgspec.Struct, frozen=True):
    """Input of derived rows besides the source: versions of dimension tables, in the micro-batch that begins at `place`."""

    tables: dict[str, int] = {}
    place: str = ""


class Derivation(Protocol):
    """Spark transform over one source, as the driver sees it."""

    @property
    def tables(self) -> DimensionTables:
        """Dimension tables of the transform."""
        ...

    def digest(self) -> str:
        """Return 8 hexadecimal digits that identify the transform's plan.

        Raises `ConfigError` for a transform that Spark cannot plan, that combines several rows, or whose columns do not fit the
        record.
        """
        ...

    def derive(self, files: Mapping[str, SourceFile], origin: Origin) -> None:
        """Run the transform over each of the source's files, in order, and land its rows at the path that is the file's key.

        A landed file is complete or missing, also after an error. Raises `SourceError` for a file that cannot be read, and
        for a value that makes the transform fail.
        """
        ...


def landed_file(name: str) -> str:
    """Return the file name for the name of derived rows: short enough for a path, and without slashes."""
    stored, digest = parts_of_derived(name) or (name, "")
    text = quote(stored, safe="")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}-{blake2b(stored.encode(), digest_size=8).hexdigest()}"
    return derived_name(text, digest)


def write_derived(
    file: Storage,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    refused: Sequence[Refused] = (),
    doubtful: int = 0,
    origin: Origin = Origin(),  # noqa: B008 - frozen
) -> None:
    """Write derived rows of `schema`, in the order of `batches`; after them, the rows `refused` before the transform. `doubtful` times were found there.

    Only one batch is in memory at a time. Raises `StorageError` where the file cannot be written.
    """
    stored = pa.schema([*schema, pa.field(ERROR, pa.string()), pa.field(RAW, pa.string())])
    store, path = file.file_system()
    metadata = {ORIGIN: msgspec.json.encode(origin), DOUBTFUL: str(doubtful).encode()}
    schema_of_file = stored.with_metadata(metadata)
    with (
        file.writing(),
        pq.ParquetWriter(path, schema_of_file, filesystem=store, compression=SMALL.compression) as writer,
    ):
        for batch in batches:
            if batch.num_rows:
                nothing = pa.nulls(batch.num_rows, pa.string())
                columns = (column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True))
                writer.write_table(pa.Table.from_arrays([*columns, nothing, nothing], schema=writer.schema))
        if refused:
            texts = ([row.error for row in refused], [row.raw for row in refused])
            empty = (pa.nulls(len(refused), field.type) for field in schema)
            arrays = [*empty, *(pa.array(text, pa.string()) for text in texts)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=writer.schema))


def read_derived(file: Storage, stored: str = "") -> FileRows:
    """Read a landed file of derived rows; its problems are the rows that were refused before the transform. `stored` is the file that they are from."""
    table = pq.ParquetFile(file.open()).read()
    errors, raw = table[ERROR].to_pylist(), table[RAW].to_pylist()
    problems = {number: error for number, error in enumerate(errors) if error is not None}
    columns = table.drop_columns([ERROR, RAW])
    doubtful = int((table.schema.metadata or {}).get(DOUBTFUL, b"0"))
    return FileRows(
        columns,
        problems,
        lambda number: raw[number] if number in problems else raw_row(columns, number),
        before=RowsBefore(stored, len(problems), doubtful),
    )


def _is_derived(file: SourceFile) -> bool:
    return file.format == TRANSFORMED


class TransformedSource(Source):
    """Source whose files hold the results of a Spark transform over the files of another source."""

    def __init__(self, node: SourceNode, stored: Source, folder: Storage, transform: Derivation | None = None) -> None:
        """Keep the source below (`stored`) and the `folder` of landed files. Without a `transform`, rows of `stored` are taken unchanged."""
        self.node, self.stored, self._folder, self._transform = node, stored, folder, transform
        self._below: dict[str, SourceFile] = {}
        self._ahead: tuple[SourceFile, ...] = ()
        self._landed: set[str] = set()
        self._recorded: Sequence[SourceFacts] = ()

    @staticmethod
    def read(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:  # noqa: ARG004
        """Read all rows of a landed file. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
        return read_derived(storage.at(file.path), stored_name(file.name))

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:
        """Yield the remarks on the source below."""
        return self.stored.remarks(since)

    def with_pieces(
        self, facts: SourceFacts, number: int, until: SourceFacts | None = None, interval: Interval | None = None
    ) -> SourceFacts:
        """Return the facts with all pieces of the source below."""
        return self.stored.with_pieces(facts, number, until, interval)

    def pieces(
        self, name: str, facts: SourceFacts, recorded: SourceFacts, until: SourceFacts | None = None
    ) -> Sequence[Piece]:
        """Return the pieces of the source below, each with the same transform over it."""
        below = self.stored.pieces(name, facts, recorded, until)
        return [piece._replace(source=self._over(piece.source)) for piece in below]

    def joined(self, facts: SourceFacts, moved: Sequence[SourceFacts]) -> SourceFacts:
        """Return the facts of the source from those of its pieces."""
        return self.stored.joined(facts, moved)

    def _over(self, stored: Source) -> TransformedSource:
        """Return the same transform over a piece of the source below; itself over the whole."""
        if stored is self.stored:
            return self
        return TransformedSource(self.node, stored, self._folder, self._transform)

    def begin(self, facts: SourceFacts, timeline: Timeline, recorded: Sequence[SourceFacts]) -> None:
        """Begin a micro-batch at the facts of the last checkpoint.

        If it repeats or follows another one, `recorded` has the facts after that one, and may have those after later ones. The rows of
        a file are made with the versions of dimension tables that one of them has for this file, and else with those of the first one.
        """
        self._recorded = recorded
        if self._transform is not None:
            self._transform.tables.begin((facts, timeline), recorded[0].tables if recorded else ())

    def prepare(self, files: Sequence[SourceFile]) -> None:
        """Land the rows of these files, unless they are landed already.

        Raises `SourceError` for a file whose rows an earlier transform has made and that is gone, and as `Derivation.derive` does.
        """
        if self._transform is None:
            return
        missing = [file for file in files if _is_derived(file) and not self._is_landed(file)]
        if not missing:
            return
        for file in missing:
            if file.name != derived_name(stored_name(file.name), self._transform.digest()):
                raise self._missing(file)
            self.stored.prepare([self._below[file.name]])
        for versions, files_of_versions in itertools.groupby(missing, self._versions_for):
            derived = [*files_of_versions]
            origin = Origin({**versions}, self._transform.tables.place)
            self._transform.derive({file.path: self._below[file.name] for file in derived}, origin)
            self._landed |= {file.name for file in derived}

    # ------------------------------------------------------------------------------------------------ as a `Source`

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return the files to take in next; their rows may not be landed yet.

        Raises as the source below and `Derivation.digest` do.
        """
        digest = None if self._transform is None else self._transform.digest()
        unread = {stored_name(name): name for name in since.begun}
        below = self.stored.plan(since.with_begun(tuple(unread), since.rows), want)
        if digest is None:
            return below
        below_files = (*below.files, *below.beyond)
        names = [unread.get(file.place) or derived_name(file.place, digest) for file in below_files]
        self._below = dict(zip(names, below_files, strict=True))
        files = tuple(self._file(name, file.modified) for name, file in self._below.items())
        self._ahead, beyond = files[: len(below.files)], files[len(below.files) :]
        return replace(below, files=self._ahead, beyond=beyond)

    def listed(self, taken_in: TakenIn) -> Sequence[ListedFile]:
        """Return the files of the source below the transform, in order."""
        return self.stored.listed(taken_in)

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files with these names that exist: landed files, and files of the source below for names without a digest."""
        derived = {name: self._file(name) for name in names if parts_of_derived(name) is not None}
        landed = {name: file for name, file in derived.items() if self._folder.at(file.path).has()}
        others = [name for name in names if name not in derived]
        return landed | (self.stored.find(others) if others else {})

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take. Limits count files and rows of the source below.

        `rows_taken` rows of the first landed file were taken in before; they count as so many rows of the source below.
        """
        below = [self._below.get(file.name, file) for file in files]
        return files[: len(self.stored.within_limits(below, rows_taken))]

    def rows(self, file: SourceFile) -> int:
        """Count the rows of a file; land them first if necessary. Raises `SourceError` where the file cannot be read."""
        if not _is_derived(file):
            return self.stored.rows(file)
        self.prepare([file])
        try:
            return count_rows(self._folder.at(file.path))
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file in arrival order (ms), null for a row that is refused, also one beyond the `limit`.

        Lands the rows first if necessary, together with those of the next files. Raises `SourceError` where the file cannot
        be read.
        """
        if not _is_derived(file):
            return self.stored.event_times(file, limit)
        if not self._is_landed(file):
            behind = self._ahead[self._ahead.index(file) :] if file in self._ahead else (file,)
            self.prepare(self.within_limits(behind) or [file])
        try:
            return event_times_of(read_derived(self._folder.at(file.path)), self.node, limit)
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after these files. They hold names of the source's files, and versions of dimension tables."""
        below = replace(ahead, files=tuple(self._below.get(file.name, file) for file in ahead.files), beyond=())
        passed = self.stored.facts_after(since, below, [self._below.get(file.name, file) for file in files])
        if self._transform is None or not self._transform.tables.paths or not files or not self._is_landed(files[-1]):
            return passed
        file_versions = tuple(
            FileVersions(stored_name(file.name), self._recorded_form(self._origin(file).tables))
            for file in files
            if self._is_landed(file)
        )
        return msgspec.structs.replace(passed, tables=file_versions[-1].tables, file_tables=file_versions)

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval of a file; None where names have no intervals."""
        return self.stored.interval_of(stored_name(name))

    def whole_up_to(self, last: str) -> int | None:
        """Return the time before which the source below has no rows behind file `last` (ms); None without such files."""
        return self.stored.whole_up_to(last)

    def check_intervals(self, taken_in: TakenIn) -> None:
        """Refuse an interval run that the source below could not do. Raises `ConfigError` and `SourceError` as it does."""
        self.stored.check_intervals(taken_in)

    # ------------------------------------------------------------------------------------------------ landed files

    def _file(self, name: str, modified: int = 0) -> SourceFile:
        return SourceFile(name, self._folder.within(landed_file(name)), modified, TRANSFORMED)

    def _is_landed(self, file: SourceFile) -> bool:
        if file.name not in self._landed and self._folder.at(file.path).has():
            self._landed.add(file.name)
        return file.name in self._landed

    def _versions_for(self, file: SourceFile) -> Versions:
        """Return the versions of dimension tables to make the rows of a file with."""
        assert self._transform is not None  # noqa: S101 - asked where rows are made
        tables = self._transform.tables
        recorded = (facts.versions_of(stored_name(file.name)) for facts in self._recorded)
        own = {table.name: table.version for table in next(filter(None, recorded), ())}
        if tables.paths.keys() <= own.keys():
            return {name: own[name] for name in tables.paths}
        return tables.fix(self._versions_of_earlier_attempt())

    @staticmethod
    def _recorded_form(versions: Versions) -> tuple[TableVersion, ...]:
        return tuple(TableVersion(*version) for version in sorted(versions.items()))

    def _versions_of_earlier_attempt(self) -> Versions | None:
        """Return the versions that an earlier attempt of this micro-batch has read; None if it has landed nothing."""
        assert self._transform is not None  # noqa: S101 - asked where rows are made
        if self._transform.tables.paths:
            for file in itertools.takewhile(self._is_landed, self._ahead):
                origin = self._origin(file)
                if origin.place == self._transform.tables.place:
                    return origin.tables
        return None

    def _origin(self, file: SourceFile) -> Origin:
        store, path = self._folder.at(file.path).file_system()
        try:
            metadata = pq.read_schema(path, filesystem=store).metadata or {}
        except UNREADABLE as error:
            raise unreadable(self.node.name, file.path, error) from error
        return msgspec.json.decode(metadata.get(ORIGIN, b"{}"), type=Origin)

    def _missing(self, file: SourceFile) -> SourceError:
        return SourceError(
            f"source '{self.node.name}': {file.path} is gone, and not all of its rows were taken in yet. The transform that made them has "
            "changed since. Nothing was taken in. Put the file back, go back to the former transform, or restore a checkpoint before it."
        )
