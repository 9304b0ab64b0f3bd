"""A store of a Delta table that stays open, beside other writers and a table that is replaced."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.storage import delta_commits, delta_table
from headrace.storage.delta_commits import OpenedTables
from headrace.storage.delta_table import DeltaStore
from headrace.storage.table import ROW_KIND, CommitInfo, TableMissingError, Transaction, VersionTakenError, commit_file
from tests.jobs.home import Home
from tests.jobs.local_runs import LocalRuns
from tests.jobs.purchase_files import write_days
from tests.unit.support.fuzzing import examples

SCHEMA = pa.schema([pa.field("key", pa.string())])
APP = "job/sink"


def rows(*keys):
    return pa.table({"key": [*keys]}, SCHEMA)


def keys_of(snapshot):
    return sorted(snapshot.read(SCHEMA)["key"].to_pylist())


@pytest.fixture
def uri(tmp_path):
    DeltaStore(str(tmp_path / "table")).create(SCHEMA)
    return str(tmp_path / "table")


def in_process(tables, function):
    """Call a function as another process does, which opens its own tables."""
    with patch.object(delta_commits, "OPENED_TABLES", tables):
        return function()


def anew(function):
    return in_process(OpenedTables(), function)


@pytest.fixture
def elsewhere():
    """Call functions in another process, one after the other."""
    return partial(in_process, OpenedTables())


ACTIONS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["append", "merge", "restore", "look"])), max_size=12)


@examples(15)  # each takes many commits to disk
@given(actions=ACTIONS)
def test_kept_table_equals_one_opened_anew(tmp_path_factory, actions):
    uri = str(tmp_path_factory.mktemp("stores") / "table")
    DeltaStore(uri).create(SCHEMA)
    version, contents, snapshots = 0, [[]], []
    writers = [OpenedTables() for _ in range(3)]
    for number, (writer, action) in enumerate(actions):
        key, info = f"k{number}", CommitInfo(transaction=Transaction(APP, number))

        def act(version=version, key=key, info=info, action=action):
            store = DeltaStore(uri)
            if action == "append":
                return store.append_rows(version, rows(key), info), store.latest()
            if action == "merge":
                changes = rows(key).append_column(ROW_KIND, pa.array(["+I"]))
                return store.merge(version, changes, ["key"], info), store.latest()
            if action == "restore" and version > 1:
                return store.restore(version, 1, info), store.latest()
            return version, store.latest()

        before = version
        version, latest = in_process(writers[writer], act)
        if version != before:
            contents.append(contents[1] if action == "restore" else sorted([*contents[-1], key]))
        snapshots.append(latest)
        fresh = anew(lambda: DeltaStore(uri).latest().transaction(APP))
        assert (latest.version, keys_of(latest), latest.transaction(APP)) == (version, contents[-1], fresh)
    for snapshot in snapshots:
        assert keys_of(snapshot) == contents[snapshot.version]
        assert keys_of(DeltaStore(uri).at(snapshot.version)) == contents[snapshot.version]


def test_commit_on_old_version_is_refused(uri, elsewhere):
    DeltaStore(uri).latest()
    elsewhere(lambda: DeltaStore(uri).append_rows(0, rows("a")))
    with pytest.raises(VersionTakenError):
        DeltaStore(uri).append_rows(0, rows("b"))
    assert keys_of(DeltaStore(uri).latest()) == ["a"]


def test_snapshot_stays_when_another_store_moves_on(uri):
    snapshot = DeltaStore(uri).latest()
    DeltaStore(uri).append_rows(0, rows("a"))
    assert keys_of(DeltaStore(uri).latest()) == ["a"]
    assert (snapshot.version, keys_of(snapshot)) == (0, [])


def test_snapshot_of_another_thread_stays(uri, elsewhere):
    snapshot = elsewhere(lambda: DeltaStore(uri).latest())
    elsewhere(lambda: DeltaStore(uri).append_rows(0, rows("a")))
    elsewhere(lambda: DeltaStore(uri).latest())
    assert keys_of(snapshot) == []
    stream = pa.RecordBatchReader.from_stream(snapshot.stream()).read_all()
    assert stream.num_rows == 0


def test_table_made_anew_is_opened_anew(uri, elsewhere):
    store = DeltaStore(uri)
    for version in range(3):
        store.append_rows(version, rows(f"old{version}"))
    store.latest()
    shutil.rmtree(uri)
    with pytest.raises(TableMissingError):
        store.latest()
    elsewhere(lambda: DeltaStore(uri).create(SCHEMA))
    with pytest.raises((StorageError, TableMissingError)):
        store.append_rows(3, rows("lost"))
    for version in range(3):
        elsewhere(lambda version=version: DeltaStore(uri).append_rows(version, rows(f"new{version}")))
    assert keys_of(store.latest()) == ["new0", "new1", "new2"]


def test_replaced_table_of_equal_length_is_noticed(uri, tmp_path):
    store = DeltaStore(uri)
    store.append_rows(0, rows("old"))
    store.latest()
    DeltaStore(str(tmp_path / "other")).create(SCHEMA)
    DeltaStore(str(tmp_path / "other")).append_rows(0, rows("new"))
    shutil.rmtree(uri)
    shutil.move(tmp_path / "other", uri)
    assert keys_of(store.latest()) == ["new"]


def test_latest_is_found_behind_a_hole(uri):
    """A purge cuts commits out of the middle of a log, behind a log checkpoint."""
    store = DeltaStore(uri)
    for version in range(8):
        store.append_rows(version, rows(f"k{version}"))
    store.keep_versions([5])
    for version in (3, 4):
        Path(uri, commit_file(version)).unlink()
    delta_commits.OPENED_TABLES.forget()
    assert store.at(2).version == 2
    assert store.latest().version == 8
    assert [commit.version for commit in store.latest().history()][:3] == [8, 7, 6]


def test_snapshot_answers_for_its_version_in_each_thread(uri):
    snapshot = DeltaStore(uri).latest()
    DeltaStore(uri).append_rows(0, rows("a"))
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: len(snapshot.files()), range(20))} == {0}


def test_tables_asked_for_long_ago_are_forgotten(tmp_path, opens):
    stores = [DeltaStore(str(tmp_path / f"table{number}")) for number in range(100)]
    for store in stores:
        store.create(SCHEMA)
        store.latest()
    opens.clear()
    assert [store.latest().version for store in reversed(stores)] == [0] * 100
    assert len(opens) == 100 - 64


@pytest.fixture
def asked(monkeypatch):
    """Return a list that gets the application of each transaction that is looked up in the whole log."""
    names = []
    look_up = DeltaTable.transaction_version

    def counted(self, app_id):
        names.append(app_id)
        return look_up(self, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    return names


def committed(store, version, number):
    return store.append_rows(version, rows(f"k{number}"), CommitInfo(transaction=Transaction(APP, number)))


def test_transactions_of_new_commits_are_not_looked_up(uri, asked, elsewhere):
    store = DeltaStore(uri)
    assert (store.latest().transaction(APP), asked) == (None, [APP])
    committed(store, 0, 7)
    assert store.latest().transaction(APP) == 7
    elsewhere(lambda: DeltaStore(uri).append_rows(1, rows("without transaction")))
    elsewhere(lambda: committed(DeltaStore(uri), 2, 9))
    assert (store.latest().transaction(APP), asked) == (9, [APP])


def test_many_new_commits_are_looked_up_again(uri, asked, elsewhere):
    store = DeltaStore(uri)
    store.latest().transaction(APP)
    for version in range(11):
        elsewhere(lambda version=version: committed(DeltaStore(uri), version, version))
    assert (store.latest().transaction(APP), asked) == (10, [APP, APP])


def test_transaction_is_found_behind_a_cleaned_log(uri, elsewhere):
    store = DeltaStore(uri)
    for version in range(3):
        committed(store, version, version)
    snapshot = store.latest()
    elsewhere(lambda: DeltaStore(uri).keep_versions([3]))
    for version in range(3):
        Path(uri, commit_file(version)).unlink()
    assert (snapshot.transaction("job/other"), snapshot.transaction(APP)) == (None, 2)


def test_commit_with_unknown_actions_is_read(uri, asked, elsewhere):
    store = DeltaStore(uri)
    store.latest().transaction(APP)
    elsewhere(lambda: committed(DeltaStore(uri), 0, 5))
    commit = Path(uri, commit_file(1))
    commit.write_text(commit.read_text() + '\n{"unheard":{"of":1}}\n')
    assert (store.latest().transaction(APP), asked) == (5, [APP])


@pytest.fixture
def opens(monkeypatch):
    """Return a list that gets the name of each table that is opened."""
    names = []

    class CountedTable(DeltaTable):
        def __init__(self, table_uri, *args, **options):
            names.append(str(table_uri).rpartition("/")[2])
            super().__init__(table_uri, *args, **options)

    monkeypatch.setattr(delta_table, "DeltaTable", CountedTable)
    return names


@pytest.mark.slow
def test_cold_run_opens_each_table_once(tmp_path, opens):
    home, run, counts = Home(tmp_path), LocalRuns(), []
    for day in range(1, 5):
        write_days(home.input, [day])
        opens.clear()
        anew(lambda: run(home))
        counts.append(Counter(opens))
    assert {*counts[-1].values()} == {1}


@pytest.mark.slow
def test_warm_run_opens_no_table(tmp_path, opens):
    home, run = Home(tmp_path), LocalRuns()
    for day in range(1, 4):
        write_days(home.input, [day])
        opens.clear()
        run(home)
    assert opens == []


def days_old(uri, days):
    for entry in Path(uri, "_delta_log").glob("0*"):
        at = entry.stat().st_mtime - days * 86_400
        os.utime(entry, (at, at))


@pytest.mark.parametrize(("retention", "is_cut"), [("interval 30 days", True), ("interval 3650 days", False)])
def test_log_is_cut_as_its_table_says(tmp_path, retention, is_cut):
    uri = str(tmp_path / "table")
    properties = {"delta.logRetentionDuration": retention, "delta.checkpointInterval": "10"}
    DeltaTable.create(uri, SCHEMA, configuration=properties)
    store = DeltaStore(uri)
    for version in range(25):
        days_old(uri, 5)
        store.append_rows(version, rows(f"{version}"))
    assert Path(uri, commit_file(0)).exists() is not is_cut
    assert len(keys_of(store.latest())) == 25
