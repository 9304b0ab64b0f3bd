"""Rows of many keys together: state, timers, results and their places are those of single records."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, Digits, Late, Lifetime, Pipeline, StateTtl, Struct, Timestamp
from headrace.operators import Avg, Count, CountDistinct, First, Lag, Last, Lead, Max, RowNumber, Sum
from headrace.operators._over import OverFunction
from headrace.state.backend import HashMapBackend
from headrace.state.rocksdb import RocksDbBackend
from headrace.testing import PipelineHarness
from tests.unit.operators.test_expiring_columns import ONE_BY_ONE
from tests.unit.operators.test_group_columns import SALES as MANY_SALES
from tests.unit.operators.test_group_columns import Sale, played
from tests.unit.operators.test_slice_columns import (
    PLAIN,
    SALES,
    SHOPS,
    Articles,
    Stage,
    equals_single_records,
    is_cheap,
    ms,
    ordered,
    sale,
    step,
    steps,
)
from tests.unit.support.fuzzing import examples


class Summed(Struct, frozen=True):
    """Aggregates that can give a row back."""

    shop: str
    at: Timestamp
    sales: Annotated[int, Count()]
    cheap: Annotated[int, Count(where=is_cheap)]
    cents: Annotated[int | None, Sum("cents")]
    articles: Annotated[int, CountDistinct("article")]
    price: Annotated[Decimal | None, Digits(38, 2), Sum("price")]


class Folded(Struct, frozen=True):
    """Aggregates that cannot give a row back, one of them of user code."""

    shop: str
    at: Timestamp
    weight: Annotated[float | None, Sum("weight")]
    mean: Annotated[float | None, Avg("weight")]
    dearest: Annotated[int | None, Max("cents")]
    first: Annotated[str | None, First("article")]
    last: Annotated[str | None, Last("article")]
    articles: Annotated[str, Articles()]


class Numbered(Struct, frozen=True):
    """Functions of the row's place."""

    at: Timestamp
    number: Annotated[int, RowNumber()]
    before: Annotated[int | None, Lag("cents")]
    cents: Annotated[int | None, Sum("cents")]


class Next(Struct, frozen=True):
    at: Timestamp
    next: Annotated[int | None, Lead("cents")]


def over_of(result, *, rows=None, within=None, keep=0, **options):
    sales = Pipeline("shop").source("sales", Sale, event_time="at", out_of_orderness=ms(5))
    if result is Numbered or (within is None and rows != 1):
        options = {"state_ttl": Lifetime.FOREVER, **options}
    if keep:
        options |= {"late": Late.CORRECT, "keep": ms(keep)}
    length = None if within is None else ms(within)
    return sales.key_by("shop").over("recent", result, rows=rows, within=length, **options)


def operator_of(result, **options):
    results = over_of(result, **options).side_output("late", Sale, sink="late")
    return next(operator for operator in results.operators if operator.name == "recent")


FRAMES = [
    {},
    {"rows": 1},
    {"rows": 3},
    {"within": 0},
    {"within": 7},
    {"within": 7, "keep": 4},
    {"rows": 3, "keep": 4},
    {"keep": 6},
]


@pytest.mark.slow
@examples(80)
@given(steps(SALES), st.sampled_from(FRAMES), st.sampled_from([Summed, Folded, Numbered]), PLAIN)
def test_keys_together_equal_single_records(steps, frame, result, plain):
    equals_single_records(operator_of(result, **frame), [*steps, step(later=50)], plain=SHOPS if plain == SHOPS else ())


@examples(40)
@given(steps(SALES), st.sampled_from([3, 7, 20]), st.sampled_from([(), ("cents",)]))
def test_sliding_ranges_equal_single_records(steps, within, order_by):
    equals_single_records(operator_of(Summed, within=within, order_by=order_by), [*steps, step(later=50)])


@examples(40)
@given(steps(SALES), st.integers(1, 40), st.sampled_from([{}, {"rows": 3}, {"within": 7}]), st.booleans())
def test_lifetimes_equal_single_records(steps, length, frame, exact):
    """Without the sweep, which removes expired entries in the order in which the backend got them."""
    cleanup = Cleanup(entries_per_record=0, exact=exact)
    ttl = StateTtl(ms(length), cleanup=cleanup)
    equals_single_records(operator_of(Numbered, state_ttl=ttl, **frame), [*steps, step(later=50)])


