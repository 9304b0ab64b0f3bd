"""Intervals by a column of times that need not be a partition: late rows, days in a zone, runs in any split (no JVM)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace import Timestamp
from headrace.commit.input_report import input_remarks
from headrace.errors import ConfigError, OpenIntervalError, SourceError
from headrace.sources.interval import Interval
from tests.unit.run.dated_table import DAY, FIRST, HOUR, DatedTable, IntervalJob, at
from tests.unit.support.table_job import TableWriter, table

TYPES = {"date": pa.date32(), "zoned": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a job takes too long for many shorter ones
CRASHES = st.sampled_from([None, None, "ingest.after", "prepare.after", "commit.after"])
HOURS = st.integers(0, 95)


class TimedTable(DatedTable):
    """A table whose rows have a time in the column `seen`: hours since the first day, or None."""

    def __init__(self, kind="zoned", zone="UTC"):
        self.by_day, self.kind, self.zone = False, kind, ZoneInfo(zone)
        TableWriter.__init__(self, rows=self.rows({}))
        self.date(0, -100)

    def rows(self, seen):
        values = [None if hour is None else self.value(hour) for hour in seen.values()]
        return table(*seen).append_column("seen", pa.array(values, TYPES[self.kind]))

    def value(self, hour):
        time = datetime.fromtimestamp((FIRST + round(hour * HOUR)) / 1000, UTC)
        if self.kind == "zoned":
            return time
        local = time.astimezone(self.zone).replace(tzinfo=None)
        return local.date() if self.kind == "date" else local

    def commit(self, hour, **seen):
        """Append rows at an hour: `commit(30, a=5, b=29)`."""
        self.append(rows=self.rows(seen))
        return self.date(self.version, hour / 24)


def job_over(written, lateness="1d", **options):
    source = options.pop("source", {})
    by = {"by": "column", "column": "seen", "lateness": lateness, **options}
    return IntervalJob(written, by=by, harness={"now": FIRST + 20 * DAY}, **source)


def took_days(job, *numbers):
    return [job.took_days(number) for number in numbers]


@pytest.mark.slow
def test_rows_count_for_their_own_day():
    written = TimedTable()
    written.commit(25, a=23, b=24.5, c=2)
    assert took_days(job_over(written), 0, 1, 2) == [["a", "c"], ["b"], []]


@pytest.mark.slow
def test_row_beyond_its_lateness_counts_later():
    written = TimedTable()
    written.commit(23, a=5)
    written.commit(47, b=5)
    written.commit(72, c=5)
    written.commit(100, d=5)
    assert took_days(job_over(written), 0, 1, 2, 3) == [["a", "b"], [], ["c"], ["d"]]


def test_rows_without_times_count_early():
    written = TimedTable()
    written.commit(50, a=None, b=49)
    assert took_days(job_over(written), 0, 1, 2) == [[], ["a"], ["b"]]


@pytest.mark.slow
def test_time_ahead_counts_for_its_commit():
    written = TimedTable()
    written.commit(30, a=1_000_000, b=29)
    assert took_days(job_over(written), 0, 1, 2) == [[], ["a", "b"], []]


@pytest.mark.parametrize(("kind", "took"), [("date", ["a"]), ("local", ["a"]), ("zoned", ["a"])])
def test_days_are_those_of_the_zone(kind, took):
    written = TimedTable(kind, "America/New_York")
    written.commit(30, a=28, b=29.5)
    job = job_over(written, source={"timezone": "America/New_York"})
    midnight = FIRST + 5 * HOUR
    job.interval(Interval(midnight, midnight + DAY))
    assert job.arrived() == took
    job.interval(Interval(midnight + DAY, midnight + 2 * DAY))
    assert job.arrived() == [*took, "b"]


def test_hours_are_cut_by_the_pattern():
    written = TimedTable()
    written.commit(2.5, a=0.5, b=1.5, c=2.2)
    job = job_over(written, "2h", pattern="%Y-%m-%dT%H")
    for hour in range(3):
        job.interval(Interval(FIRST + hour * HOUR, FIRST + (hour + 1) * HOUR))
        assert job.arrived() == ["a", "b", "c"][: hour + 1]


def test_early_run_is_refused():
    written = TimedTable()
    written.commit(10, a=5)
    job = job_over(written, "2d")
    job.harness.clock.advance(at(2.5) - job.harness.clock.now())
    with pytest.raises(OpenIntervalError, match=r"may come until 2024-03-04 \(interval.lateness\)") as caught:
        job.run(mode="interval", interval_start=at(0), interval_end=at(1))
    assert (caught.value.exit_code, caught.value.open_until) == (9, at(3))
    job.harness.clock.advance(DAY)
    assert job.took_days(0) == ["a"]


def test_schedule_that_cuts_through_days_is_refused():
    written = TimedTable()
    written.commit(10, a=5)
    with pytest.raises(ConfigError, match=r"cuts through 2024-03-01 to 2024-03-02, a period of its column seen"):
        job_over(written).interval(Interval(at(0), at(0.5)))


def test_run_without_an_interval_is_refused():
    with pytest.raises(ConfigError, match=r"intervals by column, and a run must say which"):
        job_over(TimedTable()).run()


@pytest.mark.parametrize(
    ("column", "match"), [("size", r"has long values there, where DATE or TIMESTAMP"), ("day", r"has no such column")]
)
def test_column_without_times_is_refused(column, match):
    written = TimedTable()
    written.commit(10, a=5)
    with pytest.raises(SourceError, match=match) as caught:
        job_over(written, column=column).days(0)
    assert caught.value.exit_code == 7


def test_missing_file_of_a_day_is_named():
    written = TimedTable()
    written.commit(10, a=5)
    for path in written.delta.file_uris():
        Path(path).unlink()
    with pytest.raises(SourceError, match="is gone"):
        job_over(written).days(0)


def damaged():
    written = TimedTable()
    written.commit(10, a=5)
    (path,) = written.delta.file_uris()
    written.commit(30, b=29)
    Path(path).write_bytes(b"PAR1 no more")
    return written


def test_damaged_file_stops_the_run():
    with pytest.raises(SourceError, match="cannot be read|cannot read"):
        job_over(damaged()).days(0)


def test_bad_rows_are_named_and_requeued():
    written = TimedTable()
    rows = written.rows({"a": 30, "b": 5, "c": 31})
    place = rows.schema.get_field_index("shop")
    written.append(rows=rows.set_column(place, "shop", pa.array(["a", "a", None])))
    written.date(written.version, 32 / 24)
    job = job_over(written)
    job.days(0, 2)
    ((position, _),) = job.quarantine()
    assert position.startswith("2024-03-02T000000.000Z/00000000000000000001/add-late/part-")
    assert position.endswith(":1")
    assert job.arrived() == ["b", "a"]


class Model:
    """The table as a plain loop sees it."""

    def __init__(self, commits, kind, lateness, zone):
        self.written, self.lateness, self.zone = TimedTable(kind, zone), lateness, ZoneInfo(zone)
        self.times, count = {0: at(-100 / 1)}, 0
        for hour, seen in commits:
            version = self.written.commit(hour, **{f"r{count + n:03d}": value for n, value in enumerate(seen)})
            self.times[version] = max(FIRST + hour * HOUR, self.times[version - 1] + 1)
            count += len(seen)

    def rows(self):
        """Return (day, name) of all rows in the order of arrival, as deltalake reads each version."""
        known, rows = set(), []
        for version in range(1, self.written.version + 1):
            scan = DeltaTable(self.written.path, version=version).scan(columns=["name", "seen"])
            content = pa.RecordBatchReader.from_stream(scan).read_all().to_pylist()
            new = sorted((row for row in content if row["name"] not in known), key=lambda row: row["name"])
            known |= {row["name"] for row in new}
            rows += [(self.day(row["seen"], self.times[version]), version, row["name"]) for row in new]
        return [(day, name) for day, _, name in sorted(rows)]

    def day(self, value, committed):
        """Return the day of a row, as the page of Delta tables says it."""
        latest = datetime.fromtimestamp(committed / 1000, UTC).astimezone(self.zone)
        earliest = (datetime.fromtimestamp(committed / 1000, UTC) - self.lateness).astimezone(self.zone)
        if value is None:
            return earliest.date()
        if isinstance(value, datetime):
            own = value.astimezone(self.zone) if value.tzinfo else value.replace(tzinfo=self.zone)
            return min(max(own, earliest), latest).date()
        return min(max(value, earliest.date()), latest.date())

    def midnight(self, number):
        """Return the beginning of a day (ms), the first one being that before the table's."""
        local = datetime(2024, 3, 8, tzinfo=self.zone) + timedelta(days=number)
        return round(local.timestamp() * 1000)


