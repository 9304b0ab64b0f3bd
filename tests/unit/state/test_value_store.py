from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ExpiryClock, StateTtl, Struct, TtlTime, UpdateType, ValueState, Visibility
from headrace.errors import StateSchemaError
from headrace.state.backend import stored_value, value_entry
from headrace.state.codec import encode
from headrace.state.values import ValueStore

TEN = timedelta(milliseconds=10)
KEY = b'"k"'


class Task:
    """User code of one key at a time; each request is answered at once."""

    context: SimpleNamespace

    def register(self, continuation):
        raise AssertionError(f"{continuation} should not be chained")

    def request(self, context, entry, answered):
        raise AssertionError(f"{entry} of {context} should not have to wait")


def enter(store, key, stamp, watermark, processing_time=0):
    """Start the code of the next record."""
    store.waits = False
    store._task.context = SimpleNamespace(
        key_json=key,
        timestamp=stamp,
        watermark=watermark,
        expired_until=watermark,
        processing_time=processing_time,
        owns_key=True,
        callbacks=None,
    )


@pytest.fixture
def store_of(backend):
    """A store over the backend, as the next task would open it."""

    def make(ttl=None, kind=int, name="legs"):
        return ValueStore(ValueState(name, kind, ttl=ttl), "delay", backend, Task())

    return make


@pytest.fixture
def commit(backend):
    """Hand a store's changes to the backend, and return them."""

    def commit(store):
        changes = list(store.changes())
        backend.write_batch(store.writes(changes))
        return changes

    return commit


def awaited(future):
    """Return the answer of a state call, which never suspends."""
    step = future.__await__()
    with pytest.raises(StopIteration) as stopped:
        next(step)
    return stopped.value.value


def read(store, at, watermark, key=KEY):
    enter(store, key, at, watermark)
    return awaited(store.value())


def write(store, value, at, watermark=0, key=KEY):
    enter(store, key, at, watermark)
    return awaited(store.update(value))


def clear(store, key):
    enter(store, key, 1, 0)
    return awaited(store.clear())


def test_value_is_per_key_and_outlives_task(store_of, commit):
    class Leg(Struct, frozen=True):
        origin: str
        minutes: int = 0

    store = store_of(kind=Leg)
    write(store, Leg("EWR"), at=1)
    write(store, Leg("JFK"), at=1, key=b'"other"')
    commit(store)
    later = store_of(kind=Leg)
    assert read(later, 2, 0) == Leg("EWR")
    assert read(later, 2, 0, b'"other"') == Leg("JFK")
    assert read(later, 2, 0, b'"nobody"') is None


def test_states_of_a_key_are_independent(store_of, commit):
    # A name may end with the text that another key begins with.
    first, second = store_of(name="a"), store_of(name="ab")
    write(first, 1, at=0)
    write(second, 2, at=0)
    commit(first)
    commit(second)
    assert (read(store_of(name="a"), 0, 0), read(store_of(name="ab"), 0, 0)) == (1, 2)


def test_only_changed_values_are_reported_as_changes(store_of, commit):
    store = store_of()
    for key in (b"1", b"2", b"3"):
        write(store, 7, at=5, key=key)
    commit(store)
    later = store_of()
    later.prefetch([b"1", b"2", b"3", b"4"])
    read(later, 9, 0, b"1")
    write(later, 8, at=9, key=b"2")
    enter(later, b"3", 9, 0)
    awaited(later.clear())
    assert [(c.key_json, c.raw, c.stamp) for c in commit(later)] == [(b"2", b"8", 9), (b"3", None, 5)]


def test_value_added_and_cleared_is_no_change(store_of, commit, backend):
    store = store_of()
    write(store, 1, at=0)
    awaited(store.clear())
    awaited(store.clear())
    assert commit(store) == []
    assert list(backend.items()) == []


def test_updating_with_none_clears(store_of, commit):
    store = store_of()
    write(store, 1, at=0)
    commit(store)
    later = store_of()
    write(later, None, at=1)
    assert read(later, 1, 0) is None
    assert [change.raw for change in commit(later)] == [None]


def test_value_of_other_type_is_refused_before_storing(store_of, commit):
    store = store_of()
    write(store, "text", at=0)
    with pytest.raises(StateSchemaError, match="state 'legs' of operator 'delay' was given 'text'"):
        commit(store)


def test_stored_state_of_other_type_names_state(store_of, commit):
    store = store_of(kind=str)
    write(store, "text", at=0)
    commit(store)
    with pytest.raises(StateSchemaError, match="state 'legs' of operator 'delay' is stored as \"text\""):
        read(store_of(kind=int), 0, 0)


#    written at 5, ttl 10:   5 ---- alive ---- 14 | 15 dead


@pytest.mark.parametrize(("watermark", "expected"), [(14, 1), (15, None), (16, None)])
def test_entry_dies_at_stamp_plus_ttl_inclusive(store_of, commit, watermark, expected):
    store = store_of(StateTtl(TEN))
    write(store, 1, at=5)
    assert read(store, 5, watermark) == expected
    commit(store)
    assert read(store_of(StateTtl(TEN)), 5, watermark) == expected


