"""Last records over columns: state, expiry, changes and their places are those of single records."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Lifetime, Pipeline, RowKind, StateTtl, TimeDomain, TtlTime, UpdateType
from headrace.testing import PipelineHarness
from tests.unit.operators.test_expiring_columns import LIFETIMES, ONE_BY_ONE
from tests.unit.operators.test_group_columns import SALES as MANY_SALES
from tests.unit.operators.test_group_columns import Sale, played
from tests.unit.operators.test_slice_columns import PLAIN, SALES, equals_single_records, ms, sale, step, steps
from tests.unit.support.fuzzing import examples

TIMES = st.sampled_from(TimeDomain)


def last_of(ttl, time=TimeDomain.EVENT_TIME, *, row_kind=None):
    sales = Pipeline("shop").source("sales", Sale, event_time="at", out_of_orderness=ms(5), row_kind=row_kind)
    return sales.key_by("shop").last_by_time("last", state_ttl=ttl, time=time)


def operator_of(ttl, time=TimeDomain.EVENT_TIME, **options):
    return last_of(ttl, time, **options).operators[-1]


@examples(60)
@given(steps(SALES), st.just(Lifetime.FOREVER) | LIFETIMES, TIMES, PLAIN)
def test_columns_equal_single_records(steps, ttl, time, plain):
    ttl = ttl if ttl is Lifetime.FOREVER else replace(ttl, time=TtlTime.EVENT)
    equals_single_records(operator_of(ttl, time), steps, plain=plain if ttl is Lifetime.FOREVER else ())


@pytest.mark.slow
@examples(6)
@given(MANY_SALES, LIFETIMES, TIMES, st.sampled_from(["hashmap", "rocksdb", "delta"]), st.integers(0, 999))
def test_changes_equal_those_one_by_one(sales, ttl, time, backend, seed):
    pipeline = last_of(ttl, time).sink("log")
    singly = played(pipeline, sales, seed, job=ONE_BY_ONE, now=0)
    assert played(pipeline, sales, seed, backend=backend, now=0) == singly


@pytest.mark.parametrize(("time", "at"), [(TimeDomain.EVENT_TIME, 7), (TimeDomain.PROCESSING_TIME, 3)])
def test_later_record_replaces_stored_one(time, at):
    given = [step(sale(5), later=1, ends_batch=True), step(sale(7), sale(6), sale(3), sale(4, shop="b"), later=1)]
    assert equals_single_records(operator_of(Lifetime.FOREVER, time), given) == [[], []]
    harness = PipelineHarness(last_of(timedelta(1), time).sink("rows", key=("shop",)))
    for part in given:
        harness.feed("sales", part.sales)
        harness.run()
    assert {row.shop: row.at for row in harness.sink("rows")} == {"a": at, "b": 4}


@pytest.mark.parametrize(("first", "alone"), [(30, []), (1, ["a"])])
def test_stored_record_that_may_expire_between_comes_singly(first, alone):
    """A record that is older than the stored one does not renew it."""
    given = [
        step(sale(2), later=35, ends_batch=True),
        step(sale(first), sale(6, shop="b"), later=8),
        step(sale(32), later=1),
    ]
    assert equals_single_records(operator_of(ms(10)), given) == [[], alone]


def test_shops_with_retractions_come_singly():
    given = [step(sale(0), sale(1, shop="b"), later=9)._replace(kinds=[RowKind.INSERT, RowKind.DELETE])]
    operator = operator_of(Lifetime.FOREVER)
    assert len(equals_single_records(operator, given)) == 1


def test_lifetimes_that_reads_renew_take_no_columns():
    read = StateTtl(timedelta(1), update=UpdateType.ON_READ_AND_WRITE)
    assert [operator_of(ttl).function.takes_columns for ttl in (timedelta(1), read)] == [True, False]
