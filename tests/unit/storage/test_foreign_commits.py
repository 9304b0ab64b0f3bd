"""Commits of other programs that do not say who wrote them, or that are empty: deltalake leaves them out of its history."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.edits.restore import restore
from headrace.errors import SourceError
from headrace.storage.delta_table import DeltaStore
from headrace.storage.storage import Storage
from headrace.storage.table import commit_file
from tests.unit.support.branched_job import BranchedJob
from tests.unit.support.table_job import TableJob, TableWriter

ROWS = pa.table({"a": [1]})
SILENT = {
    "empty": "",
    "a transaction": json.dumps({"txn": {"appId": "x", "version": 1, "lastUpdated": 0}}) + "\n",
}


def commit_silently(uri, version, text):
    Path(uri, commit_file(version)).write_text(text)


@pytest.fixture
def store(tmp_path):
    store = DeltaStore(str(tmp_path / "table"))
    store.create(ROWS.schema)
    store.append_rows(0, ROWS)
    return store


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_history_counts_commits_without_information(store, text):
    commit_silently(store.uri, 2, text)
    commits = store.latest().history()
    assert [(commit.version, commit.keeps_rows) for commit in commits] == [(2, True), (1, False), (0, True)]
    assert [commit.version for commit in store.latest().history(1)] == [2]
    store.append_rows(2, ROWS)
    assert [commit.version for commit in store.latest().history(3)] == [3, 2, 1]
    assert [commit.version for commit in store.at(1).history()] == [1, 0]


def test_silent_commit_of_rows_is_a_change(store):
    file = store._files.stage("other.parquet", ROWS)
    add = {"path": file.path, "size": file.size, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    commit_silently(store.uri, 2, json.dumps({"add": add}) + "\n")
    assert [(commit.version, commit.keeps_rows) for commit in store.latest().history(2)] == [(2, False), (1, False)]


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_silent_commit_in_a_sink_moves_no_checkpoint(text):
    job = BranchedJob()
    job.feed(("ann", 1))
    job.run()
    first = job.content()
    sink = Storage(job.config.sinks["totals"].table_path).table()
    commit_silently(sink.uri, sink.latest().version + 1, text)
    for amount in (2, 3):
        job.feed(("ann", amount))
        job.run()
    restore(job.config, 1, "as it was", "somebody")
    assert job.content() == first


def test_source_names_an_empty_commit():
    written = TableWriter()
    written.append("p")
    job = TableJob(written)
    assert job.took() == ["p"]
    commit_silently(written.path, 2, "")
    assert job.took() == [], "its writer may be at work"
    written.append("q")
    with pytest.raises(
        SourceError, match=r"does not give version 2: .* is empty: .*skip the version: sources.rows.skip_versions: 2"
    ):
        job.run()
    assert job.configure(skip_versions="2").took() == ["q"]