IN_TIME = [
    step(
        *(sale(at, cents, shop) for at, cents, shop in [(0, 1, "a"), (3, 2, "b"), (3, 5, "a"), (9, None, "a")]),
        later=34,
    ),
    step(sale(9, 7), sale(12, 4), sale(5, 1, "b"), later=3, ends_batch=True),
    step(sale(30, 3), sale(8, 1), sale(14, 2, "b"), later=8),
    step(sale(30, 1), later=5, ends_batch=True),
    step(sale(31, 2), later=5, ends_batch=True),
    step(later=60, ends_batch=True),
]
"""Sales in time, of which some wait from one micro-batch to the next, and others leave a range there."""


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("result", [Summed, Folded, Numbered])
def test_sales_in_time_come_together(frame, result, tmp_path):
    for name, make in {"memory": lambda _: HashMapBackend(), "rocksdb": RocksDbBackend}.items():
        backends = [make(tmp_path / f"{name}-{number}") for number in (1, 2)]
        alone = equals_single_records(operator_of(result, **frame), IN_TIME, plain=SHOPS, backends=backends)
        assert not any(alone)
        assert len(alone) == len(IN_TIME) - 1
        for backend in backends:
            backend.close()


def test_late_and_failing_shops_come_alone():
    given = [
        step(sale(0), sale(0, shop="b"), later=35),
        step(sale(1), sale(9, (1 << 63) - 1, "b"), sale(9, shop='c"'), later=5, ends_batch=True),
        step(sale(11, 1, 'c"'), later=9),
    ]
    assert equals_single_records(operator_of(Folded, within=20), given) == [["a"], []]
    given[1].sales[1] = sale(0, 1, "b")
    assert equals_single_records(operator_of(Folded, within=20), given) == [["a", "b"], []]


def test_sum_beyond_its_bits_fails_as_alone():
    given = [step(sale(0, (1 << 63) - 1), sale(1, shop="b"), later=35), step(sale(9, 1), later=9, ends_batch=True)]
    alone = equals_single_records(operator_of(Summed, within=20), given)
    assert alone == [["a"]]


def test_key_beyond_its_bits_goes_on_alone():
    """The range has more than 64 bits hold when its first row leaves, which no row sees: the aggregates begin anew."""
    given = [
        step(sale(0, -10), sale(5, (1 << 63) - 1), sale(6, 5), sale(0, shop="b"), later=37, ends_batch=True),
        step(sale(8, 1), sale(30, 1), sale(20, 1, "b"), later=13, ends_batch=True),
        step(later=40),
    ]
    assert equals_single_records(operator_of(Summed, within=9), given) == [[], ["a"], []]


def test_rows_that_wait_for_others_come_singly():
    assert not operator_of(Next, within=20, state_ttl=Lifetime.FOREVER).function.takes_columns


def in_order(sales):
    """Return sales of which none is late."""
    return sorted(sales, key=lambda sale: sale.at + (sale.cents or 0) % 4)


@pytest.mark.slow
@examples(8)
@given(
    MANY_SALES,
    st.booleans(),
    st.sampled_from(FRAMES),
    st.sampled_from([Summed, Folded, Numbered]),
    st.sampled_from(["hashmap", "rocksdb", "delta"]),
    st.integers(1, 3),
    st.integers(0, 999),
)
def test_micro_batches_equal_rows_one_by_one(sales, sorts, frame, result, backend, parallelism, seed):
    pipeline, sales = over_of(result, **frame).sink("log"), in_order(sales) if sorts else sales
    singly = played(pipeline, sales, seed, job=ONE_BY_ONE)
    assert played(pipeline, sales, seed, backend=backend, parallelism=parallelism) == singly


@pytest.mark.parametrize("job", [{}, {"max_memory": 1 << 26}])
def test_tasks_take_keys_together(job):
    harness = PipelineHarness(over_of(Summed, within=9).sink("log"), bucket=4, job=job)
    harness.feed("sales", [sale(at, shop=shop) for at in range(30) for shop in "ab"])
    with mock.patch.object(OverFunction, "process", side_effect=AssertionError):
        harness.run(end_of_input=True)
    counts = [row.sales for row in sorted(harness.sink("log"), key=lambda row: (row.shop, row.at))]
    assert counts == 2 * [*range(1, 10), *[10] * 21]


@pytest.mark.parametrize("first", [True, False])
def test_stored_rows_go_on_either_way(first):
    """A job whose keys come singly, and then together, has the state of one that does not change, and the other way."""
    operator = operator_of(Summed, within=9)
    mixed, single = Stage(operator, by_columns=True), Stage(operator, by_columns=False)
    for number, (rows, watermarks) in enumerate(ordered(IN_TIME, plain=SHOPS)):
        mixed.by_columns = (number % 2 == 0) is first
        assert repr(mixed.run(rows, watermarks)) == repr(single.run(rows, watermarks))
