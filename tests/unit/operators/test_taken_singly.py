"""Keys whose records are processed one by one, beside others that columns take."""

from __future__ import annotations

import random
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Emit, Lifetime, Pipeline, RowKind, Struct
from headrace.operators import Avg, Count, Hopping, Session, Sum, Tumbling
from headrace.run.column_work import ColumnWork
from headrace.testing import PipelineHarness
from tests.unit.operators.test_group_columns import ONE_BY_ONE, Sale
from tests.unit.operators.test_slice_columns import (
    PLAIN,
    SALES,
    WINDOWS,
    Computed,
    Mixed,
    equals_single_records,
    ms,
    operator_of,
    sale,
    step,
    steps,
)
from tests.unit.operators.test_window_results import CRASHES, STOPS
from tests.unit.run.test_max_memory import left_behind, little_memory
from tests.unit.support.fuzzing import examples

SLICED = [windows for windows in WINDOWS if not isinstance(windows, Session)]
SESSIONS = [windows for windows in WINDOWS if isinstance(windows, Session)]


class Kept(Struct, frozen=True):
    """A result that can retract records, and that columns can compute."""

    shop: str
    sales: Annotated[int, Count()]
    priced: Annotated[int, Count("cents")]
    cents: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    weight: Annotated[float | None, Sum("weight")]
    price: Annotated[Decimal | None, Digits(38, 2), Sum("price")]


class Cents(Struct, frozen=True):
    """Its result is often the same: then nothing is emitted."""

    shop: str
    cents: Annotated[int | None, Sum("cents")]


def totals_of(result, emit, *, retract):
    sales = Pipeline("shop").source("sales", Sale, event_time="at", row_kind="kind").key_by("shop")
    return sales.aggregate("totals", result, emit=emit, retract=retract, state_ttl=Lifetime.FOREVER).operators[-1]


LATE = [
    step(sale(0), sale(1, shop="b"), sale(-9, shop="b"), sale(-25), later=31),
    step(sale(5), sale(-9, shop="b"), sale(-29, shop="b"), sale(3), sale(6, shop="b"), later=3, ends_batch=True),
    step(sale(20), sale(23, shop="b"), sale(23, shop='c"'), later=31),
    step(sale(36), sale(1, shop='c"'), sale(37, shop="b"), sale(38, shop='c"'), later=40, ends_batch=True),
    step(sale(90), sale(90, shop="b"), later=30),
]
"""Two of these sales are behind the end of their windows, of shops b and c": some even by more than their lateness."""


@pytest.mark.parametrize("windows", SLICED[:1] + SLICED[2:4])
@pytest.mark.parametrize("result", [Computed, Mixed, 2, -1])
@pytest.mark.parametrize("lateness", [0, 9])
def test_shops_with_late_records_are_taken_alone(windows, result, lateness):
    alone = equals_single_records(operator_of(windows, result, lateness=lateness), LATE)
    assert alone == [["b"], ['c"'], []]


@pytest.mark.parametrize("windows", SESSIONS)
@pytest.mark.parametrize("result", [Computed, Mixed, 2])
def test_sessions_of_late_records_are_taken_alone(windows, result):
    assert equals_single_records(operator_of(windows, result), LATE) == [["b"], ['c"'], []]


CHANGES = [
    step(sale(0), sale(1, shop="b"), sale(1, 3, shop='c"'), sale(-25), later=31),
    step(sale(5), sale(1, shop="b"), sale(2, 4, shop='c"'), later=2, ends_batch=True)._replace(
        kinds=[RowKind.UPDATE_AFTER, RowKind.DELETE, RowKind.INSERT]
    ),
    step(sale(36), sale(36), sale(36, shop="b"), sale(36, shop='c"'), sale(36, shop='c"'), later=9)._replace(
        kinds=[RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.INSERT, RowKind.DELETE, RowKind.DELETE]
    ),
]
"""First shop b takes back a sale, then the others: c" some that it has not had."""


@pytest.mark.parametrize("windows", [Tumbling(ms(50)), Hopping(ms(100), ms(50))])
def test_windows_with_retractions_are_taken_alone(windows):
    operator = operator_of(windows, Kept, row_kind="kind")
    assert equals_single_records(operator, CHANGES) == [["b"], ["a", 'c"']]


@pytest.mark.parametrize("emit", Emit)
@pytest.mark.parametrize("retract", [True, False])
def test_groups_with_retractions_are_taken_alone(emit, retract):
    operator = totals_of(Kept, emit, retract=retract)
    assert equals_single_records(operator, CHANGES) == [["b"], ["a", 'c"']]


@examples(40)
@given(
    steps(SALES, st.sampled_from(RowKind)), st.sampled_from([Kept, Cents]), st.sampled_from(Emit), st.booleans(), PLAIN
)
def test_groups_equal_single_records(steps, result, emit, retract, plain):
    equals_single_records(totals_of(result, emit, retract=retract), steps, plain=plain)


