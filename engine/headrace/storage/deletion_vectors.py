"""Deletion vectors of Delta tables: which rows of a data file are deleted, without the file being written anew.

The log describes a vector. Its rows are a RoaringBitmapArray in the "portable" format, in a file beside the data or in the
description itself (Delta protocol, "Deletion Vectors"; the formats are those of the Roaring specification).
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.names import counted
from headrace.storage.files import Files
from headrace.storage.schemes import logged_path, place_of

RowNumbers = npt.NDArray[np.int64]

_PORTABLE: Final = 1681511377
_NATIVE: Final = 1681511376
_WITH_RUNS, _WITHOUT_RUNS = 12347, 12346
_FEWEST_WITH_OFFSETS: Final = 4
"""Number of containers from which on a bitmap with runs has their offsets."""
_LONGEST_LIST: Final = 4096
"""Number of rows of a container up to which it lists them. One with more has a bit for each of 65,536 rows."""
_BITS: Final = 1 << 16
_UUID_LETTERS: Final = 20
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)


class DamagedVectorError(Exception):
    """Deletion vector that is cut off, has another checksum than its file says, or is in a format that is not known."""


class MissingVectorError(FileNotFoundError):
    """File of deletion vectors that is gone."""


class DeletionVector(msgspec.Struct, frozen=True, omit_defaults=True):
    """Description of a deletion vector in the log.

    `storage` says what `content` is: `u` the name of a file in the table's folder, `p` an absolute path, `i` the rows themselves.
    """

    storage: str
    content: str
    size: int
    """Bytes of the rows."""
    deleted: int
    """Number of deleted rows."""
    offset: int = 0
    """Place of the rows in their file."""

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> DeletionVector:
        """Return the vector that an action of the log describes."""
        offset = action.get("offset")
        return cls(
            action["storageType"], action["pathOrInlineDv"], action["sizeInBytes"], action["cardinality"], offset or 0
        )

    def rows(self, table: Files) -> RowNumbers:
        """Read the numbers of the deleted rows. `table` is the table's folder.

        Raises `DamagedVectorError`, `MissingVectorError`, and `OSError` where the storage refuses.
        """
        rows = _rows_of(self._bytes(table), self)
        if len(rows) != self.deleted:
            msg = f"the log says that {self} deletes {counted(self.deleted, 'row')}, and it has {len(rows):,}"
            raise DamagedVectorError(msg)
        return rows

    def __str__(self) -> str:
        """Return the vector's place, for messages."""
        return "a deletion vector in the log" if self.storage == "i" else f"{self.path} at byte {self.offset:,}"

    @property
    def path(self) -> str:
        """Return the path of the vector's file: below the table's folder, or absolute. Raises `DamagedVectorError` for a name that is none."""
        if self.storage == "p":
            return logged_path(self.content)
        folder, name = self.content[:-_UUID_LETTERS], self.content[-_UUID_LETTERS:]
        try:
            uuid = UUID(bytes=_from_z85(name))
        except ValueError as error:
            msg = f"the log names a deletion vector '{self.content}', which is no name of a file"
            raise DamagedVectorError(msg) from error
        return f"{folder}/deletion_vector_{uuid}.bin".removeprefix("/")

    @property
    def files(self) -> tuple[str, ...]:
        """Return the path of the vector's file below the table's folder; nothing for one that lies elsewhere or in the log."""
        return (self.path,) if self.storage == "u" else ()

    def _bytes(self, table: Files) -> bytes:
        if self.storage == "i":
            try:
                return _from_z85(self.content)[: self.size]
            except ValueError as error:
                msg = "the log has a deletion vector with letters that are not of base 85"
                raise DamagedVectorError(msg) from error
        if self.storage not in {"u", "p"}:
            msg = f"the log has a deletion vector of the storage type '{self.storage}', which is not known"
            raise DamagedVectorError(msg)
        place = Files(place_of(self.path, table.uri) or self.path, table.options)
        try:
            with place.open() as file:
                stored: bytes = file.read_at(self.size + 8, self.offset)
        except FileNotFoundError as error:
            msg = f"{place.uri} is gone"
            raise MissingVectorError(msg) from error
        return self._checked(stored)

    def _checked(self, stored: bytes) -> bytes:
        """Return the rows of a file's part: its size, the rows, and their checksum."""
        content = stored[4:-4]
        if len(stored) != self.size + 8 or int.from_bytes(stored[:4]) != self.size:
            msg = f"{self} is cut off, or is not the deletion vector of {counted(self.size, 'byte')} that the log describes"
            raise DamagedVectorError(msg)
        if int.from_bytes(stored[-4:]) != zlib.crc32(content):
            msg = f"{self} is damaged: its checksum is another one"
            raise DamagedVectorError(msg)
        return content


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))


