"""A job of an earlier version continues: its tables are migrated to the present format step by step (deltalake, no JVM)."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace import faults
from headrace.commit import format_migrations
from headrace.commit import log as log_module
from headrace.commit.checkpoint import Kind
from headrace.commit.format_migrations import MIGRATIONS
from headrace.commit.job_tables import JobTables
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import open_job
from headrace.commit.restore import restore_in
from headrace.errors import ConfigError
from headrace.readers import keyed_state
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.sql_views import ask_sql
from headrace.readers.state_list import list_states
from headrace.state.backend import HashMapBackend
from headrace.state.entry import value_entry
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.state_cache import StateCache
from headrace.state.ttl_history import TtlHistory
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.schemas import CHECKPOINTS_SCHEMA, FORMAT_VERSION, KEYED_STATE, STATE_TABLES, TIMERS
from headrace.tables.schemas import MATERIALIZER_HISTORY as HISTORY
from headrace.tables.stored_entries import rebuild
from headrace.tables.stores import state_views, table_store
from tests.jobs.home import PROJECT, Home
from tests.unit.support.committed_state import Memory

NEW = {"ttl_ms", "state_ttl", "state_schemas", "schemas_of", "timers_fired", "input"}
"""Columns that format 1 does not have."""


class Killed(BaseException):
    """The process is gone."""


def without(schema, names):
    return pa.schema([field for field in schema if field.name not in names])


def entry(state, key, value, checkpoint):
    group = key_group(key.encode(), 128)
    return {
        "operator": "totals",
        "key_group": group,
        "key": key,
        "state": state,
        "value": value,
        "checkpoint_id": checkpoint,
        "deleted": value is None,
    }


class OldJob:
    """A job in format 1: two micro-batches, and a restore to the first."""

    def __init__(self, home):
        self.config = home.config()
        self.folder = self.config.job_folder
        self.versions = dict.fromkeys(STATE_TABLES, 0)
        for name, table in STATE_TABLES.items():
            DeltaTable.create(f"{self.folder}/{name}", schema=without(table.schema, NEW))
        DeltaTable.create(f"{self.folder}/checkpoints", schema=without(CHECKPOINTS_SCHEMA, NEW))
        self.rows = 0
        self.commit(Kind.INITIAL)

    def add(self, *rows):
        schema = without(STATE_TABLES[KEYED_STATE].schema, NEW)
        filled = [{**dict.fromkeys(schema.names), **row} for row in rows]
        write_deltalake(f"{self.folder}/{KEYED_STATE}", pa.Table.from_pylist(filled, schema), mode="append")
        self.versions[KEYED_STATE] += 1

    def commit(self, kind, **fields):
        row = {name: value for name, value in self.row(kind, **fields).items() if name not in NEW}
        table = pa.table(
            {name: pa.array([row[name]], CHECKPOINTS_SCHEMA.field(name).type) for name in row},
            schema=without(CHECKPOINTS_SCHEMA, NEW),
        )
        self.rows += 1
        write_deltalake(f"{self.folder}/checkpoints", table, mode="append")

    def row(self, kind, **fields):
        known = {
            "checkpoint_id": self.rows,
            "parent_id": self.rows - 1 if self.rows else None,
            "kind": kind.value,
            "run_id": "old",
            "attempt_id": "old",
            "max_parallelism": 128,
            "versions": msgspec.json.encode(self.versions).decode(),
            "committed_at": self.rows * 1_000_000,
            "log_version": self.rows + 1,
            "format_version": 1,
        }
        return {**dict.fromkeys(CHECKPOINTS_SCHEMA.names), **known, **fields}


@pytest.fixture
def job(tmp_path):
    result = OldJob(Home(tmp_path))
    result.add(entry("n", '"a"', "1", 1), entry("n", '"b"', "2", 1))
    result.commit(Kind.BATCH)
    result.add(entry("n", '"a"', "3", 2), entry("n", '"b"', None, 2))
    result.commit(Kind.BATCH)
    return result


def columns(job, version):
    return set(table_store(f"{job.folder}/{KEYED_STATE}").at(version).schema.names)


def entries(job, versions):
    backend = HashMapBackend()
    rebuild(backend, state_views(job.folder, versions), "totals", KeyGroupRange(0, 127))
    return {key: value[-1:] for key, value in backend.items()}


def looked_up(job, versions):
    """Return the entries like `entries`, through the backend that reads the tables' files."""
    groups = KeyGroupRange(0, 127)
    cache = StateCache(Memory(), 1 << 20)
    backend = DeltaBackend(job.folder, versions, "totals", groups, cache, max_parallelism=128)
    asked = [value_entry("n", key) for key in (b'"a"', b'"b"')]
    result = dict(zip(asked, backend.get_many(asked), strict=True))
    return {key: value[-1:] for key, value in result.items() if value is not None}


