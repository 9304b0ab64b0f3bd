"""A store of a Delta table that stays open, beside other writers and a table that is replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.storage import delta_table
from headrace.storage.delta_table import DeltaStore
from headrace.storage.table import ROW_KIND, CommitInfo, TableMissingError, Transaction, VersionTakenError, commit_file
from headrace.tables.schemas import KEYED_STATE, TIMERS
from tests.jobs.home import Home
from tests.jobs.local_runs import LocalRuns
from tests.jobs.purchase_files import write_days

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


def opened(uri):
    """Return a store that keeps the table open."""
    store = DeltaStore(uri)
    store.latest()
    return store


ACTIONS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["append", "merge", "restore", "look"])), max_size=12)


@settings(max_examples=15)  # each takes many commits to disk
@given(actions=ACTIONS)
def test_open_store_equals_fresh_store(tmp_path_factory, actions):
    uri = str(tmp_path_factory.mktemp("stores") / "table")
    DeltaStore(uri).create(SCHEMA)
    stores, version, contents = [opened(uri) for _ in range(3)], 0, [[]]
    snapshots = []
    for number, (writer, action) in enumerate(actions):
        store, key = stores[writer], f"k{number}"
        info = CommitInfo(transaction=Transaction(APP, number))
        if action == "append":
            version = store.append_rows(version, rows(key), info)
            contents.append(sorted([*contents[-1], key]))
        elif action == "merge":
            version = store.merge(version, rows(key).append_column(ROW_KIND, pa.array(["+I"])), ["key"], info)
            contents.append(sorted([*contents[-1], key]))
        elif action == "restore" and version > 1:
            version = store.restore(version, 1, info)
            contents.append(contents[1])
        last = DeltaStore(uri).latest().transaction(APP)
        latest = store.latest()
        snapshots.append(latest)
        assert (latest.version, keys_of(latest), latest.transaction(APP)) == (version, contents[-1], last)
    for snapshot in snapshots:
        assert keys_of(snapshot) == contents[snapshot.version]
        assert keys_of(stores[0].at(snapshot.version)) == contents[snapshot.version]


def test_commit_on_old_version_is_refused(uri):
    first, second = opened(uri), opened(uri)
    second.append_rows(0, rows("a"))
    with pytest.raises(VersionTakenError):
        first.append_rows(0, rows("b"))
    assert keys_of(first.latest()) == ["a"]


def test_table_made_anew_is_opened_anew(uri):
    store = opened(uri)
    for version in range(3):
        store.append_rows(version, rows(f"old{version}"))
    store.latest()
    shutil.rmtree(uri)
    with pytest.raises(TableMissingError):
        store.latest()
    DeltaStore(uri).create(SCHEMA)
    with pytest.raises((StorageError, TableMissingError)):
        store.append_rows(3, rows("lost"))
    other = DeltaStore(uri)
    for version in range(3):
        other.append_rows(version, rows(f"new{version}"))
    assert keys_of(store.latest()) == ["new0", "new1", "new2"]


def test_replaced_table_of_equal_length_is_noticed(uri, tmp_path):
    store = opened(uri)
    store.append_rows(0, rows("old"))
    store.latest()
    DeltaStore(str(tmp_path / "other")).create(SCHEMA)
    DeltaStore(str(tmp_path / "other")).append_rows(0, rows("new"))
    shutil.rmtree(uri)
    shutil.move(tmp_path / "other", uri)
    assert keys_of(store.latest()) == ["new"]


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


def test_transactions_of_new_commits_are_not_looked_up(uri, asked):
    store, other = opened(uri), opened(uri)
    assert (store.latest().transaction(APP), asked) == (None, [APP])
    committed(store, 0, 7)
    assert store.latest().transaction(APP) == 7
    other.append_rows(1, rows("without transaction"))
    committed(other, 2, 9)
    assert (store.latest().transaction(APP), asked) == (9, [APP])


def test_many_new_commits_are_looked_up_again(uri, asked):
    store, other = opened(uri), opened(uri)
    store.latest().transaction(APP)
    for version in range(11):
        committed(other, version, version)
    assert (store.latest().transaction(APP), asked) == (10, [APP, APP])


def test_transaction_is_found_behind_a_cleaned_log(uri):
    store = opened(uri)
    for version in range(3):
        committed(store, version, version)
    snapshot = store.latest()
    DeltaStore(uri).keep_versions([3])
    for version in range(3):
        Path(uri, commit_file(version)).unlink()
    assert (snapshot.transaction("job/other"), snapshot.transaction(APP)) == (None, 2)


def test_commit_with_unknown_actions_is_read(uri, asked):
    store = opened(uri)
    store.latest().transaction(APP)
    committed(DeltaStore(uri), 0, 5)
    commit = Path(uri, commit_file(1))
    commit.write_text(commit.read_text() + '\n{"unheard":{"of":1}}\n')
    assert (store.latest().transaction(APP), asked) == (5, [APP])


def test_warm_run_opens_each_table_once(tmp_path, monkeypatch):
    opens = []

    class CountedTable(DeltaTable):
        def __init__(self, table_uri, *args, **options):
            opens.append(str(table_uri).rpartition("/")[2])
            super().__init__(table_uri, *args, **options)

    home, run = Home(tmp_path), LocalRuns()
    counts, of_timers = [], []
    monkeypatch.setattr(delta_table, "DeltaTable", CountedTable)
    for day in range(1, 5):
        write_days(home.input, [day])
        opens.clear()
        run(home)
        counts.append(len(opens) - opens.count(TIMERS))
        of_timers.append(opens.count(TIMERS))
    assert opens.count("checkpoints") == opens.count(KEYED_STATE) == 1
    assert counts[1] == counts[2] == counts[3] <= 8
    assert max(of_timers[1:]) <= 3  # the last one looks for timers that wait for the next step of a watermark
