"""A job that numbers the rows of each shop as they arrive. Its first code refuses rows without a size; its repaired code accepts them."""

from __future__ import annotations

from typing import Generic, TypeVar

import pyarrow as pa

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.edits.requeue import requeue
from headrace.edits.restore import restore
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import QUARANTINE
from headrace.testing import PipelineHarness

R = TypeVar("R")


class Strict(Struct, frozen=True):
    shop: str
    at: Timestamp
    name: str
    size: int


class Mended(Struct, frozen=True):
    shop: str
    at: Timestamp
    name: str
    size: int | None = None


class Arrival(Struct, frozen=True):
    shop: str
    name: str
    number: int
    watermark: int | None


class Arrivals(KeyedProcessFunction[R, Arrival], Generic[R]):
    count = ValueState("count", int)

    async def process(self, row, ctx, /):
        number = await self.count.value() or 0
        await self.count.update(number + 1)
        ctx.collect(Arrival(row.shop, row.name, number, ctx.watermark))


class StrictArrivals(Arrivals[Strict], KeyedProcessFunction[Strict, Arrival]):
    """Counts arrivals in the first code."""


class MendedArrivals(Arrivals[Mended], KeyedProcessFunction[Mended, Arrival]):
    """Counts arrivals in the repaired code."""


FUNCTIONS = {Strict: StrictArrivals, Mended: MendedArrivals}


def shop_of(row):
    return row.shop or None


def pipeline(record, *more, first="rows", **options):
    """Return the pipeline: rows of source `first`, and of `more`, which meets it."""
    p = Pipeline("shops")
    rows, *others = (p.source(name, record, event_time="at", **options) for name in (first, *more))
    united = rows.union(*others) if others else rows
    return united.key_by(shop_of).process("arrivals", FUNCTIONS[record]()).sink("arrived")


def table(*names, at=1000, shop="a"):
    """Rows with these names, a second apart; those whose name ends in `?` have no size."""
    sizes = [None if name.endswith("?") else 1 for name in names]
    times = [at + 1000 * number for number in range(len(names))]
    return pa.table(
        {
            "shop": [shop] * len(names),
            "at": pa.array(times, pa.timestamp("ms")),
            "name": list(names),
            "size": pa.array(sizes, pa.int64()),
        }
    )


class RefusedJob:
    """The job in a harness, which may refuse all rows of a file; in a `world`, its state and its sink are in memory."""

    def __init__(self, *more, world=None, source=None, record=Strict, options=None, **harness):
        self.more, self.options = more, options or {}
        names = ("rows", *more)
        job = {"sources": {name: {"max_quarantined": "none"} | (source or {}) for name in names}}
        make = PipelineHarness if world is None else world.job
        self.harness = make(pipeline(record, *more, **self.options), job=job, **harness)

    def feed(self, *names, source="rows", file=None, **times):
        return self.harness.feed_table(source, table(*names, **times), file=file)

    def run(self, **options):
        return self.harness.run(**options)

    def mend(self):
        self.harness.change(pipeline=pipeline(Mended, *self.more, **self.options))
        return self

    def requeue(self, **options):
        return self._called(requeue, "by-hand", **options)

    def restore(self, to):
        return self._called(restore, to, "because", "by-hand")

    def _called(self, command, *arguments, **options):
        with self.harness.on_its_clock():
            return command(self.harness.config, *arguments, **options)

    @property
    def log(self):
        return CheckpointLog(JobFolder(self.harness.config.job_folder))

    @property
    def last(self):
        return self.log.last

    def waiting(self, source="rows"):
        return [(rows.file, rows.ranges) for rows in self.last.sources[source].requeued]

    def quarantine(self):
        """Position and error of each row, by position."""
        return sorted((row["position"], row["error"]) for row in self.harness.live(QUARANTINE))

    def rows(self):
        return self.harness.sink_table("arrived").to_pylist()

    def arrived(self, shop="a"):
        """Return the names of rows in the order of arrival at the operator."""
        numbered = sorted((row["number"], row["name"]) for row in self.rows() if row["shop"] == shop)
        assert [number for number, _ in numbered] == list(range(len(numbered)))
        return [name for _, name in numbered]