def _rows_of(content: bytes, vector: DeletionVector) -> RowNumbers:
    """Decode an array of bitmaps: its n-th one has rows from n * 2**32 on."""
    try:
        (magic,) = struct.unpack_from("<I", content)
        if magic != _PORTABLE:
            what = "in the format 'native', which is not read" if magic == _NATIVE else "in a format that is not known"
            msg = f"{vector} is {what}"
            raise DamagedVectorError(msg)
        parts = [*_Bitmaps(content).parts()]
    except (struct.error, ValueError, OverflowError) as error:
        msg = f"{vector} is damaged: {error}"
        raise DamagedVectorError(msg) from error
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _Bitmaps:
    """Reader of the bitmaps behind the magic number, one after the other. Raises `ValueError` and `struct.error` for damage."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 4

    def parts(self) -> Iterator[RowNumbers]:
        """Yield the rows of each container."""
        (count,) = self._unpack("<Q")
        for _ in range(count):
            (high,) = self._unpack("<I")
            for part in self._bitmap():
                yield part + (high << 32)

    def _bitmap(self) -> Iterator[RowNumbers]:
        (cookie,) = self._unpack("<I")
        if cookie & 0xFFFF == _WITH_RUNS:
            count = (cookie >> 16) + 1
            has_runs = np.unpackbits(self._numbers("u1", (count + 7) // 8), bitorder="little")[:count].tolist()
        elif cookie == _WITHOUT_RUNS:
            (count,) = self._unpack("<I")
            has_runs = [0] * min(count, _BITS)
        else:
            msg = f"a bitmap begins with {cookie}"
            raise ValueError(msg)
        heads = self._numbers("<u2", 2 * count).reshape(-1, 2).tolist()
        if cookie == _WITHOUT_RUNS or count >= _FEWEST_WITH_OFFSETS:
            self._numbers("<u4", count)
        for (high, least), is_runs in zip(heads, has_runs, strict=True):
            yield self._container(least + 1, is_runs=bool(is_runs)) + (high << 16)

    def _container(self, count: int, *, is_runs: bool) -> RowNumbers:
        if is_runs:
            (runs,) = self._unpack("<H")
            first, more = self._numbers("<u2", 2 * runs).reshape(-1, 2).astype(np.int64).T
            lengths = more + 1
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            rows: RowNumbers = np.repeat(first, lengths) + within
            return rows
        if count <= _LONGEST_LIST:
            return self._numbers("<u2", count).astype(np.int64)
        bits = np.unpackbits(self._numbers("u1", _BITS // 8), bitorder="little")
        return np.flatnonzero(bits).astype(np.int64)

    def _unpack(self, form: str) -> tuple[int, ...]:
        values: tuple[int, ...] = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return values

    def _numbers(self, form: str, count: int) -> npt.NDArray[Any]:
        kind = np.dtype(form)
        end = self._at + count * kind.itemsize
        if end > len(self._content):
            msg = f"it ends after {counted(len(self._content), 'byte')}"
            raise ValueError(msg)
        numbers = np.frombuffer(self._content[self._at : end], kind)
        self._at = end
        return numbers