def kinds(config):
    return [(c.kind, c.format_version) for c in CheckpointLog(config.job_folder).checkpoints]


def test_steps_are_numbered_without_a_gap():
    assert [step.number for step in MIGRATIONS] == [*range(2, FORMAT_VERSION + 1)]


def test_opening_job_migrates_format_once(job):
    events = []
    for _ in range(2):
        with open_job(job.config, "new", notify=lambda kind, detail: events.append((kind, detail))) as opened:
            assert opened.last.format_version == FORMAT_VERSION
            assert "ttl_ms" in columns(job, opened.versions[KEYED_STATE])
            assert set(entries(job, opened.versions).values()) == {b"3"}
    assert kinds(job.config) == [
        (Kind.INITIAL, 1),
        (Kind.BATCH, 1),
        (Kind.BATCH, 1),
        (Kind.MIGRATION, 2),
        (Kind.MIGRATION, 3),
    ]
    assert events == [
        ("migrated", "checkpoint 3: format 2: keyed_state has the column ttl_ms"),
        ("migrated", "checkpoint 4: format 3: buffered_requests has the column input"),
    ]


def test_older_checkpoints_are_still_readable(job):
    with open_job(job.config, "new") as opened:
        first = opened.checkpoint(1)
        assert "ttl_ms" not in columns(job, first.versions[KEYED_STATE])
        result = state_views(job.folder, first.versions)(KEYED_STATE).changes()
        assert result["ttl_ms"].null_count == result.num_rows == 2
        assert sorted(entries(job, first.versions).values()) == [b"1", b"2"]
        assert looked_up(job, first.versions) == entries(job, first.versions)
        assert looked_up(job, opened.versions) == entries(job, opened.versions) != {}
        assert (first.state_ttl, first.timers_fired, first.schemas_of) == (TtlHistory(), {}, None)


def read_with_everything(config, at):
    job = JobAtCheckpoint(config, at)
    formats = {
        (row["state"], row["value"], row["ttl_ms"], row["checkpoint_id"]) for row in keyed_state.get(job, "a").dicts()
    }
    scanned = {row["value"] for row in keyed_state.scan(job, operator="totals").dicts()}
    assert scanned == {value for state, value, *_ in formats if state == "n"} | {
        row["value"] for row in keyed_state.get(job, "b").dicts()
    }
    assert {row["value"] for row in ask_sql(job, "SELECT value, ttl_ms FROM keyed_state").dicts()} == scanned
    assert {row["entries"] for row in list_states(job).dicts() if row["state"] == "n"} == {len(scanned)}
    return formats


def test_commands_read_old_and_migrated_tables_alike(tmp_path):
    job = OldJob(Home(tmp_path))
    job.add(entry("n", '"a"', "1", 1), entry("n", '"b"', "2", 1))
    row = {"operator": "board", "key_group": key_group(b'"a"', 128), "key": '"a"', "sequence_number": 4, "row": "{}"}
    rows = [{**dict.fromkeys(STATE_TABLES[HISTORY].schema.names), **row, "checkpoint_id": 1, "deleted": False}]
    write_deltalake(f"{job.folder}/{HISTORY}", pa.Table.from_pylist(rows, STATE_TABLES[HISTORY].schema), mode="append")
    job.versions[HISTORY] += 1
    job.commit(Kind.BATCH)
    before = read_with_everything(job.config, 1)
    with open_job(job.config, "new"):
        pass
    after = {("n", "1", None, 1), ("history", "{}", None, 1)}
    assert read_with_everything(job.config, 1) == read_with_everything(job.config, None) == before == after


def test_restore_to_older_format_migrates_again(job):
    with open_job(job.config, "new") as opened:
        restored = restore_in(opened, 1, "why not")
        assert restored.kind is Kind.RESTORE
        assert "ttl_ms" in columns(job, opened.versions[KEYED_STATE])
        assert sorted(entries(job, opened.versions).values()) == [b"1", b"2"]
    steps = [(Kind.MIGRATION, step.number) for step in MIGRATIONS]
    assert kinds(job.config)[3:] == [*steps, (Kind.RESTORE, 1), *steps]


def test_restore_can_be_undone_across_the_migration(job):
    with open_job(job.config, "new") as opened:
        restore_in(opened, 1, "a mistake")
        restore_in(opened, 2 + len(MIGRATIONS), "undone")
        assert set(entries(job, opened.versions).values()) == {b"3"}
    assert kinds(job.config)[-1] == (Kind.RESTORE, FORMAT_VERSION)


