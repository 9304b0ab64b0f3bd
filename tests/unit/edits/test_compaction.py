"""Compaction: one row per live entry, committed as a separate checkpoint (in memory). `test_expiry` tests which entries TTLs drop."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest

from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.log.checkpoint import Kind
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE, QUARANTINE, STATE_TABLES, TIMERS
from tests.unit.support.crashes import Killed
from tests.unit.support.fuzzing import FACTOR
from tests.unit.support.memory_job import commit_batch, killed_at, state_row


@pytest.fixture
def job(memory_job):
    """A customer was overwritten once, and another one is deleted."""
    memory_job.run("ann", "bob", "ann")
    with memory_job.open() as opened:
        opened.commit(Kind.BATCH, files={KEYED_STATE: [state_row(opened, "bob", deleted=True)]})
    return memory_job


def rows(job, table):
    view = JobFolder(job.config.job_folder).view(table, job.last.versions[table])
    return view.changes().num_rows, len(view.files())


def test_one_row_remains_per_live_entry(job):
    before = job.content()
    assert (rows(job, KEYED_STATE), rows(job, TIMERS)) == ((4, 4), (3, 3))
    checkpoint = compact(job.config, "nightly")
    assert (rows(job, KEYED_STATE), rows(job, TIMERS)) == ((1, 1), (2, 1))
    assert job.content() == before
    assert checkpoint.metrics == {"rows_before": 7, "rows_after": 3, "expired": 0}
    assert (checkpoint.kind, checkpoint.run_id, checkpoint.parent_id) == (Kind.COMPACTION, "nightly", 4)


@pytest.mark.parametrize(("range_bytes", "files"), [(1, 4), (30_000, 2), (1 << 40, 1)])
def test_compaction_keeps_the_state_for_any_split(memory_job, monkeypatch, range_bytes, files):
    for groups in ((0, 40), (40, 80, 120), (0, 120)):
        with memory_job.open() as opened:
            opened.commit(Kind.BATCH, files={KEYED_STATE: [opened.stage(KEYED_STATE, "s", counts(opened, groups))]})
    before = memory_job.content()
    monkeypatch.setattr("headrace.tables.view.RANGE_BYTES", range_bytes)
    compact(memory_job.config, "nightly")
    assert memory_job.content() == before
    assert rows(memory_job, KEYED_STATE) == (4, files)


def counts(job, groups):
    """Return the number of the next checkpoint as the state of a key in each key group."""
    entry = {"operator": "op", "state": "n", "value": str(job.next_id), "checkpoint_id": job.next_id, "deleted": False}
    table = STATE_TABLES[KEYED_STATE].schema
    keys = ({"key_group": group, "key": f'"{group}"'} for group in groups)
    return pa.Table.from_pylist([dict.fromkeys(table.names) | entry | key for key in keys], table)


def test_untouched_tables_keep_their_versions(job):
    before = job.last.versions
    after = compact(job.config, "nightly").versions
    assert {name for name in STATE_TABLES if after[name] != before[name]} == {KEYED_STATE, TIMERS}
    again = compact(job.config, "again")
    assert (again.versions, again.metrics["rows_before"]) == (after, 0)


def test_quarantine_is_never_rewritten(job):
    table = STATE_TABLES[QUARANTINE]
    entry = {
        "operator": "s",
        "key_group": 0,
        "key": '"k"',
        "source": "s",
        "position": "1",
        "error": "bad",
        "origin": "record",
    }
    for _ in range(2):
        with job.open() as opened:
            row = {**dict.fromkeys(table.schema.names), **entry, "checkpoint_id": opened.next_id, "deleted": False}
            staged = opened.stage(QUARANTINE, "q", pa.Table.from_pylist([row], table.schema))
            opened.commit(Kind.BATCH, files={QUARANTINE: [staged]})
    compact(job.config, "nightly")
    assert rows(job, QUARANTINE) == (2, 2)


def test_compaction_waits_for_enough_runs(memory_job):
    memory_job.run("ann", "bob")
    assert compact(memory_job.config, "nightly", every=2) is None
    with memory_job.open("another run") as opened:
        commit_batch(opened, "cyd")
    savepoint(memory_job.config, "no_run", "", "somebody")
    assert compact(memory_job.config, "nightly", every=3) is None
    assert compact(memory_job.config, "nightly", every=2) is not None
    assert compact(memory_job.config, "nightly", every=1) is None


def test_compaction_rewrites_the_log(job):
    log = Storage(job.config.job_folder).table(CHECKPOINTS)
    before = job.log.checkpoints
    compact(job.config, "nightly")
    assert len(log.latest().files()) <= 2  # and the end of its own lease
    assert job.log.checkpoints[:-1] == before
    job.run("cyd")
    assert job.last.checkpoint_id == 6


def test_older_checkpoints_stay_readable(job):
    before = job.entries()
    compact(job.config, "nightly")
    assert job.entries(job.log.get(4)) == before
    restore(job.config, 2, "", "somebody")
    assert len(job.entries()[KEYED_STATE]) == 2


def test_killed_compaction_is_undone(job):
    before = job.content()
    with killed_at(job.disk, "compaction.prepared"):
        compact(job.config, "nightly")
    assert (job.last.checkpoint_id, job.version(KEYED_STATE)) == (4, 5)
    assert job.content() == before
    assert compact(job.config, "nightly").versions[KEYED_STATE] == 7
    assert job.content() == before


def files_of_log(job):
    return len(Storage(job.config.job_folder).table(CHECKPOINTS).latest().files())


@pytest.mark.slow
def test_log_of_many_runs_has_few_files(memory_job):
    """Each commit adds a file, and each run reads all of them first."""
    most = 0
    for number in range(30):
        memory_job.run(f"customer {number}")
        most = max(most, files_of_log(memory_job))
    assert most < 25
    assert [checkpoint.checkpoint_id for checkpoint in memory_job.log.checkpoints] == list(range(31))


@pytest.mark.slow
@pytest.mark.drawn
def test_run_that_compacts_the_log_may_die_anywhere(memory_job):
    """The log keeps all checkpoints, and the next run goes on."""
    memory_job.run("ann")
    while files_of_log(memory_job) < 20:
        memory_job.run("ann")
    before, known = memory_job.copy(), memory_job.log.checkpoints
    steps = []
    with memory_job.disk.failing(lambda step, path: steps.append(f"{step} {path}")):
        memory_job.run("bob")
    assert any("compaction-" in step for step in steps)
    for number, step in [*enumerate(steps)][:: 1 if FACTOR > 1 else 4]:
        before.bring_back()
        with dead_from_step(memory_job.disk, number):
            memory_job.run("bob")
        assert memory_job.log.checkpoints[: len(known)] == known, step
        memory_job.run("cyd")
        assert memory_job.last.kind is Kind.BATCH, step


@contextmanager
def dead_from_step(disk, number):
    """Kill the process of a block at a step of its disk, counted from 0."""
    steps = itertools.count()

    def arrive(_step, _path):
        if next(steps) >= number:
            raise Killed

    with disk.failing(arrive), suppress(Killed):
        yield
