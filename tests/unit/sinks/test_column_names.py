"""Columns of sinks under any name: in both modes, behind a materializer, and in all that reads them later."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import Pipeline, Struct, Timestamp, field
from headrace.cli.check import names
from headrace.cli.describe import describe
from headrace.commit.run_check import checked_plan
from headrace.edits.compact import compact_sinks
from headrace.edits.restore import restore
from headrace.errors import ConfigError
from headrace.plan.loader import plan_of, sink_schemas
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import OutputFile, Publication, SparkWriters
from headrace.storage.table import VersionTakenError
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness

NAMES = ["US Gross", "$type", "1", "class", "größe", "it's", "`tick`"]


class Part(Struct, rename="camel", frozen=True):
    """Part of a row."""

    unit_price: int


class Row(Struct, frozen=True):
    """Row of a source and of a sink."""

    key: str = field(name="the Key")
    at: Timestamp
    gross: int | None = field(name="US Gross", default=None)
    parts: list[Part] = field(name="All Parts", default_factory=list)


class Plain(Struct, frozen=True):
    """Row without other names."""

    key: str
    at: Timestamp
    gross: int


class Secret(Struct, frozen=True):
    """Row with a field that is called as a secret."""

    at: Timestamp
    token: str


ROWS = [Row("a", 1, 7, [Part(3)]), Row("b", 2, 8), Row("a", 3, 9)]
PLAIN = [Plain("a", 1, 7), Plain("b", 2, 8), Plain("a", 3, 9)]


def harness_of(record: Any, mode: str, **job: Any) -> PipelineHarness:
    """Return a job that copies rows into a sink: appended, merged by key, or as changes."""
    rows = Pipeline("job").source("rows", record, event_time="at", order_by=("at",))
    stream = rows if mode == "append" else rows.upsert_materialize("latest", primary_key=("key",))
    sink = {"mode": "append"} if mode == "changelog" else {}
    settings = {"sources": {"rows": job.get("source", {})}, "sinks": {"taken": {**sink, **job.get("sink", {})}}}
    return PipelineHarness(stream.sink("taken"), job=settings)


def harness_folder(harness: PipelineHarness) -> JobFolder:
    """Return the folder of a job."""
    return JobFolder.of(harness.config)


def rows_of(harness: PipelineHarness) -> list[dict[str, Any]]:
    """Return the rows as DuckDB has them; deltalake must have the same."""
    stored = DeltaTable(harness.config.sinks["taken"].path).to_pyarrow_table()
    assert stored.equals(pa.table(harness.sink_table("taken")).cast(stored.schema).select(stored.schema.names))
    listed = ", ".join('"' + name.replace('"', '""') + '"' for name in stored.schema.names)
    return duckdb.sql(f"SELECT {listed} FROM stored").to_arrow_table().to_pylist()


@pytest.mark.parametrize("mode", ["append", "merge", "changelog"])
def test_columns_have_stored_names(mode):
    harness = harness_of(Row, mode)
    for row in ROWS:
        harness.feed("rows", [row])
        harness.run()
    rows = rows_of(harness)
    own = {"_row_kind", "_order"} if mode == "changelog" else set()
    assert {*rows[0]} == {"the Key", "at", "US Gross", "All Parts"} | own
    gross = sorted((row["the Key"], row["US Gross"]) for row in rows if row.get("_row_kind", "+I") in {"+I", "+U"})
    assert gross == ([("a", 9), ("b", 8)] if mode == "merge" else [("a", 7), ("a", 9), ("b", 8)])
    if mode != "merge":
        assert [{"unitPrice": 3}] in [row["All Parts"] for row in rows]
        assert min(harness.sink("taken"), key=lambda row: row.at) == ROWS[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "a.b"])
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_file_names_columns_of_both_ends(mode, name):
    harness = harness_of(
        Plain, mode, source={"rename": {"key": "the key"}}, sink={"rename": {"gross": name, "key": f"{name} 2"}}
    )
    for row in PLAIN:
        harness.feed("rows", [row])
        harness.run()
    expected = PLAIN[1:] if mode == "merge" else PLAIN
    assert sorted((row[f"{name} 2"], row[name]) for row in rows_of(harness)) == sorted(
        (row.key, row.gross) for row in expected
    )
    assert sorted(harness.sink("taken"), key=lambda row: row.at) == sorted(expected, key=lambda row: row.at)


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_double_quotes_are_escaped(mode):
    harness = harness_of(Plain, mode, sink={"rename": {"gross": 'he "said"', "key": 'a"b'}})
    for row in PLAIN:
        harness.feed("rows", [row])
        harness.run()
    assert sum(row['he "said"'] for row in rows_of(harness)) == (17 if mode == "merge" else 24)


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_partitions_are_by_stored_names(mode):
    harness = harness_of(Row, mode, sink={"partition_by": ["the Key"]})
    harness.feed("rows", ROWS)
    harness.run()
    compact_sinks(harness.config, "compaction", 2**20)
    assert DeltaTable(harness.config.sinks["taken"].path).metadata().partition_columns == ["the Key"]
    assert {row["the Key"] for row in rows_of(harness)} == {"a", "b"}


def test_partition_by_a_field_is_refused():
    harness = harness_of(Row, "append", sink={"partition_by": ["key"]})
    harness.feed("rows", ROWS)
    with pytest.raises(ConfigError, match="there is no column key .the sink has: the Key, at, US Gross, All Parts"):
        harness.run()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "merge", "changelog"])
def test_restored_sink_needs_no_code(mode):
    harness = harness_of(Row, mode)
    for row in ROWS:
        harness.feed("rows", [row])
        harness.run()
    before = sorted(map(str, rows_of(harness)))
    with harness.on_its_clock():
        restore(harness.config, 1, "test", "test")
    assert {row["the Key"] for row in rows_of(harness)} == {"a"}
    harness.run()
    if mode != "changelog":
        assert sorted(map(str, rows_of(harness))) == before


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_crash_before_publication_loses_nothing(mode):
    harness = harness_of(Row, mode)
    harness.feed("rows", ROWS)
    harness.run(crash_at="commit.after")
    harness.run()
    assert len(rows_of(harness)) == (2 if mode == "merge" else 3)


def test_rename_of_running_job_is_a_changed_schema():
    harness = harness_of(Plain, "append")
    harness.feed("rows", PLAIN[:1])
    harness.run()
    harness.job["sinks"]["taken"]["rename"] = {"gross": "US Gross"}
    harness.change()
    harness.feed("rows", PLAIN[1:])
    with pytest.raises(ConfigError, match="has the columns at, gross, key; the pipeline writes key, at, US Gross"):
        harness.run()


def test_rename_of_running_source_reads_later_files():
    harness = harness_of(Plain, "append")
    harness.feed("rows", PLAIN[:1])
    harness.run()
    harness.job["sources"]["rows"]["rename"] = {"gross": "US Gross"}
    harness.change()
    harness.feed_table("rows", pa.table({"key": ["b"], "at": [2], "US Gross": [8]}))
    harness.run()
    assert [row.gross for row in sorted(harness.sink("taken"), key=lambda row: row.at)] == [7, 8]


def test_state_and_stages_keep_names_of_fields():
    rows = Pipeline("job").source("rows", Row, event_time="at", order_by=("gross",))
    harness = PipelineHarness(rows.deduplicate("once", key=("key",)).sink("taken"))
    harness.feed("rows", [*ROWS, msgspec.structs.replace(ROWS[1], gross=None)])
    harness.run()
    assert sorted(row.key for row in harness.sink("taken")) == ["a", "b"]


def test_quarantine_has_stored_names():
    harness = harness_of(Row, "append")
    harness.feed_table("rows", pa.table({"the Key": ["a", "b"], "at": [1, 2], "US Gross": ["x", None]}))
    harness.feed_table("rows", pa.table({"the Key": ["a"], "at": [1], "US Gross": [1]}))
    harness.job["sources"]["rows"]["max_quarantined"] = "none"
    harness.change()
    harness.run()
    (bad,) = harness.live("quarantine")
    assert bad["error"].startswith("US Gross is 'x', which is not")
    assert json.loads(bad["raw"])["US Gross"] == "x"


def test_check_and_explain_name_columns():
    harness = harness_of(
        Plain, "append", source={"rename": {"gross": 1}}, sink={"rename": {"key": "token", "at": "at"}}
    )
    plan = checked_plan(harness.config)
    assert [(finding.check, finding.outcome, finding.detail) for finding in names(plan)] == [
        ("source rows", "ok", "names of columns: gross is '1'"),
        ("sink taken", "ok", "names of columns: key is 'token'"),
    ]
    source, sink = describe(harness.config, plan)["stages"][0]["operators"]
    assert (source["names"], sink["names"]) == ({"gross": "1"}, {"key": "token"})


class Wider(Plain, frozen=True):
    """Row of a subclass, whose further field a sink of its class lacks."""

    note: str = ""


@pytest.mark.parametrize("mode", ["append", "merge", "changelog"])
def test_records_of_subclass_have_columns_of_class(mode):
    rows = (
        Pipeline("job")
        .source("rows", Plain, event_time="at")
        .map(lambda row: Wider(row.key, row.at, row.gross, "x"), record=Plain)
    )
    stream = rows if mode == "append" else rows.upsert_materialize("latest", primary_key=("key",))
    sink = {"rename": {"gross": "note"}, **({"mode": "append"} if mode == "changelog" else {})}
    harness = PipelineHarness(stream.sink("taken"), job={"sinks": {"taken": sink}})
    harness.feed("rows", PLAIN[:1])
    harness.run()
    assert [row["note"] for row in rows_of(harness)] == [7]


def test_name_of_secret_field_is_no_secret():
    harness = harness_of(Secret, "append", sink={"rename": {"token": "the token"}})
    harness.feed("rows", [Secret(1, "t")])
    harness.run()
    assert rows_of(harness)[0]["the token"] == "t"


@pytest.mark.parametrize("name", ["US Gross", "a=b", "gross"])
def test_spark_merges_only_names_that_it_takes(name):
    harness = harness_of(Plain, "merge", sink={"rename": {"gross": name}})
    harness.feed("rows", PLAIN)
    harness.run()
    merged = []
    schemas = sink_schemas(plan_of(harness.config.code), harness.config.appended)
    sink = sink_of(harness.config, "taken", *schemas["taken"], SparkWriters(write=merged.append))
    table = sink.latest()
    rows = pa.table({"key": ["z"], "at": pa.array([1], pa.timestamp("us", "UTC")), name: [1], "_row_kind": ["+I"]})
    staged = harness_folder(harness).stage("outputs/taken/z.parquet", rows)
    write = replace(sink, spark_above_rows=0).write
    with suppress(VersionTakenError):
        write(table, [OutputFile(staged.path, staged.rows, staged.size)], Publication(9))
    assert len(merged) == (name == "gross")
    assert ("z" in {row["key"] for row in rows_of(harness)}) == (name != "gross")


# -------------------------------------------------------------------------------------------------------------- refused


class Nested(Struct, frozen=True):
    """Row with a value within structs of its source."""

    key: str
    at: Timestamp
    amount: int = field(name="payload.amount")


def test_path_needs_a_name_of_the_sink():
    harness = harness_of(Nested, "append")
    with pytest.raises(
        ConfigError, match="'amount' of Nested has the name 'payload.amount', which is a path in sources"
    ):
        checked_plan(harness.config)
    harness = harness_of(Nested, "append", sink={"rename": {"amount": "amount"}})
    payload = pa.array([{"amount": 7}])
    harness.feed_table("rows", pa.table({"key": ["a"], "at": [1], "payload": payload}))
    harness.run()
    assert rows_of(harness)[0]["amount"] == 7


@pytest.mark.parametrize("place", ["source", "sink"])
@pytest.mark.parametrize(
    ("rename", "error"),
    [
        ({"gros": "x"}, r"rename.gros: Plain has no field 'gros'.*did you mean 'gross'.*it has: key, at, gross"),
        ({"gross": ""}, r"rename.gross: the name is empty"),
        ({"gross": "x", "key": "x"}, r"rename.key: field 'gross' has the name 'x', too"),
        ({"gross": "key"}, r"rename.gross: field 'key' has the name 'key', too"),
    ],
)
def test_wrong_names_are_refused_with_their_line(place, rename, error):
    harness = harness_of(Plain, "append", **{place: {"rename": rename}})
    with pytest.raises(ConfigError, match=rf"job.yaml:\d+: {place}s.*{error}"):
        checked_plan(harness.config)


def test_two_fields_may_change_names():
    harness = harness_of(Plain, "append", sink={"rename": {"gross": "at", "at": "gross"}})
    harness.feed("rows", PLAIN[:1])
    harness.run()
    assert rows_of(harness)[0]["at"] == 7


@pytest.mark.parametrize("name", ["_row_kind", "US GROSS"])
def test_names_that_delta_takes_for_equal_are_refused(name):
    harness = harness_of(Row, "merge", sink={"rename": {"key": name}})
    with pytest.raises(ConfigError, match="differ only in case, or not at all"):
        checked_plan(harness.config)
