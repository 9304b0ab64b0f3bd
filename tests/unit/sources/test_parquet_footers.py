"""Footers of Parquet files that Arrow opens, and that cannot be read."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from headrace import Timestamp
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
