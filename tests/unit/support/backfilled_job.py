"""A job with one file per day, which can be written again, and backfills of it in this process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
from msgspec.structs import replace

from headrace.commit.run_check import checked_plan
from headrace.config import Promote
from headrace.local.tasks import LocalTasks
from headrace.records.columns import sink_schema, to_columns
from headrace.run.backfill import BackfillRequest
from headrace.run.backfill_branches import default_name
from headrace.run.backfill_plan import plan_backfill
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.sources.interval import Interval
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from tests.unit.support.branched_job import HOUR, BranchedJob, Order

DAY = 24 * HOUR
_COLUMNS = [name for name in STATE_TABLES[KEYED_STATE].schema.names if name not in {"checkpoint_id", "last_access"}]
FIRST = datetime(2019, 12, 1, tzinfo=UTC)


def day_name(number):
    """Return the day as text."""
    return f"{FIRST + timedelta(days=number):%Y-%m-%d}"


def days(first, end=None):
    """Return the interval from one day up to another."""
    start = round(FIRST.timestamp() * 1000)
    return Interval(start + first * DAY, start + (first + 1 if end is None else end) * DAY)


def file_of(number):
    """Return the name of a day's file."""
    return f"{day_name(number)}.parquet"


class BackfilledJob(BranchedJob):
    """The job of `BranchedJob`, with one file per day."""

    def __init__(
        self,
        pipeline=None,
        *,
        promote="approval",
        files_per_batch=1,
        services=None,
        sources=("orders",),
        bound=None,
        replay=None,
        **options,
    ):
        self.sources = sources
        job = {
            "sources": {name: {"interval": "%Y-%m-%d", **(bound or {}).get(name, {})} for name in sources},
            "replay": {"promote": promote, **(replay or {})},
            "services": services or {},
        }
        super().__init__(pipeline, job=job, files_per_batch=files_per_batch, **options)

    @classmethod
    def restored(cls, snapshot):
        """Return a job with all stored data of another job."""
        job = cls()
        job.harness.restore(snapshot)
        return job

    def change(self, **changes):
        """Continue with another pipeline or other settings."""
        self.harness.change(**changes)
        self.config = self.harness.config

    def path(self, number, source="orders"):
        """Return the path of a day's file."""
        return self.harness.folder / "input" / source / file_of(number)

    def write(self, number, *orders, source="orders"):
        """Write the file of a day, or write it again."""
        at = days(number).start
        records = [Order(customer, at + position, amount) for position, (customer, amount) in enumerate(orders)]
        pq.write_table(to_columns(records, sink_schema(Order)), self.path(number, source))

    def plan(self, interval, name=None, *, renews=False):
        """Return the plan of a backfill."""
        config = self.config
        return plan_backfill(config, checked_plan(config), interval, name, renews=renews)

    def backfill(self, interval, name=None, *, crash_at=None, promote=None, renews=False, only_open=False, **options):
        """Run a backfill once; return None if it crashes or has nothing to do."""
        harness, config = self.harness, self.config
        if promote is not None:
            config = replace(config, replay=replace(config.replay, promote=Promote(promote)))
        self._runs += 1
        wishes = RunOptions(run_id=f"backfill-{self._runs}", backend=harness.backend, parallelism=2, **options)

        def run_branch(on_branch, asked):
            return run_on(LocalTasks(), on_branch, asked, harness.events.append, **self.inputs(on_branch))

        request = BackfillRequest(config, interval, name or default_name(interval), renews, only_open)
        with self.on_its_clock(), harness.crashing_at(crash_at):
            ended = request.run(wishes, run_branch)
            return None if ended is None else ended[1]

    def content(self, branch=None):
        """Return the result of `BranchedJob.content` without expired entries: the time of their removal is undefined."""
        content, watermark = super().content(branch), self.last(branch).watermark
        rows = [dict(zip(_COLUMNS, row, strict=True)) for row in content[KEYED_STATE]]
        live = [row for row in rows if row["expires_at"] is None or row["expires_at"] > watermark]
        return content | {KEYED_STATE: [tuple(row.values()) for row in live]}

    def straight(self, **options):
        """Return the content of a straight run over the present input, with these options."""
        other = self.beside()
        for source in self.sources:
            for file in self.path(0, source).parent.iterdir():
                (other.path(0, source).parent / file.name).write_bytes(file.read_bytes())
        other.run(**options)
        return other.content()

    def beside(self):
        """Return a new job with the same pipeline and sources, without input."""
        return BackfilledJob(
            self.harness.pipeline, sources=self.sources, backend=self.harness.backend, bucket=self.harness.bucket
        )


def four_days_taken_in():
    """Return a snapshot of a job that has taken in four days."""
    job = BackfilledJob()
    for number in range(4):
        job.write(number, ("ann", 1 + number), ("bob", 2))
    job.run()
    return job.harness.snapshot()
