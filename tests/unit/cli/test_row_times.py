"""Late rows, rows too far ahead, and rows missing to the next watermark, as `run` and `status` show them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated

import pyarrow as pa
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.cli.run import _in_words
from headrace.log.facts import RowTimes
from headrace.operators import Count, Tumbling
from headrace.testing import PipelineHarness

START = 1_577_836_800_000
DAY = 86_400_000


class Sale(Struct, frozen=True):
    shop: str
    at: Timestamp


class Hourly(Struct, frozen=True):
    shop: str
    n: Annotated[int, Count()]


@pytest.fixture
def shop(headrace, monkeypatch):
    """A job that counts sales by hour, with a watermark after each second row. The command has its folder as home."""
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop")
    counts = sales.window(Tumbling(timedelta(hours=1))).aggregate("counts", Hourly)
    harness = PipelineHarness(counts.sink("out"), bucket=2)
    monkeypatch.setenv("HEADRACE_HOME", str(harness.folder))
    return harness


def test_status_names_late_and_early_rows(shop, headrace):
    shop.feed("sales", [Sale("a", START), Sale("a", START + DAY), Sale("a", START), Sale("a", START + 9 * DAY)])
    shop.run()
    (job,) = json.loads(headrace("status shop --json").stdout)["jobs"]
    assert job["row_times"] == {
        "counts": {"behind": 1, "dropped": 1, "to_side_output": 0, "ahead": 0, "doubtful": 0},
        "sales": {"behind": 0, "dropped": 0, "to_side_output": 0, "ahead": 1, "doubtful": 0},
    }
    assert sorted(warning["kind"] for warning in job["warnings"]) == ["ahead", "late"]
    shown = " ".join(headrace("status shop").stdout.split())
    assert "shop: 1 row came too late for 'counts' and was dropped (1 arrived behind the watermark)" in shown
    assert "shop: 1 row of 'sales' has an event time too far ahead, and is in the quarantine" in shown


def test_numbers_like_seconds_are_warned_of(shop, headrace):
    shop.feed_table("sales", pa.table({"shop": ["a"] * 3, "at": [1767261600, 20260131, START]}))
    shop.run()
    (job,) = json.loads(headrace("status shop --json").stdout)["jobs"]
    assert job["row_times"]["sales"]["doubtful"] == 2
    assert [warning["kind"] for warning in job["warnings"] if warning["kind"] != "late"] == ["doubtful_times"]


def test_status_names_rows_missing_to_the_next_watermark(shop, headrace):
    shop.feed("sales", [Sale("a", START + number * DAY // 4) for number in range(3)])
    shop.run()
    (job,) = json.loads(headrace("status shop --json").stdout)["jobs"]
    (wait,) = job["watermark_waits"]
    assert (wait["sources"], wait["rows_missing"], wait["bucket"], wait["timers"]) == (["sales"], 1, 2, 1)
    assert f"shop: {wait['message']}" in " ".join(headrace("status shop").stdout.split())
    assert job["warnings"] == []


def test_run_shows_counts_in_words():
    counts = RowTimes(behind=1200, dropped=3, to_side_output=1)
    assert _in_words(counts) == "1,200 behind the watermark; 3 dropped as late; 1 late, to a side output"
    assert _in_words(RowTimes(ahead=2)) == "2 too far ahead"
