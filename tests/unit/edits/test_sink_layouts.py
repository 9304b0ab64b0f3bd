"""Partitioned tables of sinks, and small files rewritten (deltalake, no JVM)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace import Pipeline, Struct, Timestamp, clock
from headrace.commit.sink_position import check_sinks
from headrace.commit.verify import verify
from headrace.edits import compact as small_files
from headrace.edits.compact import compact_sinks, find_small_files
from headrace.edits.restore import restore
from headrace.errors import ConfigError, HeadraceError, StorageError
from headrace.sinks.layout import by_partition, layout_problems
from headrace.sinks.registry import sink_of
from headrace.testing import PipelineHarness
from tests.unit.support.partitioned_rows import Row
from tests.unit.support.table_job import FEED

MIB = 2**20


def pipeline(mode):
    rows = Pipeline("job").source("rows", Row, event_time="at")
    return (
        rows.sink("taken") if mode == "append" else rows.upsert_materialize("latest", primary_key=("id",)).sink("taken")
    )


def harness_of(mode="append", **sink):
    return PipelineHarness(pipeline(mode), job={"sinks": {"taken": sink}})


def table_of(harness):
    return DeltaTable(harness.config.sinks["taken"].path)


def days_of(harness):
    return Counter((row["day"], row["hour"], row["good"]) for row in harness.sink_table("taken").to_pylist())


ROWS = [Row("a", 1, "mon", 1), Row("b", 2, "tue /%=é", 1, good=False), Row("c", 3, None, 2), Row("d", 4, "mon", 1)]


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_are_in_their_partitions(mode):
    harness = harness_of(mode, partition_by=["day", "hour", "good"])
    harness.feed("rows", ROWS)
    harness.run()
    assert table_of(harness).metadata().partition_columns == ["day", "hour", "good"]
    assert days_of(harness) == Counter((row.day, row.hour, row.good) for row in ROWS)
    actions = pa.table(table_of(harness).get_add_actions(flatten=True)).to_pylist()
    result = {(action["partition.day"], action["partition.hour"], action["partition.good"]) for action in actions}
    assert result == {(row.day, row.hour, row.good) for row in ROWS}
    harness.feed("rows", [Row("a", 9, "wed", 7)])
    harness.run()
    assert days_of(harness)["wed", 7, True] == 1
    assert sum(days_of(harness).values()) == (5 if mode == "append" else 4)


def test_empty_text_is_no_partition():
    rows = pa.table({"day": ["mon", ""], "n": [1, 2]})
    with pytest.raises(ValueError, match="record 1: day is '', and Delta cannot tell"):
        next(by_partition(rows, ["day"]))
    harness = harness_of(partition_by=["day"])
    harness.feed("rows", [Row("a", 1, "")])
    with pytest.raises(HeadraceError, match="Delta cannot tell an empty text from null"):
        harness.run()


@pytest.mark.parametrize(
    ("partition_by", "cluster_by", "problem"),
    [
        (["when"], [], "partition_by: there is no column when (the sink has: day, n, at)"),
        (["at"], [], "partition_by: at is timestamp[ms]; a table is partitioned by texts"),
        (["day", "day"], [], "partition_by: a column is there twice"),
        (["day"], ["day"], "cluster_by: day is in partition_by"),
        ([], ["x"], "cluster_by: there is no column x"),
        (["day", "n", "at"], [], "partition_by: has all columns"),
    ],
)
def test_layouts_that_no_table_has_are_refused(partition_by, cluster_by, problem):
    schema = pa.schema([("day", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("ms"))])
    assert any(problem in layout_problem for layout_problem in layout_problems(schema, partition_by, cluster_by))


def test_table_keeps_its_partitions():
    harness = harness_of()
    harness.feed("rows", ROWS)
    harness.run()
    harness.change(job={"sinks": {"taken": {"partition_by": ["day"]}}})
    with pytest.raises(ConfigError, match=r"is partitioned by nothing; the job's file says partition_by: \['day'\]"):
        harness.run()


# -------------------------------------------------------------------------------------------------------- small files


def with_clock(harness, command, *arguments):
    with clock.installed(harness.clock):
        return command(*arguments)


def with_files(mode="append", **sink):
    harness = harness_of(mode, **sink)
    for number in range(3):
        harness.feed("rows", [Row(f"{number}{day}", number, day) for day in ("mon", "tue")])
        harness.run()
    return harness


@pytest.mark.parametrize("sink", [{}, {"partition_by": ["day"]}, {"cluster_by": ["hour", "id"]}])
def test_small_files_become_one_and_rows_stay(sink):
    harness = with_files(**sink)
    (before,) = find_small_files(harness.config, MIB)
    assert (before.sink, before.is_due) == ("taken", True)
    rows = days_of(harness)
    version = table_of(harness).version()
    assert with_clock(harness, compact_sinks, harness.config, "by-hand", MIB) == {"taken": version + 1}
    assert days_of(harness) == rows
    (after,) = find_small_files(harness.config, MIB)
    assert (after.files, after.is_due) == (2 if "partition_by" in sink else 1, False)
    assert with_clock(harness, compact_sinks, harness.config, "by-hand", MIB) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_job_continues_after_a_compaction(mode):
    harness = with_files(mode)
    first = harness.facts[1].checkpoint_id
    with_clock(harness, compact_sinks, harness.config, "by-hand", MIB)
    assert check_sinks(harness.config, harness.facts)
    harness.feed("rows", [Row("new", 9, "wed")])
    harness.run()
    assert sum(days_of(harness).values()) == 7
    with_clock(harness, compact_sinks, harness.config, "by-hand", MIB)
    assert all(finding.ok for finding in verify(harness.config))
    with_clock(harness, restore, harness.config, first, "again", "by-hand")
    assert sum(days_of(harness).values()) == 2
    harness.run()
    assert sum(days_of(harness).values()) == 7


@pytest.mark.parametrize("change_feed", [False, True])
def test_append_readers_ignore_the_compaction(change_feed):
    class Reader(Struct, frozen=True):
        id: str
        at: Timestamp
        day: str | None = None

    harness = harness_of()
    harness.feed("rows", ROWS)
    harness.run()
    path = harness.config.sinks["taken"].path
    if change_feed:
        DeltaTable(path).alter.set_table_properties(FEED)
    options = {"row_kind": "_change_type"} if change_feed else {}
    rows = Pipeline("reader").source("rows", Reader, event_time="at", **options)
    source = {"format": "delta", "path": path, "change_feed": change_feed, "start": "snapshot"}
    reader = PipelineHarness(rows.sink("seen"), job={"sources": {"rows": source}})
    reader.run()
    harness.feed("rows", [Row("e", 5), Row("f", 6)])
    harness.run()
    with_clock(harness, compact_sinks, harness.config, "by-hand", MIB)
    harness.feed("rows", [Row("g", 7)])
    harness.run()
    reader.run()
    assert sorted(row["id"] for row in reader.sink_table("seen").to_pylist()) == list("abcdefg")


def test_another_writer_stops_the_compaction(monkeypatch):
    harness = with_files()
    path = harness.config.sinks["taken"].path

    def overtaken(config, name):
        sink = sink_of(config, name)
        optimize = sink.store.optimize

        class Store:
            uri = sink.store.uri
            latest = staticmethod(sink.store.latest)

            @staticmethod
            def optimize(parent, *arguments):
                write_deltalake(path, harness.sink_table("taken").slice(0, 1), mode="overwrite")
                return optimize(parent, *arguments)

        return replace(sink, store=Store())

    monkeypatch.setattr(small_files, "sink_of", overtaken)
    with pytest.raises(StorageError, match="sink 'taken' at .* was not compacted, since somebody else wrote to it"):
        small_files.rewrite_small_files(harness.config, "taken", MIB)


def test_missing_sinks_are_skipped():
    harness = harness_of()
    assert find_small_files(harness.config, MIB) == []
    assert small_files.rewrite_small_files(harness.config, "taken", MIB) is None
