"""The results of a materializer's task for its sink and for the table of histories, without Spark."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, Pipeline, RowKind, Struct, Timestamp
from headrace.config._types import PipelineCode
from headrace.execution.element import Element, Emitted
from headrace.plan.loader import sink_schemas
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.run.backend import TaskBackend
from headrace.run.materializer_stage import MaterializerWork
from headrace.run.messages import BatchSettings, KeyedTask
from headrace.run.output import TaskOutput
from headrace.run.rows import ColumnarRows
from headrace.run.transit import transit_table
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.rocksdb import RocksDbBackend
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import MATERIALIZER_HISTORY
from tests.unit.support.fuzzing import examples

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
CHANGES = [(INSERT, 1, ""), (UPDATE_AFTER, 2, "b"), (UPDATE_AFTER, 3, "c"), (DELETE, 3, "c")]


class Row(Struct, frozen=True, omit_defaults=True):
    at: Timestamp
    key: str
    part: int
    text: str = ""


@pytest.fixture
def task(tmp_path):
    """Run one task over `CHANGES` of the key `k`; return the pipeline's plan, and the task's report."""

    def run(*appended, folder=tmp_path, backend=None, changes=CHANGES, as_columns=False, **options):
        source = Pipeline("p").source("rows", Row, event_time="at")
        plan = plan_stages(source.upsert_materialize("m", primary_key=("key",), **options).sink("board"))
        batch = BatchSettings(
            code=PipelineCode("", ""),
            folder=JobFolder(str(folder / "job")),
            checkpoint_id=1,
            attempt_id="attempt",
            max_parallelism=128,
            parallelism=1,
            local_folder="",
            backend="hashmap",
            cache_bytes=0,
            inline_reads_below=0,
            versions={},
            sinks={"board": str(folder / "board")},
            appended=appended,
        )
        described = KeyedTask(batch=batch, stage=0, watermark=None, watermarks=[], processing_time=0, first_ordinal=1)
        output = TaskOutput(batch, "m", "0-127")
        opened = TaskBackend(backend or HashMapBackend(), "copy")
        work = MaterializerWork(described, plan, plan.keyed[0], opened, output)
        elements = [
            Element(record_order(number), number, kind, encode(key), Row(number, key, part, text))
            for number, (kind, part, text, key) in enumerate((*change, "k")[:4] for change in changes)
        ]
        if as_columns:
            assert work.pass_columns(plan.keyed[0].operator, batches_of(elements)) is bool(elements)
        else:
            work.run(plan.keyed[0].operator, lambda _: [elements])
        opened.backend.write_batch(opened.writes)
        return plan, output.report

    return run


def batches_of(elements):
    """Return elements as a task gets them in transit, some rows at a time."""
    if not elements:
        return []
    emitted = [Emitted(element.order, element.timestamp, element.kind, element.record) for element in elements]
    keys = pa.array([element.key_json for element in elements], pa.binary())
    return transit_table((Row,), 0, ColumnarRows.of(emitted, Row), keys, 8).combine_chunks().to_batches(max_chunksize=3)


def rows(folder, report):
    """Return the rows staged for the sink."""
    return [row for file in report.outputs["board"] for row in pq.read_table(folder / file.path).to_pylist()]


CHANGED = st.tuples(st.sampled_from(RowKind), st.integers(0, 3), st.sampled_from(["", "b"]), st.sampled_from("jk"))


@pytest.mark.parametrize("appended", [(), ("board",)])
@examples(20)
@given(changes=st.lists(CHANGED, max_size=12), emit=st.sampled_from(Emit))
def test_columns_pass_as_records_do(task, tmp_path_factory, appended, changes, emit):
    passed = []
    for as_columns in (True, False):
        folder = tmp_path_factory.mktemp("job")
        _, report = task(
            *appended, folder=folder, changes=changes, as_columns=as_columns, upsert_key=("key",), emit=emit
        )
        place = folder / ("board" if appended else "job")
        passed.append((rows(place, report) if changes else [], report.metrics))
    assert passed[0] == passed[1]


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_columns_forget_old_histories(task, tmp_path, backend):
    opened = RocksDbBackend(tmp_path / "state") if backend == "rocksdb" else HashMapBackend()
    task(backend=opened, force=True)
    task(backend=opened, upsert_key=("key",), changes=[(INSERT, 1, "", "other")], as_columns=True)
    assert [*opened.items()] != []
    _, report = task(backend=opened, upsert_key=("key",), as_columns=True)
    assert ([*opened.items()], len(report.state_files[MATERIALIZER_HISTORY])) == ([], 1)


def test_nothing_is_read_without_histories(task, tmp_path):
    opened = RocksDbBackend(tmp_path / "state")
    with mock.patch.object(RocksDbBackend, "get_many", side_effect=AssertionError):
        task(backend=opened, upsert_key=("key",), as_columns=True)


@pytest.mark.parametrize("emit", Emit)
def test_merge_takes_one_change_for_each_key(task, tmp_path, emit):
    _, report = task(upsert_key=("part",), emit=emit)
    assert [(row["part"], row["_row_kind"]) for row in rows(tmp_path / "job", report)] == [(2, "+I")]


def test_append_sink_is_a_log_of_changes(task, tmp_path):
    plan, report = task("board", upsert_key=("part",), emit=Emit.EVERY_CHANGE)
    result = rows(tmp_path / "board", report)
    assert [(row["part"], row["_row_kind"]) for row in result] == [(1, "+I"), (2, "+U"), (3, "+U"), (2, "+U")]
    assert [row["_order"] for row in result] == sorted({row["_order"] for row in result})
    schema, keys = sink_schemas(plan, ["board"])["board"]
    assert ([*result[0]], keys) == (schema.names, ())


def test_rows_with_missing_fields_have_upsert_key(task, tmp_path):
    _, report = task(upsert_key=("text",))
    (file,) = report.state_files[MATERIALIZER_HISTORY]
    stored = pq.read_table(tmp_path / "job" / MATERIALIZER_HISTORY / file.path).to_pylist()
    assert [(row["upsert_key"], "text" in row["row"]) for row in stored] == [('""', False), ('"b"', True)]


def test_first_change_without_history_removes_old_state(task):
    backend = HashMapBackend()
    task(backend=backend, upsert_key=("key",), force=True)
    task(backend=backend, force=True)
    assert [*backend.items()] != []
    _, report = task(backend=backend, upsert_key=("key",))
    assert [*backend.items()] == []
    assert len(report.state_files[MATERIALIZER_HISTORY]) == 1