COMMITS = st.lists(
    st.tuples(st.integers(190, 280), st.lists(st.none() | st.integers(150, 300), min_size=1, max_size=4)), max_size=5
)
SPLITS = st.sets(st.integers(1, 5)).map(lambda inner: [0, *sorted(inner), 6])


@pytest.mark.slow
@settings(max_examples=10, deadline=None, phases=PHASES)
@given(
    commits=COMMITS,
    kind=st.sampled_from(sorted(TYPES)),
    lateness=st.sampled_from([0, 3, 24, 60]).map(lambda hours: timedelta(hours=hours)),
    zone=st.sampled_from(["UTC", "America/New_York"]),  # clocks go forward on 10 March 2024 there
    splits=st.lists(SPLITS, min_size=2, max_size=2),
    crashes=st.lists(CRASHES, min_size=6, max_size=6),
)
def test_any_split_takes_the_same_rows(commits, kind, lateness, zone, splits, crashes):
    model = Model(commits, kind, lateness, zone)
    first = datetime(2024, 3, 8, tzinfo=UTC).date()
    for split in splits:
        source = {} if zone == "UTC" else {"timezone": zone}
        job = job_over(model.written, f"{lateness // timedelta(hours=1)}h", source=source)
        for (start, end), crash in zip(pairwise(split), crashes, strict=False):
            interval = Interval(model.midnight(start), model.midnight(end))
            if crash is not None:
                job.interval(interval, crash_at=crash)
            job.interval(interval)
            assert job.arrived() == [name for day, name in model.rows() if 0 <= (day - first).days < end]
        before = job.arrived()
        job.harness.clock.advance(DAY)
        assert job.backfill(Interval(model.midnight(1), model.midnight(2))).outcome.value == "promoted"
        assert job.arrived() == before
        assert input_remarks(job.harness.config, job.log.lineage.checkpoints) == []


