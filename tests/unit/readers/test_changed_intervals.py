"""Days of the rows that a backfill changes, beside a plain loop over the former and the corrected input."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Pipeline, RowKind, ValueState
from headrace.errors import StorageError
from headrace.readers import changed_intervals
from headrace.run.backfill import BackfillOutcome, BackfillRequest
from tests.unit.support import backfilled_job
from tests.unit.support.backfilled_job import BackfilledJob, days
from tests.unit.support.branched_job import CUSTOMERS, Order, Total
from tests.unit.support.fuzzing import examples


class Totals(KeyedProcessFunction[Order, Total]):
    """Adds up amounts; the amount 0 removes the total."""

    amount = ValueState("amount", int)

    async def process(self, order, ctx, /):
        before = await self.amount.value()
        amount = None if order.amount == 0 else (before or 0) + order.amount
        if before is not None:
            kind = RowKind.DELETE if amount is None else RowKind.UPDATE_BEFORE
            ctx.collect(Total(order.customer, before), kind)
        if amount is None:
            await self.amount.clear()
        else:
            await self.amount.update(amount)
            ctx.collect(Total(order.customer, amount), RowKind.INSERT if before is None else RowKind.UPDATE_AFTER)


def same(order: Order) -> Order:
    """Return the order."""
    return order


def pipeline():
    shop = Pipeline("shop")
    orders = shop.source("orders", Order, event_time="at")
    orders.map(same).sink("rows")
    totals = orders.key_by("customer").process("totals", Totals())
    totals.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    return shop


def job_of(written, **options):
    """Return a job that has taken in these orders, by day."""
    job = BackfilledJob(pipeline(), **options)
    for number, orders in enumerate(written):
        job.write(number, *orders)
    job.run()
    return job


def changed_rows(before, after):
    """Return the days with another number of any row."""
    pairs = enumerate(zip(before, after, strict=True))
    return {number for number, (old, new) in pairs if Counter(enumerate(old)) != Counter(enumerate(new))}


def final(written):
    """Return each customer's total, and the day that wrote it last."""
    totals, last = {}, {}
    for number, orders in enumerate(written):
        for customer, amount in orders:
            if amount or customer in totals:
                last[customer] = number
            totals[customer] = totals.get(customer, 0) + amount
            if not amount:
                del totals[customer]
    return totals, last


def changed_totals(before, after, asked):
    """Return the days that wrote differing totals last, in the former input and in the corrected one."""
    (old, old_days), (new, new_days) = final(before), final(after)
    differing = [customer for customer in CUSTOMERS if old.get(customer) != new.get(customer)]
    written = {last[customer] for last in (old_days, new_days) for customer in differing if customer in last}
    return {number for number in written if number >= asked}


def compared(job, interval, **options):
    """Run a backfill that names days."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfilled_job, "BackfillRequest", partial(BackfillRequest, names_days=True))
        return job.backfill(interval, **options)


def days_of(result):
    """Return the days that a backfill names, by sink."""
    tables = [table for table in result.comparison.tables if table.is_sink]
    begin = days(0).start
    length = days(0).end - begin
    return {table.table: {(own.start - begin) // length for own in table.intervals} for table in tables}


DAY = st.lists(st.tuples(st.sampled_from(CUSTOMERS[:3]), st.sampled_from([0, 3, 5])), max_size=3)


@pytest.mark.slow
@examples(3)
@given(data=st.data())
def test_backfill_names_the_days_of_its_changes(data):
    before = data.draw(st.lists(DAY, min_size=2, max_size=4), "days")
    job = job_of(before)
    after = [*before]
    corrected = data.draw(st.lists(st.integers(0, len(before) - 1), min_size=1, max_size=2, unique=True), "corrected")
    for number in corrected:
        after[number] = data.draw(DAY, "correction")
        job.write(number, *after[number])
    result = compared(job, days(min(corrected)))

    expected = {"rows": changed_rows(before, after), "totals": changed_totals(before, after, min(corrected))}
    assert days_of(result) == {sink: numbers for sink, numbers in expected.items() if numbers}


@pytest.mark.slow
def test_later_backfills_name_their_own_days():
    """All fork at one checkpoint: the first promotion changed no row of the second. Where a row that it brought belongs is recorded nowhere."""
    job = job_of([[("ann", 3)], [("bob", 3)], [("cyd", 3)]])
    job.write(0, ("ann", 5))
    first = compared(job, days(0), promote="automatic")
    assert (first.outcome, days_of(first)) == (BackfillOutcome.PROMOTED, {"rows": {0}, "totals": {0}})
    job.write(2, ("cyd", 5))
    assert days_of(compared(job, days(2), promote="automatic")) == {"rows": {2}, "totals": {2}}
    job.write(0, ("ann", 7))
    assert days_of(compared(job, days(0))) == {"rows": {0, 1, 2}, "totals": {0, 1, 2}}


@pytest.mark.slow
def test_days_are_found_only_if_asked_for():
    job = job_of([[("ann", 3)]])
    job.write(0, ("ann", 5))
    assert days_of(job.backfill(days(0))) == {"rows": set(), "totals": set()}


@pytest.mark.slow
def test_unreadable_version_stands_for_all_days(monkeypatch):
    job = job_of([[("ann", 3)], [("bob", 3)], [("cyd", 3)]])
    job.write(1, ("bob", 5))

    def refuse(*_):
        raise StorageError("the file was removed by VACUUM")

    monkeypatch.setattr(changed_intervals, "rows_of_files", refuse)
    assert days_of(compared(job, days(1))) == {"rows": {1, 2}, "totals": {1, 2}}
