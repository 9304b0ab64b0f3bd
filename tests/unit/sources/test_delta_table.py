"""A Delta table as a source: each commit is taken in once, in order, or the run says why not."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.edits.restore import restore
from headrace.errors import ConfigError, SourceError
from headrace.plan.loader import plan_of
from headrace.records.watermarks import Timeline
from headrace.sources.intake import Intake
from headrace.sources.position import NO_FACTS, SourceFacts
from headrace.sources.registry import read_rows_of
from headrace.sources.slices import JobPosition
from headrace.storage.storage import Storage
from tests.unit.support.fuzzing import examples
from tests.unit.support.table_job import TableJob, TableWriter, table


class TableSlices:
    """Plans slices of the job's source without running it, and reads their rows."""

    def __init__(self, written, **source):
        self._job = TableJob(written, **source)
        self._config = self._job.harness.config
        self._plan = plan_of(self._config.code)
        self._intake = Intake(self._plan, self._config)
        self.facts, self.timelines = NO_FACTS, {}
        self.rows = []
        """Ordinals, kinds and names."""

    def take_in(self):
        """Take the next slice in; return whether there was one."""
        taken = self._intake.next(JobPosition({"rows": self.facts}, self.timelines, {}, 0, 0, Storage("")))
        if taken is None:
            return False
        rows = 0
        for file in taken.files:
            table = read_rows_of(file, self._plan.sources[0], Storage("")).table
            assert table.num_rows == file.rows
            kinds = table["_change_type"].to_pylist() if "_change_type" in table.schema.names else [""] * file.rows
            names = table["name"].to_pylist()
            self.rows += [(file.first_ordinal + at, kinds[at], names[at]) for at in range(file.rows)]
            rows += file.rows
        (line,) = taken.timelines
        self.timelines = {
            "rows": Timeline(("rows",), replace(line.before, next_ordinal=line.before.next_ordinal + rows))
        }
        self.facts = msgspec.json.decode(msgspec.json.encode(taken.sources["rows"]), type=SourceFacts)
        return True


def nothing_taken(job, match):
    """The run fails with this message and leaves the job as it was."""
    before = job.last.sources if job.last else {}
    with pytest.raises(SourceError, match=match):
        job.run()
    assert job.last.sources == before


# ------------------------------------------------------------------------------------------------------- appended rows


def test_appends_arrive_by_version_and_once():
    written = TableWriter()
    written.append("p", "q")
    written.append("r", at=500)
    job = TableJob(written)
    assert job.took() == ["p", "q", "r"]
    assert job.took() == []
    written.append("s", at=1)
    assert job.took() == ["s"]
    assert (job.table.version, job.table.table_id) == (3, str(written.delta.metadata().id))


@pytest.mark.slow
def test_other_table_at_the_same_version_is_refused():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    assert job.took() == ["p"]
    shutil.rmtree(written.path)
    TableWriter(folder=written.path).append("q")
    nothing_taken(job, "is another table than the one that was read")


def test_run_without_commits_leaves_no_checkpoint():
    job = TableJob(TableWriter())
    job.run()
    assert job.last.sources == {}


@pytest.mark.slow
@examples(25)
@given(
    versions=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    limits=st.fixed_dictionaries(
        {"max_files_per_batch": st.integers(1, 4), "max_rows_per_batch": st.none() | st.integers(1, 5)}
    ),
    runs=st.lists(st.integers(0, 4), max_size=3),
)
def test_any_split_gives_the_same_order(versions, limits, runs):
    written = TableWriter(partition_by=["size"])
    split = TableSlices(written, **limits)
    for number, rows in enumerate(versions):
        names = [f"{number}{letter}" for letter in "abcd"[:rows]]
        written.append(*names, sizes=[1 + index % 2 for index in range(rows)])
        if number in runs:
            split.take_in()
    while split.take_in():
        pass
    whole = TableSlices(written, max_files_per_batch=100)
    assert whole.take_in()
    assert split.rows == whole.rows
    assert len(whole.rows) == sum(versions)


def test_commits_that_only_move_rows_are_skipped():
    written = TableWriter()
    written.append("p")
    written.append("q")
    job = TableJob(written)
    assert job.took() == ["p", "q"]
    written.optimize()
    written.append("r")
    assert job.took() == ["r"]


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda w: w.delete("p"), "DELETE"),
        (lambda w: w.merge("p", "x"), "MERGE"),
        (lambda w: write_deltalake(w.path, table("x"), mode="overwrite"), "WRITE"),
    ],
)
def test_commit_that_removes_rows_stops(change, operation):
    written = TableWriter()
    written.append("p", "q")
    change(written)
    written.append("r")
    job = TableJob(written)
    with pytest.raises(
        SourceError, match=rf"version 2 of .* \({operation}\) removes or rewrites rows.*skip_versions: 2$"
    ):
        job.run()
    assert job.arrived() == ["p", "q"]
    nothing_taken(job, "version 2 of")
    assert job.configure(skip_versions=2).took() == ["r"]


