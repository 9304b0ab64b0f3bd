"""Current rows over columns: state, timers, changes and their places are those of single events."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from msgspec.structs import replace

from headrace import Digits, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.testing import PipelineHarness
from tests.unit.operators.test_group_columns import PRICES, Sale
from tests.unit.operators.test_slice_columns import PLAIN, SHOPS, Stage, equals_single_records, ordered, step, steps
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind


class Row(Struct, frozen=True):
    shop: str
    weight: float | None
    article: str | None
    price: Annotated[Decimal | None, Digits(38, 2)]


class Loud(Struct, frozen=True):
    shop: str

    def __post_init__(self):
        if self.shop == "x":
            raise ValueError("no such shop")


def is_old(sale):
    return sale.article == "a"


def fails_for_ab(sale):
    if sale.article == "ab":
        raise ValueError("no such article")
    return sale.article == "a"


def operator_of(*, gives=Row, sequence=("cents",), deletes=("article", "a"), tombstones=12, kinds=False):
    source = Pipeline("shop").source("sales", Sale, event_time="at", row_kind="kind" if kinds else None)
    rows = (source.drop_update_before("shop") if kinds else source).apply_changes(
        "rows",
        key=("shop",),
        sequence_by=sequence,
        deletes=deletes,
        record=gives,
        tombstones=Lifetime.FOREVER if tombstones is None else timedelta(milliseconds=tombstones),
    )
    return rows.operators[-1]


EVENTS = st.builds(
    Sale,
    shop=st.sampled_from(SHOPS),
    at=st.integers(-20, 20),
    cents=st.integers(0, 30) | st.sampled_from([None, -(1 << 63), (1 << 63) - 1]),
    weight=st.none() | st.sampled_from([0.0, -0.0, 0.1]),
    article=st.sampled_from([None, "a", "b", "ab"]),
    is_new=st.booleans(),
    price=st.none() | PRICES,
)
RULES = st.fixed_dictionaries(
    {
        "gives": st.sampled_from([Sale, Row]),
        "sequence": st.sampled_from([("cents",), ("at",), ("cents", "at"), ("at", "cents")]),
        "deletes": st.sampled_from([("article", "a"), ("is_new", True), is_old, fails_for_ab]),
        "tombstones": st.sampled_from([None, 3, 12, 1000]),
    }
)


@examples(80)
@given(steps(EVENTS), RULES, PLAIN)
def test_columns_equal_single_events(steps, rules, plain):
    equals_single_records(operator_of(**rules), steps, plain=())


@examples(60)
@given(steps(EVENTS, st.sampled_from([INSERT, AFTER, DELETE])), RULES)
def test_upserts_as_columns_equal_single_ones(steps, rules):
    equals_single_records(operator_of(**{**rules, "deletes": None}, kinds=True), steps)


def sale(at, cents, article="b", shop="a", weight=0.5):
    return Sale(shop, at, cents, weight, article, is_new=False)


def alone(*given, **rules):
    return equals_single_records(operator_of(**rules), [*given, step(later=9000)])


def test_ordered_events_are_taken_as_columns():
    given = [
        step(sale(0, 1), sale(5, 3), sale(1, 2, "a"), sale(2, 9, "a"), sale(3, 1, shop="b"), later=30, ends_batch=True),
        step(sale(6, 8), sale(7, 10), sale(8, 11), sale(9, 12, "a"), sale(9, 2, shop="b"), later=5, ends_batch=True),
    ]
    assert alone(*given, tombstones=1000) == [[], [], []]


def test_equal_rows_keep_their_time():
    given = [step(sale(0, 1), later=1, ends_batch=True), step(sale(1, 2), sale(2, 3), sale(3, 4, "c"), later=1)]
    assert alone(*given) == [[], []]
    stage = Stage(operator_of(), by_columns=True)
    emitted = [row for batch in ordered(given, plain=()) for row in stage.run(*batch)[0]]
    assert [(row.kind, row.timestamp, row.record.article) for row in emitted] == [
        (INSERT, 0, "b"),
        (BEFORE, 0, "b"),
        (AFTER, 3, "c"),
    ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([sale(1, 2), sale(2, 2)], ["a"]),
        ([sale(1, 2), sale(2, None)], ["a"]),
        ([sale(1, 2), sale(2, 3, "a"), sale(3, 4, shop="b")], []),
    ],
)
def test_keys_without_one_order_come_singly(events, expected):
    assert alone(step(*events, sale(4, 5, shop="c"), later=30, ends_batch=True)) == [expected, []]


@pytest.mark.parametrize(("again", "expected"), [(sale(0, 1), []), (sale(0, 1, "c"), ["a", "b"])])
def test_event_that_comes_again_is_dropped(again, expected):
    given = [step(sale(0, 1), later=40, ends_batch=True), step(again, sale(40, 9, shop="b"), later=1)]
    assert alone(*given) == [[], expected]


def test_key_forgotten_between_events_comes_singly():
    given = [step(sale(0, 5, "a"), sale(0, 1, shop="b"), later=50), step(sale(1, 3), sale(30, 2, shop="b"), later=5)]
    assert alone(*given) == [["a"]]
    stored = [given[0]._replace(later=31, ends_batch=True), step(later=20), given[1]]
    assert alone(*stored) == [[], ["a", "b"]]


def test_records_of_own_code_come_singly():
    assert not operator_of(gives=Loud).function.takes_columns
    assert not operator_of(sequence=("article",), deletes=("is_new", True)).function.takes_columns


@pytest.mark.parametrize(
    "deletes",
    [
        ("article", None),
        ("weight", None),
        ("cents", 1 << 70),
        ("article", "\ud800"),
        ("price", "1.50"),
        ("price", 1.5),
        ("price", Decimal("1.555")),
        ("price", Decimal(10) ** 30),
        ("day", "2026-01-31"),
    ],
)
def test_deleting_values_are_those_of_the_field(deletes):
    rows = [
        Sale("a", 1, 1, 0.5, "b", is_new=False, price=Decimal("1.50")),
        Sale("b", 2, 2, None, None, is_new=False),
        Sale("a", 3, 3, 0.5, None, is_new=False, price=Decimal("1.5"), day=date(2026, 2, 1)),
    ]
    assert alone(step(*rows, later=40), deletes=deletes) == [[]]


class Bound(Struct, frozen=True):
    shop: str
    cents: Annotated[int, Meta(ge=0)] | None


class Rounded(Struct, frozen=True):
    shop: str
    price: Annotated[Decimal | None, Digits(4, 1)]


def test_rows_with_limits_take_no_columns():
    assert not operator_of(gives=Bound, deletes=("is_new", True)).function.takes_columns


def test_value_that_rows_cannot_hold_names_its_record():
    rows = [Sale("a", 1, 1, 0.5, "b", is_new=False), replace(sale(2, 1, shop="b"), price=Decimal("12345.67"))]
    assert alone(step(*rows, later=40), gives=Rounded) == [["a", "b"]]


def test_stored_row_of_more_digits_comes_singly():
    class Fine(Struct, frozen=True):
        shop: str
        at: Timestamp
        cents: int
        price: Annotated[Decimal, Digits(20, 4)]

    class Coarse(Fine, frozen=True):
        price: Annotated[Decimal, Digits(20, 2)]

    def pipeline(record):
        source = Pipeline("shop").source("sales", record, event_time="at")
        rows = source.apply_changes(
            "rows", key=("shop",), sequence_by="cents", deletes=("cents", -1), tombstones=timedelta(1)
        )
        return rows.sink("rows", key=("shop",))

    harness = PipelineHarness(pipeline(Fine))
    harness.feed("sales", [Fine("a", 1, 5, Decimal("1.5555"))])
    harness.run()
    harness.change(pipeline=pipeline(Coarse))
    harness.feed("sales", [Coarse("a", 2, 2, Decimal("1.5"))])
    harness.run()
    assert harness.sink_table("rows")["cents"].to_pylist() == [5]
