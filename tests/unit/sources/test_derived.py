"""Derived rows: landed once, in the same order for any split of the input, with one version of each table per micro-batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.edits.vacuum import unneeded_landed
from headrace.errors import ConfigError, SourceError
from headrace.plan.loader import plan_of
from headrace.records.watermarks import Timeline
from headrace.sources.intake import Intake
from headrace.sources.position import FolderPosition, SourceFacts, TableVersion, derived_name, stored_name
from headrace.sources.registry import read_rows_of
from headrace.sources.slices import JobPosition, SliceRequest
from headrace.sources.source import TakenIn
from headrace.sources.transformed.rows import DimensionTables, input_schema, misfits
from headrace.sources.transformed.source import landed_file, read_derived, write_derived
from headrace.storage.storage import Storage
from headrace.testing import MemoryTopic, PipelineHarness
from tests.unit.support.fuzzing import examples
from tests.unit.support.stepped_job import SCHEMA, Copies, order, pipeline

pytestmark = pytest.mark.delta


class Slices:
    """Plans slices of the job without running it, and reads their rows."""

    def __init__(self, topic=None, **source):
        result = pipeline()
        self.topic = topic
        self.harness = PipelineHarness(
            result,
            topics={"rows": topic} if topic else {},
            job={
                "sources": {
                    "rows": {"format": "json", **source}
                    | ({"format": "kafka"} if topic else {})
                    | {"tables": {"dims": "dims"}}
                }
            },
        )
        self.config = self.harness.config
        self.plan = plan_of(self.config.code)
        self.folder = Path(self.config.sources["rows"].path) if topic is None else None
        self.dims = self.harness.folder / "dims"
        self.change_dims()
        self.facts, self.timelines, self.names = None, {}, frozenset()
        self.rows = []
        self.restart()

    def configure(self, **source):
        """Change the job's file, and start a new run."""
        self.harness.change(job={"sources": {"rows": {"format": "json", "tables": {"dims": "dims"}, **source}}})
        self.config = self.harness.config
        self.plan = plan_of(self.config.code)
        self.restart()

    def change_dims(self):
        write_deltalake(str(self.dims), pa.table({"id": [1]}), mode="append")

    def write(self, name, orders):
        lines = [json.dumps(order(*values)) for values in orders]
        (self.folder / name).write_text("\n".join(lines), encoding="utf-8")

    def restart(self, digest="00000001"):
        self.step = Copies(self.plan.sources[0], self.config, self.dims, digest)
        topics = {"rows": self.topic} if self.topic else {}
        self.intake = Intake(self.plan, self.config, topics=topics, steps={"rows": self.step})

    def take_in(self, *, crashes=False, until=None, ends=True):
        """Take the next slice in, or crash before its commit; return whether there was one."""
        at = JobPosition(
            {"rows": self.facts} if self.facts else {},
            self.timelines,
            {"rows": TakenIn(self.names)},
            0,
            0,
            Storage(f"{self.harness.folder}/transit"),
        )
        taken = self.intake.next(at, SliceRequest(ends=ends, until=until))
        if crashes:
            self.restart()
        if taken is None or crashes:
            return taken is not None
        placed = []
        for file in taken.files:
            rows = read_rows_of(file, self.plan.sources[0], Storage(""))
            ordinals = range(file.first_ordinal, file.first_ordinal + file.taken)
            if file.ordinals is not None:
                ordinals = Storage(str(file.ordinals)).parquet().column(0).to_pylist()
            own = rows.table.slice(file.first_row, file.taken).to_pylist()
            placed += [
                (ordinal, rows.problems.get(file.first_row + place) or (row["name"], row["label"]))
                for place, (ordinal, row) in enumerate(zip(ordinals, own, strict=True))
            ]
        self.rows += [row for _, row in sorted(placed)]
        (line,) = taken.timelines
        bucket = line.after or replace(line.before, next_ordinal=line.before.next_ordinal + line.rows)
        self.timelines = {"rows": Timeline(("rows",), bucket)}
        self.names |= {file.name for file in taken.sources["rows"].taken}
        self.facts = msgspec.json.decode(msgspec.json.encode(taken.sources["rows"]), type=SourceFacts)
        return True

    def drain(self):
        while self.take_in():
            pass
        return self.rows


