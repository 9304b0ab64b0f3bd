"""The results of a materializer's task for its sink and for the table of histories, without Spark."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from headrace import Emit, Pipeline, RowKind, Struct, Timestamp
from headrace.config._types import PipelineCode
from headrace.execution.element import Element
from headrace.plan.loader import sink_schemas
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.run.backend import TaskBackend
from headrace.run.materializer_stage import MaterializerWork
from headrace.run.messages import BatchSettings, KeyedTask
from headrace.run.output import TaskOutput
from headrace.state.backend import HashMapBackend
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import MATERIALIZER_HISTORY

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

    def run(*appended, backend=None, **options):
        source = Pipeline("p").source("rows", Row, event_time="at")
        plan = plan_stages(source.upsert_materialize("m", primary_key=("key",), **options).sink("board"))
        batch = BatchSettings(
            code=PipelineCode("", ""),
            folder=JobFolder(str(tmp_path / "job")),
            checkpoint_id=1,
            attempt_id="attempt",
            max_parallelism=128,
            parallelism=1,
            local_folder="",
            backend="hashmap",
            cache_bytes=0,
            inline_reads_below=0,
            versions={},
            sinks={"board": str(tmp_path / "board")},
            appended=appended,
        )
        described = KeyedTask(batch=batch, stage=0, watermark=None, watermarks=[], processing_time=0, first_ordinal=1)
        output = TaskOutput(batch, "m", "0-127")
        opened = TaskBackend(backend or HashMapBackend(), "copy")
        work = MaterializerWork(described, plan, plan.keyed[0], opened, output)
        elements = [
            Element(record_order(number), number, kind, b'"k"', Row(number, "k", part, text))
            for number, (kind, part, text) in enumerate(CHANGES, 1)
        ]
        work.run(plan.keyed[0].operator, lambda _: [elements])
        opened.backend.write_batch(opened.writes)
        return plan, output.report

    return run


def rows(folder, report):
    """Return the rows staged for the sink."""
    return [row for file in report.outputs["board"] for row in pq.read_table(folder / file.path).to_pylist()]


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
