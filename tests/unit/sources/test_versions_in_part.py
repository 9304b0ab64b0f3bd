"""Versions of a Delta table that are read in part, in another way than before, or with columns of other versions."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.log.intervals import taken_in
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from tests.unit.sources.test_on_change import COLUMNS, new_table, table
from tests.unit.support.table_job import TableJob, TableWriter

FEED = {"delta.enableChangeDataFeed": "true"}
NET, CHANGES = {"on_change": "as_changes"}, {"on_change": "fail", "change_feed": True}


def rewritten(folder):
    """Return a table whose second version rewrites a file without files of changes."""
    written = new_table(folder, configuration=FEED)
    first = written.add(table(*"pqr"))
    written.commit(first)
    written.commit(written.remove(first), written.add(table("p", "x", "r")), operation="WRITE")
    return written


@pytest.mark.parametrize(
    ("first", "second"), [(NET, CHANGES), (CHANGES | {"on_change": "fail"}, NET | {"change_feed": False})]
)
def test_changes_cannot_be_read_in_two_ways(tmp_path, first, second):
    job = TableJob(rewritten(tmp_path), max_files_per_batch=1, **first)
    job.took(max_batches=2)
    job.configure(**second)
    with pytest.raises(ConfigError, match="has changed while version 2"):
        job.took()
    job.configure(**{"change_feed": False, "on_change": "fail"} | first)
    job.took()
    assert job.table.version == 2


def test_snapshot_is_no_commit_to_skip(tmp_path):
    written = new_table(tmp_path)
    written.commit(written.add(table(*"pq")))
    written.commit(written.add(table("r")))
    assert sorted(TableJob(written, start="snapshot", skip_versions="2").took()) == ["p", "q", "r"]


def test_removed_rows_of_a_feed_keep_their_columns(tmp_path):
    written = new_table(tmp_path, configuration=FEED)
    first = written.add(table(*"pq", sizes=[7, 8]))
    written.commit(first)
    written.commit(
        written.metadata(COLUMNS[:3], FEED),
        written.remove(first),
        written.add(table("r").drop(["size"])),
        operation="WRITE",
    )
    job = TableJob(written, change_feed=True)
    job.run()
    assert [(row.kind, row.name, row.size) for row in job.seen()][2:4] == [("-D", "p", 7), ("-D", "q", 8)]


def test_version_read_in_part_counts_as_read(tmp_path):
    written = new_table(tmp_path)
    written.commit(written.add(table("p")))
    written.commit(written.add(table("q")), written.add(table("r")))
    job = TableJob(written, max_files_per_batch=1)
    job.took()
    known = taken_in(CheckpointLog(JobFolder.of(job.harness.config)).lineage.checkpoints, "rows")
    assert [version for _, version in known.versions] == [-1, 1, 2, 2]
    assert known.checkpoint_at(1) == 1


@pytest.mark.parametrize("on_bad_file", ["fail", "quarantine"])
def test_rewritten_files_of_deltalake_are_compared(on_bad_file):
    written = TableWriter()
    written.append("p", "q", "r")
    job = TableJob(written, on_bad_file=on_bad_file, **NET)
    job.took()
    written.merge("q", "x", at=9000)
    assert sorted(job.took()) == ["-Dq", "q", "x"]


def test_dictionaries_and_far_times_are_compared(tmp_path):
    written = new_table(tmp_path)
    coded = table(*"pq")
    place = coded.schema.get_field_index("name")
    first = written.add(coded.set_column(place, "name", coded["name"].dictionary_encode()))
    written.commit(first)
    written.commit(written.remove(first), written.add(table("p", "x")), operation="UPDATE")
    job = TableJob(written, **NET)
    job.run()
    assert [row.kind + row.name for row in job.seen()][2:] == ["-Dq", "+Ix"]
