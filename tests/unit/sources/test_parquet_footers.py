"""Footers of Parquet files that Arrow opens, and that cannot be read."""

from __future__ import annotations

import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from headrace import Timestamp
from headrace.sources.folder.parquet import ParquetColumns
from tests.unit.sources.source_reading import parquet_bytes, read_bytes

Row = msgspec.defstruct("Row", [("at", Timestamp), ("x", int)])
TABLE = pa.table({"at": [1, 2], "x": [7, 8]})


class Keys(pe.KmsClient):
    """A service of keys that hands them out as they are."""

    def __init__(self, configuration: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> str:
        return key.hex()

    def unwrap_key(self, wrapped: str, name: str) -> bytes:
        return bytes.fromhex(wrapped)


@pytest.mark.parametrize(
    ("plain_footer", "reason"), [(True, "Cannot decrypt ColumnMetadata"), (False, "Could not read encrypted metadata")]
)
def test_encrypted_file_is_refused(plain_footer, reason):
    configuration = pe.EncryptionConfiguration("footer", column_keys={"key": ["at"]}, plaintext_footer=plain_footer)
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    content = parquet_bytes(TABLE, encryption_properties=properties)
    assert reason in str(read_bytes("parquet", content, Row).refused)


def test_group_without_its_columns_is_refused():
    schema = b"\x48\x01r\x15\x02\x00" + b"\x15\x02\x25\x00\x18\x01x\x00"  # a root of one column, x: int32
    group = b"\x19\x0c\x16\x00\x16\x02\x00"  # of one row, and no columns
    footer = b"\x15\x02\x19\x2c" + schema + b"\x16\x02\x19\x1c" + group + b"\x00"
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert pq.read_metadata(pa.BufferReader(content)).num_rows == 1
    assert read_bytes("parquet", content, Row).refused == "its footer says 1 column, and a group has 0"


class Requests(io.BytesIO):
    """A file that counts what is read of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.sizes: list[int] = []

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.sizes.append(len(content))
        return content

    def open(self) -> pa.NativeFile:
        return pa.PythonFile(self, "r")


@pytest.mark.parametrize("columns", [2, 2_000])
def test_footer_is_read_once(columns):
    """On an object store each of these reads is a request. A footer that is longer than usual takes one more."""
    content = parquet_bytes(pa.table({f"column {number}": [*range(20)] for number in range(columns)}))
    file = Requests(content)
    read = ParquetColumns(file)
    assert (len(file.sizes), read.rows) == (1 if columns == 2 else 3, 20)
    file.sizes.clear()
    assert read.read(["column 1"]).column(0).to_pylist() == [*range(20)]
    assert len(file.sizes) == 1


def test_footer_serves_both_readings_of_old_times():
    times = pa.table({"at": pa.array([1, 2], pa.timestamp("us"))})
    file = Requests(parquet_bytes(times, use_deprecated_int96_timestamps=True))
    assert ParquetColumns(file).read().equals(times)
    assert len(file.sizes) == 3
