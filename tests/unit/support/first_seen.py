"""Jobs over folders in the order of first listing, and the same order by a plain loop that keeps generations."""

from __future__ import annotations

from collections.abc import Iterable

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.testing import World

FIRST_SEEN = {"order": "first_seen"}
ROWS_OF_A_FILE = 2


class Row(Struct, frozen=True):
    all: str
    at: Timestamp
    text: str


class Arrival(Struct, frozen=True):
    number: int
    text: str


class Arrivals(KeyedProcessFunction[Row, Arrival]):
    """Number the rows of a key as they arrive."""

    count = ValueState("count", int)

    async def process(self, row, ctx, /):
        number = await self.count.value() or 0
        await self.count.update(number + 1)
        ctx.collect(Arrival(number, row.text))


def arrivals(*more):
    """Return a pipeline that numbers the rows of source `rows`, and of `more` that meet it."""
    pipeline = Pipeline("rows")
    rows, *others = (pipeline.source(name, Row, event_time="at") for name in ("rows", *more))
    return (rows.union(*others) if others else rows).key_by("all").process("arrivals", Arrivals()).sink("seen")


def first_seen_job(*more, files_per_batch=16, **source):
    """Return a job in memory whose sources, `rows` and `more`, are in the order of first listing."""
    sources = {name: {**FIRST_SEEN, "max_ahead": "none", **source} for name in ("rows", *more)}
    return World().job(arrivals(*more), files_per_batch=files_per_batch, job={"sources": sources})


def put(job, *names, text=None, source="rows", at=0, step=0):
    """Write files whose rows have the file's name, or another text; each row is `step` later than the one before."""
    for name in names:
        rows = [Row("all", at + step * number, f"{text or name} {number}") for number in range(ROWS_OF_A_FILE)]
        job.feed(source, rows, file=name)


def remove(job, name, source="rows"):
    """Remove a file."""
    (job.folder / "input" / source / name).unlink()


def arrived(job):
    """Return the texts of the rows, in the order in which they arrived."""
    rows = sorted(job.sink("seen"), key=lambda row: row.number)
    assert [row.number for row in rows] == list(range(len(rows)))
    return [row.text for row in rows]


def rows_of(names: Iterable[str]) -> list[str]:
    """Return the texts of the rows of files, in order."""
    return [f"{name} {number}" for name in names for number in range(ROWS_OF_A_FILE)]


class PlainLoop:
    """Files taken in one by one, a generation after the other."""

    def __init__(self):
        self.folder, self.left, self.taken = set(), [], []

    def take(self, count=None):
        """Take the next files, as many as a micro-batch has; return them."""
        if not self.folder & {*self.left}:
            self.left = sorted(self.folder - {*self.taken})
        chosen = [name for name in self.left if name in self.folder][:count]
        self.left = [name for name in self.left if chosen and name > chosen[-1]]
        self.taken += chosen
        return chosen

    def take_all(self, count):
        """Take files until nothing is left."""
        while self.take(count):
            pass
