"""Rankings, first and last records and joins by time in the output of `explain`: their state, and when it is freed."""

from __future__ import annotations

import json
import sys

import pytest

PIPELINE = """\
from datetime import timedelta
from typing import Annotated

from headrace import Late, Lifetime, Pipeline, Struct, Timestamp
from headrace import JoinType
from headrace.operators import Count, Lag, Rank, Session, Tumbling

class Order(Struct, frozen=True):
    shop: str
    at: Timestamp
    cents: int

class Best(Struct, frozen=True):
    shop: str
    cents: int
    rank: Annotated[int, Rank()]

class Recent(Struct, frozen=True):
    shop: str
    orders: Annotated[int, Count()]

class Pair(Recent, frozen=True):
    before: Annotated[int | None, Lag("cents")]

def first(order: Order, other: Order | None) -> Order:
    return order

pipeline = Pipeline("shops")
orders = pipeline.source("orders", Order, event_time="at").key_by("shop")
others = pipeline.source("others", Order, event_time="at", row_kind="kind").key_by("shop")
orders.top("best", 3, by="cents", result=Best, state_ttl=timedelta(days=1)).sink("best")
others.top("worst", 2, by="cents", descending=False, state_ttl=Lifetime.FOREVER).side_output("unmatched", Order, sink="unmatched").sink("worst")
hour = Tumbling(timedelta(hours=1))
orders.window(hour).top("hourly", 3, by="cents", early=timedelta(minutes=5)).sink("hourly")
orders.first_by_time("first", at_watermark=True, state_ttl=timedelta(hours=8)).sink("first")
orders.join_as_of("as_of", others, emit=first, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER).sink("as_of")
orders.window(hour).join("both", others.window(hour), emit=first).sink("both")
orders.window(hour).anti_join("alone", others.window(hour)).sink("alone")
hours = timedelta(hours=1)
orders.over("recent", Recent, within=hours, order_by="cents").side_output("late", Order, sink="late").sink("recent")
orders.over("pairs", Pair, rows=3, late=Late.CORRECT, keep=hours, state_ttl=timedelta(days=1)).sink("pairs")
visits = orders.window(Session(timedelta(hours=1)))
visits.top("visits", 3, by="cents", early=timedelta(minutes=5)).sink("visits")
visits.top("tied", 2, by="cents", ties=True).sink("tied")
"""
SINKS = [
    "best",
    "worst",
    "unmatched",
    "hourly",
    "first",
    "as_of",
    "both",
    "alone",
    "visits",
    "tied",
    "recent",
    "pairs",
    "late",
]
JOB = f"""\
job: shops
pipeline: shops_pipeline:pipeline
sources:
  orders: {{path: orders}}
  others: {{path: others}}
sinks: {{{", ".join(f"{name}: {{path: lake/{name}, mode: append}}" for name in SINKS)}}}
"""


@pytest.fixture
def operators(home, headrace):
    (home / "shops_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/shops.yaml").write_text(JOB)
    yield {
        operator["operator"]: operator
        for stage in json.loads(headrace("explain shops --json").stdout)["stages"]
        for operator in stage["operators"]
        if operator["kind"] != "sink"
    }
    sys.modules.pop("shops_pipeline", None)


def test_json_lists_the_state_of_operators(operators):
    best, worst, hourly = operators["best"], operators["worst"], operators["hourly"]
    assert (best["kind"], best["ranks"]) == ("top n", "the first 3 by 'cents', largest first")
    assert best["state_kept"] == "a row for each key, with its first 3 records"
    assert best["state_freed"] == "when its state_ttl of 1d is over"
    assert worst["ranks"] == "the first 2 by 'cents', smallest first"
    assert worst["state_freed"] == "never (Lifetime.FOREVER)"
    assert worst["unmatched_retractions"] == "go to side output 'unmatched'"
    assert (hourly["kind"], hourly["early_results"]) == ("windows", "5m")
    visits = operators["visits"]
    assert (visits["windows"], visits["early_results"]) == ("sessions, gap 1h", "5m")
    assert visits["state_kept"].endswith("two more timers, and a row with the early result")
    assert hourly["records_kept"] == "3 records for each slice or session"
    tied = operators["tied"]
    assert tied["ranks"] == "the first 2 by 'cents', largest first, and records equal to the last of them"
    assert tied["records_kept"] == "2 records and all ties for each slice or session"


def test_json_lists_the_state_of_joins(operators):
    first, as_of, both = operators["first"], operators["as_of"], operators["both"]
    assert first["state_freed"] == "when its state_ttl of 8h is over"
    assert (first["kind"], first["emits"]) == ("first by event time", "when the watermark reaches it")
    assert (as_of["kind"], as_of["join"]) == ("as-of join", "left")
    assert as_of["state_freed"].endswith("a version before that: never (Lifetime.FOREVER)")
    assert (both["kind"], both["join"], both["windows"]) == ("window join", "inner", "tumbling, 1h")
    assert operators["alone"]["join"] == "anti"
    assert both["state_freed"] == "when the watermark passes the end of a slice's last window"


def test_json_lists_the_frames_of_rows(operators):
    recent, pairs = operators["recent"], operators["pairs"]
    assert (recent["kind"], recent["aggregates"]) == ("over", ["orders = Count()"])
    assert recent["frame"] == "range between 1h preceding and current row"
    assert recent["order"] == "event time, cents, arrival"
    assert recent["late_records"] == "go to side output 'late'"
    assert recent["state_kept"].endswith("a row for each key with the aggregates of its range")
    assert recent["state_freed"] == "when the watermark has passed a record by 1h"
    assert (pairs["frame"], pairs["functions"]) == (
        "rows between 2 preceding and current row",
        ["before = Lag('cents')"],
    )
    assert pairs["late_records"] == "correct results up to 1h behind the watermark, others are dropped"
    assert pairs["state_freed"].startswith("the row of a key: when its state_ttl of 1d is over; others when")
