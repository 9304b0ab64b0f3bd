"""Delta tables with all that the pinned delta-spark can write: a source reads them itself, and has Spark's rows."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from headrace.storage.delta_log import TableState
from tests.unit.support.table_job import TableJob

BY_A_CATALOG = {"catalogManaged", "adaptiveMetadata-preview"}
"""Features of tables that Spark does not read by their path, either."""

COLUMNS = "shop STRING, at TIMESTAMP, name STRING, size INT"
VECTORS = "'delta.enableDeletionVectors' = 'true'"


def rows(*pairs):
    values = ", ".join(f"('a', TIMESTAMP'2020-01-01 00:00:00Z', '{name}', {size})" for name, size in pairs)
    return f"INSERT INTO T! VALUES {values}"


CASES = {
    "clone": [
        "CREATE TABLE T! SHALLOW CLONE B!",
        rows(("s", 2), ("t", "NULL")),
        "DELETE FROM T! WHERE name = 'q'",
        "UPDATE T! SET name = 'x' WHERE name = 'p'",
        "DELETE FROM T! WHERE size IS NULL",
        "RESTORE TABLE T! TO VERSION AS OF 1",
        "OPTIMIZE T!",
    ],
    "replaced": [
        f"CREATE TABLE replaced ({COLUMNS}) USING delta LOCATION 'P!'",
        rows(("p", 1), ("q", 2)),
        "CREATE OR REPLACE TABLE replaced USING delta LOCATION 'P!' AS SELECT shop, at, name, 7L AS size, 1 AS more FROM B!",
        "DELETE FROM T! WHERE name = 'r'",
        "DROP TABLE replaced",
    ],
    "widened": [
        f"CREATE TABLE T! ({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        rows(("p", 1), ("q", 2)),
        "ALTER TABLE T! ALTER COLUMN size TYPE BIGINT",
        rows(("r", 5_000_000_000)),
        "UPDATE T! SET size = 3 WHERE name = 'q'",
    ],
    "old times": [
        "SET spark.sql.parquet.outputTimestampType = INT96",
        f"CREATE TABLE T! ({COLUMNS}) USING delta",
        rows(("p", 1), ("q", 2)),
        "SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS",
        "UPDATE T! SET size = size",
        "RESET spark.sql.parquet.outputTimestampType",
        "UPDATE T! SET size = 3 WHERE name = 'q'",
    ],
}


def test_each_reader_feature_is_read_or_refused(spark):
    known = spark._jvm.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap().values().iterator()
    features = []
    while known.hasNext():
        features.append(known.next())
    names = {feature.name() for feature in features if feature.isReaderWriterFeature()}
    metadata = {"id": "x", "schemaString": '{"type": "struct", "fields": []}'}
    refused = {
        name
        for name in names
        if TableState.of(metadata, {"minReaderVersion": 3, "readerFeatures": [name]}).unreadable is not None
    }
    assert "deletionVectors" in names
    assert refused == names & BY_A_CATALOG


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if case == "widened" else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_rows_of_each_version_are_sparks(spark, tmp_path, case):
    base, path = f"delta.`{tmp_path}/the base`", str(tmp_path / "table")
    for statement in (
        f"CREATE TABLE B! ({COLUMNS}) USING delta PARTITIONED BY (size) TBLPROPERTIES ({VECTORS})",
        rows(("p", 1), ("q", 1), ("r", "NULL")).replace("T!", "B!"),
    ):
        spark.sql(statement.replace("B!", base))
    job = None
    for statement in CASES[case]:
        spark.sql(statement.replace("T!", f"delta.`{path}`").replace("B!", base).replace("P!", path))
        if not (tmp_path / "table").exists():
            continue
        job = job or TableJob(SimpleNamespace(path=path), on_change="as_changes")
        job.run()
        expected = Counter((row.name, row.size) for row in spark.read.format("delta").load(path).collect())
        assert added_up(job) == expected
        whole = TableJob(SimpleNamespace(path=path), start="snapshot")
        whole.run()
        assert added_up(whole) == expected


def added_up(job):
    """Return the rows that the job's changes add up to."""
    counts = Counter()
    for row in job.seen() if job.last.sources else []:
        counts[row.name, row.size] += -1 if row.kind == "-D" else 1
    assert min(counts.values(), default=0) >= 0
    return +counts
