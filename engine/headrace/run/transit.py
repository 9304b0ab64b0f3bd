"""Rows in transit between two stages: files in which each keyed task finds its own rows, and reads no others.

A task that writes rows sorts them by the keyed tasks that own them. The file is a plain Arrow stream, and its description says where
the share of each task lies. So all tasks together read each row once, however many they are.

Where memory has a limit, a task writes its rows in several files: blocks, each of them in arrival order. Their descriptions say where
the share of each task begins in this order. A task reads a few blocks at once, and passes on what comes before all blocks that it has
not read. So rows come in the same order, whatever the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace import threads
from headrace.names import counted
from headrace.records.record_columns import struct_type
from headrace.run.messages import BatchSettings, TransitFile
from headrace.run.rows import ROWS_AT_ONCE, ColumnarRows, Takes
from headrace.state.key_columns import key_group_column
from headrace.state.key_groups import task_of
from headrace.storage.storage import Storage

FILES_AT_ONCE: Final = 16
"""Number of files that a task reads at once from an object store, where each is a request."""

_READ_AT_ONCE: Final = 8
"""Part of a task's memory, one of so many, for the rows that it reads at once, and as much for those that wait for others before them."""

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")

_PLACE: Final = (
    pa.field("order", pa.binary()),
    pa.field("timestamp", pa.int64()),
    pa.field("kind", pa.int32()),
    pa.field("key_group", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("input", pa.int32()),
)


def transit_schema(takes: Takes) -> pa.Schema:
    """Return the columns that a stage reads: places, keys, and a struct for each of its inputs, of which one is not null."""
    structs = (pa.field(f"in{number}", struct_type(record)) for number, record in enumerate(takes))
    return pa.schema([*_PLACE, *structs])


def transit_table(
    takes: Takes, number: int, rows: ColumnarRows, keys: pa.BinaryArray, max_parallelism: int
) -> pa.Table:
    """Return records for input `number` of a stage as a table."""
    count = len(rows)
    groups = key_group_column(keys, max_parallelism)
    places = [rows.orders, rows.timestamps, rows.kinds, groups, keys, pa.repeat(pa.scalar(number, pa.int32()), count)]
    structs = [
        rows.columns if at == number else pa.nulls(count, struct_type(record)) for at, record in enumerate(takes)
    ]
    return pa.Table.from_arrays([*places, *structs], schema=transit_schema(takes))


def blocks(rows: pa.Table, limit: int | None) -> Iterator[pa.Table]:
    """Yield rows in arrival order, in blocks of at most `limit` bytes, or of one row; all as they are, where these are within the limit."""
    if limit is None or rows.nbytes <= limit:
        yield rows
        return
    orders = rows["order"].combine_chunks()
    yield from _halved(rows if _is_sorted(orders) else rows.sort_by("order"), limit)


def _halved(rows: pa.Table, limit: int) -> Iterator[pa.Table]:
    if rows.num_rows == 1 or rows.nbytes <= limit:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _halved(rows.slice(0, half), limit)
    yield from _halved(rows.slice(half), limit)


def block_limit(batch: BatchSettings, writers: int) -> int | None:
    """Return the most bytes of a block, where so many stages write: a reader may hold one of each of their tasks. None: any number."""
    return batch.memory_for(_READ_AT_ONCE * batch.parallelism * writers)


def write_transit(folder: Storage, name: str, rows: pa.Table, batch: BatchSettings) -> TransitFile:
    """Write rows, at least one, as a file; return its description. Raises `StorageError` when the storage refuses."""
    shares = _Shares.of(rows, batch)
    ends: list[int] = []

    def write(store: pa.fs.FileSystem, path: str) -> None:
        with store.open_output_stream(path) as stream, pa.ipc.new_stream(stream, rows.schema, options=_OPTIONS) as out:
            for share in shares.tables():
                if share.num_rows:
                    out.write_table(share)
                ends.append(stream.tell())

    folder.put(name, write, survives=False)
    file = TransitFile(path=folder.within(name), ends=ends, rows=shares.rows)
    return file if batch.max_memory is None else replace(file, firsts=shares.firsts(), sizes=shares.sizes())


class _Shares(msgspec.Struct, frozen=True):
    """Rows of a table by the task that owns them."""

    sorted: Any
    """Table whose rows are sorted by task, and else stay in their order."""
    rows: list[int]
    """Number of rows of each task."""

    @classmethod
    def of(cls, rows: pa.Table, batch: BatchSettings) -> _Shares:
        """Sort the rows of a table by task."""
        if batch.parallelism == 1:
            return cls(rows, [rows.num_rows])
        tasks = [task_of(group, batch.max_parallelism, batch.parallelism) for group in range(batch.max_parallelism)]
        owners = np.array(tasks, np.uint16)[
            rows["key_group"].to_numpy()
        ]  # 16 bits are sorted by radix, in a tenth of the time
        counts = np.bincount(owners, minlength=batch.parallelism)
        order = np.argsort(owners, kind="stable")
        return cls(rows if counts.max() == len(owners) else rows.take(order), counts.tolist())

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each task."""
        begin = 0
        for count in self.rows:
            yield self.sorted.slice(begin, count)
            begin += count

    def firsts(self) -> list[bytes]:
        """Return the first place in each share."""
        return [pc.min(share["order"]).as_py() or b"" for share in self.tables()]

    def sizes(self) -> list[int]:
        """Return the bytes of each share."""
        return [share.nbytes for share in self.tables()]


def read_share(
    files: Sequence[TransitFile], index: int, takes: Takes, storage: Storage, limit: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of task `index` in arrival order, in batches; `limit` is the memory of a task.

    What it raises is raw: Spark repeats a task that could not read, and no task repeats one that reports an error of Headrace.
    """
    schema = transit_schema(takes)
    held: list[pa.RecordBatch] = []
    for part, end in _parts([file for file in files if file.rows[index]], index, limit):
        tables = _shares_of(part, index, schema, storage)
        if held:
            tables.append(pa.Table.from_batches(held, schema))
            held = []
        for batch in _in_order(tables):
            count = batch.num_rows if end is None else pc.sum(pc.less(batch["order"], end)).as_py()
            if count:
                yield batch.slice(0, count)
            if count < batch.num_rows:
                held.append(batch.slice(count))


def _parts(
    files: Sequence[TransitFile], index: int, limit: int | None
) -> Iterator[tuple[Sequence[TransitFile], bytes | None]]:
    """Yield files that a task reads at once, in the order of their first rows, each time with the first place of all others behind them."""
    if limit is None:
        yield files, None
        return
    files = sorted(files, key=lambda file: file.firsts[index])
    begin = 0
    while begin < len(files):
        end, size = begin + 1, files[begin].sizes[index]
        while end < len(files) and (size := size + files[end].sizes[index]) <= limit // _READ_AT_ONCE:
            end += 1
        yield files[begin:end], files[end].firsts[index] if end < len(files) else None
        begin = end


def _shares_of(files: Sequence[TransitFile], index: int, schema: pa.Schema, storage: Storage) -> list[pa.Table]:
    if storage.is_on_local_disk:
        return [_share_of(file, index, schema, storage) for file in files]
    parts = [files[at : at + FILES_AT_ONCE] for at in range(0, len(files), FILES_AT_ONCE)]
    return [
        table
        for part in parts
        for table in threads.in_parallel(lambda file: _share_of(file, index, schema, storage), part)
    ]


def _in_order(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tables in arrival order. Empties the list: else all rows are there twice."""
    if not tables:
        return
    try:
        rows = _combined(tables)  # sorts one chunk in half of the time
    except pa.ArrowInvalid:  # 2 GiB of text, more than a column can hold
        yield from _sorted_in_parts([batch for table in tables for batch in table.to_batches()])
        return
    tables.clear()
    ordered = rows if _is_sorted(rows["order"].combine_chunks()) else rows.sort_by("order")
    yield from ordered.to_batches(max_chunksize=ROWS_AT_ONCE)


def _combined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def _sorted_in_parts(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in arrival order, without a copy of them all."""
    order = pc.sort_indices(pa.chunked_array([batch["order"] for batch in batches])).to_numpy().astype(np.int64)
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]
    for begin in range(0, len(order), ROWS_AT_ONCE):
        yield from _gathered(batches, starts, order[begin : begin + ROWS_AT_ONCE])


def _gathered(batches: Sequence[pa.RecordBatch], starts: Any, places: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows at some places: as one batch, or as several where one cannot hold them. Batch n begins at place `starts[n]`."""
    numbers = np.searchsorted(starts, places, side="right") - 1
    by_batch = np.argsort(numbers, kind="stable")
    parts = [
        batches[number].take(pa.array(places[numbers == number] - starts[number]))
        for number in np.unique(numbers).tolist()
    ]
    try:
        together = _concatenated(parts)
    except pa.ArrowInvalid:
        if len(parts) == 1:
            raise
        half = len(places) // 2
        yield from _gathered(batches, starts, places[:half])
        yield from _gathered(batches, starts, places[half:])
    else:
        yield together.take(pa.array(np.argsort(by_batch)))


def _concatenated(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts)


def _share_of(file: TransitFile, index: int, schema: pa.Schema, storage: Storage) -> pa.Table:
    """Return the rows of task `index` in a file. Raises `OSError` unless they are all there."""
    begin = file.ends[index - 1] if index else 0
    with storage.at(file.path).open() as source:
        content = pa.py_buffer(source.read_at(file.ends[index] - begin, begin))
    messages = pa.ipc.MessageReader.open_stream(content)
    batches = [
        pa.ipc.read_record_batch(message, schema) for message in messages if message.type == "record batch"
    ]  # the first share begins with the schema
    rows = pa.Table.from_batches(batches, schema)
    if rows.num_rows != file.rows[index]:
        msg = f"{file.path} has {counted(rows.num_rows, 'row')} of task {index}, not {file.rows[index]}"
        raise OSError(msg)
    return rows


def _is_sorted(orders: pa.Array) -> bool:
    """Return whether orders ascend already, as those of one source task do: to look is far cheaper than to sort rows."""
    return len(orders) < 2 or pc.all(pc.less_equal(orders[:-1], orders[1:])).as_py()  # noqa: PLR2004
