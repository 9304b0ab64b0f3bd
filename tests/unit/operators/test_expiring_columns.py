"""Aggregates with a lifetime over columns: state, expiry and results are those of single records."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, ExpiryClock, Pipeline, StateTtl, TtlTime, UpdateType
from headrace.operators._group_aggregation import GroupAggregation
from headrace.testing import PipelineHarness
from tests.unit.operators.test_group_columns import Extremes, Means, Sale, Sold, played
from tests.unit.operators.test_slice_columns import SALES, equals_single_records, ms, sale, step, steps
from tests.unit.support.fuzzing import examples

ONE_BY_ONE = {"execution": {"async-state": {"enabled": False}}}
UPDATES = [UpdateType.ON_CREATE_AND_WRITE, UpdateType.ON_READ_AND_WRITE, UpdateType.ON_CREATE]
LIFETIMES = st.builds(
    StateTtl,
    st.sampled_from([ms(1), ms(5), ms(20), ms(1000)]),
    update=st.sampled_from(UPDATES),
    time=st.sampled_from(TtlTime),
    cleanup=st.sampled_from([Cleanup(), Cleanup(entries_per_record=0), Cleanup(exact=True)]),
)


def aggregated(result, ttl):
    sales = Pipeline("shop").source("sales", Sale, event_time="at", out_of_orderness=ms(5)).key_by("shop")
    return sales.aggregate("totals", result, state_ttl=ttl)


def operator_of(ttl, result=Means):
    return aggregated(result, ttl).operators[-1]


@examples(80)
@given(steps(SALES), st.sampled_from([Extremes, Means]), LIFETIMES)
def test_columns_expire_as_single_records(steps, result, ttl):
    equals_single_records(operator_of(replace(ttl, time=TtlTime.EVENT), result), steps)


def test_lifetime_ends_before_first_record():
    given = [step(sale(0, 1), later=40, ends_batch=True), step(sale(16, 2), later=1)]
    for length, sales in ((10, 1), (11, 2)):
        assert equals_single_records(operator_of(ms(length), Sold), given) == [[], []]
        harness = PipelineHarness(aggregated(Sold, ms(length)).sink("log", key=("shop",)), bucket=1)
        for part in ([sale(0, 1), sale(16, 1, shop="b")], [sale(16, 2)]):
            harness.feed("sales", part)
            with mock.patch.object(GroupAggregation, "process", side_effect=AssertionError):
                harness.run()
        assert [row.sales for row in harness.sink("log") if row.shop == "a"] == [sales]


@pytest.mark.parametrize("job", [{}, ONE_BY_ONE])
@pytest.mark.parametrize("files", [1, 3])
def test_late_sale_never_shortens_a_lifetime(job, files):
    """One that is later than the lifetime counts, and the total lives on."""
    sales = [*(sale(at, 1) for at in range(0, 50, 5)), sale(-30, 1), sale(52, 1)]
    harness = PipelineHarness(aggregated(Sold, ms(20)).sink("log", key=("shop",)), bucket=1, job=job)
    for number in range(files):
        harness.feed("sales", sales[number * len(sales) // files : (number + 1) * len(sales) // files])
        harness.run()
    assert [row.sales for row in harness.sink("log")] == [len(sales)]


@pytest.mark.parametrize(("length", "alone"), [(10, ["a"]), (11, [])])
def test_key_that_expires_between_records_comes_singly(length, alone):
    given = [step(sale(0), sale(0, shop="b"), later=40), step(sale(11), later=5)]
    assert equals_single_records(operator_of(ms(length)), given) == [alone]


def test_some_lifetimes_take_no_columns():
    assert operator_of(timedelta(1)).function.takes_columns
    for ttl in (
        StateTtl(timedelta(1), update=UpdateType.ON_CREATE),
        StateTtl(timedelta(1), cleanup=Cleanup(entries_per_access=1)),
        StateTtl(timedelta(1), expiry=ExpiryClock.PROCESSING_TIME),
    ):
        assert not operator_of(ttl).function.takes_columns


@pytest.mark.slow
@examples(6)
@given(st.lists(SALES, max_size=40), LIFETIMES, st.sampled_from(["hashmap", "rocksdb", "delta"]), st.integers(0, 999))
def test_expiring_columns_equal_one_by_one(sales, ttl, backend, seed):
    pipeline = aggregated(Means, ttl).sink("log")
    options = {"now": 0} if ttl.time is TtlTime.PROCESSING else {}
    singly = played(pipeline, sales, seed, job=ONE_BY_ONE, **options)
    assert played(pipeline, sales, seed, backend=backend, **options) == singly


def test_processing_time_expires_by_micro_batch():
    ttl = StateTtl(timedelta(hours=1), time=TtlTime.PROCESSING)
    harness = PipelineHarness(aggregated(Sold, ttl).sink("log", key=("shop",)), now=0)
    for minutes, expected in ((0, 1), (59, 2), (2, 3), (61, 1)):
        harness.clock.advance(minutes * 60_000)
        harness.feed("sales", [sale(minutes, 1)])
        harness.run()
        assert [row.sales for row in harness.sink("log")] == [expected]
