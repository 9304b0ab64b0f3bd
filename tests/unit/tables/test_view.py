"""The view of a state table: live entries at a version, all of them or a selection (in memory)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.state.key_groups import KeyGroupRange
from headrace.storage.predicate import BetweenTimes
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.view import TableView
from headrace.testing._memory_disk import forget_disk

TABLE = STATE_TABLES[KEYED_STATE]
JOB = "memory://views/job"


@pytest.fixture
def views():
    """Two checkpoints: ann and bob; then ann changes, bob goes, cyd of another operator comes."""
    store = Storage(f"{JOB}/{KEYED_STATE}").table()
    store.create(TABLE.schema)
    append(store, 0, ("op", 1, "ann", "1", 10), ("op", 5, "bob", "1", 20))
    append(store, 1, ("op", 1, "ann", "2", 30), ("op", 5, "bob", None, None), ("other", 9, "cyd", "1", 40))
    yield lambda version: JobFolder(str(JOB)).view(KEYED_STATE, version)
    forget_disk("views")


def append(store, parent, *rows):
    filled = [
        dict.fromkeys(TABLE.schema.names)
        | {"operator": operator, "key_group": group, "key": key, "state": "s", "value": value}
        | {"last_access": None if at is None else at * 1000, "checkpoint_id": parent + 1, "deleted": value is None}
        for operator, group, key, value, at in rows
    ]
    file = Storage(store.uri).stage(f"{parent}.parquet", pa.Table.from_pylist(filled, TABLE.schema))
    store.append(parent, TABLE.schema, [file])


def values(view):
    return {row["key"]: row["value"] for row in view.live_rows(["key", "value"])}


def test_live_entries_are_those_of_the_version(views):
    assert [values(views(version)) for version in range(3)] == [
        {},
        {"ann": "1", "bob": "1"},
        {"ann": "2", "cyd": "1"},
    ]


def test_changes_have_all_rows(views):
    keys = views(2).changes(["key"])["key"].to_pylist()
    assert sorted(keys) == ["ann", "ann", "bob", "bob", "cyd"]


def test_view_can_select_entries(views):
    view = views(2)
    assert values(view.of("op")) == {"ann": "2"}
    assert values(view.of(["op", "other"], KeyGroupRange(5, 9))) == {"cyd": "1"}
    assert values(view.of(keys=["ann"], states="s")) == {"ann": "2"}
    assert values(view.of(states=["t"])) == {}
    assert values(views(1).of("op").of(key_groups=KeyGroupRange(5, 5))) == {"bob": "1"}


def test_last_changes_keep_deleted_entries(views):
    def last(**wanted):
        return {row["key"]: row["value"] for row in views(2).last_changes(**wanted).to_pylist()}

    assert last() == {"ann": "2", "bob": None, "cyd": "1"}
    assert last(keys=pa.array(["bob", "dan"])) == {"bob": None}


def test_conditions_come_before_the_last_row(views):
    assert values(views(2).where(BetweenTimes("last_access", until=20))) == {"ann": "1", "bob": "1"}


def test_live_rows_have_times_in_milliseconds(views):
    row = views(2).of(keys=["ann"]).live_rows()[0]
    assert (row["last_access"], row["expires_at"], row["checkpoint_id"]) == (30, None, 2)
    assert list(row) == TABLE.schema.names


def test_views_by_name_have_their_versions(views):
    view = JobFolder(str(JOB)).views({KEYED_STATE: 1})(KEYED_STATE)
    assert (view.version, len(view.files()), len(views(2).files())) == (1, 1, 2)


OLD = pa.schema([column for column in TABLE.schema if column.name not in {"namespace", "ttl_ms"}])


def old_view(folder) -> TableView:
    """Return a view of a table that an older program has made."""
    store = Storage(f"{folder}/{KEYED_STATE}").table()
    store.create(OLD)
    rows = [
        {"operator": "o", "key_group": 1, "key": key, "state": "s", "value": key, "checkpoint_id": 1, "deleted": False}
        for key in ("a", "b")
    ]
    store.append_rows(0, pa.Table.from_pylist(rows, OLD))
    return TableView(TABLE, store.at(1))


def read(stream) -> pa.Table:
    return pa.RecordBatchReader.from_stream(stream).read_all()


def test_column_that_the_table_lacks_is_null(tmp_path):
    rows = read(old_view(tmp_path).stream())
    assert set(rows.schema.names) == set(TABLE.schema.names)
    assert rows["ttl_ms"].to_pylist() == [None, None]


def test_stream_has_only_the_wanted_rows(tmp_path):
    rows = read(old_view(tmp_path).of(keys=["b"]).stream(["ttl_ms", "value"]))
    assert rows.to_pylist() == [{"value": "b", "ttl_ms": None}]
