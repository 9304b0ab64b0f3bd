"""One job's sink is the next job's source, through restores and crashes of both (no JVM)."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace import KeyedProcessFunction, Pipeline, Strategy, Struct, Timestamp, ValueState
from headrace import clock as engine_clock
from headrace.edits.requeue import requeue
from headrace.edits.restore import restore
from headrace.errors import SourceError
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from tests.unit.support.table_job import FEED, TableJob, TableWriter, table

pytestmark = pytest.mark.delta


class Sale(Struct, frozen=True):
    item: str
    at: Timestamp
    cents: int


class Total(Struct, frozen=True):
    item: str
    at: Timestamp
    cents: int


class Totals(KeyedProcessFunction[Sale, Total]):
    """Adds up."""

    cents = ValueState("cents", int)

    async def process(self, sale, ctx, /):
        cents = (await self.cents.value() or 0) + sale.cents
        await self.cents.update(cents)
        ctx.collect(Total(sale.item, sale.at, cents))


class Copied(Struct, frozen=True):
    item: str
    cents: int
    kind: str


class Copies(KeyedProcessFunction[Total, Copied]):
    """Emits a copy of each row."""

    async def process(self, total, ctx, /):
        ctx.collect(Copied(total.item, total.cents, ctx.row_kind.symbol))


def writer(merge):
    totals = Pipeline("writer").source("sales", Sale, event_time="at").key_by("item").process("totals", Totals())
    if merge:
        totals = totals.upsert_materialize("board", primary_key=("item",), strategy=Strategy.ADAPTIVE)
    return PipelineHarness(totals.sink("totals"))


def reader(written, **source):
    feed = {"row_kind": "_change_type"} if source.get("change_feed") else {}
    rows = Pipeline("reader").source("totals", Total, event_time="at", **feed)
    bound = {"format": "delta", "path": str(written.folder / "lake" / "totals"), **source}
    pipeline = rows.key_by("item").process("copies", Copies()).sink("copied")
    return PipelineHarness(pipeline, job={"sources": {"totals": bound}})


def sell(job, **cents):
    job.feed("sales", [Sale(item, 1000, price) for item, price in cents.items()])
    job.run()


def copied(job):
    """Return items and cents that the changes add up to, as a multiset."""
    rows = Counter()
    for row in job.sink("copied"):
        rows[row.item, row.cents] += -1 if row.kind in {"-U", "-D"} else 1
    assert all(count >= 0 for count in rows.values())
    return +rows


def totals(job):
    return Counter((row.item, row.cents) for row in job.sink("totals"))


def restored(job, checkpoint_id):
    with engine_clock.installed(job.clock):
        return restore(job.config, checkpoint_id, "because", "by-hand")


def last(job):
    return CheckpointLog(JobFolder(job.config.job_folder)).last


@pytest.mark.slow
def test_appended_rows_reach_the_next_job():
    table = writer(merge=False)
    sell(table, a=1, b=2)
    two = reader(table)
    two.run()
    assert copied(two) == totals(table) == Counter([("a", 1), ("b", 2)])
    sell(table, a=3)
    two.run()
    two.run()
    assert copied(two) == totals(table) == Counter([("a", 1), ("b", 2), ("a", 4)])


@pytest.mark.slow
def test_restored_writer_stops_a_reader_of_appends():
    table = writer(merge=False)
    sell(table, a=1)
    kept = last(table).checkpoint_id
    two = reader(table)
    two.run()
    follows = last(two).checkpoint_id
    sell(table, b=2)
    two.run()
    restored(table, kept)
    sell(table, c=3)
    with pytest.raises(
        SourceError, match=r"version 3 of .* is a RESTORE to version 1.*skip_versions: 2-3, and run again"
    ):
        two.run()
    restored(two, follows)
    sources = two.job["sources"]
    two.change(job={"sources": {"totals": {**sources["totals"], "skip_versions": "2-3"}}})
    two.run()
    # The writer has taken the second sale in again.
    assert copied(two) == totals(table) == Counter([("a", 1), ("b", 2), ("c", 3)])


@pytest.mark.slow
def test_merged_table_reaches_next_job_as_changes():
    table = writer(merge=True)
    table.run()
    DeltaTable(str(table.folder / "lake" / "totals")).alter.set_table_properties(FEED)
    two = reader(table, change_feed=True)
    for cents in ({"a": 1, "b": 2}, {"a": 3}, {"c": 1, "b": 1}):
        sell(table, **cents)
        two.run()
        assert copied(two) == totals(table)
    kept = last(table).checkpoint_id
    sell(table, a=5, d=1)
    two.run()
    restored(table, kept)
    two.run()
    assert copied(two) == totals(table) == Counter([("a", 4), ("b", 3), ("c", 1)])
    sell(table, a=1)
    two.run()
    assert copied(two) == totals(table)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["latest", "snapshot", "earliest"])
@pytest.mark.parametrize("place", ["ingest.after", "prepare.after", "commit.after"])
def test_killed_reader_sees_each_row_once(start, place):
    written = TableWriter()
    written.append("p")
    written.append("q")
    job = TableJob(written, start=start, max_files_per_batch=1)
    job.run(crash_at=place)
    written.append("r")
    job.run(crash_at=f"{place}:2")
    written.append("s")
    job.run()
    # A place that was not recorded is drawn anew: `latest` is then behind "r".
    latest = ["r", "s"] if place == "commit.after" else ["s"]
    assert sorted(job.arrived()) == (latest if start == "latest" else ["p", "q", "r", "s"])


@pytest.mark.parametrize("feed", [False, True])
def test_refused_rows_of_a_table_are_requeued(feed):
    written = TableWriter(feed=feed, partition_by=["shop"])
    rows = table("p", "q", "r")
    written.append(
        rows=rows.set_column(1, "at", rows["at"].cast("string")).drop(["at"]).append_column("when", rows["at"])
    )
    written.append("s")
    job = TableJob(written, change_feed=feed, max_quarantined="none")
    job.run()
    assert (job.arrived(), len(job.quarantine())) == (["s"], 3)
    with engine_clock.installed(job.harness.clock):
        result = requeue(job.harness.config, "by-hand")
    assert result.metrics["requeued_rows"] == 3
    ((waiting),) = job.last.sources["rows"].requeued
    assert (waiting.ranges, waiting.file_rows) == (((0, 3),), 3)
    job.run()
    assert (job.arrived(), len(job.quarantine())) == (["s"], 3)


def test_requeue_needs_the_tables_files():
    written = TableWriter()
    rows = table("p")
    written.append(rows=rows.set_column(2, "name", pa.nulls(1, pa.string())))
    written.append("q")
    job = TableJob(written, max_quarantined="none")
    job.run()
    written.optimize()
    written.vacuum()
    with pytest.raises(
        SourceError, match=r"\.parquet of .* is gone, and only the file has the rows.*Nothing was requeued"
    ):
        requeue(job.harness.config, "by-hand")
    assert len(job.quarantine()) == 1


def test_rows_cannot_be_fed_to_table_sources():
    job = TableJob(TableWriter())
    with pytest.raises(ValueError, match=r"source 'rows' reads a Delta table: write rows to it"):
        job.harness.feed_table("rows", table("p"))


def test_table_and_folder_meet_by_event_time():
    written = TableWriter()
    written.append("p", "q", at=1000)
    written.append("r", at=5000)
    job = TableJob(written, "more")
    job.harness.feed_table("more", table("x", "y", at=1500))
    job.run()
    assert job.arrived() == ["p", "x", "q", "y"]
    job.harness.feed_table("more", table("z", at=9000))
    job.run()
    assert job.arrived() == ["p", "x", "q", "y", "r"]
    written.append("s", at=9500)
    job.run()
    assert job.arrived() == ["p", "x", "q", "y", "r", "z"]


def test_latest_is_kept_where_sources_meet():
    written = TableWriter()
    written.append("p", at=1000)
    job = TableJob(written, "more", start="latest")
    job.harness.feed_table("more", table("x", at=1500))
    job.run()
    assert job.table.version == 1
    written.append("q", at=1700)
    job.run()
    assert job.arrived() == ["x"]
    job.harness.feed_table("more", table("y", at=2500))
    job.run()
    assert job.arrived() == ["x", "q"]


def test_partly_read_version_continues_after_compaction():
    written = TableWriter()
    written.append("p", "q", "r", at=1000)
    job = TableJob(written, "more")
    job.harness.feed_table("more", table("x", at=1500))
    job.run()
    assert (job.arrived(), job.table.rows) == (["p", "x"], 1)
    written.optimize()
    job.harness.feed_table("more", table("y", at=9500))
    job.run()
    assert job.arrived() == ["p", "x", "q", "r"]
