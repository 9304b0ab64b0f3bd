"""Keys whose records are processed one by one, beside others that columns take."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from decimal import Decimal
from itertools import chain
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Digits, Emit, Lifetime, Pipeline, RowKind, Struct
from headrace.operators import Avg, Count, Hopping, Session, Sum, Tumbling
from headrace.run.keyed_stage import ColumnWork
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


def test_total_beyond_columns_is_emitted_in_order():
    largest = (1 << 63) - 1
    given = [
        step(sale(0, largest, shop="b"), sale(1), sale(1, shop="b"), sale(2, largest, shop="b"), sale(2), later=40)
    ]
    given[0].kinds[2] = RowKind.DELETE
    assert equals_single_records(totals_of(Cents, Emit.EVERY_CHANGE, retract=True), given) == [["b"]]


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


def played(windows, *, crash_at=None, job=None):
    """Return what a job leaves behind after each of its runs, with late sales of shop b."""
    sales = Pipeline("shop").source("sales", Sale, event_time="at").key_by("shop").window(windows)
    pipeline = sales.aggregate("totals", Computed).side_output("late", Sale, sink="late").sink("log")
    harness = PipelineHarness(pipeline, bucket=12, parallelism=1, job=job or {})
    seen = []
    for start in (0, 100, 200):
        times = range(start, start + 100, 3)
        late = (sale(max(at - 60, 0) if at % 4 == 1 else at, shop="b") for at in times)
        harness.feed("sales", [*chain(*zip(map(sale, times), late, strict=True))])
        harness.run(crash_at=crash_at)
        harness.run()
        counts = [harness.facts[-1].metrics.get(name, 0) for name in ("keyed_records", "late", "late_to_side")]
        seen.append((left_behind(harness), counts))
    harness.run(end_of_input=True)
    return [*seen, left_behind(harness)]


@pytest.mark.parametrize("crash_at", [None, "task.half", "commit.after"])
@pytest.mark.parametrize("size", [None, 1, 20_000])
@pytest.mark.parametrize("windows", [WINDOWS[2], SESSIONS[0]])
def test_jobs_take_some_keys_as_columns(windows, size, crash_at):
    single = played(windows, crash_at=crash_at, job=ONE_BY_ONE)
    with nullcontext({}) if size is None else little_memory(size) as job, taken_keys() as taken:
        assert played(windows, crash_at=crash_at, job=job) == single
    assert {b'"a"'} in taken or size == 1
