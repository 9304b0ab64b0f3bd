"""Parser for the blocks of an Avro file (Apache Avro specification 1.12, "Object container files").

A file consists of magic bytes, a map of metadata, a sync marker of 16 bytes, and blocks. A block consists of a number of
records, a number of bytes, the records, and the marker again. Pure: no files.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.sources.file_format import DamagedFileError

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
