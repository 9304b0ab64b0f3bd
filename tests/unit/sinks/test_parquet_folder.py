"""A folder of Parquet files as a sink: the view of its readers (on disk, no Spark)."""

from __future__ import annotations

import os

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Pipeline, RowKind, Struct, Timestamp
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.compact import compact_sinks, find_small_files
from headrace.edits.drop_job import drop_job
from headrace.edits.restore import restore
from headrace.errors import ConfigError, HeadraceError, SinkMismatchError
from headrace.log.checkpoint import Kind
from headrace.sinks.layout import folder_name
from headrace.sinks.sink import OutputFile
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from tests.jobs.home import Home
from tests.unit.support.memory_job import REMINDERS, sink_rows_of
from tests.unit.support.partitioned_rows import Row
from tests.unit.support.purchase_job import put_on_object_store


def pipeline(record=Row):
    return Pipeline("job").source("rows", record, event_time="at").sink("taken")


def harness_of(**sink):
    return PipelineHarness(pipeline(), job={"sinks": {"taken": {"format": "parquet", **sink}}})


def folder_of(harness):
    return harness.folder / "lake" / "taken"


def shown(harness):
    files = (path.relative_to(folder_of(harness)) for path in folder_of(harness).rglob("*.parquet"))
    return sorted(str(file) for file in files if not str(file).startswith("_"))


def ids(harness):
    return sorted(ds.dataset(folder_of(harness), partitioning="hive").to_table()["id"].to_pylist())


def feed(harness, *names, **fields):
    harness.feed("rows", [Row(name, 1, **fields) for name in names])
    harness.run()


def wrong(harness):
    return [finding.detail for finding in verify(harness.config) if not finding.ok]


ROWS = [Row("a", 1, "mon", 1), Row("b", 2, "tue /%=é*", 1, good=False), Row("c", 3, None, 2), Row("d", 4, "mon", 1)]


def test_readers_see_rows_in_hive_partitions():
    harness = harness_of(partition_by=["day", "hour", "good"])
    harness.feed("rows", ROWS)
    harness.run()
    expected = sorted((row.id, row.day, row.hour, row.good) for row in ROWS)
    types = pa.schema([("day", pa.string()), ("hour", pa.int64()), ("good", pa.bool_())])
    table = ds.dataset(folder_of(harness), partitioning=ds.partitioning(types, flavor="hive")).to_table()
    assert sorted((row["id"], row["day"], row["hour"], row["good"]) for row in table.to_pylist()) == expected
    result = duckdb.sql(
        f"select id, day, hour, good from read_parquet('{folder_of(harness)}/day=*/*/*/*.parquet', hive_types={{good: bool}})"
    )
    assert sorted(result.fetchall()) == expected
    assert sorted((row.id, row.day, row.hour, row.good) for row in harness.sink("taken")) == expected


@given(st.text(min_size=1))
def test_any_text_names_one_folder(text):
    name = folder_name("day", text)
    assert "/" not in name
    assert "\0" not in name
    assert ds.HivePartitioning(pa.schema([("day", pa.string())])).parse(f"{name}/").equals(ds.field("day") == text)


def test_texts_too_long_for_folders_are_refused():
    harness = harness_of(partition_by=["day"])
    harness.feed("rows", [Row("a", 1, "x" * 300)])
    with pytest.raises(HeadraceError, match="this one's name would have 304 of 255 bytes"):
        harness.run()
    assert shown(harness) == []


def test_foreign_files_stay():
    harness = harness_of()
    feed(harness, "a")
    (folder_of(harness) / "notes.txt").write_text("mine")
    pq.write_table(pa.table({"id": ["x"]}), folder_of(harness) / "theirs.parquet")
    feed(harness, "b")
    restore(harness.config, 1, "test", "run")
    assert "theirs.parquet" in shown(harness)
    assert (folder_of(harness) / "notes.txt").exists()
    assert not wrong(harness)


def test_damaged_folder_is_detected_and_repaired():
    harness = harness_of()
    feed(harness, "a", "b")
    feed(harness, "c")
    first, second = (folder_of(harness) / name for name in shown(harness))
    first.unlink()
    second.rename(folder_of(harness) / f"9{second.name[1:]}")
    assert ["lacks 2 files, or has damage there" in detail for detail in wrong(harness)] == [True]
    feed(harness, "d")
    assert ids(harness) == ["a", "b", "c", "d"]
    assert not wrong(harness)


