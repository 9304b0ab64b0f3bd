"""Changes of state that go to a task's database before it ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ValueState
from headrace.state.backend import EntryChange, memory_of, named
from headrace.state.spilled_changes import MARK, SpilledChanges
from headrace.state.values import BlockingValueStore


class Store:
    """As much of a store as spilling needs."""

    def __init__(self, name, size=0):
        self.name, self.size = name, size

    @staticmethod
    def writes(changes):
        raise NotImplementedError


class Values(Store):
    """A store of single values."""

    def writes(self, changes):
        for change in changes:
            yield change.entry(self.name), None if change.raw is None else bytes(16) + change.raw


keys = st.sampled_from([b'"a"', b'"aa"', b"7"])
namespaces = st.sampled_from(["", "w"])
user_keys = st.sampled_from([None, b'"x"'])
changes = st.builds(
    EntryChange, keys, st.none() | st.just(b"5") | st.just(b"77"), st.just(0), st.just(0), namespaces, user_keys
)
batches = st.lists(st.tuples(st.sampled_from(["m", "mm"]), st.lists(changes, max_size=5)), max_size=6)


@pytest.mark.parametrize("backends", ["rocksdb"], indirect=True)
@given(
    batches=batches,
    before=st.sets(st.builds(EntryChange.entry, changes, st.just("m"))),
    limit=st.sampled_from([0, 410, 1000]),
)
def test_each_entry_has_its_last_change(backends, batches, before, limit):
    """An entry that was made and removed in the task has none."""
    stores = {name: Values(name) for name in ("m", "mm")}
    with backends.lent() as new:
        database = new()
        database.write_batch([(entry, bytes(17)) for entry in before])
        spilled, last = SpilledChanges(database, limit), {}
        for name, some in batches:
            spilled.add(stores[name], some)
            last |= {change.entry(name): change for change in some}
        parts = [(store.name, list(part)) for store, part in spilled.parts()]
        changes_of_all = [(change.entry(name), change) for name, part in parts for change in part]
        assert {entry for entry, _ in database.visit(100)} == before
        spilled.drop_marks()
    expected = {entry: change for entry, change in last.items() if change.raw is not None or entry in before}
    assert {entry: change.raw for entry, change in changes_of_all} == {
        entry: change.raw for entry, change in expected.items()
    }
    assert len(changes_of_all) == len(expected)
    assert all(sum(memory_of(len(change.raw or b"")) for change in part[:-1]) <= limit for _, part in parts)
    assert [name for name, _ in parts] == [named(part[0].entry(name)).state for name, part in parts]


@pytest.mark.parametrize("backends", ["rocksdb"], indirect=True)
def test_no_mark_is_left(backends):
    with backends.lent() as new:
        database = new()
        spilled, values = SpilledChanges(database, 9), Values("m")
        spilled.add(values, [EntryChange(b"1", b"5", 0), EntryChange(b"2", b"6", 0)])
        assert any(entry.startswith(MARK) for entry in dict(database.items()))
        spilled.drop_marks()
        assert {entry: value[16:] for entry, value in database.items()} == {b"vm\x001": b"5", b"vm\x002": b"6"}
        assert spilled.has(values)
        assert not spilled.has(Values("m"))


@pytest.mark.parametrize(("sizes", "is_due"), [((), False), ((5, 4), False), ((5, 5), True)])
def test_spilling_is_due_beyond_the_limit(sizes, is_due):
    assert SpilledChanges(None, 9).is_due([Store("m", size) for size in sizes]) is is_due


@pytest.mark.parametrize("backends", ["rocksdb"], indirect=True)
def test_refused_spill_writes_nothing(backends):
    """A value that does not fit keeps all changes in memory; a later spill knows which entries the database has."""
    keys = [b"%d" % number for number in range(3000)]
    with backends.lent() as new:
        database, task = new(), SimpleNamespace()
        store = BlockingValueStore(ValueState("m", int), "totals", database, task)
        spilled = SpilledChanges(database, 0)

        def write(key, value):
            task.context = SimpleNamespace(key_json=key, timestamp=1, owns_key=True)
            store.update(value)

        for key in keys:
            write(key, 7)
        write(keys[-1], "text")
        spilled.spill(store)
        assert (spilled.count, [*database.items()]) == (0, [])
        write(keys[-1], 9)
        write(keys[0], None)
        spilled.spill(store)
        rows = {change.key_json: change.raw for _, part in spilled.parts() for change in part}
        assert rows == dict.fromkeys(keys[1:], b"7") | {keys[-1]: b"9"}
        spilled.drop_marks()
