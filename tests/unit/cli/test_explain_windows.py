"""Windows in the output of `explain`: their kinds, and when their state is freed."""

from __future__ import annotations

import json
import sys

import pytest

PIPELINE = """\
from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, Session, Sum, Tumbling

class Order(Struct, frozen=True):
    shop: str
    at: Timestamp
    cents: int

class Revenue(Struct, frozen=True):
    shop: str
    cents: Annotated[int, Sum("cents")]

class Visits(Struct, frozen=True):
    orders: Annotated[int, Count()]

pipeline = Pipeline("shops")
orders = pipeline.source("orders", Order, event_time="at").key_by("shop")
revenue = orders.window(Tumbling(timedelta(hours=1))).aggregate("revenue", Revenue, allowed_lateness=timedelta(days=1))
revenue.side_output("late", Order, sink="late").sink("revenue")
orders.window(Session(timedelta(minutes=30))).aggregate("visits", Visits).sink("visits")
"""
JOB = """\
job: shops
pipeline: shops_pipeline:pipeline
sources: {orders: {path: orders}}
sinks:
  revenue: {path: lake/revenue, mode: append}
  late: {path: lake/late, mode: append}
  visits: {path: lake/visits, mode: append}
"""


@pytest.fixture(autouse=True)
def shops(home):
    (home / "shops_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/shops.yaml").write_text(JOB)
    yield
    sys.modules.pop("shops_pipeline", None)


def test_json_says_when_state_is_freed(headrace):
    described = json.loads(headrace("explain shops --json").stdout)
    revenue, visits = (stage["operators"][0] for stage in described["stages"][1:])
    assert revenue["kind"] == visits["kind"] == "windows"
    assert revenue["windows"] == "tumbling, 1h"
    assert revenue["aggregates"] == ["cents = Sum('cents')"]
    assert revenue["allowed_lateness"] == "1d"
    assert revenue["late_records"] == "go to side output 'late'"
    assert revenue["state_freed"] == "when the watermark passes the end of a slice's last window by allowed_lateness"
    assert revenue["state_kept"] == "a row for each key and slice, a timer for each key and open window"
    assert visits["windows"] == "sessions, gap 30m"
    assert visits["late_records"] == "are dropped"
    assert visits["state_freed"] == "when the watermark passes the end of the session"


def test_tree_says_when_state_is_freed(headrace):
    output = " ".join(headrace("explain shops").stdout.split())
    assert "windows: tumbling, 1h" in output
    assert "state freed: when the watermark passes the end of the session" in output
