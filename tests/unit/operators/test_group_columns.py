"""Aggregates of all records of a key: columns give the state and the results of single records."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from typing import Annotated
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Emit, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import Avg, Count, First, Last, Max, Min, Sum
from headrace.operators._group_columns import GroupColumns
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

ONE_BY_ONE = {"execution": {"async-state": {"enabled": False}}}


class Sale(Struct, frozen=True):
    shop: str
    at: Timestamp
    cents: int | None
    weight: float | None
    article: str | None
    is_new: bool
    price: Annotated[Decimal, Digits(20, 2)] | None = None
    day: date = date(2026, 1, 31)


class Sold(Struct, frozen=True):
    shop: str
    sales: Annotated[int, Count()]
    priced: Annotated[int, Count("cents")]
    cents: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    weight: Annotated[float | None, Sum("weight")]
    mean_weight: Annotated[float | None, Avg("weight")]
    cheapest: Annotated[int | None, Min("cents")]
    dearest: Annotated[int | None, Max("cents")]
    lightest: Annotated[float | None, Min("weight")]
    heaviest: Annotated[float | None, Max("weight")]
    least: Annotated[str | None, Min("article")]
    greatest: Annotated[str | None, Max("article")]
    any_new: Annotated[bool, Max("is_new")]
    first: Annotated[str | None, First("article")]
    last: Annotated[int | None, Last("cents")]
    price: Annotated[Decimal | None, Digits(38, 2), Sum("price")]
    lowest: Annotated[Decimal | None, Digits(22, 3), Min("price")]
    latest: Annotated[date, Max("day")]
    first_price: Annotated[Decimal | None, Digits(20, 2), First("price")]
    last_day: Annotated[date, Last("day")]


class Extremes(Struct, frozen=True):
    """A result that many records leave as it is."""

    dearest: Annotated[int | None, Max("cents")]
    latest: Annotated[Timestamp, Max("at")]
    first: Annotated[float | None, First("weight")]


PRICES = (st.integers(-5, 5) | st.integers(-(10**20) + 1, 10**20 - 1)).map(lambda cents: Decimal(cents).scaleb(-2))
SALES = st.lists(
    st.builds(
        Sale,
        shop=st.sampled_from(["a", "b", 'c"', ""]),
        at=st.integers(-30, 30),
        cents=st.none() | st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1),
        weight=st.none() | st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16]),
        article=st.none() | st.sampled_from(["", "a", "ab", "é", "z", "\U0001f600", "\uffee"]),
        is_new=st.booleans(),
        price=st.none() | PRICES,
        day=st.sampled_from([date(1, 1, 1), date(2026, 1, 31), date(9999, 12, 31)]),
    ),
    max_size=40,
)


class Means(Struct, frozen=True):
    shop: str
    cents: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    mean_weight: Annotated[float | None, Avg("weight")]


def aggregated(result, emit, *, retract):
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop")
    totals = sales.aggregate("totals", result, emit=emit, retract=retract, state_ttl=Lifetime.FOREVER)
    return totals.sink("log")


def played(pipeline, sales, seed, **options):
    """Return results and state after each of three micro-batches, or the error; the files are the same for a seed."""
    chance = random.Random(seed)
    harness = PipelineHarness(pipeline, bucket=chance.choice([2, 5, 100]), files_per_batch=1, **options)
    cuts = sorted(chance.randrange(len(sales) + 1) for _ in range(2))
    seen = []
    for start, end in zip([0, *cuts], [*cuts, len(sales)], strict=True):
        harness.feed("sales", sales[start:end])
        try:
            harness.run()
        except UserFunctionError:
            return [*seen, "failed"]
        rows = harness.table("keyed_state").drop_columns(["checkpoint_id"]).to_pylist()
        metrics = harness.facts[-1].metrics
        counts = [metrics.get(name, 0) for name in ("keyed_records", "late", "rows_out")]
        seen.append((sorted(map(str, harness.sink("log"))), sorted(map(str, rows)), counts))
    return seen


@pytest.mark.slow  # each example takes a second
@examples(4)
@given(
    SALES, st.sampled_from([Sold, Extremes]), st.sampled_from(Emit), st.booleans(), st.randoms(use_true_random=False)
)
def test_columns_equal_single_records(sales, result, emit, retract, chance):
    pipeline, seed = aggregated(result, emit, retract=retract), chance.randrange(1 << 30)
    backend, parallelism = chance.choice(["hashmap", "rocksdb", "delta"]), chance.choice([1, 2, 3])
    columns = played(pipeline, sales, seed, backend=backend, parallelism=parallelism)
    assert columns == played(pipeline, sales, seed, job=ONE_BY_ONE)


def test_plain_sales_are_taken_as_columns():
    sales = [Sale("a", at, at, 0.1, "x", is_new=False) for at in range(10)]
    with mock.patch.object(GroupColumns, "results", autospec=True, side_effect=GroupColumns.results) as results:
        played(aggregated(Sold, Emit.EVERY_CHANGE, retract=True), sales, 1)
    assert results.call_count > 1


def sale(cents, weight=None):
    return Sale("a", 1, cents, weight, None, is_new=False)


def test_mean_rounds_beyond_exact_floats():
    large = (1 << 53) + 1
    pipeline, sales = aggregated(Means, Emit.EVERY_CHANGE, retract=False), [sale(large), sale(0), sale(0)]
    assert played(pipeline, sales, 1) == played(pipeline, sales, 1, job=ONE_BY_ONE)


def test_value_that_never_came_is_not_retracted():
    sales = Pipeline("shop").source("sales", Sale, event_time="at", row_kind="kind").key_by("shop")
    pipeline = sales.aggregate("totals", Means, retract=False, state_ttl=Lifetime.FOREVER).sink("log")
    harness = PipelineHarness(pipeline)
    harness.feed(
        "sales", [sale(None), sale(None), sale(6, 1.5)], kinds=[RowKind.INSERT, RowKind.INSERT, RowKind.DELETE]
    )
    harness.run()
    harness.feed("sales", [sale(None, 0.5)], kinds=[RowKind.INSERT])
    harness.run()
    assert set(harness.sink("log")) == {Means("a", None, None, None), Means("a", None, None, 0.5)}
    assert harness.table("quarantine").num_rows == 1


class Doubled(Struct):
    shop: str
    at: Timestamp
    cents: int

    def __post_init__(self):
        self.cents *= 2


class Dearest(Struct):
    shop: str
    cents: Annotated[int | None, Max("cents")]


class Unequal(Dearest):
    __hash__ = None

    def __ne__(self, other):
        return True


class Cheap(Struct):
    shop: Annotated[str, msgspec.Meta(max_length=1)] | None
    cents: Annotated[Annotated[int, msgspec.Meta(le=5)] | None, Max("cents")]


@pytest.mark.parametrize(
    ("record", "result", "expected"),
    [(Sale, Dearest, True), (Doubled, Dearest, False), (Sale, Unequal, False), (Sale, Cheap, False)],
)
def test_code_and_limits_need_records(record, result, expected):
    totals = Pipeline("shop").source("sales", record, event_time="at").key_by("shop")
    function = totals.aggregate("totals", result, state_ttl=Lifetime.FOREVER).operators[-1].function
    assert function.takes_columns is expected


def test_error_names_record():
    class Numbered(Struct):
        key: int
        sales: Annotated[int, Count()]

    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by(lambda sale: sale.shop)
    harness = PipelineHarness(sales.aggregate("totals", Numbered, state_ttl=Lifetime.FOREVER).sink("log"))
    harness.feed("sales", [sale(1)])
    with pytest.raises(UserFunctionError, match=r'key "a", record \{"shop":"a"'):
        harness.run()