def test_error_after_table_restore_says_how_to_continue():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    for name in ("q", "r"):
        written.append(name)
    assert job.took(max_batches=1) == ["q", "r"]
    written.restore(1)
    written.append("s")
    nothing_taken(
        job,
        r"version 4 of .* is a RESTORE to version 1.*headrace restore reader --to 1 --why .*no version above 1; .*skip_versions: 2-4.*skip_versions: 4$",
    )


def test_advice_lists_all_versions_to_skip():
    written = TableWriter()
    written.append("p")
    for name in ("p", "q"):
        written.append("q")
        written.delete(name)
    job = TableJob(written, skip_versions="3")
    with pytest.raises(SourceError, match=r"skip_versions: 3, 5$"):
        job.run()


def test_partition_values_are_columns():
    written = TableWriter(partition_by=["shop", "size", "at"])
    written.append("p", shop="a b/c", sizes=[7])
    written.append("q", shop="a b/c", sizes=[None])
    job = TableJob(written)
    job.run()
    assert [(row.name, row.size) for row in job.seen("a b/c")] == [("p", 7), ("q", None)]


def test_new_column_is_null_in_older_files():
    written = TableWriter()
    written.append(rows=table("p").drop(["size"]))
    written.append(rows=table("q").append_column("day", pa.array([date(2024, 1, 1)])))
    assert TableJob(written).took() == ["p", "q"]


def test_missing_table_is_named():
    written = TableWriter()
    job = TableJob(written)
    shutil.rmtree(written.path)
    nothing_taken(job, r"source 'rows': there is no Delta table .*/table")


def test_another_table_at_the_place_is_refused():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    shutil.rmtree(written.path)
    other = TableWriter(folder=written.path)
    other.append("q")
    for name in "rr":
        nothing_taken(job, r"is another table .* at version 1, .*: 'headrace restore reader --to 0 --why \.\.\.'")
        other.append(name)
    restore(job.harness.config, 0, "as the error says", "somebody")
    assert job.took() == ["q", "r", "r"]


def test_older_copy_of_the_table_names_the_restore():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    shutil.copytree(written.path, f"{written.path}.copy")
    for name in ("q", "r"):
        written.append(name)
        job.run()
    shutil.rmtree(written.path)
    shutil.move(f"{written.path}.copy", written.path)
    nothing_taken(
        job, r"is at version 1, and version 3 of it was read: .*: 'headrace restore reader --to 1 --why \.\.\.'\."
    )
    restore(job.harness.config, 1, "as the error says", "somebody")
    written.append("s")
    assert job.took() == ["s"]


def test_log_cleaned_behind_the_offset_is_refused():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    for name in "qrst":
        written.append(name)
    written.forget(4)
    nothing_taken(job, r"does not have version 2-3 any more.*skip_versions: 2-3;.*start: snapshot$")
    assert job.configure(skip_versions="2-3").took() == ["s", "t"]


def test_clean_log_before_the_offset_is_fine():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    written.append("q")
    written.forget(2)
    assert job.took() == ["q"]


@pytest.mark.parametrize("on_bad_file", ["fail", "quarantine"])
def test_vacuumed_file_is_never_skipped(on_bad_file):
    written = TableWriter()
    written.append("p")
    written.append("q")
    written.optimize()
    written.vacuum()
    job = TableJob(written, on_bad_file=on_bad_file)
    nothing_taken(
        job, r"\.parquet is gone. Version 1 of the table needs it; a VACUUM has removed it.*skip_versions: 1$"
    )
    assert sorted(job.configure(start="snapshot").took()) == ["p", "q"]


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (
            {"protocol": {"readerFeatures": ["newest"], "writerFeatures": ["newest"]}},
            "the table feature newest",
        ),
        ({"add": {"path": "gs://other/part.parquet"}}, "files of a scheme that is not supported"),
    ],
)
def test_unreadable_tables_are_refused(action, what):
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    written.append("q")
    commit = written.commit_file(2)
    ((kind, changes),) = action.items()
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    defaults = {
        "metaData": {
            **json.loads(next(line for line in written.commit_file(0).read_text().splitlines() if "metaData" in line))[
                "metaData"
            ]
        },
        "protocol": {"minReaderVersion": 3, "minWriterVersion": 7},
    }
    if kind == "add":
        lines = [{"add": {**line["add"], **changes}} if "add" in line else line for line in lines]
    else:
        lines.append({kind: {**defaults[kind], **changes}})
    commit.write_text("\n".join(map(json.dumps, lines)))
    nothing_taken(job, rf"version 2 of .* uses {what}.*which Headrace cannot read.*skip_versions: 2$")


