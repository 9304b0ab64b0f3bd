"""The contract of every state backend."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import AccessType, Options, Rdict

from headrace.materializer.stored_history import history_entry
from headrace.state import rocksdb
from headrace.state.backend import value_entry
from headrace.state.codec import encode
from headrace.state.rocksdb import RocksDbBackend
from headrace.state.timers import Timer, timer_entry

keys = st.text(max_size=2).map(encode)
timers = st.tuples(st.integers(-300, 300), keys).map(lambda drawn: timer_entry(Timer(*drawn)))
entries = st.one_of(st.builds(value_entry, st.sampled_from(["a", "ab", "b"]), keys), keys.map(history_entry), timers)
bounds = st.tuples(timers, st.integers(2, 20)).map(lambda drawn: drawn[0][: drawn[1]])
batches = st.lists(st.lists(st.tuples(entries, st.none() | st.binary(max_size=3)), max_size=8), max_size=5)


@given(batches=batches, asked=st.lists(entries))
def test_backend_is_a_map_of_bytes(backends, batches, asked):
    expected = {}
    with backends.lent() as new:
        backend = new()
        for batch in batches:
            backend.write_batch(iter(batch))
            expected |= dict(batch)
        live = {entry: value for entry, value in expected.items() if value is not None}
        assert dict(backend.items()) == live
        assert backend.get_many(asked) == [live.get(entry) for entry in asked]


@given(batches=batches, start=bounds, end=bounds)
def test_timer_scan_is_half_open_in_byte_order(backends, batches, start, end):
    expected = {}
    with backends.lent() as new:
        backend = new()
        for batch in batches:
            backend.write_batch(batch)
            expected |= dict(batch)
        result = list(backend.scan(start, end))
    wanted = (item for item in expected.items() if item[1] is not None and start <= item[0] < end)
    assert result == sorted(wanted)


def test_empty_request_gets_empty_answer(backend):
    assert backend.get_many([]) == []
    backend.write_batch([])
    assert list(backend.items()) == []


def test_rocksdb_keeps_entries_after_closing(tmp_path):
    first = RocksDbBackend(tmp_path)
    first.write_batch([(b"va", b"1"), (b"vb", b""), (b"vc", b"3")])
    first.write_batch([(b"vc", None)])
    first.close()
    second = RocksDbBackend(tmp_path)
    assert dict(second.items()) == {b"va": b"1", b"vb": b""}
    second.close()


def test_rocksdb_reads_inline_while_it_is_small(tmp_path):
    first = RocksDbBackend(tmp_path, inline_reads_below=10_000)
    assert first.is_in_memory
    first.write_batch([(b"v", random.Random(1).randbytes(20_000))])
    first.close()
    second = RocksDbBackend(tmp_path, inline_reads_below=10_000)
    assert not second.is_in_memory
    second.remove_range(b"v", b"w")
    second.write_batch([(b"v", b"1")])
    assert second.is_in_memory
    second.close()


def test_rocksdb_without_inline_reads_always_waits(tmp_path):
    backend = RocksDbBackend(tmp_path, inline_reads_below=0)
    assert not backend.is_in_memory
    backend.write_batch([(b"v", b"1")])
    assert not backend.is_in_memory
    backend.close()


def filtered_entries(folder):
    """Return how many entries the files' filters know, and how many entries the files have."""
    database = Rdict(str(folder), access_type=AccessType.read_only())
    properties = database.property_value("rocksdb.aggregated-table-properties")
    database.close()
    return tuple(int(re.search(rf"# {name}=(\d+)", properties)[1]) for name in ("entries for filter", "entries"))


def test_files_of_rocksdb_have_filters(tmp_path):
    """Also those that are added to a database that was created without: its copies of earlier versions stay in use."""
    database = Rdict(str(tmp_path), Options(raw_mode=True))
    database[b"va"] = b"1"
    database.close()
    backend = RocksDbBackend(tmp_path, create=False)
    backend.write_batch([(b"vb", b"2"), (b"vc", b"3")])
    backend.close()
    assert filtered_entries(tmp_path) == (2, 3)
    again = RocksDbBackend(tmp_path, create=False)
    assert again.get_many([b"va", b"vb", b"vx"]) == [b"1", b"2", None]
    again.merge()
    again.close()
    assert filtered_entries(tmp_path) == (3, 3)