def test_columns_do_nothing_where_all_shops_are_left():
    with mock.patch.object(ColumnWork, "_process") as process:
        given = [step(sale(0), sale(0, shop="b"), later=60), step(sale(0), sale(0, shop="b"), later=9)]
        assert equals_single_records(operator_of(WINDOWS[0], Computed), given) == [["a", "b"]]
    assert not process.called


# ------------------------------------------------------------------------------------------------------- whole jobs


@contextmanager
def taken_keys():
    """Note the keys of each task that columns take."""
    process, taken = ColumnWork._process, []

    def noted(work, columns, function):
        results = process(work, columns, function)
        if results is not None:
            taken.append({*columns.keys})
        return results

    with mock.patch.object(ColumnWork, "_process", noted):
        yield taken


def windowed(windows):
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop").window(windows)
    return sales.aggregate("totals", Computed).side_output("late", Sale, sink="late").sink("log")


def changed(emit):
    sales = Pipeline("shop").source("sales", Sale, event_time="at", row_kind="kind").key_by("shop")
    return sales.aggregate("totals", Cents, emit=emit, retract=True, state_ttl=Lifetime.FOREVER).sink("log")


def changing_sales(start):
    """Return sales of shop a in time, and of b, of which early ones are late, or take back others; of c, of which none of the last file is."""
    for at in range(start, start + 100, 3):
        is_late = at < start + 50 and at % 4 == 0
        yield sale(at), RowKind.INSERT
        yield (sale(max(at - 60, 0), shop="b"), RowKind.DELETE) if is_late else (sale(at, shop="b"), RowKind.INSERT)
        yield sale(at - 50 if is_late and start < 200 else at, shop='c"'), RowKind.INSERT


def played(pipeline, chance=None, **options):
    """Return what a job leaves behind after each of its files. With `chance`, runs crash, or stop while they have records."""
    harness = PipelineHarness(pipeline, bucket=12, **options)
    takes_kinds = harness._source("sales").row_kind is not None
    seen = []
    for start in (0, 100, 200):
        sales, kinds = zip(*changing_sales(start), strict=True)
        harness.feed("sales", sales, kinds=kinds if takes_kinds else None)
        if chance is not None:
            harness.run(crash_at=chance.choice(CRASHES), budget_ends_at=chance.choice(STOPS))
        harness.run()
        seen.append(left_behind(harness))
    harness.run(end_of_input=True)
    return [*seen, left_behind(harness)]


SINKS = 2
"""Place of the first sink in what is left behind. Before them are state and quarantine, which also have the micro-batch of each row."""

JOBS = [(windowed, WINDOWS[2]), (windowed, SESSIONS[0]), (changed, Emit.EVERY_CHANGE), (changed, Emit.NET_CHANGE)]


@pytest.mark.parametrize(("pipeline", "option"), JOBS)
def test_jobs_leave_behind_the_same(pipeline, option):
    single = played(pipeline(option), parallelism=1, job=ONE_BY_ONE)
    with taken_keys() as taken:
        assert played(pipeline(option), parallelism=1) == single
    assert taken[0] - {b'"c\\""'} == {b'"a"'}
    with little_memory(20_000) as limit, taken_keys() as taken:
        assert played(pipeline(option), parallelism=1, job=limit) == single
    assert b'"a"' in taken[0]


@pytest.mark.parametrize("emit", Emit)
def test_jobs_emit_in_arrival_order(emit):
    single, columns = (PipelineHarness(changed(emit), parallelism=1, job=job) for job in (ONE_BY_ONE, {}))
    for harness in (single, columns):
        sales, kinds = zip(*changing_sales(0), strict=True)
        harness.feed("sales", sales, kinds=kinds)
        harness.run()
    assert columns.sink_table("log").to_pylist() == single.sink_table("log").to_pylist()


@pytest.mark.slow
@examples(5)
@given(st.sampled_from(JOBS[:3]), st.integers(0, 1 << 30), st.sampled_from(["hashmap", "rocksdb"]), st.booleans())
def test_stopped_jobs_emit_the_same(job, seed, backend, has_limit):
    (pipeline, option), chance = job, random.Random(seed)
    few = {"execution": {"async-state": {"in-flight-records-limit": chance.choice([2, 20])}}}
    (*_, single) = played(pipeline(option), job=ONE_BY_ONE)
    with little_memory(20_000) as limit:
        given = few | (limit if has_limit else {})
        stopped = played(pipeline(option), chance, backend=backend, parallelism=chance.choice([1, 2, 3]), job=given)
    assert stopped[-1][SINKS:] == single[SINKS:]
