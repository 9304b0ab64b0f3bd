"""The joins in the output of `explain`: their kinds, the rows that they keep, and when they free them."""

from __future__ import annotations

import json
import sys

import pytest

PIPELINE = """\
from datetime import timedelta

from headrace import JoinType, Lifetime, Pipeline, Struct, Timestamp

class Order(Struct, frozen=True):
    id: int
    at: Timestamp

class Payment(Struct, frozen=True):
    order: int
    at: Timestamp

class Paid(Struct, frozen=True):
    order: int
    cents: int

def paid(order, payment) -> Paid:
    return Paid(order.id, 0)

pipeline = Pipeline("shops")
orders = pipeline.source("orders", Order, event_time="at").key_by("id")
payments = pipeline.source("payments", Payment, event_time="at").key_by("order")
week = orders.join("week", payments, emit=paid, within=(timedelta(0), timedelta(days=8)))
week.side_output("late_left", Order, sink="late").sink("week")
near = (timedelta(hours=-2), timedelta(hours=2))
orders.join("near", payments, emit=paid, how=JoinType.FULL, within=near).sink("near")
lives = (timedelta(days=30), Lifetime.FOREVER)
orders.join("outer", payments, emit=paid, how=JoinType.LEFT, state_ttl=lives).sink("outer")
orders.join("inner", payments, emit=paid, state_ttl=Lifetime.FOREVER).sink("inner")
"""
JOB = """\
job: shops
pipeline: shops_pipeline:pipeline
sources: {orders: {path: orders}, payments: {path: payments}}
sinks:
  week: {path: lake/week, mode: append}
  late: {path: lake/late, mode: append}
  near: {path: lake/near, mode: append}
  outer: {path: lake/outer, mode: append}
  inner: {path: lake/inner, mode: append}
"""


@pytest.fixture(autouse=True)
def shops(home):
    (home / "shops_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/shops.yaml").write_text(JOB)
    yield
    sys.modules.pop("shops_pipeline", None)


@pytest.fixture
def joins(headrace):
    stages = json.loads(headrace("explain shops --json").stdout)["stages"]
    return {stage["operators"][0]["operator"]: stage["operators"][0] for stage in stages}


def test_json_lists_state_of_an_interval_join(joins):
    week = joins["week"]
    assert week["kind"] == "join"
    assert week["join"] == "interval, inner, 0 to 8d"
    assert week["late_records"] == "of side outputs late_left go there, others are dropped"
    assert week["state_kept"] == "a row for each record, a timer for each key, side and 2d of event time"
    assert (week["left_kept_for"], week["right_kept_for"]) == ("10d", "2d")
    assert week["state_freed"] == "when the watermark has passed a record by that long at most"


def test_json_lists_state_of_outer_interval_join(joins):
    near = joins["near"]
    assert near["join"] == "interval, full, -2h to 2h"
    assert near["state_kept"] == (
        "a row for each record, a timer for each key, side and 1h of event time; "
        "a timer for each timestamp of records that are in the result alone"
    )


def test_json_lists_state_of_a_regular_join(joins):
    outer, inner = joins["outer"], joins["inner"]
    assert (outer["join"], inner["join"]) == ("regular, left", "regular, inner")
    assert (outer["emits"], inner["emits"]) == ("+I and -D", "the row kinds of its inputs")
    assert (outer["left_kept_for"], outer["right_kept_for"]) == ("30d", "forever")
    assert outer["state_kept"] == "a row for each key, side and different record"
    assert outer["state_freed"] == "when a record is taken back, or that long after it was added or matched last"
    assert inner["state_freed"] == "when a record is taken back, and never else"


def test_tree_says_when_state_is_freed(headrace):
    output = " ".join(headrace("explain shops").stdout.split())
    assert "join outer" in output
    assert "state freed: when a record is taken back, or that long after" in output