PLACES = ["migration.before", "migration.prepared", "commit.before", "commit.after", "publish.after"]


@pytest.mark.parametrize("place", PLACES)
def test_crash_leaves_old_or_new_format(job, monkeypatch, place):
    def die(reached):
        if reached == place:
            raise Killed

    monkeypatch.setattr(faults, "reached", die)
    with pytest.raises(Killed), open_job(job.config, "killed"):
        pass
    monkeypatch.undo()
    log = CheckpointLog(job.folder)
    assert log.last.format_version == (2 if place in {"commit.after", "publish.after"} else 1)
    assert set(entries(job, log.last.versions).values()) == {b"3"}
    with open_job(job.config, "next", force=True) as opened:
        assert opened.last.format_version == FORMAT_VERSION
        assert "ttl_ms" in columns(job, opened.versions[KEYED_STATE])
        assert set(entries(job, opened.versions).values()) == {b"3"}
    assert [kind for kind, _ in kinds(job.config)].count(Kind.MIGRATION) == len(MIGRATIONS)


OPENING = """
import sys
from pathlib import Path
from headrace.commit.protocol import open_job
from headrace.config import load_job

with open_job(load_job("purchases", Path(sys.argv[1])), "killed"):
    pass
"""


@pytest.mark.parametrize(
    ("place", "format_then"), [("migration.prepared", 1), ("commit.before", 1), ("commit.after", 2)]
)
def test_killed_process_leaves_old_or_new_format(job, tmp_path, place, format_then):
    environment = {**os.environ, "HEADRACE_KILL_AT": place, "PYTHONPATH": str(PROJECT)}
    line = [sys.executable, "-c", OPENING, str(tmp_path)]
    killed = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert CheckpointLog(job.folder).last.format_version == format_then
    with open_job(job.config, "next") as opened:
        assert opened.last.format_version == FORMAT_VERSION
        assert "ttl_ms" in columns(job, opened.versions[KEYED_STATE])
        assert set(entries(job, opened.versions).values()) == {b"3"}
    assert [kind for kind, _ in kinds(job.config)].count(Kind.MIGRATION) == len(MIGRATIONS)


def test_crash_between_steps_repeats_no_step(job, monkeypatch):
    taken = []

    def step(number):
        def prepare(tables, versions):
            taken.append(number)
            new = [pa.field(f"column_{number}", pa.int64())]
            return {**versions, TIMERS: tables.add_columns(TIMERS, new, versions[TIMERS])}

        return format_migrations.FormatMigration(number, f"timers have column_{number}", prepare)

    monkeypatch.setattr(format_migrations, "MIGRATIONS", (MIGRATIONS[0], step(3), step(4)))
    monkeypatch.setattr(log_module, "FORMAT_VERSION", 4)
    visits = itertools.count()

    def die(place):
        if place == "migration.prepared" and next(visits) == 2:
            raise Killed

    monkeypatch.setattr(faults, "reached", die)
    with pytest.raises(Killed), open_job(job.config, "killed"):
        pass
    assert kinds(job.config)[-1] == (Kind.MIGRATION, 3)
    with open_job(job.config, "next", force=True) as opened:
        assert opened.last.format_version == 4
    assert taken == [3, 4, 4]
    assert [number for kind, number in kinds(job.config) if kind is Kind.MIGRATION] == [2, 3, 4]


def test_existing_column_is_not_added_again(job):
    with open_job(job.config, "new") as opened:
        field = STATE_TABLES[KEYED_STATE].schema.field("ttl_ms")
        parent = opened.versions[KEYED_STATE]
        tables = JobTables(job.folder, "new", "attempt")
        assert tables.add_columns(KEYED_STATE, [field], parent) == parent


def test_new_job_begins_in_the_present_format(tmp_path):
    config = Home(tmp_path).config()
    with open_job(config, "first", create=True) as opened:
        assert opened.last.format_version == FORMAT_VERSION
    assert [kind for kind, _ in kinds(config)] == [Kind.INITIAL]


@pytest.mark.parametrize("kind", [Kind.BATCH.value, "a kind of the future"])
def test_every_command_refuses_a_newer_format(job, kind):
    with open_job(job.config, "new"):
        pass
    log = CheckpointLog(job.folder)
    row = {**msgspec.to_builtins(log.last), "kind": kind, "checkpoint_id": 9, "format_version": FORMAT_VERSION + 1}
    log._append([row], "a test")
    with pytest.raises(
        ConfigError, match=rf"in format {FORMAT_VERSION + 1}; this program knows up to {FORMAT_VERSION}"
    ):
        CheckpointLog(job.folder)
    with pytest.raises(ConfigError, match="Update Headrace"), open_job(job.config, "old"):
        pass