def test_unreadable_commit_is_named():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    written.append("q")
    written.commit_file(2).write_text('{"add": ')
    nothing_taken(job, "the log of .* does not give version 2")


def test_bad_rows_go_to_quarantine_with_their_place():
    written = TableWriter(partition_by=["size"])
    rows = table("p", "q", sizes=[1, 1])
    written.append(rows=rows.set_column(2, "name", pa.array(["p", None])))
    job = TableJob(written)
    assert job.took() == ["p"]
    ((position, error),) = job.quarantine()
    assert position.startswith("00000000000000000001/add/size=1/part-")
    assert (position.endswith(".parquet:1"), error) == (True, "name is null")


# ------------------------------------------------------------------------------------------------------------ the start


def test_latest_begins_at_the_first_run():
    written = TableWriter()
    written.append("p")
    job = TableJob(written, start="latest")
    assert job.took() == []
    written.append("q")
    assert job.took() == ["q"]
    written.append("r")
    assert job.took() == ["r"]


def test_version_begins_with_that_version():
    written = TableWriter()
    for name in "pqr":
        written.append(name)
    assert TableJob(written, start="version 2").took() == ["q", "r"]


def test_moment_begins_with_the_next_commit():
    written = TableWriter()
    for name in "pqr":
        written.append(name)
    assert TableJob(written, start=written.committed_at(2)).took() == ["q", "r"]
    late = TableJob(written, start="2999-01-01")
    assert (late.took(), late.last.sources) == ([], {})


def test_moment_before_the_log_is_refused():
    written = TableWriter()
    for name in "pqr":
        written.append(name)
    written.forget(2)
    nothing_taken(TableJob(written, start="2001-01-01"), "does not have version 1 any more")
    nothing_taken(TableJob(written), "does not have version 0-1 any more.*start: snapshot")


def test_snapshot_takes_the_table_then_commits():
    written = TableWriter()
    for name in "pqr":
        written.append(name)
    written.delete("q")
    written.optimize()
    written.vacuum()
    job = TableJob(written, start="snapshot", max_files_per_batch=1)
    assert sorted(job.took()) == ["p", "r"]
    written.append("s")
    assert job.took() == ["s"]


def test_snapshot_in_parts_is_one_version():
    written = TableWriter()
    for name in "pqr":
        written.append(name)
    job = TableJob(written, start="snapshot", max_files_per_batch=1)
    first = job.took(max_batches=1)
    written.append("s")
    written.optimize()
    rest = job.took()
    assert (sorted([*first, *rest[:2]]), rest[2:]) == (["p", "q", "r"], ["s"])


def test_start_option_applies_only_to_first_run():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    written.append("q")
    assert job.configure(start="latest").took() == ["q"]


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"start": "tomorrow"}, r"sources\.rows\.start: 'tomorrow' is no start: expected earliest"),
        ({"skip_versions": "7-3"}, r"sources\.rows\.skip_versions: '7-3' names no versions"),
        (
            {"interval": "%Y"},
            r"sources\.rows\.interval: a Delta table has no intervals by name: write {by: committed} or",
        ),
        ({"format": "parquet", "start": "latest"}, r"the format parquet does not have it: a folder has no versions"),
        ({"format": "json", "skip_versions": "7"}, r"the format json does not have it: write format: delta"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys, match):
    with pytest.raises(ConfigError, match=match):
        TableJob(TableWriter(), **keys).run()


def test_folder_does_not_become_a_table():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    job.run()
    job.configure(format="parquet")
    with pytest.raises(ConfigError, match="has read a Delta table up to 0.* format: parquet now"):
        job.run()
    folder = TableJob(written, format="parquet", path="input/rows")
    folder.harness.feed_table("rows", table("q"))
    folder.run()
    folder.configure(format="delta", path=written.path)
    with pytest.raises(ConfigError, match=r"has read a folder up to 000001\.parquet, .* format: delta now"):
        folder.run()


def test_interval_runs_need_the_key():
    written = TableWriter()
    with pytest.raises(ConfigError, match="source 'rows' has no 'interval' in its configuration, so an interval run"):
        TableJob(written).run(mode="interval", interval_start=0, interval_end=1)


# ------------------------------------------------------------------------------------------------------ the change feed


