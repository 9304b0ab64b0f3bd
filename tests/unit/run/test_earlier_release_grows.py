"""A job of release 0.1, after three of its four days, gets a second source that meets the first (no JVM)."""

from __future__ import annotations

import itertools
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.commit.verify import verify
from headrace.local.tasks import LocalTasks
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from tests.jobs.home import PROJECT, Home
from tests.jobs.outcome import assert_well_formed, checkpoints, sink_rows
from tests.jobs.purchase_files import day_start, purchases_of
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

HOUR = 3_600_000


@pytest.fixture
def old(tmp_path):
    with tarfile.open(PROJECT / "tests" / "fixtures" / "purchases-0.1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "returns").mkdir()
    home = Home(tmp_path)
    grow(home)
    return home


def grow(home, **returns):
    home.configure(
        {
            "pipeline": "tests.jobs.returns:pipeline",
            "sources": {"returns": {"path": "returns", "interval": "%Y-%m-%dT%H", **returns}},
            "sinks": {"visits": {"path": "lake/visits", "mode": "append"}},
        }
    )


def run(home, **options):
    return run_on(LocalTasks(), home.config(), RunOptions(run_id="grown", **options), lambda _: None)


def bring_back(home, hours):
    times = pa.array([day_start(0) + hour * HOUR for hour in hours], pa.timestamp("ms", tz="UTC"))
    rows = pa.table({"at": times, "customer": [f"customer {hour}" for hour in hours]})
    pq.write_table(rows, home.folder / "returns" / "2024-03-04T00.parquet")


def test_silent_second_source_changes_nothing(old):
    grow(old, idle_after="0s")
    run(old)
    assert_well_formed(old.config())
    assert len(sink_rows(old.config(), "visits")) == 89  # one purchase of the fourth day has no customer
    old.configure()  # the totals of the first source alone
    assert_as_by_hand(old.config(), by_hand(purchases_of(day) for day in range(4)))


def test_orders_and_watermarks_continue_as_one_line(old):
    before = checkpoints(old.config())[-1]
    bring_back(old, [1, 80, 90])
    run(old, end_of_input=True)
    after = checkpoints(old.config())[-1]
    first, last = (point.offsets["purchases"].bucket.next_ordinal for point in (before, after))
    assert (first, last) == (270, 270 + 90 + 3 + 2)
    assert after.offsets["returns"].number == 1
    assert after.offsets["returns"].bucket == after.offsets["purchases"].bucket
    seen = [point.watermark for point in checkpoints(old.config()) if point.watermark is not None]
    assert seen == sorted(seen)
    assert all(finding.ok for finding in verify(old.config()))


def test_second_source_begins_at_the_watermark(old):
    before = checkpoints(old.config())[-1]
    bring_back(old, [1, 80, 90])
    run(old, end_of_input=True)
    names = ("at", "customer", "is_return", "watermark")
    visits = [dict(zip(names, row, strict=True)) for row in sink_rows(old.config(), "visits")]
    assert min(visit["watermark"] for visit in visits) == before.watermark
    (early, *_) = [visit for visit in visits if visit["is_return"]]
    assert early["at"] < before.watermark == early["watermark"]
    in_order = sorted(visits, key=lambda visit: visit["watermark"])
    assert all(before["watermark"] <= after["watermark"] for before, after in itertools.pairwise(in_order))


def test_rows_ahead_of_the_second_source_wait(old):
    run(old)
    before = checkpoints(old.config())[-1]
    assert before.offsets["purchases"].bucket.next_ordinal < 290
    bring_back(old, [1, 80])
    run(old)
    after = checkpoints(old.config())[-1]
    assert before.offsets["purchases"].bucket.next_ordinal < after.offsets["purchases"].bucket.next_ordinal < 360
    assert after.offsets["purchases"].unread == ("2024-03-04.parquet",)