def test_expired_entry_is_cleared_on_access_once(store_of, commit, backend):
    store = store_of(StateTtl(TEN))
    write(store, 1, at=5)
    commit(store)
    later = store_of(StateTtl(TEN))
    assert [read(later, 20, 20), read(later, 20, 20)] == [None, None]
    assert later.expired == 1
    assert [change.raw for change in commit(later)] == [None]
    assert list(backend.items()) == []


@pytest.mark.parametrize("update", [UpdateType.ON_CREATE, UpdateType.ON_CREATE_AND_WRITE, UpdateType.ON_READ_AND_WRITE])
def test_expired_entry_is_reported_once(store_of, commit, backend, update):
    relaxed = StateTtl(TEN, visibility=Visibility.RETURN_IF_NOT_CLEANED_UP, update=update)
    store = store_of(relaxed)
    write(store, 1, at=5)
    commit(store)
    later = store_of(relaxed)
    assert [read(later, 100, 100), read(later, 101, 101)] == [1, None]
    assert later.expired == 1
    assert [change.raw for change in commit(later)] == [None]
    assert list(backend.items()) == []


def test_reading_remaining_lifetime_removes_nothing(store_of):
    store = store_of(StateTtl(TEN, visibility=Visibility.RETURN_IF_NOT_CLEANED_UP))
    write(store, 1, at=5)
    enter(store, KEY, 100, 100)
    assert awaited(store.remaining()) is None
    assert read(store, 100, 100) == 1


@pytest.mark.parametrize(
    ("update", "after_write", "after_read"),
    [
        (UpdateType.ON_CREATE, 5, 5),
        (UpdateType.ON_CREATE_AND_WRITE, 8, 8),
        (UpdateType.ON_READ_AND_WRITE, 8, 12),
    ],
)
def test_update_type_decides_which_access_renews_lifetime(store_of, update, after_write, after_read):
    store = store_of(StateTtl(TEN, update=update))
    write(store, 1, at=5)
    write(store, 2, at=8)
    assert next(store.changes()).stamp == after_write
    read(store, 12, 0)
    (change,) = store.changes()
    assert (change.stamp, store.expires_at(change.stamp)) == (after_read, after_read + 10)


def test_renewing_read_is_a_change(store_of, commit):
    ttl = StateTtl(TEN, update=UpdateType.ON_READ_AND_WRITE)
    store = store_of(ttl)
    write(store, 1, at=5)
    commit(store)
    later = store_of(ttl)
    read(later, 12, 0)
    assert [(change.raw, change.stamp) for change in commit(later)] == [(b"1", 12)]


def test_late_read_never_shortens_a_lifetime(store_of):
    store = store_of(StateTtl(TEN, update=UpdateType.ON_READ_AND_WRITE))
    write(store, 1, at=20)
    read(store, 12, 0)
    assert read(store, 29, 29) == 1


def test_write_after_expiry_begins_a_new_lifetime(store_of):
    store = store_of(StateTtl(TEN, update=UpdateType.ON_CREATE))
    write(store, 1, at=5)
    write(store, 2, at=30, watermark=15)
    assert read(store, 30, 39) == 2
    assert read(store, 30, 40) is None


def test_disabled_ttl_equals_no_ttl(store_of):
    store = store_of(StateTtl(TEN, update=UpdateType.DISABLED))
    write(store, 1, at=5)
    assert read(store, 5, 10_000) == 1
    assert store.expires_at(5) is None


def test_ttl_may_change_for_existing_state(store_of, commit):
    """A TTL may be enabled, changed and disabled."""
    store = store_of()
    write(store, 1, at=5)
    commit(store)
    assert read(store_of(StateTtl(TEN)), 14, 14) == 1
    assert read(store_of(StateTtl(TEN)), 15, 15) is None
    assert read(store_of(StateTtl(2 * TEN)), 15, 15) == 1
    assert read(store_of(), 10_000, 10_000) == 1


def test_processing_time_is_that_of_micro_batch(store_of):
    """The processing time is used for stamps and for ages."""
    store = store_of(StateTtl(TEN, time=TtlTime.PROCESSING))
    enter(store, KEY, 5, 0, processing_time=1_000)
    awaited(store.update(1))
    assert next(store.changes()).stamp == 1_000
    enter(store, KEY, 10_000, 10_000, processing_time=1_009)
    assert awaited(store.value()) == 1
    enter(store, KEY, 0, 0, processing_time=1_010)
    assert awaited(store.value()) is None


def test_event_time_may_expire_by_processing_time(store_of):
    store = store_of(StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME))
    enter(store, KEY, 500, 0, processing_time=600)
    awaited(store.update(1))
    assert awaited(store.value()) is None
    enter(store, KEY, 500, 10_000, processing_time=509)
    awaited(store.update(1))
    assert awaited(store.value()) == 1


def test_ttl_shorter_than_a_millisecond_is_refused():
    for span in (timedelta(0), timedelta(microseconds=999), timedelta(milliseconds=-1)):
        with pytest.raises(ValueError, match="at least 1 ms"):
            StateTtl(span)
    assert StateTtl(timedelta(microseconds=1_999)).milliseconds == 1


