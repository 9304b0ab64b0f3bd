"""Windows outside the years 1 to 9999 are an error that names the record; state and other records stay as they are."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.errors import UserFunctionError
from headrace.operators import Cumulative, Hopping, Session, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid, Totals, window_pipeline

LAST = 253_402_300_799_999
FIRST = -62_135_596_800_000
DAY = timedelta(days=1)
WINDOWS = [Tumbling(timedelta(hours=1)), Hopping(2 * DAY, DAY), Cumulative(2 * DAY, DAY), Session(DAY)]


def harness_of(windows, lateness=0):
    function = next(
        operator
        for operator in window_pipeline(windows, Totals, lateness=lateness).operators
        if operator.name == "summary"
    )
    return KeyedHarness(function.function, key=lambda bid: bid.item)


@pytest.mark.parametrize("windows", WINDOWS)
def test_window_beyond_the_calendar_is_an_error(windows):
    with (
        harness_of(windows) as harness,
        pytest.raises(UserFunctionError, match="the window of that time ends after the year"),
    ):
        harness.process(Bid("a", LAST, 1), timestamp=LAST)


def test_window_before_the_calendar_is_an_error():
    harness = harness_of(Hopping(2 * DAY, DAY))
    with harness, pytest.raises(UserFunctionError, match="the window of that time begins before the year 1"):
        harness.process(Bid("a", FIRST, 1), timestamp=FIRST)


def test_late_record_of_year_1_is_late():
    with harness_of(Hopping(2 * DAY, DAY)) as harness:
        harness.watermark(0)
        harness.process(Bid("a", FIRST, 1), timestamp=FIRST)
        assert harness.kinds() == []


def test_lateness_beyond_the_calendar_is_an_error():
    at = LAST - 3_600_000
    with harness_of(Tumbling(timedelta(minutes=1)), lateness=3_600_000) as harness, pytest.raises(UserFunctionError):
        harness.process(Bid("a", at, 1), timestamp=at)


def test_last_window_of_the_calendar_fires():
    at = LAST - 3_600_000
    with harness_of(Tumbling(timedelta(hours=1))) as harness:
        harness.process(Bid("a", at, 1), timestamp=at)
        harness.watermark(LAST)
        assert [record.bids for _, record in harness.kinds()] == [1]


def test_record_is_named_and_nothing_is_committed():
    sources = {"bids": {"max_ahead": "none"}}
    harness = PipelineHarness(window_pipeline(Tumbling(timedelta(hours=1)), Totals), job={"sources": sources})
    harness.feed("bids", [Bid("a", 1, 1), Bid("b", LAST, 2)])
    with pytest.raises(UserFunctionError, match=r'key "b"(?s:.*)Take such records out with filter') as error:
        harness.run()
    assert error.value.exit_code == 5
    harness.change(pipeline=window_pipeline(Tumbling(timedelta(hours=1)), Totals, only=lambda bid: bid.at < LAST))
    harness.run(end_of_input=True)
    assert [row.item for row in harness.sink("summaries")] == ["a"]
