"""Sinks into tables that others have made: each keeps its form, and Spark reads the rows that a plain loop gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.commit.publish import Publisher
from headrace.edits.compact import find_small_files, left_alone
from headrace.edits.fork import fork
from headrace.edits.promote import promoting
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SinkMismatchError, StorageError, UserFunctionError
from headrace.local.runner import run as run_here
from headrace.records.columns import sink_schema, to_columns
from headrace.run.options import RunOptions
from headrace.sinks.sink import SparkWriters
from headrace.spark.runner import run_in
from headrace.spark.writers import writer_through
from tests.jobs.home import Home
from tests.jobs.readings import FIRST, READINGS, SECOND, Reading, last_of, reading

PLAIN = {"id": "BIGINT", "at": "TIMESTAMP", "name": "STRING", "n": "BIGINT", "free": "STRING"}
DAY = "day DATE GENERATED ALWAYS AS (CAST(at AS DATE))"
QUICK = {"parallelism": 2, "backend": "hashmap"}


@dataclass(frozen=True)
class Kind:
    """Kind of table: its columns, what follows them in SQL, and whether only Spark writes it."""

    columns: str = ", ".join(f"{name} {kind}" for name, kind in PLAIN.items())
    below: str = ""
    properties: str = ""
    only_spark: bool = False
    filled: str = "*"
    """Columns that must keep their values."""

    def make(self, spark: Any, path: str) -> None:
        """Make the table, with a row of others."""
        properties = f"TBLPROPERTIES ({self.properties})" if self.properties else ""
        spark.sql(f"CREATE TABLE delta.`{path}` ({self.columns}) USING delta {self.below} {properties}")
        spark.sql(f"INSERT INTO delta.`{path}` (id, name, n) VALUES (-1, 'other', 7), (-2, 'another', 8)")
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = -2")


def _columns(**changes: str) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in (PLAIN | changes).items())


KINDS = {
    "plain": Kind(),
    "order": Kind(", ".join(f"{name} {kind}" for name, kind in reversed(PLAIN.items()))),
    "widths": Kind(_columns(id="INT", n="SMALLINT")),
    "decimals": Kind(_columns(n="DECIMAL(12,2)")),
    "more columns": Kind(_columns() + ", comment STRING, size STRUCT<a: INT>"),
    "by day": Kind(_columns() + ", day DATE", "PARTITIONED BY (day)"),
    "by id": Kind(below="PARTITIONED BY (id)"),
    "by generated day": Kind(_columns() + f", {DAY}", "PARTITIONED BY (day)", only_spark=True),
    "mapped by name": Kind(properties="'delta.columnMapping.mode' = 'name'"),
    "mapped by id": Kind(properties="'delta.columnMapping.mode' = 'id'"),
    "vectors": Kind(properties="'delta.enableDeletionVectors' = true"),
    "clustered": Kind(below="CLUSTER BY (id)", only_spark=True),
    "rows tracked": Kind(properties="'delta.enableRowTracking' = true", only_spark=True),
    "commit times": Kind(properties="'delta.enableInCommitTimestamps' = true", only_spark=True),
    "log of version 2": Kind(properties="'delta.checkpointPolicy' = 'v2'"),
    "change feed": Kind(properties="'delta.enableChangeDataFeed' = true"),
    "checked": Kind(properties="'delta.constraints.small' = 'n < 1000'"),
    "not null": Kind(_columns(n="BIGINT NOT NULL")),
    "default": Kind(
        _columns() + ", source STRING DEFAULT 'job'",
        properties="'delta.feature.allowColumnDefaults' = 'supported'",
        only_spark=True,
    ),
    "variant": Kind(_columns(free="VARIANT"), only_spark=True),
    "as Databricks makes them": Kind(
        below="CLUSTER BY (id)",
        properties="'delta.enableDeletionVectors' = true, 'delta.enableRowTracking' = true, 'delta.columnMapping.mode' = 'name', "
        "'delta.checkpointPolicy' = 'v2', 'delta.enableInCommitTimestamps' = true",
        only_spark=True,
    ),
}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, READINGS)


def feed(home, number, rows):
    pq.write_table(to_columns(rows, sink_schema(Reading)), home.input / f"{number}.parquet")


def shown(value):
    return json.dumps(value, sort_keys=True)


def rows_of(spark, home, sink):
    """Return the rows of a sink without the one of others, as Spark reads them."""
    table = spark.read.format("delta").load(home.config().sinks[sink].path)
    text = "to_json(free)" if dict(table.dtypes)["free"] == "variant" else "free"
    rows = table.selectExpr(
        "id", "unix_micros(at) AS at", "name", "CAST(n AS BIGINT) AS n", f"{text} AS free"
    ).collect()
    assert [row.name for row in rows if row.id < 0] == ["other"]
    return sorted(
        (row.id, row.at, row.name, row.n, shown(json.loads(row.free or "null"))) for row in rows if row.id >= 0
    )


def expected(rows):
    return sorted((row.id, round(row.at.timestamp() * 1_000_000), row.name, row.n, shown(row.free)) for row in rows)


def form_of(spark, home, sink):
    """Return all that must not change of a table."""
    path = home.config().sinks[sink].path
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
    parts = (detail.partitionColumns, detail.clusteringColumns, detail.properties, sorted(detail.tableFeatures))
    return parts, spark.read.format("delta").load(path).schema.json()


def make(spark, home, kind):
    for sink in home.config().sinks.values():
        kind.make(spark, sink.path)
    return {sink: form_of(spark, home, sink) for sink in home.config().sinks}


def assert_has(spark, home, rows):
    assert (rows_of(spark, home, "every"), rows_of(spark, home, "last")) == (expected(rows), expected(last_of(rows)))


OFTEN = {"as Databricks makes them"}
"""Kinds that are tried with each run of the tests; all of them in the long one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in KINDS]
)
def test_table_of_others_keeps_its_form(home, run, spark, name):
    forms = make(spark, home, KINDS[name])
    feed(home, 1, FIRST)
    run(home, **QUICK)
    assert_has(spark, home, FIRST)
    feed(home, 2, SECOND)
    run(home, **QUICK)
    assert_has(spark, home, FIRST + SECOND)
    restore(home.config(), 1, "", "somebody")
    assert_has(spark, home, FIRST)
    run(home, **QUICK)
    assert_has(spark, home, FIRST + SECOND)
    assert {sink: form_of(spark, home, sink) for sink in forms} == forms


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long)
        for name, kind in KINDS.items()
        if kind.only_spark
    ],
)
def test_local_runner_refuses_tables_that_need_spark(home, spark, name):
    make(spark, home, KINDS[name])
    feed(home, 1, FIRST)
    with pytest.raises(ConfigError, match="only Spark can write the table at"):
        run_here(home.config(), RunOptions(run_id="here"), lambda _: None)
    assert spark.read.format("delta").load(home.config().sinks["every"].path).count() == 1


