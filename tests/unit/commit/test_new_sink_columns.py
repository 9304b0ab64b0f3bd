"""A record gets another field: the table of its sink gets the column and keeps its rows (deltalake, no JVM)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import Pipeline, Struct, Timestamp
from headrace.commit.run_check import new_sink_columns
from headrace.edits.reconcile import reconcile
from headrace.edits.restore import restore
from headrace.errors import ConfigError
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness


class Old(Struct, frozen=True):
    id: str
    at: Timestamp


class New(Struct, frozen=True):
    id: str
    size: int = 7
    parts: list[int] | None = None
    at: Timestamp = 0


class Since(Struct, frozen=True):
    id: str
    since: Timestamp


def pipeline(record, mode, key=("id",)):
    rows = Pipeline("job").source("rows", record, event_time="at")
    if mode == "append":
        return rows.sink("taken")
    return rows.upsert_materialize("latest", primary_key=key).sink("taken")


def since(mode):
    """A pipeline whose sink has another name for the time."""
    rows = Pipeline("job").source("rows", Old, event_time="at").map(lambda row: Since(row.id, row.at), record=Since)
    if mode == "append":
        return rows.sink("taken")
    return rows.upsert_materialize("latest", primary_key=("id",)).sink("taken")


def rows_of(harness):
    return sorted((row["id"], row.get("size", "none")) for row in harness.sink_table("taken").to_pylist())


def announced(harness):
    config = harness.config
    return [*new_sink_columns(config, CheckpointLog(JobFolder(config.job_folder)), plan_of(config.code))]


@pytest.fixture(params=["append", "merge"])
def mode(request):
    return request.param


@pytest.fixture
def harness(mode):
    result = PipelineHarness(pipeline(Old, mode))
    result.feed("rows", [Old("a", 1), Old("b", 2)])
    result.run()
    return result


@pytest.mark.slow
def test_new_column_is_announced_and_then_added(harness, mode):
    assert announced(harness) == []
    harness.change(pipeline=pipeline(New, mode))
    (sentence,) = announced(harness)
    assert "the next run adds to sink 'taken' at" in sentence
    assert "size (int64), parts (list<element: int64>). Existing rows get null" in sentence
    assert announced(harness) == [sentence]
    harness.feed("rows", [New("c", 3, [1], at=3)])
    harness.run()
    assert rows_of(harness) == [("a", None), ("b", None), ("c", 3)]
    assert announced(harness) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["another path", "table moved away", "moved away and reconciled before"])
def test_renamed_column_goes_on_as_advised(harness, mode, way):
    harness.feed("rows", [Old("c", 3)])
    harness.run()
    path = Path(harness.config.sinks["taken"].path)
    if way == "moved away and reconciled before":
        path.rename(path.with_name("before"))
        reconcile(harness.config, "operator", "with the old code")
    harness.change(pipeline=since(mode))
    with pytest.raises(
        ConfigError, match=r"job.yaml:\d+: sinks.taken.path.*, then run 'headrace reconcile job --apply"
    ):
        harness.run()
    if way == "another path":
        harness.change(job={"sinks": {"taken": {"path": f"{path}_2"}}})
    else:
        path.rename(path.with_name("moved_away"))
    reconcile(harness.config, "operator", "renamed")
    assert reconcile(harness.config, "operator", "again") is None
    harness.run()
    assert sorted(row["since"].microsecond for row in harness.sink_table("taken").to_pylist()) == [1000, 2000, 3000]


@pytest.mark.slow
def test_runs_without_rows_add_nothing(harness, mode):
    harness.change(pipeline=pipeline(New, mode))
    harness.run()
    assert rows_of(harness) == [("a", "none"), ("b", "none")]


@pytest.mark.slow
def test_earlier_staged_checkpoint_is_published_after_change(harness, mode):
    harness.feed("rows", [Old("c", 3)])
    harness.run(crash_at="commit.after")
    harness.change(pipeline=pipeline(New, mode))
    harness.feed("rows", [New("d", 4, at=4)])
    harness.run()
    assert rows_of(harness) == [("a", None), ("b", None), ("c", None), ("d", 4)]


@pytest.mark.slow
def test_crash_after_adding_a_column_is_survived(harness, mode):
    harness.change(pipeline=pipeline(New, mode))
    harness.feed("rows", [New("c", 3, at=3)])
    harness.run(crash_at="commit.after")
    store, columns = Storage(harness.config.sinks["taken"].path).table(), announced(harness)
    assert columns
    store.add_columns(store.latest().version, [pa.field("size", pa.int64())])
    harness.run()
    assert rows_of(harness) == [("a", None), ("b", None), ("c", 3)]


@pytest.mark.slow
def test_restore_removes_column_and_next_run_adds_it(harness, mode):
    first = harness.facts[-1].checkpoint_id
    harness.change(pipeline=pipeline(New, mode))
    harness.feed("rows", [New("c", 3, at=3)])
    harness.run()
    with harness.on_its_clock():
        restore(harness.config, first, "again", "by-hand")
    assert rows_of(harness) == [("a", "none"), ("b", "none")]
    harness.run()
    assert rows_of(harness) == [("a", None), ("b", None), ("c", 3)]


@pytest.mark.slow
def test_removed_and_retyped_columns_are_refused(harness, mode):
    class Retyped(Struct, frozen=True):
        id: str
        at: Timestamp
        size: list[str] | None = None

    harness.change(pipeline=pipeline(New, mode))
    harness.feed("rows", [New("c", 3, at=3)])
    harness.run()
    harness.change(pipeline=pipeline(Old, mode))
    with pytest.raises(
        ConfigError, match="has the columns at, id, parts, size; the pipeline writes id, at. Nothing was"
    ):
        harness.run()
    harness.change(pipeline=pipeline(Retyped, mode))
    with pytest.raises(ConfigError, match="has the columns at, id, parts, size"):
        harness.run()


def test_retyped_column_of_append_sink_is_refused():
    class Texts(Struct, frozen=True):
        id: str
        at: str
        time: Timestamp = 0

    harness = PipelineHarness(pipeline(Old, "append"))
    harness.feed("rows", [Old("a", 1)])
    harness.run()
    texts = Pipeline("job").source("rows", Texts, event_time="time").sink("taken")
    harness.change(pipeline=texts)
    harness.feed("rows", [Texts("b", "soon")])
    with pytest.raises(
        ConfigError, match=r"column 'at' of sink 'taken' at .* is timestamp\[us, tz=UTC\]; the pipeline writes string"
    ):
        harness.run()
    assert rows_of(harness) == [("a", "none")]


def test_number_is_not_merged_into_a_text():
    harness = PipelineHarness(pipeline(New, "merge"))
    harness.feed("rows", [New("a", 3, at=1)])
    folder = harness.config.sinks["taken"].path
    foreign = {"id": ["b"], "size": ["big"], "at": pa.array([0], pa.timestamp("us", tz="UTC"))}
    write_deltalake(folder, pa.table(foreign))
    with pytest.raises(ConfigError, match=r"column 'size' of sink 'taken' at .* is string; the pipeline writes int64"):
        harness.run()


def test_new_column_cannot_be_of_the_key():
    class Wide(Struct, frozen=True):
        id: str
        shop: str
        at: Timestamp

    harness = PipelineHarness(pipeline(Old, "merge"))
    harness.feed("rows", [Old("a", 1)])
    harness.run()
    harness.change(pipeline=pipeline(Wide, "merge", ("shop",)))
    with pytest.raises(ConfigError, match="has no column shop, which is of the primary key now"):
        harness.run()
