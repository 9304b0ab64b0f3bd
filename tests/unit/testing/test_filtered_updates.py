"""Updates behind a filter: a row that is changed into one that the filter refuses leaves the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.operators import Count, Max, Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind
OPEN = 5
"""Least amount of an open order."""


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: int


class Total(Struct, frozen=True):
    id: str
    amount: Annotated[int, Sum("amount")]


class Hour(Struct, frozen=True):
    id: str
    window_end: Timestamp
    amount: Annotated[int, Sum("amount")]


class Seen(Struct, frozen=True):
    id: str
    orders: Annotated[int, Count()]
    amount: Annotated[int, Max("amount")]


def is_open(row) -> bool:
    return row.amount >= OPEN


def orders(**options):
    return Pipeline("shop").source(
        "orders", Order, event_time="at", out_of_orderness=timedelta(milliseconds=5), **options
    )


def table_of(stream, *key, **options):
    return stream.filter(is_open).upsert_materialize("m", primary_key=key, upsert_key=key, **options).sink("open")


def last(**options):
    return table_of(orders().key_by("id").last_by_time("last", state_ttl=Lifetime.FOREVER), "id", **options)


def sums():
    return table_of(orders().key_by("id").aggregate("sums", Total, state_ttl=Lifetime.FOREVER), "id")


def hours():
    windows = orders().key_by("id").window(Tumbling(timedelta(milliseconds=4)))
    return table_of(windows.aggregate("hours", Hour, allowed_lateness=timedelta(milliseconds=9)), "id", "window_end")


def firsts():
    return table_of(orders().key_by("id").first_by_time("first", state_ttl=Lifetime.FOREVER), "id")


def smallest():
    ranked = orders().key_by("id").top("one", 1, by="amount", descending=False, state_ttl=Lifetime.FOREVER)
    return table_of(ranked, "id")


def last_of(rows):
    """Return the last row of each id by event time, then by arrival."""
    return {row.id: row for row in sorted(rows, key=lambda row: row.at)}


def fed(pipeline, slices, **options):
    harness = PipelineHarness(pipeline, bucket=1, **options)
    for rows in slices:
        if rows:
            harness.feed("orders", rows)
        harness.run()
    return harness


ROWS = st.lists(st.builds(Order, st.sampled_from("abc"), st.integers(0, 15), st.integers(0, 9)), max_size=9)


def test_cancelled_orders_leave_the_table():
    placed = [Order("a", 1, 9), Order("b", 2, 9)]
    harness = fed(last(), [placed, [Order("a", 3, 0)]], backend="rocksdb")
    assert harness.sink("open") == placed[1:]
    harness.feed("orders", [Order("a", 4, 7), Order("b", 5, 0), Order("b", 6, 8), Order("c", 7, 9), Order("c", 8, 1)])
    harness.run()
    assert sorted(harness.sink("open"), key=lambda row: row.id) == [Order("a", 4, 7), Order("b", 6, 8)]


@pytest.mark.slow
@examples(12)
@given(slices=st.lists(ROWS, min_size=1, max_size=3))
def test_filtered_last_rows_equal_a_query(slices):
    rows = [row for part in slices for row in part]
    expected = {key: row for key, row in last_of(rows).items() if is_open(row)}
    assert {row.id: row for row in fed(last(), slices).sink("open")} == expected


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        (sums, [("a", 6)]),
        (firsts, [("a", 6)]),
        (smallest, [("a", 6)]),
        (hours, [("a", 6)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refused_updates_delete_behind_each_operator(pipeline, expected):
    # b is open at first, and then too small: by a smaller row, an earlier one, or a late one of its window.
    reducing = [Order("b", 3, -4)] if pipeline in {sums, hours} else [Order("b", 1, 1)]
    slices = [[Order("a", 3, 6), Order("b", 2, 6), Order("z", 12, 0)], reducing]
    assert sorted((row.id, row.amount) for row in fed(pipeline(), slices).sink("open")) == expected


def changes_of(updates):
    """Return the changes of a table whose rows are set to amounts, or removed (None), and the table."""
    table, changes = {}, []
    for at, (key, amount) in enumerate(updates, 1):
        before = table.pop(key, None)
        if amount is not None:
            table[key] = Order(key, at, amount)
            changes += [(UPDATE_BEFORE, before), (UPDATE_AFTER, table[key])] if before else [(INSERT, table[key])]
        elif before:
            changes.append((DELETE, before))
    return changes, table


UPDATES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9) | st.none()), min_size=1, max_size=12)


@pytest.mark.slow
@examples(12)
@given(updates=UPDATES, parts=st.integers(1, 3))
def test_filtered_changes_of_a_source_equal_its_table(updates, parts):
    changes, table = changes_of(updates)
    if not changes:
        return
    harness = PipelineHarness(table_of(orders(row_kind="op"), "id"), bucket=2)
    size = -(-len(changes) // parts)
    for first in range(0, len(changes), size):
        kinds, rows = zip(*changes[first : first + size], strict=True)
        harness.feed("orders", rows, kinds=kinds)
        harness.run()
    assert {row.id: row for row in harness.sink("open")} == {key: row for key, row in table.items() if is_open(row)}


def test_log_of_changes_has_each_deletion():
    job = {"sinks": {"open": {"mode": "append"}}}
    slices = [[Order("a", 1, 9)], [Order("a", 2, 7), Order("a", 3, 0)], [Order("a", 4, 8)]]
    logs = {emit: fed(last(emit=emit), slices, job=job).sink_table("open") for emit in Emit}
    rows = {emit: sorted(log.to_pylist(), key=lambda row: row["_order"]) for emit, log in logs.items()}
    kinds = {emit: [row["_row_kind"] for row in log] for emit, log in rows.items()}
    assert kinds[Emit.NET_CHANGE] == ["+I", "-D", "+U"]
    assert kinds[Emit.EVERY_CHANGE] == ["+I", "-D", "+U", "-D", "+U"]


def test_restored_table_loses_cancelled_orders():
    harness = fed(last(), [[Order("a", 1, 9), Order("b", 1, 9)]])
    copy = harness.snapshot()
    for _ in range(2):
        harness.feed("orders", [Order("a", 3, 0)])
        assert harness.run(crash_at="commit.after") is None
        harness.run()
        assert harness.sink("open") == [Order("b", 1, 9)]
        harness.restore(copy)
