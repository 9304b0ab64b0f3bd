"""One contract for all tables: in memory, in Delta's format on disk, and in Delta's format on an object store."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import StorageError
from headrace.storage.predicate import BeginsWith, BetweenTimes, Condition, NoneOf, OneOf, Within
from headrace.storage.storage import Storage
from headrace.storage.table import (
    OWNER,
    ROW_KIND,
    Claim,
    CommitInfo,
    FileTrace,
    TableMissingError,
    Transaction,
    VersionTakenError,
)
from headrace.tables.schemas import ARROW_TIMESTAMP
from headrace.testing._memory_disk import disk_and_path, forget_disk
from tests.unit.support.s3 import BUCKET

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("key_group", pa.int32()), pa.field("at", ARROW_TIMESTAMP)])
NOTE = pa.field("note", pa.string())


CLAIM = Claim(7, "orders", "board")


class Table:
    """A table under test: its store, and rows as tuples."""

    def __init__(self, uri, options=None):
        self.uri, self.place = uri, Storage(uri, options)
        self.store = self.place.table()
        self.names = itertools.count()

    def stage(self, *rows):
        return self.place.stage(f"staged-{next(self.names)}.parquet", arrow(*rows))

    def append(self, parent, *rows, info=CommitInfo()):  # noqa: B008 - frozen
        return self.store.append(parent, SCHEMA, [self.stage(*rows)], info)

    def merge(self, parent, *changes, info=CommitInfo()):  # noqa: B008 - frozen
        kinds = pa.array([kind for kind, *_ in changes])
        rows = arrow(*(row for _, *row in changes)).append_column(ROW_KIND, kinds)
        return self.store.merge(parent, rows, ["key"], info)

    def rows(self, version=None, schema=SCHEMA, **options):
        snapshot = self.store.latest() if version is None else self.store.at(version)
        table = snapshot.read(schema, **options)
        assert table.schema == pa.schema([schema.field(name) for name in options.get("columns") or schema.names])
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)

    def keys(self, version=None, **options):
        return [key for (key,) in self.rows(version, columns=["key"], **options)]

    @property
    def version(self):
        return self.store.latest().version


def arrow(*rows):
    names = SCHEMA.names
    filled = [dict(zip(names, (*row, *[None] * (len(names) - len(row))), strict=True)) for row in rows]
    times = (
        pa.array([row.pop("at") for row in filled], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(ARROW_TIMESTAMP)
    )
    return pa.Table.from_pylist(filled, SCHEMA.remove(2)).append_column(SCHEMA.field("at"), times)


@pytest.fixture(params=["memory", "disk", "object store"])
def missing(request, tmp_path):
    """A place without a table."""
    if request.param == "memory":
        yield Table(f"memory://{tmp_path.name}/table")
        forget_disk(tmp_path.name)
    elif request.param == "disk":
        yield Table(f"{tmp_path}/table")
    else:
        yield Table(f"s3://{BUCKET}/{tmp_path.name}/table", request.getfixturevalue("storage"))


@pytest.fixture
def table(missing):
    """An empty table."""
    missing.store.create(SCHEMA)
    return missing


def test_create_leaves_a_table_alone(table):
    assert (table.version, table.store.latest().schema, table.rows()) == (0, SCHEMA, [])
    table.append(0, ("a",))
    table.store.create(SCHEMA)
    assert (table.version, table.keys()) == (1, ["a"])


def test_removed_table_leaves_nothing(table):
    table.append(0, ("a",))
    table.place.remove_folder()
    with pytest.raises(TableMissingError):
        table.store.latest()
    table.store.create(SCHEMA)
    assert (table.version, table.rows()) == (0, [])


def test_missing_table_has_its_own_error(missing):
    calls = [
        missing.store.latest,
        lambda: missing.store.at(0),
        lambda: missing.append(0, ("a",)),
        lambda: missing.store.append_rows(0, arrow(("a",))),
        lambda: missing.store.restore(1, 0),
        lambda: missing.merge(0, ("+I", "a")),
    ]
    for call in calls:
        with pytest.raises(TableMissingError):
            call()


def test_missing_versions_are_refused(table):
    with pytest.raises(StorageError):
        table.store.at(1)


def test_appended_files_become_rows(table):
    assert table.append(0, ("a", 1, 10)) == 1
    assert table.store.append(1, SCHEMA, []) == 2
    assert table.store.append(2, SCHEMA, [table.stage(("b",)), table.stage(("c",))]) == 3
    assert table.keys() == ["a", "b", "c"]
    assert [table.keys(version) for version in range(4)] == [[], ["a"], ["a"], ["a", "b", "c"]]


COMMITS = {
    "append": lambda table, parent: table.append(parent, ("x",)),
    "append_rows": lambda table, parent: table.store.append_rows(parent, arrow(("x",))),
    "replace": lambda table, parent: table.store.replace(parent, SCHEMA, [table.stage(("x",))]),
    "add_columns": lambda table, parent: table.store.add_columns(parent, [NOTE]),
    "restore": lambda table, parent: table.store.restore(parent, parent - 1),
    "merge": lambda table, parent: table.merge(parent, ("+I", "x")),
}


@pytest.mark.parametrize("commit", COMMITS.values(), ids=COMMITS)
def test_commits_land_after_their_parent_or_fail(table, commit):
    table.append(0, ("a",))
    table.append(1, ("b",))
    with pytest.raises(VersionTakenError):
        commit(table, 1)
    assert (table.version, table.keys()) == (2, ["a", "b"])
    assert commit(table, 2) == table.version == 3


def test_appended_rows_bring_their_columns(table):
    table.append(0, ("a",))
    rows = arrow(("b",)).append_column(NOTE, pa.array(["new"]))
    assert table.store.append_rows(1, rows) == 2
    assert table.store.append_rows(2, arrow(("c",))) == 3
    assert table.store.latest().schema == SCHEMA.append(NOTE)
    noted = table.rows(schema=SCHEMA.append(NOTE), columns=["key", "note"])
    assert noted == [("a", None), ("b", "new"), ("c", None)]
    assert table.store.at(1).schema == SCHEMA


def test_replace_leaves_only_the_new_files(table):
    table.append(0, ("a",))
    assert table.store.replace(1, SCHEMA, [table.stage(("b",))]) == 2
    assert table.store.replace(2, SCHEMA, []) == 3
    assert [table.keys(version) for version in (1, 2, 3)] == [["a"], ["b"], []]


def test_added_columns_are_null_in_old_rows(table):
    table.append(0, ("a",))
    assert table.store.add_columns(1, [NOTE]) == 2
    assert table.store.latest().schema == SCHEMA.append(NOTE)
    assert table.rows(schema=SCHEMA.append(NOTE), columns=["key", "note"]) == [("a", None)]


def test_columns_of_newer_programs_are_null(table):
    table.append(0, ("a",))
    assert table.rows(schema=SCHEMA.append(NOTE)) == [("a", None, None, None)]
    assert table.rows(schema=SCHEMA.append(NOTE), columns=["note"]) == [(None,)]


def test_restore_brings_old_content_back(table):
    table.append(0, ("a",))
    table.append(1, ("b",))
    assert table.store.restore(2, 1) == 3
    assert table.keys() == ["a"]
    assert table.store.restore(3, 2) == 4
    assert table.keys() == ["a", "b"]


def test_restore_brings_the_old_schema_back(table):
    table.append(0, ("a",))
    table.store.add_columns(1, [NOTE])
    table.store.restore(2, 1)
    assert table.store.latest().schema == SCHEMA
    assert table.keys() == ["a"]


@pytest.mark.parametrize("target", [2, 3])
def test_restore_refuses_targets_not_before_the_parent(table, target):
    table.append(0, ("a",))
    table.append(1, ("b",))
    with pytest.raises(StorageError):
        table.store.restore(2, target)
    assert table.version == 2


def test_restore_needs_the_files_of_its_target(table):
    table.append(0, ("a",))
    table.store.replace(1, SCHEMA, [table.stage(("b",))])
    table.place.delete(table.store.at(1).files())
    with pytest.raises(StorageError):
        table.store.restore(2, 1)
    assert (table.version, table.keys()) == (2, ["b"])


def test_restore_keeps_transactions(table):
    table.append(0, ("a",), info=CommitInfo(transaction=Transaction("job/sink", 7)))
    table.store.restore(1, 0)
    assert table.keys() == []
    assert table.store.latest().transaction("job/sink") == 7


def test_rewind_goes_back_and_adds_in_one_commit(table):
    table.append(0, ("a",), ("b",))
    table.append(1, ("c",))
    staged = table.stage(("d",))
    info = CommitInfo(checkpoint_id=7, transaction=Transaction("job/sink", 7))
    assert table.store.rewind(2, 1, SCHEMA, [staged], info) == 3
    latest = table.store.latest()
    assert (latest.version, latest.transaction("job/sink")) == (3, 7)
    assert latest.files() == {*table.store.at(1).files(), staged.path}
    assert table.keys() == ["a", "b", "d"]
    with pytest.raises(VersionTakenError):
        table.store.rewind(2, 1, SCHEMA, [], info)


def test_rewind_brings_replaced_files_back(table):
    first, second = table.stage(("a", 1)), table.stage(("b", 2))
    table.store.append(0, SCHEMA, [first])
    table.store.replace(1, SCHEMA, [second])
    table.store.rewind(2, 1, SCHEMA, [])
    assert table.store.latest().files() == {first.path}


def test_merge_inserts_updates_and_deletes(table):
    table.append(0, ("a", 1), ("b", 1), ("c", 1))
    assert table.merge(1, ("+U", "a", 2), ("-D", "b"), ("+I", "d", 2), ("-D", "e")) == 2
    assert table.rows(columns=["key", "key_group"]) == [("a", 2), ("c", 1), ("d", 2)]


def test_merge_never_matches_a_null_key(table):
    table.append(0, (None, 1))
    assert table.merge(1, ("+U", None, 2), ("-D", None)) == 2
    assert table.rows(columns=["key", "key_group"]) == [(None, 1), (None, 2)]


def test_merge_without_effect_commits_nothing(table):
    table.append(0, ("a",))
    publication = CommitInfo(transaction=Transaction("job/sink", 7))
    assert table.merge(1, ("-D", "b"), info=publication) == 1
    table.append(1, ("c",))
    assert table.merge(1, ("-D", "b"), info=publication) == 1
    assert table.version == 2
    assert table.store.latest().transaction("job/sink") is None


def test_transactions_are_kept_by_application(table):
    table.append(0, ("a",), info=CommitInfo(transaction=Transaction("job/one", 3)))
    table.append(1, ("b",), info=CommitInfo(transaction=Transaction("job/other", 9)))
    table.merge(2, ("+I", "c"), info=CommitInfo(transaction=Transaction("job/one", 4)))
    latest = table.store.latest()
    numbers = [latest.transaction(app) for app in ("job/one", "job/other", "job/third")]
    assert numbers == [4, 9, None]
    assert table.store.at(1).transaction("job/one") == 3


def test_commits_carry_two_transactions(table):
    table.append(
        0, ("a",), info=CommitInfo(transaction=Transaction("job/sink", 7), incarnation=Transaction("job/life", 1 << 59))
    )
    table.append(
        1, ("b",), info=CommitInfo(transaction=Transaction("job/sink", 8), incarnation=Transaction("job/life", 5))
    )
    table.store.restore(2, 0)
    latest = table.store.latest()
    assert (latest.transaction("job/sink"), latest.transaction("job/life")) == (8, 5)
    assert table.store.at(1).transaction("job/life") == 1 << 59


def test_history_has_writer_and_checkpoint(table):
    writer = CommitInfo(run_id="nightly", attempt_id="7f")
    sink = CommitInfo(checkpoint_id=5, transaction=Transaction("job/sink", 5))
    table.append(0, ("a",), info=writer)
    table.store.append_rows(1, arrow(("b",)), sink)
    table.merge(2, ("-D", "a"), info=CommitInfo(checkpoint_id=6))
    table.store.restore(3, 1, writer)
    table.store.add_columns(4, [NOTE], writer)
    published = [CommitInfo(checkpoint_id=6), CommitInfo(checkpoint_id=5)]
    assert [commit.version for commit in table.store.latest().history()] == [5, 4, 3, 2, 1, 0]
    assert [commit.info for commit in table.store.latest().history()] == [
        *(writer, writer, *published, writer),
        CommitInfo(),
    ]
    assert [commit.keeps_rows for commit in table.store.latest().history()] == [True, *(False for _ in range(4)), False]
    assert [(commit.version, commit.info) for commit in table.store.latest().history(1)] == [(5, writer)]


def test_history_ends_at_the_version(table):
    empty = table.store.latest()
    for version, name in enumerate(("one", "two", "three")):
        table.append(version, (name,), info=CommitInfo(run_id=name))
    assert [(commit.version, commit.info.run_id) for commit in table.store.at(2).history()] == [
        (2, "two"),
        (1, "one"),
        (0, None),
    ]
    assert [commit.version for commit in table.store.at(1).history(1)] == [1]
    assert [commit.info for commit in empty.history()] == [CommitInfo()]


def test_files_are_those_of_the_version(table):
    staged = [table.stage(("a", 1)), table.stage(("b", 5), ("c", 9))]
    table.store.append(0, SCHEMA, staged)
    table.store.replace(1, SCHEMA, staged[:1])
    assert table.store.at(1).files() == {file.path for file in staged}
    assert table.store.latest().files() == {staged[0].path}
    assert table.place.files() >= table.store.at(1).files()


def test_trace_finds_where_files_are_named(table):
    first, second = table.stage(("a", 1)), table.stage(("b", 2))
    for number, files in enumerate([[first], [second], []]):
        table.store.append(number, SCHEMA, files)
    table.store.replace(3, SCHEMA, [second])
    table.store.restore(4, 2)
    trace, log = table.store.trace({first.path}), table.store.log_as_of(0).entries
    assert trace.versions == {1, 2, 3, 5}
    assert {log[entry] for entry in trace.entries} >= {1, 5}
    assert trace.entries <= log.keys()
    assert table.store.trace({"nowhere.parquet"}) == table.store.trace(()) == FileTrace(frozenset(), frozenset())


def test_trace_needs_no_entries_before_a_kept_version(table):
    first, second = table.stage(("a", 1)), table.stage(("b", 2))
    table.store.append(0, SCHEMA, [first])
    table.store.append(1, SCHEMA, [second])
    table.store.keep_versions({2})
    table.place.delete(table.store.log_as_of(0).unneeded(2, ()))
    table.store.append(2, SCHEMA, [])
    trace = table.store.trace({first.path})
    assert trace.versions == {2, 3}
    assert trace.entries


def test_add_actions_have_the_ranges_of_files(table):
    first, second = table.stage(("a", 1)), table.stage(("b", 5), ("c", 9))
    assert table.store.latest().add_actions().num_rows == 0
    table.store.append(0, SCHEMA, [first, second])
    columns = ["path", "min.key", "max.key", "min.key_group", "max.key_group"]
    actions = table.store.latest().add_actions().select(columns).to_pylist()
    assert sorted(tuple(action.values()) for action in actions) == [
        (first.path, "a", "a", 1, 1),
        (second.path, "b", "c", 5, 9),
    ]


CONDITIONS: dict[str, tuple[Condition, list[str | None]]] = {
    "one of": (OneOf("key", ("a", "it's", "nobody")), ["a", "it's"]),
    "one": (OneOf("key", ("it's",)), ["it's"]),
    "one of numbers": (OneOf("key_group", (1, 9)), ["a", "b"]),
    "one of nothing": (OneOf("key", ()), []),
    "none of": (NoneOf("key", ("a", "it's")), [None, "ab", "b"]),
    "none of nothing": (NoneOf("key", ()), [None, "a", "ab", "b", "it's"]),
    "within": (Within("key_group", 1, 5), ["a", "it's"]),
    "between times": (BetweenTimes("at", 10, 20), ["b"]),
    "after": (BetweenTimes("at", after=10), ["ab", "b"]),
    "until": (BetweenTimes("at", until=20), ["a", "b"]),
    "begins with": (BeginsWith("key", ("a", "it'")), ["a", "ab", "it's"]),
}


@pytest.fixture
def filled(table):
    table.append(0, ("a", 1, 10), ("it's", 5), (None, None, None))
    table.append(1, ("b", 9, 20), ("ab", None, 30))
    return table


def test_conditions_choose_rows(filled):
    for name, (condition, keys) in CONDITIONS.items():
        assert sorted(filled.keys(conditions=[condition]), key=repr) == sorted(keys, key=repr), name
        streamed = pa.RecordBatchReader.from_stream(filled.store.latest().stream(["key"], [condition])).read_all()
        assert sorted(streamed["key"].to_pylist(), key=repr) == sorted(keys, key=repr), name


def test_conditions_hold_together(filled):
    conditions = [OneOf("key", ("a", "b", "ab")), BetweenTimes("at", after=10), Within("key_group", 0, 9)]
    assert filled.keys(conditions=conditions) == ["b"]
    assert filled.rows(columns=["key_group"], conditions=conditions) == [(9,)]


def test_stream_has_all_columns_by_default(filled):
    rows = pa.RecordBatchReader.from_stream(filled.store.latest().stream()).read_all()
    assert rows.schema.names == SCHEMA.names
    assert pc.sum(rows["key_group"]).as_py() == 15


def test_lost_data_files_are_storage_errors(table):
    table.append(0, ("a",))
    snapshot = table.store.latest()
    table.place.delete(snapshot.files())
    with pytest.raises(StorageError, match="to read"):
        snapshot.read(SCHEMA)


# ----------------------------------------------------------------------------------------- disks in memory alone


class MemoryTable(Table):
    """A table under test, and its disk."""

    def __init__(self, uri):
        super().__init__(uri)
        self.disk = disk_and_path(uri)[0]


@pytest.fixture
def in_memory(tmp_path):
    table = MemoryTable(f"memory://{tmp_path.name}/table")
    table.store.create(SCHEMA)
    yield table
    forget_disk(tmp_path.name)


@contextmanager
def died_before_sync(disk):
    """Let the process of a block die before it syncs its first commit. The commit before was synced."""
    committed = []

    def fail(step, path):
        if (step, path) == ("commit", "table"):
            committed.append(path)
        if (step, path) == ("sync", "table") and committed:
            raise OSError(step)

    with disk.failing(fail), pytest.raises(StorageError, match="sync"):
        yield


def test_power_failure_loses_unsynced_commits(in_memory):
    in_memory.append(0, ("a",))
    with died_before_sync(in_memory.disk):
        in_memory.append(1, ("b",))
    Storage(in_memory.uri).delete(in_memory.store.at(1).files())
    assert in_memory.version == 2
    in_memory.disk.lose_power()
    assert (in_memory.version, in_memory.keys()) == (1, ["a"])
    assert in_memory.append(1, ("c",)) == 2


def test_power_failure_loses_an_unsynced_table(tmp_path):
    table = Table(f"memory://{tmp_path.name}/table")
    disk = disk_and_path(table.uri)[0]
    with died_before_sync(disk):
        table.store.create(SCHEMA)
    disk.lose_power()
    with pytest.raises(TableMissingError):
        table.store.latest()
    forget_disk(tmp_path.name)


def test_power_failure_loses_unsynced_files(in_memory):
    file = Storage(in_memory.uri).stage("staged.parquet", arrow(("a",)), survives=False)
    in_memory.store.append(0, SCHEMA, [file])
    in_memory.disk.lose_power()
    with pytest.raises(StorageError, match=r"staged\.parquet"):
        in_memory.keys()


def test_commit_syncs_its_parent(in_memory):
    with died_before_sync(in_memory.disk):
        in_memory.append(0, ("a",))
    in_memory.append(1, ("b",))
    in_memory.disk.lose_power()
    assert (in_memory.version, in_memory.keys()) == (2, ["a", "b"])


def test_at_most_one_commit_is_unsynced(in_memory):
    for parent in range(3):
        with died_before_sync(in_memory.disk):
            in_memory.append(parent, (f"{parent}",))
    in_memory.disk.lose_power()
    assert (in_memory.version, in_memory.keys()) == (2, ["0", "1"])


def test_commit_that_was_lost_stays_lost(in_memory):
    with died_before_sync(in_memory.disk):
        in_memory.append(0, ("lost",))
    in_memory.disk.lose_power()
    in_memory.append(0, ("a",))
    in_memory.disk.lose_power()
    assert (in_memory.version, in_memory.keys()) == (1, ["a"])


@pytest.mark.parametrize("step", ["open", "write", "commit"])
def test_fault_stops_a_commit_at_each_step(in_memory, step):
    def fail(reached, path):
        if reached == step and path.startswith("table"):
            raise OSError(reached)

    with in_memory.disk.failing(fail), pytest.raises((OSError, StorageError), match=step):
        in_memory.append(0, ("a",))
    assert (in_memory.version, in_memory.keys()) == (0, [])


def test_fault_can_leave_commit_written(in_memory):
    def overtake(step, path):
        if (step, path) == ("commit", "table"):
            in_memory.disk.fault = lambda *_: None
            in_memory.append(0, ("b",))

    in_memory.disk.fault = overtake
    with pytest.raises(VersionTakenError):
        in_memory.append(0, ("a",))
    assert in_memory.keys() == ["b"]


def test_fault_receives_its_path(in_memory):
    steps = []
    with in_memory.disk.failing(lambda *step: steps.append(step)):
        in_memory.append(0, ("a",))
        in_memory.keys()
        Storage(in_memory.uri).delete(Storage(in_memory.uri).files())
    assert list(dict.fromkeys(steps)) == [
        ("write", "table/staged-0.parquet"),
        ("sync", "table/staged-0.parquet"),
        ("open", "table"),
        ("sync", "table"),
        ("commit", "table"),
        ("open", "table/staged-0.parquet"),
        ("list", "table"),
        ("delete", "table/staged-0.parquet"),
    ]


def test_power_failure_keeps_new_table_apart(in_memory):
    in_memory.append(0, ("a",))
    Storage(in_memory.uri).remove_folder()
    in_memory.store.create(SCHEMA)
    in_memory.disk.lose_power()
    assert (in_memory.version, in_memory.rows()) == (0, [])


def test_power_failure_brings_removed_table_back(in_memory):
    in_memory.append(0, ("a",))
    Storage(in_memory.uri).remove_folder()
    in_memory.disk.lose_power()
    assert in_memory.keys() == ["a"]


def test_claim_belongs_to_the_creator_of_the_table(missing):
    missing.store.create(SCHEMA, info=CommitInfo(claim=CLAIM))
    missing.place.table().create(SCHEMA, info=CommitInfo(claim=Claim(8, "other", "board")))
    latest = missing.store.latest()
    assert (latest.version, latest.transaction(OWNER)) == (0, 7)
    assert [commit.info.claim for commit in latest.history()] == [CLAIM]


def test_claim_outlives_restores_and_may_decrease(table):
    table.append(0, ["a"], info=CommitInfo(claim=CLAIM, further=(Transaction("orders/board", 5),)))
    table.store.restore(1, 0)
    assert table.store.latest().transaction(OWNER) == 7
    taken = CommitInfo(claim=Claim(3, "other", "board", is_empty=True), further=(Transaction("orders/board", -1),))
    table.append(2, ["b"])
    table.store.replace(3, SCHEMA, [], taken)
    assert table.keys() == []
    latest = table.place.table().latest()
    assert (latest.transaction(OWNER), latest.transaction("orders/board")) == (3, -1)
    assert table.store.at(3).transaction(OWNER) == 7
