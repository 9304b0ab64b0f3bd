"""Messages about files of a table that are gone, cut off or overwritten (deltalake, on disk)."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.commit.verify import verify
from headrace.errors import StorageError
from headrace.readers.query import ask_once, reading
from headrace.storage.damage import blames_content, plain
from headrace.storage.delta_table import DeltaStore
from headrace.storage.files import Files
from headrace.testing import PipelineHarness

ROWS = pa.table({"a": [1, 2, 3]})
NOISE = ("Parquet error", "C Data", "Object Store", "Kernel", "pthread")


@pytest.fixture
def store(tmp_path):
    store = DeltaStore(str(tmp_path / "shop" / "keyed_state"))
    store.create(ROWS.schema)
    store.append_rows(0, ROWS)
    DeltaStore(str(tmp_path / "shop" / "checkpoints")).create(ROWS.schema)
    return store


def file_of(store):
    (name,) = store.latest().files()
    return Path(store.uri, name)


def refusal_of(store):
    with pytest.raises(StorageError) as refusal:
        store.latest().read(ROWS.schema)
    return str(refusal.value)


def assert_helps(text, file):
    assert str(file) in text
    assert "Nothing was committed. Bring the file back, or the whole job folder" in text
    assert "'headrace verify shop'" in text
    assert [noise for noise in NOISE if noise in text] == []


def test_file_cut_off_is_named_with_its_sizes(store):
    file = file_of(store)
    size = file.stat().st_size
    os.truncate(file, 50)
    text = refusal_of(store)
    assert f"file {file} has 50 of {size:,} bytes" in text
    assert_helps(text, file)


def test_file_that_is_gone_is_named(store):
    file = file_of(store)
    file.unlink()
    text = refusal_of(store)
    assert f"file {file} is gone" in text
    assert_helps(text, file)


def overwrite(file, begin, end):
    """Replace bytes of a file by others."""
    content = bytearray(file.read_bytes())
    content[begin:end] = bytes(byte ^ 0x5A for byte in content[begin:end])
    file.write_bytes(content)


@pytest.mark.parametrize(("begin", "end"), [(0, None), (-400, -8), (4, 40)])
def test_overwritten_file_is_named(store, begin, end):
    file = file_of(store)
    overwrite(file, begin, end)
    text = refusal_of(store)
    assert f"file {file} is damaged ({file.stat().st_size:,} bytes)" in text
    assert_helps(text, file)


def test_query_says_how_to_find_overwritten_files(store):
    overwrite(file_of(store), 4, 40)
    with pytest.raises(StorageError, match="A file of the table is damaged: 'headrace verify --full' names it"):
        ask_once(store.at(1).stream(), "SELECT * FROM raw", table="keyed_state")


def test_query_says_that_no_vacuum_removed_it(store):
    file = file_of(store)
    file.unlink()
    with pytest.raises(StorageError) as refusal, reading(store.uri, 1, "shop"):
        ask_once(store.at(1).stream(), "SELECT * FROM raw", table="keyed_state")
    text = str(refusal.value)
    assert f"keyed_state cannot be read: file {file} is gone, though the table's last version has it" in text
    assert "vacuumed" not in text
    assert_helps(text, file)


def test_query_says_that_old_files_may_be_vacuumed(store):
    file = file_of(store)
    store.replace(1, ROWS.schema, [])
    file.unlink()
    with pytest.raises(StorageError, match=f"file {file} is gone.\nIts files may have been vacuumed"):
        ask_once(store.at(1).stream(), "SELECT * FROM raw", table="keyed_state")


def test_commit_cut_off_is_named(store):
    entry = Path(store.uri, "_delta_log", f"{1:020d}.json")
    os.truncate(entry, 50)
    with pytest.raises(StorageError) as refusal:
        DeltaStore(store.uri).latest()
    assert f"file {entry} is damaged (50 bytes)" in str(refusal.value)
    assert_helps(str(refusal.value), entry)


def test_messages_have_neither_colours_nor_stack_traces():
    text = "Generic error\n     \x1b[31m\u21b3\x1b[0m Unable to open\n   3: clone\n      at ./a/b.c:442:8\n   4: <unknown>\n"
    assert plain(text) == "Generic error: Unable to open"


@pytest.mark.parametrize(
    ("folder", "way"),
    [
        ("state/job/checkpoints", "the whole job folder"),
        ("state/job/quarantine", "Bring the whole job folder back"),
        ("lake/taken", "or the whole table from a backup"),
    ],
)
def test_verify_finds_a_log_that_is_cut_off(folder, way):
    class Row(Struct, frozen=True):
        id: str
        at: Timestamp

    harness = PipelineHarness(Pipeline("job").source("rows", Row, event_time="at").sink("taken"))
    harness.feed("rows", [Row("a", 1)])
    harness.run()
    entry = max((harness.folder / folder / "_delta_log").glob("*.json"))
    os.truncate(entry, 50)
    (problem,) = [finding.detail for finding in verify(harness.config) if not finding.ok]
    assert f"file {entry} is damaged (50 bytes)" in problem
    assert way in problem


def test_damaged_length_of_a_footer_is_never_read(tmp_path):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), file)
    assert Files(str(file)).parquet_rows() == 3
    content = bytearray(file.read_bytes())
    content[-8:-4] = b"\xff\xff\xff\xff"
    file.write_bytes(content)
    assert Files(str(file)).parquet_rows() is None


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ("Parquet magic bytes not found in footer", True),
        ("Couldn't deserialize thrift: in Parquet page header", True),
        ("Generic S3 error: Error performing GET https://s3/lake/part-00001.parquet: operation timed out", False),
        ("Object at location lake/part-00001.parquet not found", False),
        ("No space left on device", False),
    ],
)
def test_silent_store_blames_no_content(text, blamed):
    assert blames_content(OSError(text)) == blamed