def test_retractions_come_first_in_a_version():
    written = TableWriter(feed=True)
    written.append("p", "q")
    written.merge("q", "r", sizes=[2, 2])
    written.delete("p")
    job = TableJob(written, change_feed=True)
    arrived = job.took()
    assert (arrived[:3], sorted(arrived[3:5]), arrived[5:]) == (["p", "q", "-Uq"], ["+Uq", "r"], ["-Dp"])
    assert [row.size for row in job.seen() if row.name == "q"] == [1, 1, 2]


@pytest.mark.parametrize("limits", [{"max_files_per_batch": 1}, {"max_rows_per_batch": 1}])
def test_any_split_of_changes_gives_same_rows(limits):
    def left_by(job):
        """Return the rows that the changes add up to."""
        rows = set()
        for row in job.seen():
            (rows.remove if row.kind in {"-U", "-D"} else rows.add)((row.name, row.size))
        return rows

    written = TableWriter(feed=True, partition_by=["size"])
    written.append("p", "q", "r", sizes=[1, 2, 3])
    whole, split = (TableJob(written, change_feed=True, **options) for options in ({}, limits))
    written.merge("q", "s", sizes=[3, 4])
    split.run(max_batches=2)
    written.delete("r")
    written.restore(1)
    whole.run()
    split.run()
    assert split.arrived() == whole.arrived()
    assert left_by(split) == {("p", 1), ("q", 2), ("r", 3)}


CHANGES = st.lists(
    st.tuples(st.sampled_from(["append", "merge", "delete", "optimize", "restore"]), st.sampled_from("pqrs")),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@examples(25)
@given(changes=CHANGES, files=st.integers(1, 4), looks=st.lists(st.integers(0, 5), max_size=3))
def test_changes_add_up_to_the_table(changes, files, looks):
    written = TableWriter(feed=True, partition_by=["shop"])
    split = TableSlices(written, change_feed=True, max_files_per_batch=files)
    for number, (change, name) in enumerate(changes):
        if change == "restore" and written.version:
            written.restore(written.version // 2)
        elif change == "optimize":
            written.optimize()
        elif change == "delete":
            written.delete(name)
        elif change == "merge":
            written.merge(name, shop="ab"[number % 2])
        elif change == "append":
            written.append(f"{name}{number}", shop="ab"[number % 2])
        if number in looks:
            split.take_in()
    while split.take_in():
        pass
    whole = TableSlices(written, change_feed=True, max_files_per_batch=1000)
    whole.take_in()
    assert split.rows == whole.rows
    rows = Counter()
    for _, kind, name in split.rows:
        rows[name] += -1 if kind in {"-U", "-D"} else 1
        assert rows[name] >= 0
    assert +rows == Counter(written.names())


def test_table_restore_is_read_as_changes():
    written = TableWriter(feed=True)
    written.append("p")
    written.append("q")
    job = TableJob(written, change_feed=True)
    job.run()
    written.restore(1)
    assert job.took() == ["-Dq"]


def test_table_without_the_feed_is_refused():
    written = TableWriter()
    written.append("p")
    job = TableJob(written, change_feed=True)
    nothing_taken(
        job,
        r"not enabled at version 1.*ALTER TABLE delta\.`.*` SET TBLPROPERTIES \(delta\.enableChangeDataFeed = true\)",
    )
    written.set(enableChangeDataFeed="true")
    nothing_taken(job, "not enabled at version 1")
    job.configure(start="snapshot")
    assert job.took() == ["p"]
    written.merge("p", sizes=[2])
    assert job.took() == ["-Up", "+Up"]


def test_row_kinds_need_the_change_feed():
    written = TableWriter(feed=True)
    with pytest.raises(ConfigError, match='row_kind="_change_type"'):
        TableJob(written, change_feed=True, options={"row_kind": None}).run()
    with pytest.raises(
        ConfigError, match=r"sources\.rows\.change_feed: the pipeline takes row kinds from _change_type"
    ):
        TableJob(written, options={"row_kind": "_change_type"}).run()


@pytest.mark.parametrize("feed", [False, True])
def test_unknown_columns_of_the_record_are_ignored(feed):
    written = TableWriter(feed=feed)
    written.append("p")
    (file,) = written.delta.file_uris()
    rows = table("p")
    # As Spark leaves it in data files that a MERGE writes.
    pq.write_table(rows.append_column("_change_type", pa.nulls(1, pa.string())).append_column("x", rows["at"]), file)
    assert TableJob(written, change_feed=feed).took() == ["p"]


def test_vacuumed_changes_are_refused():
    written = TableWriter(feed=True)
    written.append("p")
    written.merge("p", sizes=[2])
    shutil.rmtree(Path(written.path, "_change_data"))
    nothing_taken(TableJob(written, change_feed=True, start="version 2"), "is gone. Version 2 of the table needs it")
