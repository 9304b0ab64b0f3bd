"""Runs of a job whose two sources meet: purchases by day, and returns by half day."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from headrace import Context, KeyedCoProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SourceError
from headrace.testing import PipelineHarness
from tests.jobs.outcome import checkpoints

HOUR = 3_600_000
START = 1_577_836_800_000
INTERVALS = {"purchases": {"interval": "%Y-%m-%d"}, "returns": {"interval": "%Y-%m-%dT%H"}}


class Sale(Struct, frozen=True):
    shop: int
    at: Timestamp


class Arrival(Struct, frozen=True):
    number: int
    source: str
    at: Timestamp


class Arrivals(KeyedCoProcessFunction[Sale, Sale, Arrival]):
    count = ValueState("count", int)

    async def process1(self, sale: Sale, ctx: Context, /):
        await self._arrived("purchases", sale, ctx)

    async def process2(self, sale: Sale, ctx: Context, /):
        await self._arrived("returns", sale, ctx)

    async def _arrived(self, source, sale, ctx):
        number = (await self.count.value()) or 0
        await self.count.update(number + 1)
        ctx.collect(Arrival(number, source, sale.at))


def shop():
    p = Pipeline("shop")
    purchases, returns = (p.source(name, Sale, event_time="at").key_by("shop") for name in INTERVALS)
    return purchases.connect(returns).process("arrivals", Arrivals()).sink("arrivals")


class Place(NamedTuple):
    """The read position of a source."""

    unread: tuple[str, ...]
    rows_taken: int


class Shop:
    """The job in a harness, and its files by day."""

    def __init__(self):
        self.harness = PipelineHarness(shop(), job={"sources": INTERVALS})

    def bought(self, day, *hours):
        self._feed("purchases", day, hours, f"2020-01-{day + 1:02}.parquet")

    def returned(self, day, half, *hours):
        self._feed("returns", day, hours, f"2020-01-{day + 1:02}T{half * 12:02}.parquet")

    def _feed(self, source, day, hours, file):
        self.harness.feed(source, [Sale(1, START + (24 * day + hour) * HOUR) for hour in hours], file=file)

    def day(self, number, **options):
        start = START + number * 24 * HOUR
        return self.harness.run(mode="interval", interval_start=start, interval_end=start + 24 * HOUR, **options)

    @property
    def arrivals(self):
        """Return the arrivals by source and hour, in order."""
        rows = sorted(self.harness.sink("arrivals"), key=lambda row: row.number)
        return [(row.source, (row.at - START) // HOUR) for row in rows]

    @property
    def facts(self):
        return checkpoints(self.harness.config)[-1].sources

    @property
    def places(self):
        return {name: Place(facts.begun, facts.rows) for name, facts in self.facts.items()}


@pytest.fixture
def job():
    return Shop()


def test_daily_and_half_daily_files_meet(job):
    job.bought(0, 1, 5, 13, 22)
    job.returned(0, 0, 3)
    job.returned(0, 1, 14)
    job.harness.run()
    assert job.arrivals == [("purchases", 1), ("returns", 3), ("purchases", 5), ("purchases", 13), ("returns", 14)]
    assert job.places == {"purchases": (("2020-01-01.parquet",), 3), "returns": ((), 0)}
    (ahead,) = [event.message for event in job.harness.events if event.kind == "ahead"]
    assert "1 row of 'purchases' waits for 'returns'" in ahead


def test_intervals_and_caught_up_runs_agree(job):
    for day in range(2):
        job.bought(day, 1, 5, 13, 22)
        for half in range(2):
            job.returned(day, half, 3 + 12 * half)
        job.day(day)
    by_interval, places = job.arrivals, job.places
    restore(job.harness.config, 0, "again", "somebody")
    job.harness.change(job={"sources": {**INTERVALS, "purchases": {"max_files_per_batch": 1}}})
    job.harness.run()
    assert (job.arrivals, job.places) == (by_interval, places)


def test_late_file_before_partly_read_one_fails(job):
    job.bought(1, 1, 2, 3)
    job.returned(1, 0, 2)
    job.harness.run()
    assert job.facts["purchases"].begun
    job.bought(0, 1)
    with pytest.raises(SourceError, match="1 file.* appeared behind the last file read .* 2020-01-01.parquet"):
        job.harness.run()


def test_interval_runs_need_all_patterns(job):
    job.harness.change(job={"sources": {"purchases": INTERVALS["purchases"]}})
    with pytest.raises(ConfigError, match="source 'returns' has no 'interval' pattern"):
        job.day(0)


def test_input_end_releases_the_waiting_rows(job):
    job.bought(0, 1, 5, 13)
    job.returned(0, 0, 3)
    assert job.harness.run(end_of_input=True).stopped_because == "ended"
    assert len(job.arrivals) == 4
    assert all(facts.ended and not facts.begun for facts in job.facts.values())
