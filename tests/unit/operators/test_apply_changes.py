"""Tables of a feed of changes equal a fold over all events, sorted by their sequence, in whatever order they come."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import History, KeyedProcessFunction, RowKind, Struct, Timestamp
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.changed_jobs import (
    MODELS,
    Change,
    Customer,
    CustomerVersion,
    give,
    harness_of,
    stream_of,
    versions,
)
from tests.unit.support.changelog_table import ChangelogTable, by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
VALUES = st.sampled_from(["a", "b", None])
EVENTS = st.lists(
    st.builds(
        Change, st.sampled_from("xy"), st.integers(-3, 9), st.integers(0, 9), st.sampled_from("uuud"), VALUES, VALUES
    ),
    max_size=14,
    unique_by=lambda event: (event.id, event.lsn),
)
TRACKS = st.sampled_from([("tier", "city"), ("tier",), ("city",)])


def assert_equals_model(history, events, backend="hashmap", **options):
    model, record = MODELS[history]
    arguments = {name: options[name] for name in ("track", "ignore_nulls") if name in options}
    with harness_of(history, backend=backend, **options) as harness:
        table, applied = ChangelogTable(), 0
        for number, event in enumerate(events, 1):
            give(harness, event)
            changes = harness.kinds()
            for kind, row in changes[applied:]:
                table.apply(kind, row)
            applied = len(changes)
            assert table.records(record) == model(events[:number], **arguments)
        assert not harness.quarantined()


@pytest.mark.slow
@examples(150)
@given(events=EVENTS, track=TRACKS, ignore_nulls=st.booleans())
def test_versions_equal_a_sorted_fold(events, track, ignore_nulls):
    assert_equals_model(History.SCD2, events, track=track, ignore_nulls=ignore_nulls)


@examples(60)
@given(events=EVENTS, ignore_nulls=st.booleans())
def test_current_rows_equal_a_sorted_fold(events, ignore_nulls):
    assert_equals_model(History.SCD1, events, ignore_nulls=ignore_nulls)


@pytest.mark.parametrize("history", History)
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_backends_give_the_same(backend, history):
    places = [5, 2, 9, 1, 7, 3, 8, 4, 6]
    events = [Change("xy"[lsn % 2], lsn, lsn, "d" if lsn in {4, 7} else "u", "ab"[lsn // 3 % 2]) for lsn in places]
    assert_equals_model(history, events, backend)


@examples(40)
@given(events=EVENTS, again=st.lists(st.integers(0, 13), max_size=5))
def test_equal_events_are_dropped(events, again):
    repeated = [*events, *(events[place] for place in again if place < len(events))]
    for history, (model, record) in MODELS.items():
        with harness_of(history) as harness:
            give(harness, *repeated)
            assert table_of(harness.kinds(), record) == model(events)
            assert not harness.quarantined()


@pytest.mark.parametrize("history", History)
def test_other_event_of_a_sequence_is_refused(history):
    first, other = Change("x", 5, 0, "u", "a"), Change("x", 5, 0, "u", "b")
    with harness_of(history) as harness:
        give(harness, first, other, replace(first, op="d"))
        refused = harness.quarantined()
        assert [event for event, _ in refused] == [other, replace(first, op="d")]
        assert "another event of its key has the same lsn" in refused[0][1]
        assert len(harness.kinds()) == 1


@pytest.mark.parametrize("history", History)
def test_null_sequence_is_refused(history):
    with harness_of(history) as harness:
        give(harness, Change("x", None, 0, "u", "a"))
        ((_, reason),) = harness.quarantined()
        assert reason == "lsn is null, and orders the events of a key"
        assert harness.kinds() == []


def test_sequence_beyond_64_bits_is_refused():
    with harness_of(History.SCD1) as harness:
        give(harness, Change("x", 1 << 64, 0, "u", "a"))
        ((_, reason),) = harness.quarantined()
        assert "more than 64 bits" in reason


# --------------------------------------------------------------------------------------------------------- the changelog


def test_late_event_splits_a_version():
    with harness_of(History.SCD2) as harness:
        give(harness, Change("x", 1, 1, "u", "a"), Change("x", 9, 9, "u", "c"))
        settled = len(harness.kinds())
        give(harness, Change("x", 5, 10, "u", "b"))
        assert harness.kinds()[settled:] == [
            (BEFORE, CustomerVersion("x", "a", None, 1, 9)),
            (AFTER, CustomerVersion("x", "a", None, 1, 5)),
            (INSERT, CustomerVersion("x", "b", None, 5, 9)),
        ]


def test_untracked_change_updates_in_place():
    with harness_of(History.SCD2, track=("tier",)) as harness:
        give(harness, Change("x", 1, 1, "u", "a", "rome"), Change("x", 2, 2, "u", "a", "bonn"))
        assert harness.kinds() == [
            (INSERT, CustomerVersion("x", "a", "rome", 1, None)),
            (BEFORE, CustomerVersion("x", "a", "rome", 1, None)),
            (AFTER, CustomerVersion("x", "a", "bonn", 1, None)),
        ]


def test_late_events_leave_current_rows():
    with harness_of(History.SCD1) as harness:
        give(harness, Change("x", 5, 1, "u", "a"), Change("x", 3, 2, "u", "b"), Change("x", 4, 3, "d"))
        assert harness.kinds() == [(INSERT, Customer("x", "a", None))]


def test_equal_row_emits_nothing():
    for history in History:
        with harness_of(history) as harness:
            give(harness, Change("x", 1, 1, "u", "a"), Change("x", 2, 2, "u", "a"))
            assert len(harness.kinds()) == 1


class Seen(Struct, frozen=True):
    """A change of a version, with its event time."""

    id: str
    at: Timestamp
    kind: int
    tier: str | None
    city: str | None
    valid_from: int
    valid_to: int | None


class Stamp(KeyedProcessFunction[CustomerVersion, Seen]):
    async def process(self, row, ctx, /):
        ctx.collect(Seen(row.id, ctx.timestamp, int(ctx.row_kind), row.tier, row.city, row.valid_from, row.valid_to))


@pytest.mark.parametrize("parallelism", [1, 3])
@examples(6)
@given(events=EVENTS.filter(bool), cuts=st.sets(st.integers(1, 13), max_size=3), track=TRACKS)
def test_micro_batches_and_tasks_change_nothing(parallelism, events, cuts, track):
    stream = stream_of(History.SCD2, track=track)
    stream.key_by("id").process("stamp", Stamp()).sink("seen")
    key = ("id", "valid_from")
    pipeline = stream.upsert_materialize("latest", primary_key=key).sink("versions")
    harness = PipelineHarness(pipeline, bucket=1, parallelism=parallelism, files_per_batch=1)
    places = [0, *sorted(cuts), len(events)]
    for begin, end in pairwise(places):
        if part := events[begin:end]:
            harness.feed("changes", part)
    assert harness.run().quarantined == 0
    expected = versions(events, track)
    assert by_fields(harness.sink("versions")) == expected
    opened = {(event.id, event.lsn): event.at for event in events}
    seen = harness.sink("seen")
    assert all(row.at == opened[row.id, row.valid_from] for row in seen)
    assert sum(-1 if RowKind(row.kind).is_retraction else 1 for row in seen) == len(expected)


@examples(40)
@given(events=EVENTS, cut=st.integers(0, 14), tracks=st.tuples(TRACKS, TRACKS), nulls=st.booleans())
def test_other_rules_keep_the_table_whole(events, cut, tracks, nulls):
    table = ChangelogTable()
    with harness_of(History.SCD2, track=tracks[0]) as harness:
        give(harness, *events[:cut])
        before, snapshot = harness.kinds(), harness.snapshot()
    function = stream_of(History.SCD2, track=tracks[1], ignore_nulls=nulls).operators[-1].function
    with KeyedHarness.restore(snapshot, function, key=attrgetter("id")) as harness:
        give(harness, *events[cut:])
        for kind, row in [*before, *harness.kinds()]:
            table.apply(kind, row)
    for key in "xy":
        rows = sorted((row for row in table.records(CustomerVersion) if row.id == key), key=attrgetter("valid_from"))
        assert all(row.valid_to is not None and row.valid_to <= later.valid_from for row, later in pairwise(rows))