@pytest.mark.slow
def test_number_beyond_a_narrow_column_names_its_record(home, run, spark):
    make(spark, home, KINDS["widths"])
    feed(home, 1, [reading(1, 1), reading(2, 2, n=40_000)])
    with pytest.raises(UserFunctionError, match="n is 40000, and the sink's table has int16"):
        run(home, **QUICK)
    assert rows_of(spark, home, "every") == []


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "CLUSTER BY (id)"])
def test_row_that_breaks_a_rule_is_refused(home, run, spark, below):
    make(spark, home, Kind(below=below, properties="'delta.constraints.small' = 'n < 1000'"))
    feed(home, 1, [reading(1, 1), reading(2, 2, n=1000)])
    with pytest.raises(SinkMismatchError, match=r"refused the rows of checkpoint 1(?s:.*)CHECK small \(n < 1000\)"):
        run(home, **QUICK)


@pytest.mark.slow
def test_untouched_columns_keep_their_values(home, run, spark):
    make(spark, home, KINDS["more columns"])
    feed(home, 1, FIRST)
    run(home, **QUICK)
    path = home.config().sinks["last"].path
    spark.sql(f"UPDATE delta.`{path}` SET comment = concat('of ', id)")
    feed(home, 2, SECOND)
    run(home, **QUICK)
    rows = spark.read.format("delta").load(path).where("id >= 0").orderBy("id").select("id", "comment").collect()
    assert [tuple(row) for row in rows] == [(1, "of 1"), (2, "of 2"), (4, None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "as Databricks makes them",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("vectors", "default", "by generated day", "mapped by id")
        ),
    ],
)
def test_branch_is_promoted_into_table_of_others(home, run, spark, name):
    forms = make(spark, home, KINDS[name])
    feed(home, 1, FIRST)
    run(home, **QUICK)
    corrected = [reading(1, 1, n=77), reading(3, 3), reading(4, 4)]
    feed(home, 1, corrected)
    config = home.config()
    fork(config, "again", 0, "test")
    run_in(spark, config.on_branch("again"), RunOptions(run_id="branch", **QUICK), lambda _: None)
    with promoting(config, "again", "test", writers=SparkWriters(write=writer_through(spark))) as promotion:
        promotion.promote()
    assert_has(spark, home, corrected)
    feed(home, 2, SECOND)
    run(home, **QUICK)
    assert_has(spark, home, corrected + SECOND)
    assert {sink: form_of(spark, home, sink) for sink in forms} == forms
    if KINDS[name].only_spark:
        assert find_small_files(config, 1 << 30) == []
        sentences = [sentence.partition(" (")[0].rpartition(": ")[2] for sentence in left_alone(config)]
        assert sentences == ["deltalake does not rewrite its files"] * 2


@pytest.mark.slow
def test_rows_keep_partitions_when_only_spark_can_write(home, run, spark, monkeypatch):
    make(spark, home, KINDS["by id"])
    feed(home, 1, FIRST)
    monkeypatch.setattr(Publisher, "publish", lambda *_: (_ for _ in ()).throw(StorageError("the run dies here")))
    with pytest.raises(StorageError, match="dies here"):
        run(home, **QUICK)
    monkeypatch.undo()
    for sink in home.config().sinks.values():
        spark.sql(f"ALTER TABLE delta.`{sink.path}` SET TBLPROPERTIES ('delta.enableRowTracking' = true)")
    run(home, **QUICK)
    assert_has(spark, home, FIRST)
