"""Rows of `checkpoints`: what is written is read again, whatever the facts, and SQL finds what is left to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import OperatorKey, SinkTable, StateSchema
from headrace.log.facts import Declarations, JobWork, OperatorDeclaration, OperatorFacts, Requeued
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
from headrace.state.ttl import Gap, StoredTtl
from headrace.state.type_schema import type_schema_of
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.fuzzing import examples

NAMED = {
    "kind": Kind.BATCH,
    "run_id": "r",
    "attempt_id": "a",
    "max_parallelism": 4,
    "versions": {},
    "committed_at": 0,
    "incarnation": 1,
}
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
OPERATORS = st.builds(
    OperatorFacts,
    timeline=st.none() | NAMES,
    rank=st.none() | NUMBERS,
    fired_until=st.dictionaries(NAMES, TIMES, max_size=1),
    local_copies=st.dictionaries(NAMES, NAMES, max_size=1),
    ttl_since=st.dictionaries(NAMES, TIMES, max_size=1),
)
KEYS = st.builds(OperatorKey, FILES, NAMES, st.none() | FILES)
STATES = st.builds(
    StateSchema,
    kind=NAMES,
    types=st.lists(st.sampled_from([type_schema_of(kind) for kind in (int, list[str], dict[str, Timeline])])).map(
        tuple
    ),
    version=NUMBERS,
    removed=st.booleans(),
)
DECLARATIONS = st.builds(
    Declarations,
    st.dictionaries(
        NAMES,
        st.builds(
            OperatorDeclaration,
            st.lists(st.none() | KEYS, max_size=2).map(tuple),
            st.dictionaries(NAMES, STATES, max_size=2),
            st.dictionaries(NAMES, TTLS, max_size=2),
        ),
        max_size=2,
    ),
    st.dictionaries(NAMES, st.builds(SinkTable, st.just({"type": "struct", "fields": []}), FILES), max_size=1),
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
    operators=st.dictionaries(NAMES, OPERATORS, max_size=2),
    edges=st.dictionaries(NAMES, NUMBERS, max_size=1),
    pauses=st.lists(GAPS, max_size=1).map(tuple),
    declared=DECLARATIONS,
    watermark=MAYBE,
    note=st.none() | st.text(),
    cause=st.none() | st.builds(Requeued, st.none() | NUMBERS, st.lists(NAMES, max_size=1).map(tuple)),
)


@examples(60)
@given(CHECKPOINTS)
def test_every_fact_is_read_as_written(checkpoint):
    forget_disk("rows")
    log = CheckpointLog(JobFolder("memory://rows/job"))
    log.create()
    log.begin([checkpoint])
    assert CheckpointLog(JobFolder("memory://rows/job")).checkpoints == [checkpoint]


@examples(30)
@given(st.data())
def test_declarations_are_joined_to_each_checkpoint(data):
    forget_disk("rows")
    log = CheckpointLog(JobFolder("memory://rows/job"))
    log.create()
    kinds = data.draw(st.lists(DECLARATIONS, min_size=1, max_size=2))
    chain = [
        Checkpoint(
            **NAMED, checkpoint_id=number, parent_id=data.draw(st.integers(0, number - 1)) if number else None,
            declared=data.draw(st.sampled_from(kinds)),
        )
        for number in range(data.draw(st.integers(1, 6)))
    ]  # fmt: skip
    cut = data.draw(st.integers(0, len(chain) - 1))
    if cut:
        log.begin(chain[:cut])
    log.append(chain[-1], None, chain[cut:-1])
    assert log.checkpoints == CheckpointLog(JobFolder("memory://rows/job")).checkpoints == chain


def test_sql_finds_the_work_left(memory_job):
    memory_job.run("ann")
    with memory_job.open() as opened:
        opened.commit(Kind.BATCH, work=JobWork(held=2, pending=3, due=5_000))
    rows = ask_sql(
        JobAtCheckpoint(memory_job.config), "select held, pending, epoch_ms(due) from checkpoints where pending > 0"
    ).rows
    assert rows == [(2, 3, 5_000)]
