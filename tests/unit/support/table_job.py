"""A job that reads a Delta table and numbers its rows as they arrive, by shop; and a writer of the table."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from headrace.testing import PipelineHarness

FEED = {"delta.enableChangeDataFeed": "true"}


class Row(Struct, frozen=True):
    """A row of the table."""

    shop: str
    at: Timestamp
    name: str
    size: int | None = None


class Arrival(Struct, frozen=True):
    """The job's output: the place of a row among those of its shop."""

    shop: str
    name: str
    number: int
    kind: str
    size: int | None = None


class Arrivals(KeyedProcessFunction[Row, Arrival]):
    """Numbers rows."""

    count = ValueState("count", int)

    async def process(self, row, ctx, /):
        number = await self.count.value() or 0
        await self.count.update(number + 1)
        ctx.collect(Arrival(row.shop, row.name, number, ctx.row_kind.symbol, row.size))


def pipeline(*more, name="reader", **options):
    """Return the pipeline: rows of the source `rows`, and of `more`, which meets it."""
    p = Pipeline(name)
    rows, *others = (p.source(name, Row, event_time="at", **options) for name in ("rows", *more))
    united = rows.union(*others) if others else rows
    return united.key_by("shop").process("arrivals", Arrivals()).sink("arrived")


def table(*names, at=1000, shop="a", sizes=None):
    """Rows with these names, a second apart."""
    times = [at + 1000 * number for number in range(len(names))]
    return pa.table(
        {
            "shop": pa.array([shop] * len(names), pa.string()),
            "at": pa.array([1000 * time for time in times], pa.timestamp("us", "UTC")),
            "name": pa.array(names, pa.string()),
            "size": pa.array(sizes or [1] * len(names), pa.int64()),
        }
    )


class TableWriter:
    """Writes a Delta table like a foreign job."""

    def __init__(self, *, feed=False, folder=None, rows=None, **options):
        result = tempfile.mkdtemp(prefix="headrace-table-")
        weakref.finalize(self, shutil.rmtree, result, ignore_errors=True)
        self.path = str(folder or Path(result, "table"))
        write_deltalake(self.path, table() if rows is None else rows, configuration=FEED if feed else None, **options)

    @property
    def delta(self):
        return DeltaTable(self.path)

    @property
    def version(self):
        return self.delta.version()

    def append(self, *names, rows=None, **times):
        write_deltalake(self.path, table(*names, **times) if rows is None else rows, mode="append", schema_mode="merge")
        return self.version

    def merge(self, *names, **times):
        merge = self.delta.merge(table(*names, **times), "t.name = s.name", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return self.version

    def delete(self, name):
        self.delta.delete(f"name = '{name}'")
        return self.version

    def restore(self, version):
        self.delta.restore(version)
        return self.version

    def optimize(self):
        self.delta.optimize.compact()
        return self.version

    def names(self):
        """Return the names in the table."""
        return pa.RecordBatchReader.from_stream(self.delta.scan(columns=["name"])).read_all()["name"].to_pylist()

    def set(self, **properties):
        self.delta.alter.set_table_properties({f"delta.{name}": value for name, value in properties.items()})
        return self.version

    def commit_file(self, version):
        return Path(self.path, "_delta_log", f"{version:020d}.json")

    def committed_at(self, version):
        """Return the commit time of a version, in the format of a job file."""
        (commit,) = (entry for entry in self.delta.history() if entry["version"] == version)
        return datetime.fromtimestamp(commit["timestamp"] / 1000, UTC).isoformat()

    def forget(self, first):
        """Clean the log of all versions before this one, after a log checkpoint."""
        DeltaTable(self.path, version=first).create_checkpoint()
        for version in range(first):
            self.commit_file(version).unlink(missing_ok=True)

    def vacuum(self):
        self.delta.vacuum(
            0, dry_run=False, enforce_retention_duration=False, commit_properties=CommitProperties(max_commit_retries=0)
        )


class ReadingJob:
    """A job in a harness whose source is `rows`."""

    harness: PipelineHarness

    def configure(self, **source):
        """Change the section of the source in the job's file."""
        sources = self.harness.job["sources"]
        self.harness.change(job={"sources": {**sources, "rows": {**sources["rows"], **source}}})
        return self

    def run(self, **options):
        return self.harness.run(**options)

    def took(self, **options):
        """Run, and return the rows that arrived: names, with symbols of changes."""
        before = len(self.arrived())
        self.run(**options)
        return self.arrived()[before:]

    @property
    def log(self):
        return CheckpointLog(JobFolder(self.harness.config.job_folder))

    @property
    def last(self):
        return self.log.last

    @property
    def facts(self):
        return self.last.sources["rows"]

    def seen(self, shop="a"):
        rows = sorted((row for row in self.harness.sink("arrived") if row.shop == shop), key=lambda item: item.number)
        assert [row.number for row in rows] == list(range(len(rows)))
        return rows

    def arrived(self, shop="a"):
        """Return the names of rows in the order of arrival at the operator, with symbols unless they are inserts."""
        return [(row.kind if row.kind != "+I" else "") + row.name for row in self.seen(shop)]

    def quarantine(self, *columns):
        """Return position and error of each bad row, and the values of more columns."""
        return sorted(
            tuple(row[name] for name in ("position", "error", *columns)) for row in self.harness.live(QUARANTINE)
        )


class TableJob(ReadingJob):
    """The job over a table."""

    def __init__(self, written, *more, harness=None, options=None, **source):
        self.written = written
        feed = source.get("change_feed") or source.get("on_change") == "as_changes"
        self.pipeline_options = {**({"row_kind": "_change_type"} if feed else {}), **(options or {})}
        bound = {"format": "delta", "path": str(written.path), **source}
        others = {name: {} for name in more}
        self.harness = PipelineHarness(
            pipeline(*more, **self.pipeline_options), job={"sources": {"rows": bound, **others}}, **(harness or {})
        )

    @property
    def table(self):
        return self.facts.position