ORDERS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9)), max_size=4)


@examples(25)
@given(files=st.lists(ORDERS, max_size=4), limit=st.integers(1, 3), crashes=st.lists(st.booleans(), max_size=4))
def test_any_split_and_crash_gives_the_same_rows(files, limit, crashes):
    split = Slices(max_files_per_batch=limit)
    for number, orders in enumerate(files):
        split.write(f"{number}.json", orders)
    for crash in crashes:
        split.take_in(crashes=crash)
    expected = [(f"{name}.{copy}", 0) for orders in files for name, copies, _ in orders for copy in range(copies)]
    assert split.drain() == expected


@pytest.mark.slow
@examples(15)
@given(bursts=st.lists(st.tuples(st.integers(0, 1), ORDERS, st.booleans()), max_size=5))
def test_partitions_of_a_topic_merge_by_derived_rows(bursts):
    topic, every = MemoryTopic("rows", 2), [[], []]
    split, whole = Slices(topic, max_rows_per_batch=3), Slices(topic)
    for number, (partition, orders, _) in enumerate(bursts):
        rows = [order(f"{name}{number}", copies, at) for name, copies, at in orders]
        topic.append(rows, partition=partition)
        every[partition] += rows
    for _, _, crash in bursts:
        split.take_in(crashes=crash)
    assert split.drain() == whole.drain()
    keyed = []
    for partition, rows in enumerate(every):
        latest = -1
        for place, row in enumerate(rows):
            latest = max(latest, row["at"]) if row["copies"] else latest
            keyed += [(latest, partition, place, copy, (f"{row['name']}.{copy}", 0)) for copy in range(row["copies"])]
    assert split.rows == [row for *_, row in sorted(keyed)]


def test_retry_reads_the_version_of_first_attempt():
    slices = Slices()
    for name in "ab":
        slices.write(f"{name}.json", [(name, 1, 1)])
    slices.step.dies_after = 1
    with pytest.raises(KeyboardInterrupt):
        slices.take_in()
    slices.change_dims()
    slices.restart()
    slices.take_in()
    assert slices.rows == [("a.0", 0), ("b.0", 0)]
    assert slices.facts.tables == (TableVersion("dims", 0),)
    slices.write("c.json", [("c", 1, 1)])
    assert slices.drain()[-1] == ("c.0", 1)
    assert slices.facts.tables == (TableVersion("dims", 1),)


def test_rows_landed_ahead_do_not_keep_a_version():
    slices = Slices(max_files_per_batch=2)
    for name in "abc":
        slices.write(f"{name}.json", [(name, 1, 1)])
    slices.take_in(crashes=True)  # a and b are landed
    slices.configure(max_files_per_batch=1)
    slices.take_in()
    slices.change_dims()
    slices.configure(max_files_per_batch=2)
    slices.take_in()
    assert slices.rows == [("a.0", 0), ("b.0", 0), ("c.0", 1)]


def test_replay_reads_the_recorded_version():
    slices = Slices()
    slices.write("a.json", [("a", 1, 1)])
    slices.take_in()
    recorded = slices.facts
    slices.change_dims()
    again = Slices()
    again.write("a.json", [("a", 1, 1)])
    again.change_dims()
    again.take_in(until={"rows": recorded})
    assert again.rows == [("a.0", 0)]


def test_changed_step_makes_new_rows():
    slices = Slices()
    slices.write("a.json", [("a", 1, 1)])
    slices.take_in(crashes=True)
    slices.change_dims()
    slices.restart(digest="00000002")
    assert slices.drain() == [("a.0", 1)]


def test_requeued_rows_refused_before_step_come_last():
    slices = Slices()
    (slices.folder / "a.json").write_text(
        '{"name": "a", "copies": "x", "at": 1}\n{"name": "b", "copies": 1, "at": 2}\n'
    )
    slices.take_in()
    assert slices.rows == [("b.0", 0), "a.json:0, before the transform: copies is 'x', which is not int64"]


