"""The two ends of a step's Spark job: reading and landing of good files, bad rows and bad files."""

from __future__ import annotations

import sys
from types import ModuleType

import msgspec
import pyarrow as pa
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.config._types import PipelineCode
from headrace.sources.source import InputFile
from headrace.sources.transformed.source import Origin, read_derived
from headrace.spark.transform_files import LandedFile, TransformTask, landing_nothing, reading_partition
from headrace.storage.storage import Storage
from tests.jobs.home import PROJECT

SCHEMA = pa.schema([("id", pa.int64())])
LINES = '{"id": 1, "tags": ["a"], "at": 1000, "op": "-U"}\n{"id": 2, "tags": 7, "at": 2, "op": "+I"}\n'


class Order(Struct, frozen=True):
    id: int
    tags: list[str]
    at: Timestamp


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task for one file of JSON lines."""
    module = ModuleType("stepped_pipeline")
    pipeline = Pipeline("shop")
    source = pipeline.source("orders", Order, event_time="at", row_kind="op")
    source.sql("select *", tables=("dims",)).sink("again")
    monkeypatch.setattr(module, "pipeline", pipeline, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(content, on_bad_file="fail"):
        path = tmp_path / "a.json.gz"
        path.write_bytes(content)
        return TransformTask(
            PipelineCode("stepped_pipeline:pipeline", str(PROJECT), ()),
            "orders",
            (InputFile("orders", str(path), path.name, 0, 0, format="json"),),
            on_bad_file,
            Storage(f"{tmp_path}/landed"),
            Origin({"dims": 3}),
        )

    return make


def packed(text):
    import gzip

    return gzip.compress(text.encode())


def numbers():
    return iter([pa.RecordBatch.from_pydict({"id": [0]})])


def landed(task):
    (batch,) = landing_nothing(msgspec.json.encode(task), SCHEMA)(numbers())
    return msgspec.json.decode(batch["report"][0].as_py(), type=LandedFile)


def test_step_gets_good_rows_with_their_kinds(task):
    (batch,) = reading_partition(msgspec.json.encode(task(packed(LINES))))(numbers())
    (row,) = batch.to_pylist()
    assert (row["id"], row["tags"], row["at"].timestamp(), row["op"]) == (1, ["a"], 1.0, "-U")


def test_bad_rows_are_landed_with_their_texts(task):
    done = task(packed(LINES))
    rows = read_derived(done.folder.below(landed(done).file))
    assert rows.problems[0].startswith("a.json.gz:1, before the transform: tags is ")
    assert rows.raw(0) == LINES.splitlines()[1]
    assert rows.table.num_rows == 1


def test_bad_file_stops_the_run_or_is_landed(task):
    broken = task(b"no gzip")
    assert list(reading_partition(msgspec.json.encode(broken))(numbers())) == []
    assert landed(broken).is_bad_file
    passed = task(b"no gzip", on_bad_file="quarantine")
    rows = read_derived(passed.folder.below(landed(passed).file))
    assert list(rows.problems) == [0]
    assert rows.problems[0].startswith("a.json.gz: cannot read it: ")
    assert rows.raw(0) == passed.files[0].path


def test_folder_write_error_is_reported(task, tmp_path):
    (tmp_path / "landed").write_text("a file in its place")
    assert "could not write" in landed(task(packed(LINES))).error
