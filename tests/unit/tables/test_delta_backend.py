"""State that stays in its Delta tables: look-ups, and a cache that belongs to one checkpoint (deltalake, no JVM)."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import TimeDomain
from headrace.errors import StorageError
from headrace.materializer.stored_history import history_entry
from headrace.state.backend import stored_value, value_entry
from headrace.state.cleanup import CLEANUP_PREFIX
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.state.rocksdb import StateCache
from headrace.state.timers import DOMAINS, Timer, TimerService, timer_entry
from headrace.tables.changelog import ROWS_PER_GROUP
from headrace.tables.delta_backend import DeltaStatistics
from headrace.tables.folder import JobFolder
from headrace.tables.pruned_rows import OfKeys, PrunedRows
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, TIMERS
from tests.unit.support.committed_state import EVERYTHING, GROUPS, CommittedState, Memory

LARGE = 1 << 30
FEW = hypothesis.settings(max_examples=25)  # an example makes seven tables and commits to them

keys = st.sampled_from([encode(key) for key in ("a", "b", "'", '"', "é\x00", "", 7, ["x", None])])
raws = st.sampled_from([b"1", b'"two"', b'{"n":3}'])
timestamps = st.integers(-5, 5).map(lambda day: day * 86_400_000)
NAMESPACES = ("", "w", "w 2", "é\x01")
timers = st.builds(Timer, timestamps, keys, st.sampled_from(list(DOMAINS)), st.sampled_from(NAMESPACES))
operators = st.sampled_from(["counts", "other"])
commits = st.one_of(
    st.tuples(
        st.just("values"), operators, st.sampled_from(["n", "sum"]), st.dictionaries(keys, st.none() | raws, min_size=1)
    ),
    st.tuples(st.just("timers"), operators, st.dictionaries(timers, st.booleans(), min_size=1)),
    st.tuples(st.just("histories"), operators, st.dictionaries(keys, st.lists(raws, max_size=3), min_size=1)),
    st.tuples(st.just("compact"), st.sampled_from([KEYED_STATE, TIMERS, MATERIALIZER_HISTORY])),
)


@pytest.fixture
def committed(tmp_path):
    return CommittedState(JobFolder(str(tmp_path)))


def cache(bound=LARGE):
    return StateCache(Memory(), bound)


def value(key, state="n"):
    return value_entry(state, encode(key))


@pytest.mark.slow
@FEW
@given(drawn=st.lists(commits, max_size=6), parallelism=st.integers(1, 3), bound=st.sampled_from([1, 500, LARGE]))
def test_delta_backend_has_exactly_the_committed_entries(tmp_path_factory, drawn, parallelism, bound):
    def all_entries():
        """Return an entry of each kind for each key that may have been used, and some unused entries."""
        known = [encode(key) for key in ("a", "b", "'", '"', "é\x00", "", 7, ["x", None], "never")]
        times = [day * 86_400_000 for day in range(-5, 6)]
        return [
            *(value_entry(state, key) for state in ("n", "sum", "never") for key in known),
            *(history_entry(key) for key in known),
            *(timer_entry(Timer(*timer)) for timer in itertools.product(times, known, DOMAINS, NAMESPACES[:2])),
        ]

    committed = CommittedState(JobFolder(str(tmp_path_factory.mktemp("state"))))
    for what, *arguments in drawn:
        getattr(committed, what)(*arguments)
    asked = all_entries()
    for operator, task in itertools.product(("counts", "other"), range(parallelism)):
        groups = key_group_range(task, GROUPS, parallelism)
        backend = committed.backend(cache(bound), operator, groups)
        expected = committed.of(groups, operator)
        # Entries that follow from cleanup timers are compared separately: no table has them.
        assert {entry: stored for entry, stored in backend.items() if entry[:1] != CLEANUP_PREFIX} == expected
        assert backend.get_many(asked) == [expected.get(entry) for entry in asked]
        assert backend.get_many(asked[::-1]) == [expected.get(entry) for entry in asked[::-1]]


@pytest.mark.slow
@FEW
@given(
    drawn=st.lists(st.dictionaries(timers, st.booleans(), min_size=1), max_size=4),
    written=st.dictionaries(timers, st.booleans()),
    start=timestamps,
    end=timestamps,
)
def test_timer_scan_covers_span_in_order(tmp_path_factory, drawn, written, start, end):
    committed = CommittedState(JobFolder(str(tmp_path_factory.mktemp("state"))))
    for changes in drawn:
        committed.timers("counts", changes)
    backend = committed.backend(cache())
    backend.write_batch((timer_entry(timer), b"" if there else None) for timer, there in written.items())
    expected = committed.of(EVERYTHING)
    expected |= {timer_entry(timer): b"" if there else None for timer, there in written.items()}
    first, last = timer_entry(Timer(start, b"")), timer_entry(Timer(end, b""))
    live = [entry for entry, value in expected.items() if value is not None]
    assert list(backend.scan(first, last)) == [(entry, b"") for entry in sorted(live) if first <= entry < last]
    in_domain = [(entry, b"") for entry in sorted(live) if first[:2] <= entry < last]
    assert list(backend.scan(first[:2], last)) == in_domain


steps = st.lists(
    st.tuples(st.lists(keys, unique=True), st.dictionaries(keys, st.none() | raws), st.booleans()), max_size=6
)


@pytest.mark.slow
@FEW
@given(steps=steps, bound=st.sampled_from([1, 60, 500, LARGE]))
def test_cache_continues_between_attempts_like_local_copies(tmp_path_factory, steps, bound):
    committed, base = CommittedState(JobFolder(str(tmp_path_factory.mktemp("state")))), Memory()
    for asked, changes, succeeds in steps:
        attempt = base.copy()
        backend = committed.backend(StateCache(attempt, bound))
        expected = committed.of(EVERYTHING)
        entries = [value_entry("n", key) for key in asked]
        assert backend.get_many(entries) == [expected.get(entry) for entry in entries]
        backend.write_batch((value_entry("n", key), raw and stored_value(7, raw)) for key, raw in changes.items())
        backend.close()
        if succeeds:
            committed.values("counts", "n", changes)
            base = attempt


def test_task_reads_its_own_writes(committed):
    committed.values("counts", "n", {encode("a"): b"1", encode("b"): b"2"})
    backend = committed.backend(cache(1))
    backend.write_batch([(value("a"), None), (value("c"), b"3")])
    expected = {value("b"): stored_value(7, b"2"), value("c"): b"3"}
    assert backend.get_many([value("a"), value("b"), value("c")]) == [None, *expected.values()]
    assert dict(backend.items()) == expected


def test_many_entries_need_one_look_up(committed):
    committed.values("counts", "n", {encode(number): b"1" for number in range(50)})
    backend = committed.backend(cache())
    backend.get_many([value(number) for number in range(100)])
    result = backend.statistics()
    assert (result.entries_asked, result.cache_hits, result.look_ups, result.rows_read) == (100, 0, 1, 50)
    assert result.bytes_read > 0


def test_entry_is_looked_up_once_present_or_not(committed):
    committed.values("counts", "n", {encode("there"): b"1"})
    known = cache()
    backend = committed.backend(known)
    for _ in range(3):
        backend.get_many([value("there"), value("nowhere")])
    result = backend.statistics()
    assert (result.entries_asked, result.cache_hits, result.look_ups) == (6, 4, 1)


def test_second_state_of_key_comes_with_first(committed):
    committed.values("counts", "n", {encode("a"): b"1"})
    committed.values("counts", "sum", {encode("a"): b"2"})
    backend = committed.backend(cache())
    backend.get_many([value("a", "n")])
    assert backend.get_many([value("a", "sum")]) == [stored_value(7, b"2")]
    assert backend.statistics().look_ups == 1


def test_no_file_is_read_without_request(committed):
    committed.values("counts", "n", {encode("a"): b"1"})
    backend = committed.backend(cache())
    assert backend.get_many([]) == []
    assert backend.statistics() == DeltaStatistics()


def test_files_of_other_operators_groups_keys_are_skipped(committed):
    for number in range(6):
        committed.values("counts", "n", {encode(number): b"1"})
    committed.values("other", "n", {encode(3): b"1"})
    backend = committed.backend(cache())
    backend.get_many([value(3)])
    assert backend.statistics().files_read == 1
    group = key_group(encode(3), GROUPS)
    elsewhere = committed.backend(cache(), key_groups=KeyGroupRange((group + 1) % GROUPS, (group + 1) % GROUPS))
    assert elsewhere.get_many([value(3)]) == [None]
    assert elsewhere.statistics().files_read == 0


def test_row_groups_that_cannot_match_are_skipped(committed, monkeypatch):
    monkeypatch.setattr("headrace.tables.changelog.ROWS_PER_GROUP", 10)
    committed.values("counts", "n", {encode(number): b"1" for number in range(1000)})
    committed.compact(KEYED_STATE)
    backend = committed.backend(cache())
    assert backend.get_many([value(500)]) == [stored_value(7, b"1")]
    assert backend.statistics().rows_read < 50


def test_timers_far_from_wanted_time_are_skipped(committed, monkeypatch):
    monkeypatch.setattr("headrace.tables.changelog.ROWS_PER_GROUP", 10)
    committed.timers("counts", {Timer(number, encode(number)): True for number in range(1000)})
    backend = committed.backend(cache())
    first, last = timer_entry(Timer(100, b"")), timer_entry(Timer(105, b""))
    assert len(list(backend.scan(first, last))) == 5
    assert backend.get_many([timer_entry(Timer(900, encode(900)))]) == [b""]
    assert backend.statistics().rows_read < 100


@pytest.mark.parametrize("domain", TimeDomain)
def test_timers_of_the_other_domain_are_not_read(committed, domain):
    for clock in TimeDomain:
        committed.timers("counts", {Timer(number, encode(number), clock): True for number in range(100)})
    backend = committed.backend(cache())
    first, last = (timer_entry(Timer(time, b"", domain)) for time in (0, 50))
    assert len(list(backend.scan(first, last))) == 50
    assert backend.statistics().rows_read == 100


def test_registering_timer_reads_no_others_of_key(committed):
    namespaces = ("", "w")
    timers = {Timer(n, encode("k"), namespace=namespace): True for n in range(20_000) for namespace in namespaces}
    committed.timers("counts", timers)
    backend = committed.backend(cache(1 << 30))
    service = TimerService(backend, None, -1)
    service.register(Timer(7, encode("k"), namespace="w"))
    service.delete(Timer(19_000, encode("k")))
    service.register(Timer(30_000, encode("k")))
    changed = [(change.timer.timestamp, change.registered) for change in service.changes()]
    assert changed == [(19_000, False), (30_000, True)]
    assert backend.statistics().rows_read <= 2 * ROWS_PER_GROUP < len(timers)
    columns = ("key", "timestamp")
    table = PrunedRows(
        committed.folder,
        TIMERS,
        committed.versions[TIMERS],
        operator="counts",
        key_groups=EVERYTHING,
        columns=columns,
    )
    result = table.read(OfKeys(TIMERS, [(7_000, encode("k"))]))
    assert result.rows.num_rows == len(namespaces)


def test_concurrent_threads_get_the_same_answers(committed):
    committed.values("counts", "n", {encode(number): b"%d" % number for number in range(200)})
    backend, together = committed.backend(cache(2000)), Barrier(4)
    asked = [value(number) for number in range(250)]

    def ask(_):
        together.wait()
        return [backend.get_many(asked[first : first + 50]) for first in range(0, 250, 50)]

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    result = [answer for part in answers[0] for answer in part]
    assert result == [stored_value(7, b"%d" % number) for number in range(200)] + [None] * 50
    assert all(answer == answers[0] for answer in answers)


def test_writes_during_look_up_are_not_overwritten(committed, monkeypatch):
    committed.values("counts", "n", {encode("a"): b"old"})
    known = cache()
    backend = committed.backend(known)
    read = PrunedRows.read

    def slow(rows, selection):
        backend.write_batch([(value("a"), b"new")])
        return read(rows, selection)

    monkeypatch.setattr(PrunedRows, "read", slow)
    assert backend.get_many([value("a")]) == [b"new"]
    assert known.get([value("a")]) == {}


def test_missing_file_is_error_naming_the_table(committed, tmp_path):
    committed.values("counts", "n", {encode("a"): b"1"})
    for file in Path(tmp_path, KEYED_STATE).glob("*.parquet"):
        file.unlink()
    with pytest.raises(StorageError, match=r"to read .*keyed_state"):
        committed.backend(cache()).get_many([value("a")])


def test_times_stored_as_text_are_damage(committed, tmp_path):
    committed.timers("counts", {Timer(5, encode("a")): True})
    for file in Path(tmp_path, TIMERS).glob("*.parquet"):
        rows = pq.read_table(file)
        place = rows.schema.get_field_index("timestamp")
        pq.write_table(rows.set_column(place, "timestamp", pa.array(["soon"] * rows.num_rows)), file)
    backend = committed.backend(cache())
    with pytest.raises(StorageError, match="is damaged: a column of .* has another type"):
        list(backend.scan(timer_entry(Timer(0, b"")), timer_entry(Timer(9, b""))))
