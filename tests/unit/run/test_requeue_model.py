"""A job equals a plain loop in which requeued rows precede new rows.

This holds for any order of deliveries, repairs, requeues and crashes.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import World
from tests.unit.support.fuzzing import examples
from tests.unit.support.refused_rows import Mended, RefusedJob, Strict, pipeline

BUCKET = 3
NO_WATERMARK = -(1 << 62)
PLACES = ("ingest.after", "task.half", "run.after", "commit.before", "commit.after", "publish.after")


class Row(NamedTuple):
    shop: str
    at: int
    name: str
    has_size: bool


class Loop:
    """One row after the other, as they arrive."""

    def __init__(self, files_per_batch):
        self.files_per_batch = files_per_batch
        self.new, self.requeued, self.quarantine = {}, {}, {}
        self.counts, self.results = {}, set()
        self.ordinal, self.latest, self.watermark = 0, None, NO_WATERMARK

    def feed(self, file, rows):
        self.new[file] = dict(enumerate(rows))

    def requeue(self):
        for (file, number), row in self.quarantine.items():
            self.requeued.setdefault(file, {})[number] = row
        moved, self.quarantine = len(self.quarantine), {}
        return moved

    def run(self, *, is_mended, slices=1_000):
        for _ in range(slices):
            queue = self.requeued or self.new
            for file in sorted(queue)[: self.files_per_batch]:
                for number, row in sorted(queue.pop(file).items()):
                    self._arrive(file, number, row, is_mended=is_mended)

    def _arrive(self, file, number, row, *, is_mended):
        if row.has_size or is_mended:
            count = self.counts.get(row.shop, 0)
            self.counts[row.shop] = count + 1
            self.results.add((row.shop, row.name, count, self.watermark))
            self.latest = row.at if self.latest is None else max(row.at, self.latest)
        else:
            self.quarantine[file, number] = row  # a refused row never moves the watermark
        self.ordinal += 1
        if self.ordinal % BUCKET == 0 and self.latest is not None:
            self.watermark = self.latest - 1


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.booleans()), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), ROWS),
        st.tuples(st.just("run"), st.none()),
        st.tuples(st.just("some"), st.integers(1, 2)),
        st.tuples(st.just("crash"), st.sampled_from(PLACES)),
        st.tuples(st.just("requeue"), st.none()),
        st.tuples(st.just("change"), st.none()),
    ),
    min_size=4,
    max_size=12,
)


def as_table(rows):
    shops, times, names, sizes = zip(*rows, strict=True)
    columns = {"shop": shops, "at": pa.array(times, pa.timestamp("ms")), "name": names}
    return pa.table(columns | {"size": pa.array([1 if size else None for size in sizes], pa.int64())})


@examples(5)
@given(steps=STEPS, files_per_batch=st.integers(1, 3), parallelism=st.integers(1, 3))
def test_requeued_rows_count_as_in_a_loop(steps, files_per_batch, parallelism):
    loop, is_mended, names = Loop(files_per_batch), False, itertools.count()
    job = RefusedJob(world=World(), bucket=BUCKET, parallelism=parallelism, files_per_batch=files_per_batch)
    job.run()
    for what, detail in [*steps, ("requeue", None), ("run", None)]:
        if what == "feed":
            rows = [Row(shop, at, f"row {next(names)}", has_size) for shop, at, has_size in detail]
            loop.feed(job.harness.feed_table("rows", as_table(rows)), rows)
        elif what == "change":
            is_mended = not is_mended
            job.harness.change(pipeline=pipeline(Mended if is_mended else Strict))
        elif what == "requeue":
            result = job.requeue()
            assert (result.metrics["requeued"] if result else 0) == loop.requeue()
        elif what == "some":
            job.run(max_batches=detail)
            loop.run(is_mended=is_mended, slices=detail)
        else:
            if what == "crash":
                job.run(crash_at=detail)
            job.run()
            loop.run(is_mended=is_mended)
    assert {(row["shop"], row["name"], row["number"], row["watermark"]) for row in job.rows()} == loop.results
    assert len(job.rows()) == len(loop.results)
    assert [position for position, _ in job.quarantine()] == sorted(
        f"{file}:{number}" for file, number in loop.quarantine
    )
