"""A job with rows in all of its state tables, in memory or on a local disk, and damages of its files."""

from __future__ import annotations

import io
import json
import shutil
from datetime import timedelta
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    ListState,
    MapState,
    Pipeline,
    RowKind,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import DiskCopy, MemoryFile, memory_disk

NOON = 1_700_000_000_000


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    number: int = 0


class Count(Struct, frozen=True):
    id: str
    orders: int


class Service(AsyncFunction[Order, Order]):
    """A service that is down for every third order, so that the order waits."""

    async def invoke(self, order, /):
        if order.number == 3:
            raise OSError("down")
        return [order]


class Counts(KeyedProcessFunction[Order, Count]):
    seen = ValueState("seen", int, ttl=StateTtl(timedelta(days=900)))
    by_number = MapState("by_number", int, str)
    last = ListState("last", int)

    async def process(self, order, ctx, /):
        orders = (await self.seen.value() or 0) + 1
        await self.seen.update(orders)
        await self.by_number.put(order.number, "x")
        await self.last.add(order.number)
        ctx.timers.register_event_time(order.at + 3_600_000)
        ctx.collect(Count(order.id, orders), RowKind.UPDATE_AFTER)

    async def on_timer(self, timestamp, ctx, /):
        await self.seen.value()


class Copies(KeyedProcessFunction[Order, Order]):
    async def process(self, order, ctx, /):
        ctx.collect(order)


def pipeline():
    waiting = {"retry": FixedDelay(max_retries=99, delay=timedelta(hours=1)), "park_after": timedelta(0)}
    orders = Pipeline("shop").source("orders", Order, event_time="at")
    asked = orders.async_wait("ask", Service(), timeout=timedelta(days=900), **waiting)
    asked.key_by("id").process("held", Copies()).sink("asked")  # holds what is behind a watermark that waits
    counts = orders.key_by("id").process("counts", Counts())
    return counts.upsert_materialize("latest", primary_key=("id",)).sink("board")


class DamagedJob:
    """Three micro-batches and their tables; `whole` restores them."""

    def __init__(self, disk: str | None) -> None:
        """Run the job; `disk` is the name of a disk in memory, None means a folder."""
        self.disk = disk
        place = f"memory://{disk}" if disk else None
        job = {"sources": {"orders": {"path": f"{place}/input"}}} if disk else {}
        self.harness = PipelineHarness(pipeline(), storage=place, job=job, now=NOON, bucket=2)
        self.fed = 0
        for _ in range(2):
            self.feed()
            self.harness.run()
        if not disk:
            bad = pa.table({"id": [None, "d"], "at": [NOON, NOON], "number": [1, 1]})
            self.harness.feed_table("orders", bad)
        else:
            self.put_input(pa.table({"id": [None, "d"], "at": [NOON, NOON], "number": [1, 1]}))
        self.harness.run()
        self.kept = DiskCopy(f"memory://{disk}") if disk else self.harness.snapshot()

    def feed(self):
        """Write a file with five orders into the source's folder."""
        rows = [Order(key, NOON + self.fed * 10 + number, number) for number, key in enumerate("abcab")]
        if self.disk:
            self.put_input(pa.Table.from_pylist([{"id": row.id, "at": row.at, "number": row.number} for row in rows]))
        else:
            self.harness.feed("orders", rows)
            self.fed += 1

    def put_input(self, table):
        self.fed += 1
        memory_disk(self.disk).files[f"input/{self.fed:06}.parquet"] = MemoryFile(parquet(table))

    def whole(self):
        """Restore the files as they were before any damage, without the local copies: the next run reads the tables."""
        shutil.rmtree(self.harness.folder / "local", ignore_errors=True)
        if self.disk:
            self.kept.bring_back()
        else:
            self.harness.restore(self.kept)

    def use(self, backend):
        """Make the next run use another state backend."""
        self.harness.backend = backend
        self.harness.change()

    def content(self):
        """Return all files of the job's state by path; refused commands must not change them.

        A reader may remove a damaged hint of the log.
        """
        if self.disk:
            return {path: file.content for path, file in memory_disk(self.disk).files.items()}
        folder = self.harness.folder / "state"
        return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    def files(self, table):
        """Return the data files of a table's last version."""
        if self.disk:
            folder = f"state/shop/{table}/"
            return sorted(
                path for path in memory_disk(self.disk).files if path.startswith(folder) and path.endswith(".parquet")
            )
        folder = self.harness.folder / "state" / "shop" / table
        return sorted(str(path) for path in folder.glob("*.parquet"))

    def read(self, path):
        content = memory_disk(self.disk).files[path].content if self.disk else Path(path).read_bytes()
        return pq.ParquetFile(io.BytesIO(content)).read()

    def write(self, path, table):
        """Write other rows into a data file; on disk, also record its size in the log."""
        if self.disk:
            memory_disk(self.disk).files[path] = MemoryFile(parquet(table))
            return
        file = Path(path)
        file.write_bytes(parquet(table))
        for commit in (file.parent / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            for action in actions:
                if action.get("add", {}).get("path") == file.name:
                    action["add"]["size"] = file.stat().st_size
            commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def with_value(rows, column, value, place=-1):
    """Return rows with one value of a column replaced; a value of another type turns the column into texts."""
    values = rows[column].to_pylist()
    values[place] = value
    kind = rows.schema.field(column).type
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        array = pa.array([None if value is None else str(value) for value in values], pa.string())
    return rows.set_column(rows.schema.get_field_index(column), pa.field(column, array.type), array)


def parquet(table):
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


@cache
def damaged_job(disk: str | None) -> DamagedJob:
    """Return one job for all tests of a process: creating it takes a second."""
    return DamagedJob(disk)