def test_disks_without_hard_links_get_copies(monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    harness = harness_of(partition_by=["day"])
    feed(harness, "a", day="mon")
    feed(harness, "b")
    assert ids(harness) == ["a", "b"]
    assert not [*folder_of(harness).rglob("*.half")]


def test_files_without_a_table_are_refused():
    harness = harness_of()
    folder_of(harness).mkdir(parents=True)
    pq.write_table(pa.table({"id": ["x"]}), folder_of(harness) / "old.parquet")
    harness.feed("rows", ROWS)
    with pytest.raises(SinkMismatchError, match=r"has files \(1, such as old.parquet\), and no table in _headrace"):
        harness.run()
    assert shown(harness) == ["old.parquet"]


def test_new_columns_are_added():
    class Wider(Row, frozen=True):
        note: str | None = None

    harness = harness_of()
    feed(harness, "a")
    harness.change(pipeline=pipeline(Wider))
    harness.feed("rows", [Wider("b", 2, note="new")])
    harness.run()
    result = duckdb.sql(f"select id, note from read_parquet('{folder_of(harness)}/*.parquet', union_by_name = true)")
    assert sorted(result.fetchall()) == [("a", None), ("b", "new")]


def test_files_are_never_rewritten():
    harness = harness_of()
    for name in "abc":
        feed(harness, name)
    before = shown(harness)
    assert find_small_files(harness.config, 2**20) == []
    assert compact_sinks(harness.config, "run", 2**20) == {}
    assert shown(harness) == before


def test_drop_removes_the_folder():
    harness = harness_of()
    feed(harness, "a")
    drop_job(harness.config, "test", "run", sinks=True)
    assert not folder_of(harness).exists()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"mode": "merge"}, "rows are only added to a folder of Parquet files: write mode: append"),
        ({"cluster_by": ["id"]}, "files of a Parquet folder are never rewritten: remove it"),
    ],
)
def test_keys_that_folders_lack_are_refused(keys, problem):
    with pytest.raises(ConfigError, match=problem):
        harness_of(**keys).run()


class Change(Struct, frozen=True):
    id: str
    at: Timestamp


FOLDER = {"sinks": {"taken": {"format": "parquet", "mode": "append"}}}


def test_retractable_rows_are_refused():
    changes = Pipeline("job").source("rows", Change, event_time="at", row_kind="op").sink("taken")
    harness = PipelineHarness(changes, job=FOLDER)
    harness.feed("rows", [Change("a", 1)], kinds=[RowKind.INSERT])
    with pytest.raises(ConfigError, match="the stream may take rows back"):
        harness.run()


def test_changes_have_their_kind_behind_a_materializer():
    changes = Pipeline("job").source("rows", Change, event_time="at", row_kind="op")
    harness = PipelineHarness(changes.upsert_materialize("latest", primary_key=("id",)).sink("taken"), job=FOLDER)
    for kind in (RowKind.INSERT, RowKind.DELETE):
        harness.feed("rows", [Change("a", 1)], kinds=[kind])
        harness.run()
    rows = ds.dataset(folder_of(harness)).to_table().sort_by("_order")
    assert rows["_row_kind"].to_pylist() == ["+I", "-D"]


@pytest.fixture
def stored(tmp_path, storage, monkeypatch):
    """A job on an object store that was never run, with a Parquet sink."""
    home = Home(tmp_path)
    put_on_object_store(home, storage, monkeypatch)
    config = home.config()
    sink = replace(config.sinks[REMINDERS], format="parquet")
    return replace(config, sinks={**config.sinks, REMINDERS: sink})


@pytest.mark.slow
def test_object_stores_show_copies(stored):
    def shown():
        place = JobFolder.of(stored).at(stored.sinks[REMINDERS].path)
        names = (name for name in place.files() if not name.startswith("_"))
        return sorted(place.parquet(name)["customer"][0].as_py() for name in names)

    with open_job(stored, "run", create=True) as opened:
        for customer in ("ann", "bob"):
            rows = sink_rows_of(opened, REMINDERS, [{"customer": customer, "due": 1, "purchases": 1, "cents": 1}])
            file = JobFolder.of(stored).at(stored.sinks[REMINDERS].table_path).stage(f"{customer}.parquet", rows)
            opened.commit(Kind.BATCH, outputs={REMINDERS: [OutputFile(file.path, file.rows, file.size)]})
    assert shown() == ["ann", "bob"]
    restore(stored, 1, "test", "run")
    assert shown() == ["ann"]
    assert [finding.detail for finding in verify(stored) if not finding.ok] == []
