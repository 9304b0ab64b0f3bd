"""Any mix of good rows, refused rows and rows far ahead gives the result of a loop over the good rows alone.

The loop knows neither files nor micro-batches: it goes over all rows in arrival order, and moves its watermark after each bucket of rows,
to the latest good row. It is the same whatever the format, the split, and the way in which the rows are read.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from datetime import timedelta
from typing import Annotated, NamedTuple

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, Struct, Timestamp
from headrace.log.log import CheckpointLog
from headrace.operators import Count, Tumbling
from headrace.records.watermarks import latest
from headrace.sources.merge import MergeRules
from headrace.tables.folder import JobFolder
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.fuzzing import examples

HOUR = 3_600_000
START = 1_577_836_800_000
AHEAD = START + 25 * HOUR
FORMATS = ("parquet", "json", "csv", "avro", "delta", "kafka")


class Row(NamedTuple):
    """A row as a source has it. `cents` None makes it a bad row; `at` may lie too far ahead."""

    shop: str
    at: int
    cents: int | None
    seq: int

    @property
    def is_good(self):
        """Return whether the row is good, in a micro-batch that begins at `START`."""
        return self.cents is not None and self.at <= START + 24 * HOUR


class Sale(Struct, frozen=True):
    shop: str
    at: Timestamp
    cents: int
    seq: int = 0


class Hourly(Struct, frozen=True):
    shop: str
    window_start: Timestamp
    n: Annotated[int, Count()]


def windows(*sources, order_by=()):
    pipeline = Pipeline("sales")
    first, *others = [pipeline.source(name, Sale, event_time="at", order_by=order_by) for name in sources]
    sales = first.union(*others) if others else first
    counts = sales.key_by("shop").window(Tumbling(timedelta(hours=1))).aggregate("counts", Hourly)
    return counts.sink("out")


# ------------------------------------------------------------------------------------------------------------ the loop


def merged(sources):
    """Yield the rows of several sources in arrival order, each with the latest time so far: that of the merge."""
    keyed = []
    for number, files in enumerate(sources):
        latest = -1
        for place, row in enumerate(row for file in files for row in file):
            latest = max(latest, row.at if row.is_good else -1)
            keyed.append((latest, number, place, row))
    for latest, _, _, row in sorted(keyed):
        yield latest, row


def counted(sources, bucket):
    """Return the count of each shop and hour, and how many rows were late and dropped, by a loop."""
    counts, numbers, latest, watermark = Counter(), Counter(), -1, -1
    for place, (key, row) in enumerate(merged(sources), 1):
        latest = max(latest, key)
        if row.is_good:
            numbers["behind"] += row.at <= watermark
            if row.at // HOUR * HOUR + HOUR - 1 <= watermark:
                numbers["dropped"] += 1
            else:
                counts[row.shop, row.at // HOUR * HOUR] += 1
        if place % bucket == 0:
            watermark = max(watermark, latest - 1)
    return counts, numbers


# ------------------------------------------------------------------------------------------------------------ the files


def lines_of(rows):
    return [json.dumps(row._asdict()) for row in rows]


def csv_of(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, Row._fields)
    writer.writeheader()
    writer.writerows({**row._asdict(), "cents": "oops" if row.cents is None else row.cents} for row in rows)
    return text.getvalue().encode()


def avro_of(rows):
    fields = [{"name": name, "type": "string" if name == "shop" else ["null", "long"]} for name in Row._fields]
    content = io.BytesIO()
    fastavro.writer(content, {"type": "record", "name": "Row", "fields": fields}, [row._asdict() for row in rows])
    return content.getvalue()


def table_of(rows):
    types = {"shop": pa.string(), "at": pa.int64(), "cents": pa.int64(), "seq": pa.int64()}
    return pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in types.items()})


def settings_of(kind):
    return {"max_quarantined": "none"} | ({} if kind == "kafka" else {"format": kind})


def feed(harness, name, kind, files):
    for number, rows in enumerate(files):
        if kind == "kafka":
            harness.topics[name].append([line.encode() for line in lines_of(rows)])
        elif kind == "delta":
            write_deltalake(str(harness.folder / "input" / name), table_of(rows), mode="append")
        elif kind == "parquet":
            harness.feed_table(name, table_of(rows), file=f"{number}.parquet")
        else:
            content = {"json": lambda rows: "\n".join(lines_of(rows)).encode(), "csv": csv_of, "avro": avro_of}
            harness.feed_bytes(name, content[kind](rows), file=f"{number}.{kind}")


TIMES = st.integers(0, 6 * 4).map(lambda quarters: START - 12 * HOUR + quarters * HOUR // 4) | st.just(AHEAD)
ROWS = st.builds(Row, st.sampled_from("ab"), TIMES, st.sampled_from([1, 1, 1, None]), st.integers(0, 3))
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.mark.slow
@examples(12)
@given(
    sources=st.lists(st.tuples(st.sampled_from(FORMATS), FILES), min_size=1, max_size=2),
    bucket=st.integers(1, 4),
    files_per_batch=st.integers(1, 3),
    is_sorted=st.booleans(),
)
def test_result_is_that_of_the_good_rows(sources, bucket, files_per_batch, is_sorted):
    kinds = {f"s{number}": kind for number, (kind, _) in enumerate(sources)}
    is_sorted = is_sorted and "kafka" not in kinds.values()
    harness = PipelineHarness(
        windows(*kinds, order_by=("seq",) if is_sorted else ()),
        bucket=bucket,
        files_per_batch=files_per_batch,
        topics={name: MemoryTopic(name) for name, kind in kinds.items() if kind == "kafka"},
        job={"sources": {name: settings_of(kind) for name, kind in kinds.items()}},
        now=START,
    )
    for name, (kind, files) in zip(kinds, sources, strict=True):
        feed(harness, name, kind, files)
    report = harness.run(end_of_input=True)
    in_order = [
        [sorted(rows, key=lambda row: row.seq) if is_sorted else rows for rows in files] for _, files in sources
    ]
    counts, numbers = counted(in_order, bucket)
    assert {(row.shop, row.window_start): row.n for row in harness.sink("out")} == dict(counts)
    every = [row for _, files in sources for rows in files for row in rows]
    assert report.quarantined == sum(not row.is_good for row in every)
    times = report.row_times.get("counts")
    assert (numbers["behind"], numbers["dropped"]) == ((times.behind, times.dropped) if times else (0, 0))


@pytest.mark.slow
@examples(8)
@given(kind=st.sampled_from(FORMATS[:5]), files=FILES, bucket=st.integers(1, 4), is_sorted=st.booleans())
def test_both_ways_of_reading_give_equal_checkpoints(kind, files, bucket, is_sorted):
    checkpoints = [in_checkpoints(kind, files, bucket, is_sorted, is_merged) for is_merged in (False, True)]
    assert checkpoints[0] == checkpoints[1]


def in_checkpoints(kind, files, bucket, is_sorted, is_merged):
    """Return the position, the watermarks and the counts of each checkpoint of a job that reads its source alone, or as sources that meet."""
    pipeline = windows("s0", order_by=("seq",) if is_sorted else ())
    job = {"sources": {"s0": settings_of(kind)}}
    harness = PipelineHarness(pipeline, bucket=bucket, files_per_batch=1, job=job, now=START)
    feed(harness, "s0", kind, files)
    with pytest.MonkeyPatch.context() as patch:
        if is_merged:
            patch.setattr(MergeRules, "are_merged", lambda *_: True)
        harness.run()
    log = CheckpointLog(JobFolder.of(harness.config))
    return [
        (
            timeline.bucket.next_ordinal,
            latest((timeline.bucket.open_max, timeline.bucket.closed_max)),
            timeline.watermark,
            timeline.seen,
            checkpoint.sources[name].taken_at,
            checkpoint.sources[name].last.partition("part-")[0],  # Delta draws the rest of a file's name
            checkpoint.row_times,
        )
        for checkpoint in log.checkpoints
        for timeline in checkpoint.timelines.values()
        for name in timeline.sources
    ]


# ------------------------------------------------------------------------------------------------------- rows without a key


class Visit(Struct, frozen=True):
    page: str | None
    at: Timestamp


class Visits(Struct, frozen=True):
    page: str | None
    window_start: Timestamp
    n: Annotated[int, Count()]


VISITS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 8)), min_size=1, max_size=12)


@pytest.mark.slow
@examples(12)
@given(sources=st.lists(st.lists(VISITS, min_size=1, max_size=3), min_size=1, max_size=2), bucket=st.integers(1, 4))
def test_row_without_a_key_moves_no_watermark(sources, bucket):
    pipeline = Pipeline("visits")
    streams = [pipeline.source(f"s{number}", Visit, event_time="at") for number in range(len(sources))]
    visits = streams[0].union(*streams[1:]) if streams[1:] else streams[0]
    visits.key_by("page").window(Tumbling(timedelta(hours=1))).aggregate("counts", Visits).sink("out")
    harness = PipelineHarness(pipeline, bucket=bucket, files_per_batch=1)
    rows = [
        [
            [Row(page or "", START + place * HOUR // 2, None if page is None else 1, 0) for page, place in file]
            for file in files
        ]
        for files in sources
    ]
    for number, files in enumerate(sources):
        for file in files:
            harness.feed(f"s{number}", [Visit(page, START + place * HOUR // 2) for page, place in file])
    harness.run(end_of_input=True)
    counts, _ = counted(rows, bucket)
    assert {(row.page, row.window_start): row.n for row in harness.sink("out")} == dict(counts)
