"""Versions over columns: state, timers, changes and their places are those of single events."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter
from random import Random
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import Digits, History, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import ValidFrom, ValidTo
from headrace.operators._apply_changes import HistoryFunction
from headrace.state.backend import HashMapBackend
from headrace.state.rocksdb import RocksDbBackend
from headrace.testing import PipelineHarness
from tests.unit.operators.changed_jobs import Change, stream_of, versions
from tests.unit.operators.test_current_row_columns import fails_for_ab, is_old
from tests.unit.operators.test_group_columns import PRICES, Sale
from tests.unit.operators.test_slice_columns import PLAIN, SHOPS, Stage, equals_single_records, ordered, step, steps
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind


class Version(Struct, frozen=True):
    shop: str
    weight: float | None
    article: str | None
    valid_from: int
    price: Annotated[Decimal | None, Digits(38, 2)]
    valid_to: int | None


class Bounded(Struct, frozen=True):
    ends: Annotated[Timestamp | None, ValidTo("at")]
    shop: str
    cents: int | None
    number: Annotated[int, ValidFrom("cents")]
    begins: Annotated[Timestamp, ValidFrom("at")]
    article: str | None


class Loud(Struct, frozen=True):
    shop: str
    valid_from: int
    valid_to: int | None

    def __post_init__(self):
        if self.shop == "x":
            raise ValueError("no such shop")


def lifetime(number):
    return Lifetime.FOREVER if number is None else timedelta(milliseconds=number)


def operator_of(
    *,
    gives=Version,
    sequence=("cents",),
    deletes=("article", "a"),
    tombstones=12,
    corrections=1000,
    track=(),
    late=False,
    kinds=False,
    **options,
):
    source = Pipeline("shop").source("sales", Sale, event_time="at", row_kind="kind" if kinds else None)
    rows = (source.drop_update_before("shop") if kinds else source).apply_changes(
        "rows",
        key=("shop",),
        sequence_by=sequence,
        deletes=deletes,
        history=History.SCD2,
        record=gives,
        track=track,
        tombstones=lifetime(tombstones),
        corrections=lifetime(corrections),
        **options,
    )
    operators = rows.side_output("late", Sale, sink="late").operators if late else rows.operators
    return next(operator for operator in operators if operator.name == "rows")


EVENTS = st.builds(
    Sale,
    shop=st.sampled_from(SHOPS),
    at=st.integers(-20, 20),
    cents=st.sampled_from([1] * 12 + [0, -2, -6, None]),
    weight=st.none() | st.sampled_from([0.0, -0.0, 0.1]),
    article=st.sampled_from([None, "a", "b", "b", "ab"]),
    is_new=st.sampled_from([False] * 9 + [True]),
    price=st.none() | PRICES,
)
RULES = st.fixed_dictionaries(
    {
        "deletes": st.sampled_from([("article", "a"), ("weight", None), is_old, fails_for_ab]),
        "tombstones": st.sampled_from([None, 3, 12, 1000]),
        "corrections": st.sampled_from([None, 2, 12, 40, 1000]),
        "track": st.sampled_from([(), ("article",)]),
        "late": st.booleans(),
    }
)
TABLES = st.sampled_from([(Version, ("cents",)), (Bounded, ("cents", "at")), (Bounded, ("at", "cents"))])


def numbered(steps):
    """Return steps whose events count up, but for those that go back by `cents`. One that `is_new` is the event of its shop before it once more."""
    number, last = 10, {}

    def event(sale):
        nonlocal number
        number += 2
        if sale.is_new and sale.shop in last:
            return last[sale.shop]
        last[sale.shop] = replace(sale, cents=None if sale.cents is None else number + sale.cents)
        return last[sale.shop]

    return [part._replace(sales=[*map(event, part.sales)], effects=[*map(event, part.effects)]) for part in steps]


@examples(120)
@given(steps(EVENTS), RULES, TABLES)
def test_columns_equal_single_events(steps, rules, table):
    gives, sequence = table
    equals_single_records(operator_of(gives=gives, sequence=sequence, **rules), numbered(steps))


@examples(60)
@given(steps(EVENTS, st.sampled_from([INSERT, AFTER, DELETE])), RULES)
def test_upserts_as_columns_equal_single_ones(steps, rules):
    equals_single_records(operator_of(**{**rules, "deletes": None}, kinds=True), numbered(steps))


@examples(30)
@given(steps(EVENTS), RULES, PLAIN)
def test_events_in_time_equal_single_ones(steps, rules, plain):
    given = [part._replace(effects=[]) for part in numbered(steps)]
    by_columns, single = (Stage(operator_of(**rules), by_columns=taken) for taken in (True, False))
    for rows, watermarks in ordered(given, plain=plain):
        seen = by_columns.run(rows, watermarks)
        assert repr(seen) == repr(single.run(rows, watermarks))
        if not isinstance(seen, tuple):
            break


def sale(at, cents, article="b", shop="a", weight=0.5):
    return Sale(shop, at, cents, weight, article, is_new=False)


def alone(*given, **rules):
    return equals_single_records(operator_of(**rules), [*given, step(later=9000)])


IN_ORDER = [
    step(
        sale(0, 1), sale(5, 3, "c"), sale(1, 5, "a"), sale(2, 6, "c"), sale(3, 1, shop="b"), later=30, ends_batch=True
    ),
    step(sale(6, 8, "c", weight=1.0), sale(7, 10), sale(9, 12, "a"), sale(9, 2, shop="b"), later=5, ends_batch=True),
]


def test_ordered_events_are_taken_as_columns():
    assert alone(*IN_ORDER, tombstones=1000) == [[], [], []]
    assert alone(*IN_ORDER, tombstones=None, corrections=None) == [[], [], []]


def test_each_event_changes_the_last_version():
    stage = Stage(operator_of(track=("article",), tombstones=1000), by_columns=True)
    emitted = [row for batch in ordered(IN_ORDER, plain=()) for row in stage.run(*batch)[0] if row.record.shop == "a"]
    assert stage.alone == [[], [], []]

    def row(kind, at, article, begins, ends, weight=0.5):
        return (kind, at, article, begins, ends, weight)

    shown = attrgetter("article", "valid_from", "valid_to", "weight")
    assert [(change.kind, change.timestamp, *shown(change.record)) for change in emitted] == [
        row(INSERT, 0, "b", 1, None),
        row(BEFORE, 0, "b", 1, None),
        row(AFTER, 0, "b", 1, 3),
        row(INSERT, 5, "c", 3, None),
        row(BEFORE, 5, "c", 3, None),
        row(AFTER, 5, "c", 3, 5),
        row(INSERT, 2, "c", 6, None),
        row(BEFORE, 2, "c", 6, None),
        row(AFTER, 2, "c", 6, None, 1.0),
        row(BEFORE, 2, "c", 6, None, 1.0),
        row(AFTER, 2, "c", 6, 10, 1.0),
        row(INSERT, 7, "b", 10, None),
        row(BEFORE, 7, "b", 10, None),
        row(AFTER, 7, "b", 10, 12),
    ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([sale(1, 2), sale(2, 1)], []),
        ([sale(1, 2), sale(2, 2)], ["a"]),
        ([sale(1, 2), sale(1, 2), sale(1, 2)], []),
        ([sale(1, 2), sale(2, 3), sale(1, 2)], []),
        ([sale(1, 2), sale(2, 3), sale(1, 2, "c")], ["a"]),
        ([sale(1, 2), sale(2, None)], ["a"]),
        ([sale(1, 2), sale(2, 3, "a"), sale(3, 4, shop="b")], []),
    ],
)
def test_refused_events_come_singly(events, expected):
    assert alone(step(*events, sale(4, 5, shop="c"), later=30, ends_batch=True)) == [expected, []]


@pytest.mark.parametrize(
    ("again", "expected"),
    [(sale(0, 4), []), (sale(0, 4, "c"), ["a"]), (sale(0, 4, "a"), ["a"]), (sale(0, 3), []), (sale(0, 5), [])],
)
def test_event_behind_stored_one_keeps_order(again, expected):
    given = [step(sale(0, 4), later=29, ends_batch=True), step(again, sale(40, 9), sale(40, 9, shop="b"), later=1)]
    assert alone(*given) == [[], expected]


def test_deletion_that_comes_again_is_dropped():
    given = [step(sale(0, 4, "a"), later=1, ends_batch=True), step(sale(0, 4, "a", weight=3.0), sale(2, 5), later=1)]
    assert alone(*given) == [[], []]


def test_key_forgotten_between_events_comes_singly():
    given = [step(sale(0, 5, "a"), sale(0, 1, shop="b"), later=50), step(sale(1, 6), sale(30, 2, shop="b"), later=5)]
    assert alone(*given) == [["a"]]
    stored = [given[0]._replace(later=31, ends_batch=True), step(later=20), given[1]]
    assert alone(*stored) == [[], ["a"]]


@pytest.mark.parametrize(("at", "expected"), [(15, []), (10, ["a"])])
def test_final_event_comes_singly(at, expected):
    given = [step(sale(0, 1), later=45), step(sale(at, 2), sale(20, 3), later=1), step(sale(20, 4, shop="b"), later=1)]
    assert alone(*given, corrections=5, tombstones=None) == [expected]


def test_records_of_own_code_come_singly():
    assert not operator_of(gives=Loud).function.takes_columns
    assert not operator_of(ignore_nulls=True).function.takes_columns
    assert not operator_of(truncates=("article", "t")).function.takes_columns


@pytest.mark.parametrize("name", ["memory", "rocksdb"])
def test_backends_store_same_events(name, tmp_path):
    backends = [HashMapBackend() if name == "memory" else RocksDbBackend(tmp_path / str(number)) for number in (1, 2)]
    given = [*IN_ORDER, step(sale(30, 14), sale(31, 13), sale(32, 4, shop="b"), later=5)]
    assert equals_single_records(operator_of(tombstones=1000), given, backends=backends) == [[], [], []]
    for backend in backends:
        backend.close()


def changes(number, chance):
    """Return events of a few keys, of which a few come again, or change places with later ones."""
    events = [
        Change(chance.choice("vwxyz"), lsn, lsn, chance.choice("uuuud"), chance.choice("ab"), chance.choice("rs"))
        for lsn in range(number)
    ]
    for _ in range(number // 20):
        one, other = (chance.randrange(number) for _ in range(2))
        events[one], events[other] = events[other], events[one]
    return [event for event in events for _ in range(1 + (chance.random() < 0.05))]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
@examples(5)
@given(seed=st.integers(0, 1 << 32))
def test_splits_and_crashes_change_nothing(backend, seed):
    chance = Random(seed)
    events = changes(60, chance)
    stream = stream_of(History.SCD2, track=("tier",))
    pipeline = stream.upsert_materialize("latest", primary_key=("id", "valid_from")).sink("versions")
    harness = PipelineHarness(
        pipeline,
        backend=backend,
        bucket=chance.choice([1, 7, 1000]),
        parallelism=chance.choice([1, 3]),
        files_per_batch=1,
    )
    places = [0, *sorted(chance.sample(range(1, len(events)), 3)), len(events)]
    for begin, end in pairwise(places):
        harness.feed("changes", events[begin:end])
    harness.run(crash_at=chance.choice([None, "task.half:2", "commit.after"]))
    assert harness.run() is not None
    assert by_fields(harness.sink("versions")) == versions({event.lsn: event for event in events}.values(), ("tier",))


def test_tasks_take_versions_as_columns():
    pipeline = stream_of(History.SCD2).sink("versions", key=("id", "valid_from"))
    harness = PipelineHarness(pipeline, bucket=7)
    harness.feed("changes", [Change("xyz"[lsn % 3], lsn, lsn, "u", "ab"[lsn // 5 % 2]) for lsn in range(60)])
    with mock.patch.object(HistoryFunction, "process", side_effect=AssertionError):
        harness.run()
    assert len(harness.sink("versions")) == 36
