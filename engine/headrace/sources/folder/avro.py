"""Avro files (object container files). A file with any damage is refused as a whole: nobody can tell where its records begin.

Parser for the blocks of an Avro file (Apache Avro specification 1.12, "Object container files").

A file consists of magic bytes, a map of metadata, a sync marker of 16 bytes, and blocks. A block consists of a number of
records, a number of bytes, the records, and the marker again. Pure: no files.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.names import counted
from headrace.sources.avro_values import record_text, with_own_types
from headrace.sources.folder.avro_schema import AvroSchema
from headrace.sources.folder.format import (
    HEAD,
    DamagedFileError,
    FileRows,
    content_of,
    head_of,
    present_columns,
    refuse_near_names,
    typed_table,
    values_within,
    wanted_columns,
)
from headrace.storage.storage import Storage

_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
_LONG_BYTES: Final = 10


class Header(NamedTuple):
    """Begin of a file: its schema, the codec of its blocks, and the size in bytes with the marker."""

    schema: Any
    codec: str
    size: int


class Block(NamedTuple):
    """Records that were written together, still compressed."""

    records: int
    content: bytes


@dataclass(slots=True)
class _Cursor:
    """Reader of bytes in order."""

    content: bytes
    place: int = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.place + size > len(self.content):
            msg = f"it ends at byte {len(self.content):,}, within a block or its header"
            raise DamagedFileError(msg)
        self.place += size
        return self.content[self.place - size : self.place]

    def long(self) -> int:
        """Read a number of variable length (zigzag: its lowest bit is the sign)."""
        value = 0
        for shift in range(_LONG_BYTES):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:  # noqa: PLR2004 - the highest bit
                return (value >> 1) ^ -(value & 1)
        msg = f"there is no number at byte {self.place - _LONG_BYTES:,}"
        raise DamagedFileError(msg)


def read_header(content: bytes) -> Header:
    """Read a file's header. Raises `DamagedFileError` where it is none, has no readable schema, or is cut off."""
    cursor = _Cursor(content)
    if cursor.take(min(len(_MAGIC), len(content))) != _MAGIC:
        msg = "it is no Avro file: it does not begin with 'Obj' and 1"
        raise DamagedFileError(msg)
    metadata = dict(_metadata(cursor))
    cursor.take(_SYNC)
    try:
        schema = msgspec.json.decode(metadata["avro.schema"])
        codec = metadata.get("avro.codec", b"null").decode()
    except (KeyError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        msg = f"its header has no schema that can be read ({error!r:.200})"
        raise DamagedFileError(msg) from error
    return Header(schema, codec, cursor.place)


@dataclass(frozen=True, slots=True)
class AvroContainer:
    """Header and blocks of a file."""

    schema: Any
    codec: str
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, content: bytes) -> AvroContainer:
        """Read a file's header and find its blocks; decompress nothing.

        Raises `DamagedFileError` where the file is no Avro file, has no readable schema, or is cut off or damaged.
        """
        header = read_header(content)
        cursor = _Cursor(content, header.size)
        return cls(header.schema, header.codec, tuple(_blocks(cursor, content[header.size - _SYNC : header.size])))

    @property
    def rows(self) -> int:
        """Count the records."""
        return sum(block.records for block in self.blocks)

    def unpacked(self, block: Block) -> bytes:
        """Return the decompressed records of a block. Raises `DamagedFileError` where that fails."""
        try:
            return _unpacked(block.content, self.codec)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
            msg = f"a block of it cannot be unpacked by '{self.codec}': {error}"
            raise DamagedFileError(msg) from error


def _metadata(cursor: _Cursor) -> Iterator[tuple[str, bytes]]:
    while count := cursor.long():
        if count < 0:  # then the size in bytes follows
            cursor.long()
        for _ in range(abs(count)):
            name = cursor.take(cursor.long()).decode(errors="replace")
            yield name, cursor.take(cursor.long())


def _blocks(cursor: _Cursor, marker: bytes) -> Iterator[Block]:
    while cursor.place < len(cursor.content):
        start = cursor.place
        count, size = cursor.long(), cursor.long()
        block = Block(count, cursor.take(size))
        if cursor.take(_SYNC) != marker or count < 0:
            msg = f"the block at byte {start:,} is damaged: it does not end with the marker of the file"
            raise DamagedFileError(msg)
        yield block