def test_unbound_declaration_raises_runtime_error():
    declared = ValueState("legs", int)
    for call in (declared.value, lambda: declared.update(1), declared.clear):
        with pytest.raises(RuntimeError, match="state 'legs' was used outside"):
            call()


@pytest.mark.parametrize("name", ["", "Legs", "9legs", "last leg", "a'b", "a\x00b", "x" * 64])
def test_states_name_is_an_identifier(name):
    with pytest.raises(ValueError, match="is not a valid name"):
        ValueState(name, int)


def test_entry_is_named_by_state_and_key():
    assert value_entry("legs", KEY) == b'vlegs\x00"k"'


def test_answer_stays_after_later_calls(store_of):
    store = store_of()
    store.prefetch([KEY])
    enter(store, KEY, 1, 0)
    store.update(1)
    first = store.value()
    store.update(2)
    second = store.value()
    assert (awaited(first), awaited(second)) == (1, 2)


def test_prefetch_counts_a_repeated_key_once(store_of):
    store = store_of()
    store.cache_limit = 2
    store.prefetch([KEY, KEY])
    assert not store.is_full
    store.prefetch([KEY, b"2"])
    assert store.is_full


KEYS = [encode(f"k{number}") for number in range(5)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ahead"), st.lists(st.sampled_from(KEYS), unique=True)),
        st.tuples(st.just("write"), st.sampled_from(KEYS), st.none() | st.integers(0, 9)),
        st.tuples(st.just("spill")),
        st.tuples(st.just("trim")),
        st.tuples(st.just("look"), st.lists(st.sampled_from(KEYS))),
    ),
    max_size=20,
)


@pytest.mark.parametrize("backends", ["hashmap", "rocksdb"], indirect=True)
@given(steps=STEPS, limit=st.sampled_from([2, 100]))
def test_reading_ahead_never_changes_a_value(backends, steps, limit):
    """Whatever goes to the backend between a read ahead and the record that it is for."""
    with backends.lent() as new:
        backend, expected = new(), {key: number for number, key in enumerate(KEYS[1:4])}
        backend.write_batch((value_entry("legs", key), stored_value(0, b"%d" % n)) for key, n in expected.items())
        store = ValueStore(ValueState("legs", int), "delay", backend, Task())
        store.cache_limit = limit
        for step, *arguments in steps:
            if step == "ahead":
                store.read_ahead(*arguments)
            elif step == "write":
                key, expected[key] = arguments[0], arguments[1]
                if expected[key] is None:
                    clear(store, key)
                else:
                    write(store, expected[key], 1, key=key)
            elif step == "trim":
                store.trim()
            elif step == "spill":
                backend.write_batch(store.writes([*store.changes()]))
                for cell in store.cells.by_name.values():
                    cell.dirty = False
                store.release()
            else:
                store.prefetch(*arguments)
                assert [read(store, 1, 0, key) for key in arguments[0]] == [*map(expected.get, arguments[0])]
        store.prefetch(KEYS)
        assert [read(store, 1, 0, key) for key in KEYS] == [*map(expected.get, KEYS)]


@pytest.mark.parametrize("backends", ["rocksdb"], indirect=True)
def test_values_read_ahead_are_read_once(backends, monkeypatch):
    with backends.lent() as new:
        backend = new()
        backend.write_batch([(value_entry("legs", KEYS[1]), stored_value(0, b"7"))])
        store = ValueStore(ValueState("legs", int), "delay", backend, Task())
        store.read_ahead(KEYS[::-1])
        monkeypatch.setattr(backend, "get_many", lambda entries: [pytest.fail(f"{e} is read again") for e in entries])
        store.prefetch(KEYS[2:])
        store.prefetch(KEYS)
        assert [read(store, 1, 0, key) for key in KEYS] == [None, 7, None, None, None]


def test_unfit_values_read_ahead_name_their_state(backend, store_of):
    backend.write_batch([(value_entry("legs", KEY), stored_value(1, b'"text"'))])
    store = store_of()
    store.read_ahead([KEY])
    enter(store, KEY, 1, 1)
    with pytest.raises(StateSchemaError, match=r"state 'legs' of operator 'delay' is stored as \"text\""):
        store.value()


def test_values_are_read_ahead_once(backend, store_of):
    """A backend that is sorted answers before code asks; a value that code has changed stays."""
    keys = [b'"%d"' % number for number in range(5)]
    backend.write_batch(
        [(value_entry("legs", key), stored_value(1, b"%d" % number)) for number, key in enumerate(keys)]
    )
    store = store_of()
    enter(store, keys[3], 1, 1)
    store.update(30)
    store.read_ahead([*keys, KEY])
    if backend.is_sorted:
        backend.write_batch([(value_entry("legs", key), None) for key in keys])
    values = []
    for key in [*keys, KEY]:
        enter(store, key, 1, 1)
        values.append(awaited(store.value()))
    assert values == [0, 1, 2, 30, 4, None]
    assert store.statistics().cached == 6
