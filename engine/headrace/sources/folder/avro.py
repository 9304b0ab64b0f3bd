"""Avro files (object container files). A file with any damage is refused as a whole: nobody can tell where its records begin.

Parser for the blocks of an Avro file (Apache Avro specification 1.12, "Object container files").

A file consists of magic bytes, a map of metadata, a sync marker of 16 bytes, and blocks. A block consists of a number of
records, a number of bytes, the records, and the marker again. Pure: no files.
"""

from __future__ import annotations

import bz2
import io
import lzma
import struct
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.names import counted
from headrace.records.value_rules import Instant, OtherType
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


_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_TIMES: Final = ("timestamp", "local-timestamp")
_NO_RECORD: Final = "its schema is no record, so it has no columns"
_PREFIX: Final = "headrace-"
_LARGEST_SCALE: Final = 1_000
_ALL_DIGITS: Final = Context(prec=1_000_000)
_Read = Callable[[Any, dict[str, Any]], Any]


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
        schema = AvroSchema.of(_with_own_types(container.schema))
        for column in wanted:
            schema.refuse_recursion(column)
        records = list(_records(container, schema.root))
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


def _records(container: AvroContainer, schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the records, with values of logical types as `_LOGICAL` makes them.

    fastavro itself makes Python's `datetime`, and fails for the whole file if one value is outside its years.
    """
    import fastavro
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS.update(_READERS)
    try:
        for block in container.blocks:
            content = io.BytesIO(container.unpacked(block))
            for _ in range(block.records):
                yield fastavro.schemaless_reader(  # type: ignore[misc]  # a record, as `_is_record` has checked
                    content, schema, None, handle_unicode_errors="surrogateescape"
                )
            _check_end(content)
    except DamagedFileError:
        raise
    except Exception as error:  # fastavro raises errors of any type for damaged bytes
        msg = f"its records cannot be read: {type(error).__name__}: {error!s:.200}"
        raise DamagedFileError(msg) from error


def _check_end(content: io.BytesIO) -> None:
    if content.read(1):
        msg = "one of its blocks has more bytes than its records need"
        raise DamagedFileError(msg)


def _with_own_types(schema: Any) -> Any:
    """Return a schema whose logical types have our names, so that fastavro calls our readers wherever such a value is.

    That is also behind a named type that is used again, and in any branch of a union. Other logical types are left out.
    """
    if isinstance(schema, list):
        return [_with_own_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {
        name: part if name in {"default", "doc", "aliases", "symbols"} else _with_own_types(part)
        for name, part in schema.items()
        if name != "logicalType"
    }
    kind, logical = schema.get("type"), schema.get("logicalType")
    known = isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL
    return own | {"logicalType": f"{_PREFIX}{logical}"} if known else own


def _instant(per_second: int, *, is_local: bool) -> _Read:
    return lambda value, _: Instant(value, per_second, is_local)


def _time_of_day(per_second: int) -> _Read:
    def read(value: int, schema: dict[str, Any]) -> Any:
        if not 0 <= value < _SECONDS_OF_DAY * per_second:
            return _other(value, schema)
        return (_MIDNIGHT + timedelta(microseconds=value * 1_000_000 // per_second)).time()

    return read


def _duration(value: bytes, schema: dict[str, Any]) -> Any:
    """Return a duration of days and milliseconds; months have no length."""
    months, days, milliseconds = struct.unpack("<III", value)
    try:
        return _other(value, schema) if months else timedelta(days=days, milliseconds=milliseconds)
    except OverflowError:
        return _other(value, schema)


def _decimal(value: bytes, schema: dict[str, Any]) -> Any:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= _LARGEST_SCALE:
        return OtherType(f"{value!r} (decimal of scale {scale!r:.20})")
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _ALL_DIGITS)


def _day(value: int, schema: dict[str, Any]) -> Any:
    try:
        return _EPOCH + timedelta(days=value)
    except OverflowError:
        return _other(value, schema)


def _other(value: Any, schema: dict[str, Any]) -> OtherType:
    return OtherType(f"{value!r} ({schema['logicalType'].removeprefix(_PREFIX)})")


_EPOCH: Final = date(1970, 1, 1)
_SECONDS_OF_DAY: Final = 86_400
_MIDNIGHT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGICAL: Final[dict[tuple[str, str], _Read]] = {
    **{
        ("long", f"{name}-{unit}"): _instant(per, is_local=name.startswith("local"))
        for name in _TIMES
        for unit, per in _PER_SECOND.items()
    },
    **dict.fromkeys((("bytes", "decimal"), ("fixed", "decimal")), _decimal),
    ("int", "date"): _day,
    ("int", "time-millis"): _time_of_day(1_000),
    ("long", "time-micros"): _time_of_day(1_000_000),
    ("fixed", "duration"): _duration,
}
"""Readers of values by their type and logical type."""


def _reader(read: _Read) -> Callable[..., Any]:
    return lambda value, schema=None, _reader_schema=None: read(value, schema)


_READERS: Final = {f"{kind}-{_PREFIX}{logical}": _reader(read) for (kind, logical), read in _LOGICAL.items()}
"""The same by the keys of fastavro."""


def _text(record: dict[str, Any]) -> str:
    """Return a record as a JSON object, whatever values it has."""
    return msgspec.json.encode(_shown(record), enc_hook=str).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Instant):
        return value.milliseconds
    if isinstance(value, OtherType):
        return value.text
    if isinstance(value, dict):
        return {_shown(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
