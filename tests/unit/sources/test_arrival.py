"""The merge of sources that meet, against a loop over single items."""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import SourceConfig
from headrace.errors import ConfigError, SourceError
from headrace.records.watermarks import Timeline, advance
from headrace.sources.arrival import EARLIEST, Queue, release
from headrace.sources.intake import Intake, numbered
from headrace.sources.interval import Interval
from headrace.sources.position import FolderPosition, SourceFacts
from headrace.sources.slices import JobPosition, SliceRequest
from headrace.sources.source import Ahead, Source, SourceFile, TakenIn, first_files
from headrace.storage.storage import Storage

HOUR = 10


class Files(Source):
    """A source in memory: event times by file, None for an unreadable row. Each file is an interval of `HOUR`, numbered by its name."""

    def __init__(self, name, *, limit=100, span=HOUR):
        self.name, self.limit, self.span = name, limit, span
        self.contents = {}

    def put(self, times):
        self.contents[f"{len(self.contents):03}"] = times

    def plan(self, facts, want):
        interval, until = want.interval, want.until
        listed = [SourceFile(name, f"{self.name}/{name}", 0) for name in sorted(self.contents)]
        new = [file for file in listed if file.name > facts.last]
        new = [file for file in new if until is None or file.name <= until]
        if interval is not None and until is None:
            new = [file for file in new if interval.start <= self.interval_of(file.name).start < interval.end]
        return Ahead(want, (*(file for file in listed if file.name in facts.begun), *new), tuple(listed))

    def within_limits(self, files, rows_taken=0):
        config = SimpleNamespace(max_files_per_batch=self.limit, max_rows_per_batch=None)
        return first_files(files, config, self.rows, rows_taken)

    def rows(self, file):
        return len(self.contents[file.name])

    def event_times(self, file, _limit=None):
        return pa.array(self.contents[file.name], pa.int64())

    def facts_after(self, facts, _ahead, files):
        last = max([*(file.name for file in files), facts.last])
        return msgspec.structs.replace(facts, position=FolderPosition(last, facts.begun, facts.rows))

    def interval_of(self, name):
        return Interval(int(name) * self.span, (int(name) + 1) * self.span)


