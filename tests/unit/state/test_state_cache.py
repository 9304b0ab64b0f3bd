"""A bounded cache: its entries are correct, and their number never exceeds the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.rocksdb import RocksDbBackend, StateCache
from tests.unit.support.committed_state import Memory

LARGE = 1 << 20


@pytest.fixture
def cache(tmp_path):
    opened = StateCache(RocksDbBackend(tmp_path / "cache"), LARGE)
    yield opened
    opened.close()


def test_cache_knows_only_stored_values_and_absences(cache):
    cache.put([(b"va", b"1"), (b"vb", None), (b"te", b"")])
    assert cache.get([b"va", b"vb", b"vc", b"te"]) == {b"va": b"1", b"vb": None, b"te": b""}


def test_later_write_of_an_entry_wins(cache):
    cache.put([(b"va", b"1"), (b"va", None), (b"vb", None)])
    cache.put([(b"vb", b"2")])
    assert cache.get([b"va", b"vb"]) == {b"va": None, b"vb": b"2"}


def test_cache_survives_closing(tmp_path):
    first = StateCache(RocksDbBackend(tmp_path), LARGE)
    first.put([(b"va", b"1"), (b"vb", None)])
    first.close()
    second = StateCache(RocksDbBackend(tmp_path), LARGE)
    assert second.get([b"va", b"vb"]) == {b"va": b"1", b"vb": None}
    second.close()


def entry(number):
    return b"v%07d" % number


@pytest.mark.parametrize("database", ["rocksdb", "memory"])
def test_used_entries_stay_and_unused_are_dropped(tmp_path, database):
    # An entry is 8 bytes, and 2 more for its generation and its kind: a generation is full with the 11th.
    cache = StateCache(RocksDbBackend(tmp_path) if database == "rocksdb" else Memory(), 200)
    for number in range(100):
        cache.put([(entry(number), b"")])
        assert cache.get([entry(0)]) == {entry(0): b""}
    known = cache.get([entry(number) for number in range(100)])
    assert {entry(0), entry(99)} <= set(known)
    assert entry(1) not in known
    cache.close()


puts = st.dictionaries(st.integers(0, 30).map(entry), st.none() | st.binary(max_size=9), max_size=8)


@given(steps=st.lists(st.tuples(puts, st.lists(st.integers(0, 30).map(entry), unique=True))), bound=st.integers(1, 600))
def test_cache_evicts_but_never_returns_stale(steps, bound):
    database, expected = Memory(), {}
    cache = StateCache(database, bound)
    for put, asked in steps:
        cache.put(put.items())
        expected |= put
        known = cache.get(asked)
        assert known == {entry: expected[entry] for entry in known}


@given(numbers=st.lists(st.integers(0, 5000), max_size=3000), bound=st.integers(20, 5000))
def test_cache_stays_within_its_limit(numbers, bound):
    database = Memory()
    cache = StateCache(database, bound)
    for number in numbers:
        cache.put([(entry(number), b"")])
    kept = sum(len(key) + len(value) for key, value in database.items())
    assert kept <= bound + 2 * 10
