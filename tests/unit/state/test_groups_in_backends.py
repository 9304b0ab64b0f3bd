"""Elements and entries of lists and maps: the contract of every backend, and how the delta backend finds them in its tables."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.backend import (
    Page,
    after,
    answers,
    end_of_group,
    entry_group,
    entry_groups,
    named,
    stored_value,
    value_entry,
)
from headrace.state.codec import encode
from headrace.state.rocksdb import StateCache
from headrace.tables import changelog as state_files
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from tests.unit.support.committed_state import CommittedState, Memory
from tests.unit.support.fuzzing import examples

keys = st.sampled_from(["a", "aa", "é\x00"]).map(encode)
states = st.sampled_from(["m", "mm"])
namespaces = st.sampled_from(["", "w", "ww"])
user_keys = st.one_of(st.integers(0, 12), st.text("ab\x00é", max_size=2)).map(encode)
raws = st.none() | st.integers(0, 9).map(encode)
groups = st.builds(entry_group, states, keys, namespaces)
entries = st.builds(lambda group, name: group + name, groups, user_keys)


def pages(backend, group, size):
    """All entries of a group, read page by page."""
    results, start = [], group
    while page := list(islice(backend.scan(start, end_of_group(group)), size)):
        results += page
        start = after(page[-1][0])
    return results


@given(
    batches=st.lists(st.dictionaries(entries, st.none() | st.binary(max_size=2)), max_size=4), size=st.integers(1, 4)
)
def test_group_scan_is_ordered_without_neighbours(backends, batches, size):
    with backends.lent() as new:
        backend, expected = new(), {}
        for batch in batches:
            backend.write_batch(batch.items())
            expected |= batch
            live = {entry: value for entry, value in expected.items() if value is not None}
            for group in {entry_group(*place) for place in _places(live)}:
                assert pages(backend, group, size) == sorted(e for e in live.items() if e[0].startswith(group))
            assert dict(backend.items()) == live


@pytest.mark.parametrize("backends", ["rocksdb"], indirect=True)
@given(written_entries=st.dictionaries(entries, st.binary(max_size=2)), state=states, key=keys)
def test_one_scan_finds_a_key_in_all_namespaces(backends, written_entries, state, key):
    with backends.lent() as new:
        backend = new()
        backend.write_batch(written_entries.items())
        start = entry_groups(state, key)
        expected = sorted(pair for pair in written_entries.items() if named(pair[0])[:2] == (state, key))
        assert list(backend.scan(start, end_of_group(start))) == expected


@given(
    written_entries=st.dictionaries(entries, st.binary(max_size=2)),
    removed=st.sets(entries),
    state=states,
    asked=st.sets(keys),
)
def test_key_with_entries_is_never_missed(backends, written_entries, removed, state, asked):
    with backends.lent() as new:
        backend = new()
        backend.write_batch([*written_entries.items(), *((entry, None) for entry in removed)])
        prefixes = sorted(entry_groups(state, key) for key in asked)
        live = {entry for entry in written_entries if entry not in removed}
        has = [any(entry.startswith(prefix) for entry in live) for prefix in prefixes]
        assert [may or not does for may, does in zip(backend.may_have(prefixes), has, strict=True)] == [True] * len(has)


def _places(entries):
    return [(entry.state, entry.key_json, entry.namespace) for entry in map(named, entries)]


def test_actions_are_answered_in_their_order(backend):
    group = entry_group("m", b'"a"')
    backend.write_batch([(group + b"1", b"x"), (group + b"2", b"y"), (value_entry("v", b'"a"'), b"z")])
    actions = [
        Page(group, end_of_group(group), 1),
        group + b"2",
        None,
        value_entry("v", b'"a"'),
        group + b"3",
        Page(after(group + b"1"), end_of_group(group)),
    ]
    assert answers(backend, actions) == [[(group + b"1", b"x")], b"y", None, b"z", None, [(group + b"2", b"y")]]


@pytest.mark.parametrize("namespace", ["", "w", "wé"])
def test_encoded_entry_parts_are_unambiguous(namespace):
    assert named(entry_group("m", b'"k"', namespace) + b'"u"') == ("m", b'"k"', namespace, b'"u"')
    assert named(value_entry("m", b'"k"', namespace)) == ("m", b'"k"', namespace, None)


# ------------------------------------------------------------------------------------------------ delta tables

changes = st.dictionaries(st.tuples(keys, namespaces, st.none() | user_keys), raws, min_size=1, max_size=12)
commits = st.lists(st.tuples(states, changes, st.booleans()), max_size=5)


@pytest.mark.slow
@examples(15)
@given(drawn=commits, written=st.dictionaries(entries, raws), size=st.integers(1, 5), rows=st.sampled_from([1, 2, 5]))
def test_committed_data_is_found_by_entry_and_page(tmp_path_factory, drawn, written, size, rows):
    committed = _committed(str(tmp_path_factory.mktemp("state")), drawn, rows)
    expected = committed.of((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    for asked_first in (True, False):
        backend = committed.backend(StateCache(Memory(), 1 << 20))
        backend.write_batch((entry, raw and stored_value(7, raw)) for entry, raw in written.items())
        live = dict(expected) | {entry: raw and stored_value(7, raw) for entry, raw in written.items()}
        live = {entry: value for entry, value in live.items() if value is not None}
        asked = [*expected, *written, entry_group("m", b'"a"') + b'"never"', value_entry("m", b'"a"')]
        if asked_first:
            assert backend.get_many(asked) == [live.get(entry) for entry in asked]
        for place in {*_places([*expected, *written]), ("m", b'"never"', "")}:
            if asked_first or named(entry_group(*place))[3] is not None:
                result = pages(backend, entry_group(*place), size)
                beginning = entry_group(*place)
                assert result == sorted(item for item in live.items() if item[0].startswith(beginning))
        assert backend.get_many(asked) == [live.get(entry) for entry in asked]


def _committed(folder, drawn, rows):
    """Commits in files of small row groups, so that entries spread over many."""
    committed, before = CommittedState(JobFolder(folder)), state_files.ROWS_PER_GROUP
    state_files.ROWS_PER_GROUP = rows
    try:
        for state, changed, compacts in drawn:
            committed.entries("counts", state, changed)
            if compacts:
                committed.compact(KEYED_STATE)
    finally:
        state_files.ROWS_PER_GROUP = before
    return committed


@pytest.fixture
def large(tmp_path):
    """A map of 100,000 entries beside a value of the same key."""
    committed = CommittedState(JobFolder(str(tmp_path)))
    names = [encode(f"{number:06}") for number in range(100_000)]
    committed.entries("counts", "m", dict.fromkeys(((b'"a"', "", name) for name in names), b"1"))
    committed.values("counts", "v", {b'"a"': b"2"})
    return committed.backend(StateCache(Memory(), 1 << 24)), names


def test_entry_of_large_map_needs_one_row_group(large):
    backend, names = large
    assert backend.get_many([entry_group("m", b'"a"') + names[70_000]]) == [stored_value(7, b"1", 9)]
    assert backend.statistics().rows_read <= state_files.ROWS_PER_GROUP


def test_value_is_found_without_its_keys_map(large):
    backend, _ = large
    assert backend.get_many([value_entry("v", b'"a"')]) == [stored_value(7, b"2")]
    assert backend.statistics().rows_read == 1


@pytest.mark.slow
def test_pages_of_large_map_read_groups_once(large):
    backend, names = large
    group = entry_group("m", b'"a"')
    first = list(islice(backend.scan(group, end_of_group(group)), 1000))
    assert [entry[len(group) :] for entry, _ in first] == names[:1000]
    assert backend.statistics().rows_read <= state_files.ROWS_PER_GROUP
    assert len(pages(backend, group, 1000)) == len(names)
    assert backend.statistics().rows_read <= len(names) + 2 * state_files.ROWS_PER_GROUP
