"""Files of a partitioned sink lie in folders as Spark names them: each reader sees the same values, in the log and in the paths."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.edits.compact import compact_sinks
from headrace.errors import HeadraceError, SinkMismatchError
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples
from tests.unit.support.partitioned_rows import Row

TYPES = pa.schema([("day", pa.string()), ("hour", pa.int64()), ("good", pa.bool_())])
DAYS = st.none() | st.text(st.characters(codec="utf-8") | st.sampled_from("/%=+ :'\"\\.~é田"), min_size=1, max_size=8)
ROWS = st.lists(
    st.builds(Row, st.uuids().map(str), st.just(1), DAYS, st.integers(-1, 1), st.booleans()), min_size=1, max_size=9
)


def harness_of(mode, partition_by=("day", "hour", "good")):
    rows = Pipeline("job").source("rows", Row, event_time="at")
    stream = rows if mode == "append" else rows.upsert_materialize("latest", primary_key=("id",))
    return PipelineHarness(stream.sink("taken"), job={"sinks": {"taken": {"partition_by": [*partition_by]}}})


def files_of(table):
    """Return the paths of a table's files; the log has them as URIs."""
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [Path(table.table_uri.removeprefix("file://"), unquote(action["path"])) for action in actions]


def counted(rows):
    return Counter((row["id"], row["day"], row["hour"], row["good"]) for row in rows)


@pytest.mark.slow
@examples(4)
@given(rows=ROWS, mode=st.sampled_from(["append", "merge"]))
def test_paths_and_log_give_the_same_rows(rows, mode):
    harness = harness_of(mode)
    for part in (rows[::2], rows[1::2], rows):
        harness.feed("rows", part)
        harness.run()
    compact_sinks(harness.config, "compaction", 2**20)
    table = DeltaTable(harness.config.sinks["taken"].path)
    expected = Counter(dict.fromkeys(counted(map(_fields, rows)), 2 if mode == "append" else 1))
    assert counted(harness.sink_table("taken").to_pylist()) == expected
    assert counted(table.to_pyarrow_dataset().to_table().to_pylist()) == expected
    hive = ds.partitioning(TYPES, flavor="hive")
    root = harness.config.sinks["taken"].path
    by_path = ds.dataset([str(file) for file in files_of(table)], partitioning=hive, partition_base_dir=root)
    assert counted(by_path.to_table().to_pylist()) == expected


def _fields(row):
    return {name: getattr(row, name) for name in ("id", "day", "hour", "good")}


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_duckdb_reads_values_from_paths(mode):
    harness = harness_of(mode, ["day", "hour"])
    rows = [Row(str(number), 1, day, number) for number, day in enumerate(["mon", "tue é%=", None, "a b/c"])]
    harness.feed("rows", rows)
    harness.run()
    files = [str(file) for file in files_of(DeltaTable(harness.config.sinks["taken"].path))]
    read = duckdb.sql(
        "select id, day, hour from read_parquet($files, hive_partitioning=true, hive_types={day: varchar, hour: bigint})",
        params={"files": files},
    )
    assert sorted(read.fetchall()) == sorted((row.id, row.day, row.hour) for row in rows)


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("day", ["x" * 300, "田中角" * 20], ids=["ascii", "three bytes each"])
def test_long_values_are_refused_before_the_commit(mode, day):
    harness = harness_of(mode, ["day"])
    harness.feed("rows", [Row("a", 1, "mon")])
    harness.run()
    file = harness.feed("rows", [Row("b", 1, "tue"), Row("c", 1, day)])
    before = harness.facts[-1].checkpoint_id
    with pytest.raises(
        HeadraceError, match="'taken' is partitioned by day, .* day is too long: partitions are folders"
    ):
        harness.run()
    assert harness.facts[-1].checkpoint_id == before
    (harness.folder / "input" / "rows" / file).unlink()
    harness.feed("rows", [Row("b", 1, "tue"), Row("c", 1, "x" * 251)])
    harness.run()
    assert sorted(row.id for row in harness.sink("taken")) == ["a", "b", "c"]


@examples(8)
@given(
    days=st.lists(st.sampled_from(["", None, "mon", " ", "x" * 255]), min_size=1, max_size=3),
    mode=st.sampled_from(["append", "merge"]),
)
def test_sink_refuses_texts_without_a_partition(days, mode):
    harness = harness_of(mode, ["day"])
    harness.feed("rows", [Row(str(number), 1, day) for number, day in enumerate(days)])
    if not {"", "x" * 255} & {*days}:
        harness.run()
        assert sorted(row.day or "-" for row in harness.sink("taken")) == sorted(day or "-" for day in days)
        return
    with pytest.raises(SinkMismatchError) as caught:
        harness.run()
    message = str(caught.value)
    assert message.startswith("sink 'taken' is partitioned by day, and a record of ")
    assert "user function" not in message
    assert not harness.sink("taken")


@pytest.mark.slow
def test_compaction_finds_files_of_every_character():
    harness = harness_of("append")
    rows = [Row(str(number), 1, f"a{chr(number)}b", 0) for number in range(32, 127)]
    for _ in range(2):
        harness.feed("rows", rows)
        harness.run()
    compact_sinks(harness.config, "compaction", 2**20)
    assert counted(harness.sink_table("taken").to_pylist()) == Counter(dict.fromkeys(counted(map(_fields, rows)), 2))
