"""The graph that `explain` draws: branches, side outputs, sources that meet; as JSON, tree and Mermaid."""

from __future__ import annotations

import json
import sys

import pytest

from headrace.log.log import CheckpointLog

PIPELINE = """\
from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp

class Order(Struct, frozen=True):
    id: str
    customer: str
    amount: int
    at: Timestamp

class Totals(KeyedProcessFunction[Order, Order]):
    def process(self, record, ctx, /): ...

def is_large(order: Order) -> bool:
    return order.amount > 1000

pipeline = Pipeline("shop")
orders = pipeline.source("orders", Order, event_time="at")
refunds = pipeline.source("refunds", Order, event_time="at")
orders.filter(is_large).sink("large_orders")
totals = orders.union(refunds).key_by("customer", "id").process("totals", Totals())
totals.side("late", Order).map(lambda order: order, record=Order).sink("late_orders")
totals.upsert_materialize("latest", primary_key=("id",)).sink("totals")
"""
JOB = """\
job: shop
pipeline: shop_pipeline:pipeline
sources: {orders: {path: orders}, refunds: {path: refunds}}
sinks:
  large_orders: {path: lake/large, mode: append}
  late_orders: {path: lake/late, mode: append}
  totals: {path: lake/totals, mode: merge}
"""


@pytest.fixture(autouse=True)
def shop(home, monkeypatch):
    (home / "shop_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/shop.yaml").write_text(JOB)
    yield
    sys.modules.pop("shop_pipeline", None)


def test_json_has_a_flow_for_each_stage(headrace):
    described = json.loads(headrace("explain shop --json").stdout)
    assert described["sources_that_meet"] == [["orders", "refunds"]]
    first, second, third, fourth = described["stages"]
    assert [operator["operator"] for operator in first["operators"]] == [
        "orders",
        "filter is_large",
        "large_orders",
        "union",
    ]
    to_totals = {"edge": None, "stage": 3, "name": "totals", "key": ["customer", "id"]}
    assert first["flow"] == [
        {"edge": 0, "operator": 1, "flow": [{"edge": None, "operator": 2}]},
        {"edge": 1, "operator": 3, "flow": [to_totals]},
    ]
    assert second["flow"] == [{"edge": None, "operator": 1, "flow": [to_totals]}]
    assert third["operators"][0]["key"] == ["customer", "id"]
    assert third["side_flows"] == {"late": [{"edge": None, "operator": 1, "flow": [{"edge": None, "operator": 2}]}]}
    assert fourth["flow"] == [{"edge": None, "operator": 1}]


def test_chain_keeps_its_keys(headrace):
    stages = json.loads(headrace("explain demo --json").stdout)["stages"]
    assert [stage["stage"] for stage in stages] == [1, 2, 3]
    assert [[operator["operator"] for operator in stage["operators"]] for stage in stages] == [
        ["events"],
        ["legs"],
        ["latest", "board"],
    ]
    assert stages[1]["operators"][0]["key"] == ["tail"]


def test_tree_shows_branches(headrace):
    shown = headrace("explain shop").stdout
    parts = [line.strip("│├└─ ") for line in shown.splitlines()]
    assert "one order of arrival for orders, refunds" in parts
    at = parts.index("branch 0")
    assert parts[at + 1 : at + 4] == ["filter is_large", "changes: insert", "sink large_orders"]
    assert parts.count("-> stage 3: totals, by customer, id") == 2
    assert "map <lambda>" in parts
    assert "side output late: insert" in parts


def test_mermaid_draws_every_stream(headrace):
    assert (
        headrace("explain shop --format mermaid").stdout
        == """\
flowchart LR
    n0[/"orders"/]
    n1[/"refunds"/]
    n2("filter is_large")
    n3[("large_orders")]
    n4("union")
    n5["totals"]
    n6("map #lt;lambda#gt;")
    n7[("late_orders")]
    n8["latest"]
    n9[("totals")]
    n0 --> n2
    n2 --> n3
    n0 --> n4
    n1 --> n4
    n4 -- "by customer, id" --> n5
    n5 -- "late" --> n6
    n6 --> n7
    n5 -- "by id" --> n8
    n8 --> n9
"""
    )


def test_unknown_format_is_refused(headrace):
    result = headrace("explain shop --format svg")
    assert (result.exit_code, "--format 'svg' is not allowed (allowed: tree, mermaid)" in result.stderr) == (2, True)


WITH_CALLS = """
from headrace import AsyncFunction
from datetime import timedelta

class Ask(AsyncFunction[Order, Order]):
    async def invoke(self, record, result): ...

asked = Pipeline("shop")
asked.source("orders", Order, event_time="at").async_wait("ask", Ask(), timeout=timedelta(seconds=5), capacity=5).sink("large_orders")
"""


def test_mermaid_opens_no_log(headrace, home, monkeypatch):
    (home / "shop_pipeline.py").write_text(PIPELINE + WITH_CALLS)
    (home / "conf/jobs/shop.yaml").write_text(
        "job: shop\npipeline: shop_pipeline:asked\nsources: {orders: {path: orders}}\n"
        "sinks: {large_orders: {path: lake/large, mode: append}}\n"
    )
    monkeypatch.setattr(CheckpointLog, "__init__", lambda *_: pytest.fail("opened"))
    shown = headrace("explain shop --format mermaid")
    assert (shown.exit_code, shown.stdout[:9]) == (0, "flowchart"), shown.stderr


SHARED = """
shared = Pipeline("shop")
orders = shared.source("orders", Order, event_time="at")
orders.async_wait("ask", Ask(), timeout=timedelta(seconds=5)).sink("large_orders")
orders.key_by("customer").process("totals", Totals()).sink("totals")
"""


def test_calls_behind_shared_source_come_later(headrace, home):
    (home / "shop_pipeline.py").write_text(PIPELINE + WITH_CALLS + SHARED)
    (home / "conf/jobs/shop.yaml").write_text(
        "job: shop\npipeline: shop_pipeline:shared\nsources: {orders: {path: orders}}\n"
        "sinks: {large_orders: {path: lake/large, mode: append}, totals: {path: lake/totals, mode: append}}\n"
    )
    source, _ = json.loads(headrace("explain shop --json").stdout)["stages"]
    assert [operator.get("calls") for operator in source["operators"]] == [None, "after stage 2", None]
