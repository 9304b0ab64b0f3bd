"""What `check` says of columns that have changed in the data: files of a folder, and versions of a Delta table."""

from __future__ import annotations

import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace import Pipeline, Struct, Timestamp
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.sources.position import NO_FACTS
from headrace.sources.registry import source_of
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness


class Order(Struct, frozen=True):
    at: Timestamp
    amount: float | None = None


pipeline = Pipeline("copy").source("orders", Order, event_time="at").sink("out")


def job(**source):
    return PipelineHarness(pipeline, job={"sources": {"orders": {"max_ahead": "none", **source}}})


def remarks(h, facts=NO_FACTS):
    remarks = source_of(plan_of(h.config.code).sources[0], h.config).remarks(facts)
    return [(remark.outcome, remark.text.removeprefix(f"{h.config.sources['orders'].path}")) for remark in remarks]


def deliver(h, *files, **options):
    folder = h.folder / "input" / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    for number, columns in enumerate(files):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns, **options), path)
        os.utime(path, (number, number))
    return folder


OLD = {"at": [1], "amount": [1.5]}


@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (OLD, None),
        ({"amount": [1.5], "at": [1]}, None),
        (OLD | {"tip": [2]}, "column tip (int64) is new, and Order has no field for it"),
        ({"at": [1]}, "column amount is gone"),
        (OLD | {"amount": [7]}, "column amount is int64, and was double"),
        (
            {"at": [1], "amount": [Decimal("1.50")], "day": ["x"]},
            "column amount is decimal128(3, 2), and was double; column day (string) is new, and Order has no field for it",
        ),
    ],
)
def test_newest_file_is_compared_with_the_oldest(new, changes):
    h = job()
    deliver(h, OLD, OLD, new)
    texts = [text for outcome, text in remarks(h) if "compared" in text]
    assert texts == ([] if changes is None else [f"/2.parquet: {changes}, compared with 0.parquet"])


@pytest.mark.parametrize(("values", "outcome"), [([1.5], "ok"), (["x"], "warn")])
def test_values_of_dictionaries_are_looked_at(values, outcome):
    h = job()
    deliver(h, {"at": [1], "amount": pa.array(values).dictionary_encode()})
    assert [of_file for of_file, _ in remarks(h)] == [outcome]


def test_new_column_with_a_field_is_named_alone():
    h = job()
    deliver(h, {"at": [1]}, OLD)
    assert remarks(h)[-1] == ("ok", "/1.parquet: column amount (double) is new, compared with 0.parquet")


def test_columns_that_allow_nulls_are_named():
    h = job()
    strict = pa.schema([pa.field("at", pa.int64(), nullable=False)])
    folder = deliver(h, {"at": [1]}, {"at": [1]})
    pq.write_table(pa.table({"at": [1]}, schema=strict), folder / "0.parquet")
    os.utime(folder / "0.parquet", (0, 0))
    assert remarks(h)[-1] == (
        "ok",
        "/1.parquet: column at may be null, and could not be before, compared with 0.parquet",
    )


def test_damaged_oldest_file_hides_no_remark():
    h = job()
    folder = deliver(h, OLD, OLD | {"tip": [2]})
    (folder / "0.parquet").write_bytes(b"no file of Parquet")
    os.utime(folder / "0.parquet", (0, 0))
    assert remarks(h) == [("ok", ": 2 files")]


@pytest.mark.parametrize(
    ("kind", "files", "changes"),
    [
        (
            "csv",
            ["at,amount\n1,2\n", "at,amount,tip\n1,2,3\n"],
            "column tip is new, and Order has no field for it",
        ),
        ("json", ['{"at": 1}\n', '{"at": 1, "tip": 2}\n'], "column tip is new, and Order has no field for it"),
    ],
)
def test_headers_of_text_are_compared(kind, files, changes):
    h = job(format=kind)
    folder = deliver(h)
    for number, text in enumerate(files):
        path = folder / f"{number}.{kind}"
        path.write_text(text)
        os.utime(path, (number, number))
    assert [text for _, text in remarks(h)[1:]] == [f"/1.{kind}: {changes}, compared with 0.{kind}"]


def test_table_is_compared_with_the_version_read():
    h = job(format="delta", path="lake/orders", start="snapshot")
    table = str(h.folder / "lake" / "orders")
    write_deltalake(table, pa.table(OLD))
    h.run()
    facts = CheckpointLog(JobFolder.of(h.config)).last.sources["orders"]
    assert remarks(h, facts) == [("ok", ": version 0")]
    write_deltalake(table, pa.table(OLD | {"tip": [2]}), mode="append", schema_mode="merge")
    change = ": column tip (int64) is new, and Order has no field for it, compared with version 0"
    assert remarks(h, facts) == [("ok", ": version 1"), ("ok", change)]
    assert remarks(h) == [("ok", ": version 1")]
