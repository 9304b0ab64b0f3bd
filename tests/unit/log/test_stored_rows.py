"""Rows of `checkpoints`: what is written is read again, whatever the facts, and SQL finds what is left to do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.checkpoint import Checkpoint, JobWork, Kind, Requeued
from headrace.log.log import CheckpointLog
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.sql import ask_sql
from headrace.records.watermarks import Bucket, Timeline
from headrace.sources.position import (
    FileVersions,
    FolderPosition,
    PartitionPosition,
    RequeuedRows,
    SourceFacts,
    TablePosition,
    TableVersion,
    TakenFile,
    TopicPosition,
)
from headrace.state.ttl import Gap, StoredTtl, TtlHistory
from headrace.testing._memory_disk import forget_disk

NAMES = st.text(max_size=6)
TIMES = st.integers(0, 4_000_000_000_000)
NUMBERS = st.integers(0, 1 << 40)
MAYBE = st.none() | TIMES
FILES = st.lists(NAMES.filter(bool), max_size=2).map(tuple)
OF_FILES = {"last": NAMES, "begun": FILES, "rows": NUMBERS}
PARTITIONS = st.builds(
    PartitionPosition,
    number=NUMBERS, begins_at=NUMBERS, next=NUMBERS, begun=FILES, rows=NUMBERS, taken_at=MAYBE, idle=st.booleans(),
)  # fmt: skip
POSITIONS = st.one_of(
    st.none(),
    st.builds(FolderPosition, **OF_FILES),
    st.builds(
        TablePosition, table_id=NAMES, version=st.integers(-1, 1 << 40), snapshot=st.none() | NUMBERS, **OF_FILES
    ),
    st.builds(TopicPosition, NAMES, st.dictionaries(st.integers(0, 1 << 20), PARTITIONS, max_size=2)),
)
RANGES = st.none() | st.tuples(st.tuples(NUMBERS, NUMBERS))
TABLES = st.lists(st.builds(TableVersion, NAMES, NUMBERS), max_size=2).map(tuple)
FACTS = st.builds(
    SourceFacts,
    number=NUMBERS,
    position=POSITIONS,
    taken_at=MAYBE,
    idle=st.booleans(),
    ended=st.booleans(),
    punctuated=MAYBE,
    requeued=st.lists(st.builds(RequeuedRows, NAMES, RANGES, st.none() | NUMBERS), max_size=2).map(tuple),
    taken=st.lists(st.builds(TakenFile, NAMES, NAMES, NAMES), max_size=2).map(tuple),
    tables=TABLES,
    file_tables=st.lists(st.builds(FileVersions, NAMES, TABLES), max_size=1).map(tuple),
)
TIMELINES = st.builds(
    Timeline,
    st.lists(NAMES, max_size=2).map(tuple),
    st.builds(Bucket, NUMBERS, MAYBE, MAYBE),
    MAYBE,
    MAYBE,
    st.lists(st.tuples(NUMBERS, TIMES), max_size=2).map(tuple),
)
TTLS = st.none() | st.builds(
    StoredTtl,
    NUMBERS,
    st.sampled_from(["event", "processing"]),
    st.sampled_from(["watermark", "processing"]),
    st.none() | NUMBERS,
)
GAPS = st.builds(Gap, TIMES, TIMES, MAYBE, st.dictionaries(NAMES, MAYBE, max_size=1))
HISTORIES = st.builds(
    TtlHistory,
    st.lists(GAPS, max_size=1).map(tuple),
    st.dictionaries(NAMES, TTLS, max_size=2),
    st.dictionaries(NAMES, TIMES, max_size=1),
)
CHECKPOINTS = st.builds(
    Checkpoint,
    checkpoint_id=NUMBERS,
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.LEASE]),
    run_id=NAMES,
    attempt_id=NAMES,
    max_parallelism=st.integers(1, 1 << 15),
    versions=st.dictionaries(NAMES, NUMBERS, max_size=2),
    committed_at=TIMES,
    incarnation=NUMBERS,
    sources=st.dictionaries(NAMES, FACTS, max_size=2),
    timelines=st.dictionaries(NAMES, TIMELINES, max_size=2),
    work=st.builds(JobWork, NUMBERS, NUMBERS, MAYBE),
    state_ttl=HISTORIES,
    watermark=MAYBE,
    note=st.none() | st.text(),
    cause=st.none() | st.builds(Requeued, st.none() | NUMBERS, st.lists(NAMES, max_size=1).map(tuple)),
)


@settings(max_examples=60)
@given(CHECKPOINTS)
def test_every_fact_is_read_as_written(checkpoint):
    forget_disk("rows")
    log = CheckpointLog("memory://rows/job")
    log.create()
    log.begin([checkpoint])
    assert CheckpointLog("memory://rows/job").checkpoints == [checkpoint]


def test_sql_finds_the_work_left(memory_job):
    memory_job.run("ann")
    with memory_job.open() as opened:
        opened.commit(Kind.BATCH, work=JobWork(held=2, pending=3, due=5_000))
    rows = ask_sql(
        JobAtCheckpoint(memory_job.config), "select held, pending, epoch_ms(due) from checkpoints where pending > 0"
    ).rows
    assert rows == [(2, 3, 5_000)]
