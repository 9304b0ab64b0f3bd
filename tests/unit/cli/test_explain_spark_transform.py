"""Commands on a job with a Spark transform over its source, without a JVM."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest
from deltalake import write_deltalake

PIPELINE = """\
from headrace import Pipeline, Struct, Timestamp

class Order(Struct, frozen=True):
    id: int
    items: list[str]
    at: Timestamp

class Item(Struct, frozen=True):
    id: int
    item: str
    at: Timestamp

pipeline = Pipeline("shop")
pipeline.source("orders", Order, event_time="at").sql(
    "select id, explode(items) as item, at from orders join dims using (id)", record=Item, tables=("dims",)
).sink("items")
"""
JOB = """\
job: shop
pipeline: shop_pipeline:pipeline
sources: {orders: {format: json, path: orders, tables: {dims: lake/dims}}}
sinks: {items: {path: lake/items, mode: append}}
"""


@pytest.fixture(autouse=True)
def shop(home):
    (home / "shop_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/shop.yaml").write_text(JOB)
    yield
    sys.modules.pop("shop_pipeline", None)


def test_explain_shows_the_step_and_its_tables(headrace, home):
    described = json.loads(headrace("explain shop --json").stdout)
    source, sink = described["stages"][0]["operators"]
    assert (source["record"], source["order_by"]) == ("Item", ["file", "row"])
    assert source["spark_transform"] == {
        "takes": "Order",
        "by": "select id, explode(items) as item, at from orders join dims using (id)",
        "tables": {"dims": str(home / "lake/dims")},
    }
    assert sink["operator"] == "items"
    text = " ".join(headrace("explain shop").stdout.replace("│", " ").split())
    assert "spark transform: takes Order, by select id, explode(items) as item" in text


def test_mermaid_has_the_step_as_a_node(headrace):
    assert '("sql")' in headrace("explain shop --format mermaid").stdout


def test_check_names_a_table_that_is_not_bound(headrace, home):
    (home / "conf/jobs/shop.yaml").write_text(JOB.replace(", tables: {dims: lake/dims}", ""))
    output = " ".join(headrace("check shop").stderr.split())
    assert "sources.orders.tables.dims: the pipeline's table 'dims' is not bound" in output


def test_check_looks_at_the_tables(headrace, home):
    assert "its table 'dims'" in " ".join(headrace("check shop").stdout.split())
    write_deltalake(str(home / "lake/dims"), pa.table({"id": [1]}))
    result = " ".join(headrace("check shop").stdout.split())
    assert "table dims" in result
    assert "version 0" in result
