"""Event times that cannot be: refused rows and rows from the future move no watermark, and change no result."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.edits.fork import fork
from headrace.edits.requeue import requeue
from headrace.errors import SourceError
from headrace.operators import Count, Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.branched_job import BranchedJob, Order

HOUR = timedelta(hours=1)
DAY = 86_400_000
MORNING_MS = round(datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp() * 1000)


class Sale(Struct, frozen=True):
    shop: str
    at: Timestamp
    cents: int


class Hourly(Struct, frozen=True):
    shop: str
    window_start: Timestamp
    n: Annotated[int, Count()]


class Total(Struct, frozen=True):
    shop: str
    n: Annotated[int, Count()]
    cents: Annotated[int, Sum("cents")]


def hourly(name="hourly"):
    sales = Pipeline(name).source("sales", Sale, event_time="at")
    return sales.key_by("shop").window(Tumbling(HOUR)).aggregate("counts", Hourly).sink("out")


def totals(name="totals"):
    sales = Pipeline(name).source("sales", Sale, event_time="at").key_by("shop")
    counted = sales.aggregate("sums", Total, state_ttl=timedelta(days=30))
    return counted.upsert_materialize("last", primary_key=("shop",), upsert_key=("shop",)).sink("out")


def line(at, cents=1, shop="a"):
    return json.dumps({"shop": shop, "at": at, "cents": cents})


MORNING = [line(f"2026-03-01T{time}:00Z") for time in ("10:00", "10:10", "11:10", "12:10")]
BAD = line("2099-01-01T00:00:00Z", "oops")
AHEAD = line("2099-01-01T00:00:00Z")


def fed(pipeline, lines, **settings):
    harness = PipelineHarness(pipeline, bucket=1, job={"sources": {"sales": {"format": "json", **settings}}})
    harness.feed_bytes("sales", "\n".join(lines).encode(), file="1.json")
    return harness


def start(row):
    return datetime.fromtimestamp(row.window_start / 1000, UTC).hour


@pytest.mark.parametrize("wrong", [BAD, AHEAD])
def test_wrong_year_ends_no_window(wrong):
    harness = fed(hourly(), [MORNING[0], wrong, *MORNING[1:]])
    report = harness.run()
    assert [(start(row), row.n) for row in harness.sink("out")] == [(10, 2), (11, 1)]
    assert report.quarantined == 1
    assert report.watermark == datetime(2026, 3, 1, 12, 10, tzinfo=UTC).timestamp() * 1000 - 1


@pytest.mark.parametrize("wrong", [BAD, AHEAD])
def test_wrong_year_expires_no_state(wrong):
    harness = fed(totals(), [MORNING[0], wrong, *MORNING[1:]])
    harness.run()
    assert [(row.n, row.cents) for row in harness.sink("out")] == [(4, 4)]


def test_row_ahead_names_time_and_setting():
    harness = fed(hourly(), [MORNING[0], AHEAD])
    harness.run()
    (error,) = harness.table("quarantine")["error"].to_pylist()
    assert error == (
        "at is 2099-01-01T00:00:00Z, 26603 days, 14:00:00 ahead of the micro-batch, which began at 2026-03-01T10:00:00Z: the "
        "source's max_ahead is 1 day, 0:00:00"
    )


def test_strict_source_fails_on_a_row_ahead():
    harness = fed(hourly(), [MORNING[0], AHEAD], on_bad_row="fail")
    with pytest.raises(SourceError, match=r"row 1 of .*1\.json: at is 2099-01-01T00:00:00Z"):
        harness.run()


def test_bookings_may_lie_ahead():
    harness = fed(hourly(), [MORNING[0], AHEAD, MORNING[1]], max_ahead="none")
    report = harness.run()
    assert [(start(row), row.n) for row in harness.sink("out")] == [(10, 1)]
    assert (report.quarantined, report.watermark) == (0, datetime(2099, 1, 1, tzinfo=UTC).timestamp() * 1000 - 1)


def test_limit_is_inclusive():
    day_ahead, beyond = line("2026-03-02T10:00:00.000Z"), line("2026-03-02T10:00:00.001Z")
    harness = fed(hourly(), [MORNING[0], day_ahead, beyond])
    assert harness.run().quarantined == 1
    assert harness.table("quarantine")["raw"].to_pylist() == [beyond]


def test_later_run_accepts_requeued_rows():
    harness = fed(hourly(), [MORNING[0], line("2026-03-09T10:00:00Z")])
    assert harness.run().quarantined == 1
    harness.clock.advance(8 * 86_400_000)
    requeue(harness.config, "requeue")
    report = harness.run()
    assert (report.rows_in, report.quarantined) == (1, 0)


def test_assigned_time_obeys_the_limit():
    class Booking(Struct, frozen=True):
        shop: str
        at: Timestamp
        due: Timestamp

    bookings = Pipeline("bookings").source("sales", Booking, event_time="at").assign_event_time("due")
    harness = PipelineHarness(
        bookings.key_by("shop").window(Tumbling(HOUR)).aggregate("n", Hourly).sink("out"), bucket=1
    )
    at = round(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    day = 86_400_000
    harness.feed("sales", [Booking("a", at, at), Booking("a", at, at + day + 1), Booking("a", at + day, at + day)])
    report = harness.run()
    assert (report.quarantined, report.watermark) == (1, at + day - 1)
    (row,) = harness.table("quarantine").to_pylist()
    assert (row["operator"], json.loads(row["raw"])["due"]) == ("sales", at + day + 1)
    assert row["error"].startswith("the event time of assign_event_time due is 2026-03-02T00:00:00.001Z")


class Rate(Struct, frozen=True):
    shop: str
    at: Timestamp
    percent: int


def joined():
    pipeline = Pipeline("joined")
    sales = pipeline.source("sales", Sale, event_time="at").key_by("shop")
    rates = pipeline.source("rates", Rate, event_time="at").key_by("shop")
    return sales.join_as_of("priced", rates, emit=lambda sale, _: sale, record=Sale, state_ttl=Lifetime.FOREVER).sink(
        "out"
    )


@pytest.mark.parametrize("wrong", [BAD, AHEAD])
def test_wrong_year_moves_no_merge_key(wrong):
    harness = PipelineHarness(
        joined(), bucket=1, job={"sources": {"sales": {"format": "json"}, "rates": {"format": "json"}}}
    )
    rates = [json.dumps({"shop": "a", "at": f"2026-03-01T{hour}:00:00Z", "percent": 1}) for hour in ("09", "13")]
    harness.feed_bytes("rates", "\n".join(rates).encode(), file="1.json")
    harness.feed_bytes("sales", "\n".join([MORNING[0], wrong, *MORNING[1:]]).encode(), file="1.json")
    report = harness.run()
    assert (report.rows_in, report.quarantined) == (6, 1)
    assert report.watermark == datetime(2026, 3, 1, 12, 10, tzinfo=UTC).timestamp() * 1000 - 1
    assert len(harness.sink("out")) == 3


def test_branch_judges_by_the_time_of_the_job():
    job = BranchedJob()
    now = job.harness.clock.now()
    orders = [Order("ann", now, 1), Order("bob", now + 2 * DAY, 1), Order("cyd", now, 1)]
    job.harness.feed("orders", orders)
    live = job.run()
    job.harness.clock.advance(30 * DAY)
    fork(job.config, "again", 0, "somebody")
    branch = job.run("again")
    assert (live.quarantined, branch.quarantined) == (1, 1)
    assert branch.watermark == live.watermark


@pytest.mark.parametrize("with_good_row", [False, True])
def test_refused_rows_keep_no_source_alive(with_good_row):
    formats = {"sales": {"format": "json", "idle_after": "1h", "max_quarantined": "none"}, "rates": {"format": "json"}}
    harness = PipelineHarness(joined(), bucket=1, job={"sources": formats}, now=MORNING_MS)
    rate = json.dumps({"shop": "a", "at": "2026-03-01T10:05:00Z", "percent": 1})
    harness.feed_bytes("sales", MORNING[0].encode(), file="1.json")
    harness.feed_bytes("rates", rate.encode(), file="1.json")
    harness.run()
    harness.clock.advance(2 * 3_600_000)
    harness.feed_bytes("sales", "\n".join([BAD, AHEAD, *[MORNING[0]] * with_good_row]).encode(), file="2.json")
    harness.run(max_batches=1)
    facts = harness.facts[-1].sources["sales"]
    assert (facts.idle, facts.taken_at) == (not with_good_row, harness.clock.now() if with_good_row else MORNING_MS)