class Job:
    """Takes sources in, one micro-batch after the other, and records the slice of each row."""

    def __init__(self, folder, *sources, bucket=5, disorder=0, complete=(), idle_after=None, groups=None):
        self.sources = {source.name: source for source in sources}
        self.bucket, self.disorder, self.complete, self.idle_after = bucket, disorder, complete, idle_after
        self.groups = groups or (tuple(self.sources),)
        self.folder = folder
        self.facts, self.timelines, self.rows, self.watermarks, self.history = {}, {}, {}, [], []
        self.now = 0

    @property
    def intake(self):
        nodes = [SimpleNamespace(name=n, out_of_orderness=timedelta(milliseconds=self.disorder)) for n in self.sources]
        idle_after = None if self.idle_after is None else timedelta(milliseconds=self.idle_after)
        configs = {
            name: SourceConfig(
                complete_intervals=name in self.complete,
                idle_after=idle_after,
                interval="%H",
                max_ahead=None,
            )
            for name in self.sources
        }
        config = SimpleNamespace(
            job="shop",
            sources=configs,
            watermark=SimpleNamespace(bucket=self.bucket),
            credentials=None,
            reads_latest_tables=False,
        )
        return Intake(SimpleNamespace(groups=self.groups, sources=nodes), config, self.sources)

    def step(self, **wanted):
        """Take in a slice; return whether there was one."""
        at = JobPosition(
            self.facts,
            self.timelines,
            {name: TakenIn() for name in self.sources},
            self.now,
            0,
            Storage(str(self.folder)),
        )
        taken = self.intake.next(at, SliceRequest(**wanted))
        if taken is None:
            return False
        for file in taken.files:
            ordinals = range(file.first_ordinal, file.first_ordinal + file.taken)
            if file.ordinals is not None:
                ordinals = pa.parquet.read_table(file.ordinals)["ordinal"].to_pylist()
            for row, ordinal in zip(range(file.first_row, file.first_row + file.taken), ordinals, strict=True):
                assert ordinal not in self.rows
                self.rows[ordinal] = (file.source, file.name, row)
        for line in taken.timelines:
            after, watermarks = (line.after, line.watermarks) if line.after else self.from_tasks(line)
            self.watermarks += watermarks
            known = self.timelines.get(line.sources[0], Timeline())
            watermark = line.watermarks[-1][1] if line.watermarks else known.watermark
            self.timelines = {
                **{name: own for name, own in self.timelines.items() if name not in line.sources},
                line.sources[0]: Timeline(line.sources, after, watermark),
            }
        self.facts = {**self.facts, **taken.sources}
        self.history.append(self.facts)
        return True

    def from_tasks(self, line):
        """Return buckets as tasks report them, for a source that meets no other."""
        seen = {}
        for ordinal in range(line.before.next_ordinal, line.before.next_ordinal + line.rows):
            source, file, row = self.rows[ordinal]
            time = self.sources[source].contents[file][row]
            seen[ordinal // self.bucket] = max(seen.get(ordinal // self.bucket, time), time)
        return advance(line.before, seen, line.rows, size=self.bucket, lag=self.disorder + 1, watermark=None)

    def drain(self, **wanted):
        while self.step(**wanted):
            pass
        return self

    @property
    def arrived(self):
        return [self.rows[ordinal] for ordinal in sorted(self.rows)]

    @property
    def waiting(self):
        at = JobPosition(self.facts, self.timelines, {}, self.now, 0, Storage(str(self.folder)))
        intake = self.intake
        assert intake.next(at) is None
        return intake.waiting


def by_hand(contents, complete=(), *, bucket, disorder, span=HOUR):
    """Return all rows of the sources, item by item, and the watermarks between them."""
    items = []
    for number, (name, files) in enumerate(contents.items()):
        key = EARLIEST
        for file, times in enumerate(files):
            for row, time in enumerate(times):
                key = key if time is None else max(key, time)
                items.append((key, number, len(items), (name, f"{file:03}", row), None))
            if name in complete:
                end = (file + 1) * span
                items.append((max(key, end), number - (100 if end > key else 0), len(items), None, (number, end)))
                key = max(key, end)
    items.sort(key=lambda item: item[:3])
    watermarks, punctuated = [], dict.fromkeys(range(len(contents)), EARLIEST)
    for place, (key, _, _, _, end) in enumerate(items, 1):
        if end is not None:
            punctuated[end[0]] = end[1]
        elif place % bucket:
            continue
        value = min(max(key - disorder - 1, end - 1) for end in punctuated.values())
        if key != EARLIEST and (not watermarks or value > watermarks[-1][1]):
            watermarks.append((place, value))
    return [row for *_, row, _ in items if row is not None], watermarks


files = st.lists(st.lists(st.none() | st.integers(0, 40), max_size=6), max_size=4)


@pytest.mark.slow
@given(
    contents=st.lists(files, min_size=1, max_size=3),
    limits=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    arrivals=st.lists(st.integers(0, 2), max_size=12),
    bucket=st.integers(1, 7),
    complete=st.sets(st.integers(0, 2)),
    disorder=st.integers(0, 5),
)
def test_any_split_gives_the_same_order(tmp_path_factory, contents, limits, arrivals, bucket, complete, disorder):
    folder = tmp_path_factory.mktemp("transit")
    sources = [Files(f"s{number}", limit=limit) for number, limit in zip(range(len(contents)), limits, strict=False)]
    names = {f"s{number}" for number in complete}
    job = Job(folder, *sources, bucket=bucket, disorder=disorder, complete={*names, "s0"})
    left = [list(own) for own in contents]
    for number in arrivals:
        if number < len(left) and left[number]:
            sources[number].put(left[number].pop(0))
            job.step()
    for source, own in zip(sources, left, strict=True):
        for times in own:
            source.put(times)
    job.drain()
    job.drain(ends=True)
    expected = by_hand(
        {f"s{number}": own for number, own in enumerate(contents)}, job.complete, bucket=bucket, disorder=disorder
    )
    assert (job.arrived, job.watermarks) == expected


@given(contents=st.lists(files, min_size=2, max_size=2), pauses=st.lists(st.booleans(), max_size=8))
def test_replay_repeats_recorded_micro_batches(tmp_path_factory, contents, pauses):
    sources = [Files(f"s{number}", limit=1) for number in range(2)]
    job = Job(tmp_path_factory.mktemp("transit"), *sources, idle_after=5)
    for times, pause in itertools.zip_longest(itertools.chain(*itertools.zip_longest(*contents, fillvalue=[])), pauses):
        if times is not None:
            sources[len(job.history) % 2].put(times)
        job.now += 10 if pause else 1
        job.drain()
    again = Job(tmp_path_factory.mktemp("transit"), *sources)
    for offsets in job.history:
        again.step(until=offsets)
    assert (again.arrived, again.watermarks) == (job.arrived, job.watermarks)
    assert [strip(batch) for batch in again.history[-1:]] == [strip(batch) for batch in job.history[-1:]]


def strip(offsets):
    return {name: msgspec.structs.replace(offset, taken_at=None) for name, offset in offsets.items()}


#    orders    1   3   7   9
#    payments    2   4         rows behind 4 of orders wait: a payment of 4 or later may come


@pytest.fixture
def shop(tmp_path):
    orders, payments = Files("orders"), Files("payments")
    orders.put([1, 3, 7, 9])
    payments.put([2, 4])
    return Job(tmp_path, orders, payments)


def test_rows_ahead_of_others_stay_unreleased(shop):
    shop.drain()
    assert [row[0] for row in shop.arrived] == ["orders", "payments", "orders", "payments"]
    assert (shop.facts["orders"].begun, shop.facts["orders"].rows) == (("000",), 2)
    assert shop.waiting == ((2, "orders", "payments"),)


@pytest.mark.parametrize(("limit", "micro_batches"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_begun_files_make_no_micro_batches(tmp_path, limit, micro_batches):
    orders, payments = Files("orders", limit=limit), Files("payments", limit=limit)
    for hour in range(8):
        orders.put([hour * HOUR + 1, hour * HOUR + 8])
        payments.put([hour * HOUR + 2, hour * HOUR + 9])
    job = Job(tmp_path, orders, payments).drain(ends=True)
    assert len(job.arrived) == 32
    assert len(job.history) in {micro_batches, micro_batches + 1}


def test_source_without_rows_delays_all_sources(tmp_path):
    orders = Files("orders")
    orders.put([1, 2])
    job = Job(tmp_path, orders, Files("payments"))
    assert not job.step()
    assert job.waiting == ((2, "orders", "payments"),)


def test_idle_source_delays_no_other_source(shop):
    shop.idle_after = 100
    shop.drain()
    shop.now = 99
    assert not shop.step()
    shop.now = 100
    assert shop.step()
    assert len(shop.arrived) == 6
    assert shop.facts["payments"].idle
    assert not shop.facts["orders"].idle


def test_requeued_rows_come_last(shop):
    shop.idle_after = 100
    shop.drain()
    shop.now = 100
    shop.drain()
    shop.sources["payments"].put([5])
    shop.sources["orders"].put([8, 10])
    shop.drain()
    assert [row[0] for row in shop.arrived][6:] == ["orders", "payments"]


def test_equal_keys_are_ordered_by_source_number(tmp_path):
    first, second = Files("first"), Files("second")
    for source in (second, first):
        source.put([5, 5])
    job = Job(tmp_path, first, second).drain(ends=True)
    assert [row[0] for row in job.arrived] == ["first", "first", "second", "second"]


def test_source_added_later_gets_highest_number(tmp_path):
    old = Files("old")
    old.put([5, 6])
    job = Job(tmp_path, old).drain(ends=True)
    job.sources = {"new": Files("new"), **job.sources}
    job.groups = (("new", "old"),)
    job.sources["new"].put([1])
    job.sources["old"].put([7])
    job.drain(ends=True)
    assert [row[0] for row in job.arrived] == ["old", "old", "new", "old"]
    assert (job.facts["old"].number, job.facts["new"].number) == (0, 1)


def test_numbers_of_removed_sources_are_not_reused():
    known = {"gone": SourceFacts(number=1), "kept": SourceFacts(number=0)}
    assert {name: facts.number for name, facts in numbered(["new", "kept"], known).items()} == {"new": 2, "kept": 0}


def test_interval_releases_no_rows_beyond_its_end(tmp_path):
    hourly, daily = Files("hourly"), Files("daily", span=3 * HOUR)
    for hour in range(6):
        hourly.put([hour * HOUR + 1])
    daily.put([2, 28])
    daily.put([32])
    job = Job(tmp_path, hourly, daily)
    job.step(interval=Interval(0, 30))
    assert [row[0] for row in job.arrived] == ["hourly", "daily", "hourly", "hourly"]
    assert job.facts["daily"].begun == ("000",)
    job.step(interval=Interval(30, 60))
    assert [row[0] for row in job.arrived][4:] == ["daily", "hourly", "daily"]
    assert job.facts["hourly"].begun == ("004", "005")


@pytest.mark.parametrize("width", [1, 2, 6])
def test_complete_intervals_agree_over_any_runs(tmp_path, width):
    hourly, daily = Files("hourly"), Files("daily", span=3 * HOUR)
    for hour in range(6):
        hourly.put([hour * HOUR + 1])
    daily.put([2, 28])
    daily.put([32])
    job = Job(tmp_path, hourly, daily, bucket=100, complete=("hourly", "daily"))
    for start in range(0, 6, width):
        job.step(interval=Interval(start * HOUR, (start + width) * HOUR))
    assert [time for _, time in job.watermarks] == [9, 19, 29, 39, 49, 59]
    assert not any(facts.begun for facts in job.facts.values())


def test_complete_interval_closes_despite_disorder(tmp_path):
    first, second = Files("first"), Files("second")
    for source in (first, second):
        source.put([1, 8])
    job = Job(tmp_path, first, second, bucket=100, disorder=50, complete=("first", "second"))
    job.drain()
    assert job.watermarks[-1][1] == HOUR - 1


def test_file_that_shrank_is_refused(shop):
    shop.drain()
    shop.sources["orders"].contents["000"] = [1]
    with pytest.raises(
        SourceError, match="orders/000 has 1 row, but 2 of its rows were taken in already: the file has changed"
    ):
        shop.step()


def test_source_with_rows_ahead_must_stay(shop):
    shop.drain()
    del shop.sources["orders"]
    shop.groups = (("payments",),)
    with pytest.raises(ConfigError, match="no source 'orders' any more, and rows of it were not taken in"):
        shop.step()


def test_more_input_after_the_end_is_refused(shop):
    shop.drain(ends=True)
    shop.facts = {name: msgspec.structs.replace(facts, ended=True) for name, facts in shop.facts.items()}
    assert not shop.step()
    shop.sources["payments"].put([50])
    with pytest.raises(SourceError, match="the end of input was declared .* now there is 001"):
        shop.step()


def test_no_source_releases_nothing():
    assert len(release([])) == 0
    assert len(release([Queue(0, pa.array([], pa.int64()), EARLIEST, EARLIEST)])) == 0
