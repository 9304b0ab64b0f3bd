"""A Delta table whose commits have chosen times, and a job that reads it by intervals. Days count from 1 March 2024."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from headrace import clock as engine_clock
from headrace.commit.run_check import checked_plan
from headrace.config import Promote
from headrace.local.tasks import LocalTasks
from headrace.run.backfill import BackfillRequest
from headrace.run.backfill_branches import default_name
from headrace.run.backfill_plan import plan_backfill
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.sources.interval import Interval
from tests.unit.support.table_job import TableJob, TableWriter, table

DAY = 86_400_000
HOUR = DAY // 24
FIRST = round(datetime(2024, 3, 1, tzinfo=UTC).timestamp() * 1000)


def at(days):
    """Return the time so many days after the first one (ms)."""
    return FIRST + round(days * DAY)


def days(first, end=None):
    """Return the interval from one day up to another."""
    return Interval(at(first), at(first + 1 if end is None else end))


def day_of(number):
    """Return the text of a day."""
    return f"{date(2024, 3, 1) + timedelta(days=number)}"


class DatedTable(TableWriter):
    """Writes a table at chosen times: `append_at(1.5, "a")` commits at noon of the second day."""

    def __init__(self, *, by_day=False, **options):
        self.by_day = by_day
        if by_day:
            options = {"partition_by": ["day"], **options}
        super().__init__(rows=_with_days(table(), ()) if by_day else None, **options)
        self.date(0, -1)

    def append_at(self, when, *names, of=None, rows=None):
        """Append `rows`, or rows with these names, in one commit; `of` has the day of each, as a number or a text."""
        rows = table(*names) if rows is None else rows
        self.append(rows=_with_days(rows, of) if self.by_day else rows)
        return self.date(self.version, when)

    def overwrite_day(self, day, name):
        """Write the partition of a day anew, with one row."""
        rows = _with_days(table(name), [day])
        write_deltalake(self.path, rows, mode="overwrite", predicate=f"day = '{day}'")

    def date(self, version, when):
        """Set the commit time of a version; None: it has no time of its own."""
        file = self.commit_file(version)
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"].pop("timestamp", None)
                action["commitInfo"] |= {} if when is None else {"timestamp": at(when)}
        file.write_text("\n".join(map(json.dumps, actions)))
        return version


def _with_days(rows, of):
    texts = [number if number is None or isinstance(number, str) else day_of(number) for number in of]
    return rows.append_column("day", pa.array(texts, pa.string()))


class IntervalJob(TableJob):
    """A job over a table that runs by intervals, at the end of each."""

    def __init__(self, written, *more, by=None, harness=None, **source):
        interval = by or ({"by": "partition", "column": "day"} if written.by_day else {"by": "committed"})
        self.others: list[DatedTable] = []  # further tables of the job: they live as long as it does
        super().__init__(written, *more, interval=interval, harness={"now": FIRST, **(harness or {})}, **source)

    def days(self, first, end=None, **options):
        """Run an interval of days, and return the report."""
        return self.interval(days(first, end), **options)

    def interval(self, interval, **options):
        """Run an interval as a scheduler does: when it is over."""
        self.harness.clock.advance(max(0, interval.end - self.harness.clock.now()))
        return self.run(mode="interval", interval_start=interval.start, interval_end=interval.end, **options)

    def took_days(self, first, end=None):
        """Run an interval of days, and return the names that arrived."""
        before = len(self.arrived())
        self.days(first, end)
        return self.arrived()[before:]

    def plan(self, interval, settings=None):
        """Return the plan of a backfill."""
        with self.on_its_clock():
            return plan_backfill(
                self.harness.config, checked_plan(self.harness.config), interval, settings=settings or {}
            )

    def backfill(self, interval, *, crash_at=None, promote="automatic", renews=False, settings=None):
        """Run a backfill and return its result; None if it crashes."""
        config = self.harness.config
        config = replace(config, replay=replace(config.replay, promote=Promote(promote)))
        wishes = RunOptions(run_id="backfill", backend=self.harness.backend, parallelism=2)

        def run_branch(on_branch, asked):
            return run_on(LocalTasks(), on_branch, asked, self.harness.events.append, topics=self.harness.topics)

        request = BackfillRequest(config, interval, default_name(interval), renews, settings=settings or {})
        with self.on_its_clock(), self.harness.crashing_at(crash_at):
            return request.run(wishes, run_branch)[1]

    def on_its_clock(self):
        return engine_clock.installed(self.harness.clock)


def rows_by_version(written):
    """Return (version, name, day) of all appended rows, in the order of versions, as deltalake reads each version."""
    known, rows = set(), []
    for version in range(written.version + 1):
        table = DeltaTable(written.path, version=version)
        columns = ["name", "day"] if written.by_day else ["name"]
        content = pa.RecordBatchReader.from_stream(table.scan(columns=columns)).read_all().to_pylist()
        new = [row for row in content if row["name"] not in known]
        known |= {row["name"] for row in new}
        rows += [(version, row["name"], row.get("day")) for row in sorted(new, key=lambda row: row["name"])]
    return rows
