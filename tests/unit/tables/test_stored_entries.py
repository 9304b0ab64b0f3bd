"""State through real Delta tables and back (deltalake, no JVM)."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import TimeDomain
from headrace.commit.job_tables import JobTables
from headrace.execution.element import Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.timers import Timer, TimerChange, timer_entry
from headrace.storage.storage import Storage
from headrace.tables.changelog import Changelog, parts, stage_state
from headrace.tables.entries import rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from headrace.testing._memory_disk import forget_disk
from tests.unit.support.micro_batches import GROUPS, element_of
from tests.unit.support.steps import Step, steps_operator

STEPS = [Step(key, 3 * n, n, remind=40, forget=n == 4) for n, key in enumerate(["a", "b", "", "dé", "b", "a", "c"])]


@pytest.fixture
def tables(tmp_path):
    return JobTables(JobFolder(str(tmp_path)), "run", "attempt")


def commit(tables, folder, versions, checkpoint, process):
    rows = Changelog("steps", checkpoint, GROUPS)
    changed = {
        KEYED_STATE: [rows.values(store, list(store.changes())) for store in process.stores],
        TIMERS: [rows.timers(process.timers.changes())],
    }
    files = {
        table: [Storage(f"{folder}/{table}").stage(f"{checkpoint}-{n}.parquet", part) for n, part in enumerate(parts)]
        for table, parts in changed.items()
    }
    return tables.prepare(files, versions)


def write(process, backend):
    for store in process.stores:
        backend.write_batch(store.writes(list(store.changes())))
    backend.write_batch(process.timers.writes(process.timers.changes()))


def test_rebuilt_state_is_the_committed_state(backends, tables, tmp_path):
    with backends.lent() as new:
        backend, versions, watermark = new(), tables.create(), None
        for checkpoint, part in enumerate((STEPS[:3], STEPS[3:], [])):
            elements = [element_of(record_order(step.at), step.at, step) for step in part]
            last = 5 * (checkpoint + 1)
            process = KeyedProcess(steps_operator(), backend, records=(Step,), watermark=watermark, last_watermark=last)
            process.run([elements], [Watermark(record_order(100 * checkpoint + 50), last)])
            versions, watermark = commit(tables, tmp_path, versions, checkpoint, process), last
            write(process, backend)
        rebuilt = new()
        for groups in (KeyGroupRange(0, 6), KeyGroupRange(7, GROUPS - 1)):
            rebuild(rebuilt, JobFolder(str(tmp_path)).views(versions), "steps", groups)
        assert dict(rebuilt.items()) == dict(backend.items())
        assert len(dict(rebuilt.items())) > len(STEPS)


def test_task_loads_only_its_operator_and_groups(backends, tables, tmp_path):
    with backends.lent() as new:
        backend = new()
        process = KeyedProcess(steps_operator(), backend, records=(Step,), watermark=None, last_watermark=None)
        process.run([[element_of(record_order(step.at), step.at, step) for step in STEPS]], [])
        versions = commit(tables, tmp_path, tables.create(), 1, process)
        write(process, backend)
        owned, foreign = new(), new()
        group = key_group(b'"b"', GROUPS)
        rebuild(owned, JobFolder(str(tmp_path)).views(versions), "steps", KeyGroupRange(group, group))
        rebuild(foreign, JobFolder(str(tmp_path)).views(versions), "other", KeyGroupRange(0, GROUPS - 1))
        result, everything = dict(owned.items()), dict(backend.items())
        mine = {encode(step.key) for step in STEPS if key_group(encode(step.key), GROUPS) == group}
        assert result == {entry: value for entry, value in everything.items() if entry.endswith(tuple(mine))}
        assert 0 < len(result) < len(everything)
        assert list(foreign.items()) == []


def test_timers_of_domains_have_own_files(tables, tmp_path):
    event, processing = TimeDomain
    changes = [Timer(5, b'"a"'), Timer(5, b'"a"', processing), Timer(-7, b'"b"', processing)]
    removed = Timer(9, b'"b"', event)
    versions = tables.create()
    for number, registered in enumerate((True, False), 1):
        rows = Changelog("steps", number, GROUPS).timers(
            [TimerChange(timer, registered) for timer in ([*changes, removed] if registered else [removed])]
        )
        staged = [
            stage_state(JobFolder(str(tmp_path)), TIMERS, f"{number}-{n}.parquet", part)
            for n, part in enumerate(parts(TIMERS, rows))
        ]
        assert {file.minimum["domain"] for file in staged} == {file.maximum["domain"] for file in staged}
        versions = tables.prepare({TIMERS: staged}, versions)
    rebuilt = HashMapBackend()
    rebuild(rebuilt, JobFolder(str(tmp_path)).views(versions), "steps", KeyGroupRange(0, GROUPS - 1))
    assert dict(rebuilt.items()).keys() == {timer_entry(timer) for timer in changes}
    live = JobFolder(str(tmp_path)).views(versions)(TIMERS).live()
    assert sorted(live["domain"].to_pylist()) == [event, processing, processing]


changes = st.tuples(st.integers(0, GROUPS - 1), st.sampled_from("ab"), st.none() | st.integers(0, 9))


@given(batches=st.lists(st.lists(changes, max_size=8), max_size=3), range_bytes=st.integers(1, 5_000))
def test_rebuilt_state_is_the_same_for_any_split(batches, range_bytes):
    disk = uuid.uuid4().hex
    tables = JobTables(JobFolder(f"memory://{disk}"), "run", "attempt")
    versions, schema = tables.create(), STATE_TABLES[KEYED_STATE].schema
    for checkpoint, batch in enumerate(batches):
        rows = [value_row(checkpoint, *change) for change in {change[:2]: change for change in batch}.values()]
        file = Storage(f"memory://{disk}/{KEYED_STATE}").stage(
            f"{checkpoint}.parquet", pa.Table.from_pylist(rows, schema)
        )
        versions = tables.prepare({KEYED_STATE: [file]}, versions)
    view_of = JobFolder(f"memory://{disk}").views(versions)
    assert rebuilt_in_ranges(view_of, range_bytes) == rebuilt_in_ranges(view_of, 1 << 40)
    forget_disk(disk)


def value_row(checkpoint, group, name, value):
    entry = {"operator": "op", "key_group": group, "key": f'"{name}{group}"', "state": "s", "checkpoint_id": checkpoint}
    changed = {"value": None if value is None else str(value), "deleted": value is None}
    return dict.fromkeys(STATE_TABLES[KEYED_STATE].schema.names) | entry | changed


def rebuilt_in_ranges(view_of, range_bytes):
    backend = HashMapBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.tables.view.RANGE_BYTES", range_bytes)
        rows = rebuild(backend, view_of, "op", KeyGroupRange(2, GROUPS - 2))
    return rows, dict(backend.items())
