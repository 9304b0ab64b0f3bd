"""Interval runs over files: each file is taken in once, by the interval that it begins in, in any time zone; or the run says why not."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Pipeline, Struct, Timestamp
from headrace.config._interval_pattern import interval_pattern
from headrace.errors import ConfigError, SourceError
from headrace.operators import Count, Tumbling
from headrace.testing import PipelineHarness


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


def timestamp(text):
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def job(pattern="%Y-%m-%d", pipeline=None, **source):
    pipeline = pipeline or Pipeline("x").source("o", Order, event_time="at").sink("out")
    return PipelineHarness(
        pipeline, bucket=1, job={"sources": {"o": {"format": "json", "interval": pattern, **source}}}
    )


def feed(h, *names, at="2026-01-01T00:00:00"):
    for name in names:
        h.feed_bytes("o", f'{{"id": "{name}", "at": "{at}"}}\n'.encode(), file=f"{name}.json")


def run(h, start, end):
    """Run an interval; return the files that it took in."""
    before = ids(h)
    h.run(mode="interval", interval_start=timestamp(start), interval_end=timestamp(end))
    return sorted(ids(h) - before)


def ids(h):
    return {row["id"] for row in h.sink_table("out").to_pylist()}


def test_interval_takes_the_day_of_its_zone():
    h = job(timezone="America/New_York")
    feed(h, "2026-03-02", "2026-03-08", "2026-03-03")
    assert run(h, "2026-03-02T05:00", "2026-03-03T05:00") == ["2026-03-02"]
    assert run(h, "2026-03-03T05:00", "2026-03-08T05:00") == ["2026-03-03"]
    assert run(h, "2026-03-08T05:00", "2026-03-09T04:00") == ["2026-03-08"]


@pytest.mark.parametrize("present", [[], ["2026-03-02"], ["2026-03-01", "2026-03-02"]])
def test_interval_of_another_zone_is_refused(present):
    h = job()
    feed(h, "2026-02-01", *present)
    with pytest.raises(
        SourceError, match=r"no file begins in .*%Y-%m-%d in UTC gives 2026-03-02 to 2026-03-03, .*sources.o.timezone"
    ):
        run(h, "2026-03-02T05:00", "2026-03-03T05:00")
    assert not ids(h)


def test_file_named_for_its_evening_is_taken():
    h = job()
    feed(h, "2026-03-02", "2026-03-03")
    assert run(h, "2026-03-02T06:00", "2026-03-03T06:00") == ["2026-03-03"]


def test_whole_interval_without_files_is_empty():
    h = job()
    feed(h, "2026-03-01")
    assert run(h, "2026-03-02T00:00", "2026-03-03T00:00") == []


@pytest.mark.parametrize("pattern", ["%Y-%W", "%Y-%U"])
def test_weeks_are_taken_by_their_intervals(pattern):
    h = job(pattern)
    feed(h, "2026-05", "2026-06")
    first = datetime(2026, 2, 2 if pattern == "%Y-%W" else 1, tzinfo=UTC)
    for week in range(2):
        start = first + week * timedelta(days=7)
        end = start + timedelta(days=7)
        assert run(h, f"{start:%Y-%m-%d}", f"{end:%Y-%m-%d}") == [f"2026-{5 + week:02}"]


@pytest.mark.parametrize(
    ("pattern", "name", "start", "end"),
    [
        ("%Y-%m-%dT%H", "2026-03-02T10", "2026-03-02T10:30", "2026-03-02T11:00"),
        ("%Y-%m", "2026-03", "2026-03-05", "2026-03-06"),
        ("%Y", "2026", "2026-12-31", "2027-01-01"),
        ("%G-W%V", "2026-W10", "2026-03-03", "2026-03-09"),
    ],
)
def test_interval_without_any_beginning_is_refused(pattern, name, start, end):
    h = job(pattern)
    feed(h, name)
    with pytest.raises(ConfigError, match=r"no file of a source can begin in interval .*caught-up"):
        run(h, start, end)


def test_coarser_source_may_pass_intervals():
    pipeline = Pipeline("y")
    for source in ("days", "months"):
        pipeline.source(source, Order, event_time="at").sink(f"from_{source}")
    files = {"format": "json", "timezone": "Europe/Berlin"}
    sources = {"days": {**files, "interval": "%Y-%m-%d"}, "months": {**files, "interval": "%Y-%m"}}
    h = PipelineHarness(pipeline, bucket=1, job={"sources": sources})
    for source, file in (("days", "2026-02-28"), ("days", "2026-03-01"), ("days", "2026-03-02"), ("months", "2026-03")):
        h.feed_bytes(source, f'{{"id": "{file}", "at": "2026-01-01T00:00:00"}}\n'.encode(), file=f"{file}.json")
    taken = []
    for start, end in (("2026-02-27", "2026-02-28"), ("2026-02-28", "2026-03-01"), ("2026-03-01", "2026-03-02")):
        h.run(mode="interval", interval_start=timestamp(f"{start}T23:00"), interval_end=timestamp(f"{end}T23:00"))
        taken.append([h.sink_table(f"from_{source}").num_rows for source in ("days", "months")])
    assert taken == [[1, 0], [2, 1], [3, 1]]


def test_changed_zone_takes_no_file_twice():
    h = job()
    feed(h, "2026-03-02", "2026-03-03")
    assert run(h, "2026-03-02T05:00", "2026-03-03T05:00") == ["2026-03-03"]
    h.job["sources"]["o"]["timezone"] = "America/New_York"
    h._configure()
    with pytest.raises(
        SourceError, match=r"2026-03-03.json begins in this interval by the time zone America/New_York.*count twice"
    ):
        run(h, "2026-03-03T05:00", "2026-03-04T05:00")


def test_complete_day_of_a_zone_closes_its_windows():
    class PerHour(Struct, frozen=True):
        id: str
        n: Annotated[int, Count()]

    pipeline = Pipeline("z")
    orders = pipeline.source("o", Order, event_time="at", out_of_orderness=timedelta(days=3))
    orders.key_by("id").window(Tumbling(timedelta(hours=1))).aggregate("n", PerHour).sink("out")
    h = job(pipeline=pipeline, timezone="America/New_York", complete_intervals=True)
    h.feed_bytes("o", b'{"id": "a", "at": "2026-03-09T03:30:00"}\n', file="2026-03-08.json")
    h.run()
    assert h.sink_table("out").num_rows == 1
    h.feed_bytes("o", b'{"id": "a", "at": "2026-03-09T04:00:00"}\n', file="2026-03-09.json")
    h.run()
    assert h.sink_table("out").num_rows == 2


def test_complete_day_too_far_ahead_moves_nothing():
    node = Pipeline("x").source("o", Order, event_time="at").sink("out")
    source = {"format": "json", "interval": "%Y-%m-%d", "complete_intervals": True}
    h = PipelineHarness(node, job={"sources": {"o": source}}, now=timestamp("2026-03-02T10:00"))
    feed(h, "2026-03-03", at="2026-03-03T09:00")
    assert h.run().rows_in == 1
    feed(h, "2099-03-04")
    with pytest.raises(
        SourceError,
        match=r"the interval of .*2099-03-04.json is 2099-03-04T00:00:00Z, .*name the file in the source's 'ignore'",
    ):
        h.run()
    h.change(job={"sources": {"o": {**source, "ignore": ["2099-*"]}}})
    feed(h, "2026-03-04")
    h.clock.advance(24 * 3_600_000)
    assert h.run().rows_in == 1


@settings(max_examples=3)
@given(
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Chatham"]),
    st.sampled_from(["%Y-%m-%d", "%G-W%V", "%Y-%W", "%Y-%m"]),
    st.dates(date(2017, 1, 1), date(2027, 1, 1)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_interval_takes_each_file_once(zone, text, first, lengths):
    pattern = interval_pattern(text, zone)
    at = pattern.period_at(timestamp(f"{first}T12:00"))[0]
    h, runs = job(text, timezone=zone), []
    for length in lengths:
        begin, names = at, []
        for _ in range(length):
            names.append(datetime.fromtimestamp(at / 1000, pattern.zone).strftime(text))
            at = pattern.period_at(at)[1]
        runs.append((begin, at, names))
    feed(h, *(name for _, _, names in runs for name in names))
    for begin, end, names in runs:
        before = ids(h)
        h.run(mode="interval", interval_start=begin, interval_end=end)
        assert sorted(ids(h) - before) == sorted(names)
