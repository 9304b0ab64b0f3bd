"""Truncates of a feed of changes equal a deletion of each key in their place of the sequence, in whatever order events come."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, Lifetime, Pipeline, Struct, Timestamp
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.changed_jobs import FOREVER, MODELS, Change, changes_of, stream_of
from tests.unit.support.changelog_table import ChangelogTable, by_fields
from tests.unit.support.fuzzing import examples

KEYS = "xyz"
VALUES = st.sampled_from(["a", "b", None])
CHANGES = st.builds(
    Change, st.sampled_from(KEYS), st.integers(-3, 12), st.integers(0, 9), st.sampled_from("uuudt"), VALUES, VALUES
)


@st.composite
def feeds(draw):
    """Events of which truncates have sequences of their own."""
    events = draw(st.lists(CHANGES, max_size=16, unique_by=lambda event: (event.id, event.lsn)))
    places = {event.lsn for event in events if event.op == "t"}
    seen = set()
    kept = []
    for event in events:
        if event.op == "t" and event.lsn not in seen:
            seen.add(event.lsn)
            kept.append(event)
        elif event.op != "t" and event.lsn not in places:
            kept.append(event)
    return kept


def as_deletions(events):
    """Return the events with a deletion of each key in place of each truncate."""
    return [
        event if event.op != "t" else Change(key, event.lsn, event.at, "d")
        for event in events
        for key in (KEYS if event.op == "t" else event.id)
    ]


def truncated(history, **options):
    return stream_of(history, truncates=("op", "t"), **options)


def keyed(history, backend="hashmap", **options):
    function = truncated(history, **options).operators[-1].function
    return KeyedHarness(function, key=attrgetter("id"), backend=backend)


def give(harness, *events):
    for event in events:
        take = harness.process_broadcast if event.op == "t" else harness.process
        take(event, timestamp=event.at)
    harness.drain()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
@pytest.mark.parametrize("history", History)
@examples(40)
@given(events=feeds(), ignore_nulls=st.booleans(), cut=st.integers(0, 16))
def test_tables_equal_deletions_of_each_key(history, backend, events, ignore_nulls, cut):
    model, record = MODELS[history]
    options = {"ignore_nulls": ignore_nulls}
    table = ChangelogTable()
    with keyed(history, backend, **options) as harness:
        give(harness, *events[:cut])
        first, snapshot = harness.kinds(), harness.snapshot()
    function = truncated(history, **options).operators[-1].function
    with KeyedHarness.restore(snapshot, function, key=attrgetter("id"), backend=backend) as harness:
        give(harness, *events[cut:])
        for kind, row in [*first, *harness.kinds()]:
            table.apply(kind, row)
        assert not harness.quarantined()
    assert table.records(record) == model(as_deletions(events), **options)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@examples(8)
@given(events=feeds().filter(bool), cuts=st.sets(st.integers(1, 15), max_size=3), history=st.sampled_from(History))
def test_micro_batches_and_tasks_change_nothing(parallelism, events, cuts, history):
    model, _ = MODELS[history]
    key = ("id", "valid_from") if history is History.SCD2 else ("id",)
    pipeline = truncated(history).upsert_materialize("latest", primary_key=key).sink("rows")
    harness = PipelineHarness(pipeline, bucket=1, parallelism=parallelism, files_per_batch=1)
    for begin, end in pairwise([0, *sorted(cuts), len(events)]):
        if part := events[begin:end]:
            harness.feed("changes", part)
    assert harness.run().quarantined == 0
    assert by_fields(harness.sink("rows")) == model(as_deletions(events))


class Logged(Struct, frozen=True):
    id: str | None
    lsn: int | None
    at: Timestamp
    op: str
    tier: str | None = None


class Row(Struct, frozen=True):
    id: str | None
    tier: str | None


def run_logged(*events, **options):
    rules = {"sequence_by": "lsn", "truncates": ("op", "t"), "record": Row, **options}
    source = Pipeline("shop").source("changes", Logged, event_time="at")
    harness = PipelineHarness(source.apply_changes("rows", key="id", **rules).sink("rows", key="id"), bucket=1)
    harness.feed("changes", [*events])
    return harness.run(), by_fields(harness.sink("rows"))


@pytest.mark.parametrize("key", [None, "a", "new"])
def test_key_of_a_truncate_counts_nothing(key):
    report, rows = run_logged(
        Logged("a", 1, 0, "u", "gold"), Logged(key, 3, 1, "t"), Logged("b", 2, 2, "u"), Logged("c", 4, 3, "u", "new")
    )
    assert (report.quarantined, rows) == (0, [Row("c", "new")])


def test_truncate_without_a_sequence_is_refused():
    report, rows = run_logged(Logged("a", 1, 0, "u", "gold"), Logged("a", None, 1, "t"))
    assert (report.quarantined, rows) == (1, [Row("a", "gold")])


@pytest.mark.parametrize("history", History)
@pytest.mark.parametrize("is_first", [True, False])
def test_event_in_place_of_a_truncate_is_refused(history, is_first):
    row, truncate = Change("x", 4, 7, "u", "a", "c"), Change("y", 4, 1, "t")
    with keyed(history) as harness:
        give(harness, Change("x", 2, 0, "u", "b"), *([row, truncate] if is_first else [truncate, row]))
        model, record = MODELS[history]
        table = ChangelogTable()
        for kind, changed in harness.kinds():
            table.apply(kind, changed)
        assert table.records(record) == model([Change("x", 2, 0, "u", "b"), Change("x", 4, 1, "d")])
        ((refused, reason),) = harness.quarantined()
        assert (refused, "a truncate has the same lsn" in reason) == (row, True)


@pytest.mark.slow
@pytest.mark.parametrize("history", History)
@examples(60)
@given(
    events=st.lists(CHANGES, max_size=12, unique_by=lambda event: (event.op == "t" or event.id, event.lsn)),
    order=st.randoms(use_true_random=False),
    ignore_nulls=st.booleans(),
)
def test_equal_places_give_equal_tables(history, events, order, ignore_nulls):
    """Events in the place of a truncate are in no table, whichever of the two comes first."""
    truncates = {event.lsn for event in events if event.op == "t"}
    model, record = MODELS[history]
    wanted = model(
        as_deletions([event for event in events if event.op == "t" or event.lsn not in truncates]),
        ignore_nulls=ignore_nulls,
    )
    order.shuffle(events)
    with keyed(history, ignore_nulls=ignore_nulls) as harness:
        give(harness, *events)
        table = ChangelogTable()
        for kind, row in harness.kinds():
            table.apply(kind, row)
    assert table.records(record) == wanted


def test_final_event_in_place_of_a_truncate_stays():
    with keyed(History.SCD2, corrections=timedelta(milliseconds=5)) as harness:
        give(harness, Change("x", 4, 0, "u", "a"))
        harness.watermark(100)
        give(harness, Change("", 4, 101, "t"))
        assert (len(harness.kinds()), harness.quarantined()) == (1, [])


def test_final_events_are_not_truncated():
    with keyed(History.SCD2, corrections=timedelta(milliseconds=5)) as harness:
        give(harness, Change("x", 1, 0, "u", "a"), Change("x", 9, 1, "u", "b"))
        harness.watermark(100)
        give(harness, Change("", 5, 2, "t"))
        assert len(harness.kinds()) == 4
        give(harness, Change("", 12, 101, "t"))
        assert [row.valid_to for _, row in harness.kinds()][-1] == 12


@pytest.mark.parametrize("history", History)
def test_truncates_may_be_added_to_a_job(history):
    def pipeline(**options):
        stream = stream_of(history, **options)
        return stream.upsert_materialize("latest", primary_key=stream.record_type().__struct_fields__[:1]).sink("rows")

    harness = PipelineHarness(pipeline(), bucket=1)
    harness.feed("changes", [Change("x", 1, 0, "u", "a"), Change("y", 7, 1, "u", "a")])
    harness.run()
    harness.change(pipeline=pipeline(truncates=("op", "t")))
    harness.feed("changes", [Change("x", 5, 10, "t")])
    harness.run()
    assert [row.id for row in harness.sink("rows") if getattr(row, "valid_to", None) is None] == ["y"]


def test_current_rows_remember_one_truncate():
    with keyed(History.SCD1) as harness:
        give(harness, Change("x", 1, 0, "u", "a"), *(Change("", lsn, 1, "t") for lsn in (5, 3, 7)))
        assert [place.sequence.lsn for place in harness.state("truncates_by_lsn", None).values()] == [7]
        assert harness.state("last_event_by_lsn", "x") is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"truncates": ("op", 7)}, "truncates=('op', 7): field 'op' of Change cannot hold this value"),
        ({"truncates": ("kind", "t")}, "kind"),
        ({"truncates": 5}, "truncates"),
        ({"deletes": None, "truncates": ("op", "t"), "tombstones": timedelta(1)}, "no event deletes"),
    ],
)
def test_truncates_that_cannot_be_are_refused(options, error):
    source = Pipeline("shop").source("changes", Change, event_time="at")
    with pytest.raises((TypeError, ValueError)) as caught:
        source.apply_changes("customers", **{**changes_of(History.SCD1), **options})
    assert error in str(caught.value)
    assert "apply_changes 'customers'" in str(caught.value)


def test_versions_ended_by_truncates_need_tombstones():
    rules = {**changes_of(History.SCD2), "deletes": None, "truncates": ("op", "t")}
    source = Pipeline("shop").source("changes", Change, event_time="at")
    del rules["tombstones"]
    with pytest.raises(ValueError, match="tombstones"):
        source.apply_changes("customers", **rules)
    assert source.apply_changes("others", **{**rules, "tombstones": FOREVER})


def test_feeds_with_kinds_have_no_truncates():
    source = Pipeline("shop").source("changes", Change, row_kind="op", event_time="at")
    with pytest.raises(ValueError, match="none of them truncates"):
        source.apply_changes("rows", key="id", sequence_by="lsn", truncates=("tier", "t"), tombstones=Lifetime.FOREVER)