@pytest.mark.slow
def test_log_without_taken_versions_gives_days():
    written = TimedTable()
    for hour in (10, 34, 58):
        written.commit(hour, **{f"r{hour}": hour - 1})
    job = job_over(written)
    assert took_days(job, 0, 1) == [["r10"], ["r34"]]
    written.forget(2)
    assert took_days(job, 2) == [["r58"]]


def test_event_times_may_be_another_column():
    written = TimedTable()
    written.append(rows=written.rows({"a": 5}).set_column(1, "at", pa.array([Timestamp(FIRST) * 1000], TYPES["zoned"])))
    written.date(written.version, 6 / 24)
    job = job_over(written)
    assert job.took_days(0) == ["a"]


@pytest.mark.parametrize(
    "interval",
    [
        {"by": "partition", "column": "name"},
        {"by": "column", "column": "at", "lateness": "1d"},
        {"by": "column", "column": "seen", "lateness": "2d"},
        {"by": "column", "column": "seen", "lateness": "1d", "pattern": "%Y-%m-%dT%H"},
    ],
)
def test_other_intervals_are_refused_while_rows_wait(interval):
    written = TimedTable()
    written.commit(25, a=23, b=24.5, c=2)
    job = job_over(written)
    job.days(0)
    with pytest.raises(ConfigError, match=r"versions 1 to 1 that wait for their interval .by column seen"):
        job.configure(interval=interval).days(1)


def test_column_may_be_renamed_while_rows_wait():
    written = TimedTable()
    written.commit(25, a=23, b=24.5)
    job = job_over(written)
    assert job.took_days(0) == ["a"]
    rename(written, "seen", "noticed")
    job.configure(interval={"by": "column", "column": "noticed", "lateness": "1d"})
    assert job.took_days(1) == ["b"]


def rename(written, old, new):
    """Map the columns of a table by name, and rename one, as Spark does."""
    (line,) = (line for line in written.commit_file(0).read_text().splitlines() if "metaData" in line)
    metadata = json.loads(line)["metaData"]
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        field["name"] = new if field["name"] == old else field["name"]
    configuration = {**metadata["configuration"], "delta.columnMapping.mode": "name"}
    actions = [
        {"commitInfo": {"timestamp": at(26 / 24), "operation": "RENAME COLUMN"}},
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {**metadata, "schemaString": json.dumps(schema), "configuration": configuration}},
    ]
    written.commit_file(written.version + 1).write_text("\n".join(map(json.dumps, actions)))