@pytest.mark.slow
def test_short_tasks_leave_few_sorted_runs(tmp_path):
    """A merge that is stopped when its task ends must not begin anew in each later task."""
    first = RocksDbBackend(tmp_path)
    first.write_batch((b"v%07d" % number, b"%030d" % number) for number in range(300_000))
    first.merge()
    first.close()
    runs = []
    for task in range(40):
        backend = RocksDbBackend(tmp_path, create=False)
        backend.write_batch((b"v%07d" % number, b"%d" % task) for number in range(task, 300_000, 100))
        backend.close()
        runs.append(len([*tmp_path.glob("*.sst")]))
    assert max(runs) <= 13


def test_merged_rocksdb_keeps_its_entries(tmp_path):
    backend = RocksDbBackend(tmp_path)
    for batch in ([(b"va", b"1"), (b"vb", b"2")], [(b"va", None), (b"vc", b"3")]):
        backend.write_batch(batch)
    backend.merge()
    assert dict(backend.items()) == {b"vb": b"2", b"vc": b"3"}
    backend.close()
    assert len([*tmp_path.glob("*.sst")]) == 1


def test_scans_of_rocksdb_end_at_their_bound(tmp_path):
    backend = RocksDbBackend(tmp_path)
    backend.write_batch([(b"e%03d" % number, b"") for number in range(300)])
    # The bounds are separate objects, which nobody else keeps alive while the scans take turns.
    scans = [backend.scan(b"e%03d" % first, b"e%03d" % (first + 3)) for first in range(290)]
    turns = [*zip(*scans, strict=True)]
    assert turns == [tuple((b"e%03d" % (first + step), b"") for first in range(290)) for step in range(3)]
    backend.close()


def test_rocksdb_scan_ignores_removed_entries_after_bound(tmp_path, monkeypatch):
    created = []

    def counting(*, raw_mode):
        created.append(Options(raw_mode=raw_mode))
        created[0].enable_statistics()
        return created[0]

    monkeypatch.setattr(rocksdb, "Options", counting)
    backend = RocksDbBackend(tmp_path)
    backend.write_batch([(b"e%04d" % number, b"") for number in range(1000)])
    backend.write_batch([(b"e%04d" % number, None) for number in range(1, 1000)])
    assert list(backend.scan(b"e0000", b"e0001")) == [(b"e0000", b"")]
    assert list(backend.scan(b"e0001", b"e0002")) == []
    skipped = next(line for line in created[0].get_statistics().splitlines() if "number.iter.skip" in line)
    assert int(skipped.split()[-1]) < 10
    backend.close()


def test_rocksdb_scan_stops_after_many_removed_entries(tmp_path):
    backend = RocksDbBackend(tmp_path)
    backend.write_batch([(b"es\x00%04d\x00\x00" % number, b"") for number in range(1000)])
    backend.write_batch([(b"es\x00%04d\x00\x00" % number, None) for number in range(1000) if number % 300])
    asked = [b"es\x00%04d\x00" % number for number in (0, 100, 250, 300, 301, 599, 600)]
    assert backend.may_have(asked) == [True, True, False, True, True, False, True]
    backend.close()


@pytest.mark.parametrize("read", [RocksDbBackend.items, lambda backend: backend.scan(b"e", b"f")])
def test_damaged_rocksdb_file_raises_an_error(read, tmp_path):
    first = RocksDbBackend(tmp_path)
    first.write_batch([(b"e%05d" % number, b"%060d" % number) for number in range(5000)])
    first.close()
    [file] = tmp_path.glob("*.sst")
    stored = bytearray(file.read_bytes())
    middle = len(stored) // 2
    stored[middle : middle + 50] = bytes(50)
    file.write_bytes(stored)
    damaged = RocksDbBackend(tmp_path)
    with pytest.raises(Exception, match="Corruption"):
        list(read(damaged))
    damaged.close()
