"""Backfills that promote their result: in any order, with crashes, while the job continues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, Lifetime, Pipeline, Struct, Timestamp
from headrace.commit.verify import verify
from headrace.errors import ConfigError
from headrace.run.backfill import BackfillOutcome
from headrace.storage.storage import Storage
from tests.unit.support.backfilled_job import BackfilledJob, days
from tests.unit.support.branched_job import CUSTOMERS, Order
from tests.unit.support.fuzzing import examples

ORDERS = st.lists(st.tuples(st.sampled_from(CUSTOMERS), st.integers(0, 9)), min_size=1, max_size=4)
PLACES = (
    *("backfill.forked", "backfill.caught_up", "commit.before", "commit.after", "publish.half", "publish.after"),
    *("promotion.begun", "promotion.staged", "prepare.half", "promotion.prepared", "promotion.removed"),
)


def assert_whole(job):
    """Check that each version of a live sink that changed rows belongs to a checkpoint: readers see nothing in between."""
    assert [result for result in verify(job.config) if not result.ok] == []
    for sink in job.config.sinks.values():
        store = Storage(sink.table_path).table()
        commits = store.latest().history()[::-1]
        rows = [
            sorted(map(repr, store.at(commit.version).read(store.latest().schema).to_pylist())) for commit in commits
        ]
        for number, commit in enumerate(commits[1:], start=1):
            assert rows[number] == rows[number - 1] or commit.info.checkpoint_id is not None


def day_in(draw, count):
    first = draw(st.integers(0, count - 1), "first day")
    return days(first, draw(st.integers(first + 1, count), "end"))


@pytest.mark.slow  # each example runs a job, its branches, and a job without interruption: 3 s
@examples(2)
@given(data=st.data())
def test_any_backfills_end_as_a_straight_run(data):
    draw = data.draw
    count = draw(st.integers(2, 4), "days")
    job = BackfilledJob(promote="automatic", files_per_batch=draw(st.integers(1, 2), "files a micro-batch"))
    for number in range(count):
        job.write(number, *draw(ORDERS, "orders"))
    job.run()
    for _ in range(draw(st.integers(1, 3), "backfills")):
        for number in draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True), "corrected"):
            job.write(number, *draw(ORDERS, "correction"))
        asked = day_in(draw, count)
        place = draw(st.one_of(st.none(), st.sampled_from(PLACES)), "crash")
        result = job.backfill(asked, "again", crash_at=place)
        if draw(st.booleans(), "live goes on"):
            job.write(count, *draw(ORDERS, "more"))
            count += 1
            job.run()
        if result is None:
            result = job.backfill(asked, "again")
        assert result.outcome is BackfillOutcome.PROMOTED
        assert_whole(job)
        assert job.content() == job.straight()


@pytest.mark.slow
def test_promoted_backfill_can_be_backfilled():
    job = BackfilledJob(promote="automatic")
    for number in range(4):
        job.write(number, ("ann", 1 + number), ("bob", 2))
    job.run()
    for number in (1, 3, 2):
        job.write(number, ("ann", 20 + number), ("cyd", 4))
        assert job.backfill(days(number)).outcome is BackfillOutcome.PROMOTED
        assert job.content() == job.straight()
    assert_whole(job)


@pytest.mark.slow
def test_empty_file_stands_for_lost_last_file():
    job = BackfilledJob(promote="automatic")
    for number in range(3):
        job.write(number, ("ann", 1 + number))
    job.run()
    job.path(2).unlink()
    with pytest.raises(ConfigError, match="If its last file is gone, put an empty one in its place"):
        job.backfill(days(2), "again")
    job.write(2)
    assert job.backfill(days(2), "again", renews=True).outcome is BackfillOutcome.PROMOTED
    assert job.content() == job.straight()


class Version(Struct, frozen=True):
    customer: str
    at: Timestamp
    valid_from: int
    valid_to: int | None


def versions():
    """Return a pipeline of versions of customers, whose orders are events in the sequence of their amounts: 5 empties the table, 7 deletes."""
    rows = (
        Pipeline("shop")
        .source("orders", Order, event_time="at")
        .apply_changes(
            "changes",
            key="customer",
            sequence_by="amount",
            deletes=("amount", 7),
            truncates=("amount", 5),
            history=History.SCD2,
            record=Version,
            tombstones=Lifetime.FOREVER,
            corrections=Lifetime.FOREVER,
        )
    )
    rows.upsert_materialize("latest", primary_key=("customer", "valid_from")).sink("versions")
    return rows.additions().sink("log")


@pytest.mark.slow
@examples(3)
@given(days_of_orders=st.lists(ORDERS, min_size=2, max_size=3), correction=ORDERS, data=st.data())
def test_corrected_day_gives_versions_of_a_straight_run(days_of_orders, correction, data):
    job = BackfilledJob(versions(), promote="automatic")
    for number, orders in enumerate(days_of_orders):
        job.write(number, *orders)
    job.run()
    corrected = data.draw(st.integers(0, len(days_of_orders) - 1), "corrected")
    job.write(corrected, *correction)
    crash = data.draw(st.one_of(st.none(), st.sampled_from(PLACES)), "crash")
    result = job.backfill(days(corrected), "again", crash_at=crash) or job.backfill(days(corrected), "again")
    assert result.outcome is BackfillOutcome.PROMOTED
    assert job.content() == job.straight()