def _unpacked(content: bytes, codec: str) -> bytes:
    if codec == "null":
        return content
    if codec == "deflate":
        return zlib.decompress(content, wbits=-zlib.MAX_WBITS)
    if codec == "bzip2":
        return bz2.decompress(content)
    if codec == "xz":
        return lzma.decompress(content)
    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
    if codec == "snappy":
        return _unsnapped(content)
    msg = "this codec is not known (null, deflate, bzip2, xz, zstandard and snappy are)"
    raise ValueError(msg)


def _unsnapped(content: bytes) -> bytes:
    """Decompress a snappy block: its size comes first, the CRC-32 of the decompressed bytes last."""
    size = 0
    for place, byte in enumerate(content[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit
            break
    packed, checksum = content[:-4], content[-4:]
    if size > 64 * max(len(packed), 1):  # snappy's longest copy is 64 bytes for 3
        msg = "its size is wrong"
        raise ValueError(msg)
    plain: bytes = pa.decompress(packed, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(checksum, "big"):
        msg = "its checksum is wrong"
        raise ValueError(msg)
    return plain


_NO_RECORD: Final = "its schema is no record, so it has no columns"


@dataclass(frozen=True, slots=True)
class AvroFiles:
    """Format of Avro files. Logical types are what their names say; a UUID is a text, and a duration with months fits no field."""

    suffixes = (".avro",)

    def count(self, file: Storage, node: SourceNode) -> int:  # noqa: ARG002 - blocks hold their counts
        """Count the rows of a file. Reads the file and decompresses its blocks to check their counts. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(file))
        _check_counts(container)
        return container.rows

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the fields of a file's header, without types; None for a longer header. Raises one of `UNREADABLE`."""
        head = head_of(file)
        try:
            schema, _, _ = read_header(head)
        except DamagedFileError:
            if len(head) < HEAD:
                raise
            return None
        if not _is_record(schema):
            raise DamagedFileError(_NO_RECORD)
        return pa.schema([pa.field(field["name"], pa.null()) for field in schema["fields"]])

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(file))
        _check_counts(container)
        fields = container.schema["fields"] if _is_record(container.schema) else None
        if fields is None:
            raise DamagedFileError(_NO_RECORD)
        names = [field["name"] for field in fields]
        paths = [column for column in wanted_columns(node, columns) if column.path and column.stored not in names]
        refuse_near_names([column.path[0] for column in paths], names)
        within = [column for column in paths if column.path[0] in names]
        wanted = present_columns(node, [*names, *(column.stored for column in within)], columns)
        schema = AvroSchema.of(with_own_types(container.schema))
        for column in wanted:
            schema.refuse_recursion(column)
        records = list(_records(container, schema))
        problems: dict[int, str] = {}
        values = {
            column.stored: [record[column.stored] for record in records]
            if column.stored in names
            else values_within(records, column.path, problems)
            for column in wanted
        }
        table = typed_table(values, node, wanted, len(records), problems)
        return FileRows(table, problems, lambda number: _text(records[number]))


def _is_record(schema: Any) -> bool:
    """Return whether a schema is a record whose fields can be read."""
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    return isinstance(fields, list) and all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in fields
    )


def _check_counts(container: AvroContainer) -> None:
    """Refuse a block with more records than bytes: only a record of nothing but nulls has no byte."""
    for block in container.blocks:
        if block.records > len(container.unpacked(block)):
            msg = f"one of its blocks claims {counted(block.records, 'record')}, but has fewer bytes"
            raise DamagedFileError(msg)


def _text(record: dict[str, Any]) -> str:
    """Return a record as a JSON object, without the fields within which it is nested too deep."""
    try:
        return record_text(record)
    except RecursionError:
        return record_text({name: value for name, value in record.items() if not isinstance(value, dict | list)})


def _records(container: AvroContainer, schema: AvroSchema) -> Iterator[dict[str, Any]]:
    """Yield the records."""
    read = schema.reader()
    try:
        for block in container.blocks:
            unpacked = container.unpacked(block)
            content = io.BytesIO(unpacked)
            for _ in range(block.records):
                yield read(content, len(unpacked))
            _check_end(content)
    except DamagedFileError:
        raise
    except RecursionError as error:
        msg = "its records are nested too deep"
        raise DamagedFileError(msg) from error
    except Exception as error:  # fastavro raises errors of any type for damaged bytes
        msg = f"its records cannot be read: {type(error).__name__}: {error!s:.200}"
        raise DamagedFileError(msg) from error


def _check_end(content: io.BytesIO) -> None:
    if content.read(1):
        msg = "one of its blocks has more bytes than its records need"
        raise DamagedFileError(msg)
