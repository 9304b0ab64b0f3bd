"""Small files of tables: kept rows equal those on the disk, also where somebody has put another file in place."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.storage.delta_table import DeltaStore
from headrace.storage.small_files import SmallFiles
from tests.unit.support.fuzzing import examples

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64())])


def rows(*numbers):
    return pa.table({"key": [f"k{number}" for number in numbers], "n": numbers}, SCHEMA)


@pytest.fixture
def paths(tmp_path):
    for number in range(4):
        pq.write_table(rows(number), tmp_path / f"{number}.parquet")
    return [str(tmp_path / f"{number}.parquet") for number in range(4)]


@pytest.fixture
def reads(monkeypatch):
    """Return a list that gets the name of each file that is read."""
    names = []

    class CountedFile(pq.ParquetFile):
        def __init__(self, path):
            names.append(Path(path).stem)
            super().__init__(path)

    monkeypatch.setattr(pq, "ParquetFile", CountedFile)
    return names


def test_file_is_read_once(paths, reads):
    files = SmallFiles()
    assert [files.read(paths).num_rows for _ in range(2)] == [4, 4]
    assert files.read(paths[2:]).equals(pa.concat_tables([rows(2), rows(3)]))
    assert reads == ["0", "1", "2", "3"]


def test_replaced_file_is_read_anew(paths):
    files = SmallFiles()
    files.read(paths[:1])
    pq.write_table(rows(7), paths[0])
    os.utime(paths[0], ns=(0, 1))
    assert files.read(paths[:1]).equals(rows(7))


def test_rows_asked_for_long_ago_are_forgotten(paths, reads):
    files = SmallFiles(kept=SmallFiles().read(paths[:1]).nbytes * 2)
    reads.clear()
    for place in (0, 1, 0, 2, 0, 1):
        files.read([paths[place]])
    assert reads == ["0", "1", "2", "1"]


def test_large_files_are_left_to_a_scan(tmp_path, paths):
    text = pa.table({"key": [os.urandom(1 << 19).hex()], "n": [1]}, SCHEMA)
    pq.write_table(text, tmp_path / "large.parquet")
    assert SmallFiles().read([*paths, str(tmp_path / "large.parquet")]) is None
    assert SmallFiles().read(paths * 20) is None
    assert SmallFiles().read([]) is None


def test_threads_share_the_rows(paths):
    files = SmallFiles(kept=SmallFiles().read(paths[:1]).nbytes)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda place: files.read([paths[place % 4]]), range(400)))
    assert all(result.equals(rows(place % 4)) for place, result in enumerate(results))


KINDS = st.sampled_from(["n int64", "n int32", "other"])


def of_kind(kind, number):
    """A file of the table: as declared, with a narrower type, or from before a column was added."""
    columns = {"n int64": SCHEMA, "n int32": pa.schema([SCHEMA.field(0), pa.field("n", pa.int32())])}
    return rows(number).cast(columns[kind]) if kind in columns else rows(number).select(["key"])


@examples(20)
@given(kinds=st.lists(KINDS, max_size=5))
def test_rows_equal_those_of_a_scan(tmp_path_factory, kinds):
    uri = str(tmp_path_factory.mktemp("tables") / "table")
    store = DeltaStore(uri)
    store.create(SCHEMA)
    for version, kind in enumerate(kinds):
        store.append_rows(version, of_kind(kind, version))
    for version in range(len(kinds) + 1):
        snapshot = store.at(version)
        scanned = pa.RecordBatchReader.from_stream(snapshot.stream()).read_all()
        expected = sorted(scanned.cast(SCHEMA).to_pylist(), key=str)
        assert sorted(snapshot.read(SCHEMA).to_pylist(), key=str) == expected


def test_missing_file_is_an_error(tmp_path):
    store = DeltaStore(str(tmp_path / "table"))
    store.create(SCHEMA)
    store.append_rows(0, rows(1))
    store.latest().read(SCHEMA)
    (file,) = store.latest().files()
    (tmp_path / "table" / file).unlink()
    with pytest.raises(StorageError, match=file):
        store.latest().read(SCHEMA)


def test_damaged_file_is_an_error(tmp_path):
    store = DeltaStore(str(tmp_path / "table"))
    store.create(SCHEMA)
    store.append_rows(0, rows(1))
    store.latest().read(SCHEMA)
    (file,) = store.latest().files()
    (tmp_path / "table" / file).write_bytes(b"PAR1")
    with pytest.raises(StorageError, match=file):
        store.latest().read(SCHEMA)