def test_waiting_rows_keep_the_former_step():
    topic = MemoryTopic("rows", 2)
    slices = Slices(topic)
    topic.append([order("first", 1, 0), order("late", 2, 100)], partition=0)
    topic.append([order("early", 1, 5)], partition=1)
    slices.take_in(ends=False)
    assert slices.rows == [("first.0", 0), ("early.0", 0)]
    slices.restart(digest="00000002")
    slices.change_dims()
    assert slices.drain() == [("first.0", 0), ("early.0", 0), ("late.0", 0), ("late.1", 0)]


def test_missing_landed_file_stops_a_changed_step():
    topic = MemoryTopic("rows", 2)
    slices = Slices(topic)
    topic.append([order("first", 1, 0), order("late", 2, 100)], partition=0)
    topic.append([order("early", 1, 5)], partition=1)
    slices.take_in(ends=False)
    for file in slices.harness.folder.glob("state/shop/landed/rows/*~*"):
        file.unlink()
    slices.restart(digest="00000002")
    with pytest.raises(SourceError, match="is gone, .* The transform that made them has changed since"):
        slices.take_in()


@pytest.mark.parametrize("name", ["a.json", "0001/add/day=1%2F2/part.parquet", "x" * 300 + ".csv"])
def test_names_of_landed_files_are_names_of_files(name):
    derived = derived_name(name, "0123abcd")
    assert stored_name(derived) == name
    assert "/" not in landed_file(derived)
    assert len(landed_file(derived)) < 255
    assert landed_file(derived) != landed_file(derived_name(name + "2", "0123abcd"))


def test_missing_version_is_named(tmp_path):
    path = str(tmp_path / "dims")
    for word in "ab":
        write_deltalake(path, pa.table({"id": [2, 1], "label": [word, word]}), mode="overwrite")
    tables = DimensionTables("orders", {"dims": path}, Storage(""))
    assert tables.read("dims", 0).to_pylist() == [{"id": 1, "label": "a"}, {"id": 2, "label": "a"}]
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceError, match="source 'orders': cannot read version 0 of its table 'dims'"):
        tables.read("dims", 0)


def test_missing_table_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no Delta table .*nowhere, its table 'dims'"):
        DimensionTables("orders", {"dims": str(tmp_path / "nowhere")}, Storage("")).fix()


def test_mismatched_columns_are_named():
    node = plan_of(Slices().config.code).sources[0]
    assert misfits(SCHEMA, node) == []
    schema = pa.schema([("name", pa.int64()), ("name", pa.int64()), ("at", pa.bool_())])
    assert misfits(schema, node) == [
        "the result has two columns 'name'",
        "the result has no column 'label', a field of Copy (it has name, name, at)",
        "column 'at' of the result is bool, and the field of Copy is timestamp",
    ]
    assert input_schema(node.stored).field("at").type == pa.timestamp("us", "UTC")


def test_step_that_drops_row_kinds_is_named():
    node = dataclasses.replace(plan_of(Slices().config.code).sources[0], row_kind="op")
    assert misfits(SCHEMA, node) == ["the result has no column 'op', which holds the kinds of rows: select it as well"]
    assert misfits(SCHEMA.append(pa.field("op", pa.string())), node) == []


def test_vacuum_keeps_landed_files_still_needed(tmp_path):
    slices = Slices()
    for name in "abc":
        slices.write(f"{name}.json", [(name, 1, 1)])
    facts = SourceFacts(position=FolderPosition("b.json", ("a.json~00000001.parquet",)))
    names = [f"landed/rows/{name}.json~00000001.parquet" for name in "abc"]
    last = type("Last", (), {"sources": {"rows": facts}})
    kept = type("Kept", (), {"recent": (), "savepoints": ()})
    assert unneeded_landed(names, kept, last) == {names[1]}


def test_derived_rows_keep_their_types(tmp_path):
    rows = pa.table({"at": pa.array([1], pa.timestamp("us", "UTC")), "tags": [["a", None]]})
    write_derived(Storage(f"{tmp_path}/x.parquet"), rows.to_batches(), rows.schema)
    assert read_derived(Storage(f"{tmp_path}/x.parquet")).table.equals(rows)
