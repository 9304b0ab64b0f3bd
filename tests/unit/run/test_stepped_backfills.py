"""Backfills of a job whose one source has a Spark transform with a dimension table, beside a plain source."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.edits.promote import promoting
from headrace.errors import SourceError
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.run.backfill import BackfillOutcome
from headrace.sources.registry import read_rows_of
from headrace.sources.transformed.rows import DimensionTables, columns_of_rows, transform_input
from headrace.sources.transformed.source import write_derived
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from tests.unit.run.test_promoted_backfills import ORDERS, PLACES, assert_whole, day_in
from tests.unit.support.backfilled_job import DAY, BackfilledJob, days
from tests.unit.support.branched_job import Order, Totals
from tests.unit.support.fuzzing import examples

SCHEMA = pa.schema([("customer", pa.string()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.int64())])


def stepped_totals():
    """Return the pipeline of `BranchedJob` over the union of a source with a step and a plain one."""
    pipeline = Pipeline("shop")
    stepped = pipeline.source("orders", Order, event_time="at").sql("select ...", record=Order, tables=("prices",))
    plain = pipeline.source("others", Order, event_time="at")
    results = stepped.union(plain).key_by("customer").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    return pipeline


class Prices:
    """A Python step: it adds 100 times the version of the table to amounts; an amount of 5 or more gives two rows.

    `versions` has the version that the rows of each file were first made with; with `are_fixed`, all rows are made with these.
    """

    def __init__(self, config, versions, *, are_fixed):
        self.node, self.config = plan_of(config.code).sources[0], config
        self.tables = DimensionTables("orders", {"prices": config.sources["orders"].tables["prices"]}, Storage(""))
        self.versions, self.are_fixed = versions, are_fixed

    def digest(self):
        return "00000001"

    def derive(self, files, origin):
        for path, file in files.items():
            version = self.versions.setdefault(file.name, origin.tables["prices"])
            if not self.are_fixed:
                version = origin.tables["prices"]
                self.tables.read("prices", version)
            rows = read_rows_of(file, self.node.stored, Storage(""))
            checked = columns_of_rows(self.node.stored, rows)
            result = [
                row | {"amount": row["amount"] and row["amount"] + 100 * version}
                for row in transform_input(checked.columns, checked.kinds, self.node.stored).to_pylist()
                for _ in range(1 + (row["amount"] >= 5))
            ]
            write_derived(Storage(path), pa.Table.from_pylist(result, SCHEMA).to_batches(), SCHEMA, origin=origin)


class SteppedBackfilledJob(BackfilledJob):
    """The job of `BackfilledJob` with the sources "orders", which has a step that reads the table "prices", and "others"."""

    def __init__(self, *, versions=None, **options):
        bound = {"orders": {"tables": {"prices": "prices"}}}
        super().__init__(stepped_totals(), sources=("orders", "others"), bound=bound, **options)
        self.versions, self.are_fixed = versions or {}, versions is not None
        self.change_prices()

    def change_prices(self):
        """Commit a version of the table."""
        write_deltalake(str(self.harness.folder / "prices"), pa.table({"id": [1]}), mode="append")

    def labels(self, branch=None):
        """Return the version of the table that the total of each customer was made with."""
        rows = self.content(branch)["sink totals"]
        return {row["customer"]: row["amount"] // 100 for row in map(dict, rows)}

    def inputs(self, config):
        return {"steps": {"orders": Prices(config, self.versions, are_fixed=self.are_fixed)}}

    def beside(self):
        """Return a job without input that makes rows with the versions that this job made them with first."""
        return SteppedBackfilledJob(versions=self.versions)


def write(job, number, draw, sources=("orders", "others")):
    """Write files of a day, or write them again; then the table may change."""
    for source in sources:
        job.write(number, *draw(ORDERS, source), source=source)
    if draw(st.booleans(), "prices change"):
        job.change_prices()


def whole_days(job):
    """Return the number of days that the job has taken in of both sources."""
    ends = [
        checkpoint.interval_end for checkpoint in CheckpointLog(JobFolder(job.config.job_folder)).lineage.checkpoints
    ]
    reached = max((end for end in ends if end is not None), default=None)
    assume(reached is not None and reached > days(0).start)
    return (reached - days(0).start) // DAY


@pytest.mark.slow  # each example runs a job, its branches and a straight job: 4 s
@examples(2)
@given(data=st.data())
def test_any_backfills_end_as_a_straight_run(data):
    draw = data.draw
    count = draw(st.integers(2, 4), "days")
    job = SteppedBackfilledJob(promote="automatic", files_per_batch=draw(st.integers(1, 2), "files a micro-batch"))
    for number in range(count):
        write(job, number, draw)
        if draw(st.booleans(), "run"):
            job.run()
    job.run()
    for _ in range(draw(st.integers(1, 3), "backfills")):
        for number in draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True), "corrected"):
            write(job, number, draw, draw(st.sampled_from([("orders",), ("others",), job.sources]), "sources"))
        asked = day_in(draw, whole_days(job))
        place = draw(
            st.one_of(st.none(), st.sampled_from((*PLACES, "promotion.committed", "promotion.landed"))), "crash"
        )
        result = job.backfill(asked, "again", crash_at=place)
        if draw(st.booleans(), "live goes on"):
            write(job, count, draw)
            count += 1
            job.run()
        if result is None:
            result = job.backfill(asked, "again")
        assert result.outcome is BackfillOutcome.PROMOTED
        assert_whole(job)
    job.run(end_of_input=True)  # rows that wait for the other source are taken in as well
    assert job.content() == job.straight(end_of_input=True)


def two_days(**options):
    """Return a job that made the rows of its first day with version 0 of the table; the present one is 2."""
    job = SteppedBackfilledJob(**options)
    job.write(0, ("ann", 1))
    job.write(0, ("bob", 1), source="others")
    job.run()
    job.change_prices()
    job.write(1, ("cyd", 1))
    job.write(1, ("bob", 1), source="others")
    job.run()
    job.change_prices()
    return job


@pytest.mark.parametrize(("tables", "labels"), [("recorded", {"ann": 0, "cyd": 1}), ("latest", {"ann": 2, "cyd": 2})])
def test_corrected_file_meets_the_tables_of_its_time(tables, labels):
    job = two_days(replay={"tables": tables})
    job.write(0, ("ann", 3), ("dee", 1))
    job.backfill(days(0), "again")
    labels_on_branch = job.labels("again")
    assert {name: labels_on_branch[name] for name in ("ann", "cyd")} == labels
    assert labels_on_branch["dee"] == labels["ann"]
    assert job.labels() == {"ann": 0, "bob": 0, "cyd": 1}


def test_file_read_ahead_keeps_its_version():
    job = SteppedBackfilledJob(files_per_batch=2)
    job.write(0, ("ann", 1))
    job.write(0, ("bob", 1), source="others")
    job.write(1, ("cyd", 1))
    job.run()  # makes the rows of the second day, which wait for the other source
    job.change_prices()
    job.write(2, ("dee", 1))
    for day in (1, 2):
        job.write(day, ("bob", 1), source="others")
    job.run()
    job.change_prices()
    job.backfill(days(0), "again", promote="refuse")
    assert job.labels("again") == job.labels() == {"ann": 0, "bob": 0, "cyd": 0, "dee": 1}


def test_version_that_vacuum_removed_is_named():
    job = two_days()
    job.write(0, ("ann", 3))
    live, before = job.content(), job.last()
    log = job.harness.folder / "prices/_delta_log"
    shutil.move(log / f"{0:020d}.json", log / "removed")
    match = r"source 'orders': cannot read version 0 of its table 'prices' .*replay\.tables: latest"
    with pytest.raises(SourceError, match=match):
        job.backfill(days(0), "again")
    assert (job.content(), job.last()) == (live, before)


@pytest.mark.slow
def test_job_continues_with_present_tables_after_promotion():
    job = two_days()
    job.write(0, ("ann", 3))
    job.backfill(days(0), "again")
    with job.on_its_clock(), promoting(job.config, "again", "promotion") as promotion:
        promotion.promote()
    job.write(2, ("eve", 1))
    job.write(2, ("bob", 1), source="others")
    job.run(end_of_input=True)
    assert job.labels() == {"ann": 0, "bob": 0, "cyd": 1, "eve": 2}
